"""Limits, budgets, close and cancel-all of linked orders: the entry is judged, a pair counts
once."""

from decimal import Decimal
from typing import Any

from tests.intents.budgets import SYMBOL, open_budget
from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Body,
    TradingClient,
    create,
    limit,
    market,
    replace,
    stop,
    stop_limit,
)
from tests.intents.linked_orders import SHORT, bracket, pair, placed
from tests.tenants import Tenants


def set_limits(tenants: Tenants, trading_client: TradingClient, **limits: Any) -> None:
    path = f"/v1/controls/accounts/{trading_client.account['id']}/limits"
    assert (
        tenants.client.put(path, json=limits, headers=tenants.callers["admin"]).status_code == 200
    )


def reasons(trading_client: TradingClient, body: Body) -> list[str]:
    """Of what refuses it; `evaluate` must say the same."""
    answer = trading_client.submit(body)
    assert answer.status_code == 409, answer.text
    names = [each["reason"] for each in answer.json()["triggered"]]
    question = {"account_id": trading_client.account["id"], "command": body["command"]}
    asked = trading_client.client.post(
        "/v1/controls/evaluate", json=question, headers=trading_client.headers
    )
    assert [each["reason"] for each in asked.json()["triggered"]] == names
    return names


def test_legs_are_judged_with_their_entry(tenants: Tenants, trading_client: TradingClient) -> None:
    set_limits(tenants, trading_client, max_order_quantity="9", allowed_symbols=["MSFT"])
    assert reasons(trading_client, bracket()) == ["max_order_quantity", "allowed_symbols"], (
        "once, not for each leg"
    )
    trading_client.client.put(
        "/v1/reference-prices/AAPL", json={"price": "190"}, headers=trading_client.headers
    )
    set_limits(tenants, trading_client, price_collar_bps=100)
    far = bracket(market(), take_profit={"limit_price": "150"}, stop_loss={"stop_price": "100"})
    assert reasons(trading_client, far) == ["price_collar_bps"], (
        "a take profit so low would sell at once"
    )
    near = bracket(
        market(),
        take_profit={"limit_price": "250"},
        stop_loss={"stop_price": "100", "limit_price": "50"},
    )
    _, legs = placed(trading_client, near)
    trading_client.set_order(legs["take_profit"]["intent_id"], "NEW")
    trading_client.set_order(legs["stop_loss"]["intent_id"], "NEW")
    lower = replace(legs["take_profit"]["intent_id"], limit("10", "150"))
    assert reasons(trading_client, lower) == ["price_collar_bps"]
    trading_client.accepted(replace(legs["stop_loss"]["intent_id"], stop_limit("10", "100", "20")))


def test_legs_count_as_open_orders(tenants: Tenants, trading_client: TradingClient) -> None:
    set_limits(tenants, trading_client, max_open_orders=4)
    placed(trading_client, bracket())
    assert reasons(trading_client, pair()) == ["max_open_orders"]
    assert trading_client.submit(pair()).json()["triggered"][0]["asked"] == 5
    trading_client.accepted(create(market()))
    assert reasons(trading_client, create(market())) == ["max_open_orders"]


def test_a_pair_counts_once_and_exits_of_an_unfilled_entry_nothing(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    placed(trading_client, bracket())
    placed(trading_client, pair())
    path = f"/v1/accounts/{trading_client.account['id']}/orders"
    sums = trading_client.tables.fetch(
        "SELECT open_orders, open_buy, open_sell FROM holdings WHERE account_id = $1::text::uuid",
        trading_client.account["id"],
    )
    assert [tuple(each.values()) for each in sums] == [(5, Decimal(10), Decimal(10))], path
    set_limits(tenants, trading_client, max_position_quantity="20")
    trading_client.accepted(create(market("10"), order_side="SELL"))
    assert reasons(trading_client, create(market("1"), order_side="SELL")) == [
        "max_position_quantity"
    ]


def test_exits_pass_where_selling_short_is_not_allowed(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    set_limits(tenants, trading_client, allow_short=False)
    _, legs = placed(trading_client, bracket())
    trading_client.set_order(legs["take_profit"]["intent_id"], "NEW")
    trading_client.accepted(replace(legs["take_profit"]["intent_id"], limit("10", "201")))
    assert reasons(trading_client, bracket(side="SELL_SHORT", **SHORT)) == ["allow_short"]
    assert reasons(trading_client, pair()) == ["allow_short"], "nothing is held"


def test_legs_count_in_no_rate_duplicate_or_notional(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    trading_client.client.put(
        "/v1/reference-prices/AAPL", json={"price": "190"}, headers=trading_client.headers
    )
    set_limits(
        tenants,
        trading_client,
        max_orders_per_minute=3,
        duplicate_window_millis=60_000,
        max_order_notional="1900",
    )
    _, legs = placed(trading_client, bracket())
    trading_client.set_order(legs["stop_loss"]["intent_id"], "NEW")
    trading_client.accepted(replace(legs["stop_loss"]["intent_id"], stop("10", "181")))
    trading_client.accepted(create(limit("10", "180"), order_side="SELL"))
    assert reasons(trading_client, bracket()) == ["duplicate_window_millis"], (
        "the entry is the same again"
    )
    trading_client.accepted(create(market("2")))
    assert reasons(trading_client, create(market("1"))) == ["max_orders_per_minute"]


def test_another_process_reads_the_same_rate_from_the_log(
    tenants: Tenants, trading_client: TradingClient, second: Any
) -> None:
    set_limits(tenants, trading_client, max_orders_per_minute=2, duplicate_window_millis=60_000)
    _, legs = placed(trading_client, bracket())
    trading_client.set_order(legs["take_profit"]["intent_id"], "NEW")
    trading_client.accepted(replace(legs["take_profit"]["intent_id"], limit("10", "201")))
    sold = create(limit("10", "200"), order_side="SELL")
    answer = second.client.post(trading_client.url, json=sold, headers=trading_client.headers)
    assert answer.status_code == 202, answer.text
    answer = second.client.post(
        trading_client.url, json=create(market("3")), headers=trading_client.headers
    )
    assert [each["reason"] for each in answer.json()["triggered"]] == ["max_orders_per_minute"]


def test_a_keys_budget_counts_the_entry_alone(tenants: Tenants, open_client: OpenClient) -> None:
    budget = open_budget(tenants, open_client)
    budget.set(max_daily_notional="5000")
    body = bracket(
        limit("10", "100"),
        symbol=SYMBOL,
        take_profit={"limit_price": "900"},
        stop_loss={"stop_price": "90"},
    )
    _, legs = placed(budget.trader, body)
    budget.trader.set_order(legs["take_profit"]["intent_id"], "NEW")
    budget.trader.accepted(replace(legs["take_profit"]["intent_id"], limit("10", "901")))
    assert budget.used() == ("1000", 1)


def stop_pair(spec: Body, **stop_fields: str) -> Body:
    return create(spec, SYMBOL, "BUY", one_cancels_other=stop_fields)


def test_each_order_of_a_pair_is_judged_as_a_create_of_its_own(
    tenants: Tenants, open_client: OpenClient
) -> None:
    budget = open_budget(tenants, open_client)
    client = budget.trader
    set_limits(tenants, client, max_order_notional="11000", price_collar_bps=500)
    cheap = limit("100", "95")
    both = ["max_order_notional", "price_collar_bps"]
    alone = create(stop_limit("100", "101", "4900"), SYMBOL)
    assert reasons(client, alone) == both
    assert reasons(client, stop_pair(cheap, stop_price="101", limit_price="4900")) == both
    assert reasons(client, stop_pair(cheap, stop_price="9000")) == ["max_order_notional"]
    dear = stop_pair(limit("100", "115"), stop_price="120", limit_price="130")
    assert reasons(client, dear) == [*both, *both], "each of them says what refuses it"
    parent, legs = placed(client, stop_pair(cheap, stop_price="101", limit_price="105"))
    leg = legs["one_cancels_other"]["intent_id"]
    client.set_order(leg, "NEW")
    client.set_order(parent["intent_id"], "NEW")
    far = replace(leg, stop_limit("100", "101", "4900"))
    assert reasons(client, far) == both
    ordinary = {"content_type": "application/json; charset=utf-8"}
    assert (
        client.submit(far, **ordinary).json()["triggered"]
        == (client.submit(far).json()["triggered"])
    )
    client.accepted(replace(leg, stop_limit("100", "102", "104")))
    set_limits(tenants, client, max_order_notional="9000")
    refused = replace(parent["intent_id"], limit("100", "94"))
    assert reasons(client, refused) == ["max_order_notional"]


def test_a_budget_counts_the_dearer_of_a_pair_once(
    tenants: Tenants, open_client: OpenClient
) -> None:
    budget = open_budget(tenants, open_client)
    client = budget.trader
    budget.set(max_daily_notional="11000", max_order_notional="50000")
    dear = stop_pair(limit("100", "95"), stop_price="111")
    assert budget.answered(dear) == [("max_daily_notional", "11000", "11100")]
    parent, legs = placed(client, stop_pair(limit("100", "95"), stop_price="101"))
    leg = legs["one_cancels_other"]["intent_id"]
    assert budget.used() == ("10100", 1)
    for intent_id in (leg, parent["intent_id"]):
        client.set_order(intent_id, "NEW")
    assert budget.answered(replace(leg, stop("100", "111"))) == [
        ("max_daily_notional", "11000", "11100")
    ]
    client.accepted(replace(leg, stop("100", "106")))
    assert budget.used() == ("10600", 1)
    client.accepted(replace(parent["intent_id"], limit("100", "100.5")))
    assert budget.used() == ("10600", 2), "the other one is dearer"
    client.set_order(leg, "CANCELLED")
    client.set_order(parent["intent_id"], "NEW")
    client.accepted(replace(parent["intent_id"], limit("100", "107")))
    assert budget.used() == ("10700", 3), "what the one that ended counted is not counted again"


def test_cancel_all_cancels_legs_as_the_orders_that_they_are(trading_client: TradingClient) -> None:
    entry, legs = placed(trading_client, bracket())
    answer = trading_client.client.post(
        trading_client.url + "/cancel-all", headers=trading_client.headers
    )
    assert answer.status_code == 202
    cancelled = {each["intent_id"] for each in answer.json()["intents"]}
    assert cancelled == {entry["intent_id"], *(each["intent_id"] for each in legs.values())}
    assert [each["leg"] for each in trading_client.actions()[-3:]] == [
        None,
        "take_profit",
        "stop_loss",
    ]


def test_close_counts_a_pair_once(trading_client: TradingClient) -> None:
    entry, legs = placed(trading_client, bracket())
    account = trading_client.account
    trading_client.set_order(entry["intent_id"], "FILLED")
    trading_client.tables.execute(
        "UPDATE holdings SET quantity = 25, received_at = now() WHERE account_id = $1::text::uuid",
        account["id"],
    )
    trading_client.tables.execute(
        "UPDATE orders SET active = true WHERE order_id = ANY ($1::text[]::uuid[])",
        [each["intent_id"] for each in legs.values()],
    )
    path = f"/v1/accounts/{account['id']}/positions/AAPL/close"
    made = trading_client.client.post(path, headers=trading_client.headers).json()
    assert trading_client.get(f"/{made['intent_id']}").json()["quantity"] == "15"
    assert (
        trading_client.client.post(path, headers=trading_client.headers).json()["code"]
        == "no_position"
    )
