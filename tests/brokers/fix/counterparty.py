"""The other side of a session, played line by line by a test over raw bytes. Written from the
standard: it knows nothing of the platform's own session."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Concatenate, ParamSpec

WAIT_SECONDS = 60.0  # a busy machine takes long
SOH = b"\x01"
Fields = dict[int, str]
P = ParamSpec("P")


def sending_time(seconds: float = 0) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y%m%d-%H:%M:%S}.000"


def framed(fields: list[tuple[int, str]]) -> bytes:
    body = b"".join(f"{tag}={value}".encode() + SOH for tag, value in fields)
    head = b"8=FIX.4.4\x019=%d\x01" % len(body)
    return head + body + b"10=%03d\x01" % (sum(head + body) % 256)


def _sending(
    make: "Callable[Concatenate[Counterparty, P], bytes]",
) -> "Callable[Concatenate[Counterparty, P], bytes]":
    def send(self: "Counterparty", /, *message: P.args, **changes: P.kwargs) -> bytes:
        """Makes a message, and writes it to the connection."""
        raw = make(self, *message, **changes)
        if not self.writer.is_closing():  # else it is lost, as on any network; uvloop would raise
            self.writer.write(raw)
        return raw

    return send


@dataclass(kw_only=True)
class Counterparty:
    """An acceptor of one session. `client` is its counterparty's CompID."""

    client: str
    port: int = 0
    next_out: int = 1
    connections: int = 0
    read_bytes: bytes = b""
    _streams: "asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]" = field(
        default_factory=asyncio.Queue
    )

    async def accept(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            self.reader, self.writer = await self._streams.get()
        self.connections += 1

    async def read(self) -> Fields:
        """The next message."""
        async with asyncio.timeout(WAIT_SECONDS):
            data = await self.reader.readuntil(b"\x0110=")
            data += await self.reader.readuntil(SOH)
        self.read_bytes += data
        pairs = [each.partition("=")[::2] for each in data.decode().split("\x01") if each]
        return {int(tag): value for tag, value in reversed(pairs)}

    async def expect(self, msg_type: str, **values: str) -> Fields:
        """The next message but heartbeats and test requests, which are answered; `t34="5"` says a
        tag's value."""
        while True:
            found = await self.read()
            if found[35] == "1" and msg_type != "1":
                self.send("0", [(112, found[112])])
            elif found[35] != "0" or msg_type == "0":
                break
        wanted = {int(name[1:]): value for name, value in values.items()}
        assert found[35] == msg_type, found
        assert {tag: found.get(tag) for tag in wanted} == wanted, found
        return found

    def make(
        self,
        msg_type: str,
        fields: list[tuple[int, str]] | None = None,
        number: int | None = None,
        sender: str = "VENUE",
        is_again: bool = False,
        seconds: float = 0,
    ) -> bytes:
        """A message, under the next number unless it is given."""
        if number is None:
            number = self.next_out
            self.next_out = self.next_out + 1
        again = [(43, "Y"), (122, sending_time(-1))] if is_again else []
        names = [(49, sender), (56, self.client), (52, sending_time(seconds))]
        return framed([(35, msg_type), (34, str(number)), *names, *again, *(fields or [])])

    send = _sending(make)

    async def log_on(self, *, resets: bool = False) -> Fields:
        """Accepts the connection and the logon, and answers the test request after it."""
        await self.accept()
        logon = await self.read()
        assert logon[35] == "A", logon
        if logon.get(141) == "Y" or resets:
            self.next_out = 1
        self.send(
            "A",
            [
                (98, "0"),
                (108, logon[108]),
                *([(141, "Y")] if logon.get(141) == "Y" or resets else []),
            ],
        )
        test = await self.read()
        assert test[35] == "1", test
        self.send("0", [(112, test[112])])
        return logon

    def report(
        self, order: Fields, exec_type: str = "0", status: str = "0", more: Fields | None = None
    ) -> bytes:
        """An execution report of an order that was read."""
        base = {
            37: f"V-{order[11]}",
            11: order[11],
            17: f"E{self.next_out}",
            150: exec_type,
            39: status,
        }
        amounts = {55: order[55], 54: order[54], 38: order[38], 151: order[38], 14: "0", 6: "0"}
        return self.send("8", list({**base, **amounts, **(more or {})}.items()))

    async def expect_end(self) -> None:
        """The other side closes the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.reader.read(65_536):
                pass


@asynccontextmanager
async def counterparty(
    client: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Counterparty]:
    made = Counterparty(client=client)
    writers = list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        made._streams.put_nowait((reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)
