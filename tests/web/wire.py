"""A connection's protocol without a network."""

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.fakes import ManualClock
from trading_intents.config import Rate
from trading_intents.loops import LoopSlots
from trading_intents.telemetry import Metrics, make_log
from trading_intents.web.limits import Bucket, ClientAddress, Limits
from trading_intents.web.request import Answer, Incoming, Request
from trading_intents.web.routes import Respond
from trading_intents.web.routing import App, Serving
from trading_intents.web.server.connection import HttpConnection
from trading_intents.web.server.table import PARSE_SECONDS, ConnectionLimits, ConnectionTable

Taken = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes | None]
MAX_ROUNDS = 100_000  # of the loop, for everything to be answered
SMALLEST = b"GET / HTTP/1.1\r\nhost:\r\n\r\n"


slot_seconds = PARSE_SECONDS


class RecordingApp(App):
    """Takes every request and answers it in a later round of the loop."""

    def __init__(self) -> None:
        clock = ManualClock()
        metrics = Metrics()
        limits = Limits({bucket: Rate(5, 10) for bucket in Bucket}, {}, clock, metrics.rate_limited)
        super().__init__(
            (), limits, ClientAddress(("10.0.0.0/8",)), clock, metrics, make_log("error")
        )
        self.taken: list[Taken] = []
        self.refused = 0

    def begin(self, incoming: Incoming, respond: Respond) -> Serving:
        serving = Serving(Request(incoming, {}, ""), respond, 0.0)
        serving.request.answer = lambda given: None
        asyncio.get_running_loop().call_soon(self._record, serving)
        return serving

    def _record(self, serving: Serving) -> None:
        if not serving.is_over:
            serving.end()
            serving.respond(self._note(serving.request.incoming))

    def _note(self, incoming: Incoming) -> Answer:
        if incoming.refusal:
            self.refused += 1
            return Answer(status=incoming.refusal.status)
        target = incoming.raw_path + (
            b"?" + incoming.query_string if incoming.query_string else b""
        )
        self.taken.append((incoming.method.encode(), target, incoming.headers, incoming.body))
        return Answer()

    @property
    def is_idle(self) -> bool:
        return not self._in_flight


class MemoryTransport(asyncio.Transport):
    """Keeps what the connection writes, and whether it wants to read."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.reads = True
        self._is_closing = False
        self.written = b""
        self._address = address

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._address, 1)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True


class Wire:
    """A connection of ours without a socket."""

    def __init__(self, beside: "Wire | None" = None, address: str = "127.0.0.1") -> None:
        self.app: RecordingApp = beside.app if beside else RecordingApp()
        self.transport = MemoryTransport(address)
        self.table: ConnectionTable = (
            beside.table if beside else ConnectionTable(self.app, ConnectionLimits(10, 10))
        )
        if not beside:
            self.table.slots = LoopSlots(slot_seconds)
        self.connection = HttpConnection(self.table)
        self.connection.connection_made(self.transport)

    def receive(self, data: bytes) -> None:
        assert self.transport.reads
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def send(self, pieces: Iterable[bytes]) -> None:
        """All of them, then the end of data, until everything is answered."""
        for piece in pieces:
            await self._rounds_until(lambda: self.transport.reads or self.transport.is_closing())
            if self.transport.is_closing():
                break
            if piece:
                self.receive(piece)
        await self._rounds_until(lambda: self.transport.reads or self.transport.is_closing())
        self.connection.eof_received()
        await self._rounds_until(self.transport.is_closing)
        self.connection.connection_lost(None)
        await self._rounds_until(lambda: self.app.is_idle)

    async def _rounds_until(self, condition: Any) -> None:
        for _ in range(MAX_ROUNDS):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("the connection stands still")
