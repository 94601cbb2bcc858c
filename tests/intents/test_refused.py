"""Refusals of commands: plan, environment, account, controls; and which of them is answered
first."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.intents.changed_accounts import change_account, control
from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Body,
    Tables,
    TradingClient,
    cancel,
    create,
    limit,
    market,
    pointers,
    replace,
    stop,
)
from tests.tenants import Headers, Tenants


def close_window(tenants: Tenants, trading_client: TradingClient, symbol: str = "AAPL") -> None:
    """Shut now and for hours to come, whatever the time is."""
    hour = int(
        trading_client.tables.value(
            "SELECT extract(hour FROM clock_timestamp() AT TIME ZONE 'UTC')::int"
        )
    )
    body = {
        "trading_start": f"{(hour + 6) % 24:02}:00:00",
        "trading_end": f"{(hour + 12) % 24:02}:00:00",
    }
    url = f"/v1/controls/accounts/{trading_client.account['id']}/symbols/{symbol}/time"
    assert tenants.client.patch(url, json=body, headers=tenants.callers["admin"]).status_code == 200


def test_a_disabled_account_takes_cancels_only(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    change_account(tenants, trading_client, disabled=True)
    assert trading_client.refused(create()) == (409, "account_disabled")
    assert trading_client.refused(replace(intent, limit("11"))) == (409, "account_disabled")
    assert trading_client.accepted(cancel(intent))["action_type"] == "CANCEL"
    change_account(tenants, trading_client, disabled=False)
    assert trading_client.accepted(create())["seq"] == 3


def test_a_closed_account_takes_nothing_and_stays_readable(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.set_order(intent, "CANCELLED")
    assert (
        tenants.client.delete(
            f"/v1/accounts/{trading_client.account['id']}", headers=tenants.callers["admin"]
        ).status_code
        == 204
    )
    for body in (create(), replace(intent, limit("11")), cancel(intent)):
        assert trading_client.refused(body) == (409, "account_closed")
    assert [record["intent_id"] for record in trading_client.actions()] == [intent]
    assert trading_client.get(f"/{intent}").status_code == 200


def test_a_broker_that_needs_a_credential_must_have_one(tenants: Tenants, tables: Tables) -> None:
    body = {"name": "bare", "broker": "remote", "environment": "paper"}
    account = tenants.client.post(
        "/v1/accounts", json=body, headers=tenants.callers["admin"]
    ).json()
    trading_client = TradingClient(tenants.client, tenants.callers["key_all"], account, tables)
    assert trading_client.refused(create()) == (409, "credential_missing")
    assert trading_client.refused(cancel(str(uuid.uuid4()))) == (404, "not_found"), (
        "a CANCEL needs none"
    )


def test_live_trading_needs_its_plan_but_a_cancel_does_not(
    plain: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    trading_client = open_client(
        caller="plain_live", admin="plain_admin", broker="remote", environment="live"
    )

    def entitle(*entitlements: str) -> None:
        """As the operator's command does; a submit reads it in its own transaction."""
        wanted = list(entitlements)
        organization = trading_client.account["organization_id"]
        tables.execute(
            "UPDATE organizations SET entitlements = $1::text[] WHERE id = $2::text::uuid",
            wanted,
            organization,
        )

    for body in (create(), replace(str(uuid.uuid4()), limit())):
        answer = trading_client.submit(body)
        assert (answer.status_code, answer.json()["code"]) == (403, "entitlement_required")
        assert "trading_live" in answer.json()["detail"]
        assert trading_client.refused(body) == (403, "entitlement_required")
    entitle("trading_live")
    intent = trading_client.accepted(create(limit()))["intent_id"]
    entitle()
    assert trading_client.refused(create()) == (403, "entitlement_required")
    assert trading_client.refused(replace(intent, limit("11"))) == (403, "entitlement_required")
    record = trading_client.accepted(cancel(intent))
    assert (record["action_type"], record["environment"]) == ("CANCEL", "live")


def test_paper_trading_needs_no_plan(plain: Tenants, open_client: OpenClient) -> None:
    trading_client = open_client(caller="plain_key", admin="plain_admin")
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(replace(intent, limit("11")))
    trading_client.accepted(cancel(intent))


def test_a_key_acts_only_in_its_environment(tenants: Tenants, open_client: OpenClient) -> None:
    live = open_client(caller="key_live", broker="remote", environment="live")
    intent = live.accepted(create(limit()))["intent_id"]
    wrong = TradingClient(live.client, tenants.callers["key_all"], live.account, live.tables)
    for body in (create(), replace(intent, limit("11")), cancel(intent), {}):
        assert wrong.refused(body) == (403, "forbidden")
    for tail in ("", f"/{intent}", f"/{intent}/actions"):
        assert wrong.get(tail).status_code == 403


def test_controls_refuse_and_all_that_triggered_are_listed(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    account = trading_client.account["id"]
    control(tenants, f"accounts/{account}", reason="quarter end")
    control(tenants, f"accounts/{account}/symbols/AAPL")
    close_window(tenants, trading_client)
    for symbol in ("AAPL", "aapl"):
        answer = trading_client.submit(create(symbol=symbol))
        assert (answer.status_code, answer.json()["code"]) == (409, "control_rejected")
        answered = answer.json()["triggered"]
        assert [item["reason"] for item in answered] == [
            "account_manually_disabled",
            "symbol_manually_disabled",
            "outside_trading_window",
        ]
        scope = {"Symbol": {"account_id": account, "symbol": "AAPL"}}
        assert [item["scope"] for item in answered] == [{"Account": account}, scope, scope]
        assert all(set(item) == {"reason", "scope", "detail"} for item in answered)
        assert "quarter end" in answered[0]["detail"]
    assert trading_client.refused(create()) == (409, "control_rejected")
    evaluated = tenants.client.post(
        "/v1/controls/evaluate",
        json={"account_id": account, "symbol": "aapl"},
        headers=tenants.callers["admin"],
    )
    assert [item["reason"] for item in evaluated.json()["triggered"]] == [
        item["reason"] for item in answered
    ]


def test_a_refusal_by_controls_is_kept_and_nothing_else_is(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    account = trading_client.account["id"]
    intent = trading_client.accepted(create(limit()))["intent_id"]
    control(tenants, f"accounts/{account}/symbols/AAPL")
    assert trading_client.refused(create(symbol="aapl")) == (409, "control_rejected")
    assert trading_client.refused(replace(intent, limit("11"))) == (409, "control_rejected")
    rows = trading_client.tables.fetch(
        "SELECT * FROM refusals WHERE account_id = $1::text::uuid ORDER BY id", account
    )
    assert [(row["action_type"], row["symbol"], row["reasons"]) for row in rows] == [
        (kind, "AAPL", ["symbol_manually_disabled"]) for kind in ("CREATE", "REPLACE")
    ]
    assert {row["principal_id"] for row in rows} == {tenants.api_key("org_acme", "all")["id"]}
    assert {str(row["organization_id"]) for row in rows} == {
        trading_client.account["organization_id"]
    }
    assert [record["seq"] for record in trading_client.actions()] == [1]
    assert trading_client.accepted(cancel(intent))["seq"] == 2, (
        "a refusal takes no seq, and a CANCEL always passes"
    )


@pytest.mark.parametrize("level", ["account", "symbol", "window"])
def test_any_level_that_says_no_says_no(
    tenants: Tenants, trading_client: TradingClient, level: str
) -> None:
    account = trading_client.account["id"]
    intent = trading_client.accepted(create(limit()))["intent_id"]
    path = f"accounts/{account}" + ("/symbols/AAPL" if level == "symbol" else "")
    if level == "window":
        close_window(tenants, trading_client)
    else:
        control(tenants, path)
    assert trading_client.refused(create()) == (409, "control_rejected")
    assert trading_client.refused(replace(intent, limit("11"))) == (409, "control_rejected")
    assert trading_client.submit(create(symbol="MSFT")).status_code == (
        409 if level == "account" else 202
    )
    trading_client.accepted(cancel(intent))
    if level != "window":
        control(tenants, path, disabled=False)
        trading_client.accepted(create())


@pytest.fixture
def halted(plain: Tenants, tables: Tables) -> Iterator[Tenants]:
    """`org_plain`, whose organization control a test may set; its plan is taken away again."""
    tables.execute(
        """
            UPDATE organizations SET entitlements = '{controls_premium}'
            WHERE external_id = 'org_plain'
        """
    )
    yield plain
    tables.execute(
        """
            DELETE FROM organization_controls USING organizations
            WHERE id = organization_id AND external_id = 'org_plain'
        """
    )
    tables.execute("UPDATE organizations SET entitlements = '{}' WHERE external_id = 'org_plain'")


def test_an_organizations_control_stops_all_its_accounts_and_outlives_the_plan(
    halted: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    clients = [open_client(caller="plain_key", admin="plain_admin") for _ in range(2)]
    intent = clients[0].accepted(create(limit()))["intent_id"]
    url = "/v1/controls/organization"
    headers = halted.callers["plain_admin"]
    # The process may remember for 800 ms that the organization has no plan.
    while (
        answer := halted.client.put(url, json={"manually_disabled": True}, headers=headers)
    ).status_code == 403:
        assert answer.json()["code"] == "entitlement_required"
    assert answer.status_code == 200, answer.text
    for trading_client in clients:
        answer = trading_client.submit(create())
        answered = {"Organization": trading_client.account["organization_id"]}
        assert [item["scope"] for item in answer.json()["triggered"]] == [answered]
        assert [item["reason"] for item in answer.json()["triggered"]] == [
            "organization_manually_disabled"
        ]
    tables.execute("UPDATE organizations SET entitlements = '{}' WHERE external_id = 'org_plain'")
    assert clients[0].refused(create()) == (409, "control_rejected")
    clients[0].accepted(cancel(intent))


def test_a_lower_case_symbol_does_not_slip_past_its_control(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    control(tenants, f"accounts/{trading_client.account['id']}/symbols/brk.b")
    for symbol in ("BRK.B", "brk.b", "Brk.B"):
        assert trading_client.refused(create(symbol=symbol)) == (409, "control_rejected")
    control(tenants, f"accounts/{trading_client.account['id']}/symbols/btc%2Fusd")
    assert trading_client.refused(create(symbol="BTC/usd")) == (409, "control_rejected")


def test_checks_run_in_their_documented_order(
    tenants: Tenants, plain: Tenants, open_client: OpenClient
) -> None:
    """Each step mends one thing, and the next complaint comes up."""
    live = open_client(
        caller="plain_live", admin="plain_admin", broker="remote", environment="live"
    )
    paper = open_client(broker="remote")
    url = f"/v1/accounts/{paper.account['id']}/intents"
    unknown = str(uuid.uuid4())
    change_account(tenants, paper, disabled=True)
    control(tenants, f"accounts/{paper.account['id']}")
    good = {"content-type": "application/json"}
    nonsense = b'{"command": 1}'
    broken = b"{"
    unoffered = create(stop(time_in_force="EXT"))

    def answered(
        caller: str,
        where: str,
        content: bytes | None = None,
        body: Body | None = None,
        headers: Headers = good,
    ) -> Any:
        sent: dict[str, Any] = {"content": content} if content is not None else {"json": body}
        answer = tenants.client.post(where, headers=tenants.callers[caller] | headers, **sent)
        return answer.status_code, answer.json()["code"]

    theirs = f"/v1/accounts/{unknown}/intents"
    steps = [
        (answered("none", theirs, broken), (401, "unauthorized")),
        (answered("admin", theirs, broken), (401, "unauthorized")),
        (answered("key_disabled", theirs, broken), (401, "unauthorized")),
        (answered("key_none", theirs, broken), (400, "invalid_json")),
        (
            answered("key_none", theirs, nonsense, headers={"content-type": "text/plain"}),
            (415, "unsupported_media_type"),
        ),
        (answered("key_none", theirs, b" " * 70_000), (413, "payload_too_large")),
        (answered("key_none", theirs, nonsense), (403, "forbidden")),
        (answered("key_all", theirs, nonsense), (404, "not_found")),
        (answered("key_all", live.url, nonsense), (404, "not_found")),
        (answered("plain_key", live.url, nonsense), (403, "forbidden")),
        (answered("plain_live", live.url, nonsense), (403, "entitlement_required")),
        (answered("plain_live", live.url, body=create()), (403, "entitlement_required")),
        (answered("key_all", url, nonsense), (422, "validation_failed")),
        (answered("key_all", url, body=unoffered), (422, "validation_failed")),
        (
            answered("key_all", url, body=replace(unknown, stop(time_in_force="EXT"))),
            (422, "validation_failed"),
        ),
        (answered("key_all", url, body=replace(unknown, stop())), (404, "not_found")),
        (answered("key_all", url, body=create()), (409, "account_disabled")),
    ]
    assert [got for got, _ in steps] == [expected for _, expected in steps]
    change_account(tenants, paper, disabled=False)
    assert answered("key_all", url, body=create()) == (409, "control_rejected")
    control(tenants, f"accounts/{paper.account['id']}", disabled=False)
    assert paper.accepted(create())["seq"] == 1


def test_a_plan_is_asked_for_before_a_body_is_judged_but_not_for_a_cancel(
    plain: Tenants, open_client: OpenClient
) -> None:
    live = open_client(
        caller="plain_live", admin="plain_admin", broker="remote", environment="live"
    )
    assert live.refused(create(market("0"))) == (403, "entitlement_required")
    assert pointers(live.submit(cancel("nonsense"))) == ["/command/payload/ref_intent_id"]
    assert live.refused(cancel(str(uuid.uuid4()))) == (404, "not_found")


@pytest.mark.parametrize(
    "spelling", ["{0}", "{{{0}}}", "urn:uuid:{0}", "{1}", "{2}", "nonsense", "{0}%0A"]
)
def test_another_tenants_account_or_spelling_is_not_found(
    tenants: Tenants, trading_client: TradingClient, spelling: str
) -> None:
    account = trading_client.account["id"]
    intent = trading_client.accepted(create(limit()))["intent_id"]
    path = (
        "/v1/accounts/"
        + spelling.format(account, account.replace("-", ""), account.upper())
        + "/intents"
    )
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
        theirs = tenants.client.request(
            method, path + tail, headers=tenants.callers[caller], json=body
        )
        nobodys = tenants.client.request(
            method, nowhere + tail, headers=tenants.callers[caller], json=body
        )
        assert theirs.status_code == 404, theirs.text
        assert theirs.json() | {"request_id": ""} == nobodys.json() | {"request_id": ""}
    assert [record["seq"] for record in trading_client.actions()] == [1]
