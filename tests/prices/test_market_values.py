"""Positions' market fields from outside: valued at the reference price, and null where none is
known."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.intents.http_client import Tables, TradingClient
from tests.prices.conftest import OpenClient
from tests.prices.market import new_symbol, post_quote, trade
from tests.tenants import Tenants
from trading_intents.orders.positions import Booking, NetPosition, from_trades, opening
from trading_intents.trading import OrderSide

NOW = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
MARKET = ("market_price", "market_value", "unrealized_pnl")


def position(trading_client: TradingClient, symbol: str) -> dict[str, Any]:
    url = f"/v1/accounts/{trading_client.account['id']}/positions?limit=100"
    rows = trading_client.client.get(url, headers=trading_client.headers).json()["data"]
    found: dict[str, Any] = next(row for row in rows if row["symbol"] == symbol)
    return found


def market_of(trading_client: TradingClient, symbol: str) -> tuple[Any, ...]:
    row = position(trading_client, symbol)
    return tuple(row[name] for name in MARKET)


def test_a_position_is_valued_at_the_reference_price(
    tenants: Tenants, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "11")
    trade(trading_client, symbol, "BUY", "5")
    assert market_of(trading_client, symbol) == ("11", "55", "0")
    post_quote(tenants, symbol, "12", "13")
    assert market_of(trading_client, symbol) == ("12.5", "62.5", "7.5")
    price = tenants.client.get(
        f"/v1/reference-prices/{symbol}", headers=trading_client.headers
    ).json()
    assert position(trading_client, symbol)["market_price_at"] == price["as_of"]
    trade(trading_client, symbol, "SELL", "5")
    assert market_of(trading_client, symbol) == ("12", "0", "0")


def test_a_short_position_gains_when_the_price_falls(
    tenants: Tenants, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "11")
    trade(trading_client, symbol, "SELL_SHORT", "4")
    post_quote(tenants, symbol, "8", "8.5")
    assert market_of(trading_client, symbol) == ("8.25", "-33", "7")


def test_an_old_price_values_a_position_and_says_its_age(
    tenants: Tenants, tables: Tables, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "11")
    trade(trading_client, symbol, "BUY", "5")
    before = position(trading_client, symbol)
    tables.execute(
        "UPDATE reference_prices SET as_of = as_of - interval '5 h' WHERE symbol = $1", symbol
    )
    tables.execute(
        "UPDATE paper_quotes SET posted_at = posted_at - interval '5 h' WHERE symbol = $1", symbol
    )
    assert market_of(trading_client, symbol) == ("11", "55", "0")
    assert position(trading_client, symbol)["market_price_at"] < before["market_price_at"]
    # Limits go on by prices of the last minutes alone.
    price = tenants.client.get(f"/v1/reference-prices/{symbol}", headers=trading_client.headers)
    assert price.status_code == 404


def test_a_symbol_that_never_had_a_price_has_no_market_fields(
    tables: Tables, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client(broker="remote")
    tables.execute(
        "INSERT INTO holdings (account_id, organization_id, symbol, quantity, received_at)"
        " SELECT id, organization_id, $2, 5, now() FROM accounts WHERE id = $1::text::uuid",
        trading_client.account["id"],
        symbol,
    )
    assert market_of(trading_client, symbol) == (None, None, None)
    assert position(trading_client, symbol)["market_price_at"] is None


def test_prices_make_no_position_events(
    tenants: Tenants, tables: Tables, open_client: OpenClient
) -> None:
    symbol = new_symbol()
    trading_client = open_client()
    post_quote(tenants, symbol, "10", "11")
    trade(trading_client, symbol, "BUY", "5")
    before = [
        event for event in trading_client.events() if event.WhichOneof("event") == "broker_position"
    ]
    body = {"price": "20"}
    tenants.client.put(f"/v1/reference-prices/{symbol}", json=body, headers=trading_client.headers)
    post_quote(tenants, symbol, "20", "21")
    assert market_of(trading_client, symbol)[0] == "20.5"
    after = [
        event for event in trading_client.events() if event.WhichOneof("event") == "broker_position"
    ]
    assert before == after


@pytest.mark.parametrize(
    ("start", "bookings", "price", "unrealized"),
    [
        (NetPosition(), [("BUY", "3", "10")], "12", "6"),
        (NetPosition(), [("BUY", "3", "10"), ("SELL", "1", "11")], "12", "4"),
        (NetPosition(), [("SELL", "3", "10")], "12", "-6"),
        (opening(Decimal(2), Decimal(5)), [("BUY", "2", "7")], "8", "8"),
        (opening(Decimal(2), None), [("BUY", "2", "7")], "8", None),
        (opening(Decimal(2), None), [("SELL", "2", "7")], "8", "0"),
    ],
)
def test_unrealized_profit_is_the_value_less_the_cost(
    start: NetPosition, bookings: list[tuple[str, str, str]], price: str, unrealized: str | None
) -> None:
    trades = [
        Booking(OrderSide(side), Decimal(q), Decimal(p), None, NOW) for side, q, p in bookings
    ]
    found = from_trades(trades, start).unrealized_pnl(Decimal(price))
    assert found == (None if unrealized is None else Decimal(unrealized))
