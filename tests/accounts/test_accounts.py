"""Trading accounts from outside: created, listed, read, changed, closed; never another tenant's or
environment's."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.accounts.calls import URL, made, make
from tests.answer_patterns import STAMP
from tests.tenants import Tenants


def every_account(tenants: Tenants) -> Iterator[dict[str, Any]]:
    query: dict[str, Any] = {"limit": 100}
    while True:
        page = tenants.client.get(URL, headers=tenants.callers["admin"], params=query).json()
        yield from page["data"]
        if page["next_cursor"] is None:
            return
        query["next_cursor"] = page["next_cursor"]


def test_an_account_is_created_and_read(tenants: Tenants) -> None:
    answer = make(tenants, external_account_id="X-1")
    account = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (201, '"1"')
    stamps = {name: account.pop(name) for name in ("created_at", "updated_at")}
    assert all(STAMP.fullmatch(stamp) for stamp in stamps.values())
    account_id = account.pop("id")
    assert uuid.UUID(account_id).version == 7
    assert account == {
        "organization_id": tenants.organization("org_acme")["id"],
        "name": "sim",
        "broker": "paper",
        "environment": "paper",
        "external_account_id": "X-1",
        "disabled": False,
        "connection": account["connection"],
        "closed_at": None,
        "version": 1,
    }
    assert account["connection"] in ("connected", "connecting", "disconnected")
    for caller in ("admin", "member", "read_only", "key_all", "service_all"):
        read = tenants.client.get(f"{URL}/{account_id}", headers=tenants.callers[caller])
        assert (read.status_code, read.headers["etag"]) == (200, '"1"')
        assert read.json()["id"] == account_id


def test_a_broker_that_needs_a_credential_says_that_it_is_missing(tenants: Tenants) -> None:
    assert made(tenants, broker="remote")["connection"] == "credential_missing"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "x" * 129}, "/name"),
        ({"name": None}, "/name"),
        ({"name": "a\x00"}, "/name"),
        ({"name": "a\n"}, "/name"),
        ({"name": "a\u202eb"}, "/name"),
        ({"name": "a\u200bb"}, "/name"),
        ({"name": "a\u2028b"}, "/name"),
        ({"external_account_id": "a\u2066b"}, "/external_account_id"),
        ({"broker": "nobody"}, "/broker"),
        ({"broker": "PAPER"}, "/broker"),
        ({"environment": "demo"}, "/environment"),
        ({"environment": "live"}, "/environment"),
        ({"external_account_id": "x" * 129}, "/external_account_id"),
        ({"external_account_id": 5}, "/external_account_id"),
        ({"disabled": True}, "/disabled"),
        ({"organization_id": "x"}, "/organization_id"),
        ({"id": str(uuid.uuid4())}, "/id"),
        ({"version": 9}, "/version"),
    ],
)
def test_a_bad_account_is_refused_at_its_field(
    tenants: Tenants, changes: dict[str, Any], pointer: str
) -> None:
    answer = make(tenants, **changes)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]


def test_a_key_acts_on_its_own_environment_only(tenants: Tenants) -> None:
    live = made(tenants, broker="remote", environment="live")
    paper = made(tenants)
    assert make(tenants, "key_all", broker="remote", environment="live").status_code == 403
    assert make(tenants, "key_live", broker="remote", environment="live").status_code == 201
    for caller, own, other in (("key_all", paper, live), ("key_live", live, paper)):
        headers = tenants.callers[caller]
        assert tenants.client.get(f"{URL}/{own['id']}", headers=headers).status_code == 200
        for method, body in (("GET", None), ("PATCH", {"nonsense": 1}), ("DELETE", None)):
            answer = tenants.client.request(
                method, f"{URL}/{other['id']}", headers=headers, json=body
            )
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        shown = tenants.client.get(URL, headers=headers, params={"limit": 100}).json()["data"]
        assert {account["environment"] for account in shown} == {own["environment"]}


def test_a_list_is_ascending_and_complete(tenants: Tenants) -> None:
    mine = [made(tenants, "other_admin")["id"] for _ in range(5)]
    seen = []
    query = {"limit": "2"}
    while True:
        page = tenants.client.get(URL, headers=tenants.callers["other_admin"], params=query).json()
        seen += [account["id"] for account in page["data"]]
        if page["next_cursor"] is None:
            break
        query["next_cursor"] = page["next_cursor"]
    assert seen == sorted(set(seen))
    assert [s for s in seen if s in mine] == mine
    other = tenants.client.get(
        URL, headers=tenants.callers["admin"], params={"next_cursor": query["next_cursor"]}
    )
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")


def test_a_change_names_what_it_changes(tenants: Tenants) -> None:
    account = made(tenants, external_account_id="X")
    admin = tenants.callers["admin"]
    url = f"{URL}/{account['id']}"

    def patch(body: dict[str, Any], **headers: str) -> Any:
        return tenants.client.patch(url, json=body, headers=admin | headers)

    renamed = patch({"name": "new"})
    assert (renamed.status_code, renamed.headers["etag"], renamed.json()["version"]) == (
        200,
        '"2"',
        2,
    )
    assert (renamed.json()["name"], renamed.json()["external_account_id"]) == ("new", "X")
    assert patch({}).json()["version"] == 2
    assert (
        patch({"name": None, "external_account_id": None, "disabled": None}).json()["version"] == 2
    )
    assert patch({"disabled": False}).json()["version"] == 2
    assert patch({"disabled": True}).json()["disabled"] is True
    assert patch({"external_account_id": ""}).json()["external_account_id"] is None
    stale = patch({"name": "x"}, **{"if-match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "version_conflict")
    assert patch({"name": "x"}, **{"if-match": '"4"'}).json()["version"] == 5
    assert patch({"broker": "remote"}).status_code == 422


def test_closing_is_for_good(tenants: Tenants) -> None:
    account = made(tenants)
    admin = tenants.callers["admin"]
    url = f"{URL}/{account['id']}"
    assert tenants.client.delete(url, headers=admin | {"if-match": '"7"'}).status_code == 412
    assert tenants.client.delete(url, headers=admin).status_code == 204
    closed = tenants.client.get(url, headers=admin).json()
    assert STAMP.fullmatch(closed["closed_at"])
    assert (closed["version"], closed["connection"]) == (2, "disconnected")
    for answer in (
        tenants.client.patch(url, json={"name": "x"}, headers=admin),
        tenants.client.delete(url, headers=admin),
        tenants.client.post(f"{url}/credentials", json={"secrets": {}}, headers=admin),
    ):
        assert (answer.status_code, answer.json()["code"]) in (
            (409, "account_closed"),
            (422, "validation_failed"),
        )
    assert tenants.client.delete(url, headers=admin).json()["code"] == "account_closed"
    assert account["id"] in [shown["id"] for shown in every_account(tenants)]


@pytest.mark.parametrize(
    "spelling", ["{0}", "{{{0}}}", "urn:uuid:{0}", "{1}", "{2}", "nonsense", "{0}%0A"]
)
def test_another_tenants_account_or_spelling_is_not_found(tenants: Tenants, spelling: str) -> None:
    account_id = made(tenants, "other_admin")["id"]
    path = f"{URL}/" + spelling.format(account_id, account_id.replace("-", ""), account_id.upper())
    unknown = f"{URL}/{uuid.uuid4()}"
    for method, tail, body in (
        ("GET", "", None),
        ("PATCH", "", {"nonsense": 1}),
        ("DELETE", "", None),
        ("GET", "/credentials", None),
        ("POST", "/credentials", {"nonsense": 1}),
        ("PATCH", f"/credentials/{uuid.uuid4()}", {"nonsense": 1}),
        ("DELETE", f"/credentials/{uuid.uuid4()}", None),
    ):
        theirs = tenants.client.request(
            method, path + tail, headers=tenants.callers["admin"], json=body
        )
        nobodys = tenants.client.request(
            method, unknown + tail, headers=tenants.callers["admin"], json=body
        )
        assert theirs.status_code == 404
        assert theirs.json() | {"request_id": ""} == nobodys.json() | {"request_id": ""}


def test_brokers_are_described(tenants: Tenants) -> None:
    for caller in ("key_none", "read_only", "no_org", "service_unnamed"):
        answer = tenants.client.get("/v1/brokers", headers=tenants.callers[caller])
        assert answer.status_code == 200
    shown = {broker["name"]: broker for broker in answer.json()["data"]}
    assert answer.json()["next_cursor"] is None
    paper = shown["paper"]
    remote = shown["remote"]
    assert (paper["environments"], paper["credential_fields"]) == (["paper"], [])
    assert paper["order_kinds"] == ["Market", "Limit", "Stop", "StopLimit", "TrailingStop"]
    assert paper["times_in_force"] == [
        "DAY",
        "GOOD_TILL_CANCEL",
        "IMMEDIATE_OR_CANCEL",
        "FILL_OR_KILL",
    ]
    assert remote["environments"] == ["paper", "live"]
    assert remote["credential_fields"] == ["api_key_id", "api_secret"]
    assert paper["routes"] == ["SMART"]
