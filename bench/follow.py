"""Subscribers that only count: as many connections as asked for, each following a whole
organization.

Used by stream.py: `python bench/follow.py TRANSPORT HOST PORT SUBSCRIBERS EVENTS FILE`, where FILE
has the API keys, one a line, and the account to follow last. Prints a line when all are subscribed,
and one when all have had their events. It speaks HTTP/2 by hand, as grpcio's client would need more
of the machine than the server that is measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

WINDOW = 2**31 - 1
DATA = 0
HEADERS = 1
RESET = 3
SETTINGS = 4
PING = 6
GOAWAY = 7
SUBSCRIBE = b"\x12\x01\x04"  # the kind INTENT_ACTION, packed; no account: the whole organization


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def field(name: bytes, value: bytes) -> bytes:
    """Literal, not indexed."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


class Counter(asyncio.Protocol):
    def __init__(
        self, key: str, events: int, subscribed: Callable[[], None], done: Callable[[], None]
    ) -> None:
        self._key = key.encode()
        self._left = events
        self._subscribed = subscribed
        self._done = done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
        raise NotImplementedError

    def count(self, events: int) -> None:
        before = self._left
        self._left = self._left - events
        if before > 0 >= self._left:
            self._done()


class Grpc(Counter):
    def ask(self) -> None:
        self._message = b""
        self._seen = False
        head = (
            b"\x83\x86"
            + field(b":path", b"/trading.TradingService/SubscribeEvents")
            + field(b":authority", b"bench")
        )
        head += (
            field(b"content-type", b"application/grpc")
            + field(b"te", b"trailers")
            + field(b"x-api-key", self._key)
        )
        self.transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0, (4).to_bytes(2) + WINDOW.to_bytes(4))
            + frame(8, 0, 0, (WINDOW - 65_535).to_bytes(4))
            + frame(HEADERS, 4, 1, head)
            + frame(DATA, 1, 1, b"\x00" + len(SUBSCRIBE).to_bytes(4) + SUBSCRIBE)
        )

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        at = 0
        events = 0
        while len(buffer) - at >= 9:
            length = int.from_bytes(buffer[at : at + 3])
            end = at + 9 + length
            if len(buffer) < end:
                break
            kind = buffer[at + 3]
            flags = buffer[at + 4]
            if kind == DATA:
                events += self._messages(buffer[at + 9 : end])
            elif kind in (SETTINGS, PING) and not flags & 1:
                self.transport.write(
                    frame(kind, 1, 0, buffer[at + 9 : end] if kind == PING else b"")
                )
            elif kind in (RESET, GOAWAY) or (kind == HEADERS and flags & 1):
                raise SystemExit(f"the stream ended: {buffer[at:end]!r}")
            at = end
        self._buffer = buffer[at:]
        if events:
            if not self._seen:  # the status
                self._seen = True
                events = events - 1
                self._subscribed()
            self.count(events)

    def _messages(self, data: bytes) -> int:
        data = self._message + data
        at = 0
        found = 0
        while len(data) - at >= 5:
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
            if len(data) < end:
                break
            at = end
            found = found + 1
        self._message = data[at:]
        return found


class Sse(Counter):
    account = ""

    def ask(self) -> None:
        path = f"/v1/accounts/{self.account}/events".encode()
        self._seen = False
        self.transport.write(
            b"GET %s HTTP/1.1\r\nhost: bench\r\nx-api-key: %s\r\n\r\n" % (path, self._key)
        )

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        if not self._seen:
            if b"event: primed" not in buffer:
                self._buffer = buffer
                return
            assert buffer.startswith(b"HTTP/1.1 200 "), buffer
            buffer = buffer[buffer.index(b"event: primed") + 13 :]
            self._seen = True
            self._subscribed()
        # What is split over two reads is counted with the second.
        whole = buffer.rfind(b"\n\n") + 1
        self.count(buffer.count(b"event: intent_action\n", 0, whole))
        self._buffer = buffer[whole:]


async def main(
    transport: str, host: str, port: int, subscribers: int, events: int, path: str
) -> None:
    *keys, Sse.account = Path(path).read_text().split()
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    done = loop.create_future()
    left = {"ready": subscribers, "done": subscribers}

    def one_less(name: str, future: "asyncio.Future[None]") -> None:
        left[name] -= 1
        if not left[name]:
            future.set_result(None)

    kind = {"grpc": Grpc, "sse": Sse}[transport]
    for number in range(subscribers):
        key = keys[number % len(keys)]
        await loop.create_connection(
            lambda key=key: kind(
                key, events, lambda: one_less("ready", ready), lambda: one_less("done", done)
            ),  # type: ignore[misc]  # mypy knows no lambda with a default
            host,
            port,
        )
    await ready
    print(json.dumps({"ready": subscribers}), flush=True)
    await done
    print(json.dumps({"done_at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    _, transport, host, port, subscribers, events, path = sys.argv
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(transport, host, int(port), int(subscribers), int(events), path))
