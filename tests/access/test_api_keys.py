"""API keys over HTTP: made, shown once, listed, changed, deleted, validated; never another
tenant's."""

import datetime
import re
import uuid
from typing import Any

import pytest

from tests.answer_patterns import STAMP
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.errors import ValidationFailed

URL = "/v1/api-keys"
VALIDATE = "/api/v1/auth/api-key/validate"


def make(tenants: Tenants, caller: str = "admin", **changes: Any) -> Any:
    body = {"name": "bot", "environment": "paper", "permissions": ["intent:read"]} | changes
    return tenants.client.post(URL, json=body, headers=tenants.callers[caller])


def test_a_key_is_shown_once_and_works(tenants: Tenants) -> None:
    answer = make(tenants)
    made = answer.json()
    assert (answer.status_code, answer.headers["etag"], answer.headers["cache-control"]) == (
        201,
        '"1"',
        "no-store",
    )
    assert re.fullmatch(r"tip_paper_[0-9A-Za-z]{38}", made["api_key"])
    assert set(made) == {
        *("id", "organization_id", "name", "environment", "permissions", "disabled", "hint"),
        *("last_used_at", "expires_at", "user", "created_at", "updated_at", "version", "api_key"),
    }
    assert made["organization_id"] == tenants.organization("org_acme")["id"]
    assert (made["hint"], made["version"], made["disabled"]) == (made["api_key"][-4:], 1, False)
    assert STAMP.fullmatch(made["created_at"])
    assert uuid.UUID(made["id"]).version == 7
    validated = tenants.client.post(VALIDATE, json={"api_key": made["api_key"]})
    assert validated.status_code == 200
    assert validated.json() == {
        "id": made["id"],
        "organization_id": made["organization_id"],
        "environment": "paper",
        "disabled": False,
        "created_at": made["created_at"],
    }
    page = tenants.client.get(URL, headers=tenants.callers["admin"], params={"limit": 100})
    assert made["api_key"] not in page.text


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "x" * 129}, "/name"),
        ({"name": "a\x00b"}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "a\n"}, "/name"),
        ({"name": 1}, "/name"),
        ({"environment": "PAPER"}, "/environment"),
        ({"environment": None}, "/environment"),
        ({"permissions": ["intent:write"]}, "/permissions/0"),
        ({"permissions": "intent:read"}, "/permissions"),
        ({"permissions": None}, "/permissions"),
        ({"permission_set": "reader"}, "/permissions"),
        ({"permissions": None, "permission_set": "admin"}, "/permission_set"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"expires_at": "tomorrow"}, "/expires_at"),
        ({"expires_at": "2999-01-01T00:00:00"}, "/expires_at"),
        ({"expires_at": 1}, "/expires_at"),
        ({"permissions": ["intent:read", "intent:read"]}, "/permissions"),
        ({"organization_id": str(uuid.uuid4())}, "/organization_id"),
        ({"version": 7}, "/version"),
    ],
)
def test_a_bad_key_is_refused_at_its_field(
    tenants: Tenants, changes: dict[str, Any], pointer: str
) -> None:
    answer = make(tenants, **changes)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]


READER = {"intent:read", "control:read", "account:read", "stream:read"}


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        ("reader", READER),
        ("trader", READER | {"intent:edit"}),
        ("operator", READER | {"control:edit", "account:edit", "credential:edit"}),
    ],
)
def test_a_permission_set_is_expanded_when_the_key_is_made(
    tenants: Tenants, name: str, permissions: set[str]
) -> None:
    made = make(tenants, permissions=None, permission_set=name).json()
    assert made["permissions"] == sorted(permissions)
    assert "permission_set" not in made
    document = {"name": f"a {name}", "environment": "paper", "permission_set": name}
    [applied] = tenants.platform.provision(
        {"organizations": [{"external_id": "org_sets", "api_keys": [document]}]}
    )["organizations"][0]["api_keys"]
    assert applied["permissions"] == sorted(permissions)


def test_a_key_that_expires_says_when_and_a_change_keeps_it(tenants: Tenants) -> None:
    made = make(tenants, expires_at="2999-01-01T02:00:00+02:00").json()
    assert made["expires_at"] == "2999-01-01T00:00:00.000000Z"
    headers = tenants.callers["admin"]
    changed = tenants.client.patch(
        f"{URL}/{made['id']}", json={"name": "renamed"}, headers=headers
    ).json()
    assert changed["expires_at"] == made["expires_at"]
    caller = tenants.client.get("/v1/caller", headers={"x-api-key": made["api_key"]}).json()
    assert caller["expires_at"] == made["expires_at"]
    assert (
        tenants.client.patch(
            f"{URL}/{made['id']}", json={"expires_at": None}, headers=headers
        ).status_code
        == 422
    )


def test_an_expired_key_is_refused_like_a_disabled_one(tenants: Tenants) -> None:
    """`admin apply` takes a past end: that is how an operator ends a key now."""
    account = {"name": "sim", "broker": "paper", "environment": "paper"}

    def apply(**changes: str) -> Any:
        key = {"name": "bot", "environment": "paper", "permission_set": "trader"} | changes
        document = {"external_id": "org_expiring", "accounts": [account], "api_keys": [key]}
        return tenants.platform.provision({"organizations": [document]})["organizations"][0]

    made = apply(expires_at="2999-01-01T00:00:00Z")
    [key] = made["api_keys"]
    [at] = made["accounts"]
    headers = {"x-api-key": key["api_key"]}
    intents = f"/v1/accounts/{at['id']}/intents"
    payload = {"symbol": "AAPL", "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}
    body = {"command": {"type": "CREATE", "payload": payload}}
    assert tenants.client.post(intents, json=body, headers=headers).status_code == 202
    [ended] = apply(expires_at="2020-01-01T00:00:00Z")["api_keys"]
    assert ended["expires_at"] == "2020-01-01T00:00:00.000000Z"
    # The writer reads the key in its transaction, so no cache delays this.
    refused = tenants.client.post(intents, json=body, headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (401, "the API key does not verify")
    eventually(lambda: tenants.client.get(intents, headers=headers).status_code == 401, 5)
    assert (
        tenants.client.post(VALIDATE, json={"api_key": key["api_key"]}).json()["disabled"] is True
    )
    [again] = apply(expires_at="2999-01-01T00:00:00Z")["api_keys"]
    assert again["id"] == key["id"]
    assert tenants.client.get(intents, headers=headers).status_code == 200


def test_admin_apply_takes_permissions_or_a_set_never_both(tenants: Tenants) -> None:
    key = {
        "name": "k",
        "environment": "paper",
        "permission_set": "reader",
        "permissions": ["intent:read"],
    }
    with pytest.raises(ValidationFailed) as refused:
        tenants.platform.provision(
            {"organizations": [{"external_id": "org_sets", "api_keys": [key]}]}
        )
    assert [e.pointer for e in refused.value.errors] == [
        "/organizations/0/api_keys/0/permission_set"
    ]


def test_a_list_shows_the_own_organizations_keys_page_by_page(tenants: Tenants) -> None:
    mine = [make(tenants, "other_admin").json()["id"] for _ in range(3)]
    seen = []
    query = {"limit": "2"}
    while True:
        page = tenants.client.get(URL, headers=tenants.callers["other_admin"], params=query).json()
        assert {k["organization_id"] for k in page["data"]} == {
            tenants.organization("org_other")["id"]
        }
        seen += [k["id"] for k in page["data"]]
        if page["next_cursor"] is None:
            break
        query["next_cursor"] = page["next_cursor"]
    assert seen == sorted(seen)
    assert set(mine) <= set(seen)
    assert len(set(seen)) == len(seen)


def test_a_cursor_of_another_tenant_is_invalid(tenants: Tenants) -> None:
    cursor = tenants.client.get(URL, headers=tenants.callers["admin"], params={"limit": 1}).json()[
        "next_cursor"
    ]
    answer = tenants.client.get(
        URL, headers=tenants.callers["other_admin"], params={"next_cursor": cursor}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_a_change_grows_the_version_and_can_be_conditional(tenants: Tenants) -> None:
    made = make(tenants).json()
    admin = tenants.callers["admin"]
    url = f"{URL}/{made['id']}"
    changed = tenants.client.patch(url, json={"name": "renamed"}, headers=admin)
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    assert (changed.json()["name"], changed.json()["version"]) == ("renamed", 2)
    assert changed.json()["permissions"] == ["intent:read"]
    assert "api_key" not in changed.json()
    stale = tenants.client.patch(url, json={"name": "again"}, headers=admin | {"if-match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "version_conflict")
    same = tenants.client.patch(url, json={}, headers=admin | {"if-match": '"2"'})
    assert (same.status_code, same.json()["version"]) == (200, 2)
    assert tenants.client.delete(url, headers=admin | {"if-match": '"1"'}).status_code == 412
    assert tenants.client.delete(url, headers=admin | {"if-match": '"2"'}).status_code == 204
    assert tenants.client.delete(url, headers=admin).status_code == 404


@pytest.mark.parametrize(
    "spelling", ["{0}", "{{{0}}}", "urn:uuid:{0}", "{1}", "{2}", "nonsense", "%00", "{0}%0A"]
)
def test_a_key_of_another_tenant_or_spelling_is_not_found(tenants: Tenants, spelling: str) -> None:
    made = make(tenants, "other_admin").json()["id"]
    path = f"{URL}/" + spelling.format(made, made.replace("-", ""), made.upper())
    for answer in (
        tenants.client.patch(path, json={"disabled": True}, headers=tenants.callers["admin"]),
        tenants.client.delete(path, headers=tenants.callers["admin"]),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_404_comes_before_422_and_422_before_412(tenants: Tenants) -> None:
    admin = tenants.callers["admin"]
    assert (
        tenants.client.patch(f"{URL}/{uuid.uuid4()}", json={"x": 1}, headers=admin).status_code
        == 404
    )
    url = f"{URL}/{make(tenants).json()['id']}"
    assert (
        tenants.client.patch(url, json={"x": 1}, headers=admin | {"if-match": '"9"'}).status_code
        == 422
    )


@pytest.mark.parametrize("change", [{"disabled": True}, None])
def test_a_disabled_or_deleted_key_is_refused_at_once_by_this_process(
    tenants: Tenants, change: dict[str, Any] | None
) -> None:
    made = make(tenants).json()
    mine = {"x-api-key": made["api_key"]}
    # Of this kind.
    assert (
        tenants.client.get("/v1/organizations/by-provider/local/x", headers=mine).status_code == 401
    )
    url = f"{URL}/{made['id']}"
    admin = tenants.callers["admin"]
    if change is None:
        assert tenants.client.delete(url, headers=admin).status_code == 204
        assert tenants.client.post(VALIDATE, json={"api_key": made["api_key"]}).status_code == 401
    else:
        assert tenants.client.patch(url, json=change, headers=admin).status_code == 200
        assert (
            tenants.client.post(VALIDATE, json={"api_key": made["api_key"]}).json()["disabled"]
            is True
        )


def test_a_validation_reads_64_kib_at_most(tenants: Tenants) -> None:
    key = "x" * (64 * 1024 - len('{"api_key":""}'))
    assert tenants.client.post(VALIDATE, json={"api_key": key}).status_code == 401
    answer = tenants.client.post(VALIDATE, json={"api_key": key + "x"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize(
    "name", ["a\u202eb", "a\u200bb", "a\u2066b", "a\ufeffb", "a\u00adb"], ids=ascii
)
def test_a_name_that_looks_like_another_is_refused(tenants: Tenants, name: str) -> None:
    answer = make(tenants, name=name)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/name")


def test_a_key_of_a_disabled_organization_validates_as_disabled(tenants: Tenants) -> None:
    text = tenants.api_key("org_closed", "all")["api_key"]
    assert tenants.client.post(VALIDATE, json={"api_key": text}).json()["disabled"] is True


def spoil(text: str, at: int) -> str:
    return text[:at] + ("a" if text[at] != "a" else "b") + text[at + 1 :]


def test_unknown_and_malformed_keys_answer_alike(tenants: Tenants) -> None:
    good = tenants.api_key("org_acme", "all")["api_key"]
    bad = [
        spoil(good, 20),
        spoil(good, -1),
        good[:-1],
        good + " ",
        good.swapcase(),
        good + "x",
        "",
        "x" * 5000,
        "\x00",
    ]
    answers = [tenants.client.post(VALIDATE, json={"api_key": text}) for text in bad]
    assert {a.status_code for a in answers} == {401}
    assert {
        (a.json()["code"], a.json()["detail"], a.headers["www-authenticate"]) for a in answers
    } == {("invalid_api_key", "The API key is not valid", 'Bearer realm="trading-intents"')}


@pytest.mark.parametrize(
    "body", [{}, {"api_key": 1}, {"api_key": None}, {"api_key": "x", "more": 1}, []]
)
def test_a_validation_without_a_key_is_422(tenants: Tenants, body: Any) -> None:
    assert tenants.client.post(VALIDATE, json=body).status_code == 422


@pytest.mark.parametrize("spelling", ["{0}x", "{1}", "{2}", "Bearer {0}", "{0},{0}", "{0}\xa0", ""])
def test_a_key_in_another_spelling_does_not_authenticate(tenants: Tenants, spelling: str) -> None:
    good = tenants.api_key("org_acme", "all")["api_key"]
    text = spelling.format(good, good.upper(), good[:-1])
    answer = tenants.client.get(URL, headers={b"x-api-key": text.encode("latin-1")})
    assert (answer.status_code, answer.json()["detail"]) == (401, "the API key does not verify")


def test_a_key_in_the_query_string_is_not_looked_at(tenants: Tenants) -> None:
    good = tenants.api_key("org_acme", "all")["api_key"]
    assert tenants.client.get(URL, params={"x-api-key": good, "api_key": good}).status_code == 401


# The platform writes last uses down every five seconds.
def test_the_last_use_is_written_down_later(tenants: Tenants) -> None:
    made = make(tenants).json()
    tenants.client.get(URL, headers={"x-api-key": made["api_key"]})
    before = datetime.datetime.now(datetime.UTC)

    def used() -> bool:
        rows = list(_all_keys(tenants))
        row = next(k for k in rows if k["id"] == made["id"])
        return row["last_used_at"] is not None and row["version"] == 1

    eventually(used, 30)
    row = next(k for k in _all_keys(tenants) if k["id"] == made["id"])
    assert abs((datetime.datetime.fromisoformat(row["last_used_at"]) - before).total_seconds()) < 5


def _all_keys(tenants: Tenants) -> Any:
    query: dict[str, Any] = {"limit": 100}
    while True:
        page = tenants.client.get(URL, headers=tenants.callers["admin"], params=query).json()
        yield from page["data"]
        if page["next_cursor"] is None:
            return
        query["next_cursor"] = page["next_cursor"]
