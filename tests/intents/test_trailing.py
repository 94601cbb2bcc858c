"""TrailingStop over HTTP: what is taken, what is refused and where, and its record, which is of the
second version."""

import hashlib
from typing import Any

import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import Body, TradingClient, cancel, create, market, pointers, replace
from tests.intents.published import ACTION_FIELDS
from tests.tenants import Tenants

SPEC = "/command/payload/spec/TrailingStop"
ADDED = {"trail_amount", "trail_bps", "leg", "parent_intent_id"}


def trailing(quantity: Any = "10", **more: Any) -> Body:
    return {"TrailingStop": {"quantity": quantity} | more}


@pytest.mark.parametrize("trail", [{"trail_amount": "1.50"}, {"trail_bps": 50}], ids=str)
def test_it_is_recorded_in_the_form_that_was_sent(
    trading_client: TradingClient, trail: Body
) -> None:
    record = trading_client.accepted(create(trailing(**trail, time_in_force="GOOD_TILL_CANCEL")))
    assert set(record) == ACTION_FIELDS | ADDED
    terms = {
        name: record[name] for name in ("trail_amount", "trail_bps", "leg", "parent_intent_id")
    }
    assert terms == {
        "trail_amount": None,
        "trail_bps": None,
        "leg": None,
        "parent_intent_id": None,
    } | ({"trail_amount": "1.5"} if "trail_amount" in trail else trail)
    assert (record["order_type"], record["limit_price"], record["stop_price"]) == (
        "TRAILING_STOP",
        None,
        None,
    )
    assert (record["hash_version"], record["time_in_force"]) == (2, "GOOD_TILL_CANCEL")
    order = trading_client.client.get(
        f"/v1/accounts/{trading_client.account['id']}/orders/{record['intent_id']}",
        headers=trading_client.headers,
    ).json()
    assert (order["trail_amount"], order["trail_bps"]) == (
        terms["trail_amount"],
        terms["trail_bps"],
    )
    assert (order["order_type"], order["stop_price"]) == ("TRAILING_STOP", None)
    action, broker_order = (event for event in trading_client.events()[-2:])
    for message in (action.intent_action, broker_order.broker_order):
        assert (message.trail_amount, message.trail_bps) == (
            terms["trail_amount"] or "",
            terms["trail_bps"] or 0,
        )
        assert message.HasField("trail_amount") is ("trail_amount" in trail)
        assert message.HasField("trail_bps") is ("trail_bps" in trail)


def test_one_chain_has_both_versions_and_each_record_has_the_fields_of_its_own(
    trading_client: TradingClient,
) -> None:
    plain = trading_client.accepted(create(market()))
    trail = trading_client.accepted(create(trailing(trail_bps=5000)))
    trading_client.set_order(trail["intent_id"], "NEW")
    changed = trading_client.accepted(replace(trail["intent_id"], trailing("7", trail_bps=1)))
    trading_client.set_order(trail["intent_id"], "NEW")
    cancelled = trading_client.accepted(cancel(trail["intent_id"]))
    last = trading_client.accepted(create(market()))
    versions = [each["hash_version"] for each in (plain, trail, changed, cancelled, last)]
    assert versions == [1, 2, 2, 2, 1]
    assert (changed["quantity"], changed["trail_bps"], cancelled["trail_bps"]) == ("7", 1, 5000)
    digest = "0" * 64
    rows = trading_client.tables.fetch(
        "SELECT record, hash FROM actions WHERE account_id = $1::text::uuid ORDER BY seq",
        trading_client.account["id"],
    )
    for row in rows:
        names = [part.split('"')[1] for part in row["record"].split(",")]
        assert names == sorted(names)
        digest = hashlib.sha256(f"{digest}\n{row['record']}".encode()).hexdigest()
        assert row["hash"] == digest


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({}, SPEC),
        ({"trail_amount": "1", "trail_bps": 1}, SPEC),
        ({"trail_amount": None, "trail_bps": None}, SPEC),
        ({"trail_bps": 0}, f"{SPEC}/trail_bps"),
        ({"trail_bps": 5001}, f"{SPEC}/trail_bps"),
        ({"trail_bps": "50"}, f"{SPEC}/trail_bps"),
        ({"trail_bps": 1.5}, f"{SPEC}/trail_bps"),
        ({"trail_bps": True}, f"{SPEC}/trail_bps"),
        ({"trail_amount": "0"}, f"{SPEC}/trail_amount"),
        ({"trail_amount": "-1"}, f"{SPEC}/trail_amount"),
        ({"trail_amount": 1}, f"{SPEC}/trail_amount"),
        ({"trail_amount": "1", "stop_price": "1"}, f"{SPEC}/stop_price"),
        ({"trail_amount": "1", "time_in_force": "IMMEDIATE_OR_CANCEL"}, f"{SPEC}/time_in_force"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_at_its_field(
    trading_client: TradingClient, fields: Body, pointer: str
) -> None:
    body = create(trailing(**fields))
    assert pointers(trading_client.submit(body)) == [pointer]
    assert trading_client.refused(body) == (422, "validation_failed")


def test_a_replace_keeps_the_form_of_the_trail(trading_client: TradingClient) -> None:
    order = trading_client.accepted(create(trailing(trail_amount="2")))
    trading_client.set_order(order["intent_id"], "NEW")
    answer = trading_client.submit(replace(order["intent_id"], trailing(trail_bps=50)))
    assert pointers(answer) == [SPEC]
    assert "trail_amount" in answer.json()["errors"][0]["detail"]
    assert (
        trading_client.accepted(replace(order["intent_id"], trailing(trail_amount="3")))[
            "trail_amount"
        ]
        == "3"
    )


def test_a_broker_without_it_refuses_before_anything_is_written(open_client: OpenClient) -> None:
    client = open_client(broker="remote")
    assert pointers(client.submit(create(trailing(trail_bps=1)))) == [SPEC]
    assert client.refused(create(trailing(trail_bps=1))) == (422, "validation_failed")


def test_limits_see_a_market_order(tenants: Tenants, trading_client: TradingClient) -> None:
    path = f"/v1/controls/accounts/{trading_client.account['id']}/limits"
    limits = {"max_order_notional": "100", "duplicate_window_millis": 60_000, "price_collar_bps": 1}
    answer = tenants.client.put(path, json=limits, headers=tenants.callers["admin"])
    assert answer.status_code == 200, answer.text
    body = create(trailing("1", trail_amount="5"), "NOPRICE")
    assert trading_client.refused(body) == (409, "control_rejected")
    reasons = [each["reason"] for each in trading_client.submit(body).json()["triggered"]]
    assert reasons == ["max_order_notional"], (
        "at the market's price: there is no collar without a limit"
    )
    tenants.client.put(
        path, json={"duplicate_window_millis": 60_000}, headers=tenants.callers["admin"]
    )
    trading_client.accepted(body)
    assert trading_client.refused(body) == (409, "control_rejected"), "the same again"
    trading_client.accepted(create(trailing("1", trail_amount="6"), "NOPRICE"))
