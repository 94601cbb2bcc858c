"""Every caller at every endpoint, against a table written by hand from the contract; in two orders, one in chaos."""

import random
import uuid
from typing import Any

import pytest

from tests.tenants import Tenants
from trading_intents.identity.access import RULES

# What each caller gets at an endpoint of each policy: a status, or ok for "let through" (then 2xx, 404, 409 or 422).
# fmt: off
CALLERS = (                     "none", "both", "key_all", "key_live", "key_none", "key_disabled", "key_closed", "admin", "member", "read_only", "no_org", "closed_admin", "internal_admin", "service_all", "service_none", "service_unnamed")  # noqa: E501 - a table
EXPECTED = {
    "outbox_health":              "401 401 401 401 401 401 401 403 403 403 401 401  ok  ok 403  ok",
    "submit_intent":              "401 400  ok  ok 403 401 401 401 401 401 401 401 401 401 401 401",
    "read_intents":               "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "write_controls":             "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "write_organization_control": "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_controls":              "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "halt_account":               "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "halt_organization":          "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_halts":                 "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "organization_by_provider":   "401 400 401 401 401 401 401  ok  ok  ok  ok 401  ok  ok  ok  ok",
    "delete_current_user":        "401 401 401 401 401 401 401  ok  ok  ok 401 401  ok 401 401 401",
    "write_accounts":             "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "write_credentials":          "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "read_accounts":              "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "api_keys":                   "401 400 401 401 401 401 401  ok 403 403 401 401  ok 401 401 401",
    "paper_quotes":               "401 400  ok 403 403 401 401  ok 403 403 401 401  ok 401 401 401",
    "read_paper_quotes":          "401 400  ok 403 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
    "write_reference_prices":     "401 400  ok  ok 403 401 401  ok 403 403 401 401  ok 403 403 403",
    "brokers":                    "401 400  ok  ok  ok 401 401  ok  ok  ok  ok 401  ok  ok  ok  ok",
    "read_caller":                "401 400  ok  ok  ok 401 401  ok  ok  ok  ok 401  ok  ok  ok  ok",
    "stream":                     "401 400  ok  ok 403 401 401  ok  ok  ok 401 401  ok  ok 403 400",
}
# fmt: on
LET_THROUGH = {200, 201, 202, 204, 404, 409, 422}


def test_the_table_has_a_row_for_every_policy() -> None:
    assert set(EXPECTED) | {"public"} == set(RULES)
    assert {len(row.split()) for row in EXPECTED.values()} == {len(CALLERS)}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_every_caller_at_every_endpoint_is_answered_as_the_table_says(tenants: Tenants, seed: int) -> None:
    cases = [
        (method, path, operation, caller, expected)
        for path, item in tenants.client.get("/openapi.json").json()["paths"].items()
        for method, operation in item.items()
        if operation["x-policy"] != "public"
        for caller, expected in zip(CALLERS, EXPECTED[operation["x-policy"]].split(), strict=True)
        if (operation["x-policy"], expected) != ("delete_current_user", "ok")  # it would delete the caller
    ]
    random.Random(seed).shuffle(cases)
    wrong = []
    for method, path, operation, caller, expected in cases:
        answer = call(tenants, method, path, operation, tenants.callers[caller])
        fits = answer.status_code in LET_THROUGH if expected == "ok" else answer.status_code == int(expected)
        if not fits:
            wrong.append(f"{method} {path} as {caller}: {answer.status_code}, not {expected}: {answer.text}")
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"]
    assert cases
    assert not wrong, "\n".join(wrong)


def test_no_cache_keeps_what_a_credential_opens(tenants: Tenants) -> None:
    """Also no refusal: a cache that kept a 404 would answer it to others."""
    kept = []
    for path, item in tenants.client.get("/openapi.json").json()["paths"].items():
        if "get" not in item or item["get"]["x-policy"] == "public":
            continue
        for caller in ("none", "key_all", "key_none", "admin"):
            answer = call(tenants, "get", path, item["get"], tenants.callers[caller])
            if answer.headers.get_list("cache-control") != ["no-store"]:
                kept.append((path, caller))
    assert kept == []


def call(tenants: Tenants, method: str, path: str, operation: dict[str, Any], headers: dict[str, str]) -> Any:
    """With ids that nobody has and an empty body: let through means not found, or a broken rule."""
    for parameter in operation["parameters"]:
        path = path.replace(f"{{{parameter['name']}}}", str(uuid.uuid4()))
    body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
    return tenants.client.request(method, path, headers=headers, **body)
