"""What stands in a command's way: plan, environment, account, controls; and which of them is told first."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.intents.conftest import Opener
from tests.intents.http_client import Body, Desk, Tables, cancel, create, limit, market, pointers, replace, stop
from tests.tenants import Headers, World


def change_account(world: World, desk: Desk, **changes: Any) -> None:
    url = f"/v1/accounts/{desk.account['id']}"
    assert world.client.patch(url, json=changes, headers=world.callers["admin"]).status_code == 200


def control(world: World, path: str, disabled: bool = True, reason: str | None = None, admin: str = "admin") -> None:
    body: Body = {"manually_disabled": disabled} | ({"manual_reason": reason} if reason else {})
    answer = world.client.put(f"/v1/controls/{path}", json=body, headers=world.callers[admin])
    assert answer.status_code == 200, answer.text


def close_window(world: World, desk: Desk, symbol: str = "AAPL") -> None:
    """Shut now and for hours to come, whatever the time is."""
    hour = int(desk.tables.value("SELECT extract(hour FROM clock_timestamp() AT TIME ZONE 'UTC')::int"))
    body = {"trading_start": f"{(hour + 6) % 24:02}:00:00", "trading_end": f"{(hour + 12) % 24:02}:00:00"}
    url = f"/v1/controls/accounts/{desk.account['id']}/symbols/{symbol}/time"
    assert world.client.patch(url, json=body, headers=world.callers["admin"]).status_code == 200


def test_a_disabled_account_takes_cancels_only(world: World, desk: Desk) -> None:
    intent = desk.accepted(create(limit()))["intent_id"]
    change_account(world, desk, disabled=True)
    assert desk.refused(create()) == (409, "account_disabled")
    assert desk.refused(replace(intent, limit("11"))) == (409, "account_disabled")
    assert desk.accepted(cancel(intent))["action_type"] == "CANCEL"
    change_account(world, desk, disabled=False)
    assert desk.accepted(create())["seq"] == 3


def test_a_closed_account_takes_nothing_and_stays_readable(world: World, desk: Desk) -> None:
    intent = desk.accepted(create(limit()))["intent_id"]
    desk.set_order(intent, "CANCELLED")
    assert world.client.delete(f"/v1/accounts/{desk.account['id']}", headers=world.callers["admin"]).status_code == 204
    for body in (create(), replace(intent, limit("11")), cancel(intent)):
        assert desk.refused(body) == (409, "account_closed")
    assert [record["intent_id"] for record in desk.actions()] == [intent]
    assert desk.get(f"/{intent}").status_code == 200


def test_a_broker_that_needs_a_credential_must_have_one(world: World, tables: Tables) -> None:
    body = {"name": "bare", "broker": "remote", "environment": "paper"}
    account = world.client.post("/v1/accounts", json=body, headers=world.callers["admin"]).json()
    desk = Desk(world.client, world.callers["key_all"], account, tables)
    assert desk.refused(create()) == (409, "credential_missing")
    assert desk.refused(cancel(str(uuid.uuid4()))) == (404, "not_found"), "a CANCEL needs none"


def test_live_trading_needs_its_plan_but_a_cancel_does_not(plain: World, opener: Opener, tables: Tables) -> None:
    desk = opener(caller="plain_live", admin="plain_admin", broker="remote", environment="live")

    def entitle(*entitlements: str) -> None:
        """As the operator's command does; a submit reads it in its own transaction."""
        wanted, organization = list(entitlements), desk.account["organization_id"]
        tables.execute(
            "UPDATE organizations SET entitlements = $1::text[] WHERE id = $2::text::uuid", wanted, organization
        )

    for body in (create(), replace(str(uuid.uuid4()), limit())):
        answer = desk.submit(body)
        assert (answer.status_code, answer.json()["code"]) == (403, "entitlement_required")
        assert "trading_live" in answer.json()["detail"]
        assert desk.refused(body) == (403, "entitlement_required")
    entitle("trading_live")
    intent = desk.accepted(create(limit()))["intent_id"]
    entitle()
    assert desk.refused(create()) == (403, "entitlement_required")
    assert desk.refused(replace(intent, limit("11"))) == (403, "entitlement_required")
    record = desk.accepted(cancel(intent))
    assert (record["action_type"], record["environment"]) == ("CANCEL", "live")


def test_paper_trading_needs_no_plan(plain: World, opener: Opener) -> None:
    desk = opener(caller="plain_key", admin="plain_admin")
    intent = desk.accepted(create(limit()))["intent_id"]
    desk.accepted(replace(intent, limit("11")))
    desk.accepted(cancel(intent))


def test_a_key_acts_only_in_its_environment(world: World, opener: Opener) -> None:
    live = opener(caller="key_live", broker="remote", environment="live")
    intent = live.accepted(create(limit()))["intent_id"]
    wrong = Desk(live.client, world.callers["key_all"], live.account, live.tables)
    for body in (create(), replace(intent, limit("11")), cancel(intent), {}):
        assert wrong.refused(body) == (403, "forbidden")
    for tail in ("", f"/{intent}", f"/{intent}/actions"):
        assert wrong.get(tail).status_code == 403


def test_controls_refuse_and_all_that_triggered_are_told(world: World, desk: Desk) -> None:
    account = desk.account["id"]
    control(world, f"accounts/{account}", reason="quarter end")
    control(world, f"accounts/{account}/symbols/AAPL")
    close_window(world, desk)
    for symbol in ("AAPL", "aapl"):
        answer = desk.submit(create(symbol=symbol))
        assert (answer.status_code, answer.json()["code"]) == (409, "control_rejected")
        told = answer.json()["triggered"]
        assert [item["reason"] for item in told] == [
            "account_manually_disabled",
            "symbol_manually_disabled",
            "outside_trading_window",
        ]
        scope = {"Symbol": {"account_id": account, "symbol": "AAPL"}}
        assert [item["scope"] for item in told] == [{"Account": account}, scope, scope]
        assert all(set(item) == {"reason", "scope", "detail"} for item in told)
        assert "quarter end" in told[0]["detail"]
    assert desk.refused(create()) == (409, "control_rejected")
    evaluated = world.client.post(
        "/v1/controls/evaluate", json={"account_id": account, "symbol": "aapl"}, headers=world.callers["admin"]
    )
    assert [item["reason"] for item in evaluated.json()["triggered"]] == [item["reason"] for item in told]


def test_a_refusal_by_controls_is_kept_and_nothing_else_is(world: World, desk: Desk) -> None:
    account = desk.account["id"]
    intent = desk.accepted(create(limit()))["intent_id"]
    control(world, f"accounts/{account}/symbols/AAPL")
    assert desk.refused(create(symbol="aapl")) == (409, "control_rejected")
    assert desk.refused(replace(intent, limit("11"))) == (409, "control_rejected")
    rows = desk.tables.fetch("SELECT * FROM refusals WHERE account_id = $1::text::uuid ORDER BY id", account)
    assert [(row["action_type"], row["symbol"], row["reasons"]) for row in rows] == [
        (kind, "AAPL", ["symbol_manually_disabled"]) for kind in ("CREATE", "REPLACE")
    ]
    assert {row["principal_id"] for row in rows} == {world.api_key("org_acme", "all")["id"]}
    assert {str(row["organization_id"]) for row in rows} == {desk.account["organization_id"]}
    assert [record["seq"] for record in desk.actions()] == [1]
    assert desk.accepted(cancel(intent))["seq"] == 2, "a refusal takes no seq, and a CANCEL always passes"


@pytest.mark.parametrize("level", ["account", "symbol", "window"])
def test_any_level_that_says_no_says_no(world: World, desk: Desk, level: str) -> None:
    account = desk.account["id"]
    intent = desk.accepted(create(limit()))["intent_id"]
    path = f"accounts/{account}" + ("/symbols/AAPL" if level == "symbol" else "")
    if level == "window":
        close_window(world, desk)
    else:
        control(world, path)
    assert desk.refused(create()) == (409, "control_rejected")
    assert desk.refused(replace(intent, limit("11"))) == (409, "control_rejected")
    assert desk.submit(create(symbol="MSFT")).status_code == (409 if level == "account" else 202)
    desk.accepted(cancel(intent))
    if level != "window":
        control(world, path, disabled=False)
        desk.accepted(create())


@pytest.fixture
def halted(plain: World, tables: Tables) -> Iterator[World]:
    """`org_plain`, whose organization control a test may set; its plan is taken away again."""
    tables.execute("UPDATE organizations SET entitlements = '{controls_premium}' WHERE external_id = 'org_plain'")
    yield plain
    tables.execute(
        "DELETE FROM organization_controls USING organizations WHERE id = organization_id AND external_id = 'org_plain'"
    )
    tables.execute("UPDATE organizations SET entitlements = '{}' WHERE external_id = 'org_plain'")


def test_an_organizations_control_stops_all_its_accounts_and_outlives_the_plan(
    halted: World, opener: Opener, tables: Tables
) -> None:
    desks = [opener(caller="plain_key", admin="plain_admin") for _ in range(2)]
    intent = desks[0].accepted(create(limit()))["intent_id"]
    url, headers = "/v1/controls/organization", halted.callers["plain_admin"]
    # The process may remember for 800 ms that the organization has no plan.
    while (answer := halted.client.put(url, json={"manually_disabled": True}, headers=headers)).status_code == 403:
        assert answer.json()["code"] == "entitlement_required"
    assert answer.status_code == 200, answer.text
    for desk in desks:
        answer = desk.submit(create())
        told = {"Organization": desk.account["organization_id"]}
        assert [item["scope"] for item in answer.json()["triggered"]] == [told]
        assert [item["reason"] for item in answer.json()["triggered"]] == ["organization_manually_disabled"]
    tables.execute("UPDATE organizations SET entitlements = '{}' WHERE external_id = 'org_plain'")
    assert desks[0].refused(create()) == (409, "control_rejected")
    desks[0].accepted(cancel(intent))


def test_a_lower_case_symbol_does_not_slip_past_its_control(world: World, desk: Desk) -> None:
    control(world, f"accounts/{desk.account['id']}/symbols/brk.b")
    for symbol in ("BRK.B", "brk.b", "Brk.B"):
        assert desk.refused(create(symbol=symbol)) == (409, "control_rejected")
    control(world, f"accounts/{desk.account['id']}/symbols/btc%2Fusd")
    assert desk.refused(create(symbol="BTC/usd")) == (409, "control_rejected")


def test_checks_run_in_their_documented_order(world: World, plain: World, opener: Opener) -> None:
    """Each step mends one thing, and the next complaint comes up."""
    live = opener(caller="plain_live", admin="plain_admin", broker="remote", environment="live")
    paper = opener(broker="remote")
    url, unknown = f"/v1/accounts/{paper.account['id']}/intents", str(uuid.uuid4())
    change_account(world, paper, disabled=True)
    control(world, f"accounts/{paper.account['id']}")
    good = {"content-type": "application/json"}
    nonsense, broken = b'{"command": 1}', b"{"
    unoffered = create(stop(time_in_force="EXT"))

    def told(
        caller: str, where: str, content: bytes | None = None, body: Body | None = None, headers: Headers = good
    ) -> Any:
        sent: dict[str, Any] = {"content": content} if content is not None else {"json": body}
        answer = world.client.post(where, headers=world.callers[caller] | headers, **sent)
        return answer.status_code, answer.json()["code"]

    theirs = f"/v1/accounts/{unknown}/intents"
    steps = [
        (told("none", theirs, broken), (401, "unauthorized")),
        (told("admin", theirs, broken), (401, "unauthorized")),
        (told("key_disabled", theirs, broken), (401, "unauthorized")),
        (told("key_none", theirs, broken), (400, "invalid_json")),
        (told("key_none", theirs, nonsense, headers={"content-type": "text/plain"}), (415, "unsupported_media_type")),
        (told("key_none", theirs, b" " * 70_000), (413, "payload_too_large")),
        (told("key_none", theirs, nonsense), (403, "forbidden")),
        (told("key_all", theirs, nonsense), (404, "not_found")),
        (told("key_all", live.url, nonsense), (404, "not_found")),
        (told("plain_key", live.url, nonsense), (403, "forbidden")),
        (told("plain_live", live.url, nonsense), (403, "entitlement_required")),
        (told("plain_live", live.url, body=create()), (403, "entitlement_required")),
        (told("key_all", url, nonsense), (422, "validation_failed")),
        (told("key_all", url, body=unoffered), (422, "validation_failed")),
        (told("key_all", url, body=replace(unknown, stop(time_in_force="EXT"))), (422, "validation_failed")),
        (told("key_all", url, body=replace(unknown, stop())), (404, "not_found")),
        (told("key_all", url, body=create()), (409, "account_disabled")),
    ]
    assert [got for got, _ in steps] == [expected for _, expected in steps]
    change_account(world, paper, disabled=False)
    assert told("key_all", url, body=create()) == (409, "control_rejected")
    control(world, f"accounts/{paper.account['id']}", disabled=False)
    assert paper.accepted(create())["seq"] == 1


def test_a_plan_is_asked_for_before_a_body_is_judged_but_not_for_a_cancel(plain: World, opener: Opener) -> None:
    live = opener(caller="plain_live", admin="plain_admin", broker="remote", environment="live")
    assert live.refused(create(market("0"))) == (403, "entitlement_required")
    assert pointers(live.submit(cancel("nonsense"))) == ["/command/payload/ref_intent_id"]
    assert live.refused(cancel(str(uuid.uuid4()))) == (404, "not_found")


@pytest.mark.parametrize("spelling", ["{0}", "{{{0}}}", "urn:uuid:{0}", "{1}", "{2}", "nonsense", "{0}%0A"])
def test_another_tenants_account_or_spelling_is_not_found(world: World, desk: Desk, spelling: str) -> None:
    account = desk.account["id"]
    intent = desk.accepted(create(limit()))["intent_id"]
    path = "/v1/accounts/" + spelling.format(account, account.replace("-", ""), account.upper()) + "/intents"
    caller = "other_key" if spelling == "{0}" else "key_all"
    nowhere = f"/v1/accounts/{uuid.uuid4()}/intents"
    for method, tail, body in (
        ("POST", "", create()),
        ("POST", "", cancel(intent)),
        ("POST", "", {"nonsense": 1}),
        ("GET", "", None),
        ("GET", f"/{intent}", None),
        ("GET", f"/{intent}/actions", None),
    ):
        theirs = world.client.request(method, path + tail, headers=world.callers[caller], json=body)
        nobodys = world.client.request(method, nowhere + tail, headers=world.callers[caller], json=body)
        assert theirs.status_code == 404, theirs.text
        assert theirs.json() | {"request_id": ""} == nobodys.json() | {"request_id": ""}
    assert [record["seq"] for record in desk.actions()] == [1]
