"""Limits while the paper broker fills, replaces and cancels: what counts as open, and for how
long."""

import uuid
from typing import Any

import pytest

from tests.controls.calls import code
from tests.controls.traders import WAIT_SECONDS, LimitedTrader
from tests.tenants import Tenants
from tests.waiting import eventually


@pytest.fixture
def trader(tenants: Tenants) -> LimitedTrader:
    return LimitedTrader(tenants)


def test_what_is_filled_of_an_order_counts_in_the_position_and_no_more_as_open(
    trader: LimitedTrader,
) -> None:
    trader.limit(max_position_quantity="10")
    trader.book("99", "100", size="4")
    order = trader.submit("BUY", "10", "100").json()["intent_id"]
    eventually(lambda: trader.order(order)["filled_quantity"] == "4", WAIT_SECONDS)
    eventually(lambda: trader.position() == "4", WAIT_SECONDS)
    assert trader.refused(trader.submit("BUY", "0.5")) == [("max_position_quantity", "10", "10.5")]
    assert trader.refused(trader.replace(order, "11", "1")) == [
        ("max_position_quantity", "10", "11")
    ]
    assert trader.replace(order, "7", "1").status_code == 202
    eventually(lambda: trader.order(order)["quantity"] == "7", WAIT_SECONDS)
    assert trader.refused(trader.submit("BUY", "3.5")) == [("max_position_quantity", "10", "10.5")]
    assert trader.submit("BUY", "3").status_code == 202


def test_what_is_cancelled_is_free_again(trader: LimitedTrader) -> None:
    trader.limit("symbol", max_open_orders=1, max_position_quantity="5")
    order = trader.submit("BUY", "5").json()["intent_id"]
    assert trader.refused(trader.submit("BUY", "5")) == [
        ("max_open_orders", 1, 2),
        ("max_position_quantity", "5", "10"),
    ]
    assert len(trader.cancel_all().json()["intents"]) == 1
    trader.until(order, "CANCELLED")
    assert trader.submit("BUY", "5").status_code == 202


def test_a_refused_request_is_not_remembered_under_its_key(trader: LimitedTrader) -> None:
    trader.limit(max_order_quantity="1")
    assert code(trader.submit("BUY", "2", idempotency_key="again")) == (409, "control_rejected")
    trader.limit(max_order_quantity="2")
    first = trader.submit("BUY", "2", idempotency_key="again")
    assert (first.status_code, "idempotent-replayed" in first.headers) == (202, False)
    trader.limit(max_order_quantity="1")
    again = trader.submit("BUY", "2", idempotency_key="again")
    assert (again.status_code, again.json()) == (202, first.json()), (
        "looked up before every other 409"
    )


def test_shorts_and_longs_reduce_up_to_zero(trader: LimitedTrader) -> None:
    trader.hold("6", "SELL_SHORT")
    trader.limit(allow_short=False, max_position_quantity="5")
    assert trader.submit("BUY", "6").status_code == 202
    assert trader.submit("BUY", "5").status_code == 202, "with it the position would be 5"
    assert trader.refused(trader.submit("BUY", "0.1")) == [("max_position_quantity", "5", "5.1")]
    assert trader.refused(trader.submit("SELL", "1", "900")) == [
        ("max_position_quantity", "5", "7"),
        ("allow_short", False, "1"),
    ]
    assert trader.refused(trader.submit("SELL_SHORT", "1", "900")) == [
        ("allow_short", False, "SELL_SHORT"),
        ("max_position_quantity", "5", "7"),
    ]


def test_close_passes_what_bounds_the_position_and_the_loss(trader: LimitedTrader) -> None:
    trader.hold("10")
    trader.limit(max_position_quantity="1", allow_short=False, max_daily_loss="5")
    trader.book("90", "92")
    eventually(lambda: trader.client.get("/halt").status_code == 200, WAIT_SECONDS)
    order = trader.until(trader.close().json()["intent_id"], "FILLED")
    assert (order["order_side"], order["quantity"]) == ("SELL", "10")


def test_limits_stay_in_force_when_the_plan_lapses(tenants: Tenants) -> None:
    name = f"org_lapsed_{uuid.uuid4().hex[:8]}"
    document: dict[str, Any] = {
        "external_id": name,
        "entitlements": ["controls_premium"],
        "users": [{"external_id": f"{name}-admin", "role": "admin"}],
        "api_keys": [
            {"name": "all", "environment": "paper", "permissions": ["intent:edit", "control:edit"]}
        ],
    }
    made = tenants.platform.provision({"organizations": [document]})["organizations"][0]
    admin = {"authorization": f"Bearer {tenants.platform.token(f'{name}-admin', name)}"}
    key = {"x-api-key": made["api_keys"][0]["api_key"]}
    client = tenants.client
    account = client.post(
        "/v1/accounts", json={"name": "a", "broker": "paper", "environment": "paper"}, headers=admin
    ).json()["id"]
    path = f"/v1/controls/accounts/{account}/limits"
    body = {"max_order_quantity": "1"}
    assert client.put(path, json=body, headers=key).status_code == 200
    tenants.platform.provision({"organizations": [document | {"entitlements": [], "api_keys": []}]})
    eventually(lambda: client.put(path, json=body, headers=key).status_code == 403, WAIT_SECONDS)
    assert code(client.delete(path, headers=key)) == (403, "entitlement_required")
    payload = {"symbol": "AAPL", "order_side": "BUY", "spec": {"Market": {"quantity": "2"}}}
    command = {"command": {"type": "CREATE", "payload": payload}}
    answer = client.post(f"/v1/accounts/{account}/intents", json=command, headers=key)
    assert [each["reason"] for each in answer.json()["triggered"]] == ["max_order_quantity"]
    halted = client.post(
        f"/v1/controls/accounts/{account}/halt", json={"reason": "stop"}, headers=key
    )
    assert halted.status_code == 202, "stopping is never refused for a plan"
