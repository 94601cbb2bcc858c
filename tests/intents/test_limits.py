"""Limits on the way of a submit: every one at its edge, on every level, on both write paths."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Body,
    Tables,
    TradingClient,
    cancel,
    create,
    limit,
    market,
    replace,
    stop,
)
from tests.intents.limit_calls import exposures, hold, level_path, triggered
from tests.tenants import Tenants

Put = Callable[..., None]
LEVELS = ("organization", "account", "symbol")


@pytest.fixture
def put_limits(tenants: Tenants, trading_client: TradingClient) -> Iterator[Put]:
    """Sets the limits of a level; the organization's are removed after the test."""

    def put(level: str, symbol: str = "AAPL", **fields: Any) -> None:
        path = level_path(level, trading_client.account["id"], symbol)
        answer = tenants.client.put(path, json=fields, headers=tenants.callers["admin"])
        assert answer.status_code == 200, answer.text

    yield put
    tenants.client.delete(level_path("organization", ""), headers=tenants.callers["admin"])


@pytest.mark.parametrize("level", LEVELS)
def test_an_order_of_more_than_the_limits_quantity_is_refused(
    trading_client: TradingClient, put_limits: Put, level: str
) -> None:
    put_limits(level, max_order_quantity="10.5")
    intent = trading_client.accepted(create(limit("10.5")))["intent_id"]
    for body in (
        create(limit("10.500000000000000001")),
        replace(intent, limit("10.500000000000000001")),
    ):
        assert triggered(trading_client, body) == [
            ("max_order_quantity", "10.5", "10.500000000000000001", level.capitalize())
        ]
    assert trading_client.accepted(replace(intent, limit("10.4")))["action_type"] == "REPLACE"
    assert trading_client.accepted(cancel(intent))["action_type"] == "CANCEL"


@pytest.mark.parametrize("level", LEVELS)
def test_selling_short_is_refused_where_it_is_not_allowed(
    trading_client: TradingClient, put_limits: Put, level: str
) -> None:
    put_limits(level, allow_short=False)
    name = level.capitalize()
    assert triggered(trading_client, create(order_side="SELL_SHORT")) == [
        ("allow_short", False, "SELL_SHORT", name)
    ]
    assert triggered(trading_client, create(market("1"), order_side="SELL")) == [
        ("allow_short", False, "1", name)
    ]
    hold(trading_client.tables, trading_client.account["id"], "10.5")
    intent = trading_client.accepted(create(limit("4.5"), order_side="SELL"))["intent_id"]
    assert triggered(trading_client, create(market("6.000001"), order_side="SELL")) == [
        ("allow_short", False, "6.000001", name)
    ]
    assert triggered(trading_client, replace(intent, limit("10.6"))) == [
        ("allow_short", False, "10.6", name)
    ]
    trading_client.accepted(create(limit("6"), order_side="SELL"))
    assert triggered(trading_client, replace(intent, limit("4.6"))) == [
        ("allow_short", False, "4.6", name)
    ]
    assert trading_client.accepted(replace(intent, limit("1")))["action_type"] == "REPLACE"
    trading_client.accepted(create())


def test_a_symbol_that_is_not_among_the_allowed_is_refused(
    trading_client: TradingClient, put_limits: Put
) -> None:
    put_limits("account", allowed_symbols=["msft", "IBM"])
    assert triggered(trading_client, create()) == [
        ("allowed_symbols", ["IBM", "MSFT"], "AAPL", "Account")
    ]
    trading_client.accepted(create(symbol="ibm"))


@pytest.mark.parametrize("level", ["account", "symbol"])
def test_no_more_orders_are_open_than_the_limit(
    trading_client: TradingClient, put_limits: Put, level: str
) -> None:
    other = {"symbol": "MSFT" if level == "account" else "AAPL"}
    put_limits(level, max_open_orders=2)
    first = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(create(limit(), **other))
    assert triggered(trading_client, create(limit())) == [
        ("max_open_orders", 2, 3, level.capitalize())
    ]
    trading_client.accepted(replace(first, limit("20")))
    if level == "symbol":
        trading_client.accepted(create(limit(), symbol="MSFT"))


@pytest.mark.parametrize("level", ["account", "symbol"])
def test_a_position_with_its_open_orders_stays_within_the_limit(
    trading_client: TradingClient, put_limits: Put, level: str
) -> None:
    put_limits(level, max_position_quantity="100")
    hold(trading_client.tables, trading_client.account["id"], "69.5")
    name = level.capitalize()
    intent = trading_client.accepted(create(limit("10.5")))["intent_id"]
    assert triggered(trading_client, create(limit("20.01"))) == [
        ("max_position_quantity", "100", "100.01", name)
    ]
    assert triggered(trading_client, replace(intent, limit("30.51"))) == [
        ("max_position_quantity", "100", "100.01", name)
    ]
    trading_client.accepted(replace(intent, limit("30.5")))
    assert triggered(trading_client, create(limit("0.01"))) == [
        ("max_position_quantity", "100", "100.01", name)
    ]
    assert exposures(trading_client)["AAPL"] == (1, "30.5", "0"), (
        "the larger of the two versions counts, once"
    )
    hold(trading_client.tables, trading_client.account["id"], "500")
    trading_client.accepted(create(limit("450"), order_side="SELL"))
    assert triggered(trading_client, create(limit("151"), order_side="SELL")) == [
        ("max_position_quantity", "100", "101", name)
    ]
    trading_client.accepted(create(limit("150"), order_side="SELL"))
    assert exposures(trading_client)["AAPL"] == (3, "30.5", "600")


def test_no_more_orders_are_accepted_in_a_minute_than_the_limit(
    trading_client: TradingClient, put_limits: Put
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(cancel(intent))
    put_limits("account", max_orders_per_minute=3)
    other = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(replace(other, limit("11")), idempotency_key="once")
    assert (
        trading_client.submit(replace(other, limit("11")), idempotency_key="once").status_code
        == 202
    )
    assert triggered(trading_client, create()) == [("max_orders_per_minute", 3, 4, "Account")]
    trading_client.accepted(cancel(other))
    put_limits("account", max_orders_per_minute=4)
    trading_client.accepted(create())
    assert triggered(trading_client, create()) == [("max_orders_per_minute", 4, 5, "Account")]


def test_an_equal_order_within_the_window_is_a_duplicate(
    trading_client: TradingClient, put_limits: Put
) -> None:
    trading_client.accepted(create(limit("10", "187.50")), idempotency_key="mine")
    put_limits("account", duplicate_window_millis=60_000)
    ((reason, window, since_millis, name),) = triggered(
        trading_client, create(limit("10.0", "187.5"))
    )
    assert (reason, window, name) == ("duplicate_window_millis", 60_000, "Account")
    assert 0 <= since_millis < 60_000
    replayed = trading_client.submit(create(limit("10", "187.50")), idempotency_key="mine")
    assert replayed.status_code == 202, "a replayed Idempotency-Key is no new order"
    for body in (
        create(limit("10", "187.51")),
        create(limit("10.01", "187.5")),
        create(limit("10", "187.5"), symbol="MSFT"),
        create(limit("10", "187.5"), order_side="SELL"),
        create(market("10")),
    ):
        intent = trading_client.accepted(body)["intent_id"]
        assert triggered(trading_client, body)[0][0] == "duplicate_window_millis"
    trading_client.accepted(replace(intent, market("11")))
    put_limits("account", duplicate_window_millis=1)
    trading_client.accepted(create(limit("10", "187.5")))
    put_limits("account", duplicate_window_millis=60_000)
    assert (
        triggered(trading_client, create(limit("10.01", "187.5")))[0][0]
        == "duplicate_window_millis"
    )


def post_price(tenants: Tenants, symbol: str, price: str) -> None:
    body = {"price": price, "environment": "paper"}
    answer = tenants.client.put(
        f"/v1/reference-prices/{symbol}", json=body, headers=tenants.callers["admin"]
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("level", LEVELS)
def test_an_orders_value_is_by_the_highest_of_its_prices(
    tenants: Tenants, trading_client: TradingClient, put_limits: Put, level: str
) -> None:
    put_limits(level, symbol="PRICED", max_order_notional="1000")
    post_price(tenants, "PRICED", "99.5")
    name = level.capitalize()

    def priced(spec: Body) -> Body:
        return create(spec, symbol="PRICED")

    intent = trading_client.accepted(priced(limit("10", "100")))["intent_id"]
    assert triggered(trading_client, priced(limit("10", "100.01"))) == [
        ("max_order_notional", "1000", "1000.1", name)
    ]
    assert triggered(trading_client, replace(intent, limit("11", "1"))) == [
        ("max_order_notional", "1000", "1094.5", name)
    ]
    assert triggered(trading_client, priced(stop("10", "101"))) == [
        ("max_order_notional", "1000", "1010", name)
    ]
    trading_client.accepted(priced(market("10.05")))
    assert triggered(trading_client, priced(market("10.06"))) == [
        ("max_order_notional", "1000", "1000.97", name)
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_a_limit_price_too_far_from_the_reference_price_is_refused(
    tenants: Tenants, trading_client: TradingClient, put_limits: Put, level: str
) -> None:
    put_limits(level, symbol="PRICED", price_collar_bps=100)
    post_price(tenants, "PRICED", "200")
    name = level.capitalize()
    edges = (("BUY", "202", "202.01"), ("SELL", "198", "197.99"), ("SELL_SHORT", "198", "197.99"))
    for side, within, beyond in edges:
        trading_client.accepted(create(limit("1", within), symbol="PRICED", order_side=side))
        refused = create(limit("1", beyond), symbol="PRICED", order_side=side)
        assert triggered(trading_client, refused) == [("price_collar_bps", 100, "100.5", name)]
    trading_client.accepted(create(market("1"), symbol="PRICED"))
    trading_client.accepted(create(stop("1", "999"), symbol="PRICED"))
    post_price(tenants, "PRICED", "210")
    trading_client.accepted(create(limit("1", "212.1"), symbol="PRICED"))


def test_without_a_reference_price_it_is_not_guessed(
    tenants: Tenants, open_client: OpenClient, tables: Tables
) -> None:
    """An account of another broker has no walk of prices."""
    trading_client = open_client(caller="key_live", environment="live", broker="remote")
    path = level_path("account", trading_client.account["id"])
    body = {"max_order_notional": "1000", "price_collar_bps": 100}
    assert tenants.client.put(path, json=body, headers=tenants.callers["admin"]).status_code == 200
    assert triggered(trading_client, create(market("1"), symbol="NOPRICE")) == [
        ("no_reference_price", "1000", "NOPRICE", "Account")
    ]
    assert triggered(trading_client, create(limit("1", "2"), symbol="NOPRICE")) == [
        ("no_reference_price", 100, "NOPRICE", "Account")
    ]
    trading_client.accepted(create(stop("1", "2"), symbol="NOPRICE"))


def test_a_price_of_another_environment_or_of_long_ago_is_no_reference_price(
    tenants: Tenants, open_client: OpenClient
) -> None:
    trading_client = open_client(caller="key_live", environment="live", broker="remote")
    symbol = f"E{uuid.uuid4().hex[:10].upper()}"
    admin = tenants.callers["admin"]
    path = level_path("account", trading_client.account["id"])
    assert (
        tenants.client.put(path, json={"max_order_notional": "100"}, headers=admin).status_code
        == 200
    )
    order = create(market("1"), symbol=symbol)
    unknown = [("no_reference_price", "100", symbol, "Account")]
    post_price(tenants, symbol, "1")
    assert triggered(trading_client, order) == unknown, "a paper price"
    body = {"price": "101", "environment": "live"}
    assert (
        tenants.client.put(f"/v1/reference-prices/{symbol}", json=body, headers=admin).status_code
        == 200
    )
    assert triggered(trading_client, order) == [("max_order_notional", "100", "101", "Account")]
    trading_client.tables.execute(
        "UPDATE reference_prices SET as_of = as_of - interval '901 s' WHERE symbol = $1", symbol
    )
    assert triggered(trading_client, order) == unknown, "too old"


def test_every_limit_that_refuses_is_answered_and_counted_once(
    tenants: Tenants, trading_client: TradingClient, put_limits: Put
) -> None:
    put_limits("organization", max_order_quantity="1")
    put_limits("account", max_order_quantity="2", allowed_symbols=[])
    put_limits("symbol", max_order_quantity="3", max_position_quantity="4")
    assert triggered(trading_client, create()) == [
        ("max_order_quantity", "1", "10", "Organization"),
        ("max_order_quantity", "2", "10", "Account"),
        ("allowed_symbols", [], "AAPL", "Account"),
        ("max_order_quantity", "3", "10", "Symbol"),
        ("max_position_quantity", "4", "10", "Symbol"),
    ]
    (kept,) = trading_client.tables.fetch(
        "SELECT reasons FROM refusals WHERE account_id = $1::text::uuid",
        trading_client.account["id"],
    )
    assert kept["reasons"] == ["max_order_quantity", "allowed_symbols", "max_position_quantity"]


def test_evaluating_a_command_answers_what_its_submit_would(
    tenants: Tenants, trading_client: TradingClient, put_limits: Put
) -> None:
    admin = tenants.callers["admin"]

    def evaluated(body: Body, **more: str) -> Any:
        question = {"account_id": trading_client.account["id"], "command": body["command"]} | more
        before = trading_client.tables.counts()
        answer = tenants.client.post("/v1/controls/evaluate", json=question, headers=admin)
        assert trading_client.tables.counts() == before, "nothing is written"
        return answer

    intent = trading_client.accepted(create(limit("6")))["intent_id"]
    put_limits("organization", max_order_quantity="20")
    put_limits(
        "account", max_open_orders=2, max_orders_per_minute=3, duplicate_window_millis=60_000
    )
    put_limits("symbol", max_position_quantity="10", price_collar_bps=10_000)
    bodies = [
        create(limit("21", "999999")),
        create(limit("6")),
        create(limit("4")),
        create(limit("1"), symbol="MSFT"),
        replace(intent, limit("11")),
        replace(intent, limit("1")),
    ]
    # Before limits are reached, and where they are.
    for body in (*bodies, *bodies[:4]):
        answered = evaluated(body).json()
        answer = trading_client.submit(body)
        assert answered["allowed"] == (answer.status_code == 202), answer.text
        assert [(each["reason"], each["limit"]) for each in answered["triggered"]] == [
            (each["reason"], each["limit"]) for each in answer.json().get("triggered", ())
        ]
    assert evaluated(cancel(intent)).json() == {"allowed": True, "triggered": []}
    for body in (
        cancel(trading_client.account["id"]),
        replace(trading_client.account["id"], limit()),
    ):
        assert evaluated(body).json()["code"] == "not_found"
    assert evaluated(create(), symbol="IBM").json()["errors"][0]["pointer"] == "/symbol"
    assert (
        evaluated(create(market("0"))).json()["errors"][0]["pointer"]
        == "/command/payload/spec/Market/quantity"
    )
    assert evaluated(create(market(5))).json()["code"] == "validation_failed"


def test_orders_from_before_the_limit_count(trading_client: TradingClient, put_limits: Put) -> None:
    first = trading_client.accepted(create(limit("30")))["intent_id"]
    trading_client.accepted(create(limit("20"), symbol="MSFT"))
    trading_client.accepted(replace(first, limit("50")))
    put_limits("account", max_open_orders=3)
    trading_client.accepted(create(limit("5"), order_side="SELL"))
    assert exposures(trading_client) == {"AAPL": (2, "50", "5"), "MSFT": (1, "20", "0")}
    assert triggered(trading_client, create(symbol="MSFT")) == [
        ("max_open_orders", 3, 4, "Account")
    ]


def test_an_accounts_limits_bind_no_other_account(
    open_client: OpenClient, trading_client: TradingClient, put_limits: Put
) -> None:
    put_limits("account", allowed_symbols=[])
    put_limits("symbol", max_order_quantity="1")
    open_client().accepted(create())
