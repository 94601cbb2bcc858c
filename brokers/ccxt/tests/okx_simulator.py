"""OKX's REST for spot, version 5, from its public documents: signatures with a passphrase, a code in
each row of an answer, lists of 100 rows, the newest first. One instrument, BTC-USDT."""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
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

KEY = "a" * 36
SECRET = "S" * 32
PASSPHRASE = "P4ssphrase"
INSTRUMENT = f"{BASE}-{QUOTE}"
MAX_AGE = timedelta(seconds=30)
PAGE = 100
NAME = re.compile(r"[a-zA-Z0-9]{1,32}")
STATES = {"filled": "filled", "cancelled": "canceled", "expired": "canceled"}
KINDS = {"limit": "GTC", "ioc": "IOC", "fok": "FOK"}
KIND_NAMES = {time_in_force: name for name, time_in_force in KINDS.items()}
ORDER_FIELDS = {"instId", "tdMode", "side", "ordType", "sz", "px", "clOrdId", "tag", "tgtCcy"}


class Refusal(Exception):
    """Of a request."""

    def __init__(self, code: str, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"code": code, "data": [], "msg": message})


class RowRefusal(Exception):
    """Of what the request is about, in the one row of its answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        row = {"sCode": code, "sMsg": message, "ordId": "", "clOrdId": "", "tag": ""}
        self.answer = Answer(200, {"code": "1", "data": [row], "msg": "All operations failed"})


class OkxSimulator(Simulator):
    venue = "okx"
    credentials: ClassVar = {"api_key": KEY, "api_secret": SECRET, "passphrase": PASSPHRASE}

    def is_command(self, request: Request) -> bool:
        return request.method == "POST"

    def is_lookup(self, request: Request) -> bool:
        return (request.method, request.path) == ("GET", "/api/v5/trade/order")

    def answer(self, request: Request) -> Answer:
        ways: dict[tuple[str, str], Callable[[Request], list[Any]]] = {
            ("GET", "public/time"): lambda _: [{"ts": str(time.time_ns() // 1_000_000)}],
            ("GET", "public/instruments"): instruments,
            ("GET", "account/balance"): self._balance,
            ("GET", "trade/orders-pending"): self._pending,
            ("GET", "trade/fills-history"): self._fills,
            ("GET", "trade/fills"): self._fills,
            ("GET", "trade/order"): self._find_order,
            ("POST", "trade/order"): self._submit,
            ("POST", "trade/cancel-order"): self._cancel,
        }
        name = request.path.removeprefix("/api/v5/")
        way = ways.get((request.method, name))
        if way is None:
            return Answer(404, {"code": "404", "data": [], "msg": "Not Found"})
        try:
            if not name.startswith("public/"):
                check_signature(request)
            return Answer(200, {"code": "0", "data": way(request), "msg": ""})
        except (Refusal, RowRefusal) as refusal:
            return refusal.answer

    def _balance(self, _: Request) -> list[Any]:
        rows = [(coin, f"{held:f}") for coin, held in self.book.held.items()]
        details = [
            {"ccy": c, "cashBal": n, "availBal": n, "eq": n, "frozenBal": "0"} for c, n in rows
        ]
        return [{"uTime": "0", "totalEq": "", "details": details}]

    def _pending(self, request: Request) -> list[Any]:
        _check_instrument(request, is_needed=False)
        orders = [order for order in self.book.open_orders() if _is_after(request, order.id)]
        return [row_of(order) for order in _newest(orders)]

    def _fills(self, request: Request) -> list[Any]:
        _check_instrument(request, is_needed=False)
        fields = request.fields
        found = [trade for trade in self.book.trades() if _is_after(request, trade.id)]
        if "ordId" in fields:
            found = [trade for trade in found if str(trade.order.id) == fields["ordId"]]
        if "begin" in fields:
            found = [trade for trade in found if trade.at_millis >= int(fields["begin"])]
        return [trade_row(trade) for trade in _newest(found)]

    def _named(self, request: Request) -> SpotOrder | None:
        _check_instrument(request, is_needed=True)
        fields = request.fields
        if fields.get("ordId"):
            return self.book.find_id(int(fields["ordId"]))
        if fields.get("clOrdId"):
            return self.book.find(fields["clOrdId"])
        raise Refusal("51003", "Either client order ID or order ID is required.", 400)

    def _find_order(self, request: Request) -> list[Any]:
        order = self._named(request)
        if order is None:
            raise Refusal("51603", "Order does not exist")
        return [row_of(order)]

    def _submit(self, request: Request) -> list[Any]:
        fields = {name: value for name, value in request.fields.items() if value}
        _check_instrument(request, is_needed=True)
        name = fields.get("clOrdId", "")
        if set(fields) - ORDER_FIELDS or fields["tdMode"] != "cash":
            raise RowRefusal("51000", "Parameter tdMode error")
        if name and not NAME.fullmatch(name):
            raise RowRefusal("51000", "Parameter clOrdId error")
        self.book.arrived.append(name)
        is_market = fields["ordType"] == "market"
        is_buy = fields["side"] == "buy"
        # Without it the size of a market BUY is in money.
        if is_market and is_buy and fields.get("tgtCcy") != "base_ccy":
            raise RowRefusal("51000", "Parameter tgtCcy error")
        quantity = Decimal(fields["sz"])
        limit = None if is_market else Decimal(fields["px"])
        if quantity < MIN_QUANTITY:
            raise RowRefusal("51020", "Your order should meet or exceed the minimum order amount.")
        if quantity % STEP:
            raise RowRefusal("51121", "Order quantity must be a multiple of the lot size.")
        if quantity > MAX_QUANTITY:
            raise RowRefusal("51202", "Market order amount exceeds the maximum amount.")
        if limit is not None and limit % TICK:
            raise RowRefusal("51000", "Parameter px error")
        if name and any(order.name == name for order in self.book.open_orders()):
            raise RowRefusal("51016", "Client order ID already exists.")
        if self.book.lacks_funds(is_buy, quantity, limit):
            raise RowRefusal("51008", f"Order failed. Insufficient {QUOTE} balance in account")
        time_in_force = "IOC" if is_market else KINDS[fields["ordType"]]
        order = self.book.submit(name, is_buy, quantity, limit, time_in_force)
        return [_taken(order)]

    def _cancel(self, request: Request) -> list[Any]:
        order = self._named(request)
        if order is None or order.state != "open":
            raise RowRefusal(
                "51400",
                "Cancellation failed as the order has been filled, canceled or does not exist.",
            )
        self.book.cancel(order)
        return [_taken(order)]


def _taken(order: SpotOrder) -> dict[str, str]:
    ids = {"clOrdId": order.name, "ordId": str(order.id)}
    return ids | {"sCode": "0", "sMsg": "", "tag": "", "ts": str(order.updated_millis)}


def check_signature(request: Request) -> None:
    headers = request.headers
    if headers.get("ok-access-key") != KEY:
        raise Refusal("50111", "Invalid OK-ACCESS-KEY", 401)
    if headers.get("ok-access-passphrase") != PASSPHRASE:
        raise Refusal("50105", "Request header OK-ACCESS-PASSPHRASE incorrect.", 401)
    at = headers.get("ok-access-timestamp", "")
    query = f"?{request.query}" if request.query else ""
    signed = f"{at}{request.method}{request.path}{query}{request.body}"
    right = base64.b64encode(hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).digest())
    if not hmac.compare_digest(right.decode(), headers.get("ok-access-sign", "")):
        raise Refusal("50113", "Invalid Sign", 401)
    if headers.get("x-simulated-trading") != "1":
        raise Refusal("50101", "APIKey does not match current environment.", 401)
    if abs(datetime.now(UTC) - datetime.fromisoformat(at)) > MAX_AGE:
        raise Refusal("50102", "Timestamp request expired", 401)


def _check_instrument(request: Request, is_needed: bool) -> None:
    if request.fields.get("instId", "" if is_needed else INSTRUMENT) != INSTRUMENT:
        raise Refusal("51001", "Instrument ID, Instrument ID code, or Spread ID doesn't exist.")


def _is_after(request: Request, number: int) -> bool:
    after = request.fields.get("after")
    return after is None or number < int(after)


def _newest(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row.id, reverse=True)[:PAGE]


def row_of(order: SpotOrder) -> dict[str, Any]:
    open_state = "partially_filled" if order.trades else "live"
    last = order.trades[-1] if order.trades else None
    fees = sum((trade.fee for trade in order.trades), Decimal(0))
    average = order.cost / order.filled if order.trades else None
    is_market = order.limit is None
    return {
        "instType": "SPOT",
        "instId": INSTRUMENT,
        "ccy": "",
        "ordId": str(order.id),
        "clOrdId": order.name,
        "tag": "",
        "px": "" if order.limit is None else f"{order.limit:f}",
        "sz": f"{order.quantity:f}",
        "ordType": "market" if is_market else KIND_NAMES[order.time],
        "side": "buy" if order.is_buy else "sell",
        "posSide": "net",
        "tdMode": "cash",
        "tgtCcy": "base_ccy" if is_market else "",
        "accFillSz": f"{order.filled:f}",
        "avgPx": "" if average is None else f"{average:f}",
        "fillPx": "" if last is None else f"{last.price:f}",
        "fillSz": "0" if last is None else f"{last.quantity:f}",
        "fillTime": "" if last is None else str(last.at_millis),
        "tradeId": "" if last is None else str(last.id),
        "state": STATES.get(order.state, open_state),
        "fee": f"{-fees:f}",
        "feeCcy": last.fee_coin if last else "",
        "rebate": "0",
        "rebateCcy": QUOTE if order.is_buy else BASE,
        "source": "",
        "cancelSource": "1" if order.state == "cancelled" else "",
        "category": "normal",
        "reduceOnly": "false",
        "cTime": str(order.at_millis),
        "uTime": str(order.updated_millis),
    }


def trade_row(trade: SpotTrade) -> dict[str, Any]:
    order = trade.order
    return {
        "instType": "SPOT",
        "instId": INSTRUMENT,
        "tradeId": str(trade.id),
        "ordId": str(order.id),
        "clOrdId": order.name,
        "billId": str(trade.id),
        "subType": "1" if order.is_buy else "2",
        "tag": "",
        "fillPx": f"{trade.price:f}",
        "fillSz": "?" if trade.is_garbled else f"{trade.quantity:f}",
        "side": "buy" if order.is_buy else "sell",
        "posSide": "net",
        "execType": "T",
        "feeCcy": trade.fee_coin,
        "fee": f"{-trade.fee:f}",  # what is taken is below 0, a rebate above
        "ts": str(trade.at_millis),
        "fillTime": str(trade.at_millis),
    }


def instruments(request: Request) -> list[Any]:
    if request.fields.get("instType") != "SPOT":
        return []
    return [
        {
            "instType": "SPOT",
            "instId": INSTRUMENT,
            "baseCcy": BASE,
            "quoteCcy": QUOTE,
            "settleCcy": "",
            "instFamily": "",
            "uly": "",
            "ctVal": "",
            "lever": "1",
            "tickSz": f"{TICK:f}",
            "lotSz": f"{STEP:f}",
            "minSz": f"{MIN_QUANTITY:f}",
            "maxLmtSz": f"{MAX_QUANTITY:f}",
            "maxMktSz": "1000000",
            "state": "live",
            "listTime": "1548133413000",
        }
    ]
