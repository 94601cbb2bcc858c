"""The venue of examples/my_broker.py, on a loopback port, and the cards' stage at it. It knows nothing
of the adapter."""

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID, uuid4

from trading_intents.brokers.port import (
    BrokerAccount,
    BrokerAdapter,
    Capabilities,
    IntegrationContext,
)
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.testing.broker_suite import BookedFill, BookedOrder, StageFault
from trading_intents.trading import (
    Environment,
    OrderKind,
    OrderSide,
    Symbol,
    TimeInForce,
    amount_text,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_broker.py"
CASH = Decimal(1_000_000)
FEE = Decimal("0.01")
PAGE = 100
TOKEN = "t"
LOOKUP_FAULTS = frozenset({StageFault.REFUSE_LOOKUP, StageFault.LOSE_LOOKUP})
NO_ANSWER = (StageFault.DROP_ANSWER, StageFault.BREAK_LINK)
SIDES = {"buy": OrderSide.BUY, "sell": OrderSide.SELL, "short": OrderSide.SELL_SHORT}
TIMES = {"day": TimeInForce.DAY, "gtc": TimeInForce.GOOD_TILL_CANCEL}

Row = dict[str, Any]


def module_of(source: str) -> ModuleType:
    module = ModuleType("my_broker")
    exec(compile(source, str(EXAMPLE), "exec"), module.__dict__)
    return module


class Dropped(Exception):
    """No answer is given."""


@dataclass
class Order:
    id: str
    names: list[str]  # every client order id that it had
    body: Row
    filled: Decimal = Decimal(0)
    state: str = "open"
    why: str | None = None
    fills: list[Row] = field(default_factory=list)

    @property
    def quantity(self) -> Decimal:
        return Decimal(self.body["qty"])

    @property
    def limit(self) -> Decimal | None:
        return Decimal(self.body["limit"]) if "limit" in self.body else None

    @property
    def row(self) -> Row:
        terms = {name: self.body[name] for name in ("symbol", "side", "qty", "tif")}
        own = {"id": self.id, "cid": self.names[-1], "filled": amount_text(self.filled)}
        return terms | own | {"state": self.state, "why": self.why}


class MyVenue:
    """One account's venue. Orders are matched as they come, then with each quote."""

    def __init__(self) -> None:
        self.faults: list[StageFault] = []
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self.orders: list[Order] = []
        self.events: list[Row] = []
        self.fills: list[Row] = []
        self.positions: dict[str, Decimal] = {}
        self.market: dict[str, list[Decimal]] = {}
        self.is_broken = False
        self.is_garbling = False
        self._numbers = itertools.count(1)

    def quote(self, symbol: str, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        with self._lock:
            self.market[symbol] = [bid, ask, size, size]
            for order in self.orders:
                self._match(order)

    def find(self, name: str) -> Order | None:
        return next((each for each in self.orders if name in (each.id, *each.names)), None)

    def answer(self, method: str, path: str, query: Row, body: Row) -> tuple[int, Any]:
        is_command = method != "GET"
        if self.is_broken and path == "/events":
            raise Dropped
        fault = self._take_fault(is_command, "cid" in query)
        if fault in (StageFault.LOSE_COMMAND, StageFault.LOSE_LOOKUP):
            raise Dropped
        if fault is StageFault.REFUSE_LOOKUP:
            return 403, {"error": "not now"}
        self.is_garbling |= fault is StageFault.GARBLE
        with self._lock:
            answer = self._route(method, path.strip("/").split("/"), query, body)
        self.is_broken |= fault is StageFault.BREAK_LINK
        if fault in NO_ANSWER:
            raise Dropped
        return answer

    def _take_fault(self, is_command: bool, is_lookup: bool) -> StageFault | None:
        fault = self.faults[0] if self.faults else None
        is_met = is_lookup if fault in LOOKUP_FAULTS else is_command
        return self.faults.pop(0) if fault and is_met else None

    def _route(self, method: str, path: list[str], query: Row, body: Row) -> tuple[int, Any]:
        match method, path:
            case "GET", ["orders"] if "cid" in query:
                order = self.find(query["cid"])
                return (200, order.row) if order else (404, {"error": "no such order"})
            case "GET", ["orders"]:
                return 200, [each.row for each in self.orders if each.state == "open"]
            case "GET", ["orders", name] if order := self.find(name):
                return 200, order.row
            case "GET", ["fills"]:
                return 200, self.fills
            case "GET", ["events"]:
                after = int(query["after"])
                return 200, self.events[after : after + PAGE]
            case "GET", ["positions"]:
                rows = [{"symbol": s, "qty": amount_text(q)} for s, q in self.positions.items()]
                return 200, [row for row in rows if row["qty"] != "0"]
            case "POST", ["orders"]:
                return self._submit(body)
            case _, ["orders", name]:
                return self._change(method, name, body)
            case _:
                return 404, {"error": "no such path"}

    def _submit(self, body: Row) -> tuple[int, Any]:
        if self.find(body["cid"]):
            return 409, {"error": "this cid was used"}
        order = Order(f"T{next(self._numbers)}", [body["cid"]], body)
        self.orders.append(order)
        if why := self._refusal(order):
            order.state = "refused"
            order.why = why
            self._report("refused", order)
            return 422, {"error": why}
        self._report("open", order)
        self._match(order)
        return 200, order.row

    def _refusal(self, order: Order) -> str | None:
        symbol = order.body["symbol"]
        _, ask, _, _ = self.market.get(symbol, [Decimal(0)] * 4)
        held = self.positions.get(symbol, Decimal(0))
        if order.body["side"] == "sell" and order.quantity > held:
            return "nothing to sell"
        is_dear = order.quantity * (order.limit or ask) > CASH
        return "no money" if order.body["side"] == "buy" and is_dear else None

    def _change(self, method: str, name: str, body: Row) -> tuple[int, Any]:
        order = self.find(name)
        if order is None:
            return 404, {"error": "unknown_order"}
        if order.state != "open":
            return 422, {"error": "too_late"}
        if method == "DELETE":
            order.state = "cancelled"
            self._report("cancelled", order)
            return 200, order.row
        if self.find(body["cid"]):
            return 409, {"error": "this cid was used"}
        if Decimal(body["qty"]) <= order.filled:
            return 422, {"error": "below what is filled"}
        old = order.names[-1]
        order.names.append(body["cid"])
        order.body = body
        self._report("replaced", order, old=old)
        self._match(order)
        return 200, order.row

    def _match(self, order: Order) -> None:
        symbol = order.body["symbol"]
        if order.state != "open" or symbol not in self.market:
            return
        market = self.market[symbol]
        is_buy = order.body["side"] == "buy"
        price = market[is_buy]
        limit = price if order.limit is None else order.limit
        quantity = min(order.quantity - order.filled, market[2 + is_buy])
        if quantity <= 0 or (limit < price if is_buy else limit > price):
            return
        market[2 + is_buy] -= quantity
        order.filled += quantity
        held = self.positions.get(symbol, Decimal(0))
        self.positions[symbol] = held + quantity if is_buy else held - quantity
        if order.filled == order.quantity:
            order.state = "filled"
        fill = {
            "id": f"F{next(self._numbers)}",
            "order": order.id,
            "cid": order.names[-1],
            "symbol": symbol,
            "side": order.body["side"],
            "qty": "?" if self.is_garbling else amount_text(quantity),
            "price": amount_text(price),
            "fee": amount_text(FEE),
            "total": amount_text(order.filled),
            "at": datetime.now(UTC).isoformat(),
        }
        order.fills.append({"qty": quantity, "price": price})
        self.is_garbling = False
        self.fills.append(fill)
        self._report("fill", order, fill=fill)

    def _report(self, kind: str, order: Order, **more: Any) -> None:
        seq = len(self.events) + 1
        self.events.append({"seq": seq, "kind": kind, "order": order.row, **more})


def _handler_of(venue: MyVenue) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status = 401
            found: Any = {"error": "unauthorized"}
            if self.headers.get("x-token") == TOKEN:
                try:
                    query = dict(parse_qsl(parts.query))
                    status, found = venue.answer(self.command, parts.path, query, body)
                except Dropped:
                    self.close_connection = True
                    return
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the server calls these

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True


@contextlib.contextmanager
def my_venue() -> Iterator[tuple[MyVenue, str]]:
    """The venue and its URL."""
    venue = MyVenue()
    with Server(("127.0.0.1", 0), _handler_of(venue)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield venue, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@dataclass(kw_only=True)
class MyStage:
    module: Any  # the example, or one that is like it
    venue: MyVenue
    url: str
    forgets: bool = False  # the venue's book is lost whenever a session is made
    symbol: Symbol = Symbol("ACME")
    faults: frozenset[StageFault] = frozenset(StageFault) - {
        StageFault.BUST_FILL,
        StageFault.REFUSE_UPDATES,
    }
    account: UUID = field(default_factory=uuid4)

    def __post_init__(self) -> None:
        self.capabilities: Capabilities = self.module.CAPABILITIES

    async def connect(self) -> BrokerAdapter:
        if self.forgets:
            self.venue.forget()
        account = BrokerAccount(self.account, OrganizationId(uuid4()), Environment.PAPER, None)
        nothing: Any = None
        context = IntegrationContext(
            account=account,
            secrets={"token": Secret(TOKEN)},
            clock=SystemClock(),
            settings={"MY_BROKER_URL": self.url},
            database=nothing,
            signals=nothing,
            open_transactions=nothing,
            shared={},
        )
        session: BrokerAdapter = self.module.INTEGRATION.connect(context)
        return session

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.venue.quote(self.symbol, bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        self.venue.faults.append(fault)

    async def book(self) -> list[BookedOrder]:
        return [_booked(each) for each in self.venue.orders if each.state != "refused"]


def _booked(order: Order) -> BookedOrder:
    return BookedOrder(
        client_order_ids=tuple(order.names),
        side=SIDES[order.body["side"]],
        kind=OrderKind.MARKET if order.limit is None else OrderKind.LIMIT,
        quantity=order.quantity,
        limit_price=order.limit,
        time_in_force=TIMES[order.body["tif"]],
        fills=tuple(BookedFill(each["qty"], each["price"], FEE) for each in order.fills),
    )
