"""Calls of quotes, prices and orders that the tests of prices and balances share."""

import uuid
from typing import Any

from tests.intents.http_client import TradingClient, create, market
from tests.tenants import Tenants
from tests.waiting import eventually

FILL_SECONDS = 20.0


def new_symbol() -> str:
    return f"P{uuid.uuid4().hex[:11]}".upper()


def post_quote(tenants: Tenants, symbol: str, bid: str, ask: str, caller: str = "key_all") -> None:
    body = {"bid": bid, "ask": ask, "bid_size": "100000", "ask_size": "100000"}
    answer = tenants.client.put(
        f"/v1/paper/quotes/{symbol}", json=body, headers=tenants.callers[caller]
    )
    assert answer.status_code == 200, answer.text


def trade(trading_client: TradingClient, symbol: str, side: str, quantity: str) -> dict[str, Any]:
    """A market order that is filled at the quote."""
    order_id = trading_client.accepted(create(market(quantity), symbol=symbol, order_side=side))[
        "intent_id"
    ]
    url = f"/v1/accounts/{trading_client.account['id']}/orders/{order_id}"

    def order() -> dict[str, Any]:
        found: dict[str, Any] = trading_client.client.get(
            url, headers=trading_client.headers
        ).json()
        return found

    eventually(lambda: order()["order_state"] != "OPEN", FILL_SECONDS)
    assert order()["order_status"] == "FILLED", order()
    return order()
