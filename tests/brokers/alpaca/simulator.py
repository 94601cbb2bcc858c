"""Alpaca's REST, activity and update streams over a test's books, on loopback and on a socket for
the fault proxy."""

import asyncio
import contextlib
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import websockets
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from tests.brokers.alpaca import groups
from tests.brokers.alpaca.book import Account
from tests.brokers.alpaca.order import Refused, plain, stamp

PAGE = 50
MAX_PAGE = 500
MAX_FILLS = 100
LIMIT_PER_MINUTE = 200
EQUITIES = ("equity", "portfolio_value", "last_equity")
UNAUTHORIZED = {"message": "unauthorized."}


@dataclass(frozen=True)
class Exchange:
    """One request with its answer, as the OpenAPI document is asked about it."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    status: int
    answer: Any


@dataclass
class Fault:
    """Happens to the next request of one of these methods. `takes`: the request is carried out all
    the same."""

    kind: str  # close, half, refuse, status, page, too_many, break
    takes: bool
    methods: tuple[str, ...] = ("POST", "PATCH", "DELETE")
    status: int = 500
    reset_seconds: float | None = None
    retry_after: str = ""


@dataclass
class Simulator:
    accounts: dict[str, Account] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    exchanges: list[Exchange] = field(default_factory=list)
    is_mute: bool = False  # streams stay open and send no updates
    has_stream_errors: bool = False  # every message to a stream is answered by an error
    refuses_streams: bool = False  # every one gets 429, as a second one does
    leaves_streams_waiting: bool = False  # for an answer
    stream_moved_to: str | None = None  # a URL
    # Sent before `listening` is.
    early_frames: list[dict[str, Any] | str] = field(default_factory=list)
    # Of the activities' event stream; else it is not served, as users report.
    activities_status: int = 200
    has_fills: bool = True  # the older list of activities is served
    has_fees: bool = True  # it knows those of coins
    unauthorized_status: int = 401  # of a credential that is refused; users report 403 too
    limit_per_minute: int = LIMIT_PER_MINUTE
    refused_streams: int = 0
    clock_skew_seconds: float = 0.0
    port: int = 0
    _used: dict[str, list[float]] = field(default_factory=dict)
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _servers: list[asyncio.Server] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, key: str = "KEY", secret: str = "SECRET") -> Account:
        self.accounts[key] = Account(key, secret)
        return self.accounts[key]

    def use_up(self, account: Account, left: int, seconds: float = 60) -> None:
        """The account may make so many more requests in this time."""
        used = self._used.setdefault(account.key, [])
        used[:] = [time.time() - 60 + seconds] * (self.limit_per_minute - left)

    async def start(self, socket: Path | None = None) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._servers = [server]
        if socket:
            self._servers.append(await asyncio.start_unix_server(self._serve, socket))

    async def stop(self) -> None:
        """Cuts all connections. The books stay."""
        for server in self._servers:
            server.close()
        self.break_connections()
        await asyncio.sleep(0)

    def break_connections(self) -> None:
        for connection in list(self._connections):
            connection.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, target, headers = _parse_head(head)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if headers.get("upgrade", "").lower() == "websocket" and self.stream_moved_to:
                    _write(
                        writer,
                        f"HTTP/1.1 307 x\r\nLocation: {self.stream_moved_to}\r\n\r\n".encode(),
                    )
                    return await writer.drain()
                while (
                    headers.get("upgrade", "").lower() == "websocket"
                    and self.leaves_streams_waiting
                ):
                    await reader.readexactly(1)
                if headers.get("upgrade", "").lower() == "websocket":
                    return await self._stream(reader, writer, head, headers)
                if not await self._answer(writer, method, target, headers, body):
                    return None
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
    ) -> bool:
        """Whether the connection goes on."""
        fault = next((each for each in self.faults if method in each.methods), None)
        if fault:
            self.faults.remove(fault)
        status = 500
        answer = None
        extra = dict[str, str]()
        if fault is None or fault.takes:
            status, answer, extra = self._carry_out(method, target, headers, body)
        match fault and fault.kind:
            case "close":
                return False
            case "break":
                self.break_connections()
                return False
            case "refuse":
                status = 403
                answer = {"code": 40310000, "message": "insufficient buying power"}
            case "status":
                assert fault
                status = fault.status
                answer = {"message": "internal server error occurred"}
            case "page":  # of something between us and Alpaca
                assert fault
                status = fault.status
                answer = b"<html><title>Access denied</title></html>"
            case "too_many":
                assert fault
                status = 429
                answer = {"message": "too many requests."}
                reset = fault.reset_seconds
                extra = (
                    {}
                    if reset is None
                    else {"X-RateLimit-Reset": str(math.ceil(time.time() + reset))}
                )
        if fault and fault.retry_after:
            extra = {"Retry-After": fault.retry_after}
        content = (
            answer
            if isinstance(answer, bytes)
            else b""
            if answer is None
            else json.dumps(answer).encode()
        )
        kind = "text/event-stream" if isinstance(answer, bytes) else "application/json"
        date = formatdate(time.time() + self.clock_skew_seconds, usegmt=True)
        extra = {"Date": date, "Content-Type": kind, "Content-Length": str(len(content))} | extra
        lines = [
            f"HTTP/1.1 {status} x",
            *(f"{name}: {value}" for name, value in extra.items()),
            "",
            "",
        ]
        whole = "\r\n".join(lines).encode() + content
        _write(
            writer,
            whole[: len(whole) - len(content) // 2] if fault and fault.kind == "half" else whole,
        )
        await writer.drain()
        return not (fault and fault.kind == "half")

    def _carry_out(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        account = self.accounts.get(headers.get("apca-api-key-id", ""))
        if account is None or headers.get("apca-api-secret-key") != account.secret:
            return self.unauthorized_status, UNAUTHORIZED, {}
        window = self._used.setdefault(account.key, [])
        window[:] = [at for at in window if at > time.time() - 60]
        left = self.limit_per_minute - len(window)
        reset = math.ceil((window or [time.time()])[0] + 60)
        limits = {"X-RateLimit-Limit": str(self.limit_per_minute), "X-RateLimit-Reset": str(reset)}
        if left <= 0:
            return 429, {"message": "too many requests."}, limits
        window.append(time.time())
        parts = urlsplit(target)
        asked = json.loads(body) if body else None
        query = dict(parse_qsl(parts.query))
        try:
            status, answer = self._route(account, method, parts.path, query, asked)
        except Refused as refused:
            status = refused.status
            answer = refused.body
        self.exchanges.append(Exchange(method, parts.path, query, asked, status, answer))
        return status, answer, limits | {"X-RateLimit-Remaining": str(left - 1)}

    def _route(
        self, account: Account, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        match method, path.strip("/").split("/"):
            case "GET", ["v2", "account"]:
                return 200, _account_json(account)
            case "GET", ["v2", "clock"]:
                now = stamp()
                return 200, {"timestamp": now, "is_open": True, "next_open": now, "next_close": now}
            case "GET", ["v2", "positions"]:
                held = [symbol for symbol, (quantity, _) in account.positions.items() if quantity]
                return 200, [
                    *(_position_json(account, symbol) for symbol in held),
                    *account.more_positions,
                ]
            case "POST", ["v2", "orders"]:
                return 200, {
                    **groups.nested(account, account.submit(body)),
                    "status": "pending_new",
                }
            case "GET", ["v2", "orders"]:
                return 200, _list_orders(account, query)
            case "GET", ["v2", "orders:by_client_order_id"]:
                return 200, groups.order_json(
                    account, account.find_by_client_id(query["client_order_id"])
                )
            case "GET", ["v2", "orders", order_id]:
                show = groups.nested if _is_nested(query) else groups.order_json
                return 200, show(account, account.find(order_id))
            case "PATCH", ["v2", "orders", order_id]:
                return 200, groups.order_json(account, account.replace(order_id, body))
            case "DELETE", ["v2", "orders", order_id]:
                account.cancel(order_id)
                return 204, None
            case "GET", ["v2beta1", "events", "activities"] if self.activities_status == 200:
                found = _list_activities(account, query)
                return 200, b"".join(
                    b"data: " + json.dumps(each).encode() + b"\n\n" for each in found
                )
            case "GET", ["v2beta1", "events", "activities"]:
                return self.activities_status, {"message": "endpoint not found."}
            case "GET", ["v2", "account", "activities", "FILL"] if self.has_fills:
                return 200, _page(account.fills, "transaction_time", query)
            case "GET", ["v2", "account", "activities", "CFEE"] if self.has_fees:
                return 200, _page(account.fees, "created_at", query)
            case "GET", ["v2", "account", "activities", "CFEE"]:
                raise Refused(422, 40010001, "invalid activity type: CFEE")
        return 404, {"message": "endpoint not found."}

    async def _stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: bytes,
        headers: dict[str, str],
    ) -> None:
        protocol = ServerProtocol()
        protocol.receive_data(head)
        (request,) = protocol.events_received()
        named = self.accounts.get(headers.get("apca-api-key-id", ""))
        is_second = self.refuses_streams or (named is not None and bool(named.streams))
        assert isinstance(request, websockets.Request)
        response = (
            protocol.reject(429, "too many connections") if is_second else protocol.accept(request)
        )
        self.refused_streams += is_second
        protocol.send_response(response)
        account: Account | None = None

        def send(message: dict[str, Any] | str) -> None:
            is_sent = (
                not self.is_mute
                or isinstance(message, str)
                or message.get("stream") != "trade_updates"
            )
            if is_sent and protocol.state is State.OPEN:
                protocol.send_binary(
                    (message if isinstance(message, str) else json.dumps(message)).encode()
                )
                _write(writer, b"".join(protocol.data_to_send()))

        try:
            while not is_second:
                _write(writer, b"".join(protocol.data_to_send()))
                data = await reader.read(65536)
                protocol.receive_data(data) if data else protocol.receive_eof()
                for frame in protocol.events_received():
                    assert isinstance(frame, Frame)
                    if frame.opcode is Opcode.TEXT:  # binary ones are MessagePack
                        account = self._hear(json.loads(bytes(frame.data)), account, send)
                if not data or protocol.close_expected():
                    break
        finally:
            if account and send in account.streams:
                account.streams.remove(send)
            with contextlib.suppress(OSError):
                _write(writer, b"".join(protocol.data_to_send()))
                await writer.drain()

    def _hear(
        self,
        message: dict[str, Any],
        account: Account | None,
        send: Callable[[dict[str, Any] | str], None],
    ) -> Account | None:
        match message:
            case _ if self.has_stream_errors:
                send({"action": "error", "data": {"error_message": "internal server error"}})
            case {"action": "auth", "key": key, "secret": secret}:
                return self._authorize(key, secret, "auth", send)
            case {"action": "authenticate", "data": {"key_id": key, "secret_key": secret}}:
                return self._authorize(key, secret, "authenticate", send)
            case {"action": "listen", "data": {"streams": streams}} if account:
                if "trade_updates" in streams and send not in account.streams:
                    account.streams.append(send)
                for frame in self.early_frames:
                    send(frame)
                known = [each for each in streams if each == "trade_updates"]
                send({"stream": "listening", "data": {"streams": known}})
        return account

    def _authorize(
        self, key: str, secret: str, action: str, send: Callable[[dict[str, Any] | str], None]
    ) -> Account | None:
        account = self.accounts.get(key)
        is_known = account is not None and account.secret == secret
        status = "authorized" if is_known else "unauthorized"
        send({"stream": "authorization", "data": {"action": action, "status": status}})
        return account if is_known else None


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Drops data for a connection that was broken, as any network does; uvloop would raise."""
    if not writer.is_closing():
        writer.write(data)


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.split(":", 1) for line in lines)
    return method, target, {name.strip().lower(): value.strip() for name, value in pairs}


def _is_nested(query: dict[str, str]) -> bool:
    return query.get("nested", "").lower() == "true"


def _list_orders(account: Account, query: dict[str, str]) -> list[dict[str, Any]]:
    """Held orders are not among the open ones, and no leg is listed by itself where it is nested,
    as users report."""
    is_nested = _is_nested(query)
    found = [order for order in account.orders.values() if not (is_nested and groups.is_leg(order))]
    if query.get("status", "open") != "all":
        found = [
            order
            for order in found
            if order.is_listed_open == (query.get("status", "open") == "open")
        ]
    if "after" in query:
        found = [order for order in found if order.json["submitted_at"] > query["after"]]
    if "after_order_id" in query:
        ids = list(account.orders)
        found = [
            order
            for order in found
            if ids.index(order.json["id"]) > ids.index(query["after_order_id"])
        ]
    if query.get("direction", "desc") == "desc":
        found.reverse()
    show = groups.nested if is_nested else groups.order_json
    return [show(account, order) for order in found[: min(MAX_PAGE, int(query.get("limit", PAGE)))]]


def _list_activities(account: Account, query: dict[str, str]) -> list[dict[str, Any]]:
    """`since` and `until` compare the time that an activity bears, which may be long before it is
    published."""
    if "since_id" in query:
        return [
            a for a in account.activities if query["since_id"] <= a["event_id"] <= query["until_id"]
        ]
    return [a for a in account.activities if query["since"] <= a["at"] < query["until"]]


def _page(
    activities: list[dict[str, Any]], dated: str, query: dict[str, str]
) -> list[dict[str, Any]]:
    """Fills come without busts and corrections, and without the executions' ids."""
    found = [each for each in activities if each[dated] > query["after"]]
    if query.get("direction", "desc") == "desc":
        found.reverse()
    if "page_token" in query:
        found = found[[each["id"] for each in found].index(query["page_token"]) + 1 :]
    return found[: min(MAX_FILLS, int(query.get("page_size", MAX_FILLS)))]


def _account_json(account: Account) -> dict[str, Any]:
    prices = {symbol: (quote.bid + quote.ask) / 2 for symbol, quote in account.quotes.items()}
    held = (
        quantity * prices.get(symbol, average)
        for symbol, (quantity, average) in account.positions.items()
    )
    equity = plain(account.cash + sum(held))
    money = dict.fromkeys(("cash", "buying_power"), plain(account.cash)) | dict.fromkeys(
        EQUITIES, equity
    )
    blocks = dict.fromkeys(
        ("account_blocked", "trading_blocked", "transfers_blocked", "trade_suspended_by_user"),
        False,
    )
    return {
        "id": account.id,
        "account_number": account.number,
        "status": "ACTIVE",
        "currency": "USD",
        "created_at": stamp(),
        "multiplier": "1",
        "shorting_enabled": True,
        **money,
        **blocks,
        **account.blocks,
    }


def _position_json(account: Account, symbol: str) -> dict[str, Any]:
    quantity, average = account.positions[symbol]
    zeros = (
        "unrealized_pl",
        "unrealized_plpc",
        "unrealized_intraday_pl",
        "unrealized_intraday_plpc",
        "change_today",
    )
    prices = dict.fromkeys(("avg_entry_price", "current_price", "lastday_price"), plain(average))
    values = dict.fromkeys(("market_value", "cost_basis"), plain(quantity * average))
    return {
        "asset_id": account.id,
        "symbol": symbol.replace("/", ""),
        "exchange": "CRYPTO" if "/" in symbol else "NASDAQ",
        "asset_class": "crypto" if "/" in symbol else "us_equity",
        "asset_marginable": True,
        "qty": plain(quantity),
        "qty_available": plain(quantity),
        "side": "long" if quantity > 0 else "short",
        **prices,
        **values,
        **dict.fromkeys(zeros, "0"),
    }


@contextlib.asynccontextmanager
async def simulating(socket: Path | None = None) -> AsyncIterator[Simulator]:
    """In this event loop."""
    simulator = Simulator()
    await simulator.start(socket)
    try:
        yield simulator
    finally:
        await simulator.stop()
