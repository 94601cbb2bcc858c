"""One rule for every text that a client sends: no text looks like another one or commands a
terminal."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.tenants import Tenants

# C0 with a line break, ESC and NUL; DEL; C1; what changes directions; zero width; line separators.
REFUSED = (
    "a\x00b",
    "a\tb",
    "a\nb",
    "ab\n",
    "\x1b]52;c;cHduZWQ=\x07",
    "a\x7fb",
    "\x9b31mred",
    "a\x85b",
    "a\u00adb",
    "a\u061cb",
    "a\u200bb",
    "a\u200db",
    "a\u200fb",
    "a\u2028b",
    "a\u2029b",
    "\u202e=1",
    "a\u2060b",
    "a\u2066b",
    "\ufeffb",
)
TAKEN = ("é", "e\u0301", "\U0001f600", "=1+1", "<b>'\"\\", "日本語", "شكرا")
SWITCH = {"manually_disabled": False}
NEW_ACCOUNT = {"name": "texts", "broker": "paper", "environment": "paper"}
ORDER = {"symbol": "AAPL", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}


@pytest.fixture(scope="module")
def account_id(tenants: Tenants) -> str:
    made = tenants.client.post("/v1/accounts", json=NEW_ACCOUNT, headers=tenants.callers["key_all"])
    found: str = made.json()["id"]
    return found


def requests(account_id: str, text: str) -> list[tuple[str, str, str, Any]]:
    """A request for each field that takes a text: its pointer, method, path and body."""
    controls = f"/v1/controls/accounts/{account_id}"
    account = f"/v1/accounts/{account_id}"
    reason = SWITCH | {"manual_reason": text}
    order = {"command": {"type": "CREATE", "payload": ORDER}, "client_reference_id": text}
    label = {"secrets": {}, "label": text}
    key = {"name": text, "environment": "paper", "permissions": []}
    return [
        ("/client_reference_id", "POST", f"{account}/intents", order),
        ("/manual_reason", "PUT", f"{controls}/symbols/AAPL", reason),
        ("/manual_reason", "PUT", controls, reason),
        ("/manual_reason", "PUT", "/v1/controls/organization", reason),
        ("/reason", "POST", f"{controls}/halt", {"reason": text}),
        ("/reason", "POST", "/v1/controls/organization/halt", {"reason": text}),
        ("/name", "POST", "/v1/accounts", NEW_ACCOUNT | {"name": text}),
        ("/external_account_id", "PATCH", account, {"external_account_id": text}),
        ("/label", "POST", f"{account}/credentials", label),
        ("/name", "POST", "/v1/api-keys", key),
        (
            "?client_reference_id",
            "GET",
            f"{account}/orders?client_reference_id={quote(text)}",
            None,
        ),
    ]


@pytest.mark.parametrize("text", REFUSED, ids=ascii)
def test_a_text_that_deceives_is_refused_in_every_field(
    tenants: Tenants, account_id: str, text: str
) -> None:
    for pointer, method, path, body in requests(account_id, text):
        caller = tenants.callers["key_all" if method == "GET" or "intents" in path else "admin"]
        answer = tenants.client.request(method, path, json=body, headers=caller)
        assert (path, answer.status_code) == (path, 422)
        assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize("text", TAKEN, ids=ascii)
def test_every_other_text_is_kept_as_it_is(tenants: Tenants, account_id: str, text: str) -> None:
    url = f"/v1/controls/accounts/{account_id}/symbols/AAPL"
    body = SWITCH | {"manual_reason": text}
    answer = tenants.client.put(url, json=body, headers=tenants.callers["key_all"])
    assert answer.json()["manual_reason"] == text
    _, method, path, order = requests(account_id, text)[0]
    taken = tenants.client.request(method, path, json=order, headers=tenants.callers["key_all"])
    assert taken.status_code == 202
