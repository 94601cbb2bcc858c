"""Bybit's REST for spot, version 5, of a unified account, from its public documents: signatures in
headers, a code in every answer, lists by cursor, the newest first. One symbol, BTCUSDT."""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

from simulator import Answer, Request, Simulator
from spot_book import (
    BASE,
    MAX_QUANTITY,
    MIN_QUANTITY,
    QUOTE,
    STEP,
    TICK,
    SpotOrder,
    SpotTrade,
)

KEY = "b" * 18
SECRET = "B" * 36
SYMBOL = BASE + QUOTE
MAX_AHEAD_MILLIS = 1_000
WEEK_MILLIS = 7 * 86_400_000
NAME = re.compile(r"[a-zA-Z0-9_-]{1,36}")
LISTS = ("/v5/order/realtime", "/v5/order/history")
ORDER_FIELDS = {"category", "symbol", "side", "orderType", "qty", "price", "timeInForce"}
ORDER_FIELDS |= {"orderLinkId", "marketUnit"}

R = TypeVar("R", SpotOrder, SpotTrade)


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class BybitSimulator(Simulator):
    venue = "bybit"
    credentials: ClassVar = {"api_key": KEY, "api_secret": SECRET}

    def is_command(self, request: Request) -> bool:
        return request.method == "POST"

    def is_lookup(self, request: Request) -> bool:
        return request.path in LISTS and "orderLinkId" in request.fields

    def answer(self, request: Request) -> Answer:
        ways: dict[tuple[str, str], Callable[[Request], dict[str, Any]]] = {
            ("GET", "/v5/market/time"): lambda _: {"timeSecond": str(time.time_ns() // 10**9)},
            ("GET", "/v5/market/instruments-info"): instruments,
            ("GET", "/v5/account/wallet-balance"): self._balance,
            ("GET", "/v5/order/realtime"): self._open,
            ("GET", "/v5/order/history"): self._ended,
            ("GET", "/v5/execution/list"): self._executions,
            ("POST", "/v5/order/create"): self._submit,
            ("POST", "/v5/order/cancel"): self._cancel,
        }
        way = ways.get((request.method, request.path))
        if way is None:
            return Answer(404, "<html>404</html>")
        try:
            if not request.path.startswith("/v5/market/"):
                check_signature(request)
            if request.path != "/v5/market/time" and "category" in request.fields:
                _check_category(request)
            return said(0, "OK", way(request))
        except Refusal as refusal:
            return said(refusal.code, str(refusal), {})

    def _balance(self, request: Request) -> dict[str, Any]:
        if request.fields.get("accountType") != "UNIFIED":
            raise Refusal(10001, "accountType only support UNIFIED.")
        held = self.book.held.items()
        coins = [{"coin": coin, "walletBalance": f"{n:f}", "equity": f"{n:f}"} for coin, n in held]
        return {"list": [{"accountType": "UNIFIED", "coin": coins}]}

    def _open(self, request: Request) -> dict[str, Any]:
        return self._orders(request, self.book.open_orders())

    def _ended(self, request: Request) -> dict[str, Any]:
        ended = [order for order in self.book.orders if order.state != "open"]
        return self._orders(request, ended)

    def _orders(self, request: Request, orders: Sequence[SpotOrder]) -> dict[str, Any]:
        fields = request.fields
        if "orderLinkId" in fields:
            orders = [order for order in orders if order.name == fields["orderLinkId"]]
        if "orderId" in fields:
            orders = [order for order in orders if str(order.id) == fields["orderId"]]
        page, cursor = _page(request, orders, 20, 50)
        rows = [row_of(order) for order in page]
        return {"category": "spot", "list": rows, "nextPageCursor": cursor}

    def _executions(self, request: Request) -> dict[str, Any]:
        """Seven days at most: the last ones, or those after the beginning."""
        fields = request.fields
        now = time.time_ns() // 1_000_000
        since = int(fields.get("startTime", now - WEEK_MILLIS))
        until = int(fields.get("endTime", since + WEEK_MILLIS))
        if until - since > WEEK_MILLIS:
            raise Refusal(10001, "The time range between startTime and endTime exceeds 7 days")
        found = [trade for trade in self.book.trades() if since <= trade.at_millis <= until]
        if "orderId" in fields:
            found = [trade for trade in found if str(trade.order.id) == fields["orderId"]]
        page, cursor = _page(request, found, 50, 100)
        rows = [trade_row(trade) for trade in page]
        return {"category": "spot", "list": rows, "nextPageCursor": cursor}

    def _submit(self, request: Request) -> dict[str, Any]:
        fields = request.fields
        if set(fields) - ORDER_FIELDS:
            raise Refusal(10001, "params error")
        name = fields.get("orderLinkId", "")
        if name and not NAME.fullmatch(name):
            raise Refusal(10001, "params error: orderLinkId invalid")
        self.book.arrived.append(name)
        is_market = fields["orderType"] == "Market"
        is_buy = fields["side"] == "Buy"
        # Without it the quantity of a market BUY is in money.
        if is_market and is_buy and fields.get("marketUnit") != "baseCoin":
            raise Refusal(170130, "Data sent for paramter 'marketUnit' is not valid.")
        quantity = Decimal(fields["qty"])
        limit = None if is_market else Decimal(fields["price"])
        if quantity < MIN_QUANTITY:
            raise Refusal(170136, "Order quantity has below the minimum.")
        if quantity > MAX_QUANTITY:
            raise Refusal(170135, "Order quantity too large.")
        if quantity % STEP:
            raise Refusal(170137, "Order quantity has too many decimals.")
        if limit is not None and limit % TICK:
            raise Refusal(170134, "Order price has too many decimals.")
        if name and any(order.name == name for order in self.book.orders):
            raise Refusal(170141, "Duplicate clientOrderId")
        if self.book.lacks_funds(is_buy, quantity, limit):
            raise Refusal(170131, "Insufficient balance.")
        time_in_force = "IOC" if is_market else fields.get("timeInForce", "GTC")
        return _taken(self.book.submit(name, is_buy, quantity, limit, time_in_force))

    def _cancel(self, request: Request) -> dict[str, Any]:
        fields = request.fields
        if "orderId" in fields:
            order = self.book.find_id(int(fields["orderId"]))
        else:
            order = self.book.find(fields["orderLinkId"])
        if order is None:
            raise Refusal(170213, "Order does not exist.")
        if order.state == "filled":
            raise Refusal(170139, "Order has been filled.")
        if order.state != "open":
            raise Refusal(170142, "Order has been canceled.")
        self.book.cancel(order)
        return _taken(order)


def said(code: int, message: str, result: dict[str, Any]) -> Answer:
    now = time.time_ns() // 1_000_000
    body = {"retCode": code, "retMsg": message, "result": result, "retExtInfo": {}, "time": now}
    return Answer(200, body)


def _taken(order: SpotOrder) -> dict[str, Any]:
    return {"orderId": str(order.id), "orderLinkId": order.name}


def _page(request: Request, rows: Sequence[R], default: int, most: int) -> tuple[Sequence[R], str]:
    """The newest first. The last page has a cursor too: behind it is nothing."""
    cursor = request.fields.get("cursor")
    after = [row for row in rows if not cursor or row.id < int(cursor)]
    after.sort(key=lambda row: row.id, reverse=True)
    page = after[: min(int(request.fields.get("limit", default)), most)]
    return page, str(page[-1].id) if page else ""


def check_signature(request: Request) -> None:
    headers = request.headers
    if headers.get("x-bapi-api-key") != KEY:
        raise Refusal(10003, "API key is invalid.")
    at = headers.get("x-bapi-timestamp", "0")
    window = headers.get("x-bapi-recv-window", "5000")
    content = request.query if request.method == "GET" else request.body
    signed = f"{at}{KEY}{window}{content}"
    right = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(right, headers.get("x-bapi-sign", "")):
        raise Refusal(10004, "Error sign, please check your signature generation algorithm.")
    now = time.time_ns() // 1_000_000
    if not now - int(window) <= int(at) < now + MAX_AHEAD_MILLIS:
        raise Refusal(10002, "invalid request, please check your server timestamp or recv_window")


def _check_category(request: Request) -> None:
    if request.fields["category"] != "spot":
        raise Refusal(10001, "Illegal category")
    if request.fields.get("symbol", SYMBOL) != SYMBOL:
        raise Refusal(170121, "Invalid symbol.")


def row_of(order: SpotOrder) -> dict[str, Any]:
    is_market = order.limit is None
    has_filled = bool(order.trades)
    ended = "PartiallyFilledCanceled" if has_filled else "Cancelled"
    states = {"filled": "Filled", "open": "PartiallyFilled" if has_filled else "New"}
    fees = sum((trade.fee for trade in order.trades), Decimal(0))
    return {
        "orderId": str(order.id),
        "orderLinkId": order.name,
        "symbol": SYMBOL,
        "price": "0" if order.limit is None else f"{order.limit:f}",
        "qty": f"{order.quantity:f}",
        "side": "Buy" if order.is_buy else "Sell",
        "orderStatus": states.get(order.state, ended),
        "cancelType": "CancelByUser" if order.state == "cancelled" else "UNKNOWN",
        "rejectReason": "EC_NoError",
        "avgPrice": f"{order.cost / order.filled:f}" if has_filled else "",
        "leavesQty": f"{order.leaves if order.state == 'open' else 0:f}",
        "cumExecQty": f"{order.filled:f}",
        "cumExecValue": f"{order.cost:f}",
        "cumExecFee": f"{fees:f}",
        "timeInForce": order.time,
        "orderType": "Market" if is_market else "Limit",
        "marketUnit": "baseCoin" if is_market else "",
        "stopOrderType": "",
        "orderIv": "",
        "triggerPrice": "0.00",
        "takeProfit": "",
        "stopLoss": "",
        "reduceOnly": False,
        "closeOnTrigger": False,
        "isLeverage": "0",
        "createdTime": str(order.at_millis),
        "updatedTime": str(order.updated_millis),
    }


def trade_row(trade: SpotTrade) -> dict[str, Any]:
    order = trade.order
    return {
        "symbol": SYMBOL,
        "orderType": "Market" if order.limit is None else "Limit",
        "orderLinkId": order.name,
        "orderId": str(order.id),
        "side": "Buy" if order.is_buy else "Sell",
        "leavesQty": "0",
        "stopOrderType": "",
        "execId": f"{trade.id:020}",
        "execTime": str(trade.at_millis),
        "execType": "Trade",
        "execPrice": f"{trade.price:f}",
        "execQty": "?" if trade.is_garbled else f"{trade.quantity:f}",
        "execValue": f"{trade.quantity * trade.price:f}",
        "execFee": f"{trade.fee:f}",
        "feeCurrency": trade.fee_coin,
        "feeRate": "0.001",
        "isMaker": False,
    }


def instruments(_: Request) -> dict[str, Any]:
    lot = {"basePrecision": f"{STEP:f}", "quotePrecision": "0.0000001"}
    lot |= {"minOrderQty": f"{MIN_QUANTITY:f}", "maxOrderQty": f"{MAX_QUANTITY:f}"}
    lot |= {"minOrderAmt": "1", "maxOrderAmt": "4000000"}
    market = {
        "symbol": SYMBOL,
        "baseCoin": BASE,
        "quoteCoin": QUOTE,
        "innovation": "0",
        "status": "Trading",
        "marginTrading": "none",
        "lotSizeFilter": lot,
        "priceFilter": {"tickSize": f"{TICK:f}"},
    }
    return {"category": "spot", "list": [market]}
