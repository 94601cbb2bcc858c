"""Binance's REST for spot, from its public documents: HMAC signatures, filters, its codes. One market,
BTCUSDT, and what is needed to trade there."""

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

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

KEY = "k" * 64
SECRET = "s" * 64
SYMBOL = BASE + QUOTE
MAX_RECV_MILLIS = 60_000
MAX_AHEAD_MILLIS = 1_000
NAME = re.compile(r"[a-zA-Z0-9-_.:/]{1,36}")
STATES = {"filled": "FILLED", "cancelled": "CANCELED", "expired": "EXPIRED"}
ORDER_FIELDS = {"symbol", "side", "type", "timeInForce", "quantity", "price", "newClientOrderId"}
ORDER_FIELDS |= {"newOrderRespType", "recvWindow", "timestamp", "signature"}


class Refusal(Exception):
    def __init__(self, code: int, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"code": code, "msg": message})


def eight(amount: Decimal) -> str:
    return f"{amount:.8f}"


class BinanceSimulator(Simulator):
    venue = "binance"
    credentials: ClassVar = {"api_key": KEY, "api_secret": SECRET}

    def is_command(self, request: Request) -> bool:
        return request.method in ("POST", "DELETE")

    def is_lookup(self, request: Request) -> bool:
        return (request.method, request.path) == ("GET", "/api/v3/order")

    def answer(self, request: Request) -> Answer:
        ways: dict[tuple[str, str], Callable[[Request], Any]] = {
            ("GET", "ping"): lambda _: {},
            ("GET", "time"): lambda _: {"serverTime": time.time_ns() // 1_000_000},
            ("GET", "exchangeInfo"): lambda _: exchange_info(),
            ("GET", "account"): self._account,
            ("GET", "openOrders"): self._open_orders,
            ("GET", "myTrades"): self._my_trades,
            ("GET", "order"): self._find_order,
            ("POST", "order"): self._submit,
            ("DELETE", "order"): self._cancel,
        }
        way = ways.get((request.method, request.path.removeprefix("/api/v3/")))
        if way is None:
            return Answer(404, "<html>404</html>")
        try:
            if request.path.rpartition("/")[2] not in ("ping", "time", "exchangeInfo"):
                check_signature(request)
            return Answer(200, way(request), {"x-mbx-used-weight-1m": "1"})
        except Refusal as refusal:
            return refusal.answer

    def _account(self, _: Request) -> Any:
        rows = [(coin, eight(held)) for coin, held in self.book.held.items()]
        return {
            "makerCommission": 10,
            "takerCommission": 10,
            "canTrade": True,
            "canWithdraw": False,
            "canDeposit": False,
            "accountType": "SPOT",
            "balances": [{"asset": a, "free": n, "locked": "0.00000000"} for a, n in rows],
            "permissions": ["SPOT"],
            "uid": 354937868,
        }

    def _open_orders(self, request: Request) -> Any:
        if "symbol" in request.fields:
            _check_symbol(request)
        return [row_of(order) for order in self.book.open_orders()]

    def _my_trades(self, request: Request) -> Any:
        """The last ones, or the first ones from a time or an id on."""
        _check_symbol(request)
        fields = request.fields
        limit = min(int(fields.get("limit", 500)), 1_000)
        found = self.book.trades()
        if "orderId" in fields:
            found = [trade for trade in found if trade.order.id == int(fields["orderId"])]
        if "fromId" in fields:
            found = [trade for trade in found if trade.id >= int(fields["fromId"])]
        if "startTime" in fields:
            found = [trade for trade in found if trade.at_millis >= int(fields["startTime"])]
        is_from = "fromId" in fields or "startTime" in fields
        return [trade_row(trade) for trade in (found[:limit] if is_from else found[-limit:])]

    def _named(self, request: Request) -> SpotOrder | None:
        _check_symbol(request)
        fields = request.fields
        if "orderId" in fields:
            return self.book.find_id(int(fields["orderId"]))
        if "origClientOrderId" in fields:
            return self.book.find(fields["origClientOrderId"])
        raise Refusal(
            -1102,
            "Param 'origClientOrderId' or 'orderId' must be sent, but both were empty/null!",
        )

    def _find_order(self, request: Request) -> Any:
        order = self._named(request)
        if order is None:
            raise Refusal(-2013, "Order does not exist.")
        return row_of(order)

    def _submit(self, request: Request) -> Any:
        fields = request.fields
        _check_symbol(request)
        if set(fields) - ORDER_FIELDS:
            raise Refusal(-1104, "Not all sent parameters were read.")
        name = fields["newClientOrderId"]
        if not NAME.fullmatch(name):
            raise Refusal(-1100, "Illegal characters found in parameter 'newClientOrderId'.")
        self.book.arrived.append(name)
        is_limit = fields["type"] == "LIMIT"
        if is_limit != ("timeInForce" in fields) or is_limit != ("price" in fields):
            raise Refusal(-1106, "Parameter 'timeInForce' sent when not required.")
        quantity = Decimal(fields["quantity"])
        limit = Decimal(fields["price"]) if is_limit else None
        if not MIN_QUANTITY <= quantity <= MAX_QUANTITY or quantity % STEP:
            raise Refusal(-1013, "Filter failure: LOT_SIZE")
        if limit is not None and limit % TICK:
            raise Refusal(-1013, "Filter failure: PRICE_FILTER")
        if any(order.name == name for order in self.book.open_orders()):
            raise Refusal(-2010, "Duplicate order sent.")
        is_buy = fields["side"] == "BUY"
        if self.book.lacks_funds(is_buy, quantity, limit):
            raise Refusal(-2010, "Account has insufficient balance for requested action.")
        order = self.book.submit(name, is_buy, quantity, limit, fields.get("timeInForce", "GTC"))
        row = row_of(order)
        row["transactTime"] = row.pop("time")
        del row["updateTime"], row["isWorking"], row["stopPrice"], row["icebergQty"]
        fills = [
            {
                "price": eight(trade.price),
                "qty": "?" if trade.is_garbled else eight(trade.quantity),
                "commission": eight(trade.fee),
                "commissionAsset": trade.fee_coin,
                "tradeId": trade.id,
            }
            for trade in order.trades
        ]
        return row | {"fills": fills}

    def _cancel(self, request: Request) -> Any:
        order = self._named(request)
        if order is None or order.state != "open":
            raise Refusal(-2011, "Unknown order sent.")
        self.book.cancel(order)
        row = row_of(order)
        row["transactTime"] = row.pop("updateTime")
        return row | {"origClientOrderId": order.name, "clientOrderId": f"c{order.id}"}


def check_signature(request: Request) -> None:
    """Of the query and the body, as they were sent."""
    if request.headers.get("x-mbx-apikey") != KEY:
        raise Refusal(-2015, "Invalid API-key, IP, or permissions for action.", status=401)
    sent = request.query + request.body
    signed, _, signature = sent.rpartition("&signature=")
    right = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(right, signature):
        raise Refusal(-1022, "Signature for this request is not valid.")
    at_millis = int(request.fields["timestamp"])
    now_millis = time.time_ns() // 1_000_000
    window = min(int(request.fields.get("recvWindow", 5_000)), MAX_RECV_MILLIS)
    if at_millis > now_millis + MAX_AHEAD_MILLIS:
        raise Refusal(-1021, "Timestamp for this request was 1000ms ahead of the server's time.")
    if now_millis - at_millis > window:
        raise Refusal(-1021, "Timestamp for this request is outside of the recvWindow.")


def _check_symbol(request: Request) -> None:
    if request.fields.get("symbol") != SYMBOL:
        raise Refusal(-1121, "Invalid symbol.")


def row_of(order: SpotOrder) -> dict[str, Any]:
    open_state = "PARTIALLY_FILLED" if order.trades else "NEW"
    return {
        "symbol": SYMBOL,
        "orderId": order.id,
        "orderListId": -1,
        "clientOrderId": order.name,
        "price": eight(order.limit or Decimal(0)),
        "origQty": eight(order.quantity),
        "executedQty": eight(order.filled),
        "origQuoteOrderQty": eight(Decimal(0)),
        "cummulativeQuoteQty": eight(order.cost),
        "status": STATES.get(order.state, open_state),
        "timeInForce": order.time,
        "type": "MARKET" if order.limit is None else "LIMIT",
        "side": "BUY" if order.is_buy else "SELL",
        "stopPrice": eight(Decimal(0)),
        "icebergQty": eight(Decimal(0)),
        "time": order.at_millis,
        "updateTime": order.updated_millis,
        "isWorking": True,
        "workingTime": order.at_millis,
        "selfTradePreventionMode": "EXPIRE_MAKER",
    }


def trade_row(trade: SpotTrade) -> dict[str, Any]:
    return {
        "symbol": SYMBOL,
        "id": trade.id,
        "orderId": trade.order.id,
        "orderListId": -1,
        "price": eight(trade.price),
        "qty": "?" if trade.is_garbled else eight(trade.quantity),
        "quoteQty": eight(trade.quantity * trade.price),
        "commission": eight(trade.fee),
        "commissionAsset": trade.fee_coin,
        "time": trade.at_millis,
        "isBuyer": trade.order.is_buy,
        "isMaker": False,
        "isBestMatch": True,
    }


def exchange_info() -> dict[str, Any]:
    lot = {"minQty": eight(MIN_QUANTITY), "maxQty": eight(MAX_QUANTITY), "stepSize": eight(STEP)}
    price = {"minPrice": eight(TICK), "maxPrice": "1000000.00000000", "tickSize": eight(TICK)}
    market = {
        "symbol": SYMBOL,
        "status": "TRADING",
        "baseAsset": BASE,
        "baseAssetPrecision": 8,
        "quoteAsset": QUOTE,
        "quotePrecision": 8,
        "quoteAssetPrecision": 8,
        "baseCommissionPrecision": 8,
        "quoteCommissionPrecision": 8,
        "orderTypes": ["LIMIT", "LIMIT_MAKER", "MARKET"],
        "icebergAllowed": True,
        "ocoAllowed": True,
        "quoteOrderQtyMarketAllowed": True,
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "filters": [
            {"filterType": "PRICE_FILTER", **price},
            {"filterType": "LOT_SIZE", **lot},
        ],
        "permissions": [],
        "permissionSets": [["SPOT"]],
    }
    return {
        "timezone": "UTC",
        "serverTime": time.time_ns() // 1_000_000,
        "rateLimits": [],
        "exchangeFilters": [],
        "symbols": [market],
    }
