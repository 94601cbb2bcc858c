"""Trades by alpaca-py at the address given, and prints what it understood as JSON. Runs in its own
environment."""

import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from alpaca.common.exceptions import APIError
from alpaca.trading.client import TradingClient
from alpaca.trading.enums import OrderClass, OrderSide, QueryOrderStatus, TimeInForce
from alpaca.trading.requests import (
    GetOrderByIdRequest,
    GetOrdersRequest,
    LimitOrderRequest,
    MarketOrderRequest,
    ReplaceOrderRequest,
    StopLossRequest,
    TakeProfitRequest,
)
from alpaca.trading.stream import TradingStream

WAIT_SECONDS = 40


def trade_linked(client: TradingClient, heard: Callable[[str], list[Any]]) -> dict[str, Any]:
    """Trades orders with exits, and a pair that closes a position."""
    exits = {
        "take_profit": TakeProfitRequest(limit_price=110),
        "stop_loss": StopLossRequest(stop_price=90),
    }
    terms = {"symbol": "ACME", "qty": 2, "time_in_force": TimeInForce.GTC, **exits}
    entry = client.submit_order(
        MarketOrderRequest(side=OrderSide.BUY, order_class=OrderClass.BRACKET, **terms)
    )
    heard("fill")
    nested = client.get_order_by_id(entry.id, GetOrderByIdRequest(nested=True))
    client.replace_order_by_id(nested.legs[1].id, ReplaceOrderRequest(stop_price=91))
    client.cancel_order_by_id(nested.legs[0].id)
    pair = client.submit_order(
        LimitOrderRequest(side=OrderSide.SELL, order_class=OrderClass.OCO, **terms)
    )
    client.cancel_order_by_id(pair.id)
    one = terms | {"take_profit": None}
    single = client.submit_order(
        MarketOrderRequest(side=OrderSide.BUY, order_class=OrderClass.OTO, **one)
    )
    listed = client.get_orders(GetOrdersRequest(status=QueryOrderStatus.ALL, nested=True))
    return {
        "bracket": [[each.order_class, each.type, each.status] for each in (entry, *entry.legs)],
        "nested": [[each.type, each.status, each.legs] for each in nested.legs],
        "pair": [
            [each.order_class, each.type, each.side, each.status] for each in (pair, *pair.legs)
        ],
        "single": [[each.order_class, each.status] for each in single.legs],
        "listed": [[each.order_class, len(each.legs or ())] for each in listed[:3]],
    }


def market_order(quantity: int) -> MarketOrderRequest:
    return MarketOrderRequest(
        symbol="ACME",
        qty=quantity,
        side=OrderSide.BUY,
        time_in_force=TimeInForce.DAY,
        client_order_id="w1",
    )


def main(url: str, key: str, secret: str) -> None:
    client = TradingClient(key, secret, paper=True, url_override=url)
    stream = TradingStream(
        key, secret, paper=True, url_override=url.replace("http", "ws") + "/stream"
    )
    updates: queue.Queue[Any] = queue.Queue()

    async def take(update: Any) -> None:
        updates.put(update)

    stream.subscribe_trade_updates(take)
    threading.Thread(target=stream.run, daemon=True).start()
    print("listening", flush=True)
    sys.stdin.readline()  # the test has seen the stream

    def heard(last: str) -> list[Any]:
        found: list[Any] = []
        while not found or found[-1].event != last:
            found.append(updates.get(timeout=WAIT_SECONDS))
        return found

    bought = client.submit_order(market_order(10))
    filled = heard("fill")
    resting = client.submit_order(
        LimitOrderRequest(
            symbol="ACME",
            qty=5,
            limit_price=50,
            side=OrderSide.BUY,
            time_in_force=TimeInForce.GTC,
            client_order_id="w2",
        )
    )
    changed = client.replace_order_by_id(
        resting.id, ReplaceOrderRequest(qty=6, client_order_id="w3")
    )
    heard("replaced")
    client.cancel_order_by_id(changed.id)
    ended = heard("canceled")
    try:
        client.submit_order(market_order(1))
        refused = None
    except APIError as error:
        refused = [error.status_code, error.code, error.message]
    closed = len(client.get_orders(GetOrdersRequest(status=QueryOrderStatus.CLOSED)))
    linked = trade_linked(client, heard)
    (position,) = client.get_all_positions()
    account = client.get_account()
    understood = {
        "bought": [bought.status, bought.client_order_id, str(bought.qty)],
        "filled": [
            [each.event, str(each.qty), str(each.price), str(each.position_qty)]
            for each in filled[-1:]
        ],
        "events": [each.event for each in filled],
        "found": [
            client.get_order_by_client_id("w1").status,
            client.get_order_by_id(bought.id).filled_avg_price,
        ],
        "changed": [str(changed.replaces) == str(resting.id), changed.client_order_id, changed.qty],
        "ended": [ended[-1].order.client_order_id, ended[-1].order.status],
        "closed": closed,
        "refused": refused,
        "position": [position.symbol, position.qty, position.side],
        **linked,
        "account": [account.status, account.trading_blocked],
        "clock": client.get_clock().is_open,
    }
    print(json.dumps(understood, default=str), flush=True)


main(*sys.argv[1:])
