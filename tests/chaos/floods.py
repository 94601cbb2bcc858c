"""Floods of clients, as a program of its own: without a credential, with wrong ones, and of a
tenant within its limits.

Reads its task from standard input, floods until that ends, and prints what the server answered to
each flood.

It runs at the lowest priority, and each flood has a rate and a number of connections. A program
without them would use up the processors of a small machine, and the time that the measuring client
and PostgreSQL wait for one would be taken for the server's.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tests.server_process import end_of_input
from trading_intents.identity.keys import make_key
from trading_intents.trading import Environment

JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"
VALIDATE = b"/api/v1/auth/api-key/validate"
NAMED_BRACKETS = b'{" - at `$' + b"[" * 8000 + b'":1}'
NESTED_BRACKETS = b"[" * 4000 + b"]" * 4000
ESCAPES = b"%41" * 10_000
CHUNKED = b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % VALIDATE
SMALL_CHUNKS = b"2\r\nab\r\n" * 32_000  # 64 KB of a body, whose last chunk never comes
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
ORDER = {
    "symbol": "AAPL",
    "order_side": "BUY",
    "spec": {"Limit": {"quantity": "1", "limit_price": "0.01"}},
}
SUBMIT = msgspec.json.encode({"command": {"type": "CREATE", "payload": ORDER}})
BAD_KEYS = 2000
RECONNECT_SECONDS = 0.2
START_SECONDS = 1.0  # for connections to be opened

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def get(path: bytes, api_key: str = "") -> bytes:
    return b"GET %s HTTP/1.1\r\nhost: x\r\n%s\r\n" % (path, _key_header(api_key))


def post(path: bytes, body: bytes, media: bytes = JSON, api_key: str = "") -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\n%scontent-type: %s\r\n" % (
        path,
        _key_header(api_key),
        media,
    )
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def _key_header(api_key: str) -> bytes:
    return f"x-api-key: {api_key}\r\n".encode() if api_key else b""


async def read_answer(reader: asyncio.StreamReader) -> str:
    """The answer's status; reads its body too."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(
        int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
    )
    return head[9:12].decode()


@dataclass
class Floods:
    port: int
    grpc_port: int
    account_id: str
    api_keys: Sequence[str]  # of the tenant that floods
    answers: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    async def brackets(self) -> None:
        requests = [post(VALIDATE, body) for body in (NAMED_BRACKETS, NESTED_BRACKETS)]
        await self._ask("brackets", requests, connections=40, per_second=400)

    async def escapes(self) -> None:
        requests = [
            get(b"/v1/reference-prices/" + ESCAPES),
            get(b"/console/config.json?" + ESCAPES),
        ]
        await self._ask("escapes", requests, connections=100, per_second=500)

    async def forms(self) -> None:
        request = post(b"/oauth/token", b"%41" * 21_600 + b"=1", FORM)
        await self._ask("forms", [request], connections=40, per_second=300)

    async def unknown_paths(self) -> None:
        await self._ask("unknown_paths", [get(b"/nowhere")], connections=200, per_second=2000)

    async def chunks(self) -> None:
        async def send() -> None:
            async with self._connected("127.0.0.3") as (reader, writer):
                writer.write(CHUNKED + SMALL_CHUNKS)
                self.answers["chunks"][await read_answer(reader)] += 1

        await self._hold("chunks", send, 400)

    async def idle_grpc(self) -> None:
        async def hold() -> None:
            async with self._connected("127.0.0.4", self.grpc_port) as (reader, writer):
                writer.write(HTTP2_PREFACE)
                await reader.read()

        await self._hold("idle_grpc", hold, 600)

    async def idle_http(self) -> None:
        async def hold(address: str) -> None:
            async with self._connected(address) as (reader, _):
                await reader.read()

        addresses = ("127.0.0.5", "127.0.0.6")
        await asyncio.gather(
            *(self._hold("idle_http", partial(hold, each), 400) for each in addresses)
        )

    async def failed_credentials(self) -> None:
        keys = [make_key(Environment.PAPER).reveal() for _ in range(BAD_KEYS)]
        await self._ask(
            "failed_credentials",
            [get(b"/v1/brokers", key) for key in keys],
            connections=50,
            per_second=600,
        )

    async def streams(self) -> None:
        """As many as the tenant may have, and some more; each gets the events of its submits."""

        async def follow(api_key: str) -> None:
            async with self._connected("127.0.0.7") as (reader, writer):
                writer.write(get(f"/v1/accounts/{self.account_id}/events".encode(), api_key))
                head = await reader.readuntil(b"\r\n\r\n")
                self.answers["streams"][head[9:12].decode()] += 1
                while await reader.read(65_536):
                    pass

        following = (self._hold("streams", partial(follow, each), 30) for each in self.api_keys[:5])
        await asyncio.gather(*following, self._submit("streams", connections=5, per_second=30))

    async def reads(self) -> None:
        path = f"/v1/accounts/{self.account_id}/orders?limit=100".encode()
        requests = [get(path, key) for key in self.api_keys]
        await self._ask("reads", requests, connections=200, per_second=1000)

    async def submits(self) -> None:
        await self._submit("submits", connections=200, per_second=1000)

    async def _submit(self, name: str, connections: int, per_second: float) -> None:
        path = f"/v1/accounts/{self.account_id}/intents".encode()
        requests = [post(path, SUBMIT, api_key=key) for key in self.api_keys]
        await self._ask(name, requests, connections, per_second)

    async def _ask(
        self, name: str, requests: Sequence[bytes], connections: int, per_second: float
    ) -> None:
        """Each connection sends its next request when it has its answer, and no sooner than the
        rate allows."""
        pause_seconds = connections / per_second

        async def ask(number: int) -> None:
            await asyncio.sleep(pause_seconds * number / connections)
            async with self._connected("127.0.0.2") as (reader, writer):
                while True:
                    started = time.monotonic()
                    number += connections
                    writer.write(requests[number % len(requests)])
                    self.answers[name][await read_answer(reader)] += 1
                    await asyncio.sleep(max(0.0, started + pause_seconds - time.monotonic()))

        await asyncio.gather(
            *(self._again(name, partial(ask, each)) for each in range(connections))
        )

    async def _hold(self, name: str, hold: Callable[[], Awaitable[None]], connections: int) -> None:
        await asyncio.gather(*(self._again(name, hold) for _ in range(connections)))

    async def _again(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await work()
            self.answers[name]["closed"] += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    @contextlib.asynccontextmanager
    async def _connected(self, address: str, port: int = 0) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port or self.port, local_addr=(address, 0)
        )
        try:
            yield reader, writer
        finally:
            writer.close()


FLOODS: tuple[Callable[[Floods], Awaitable[None]], ...] = (
    Floods.brackets,
    Floods.escapes,
    Floods.forms,
    Floods.unknown_paths,
    Floods.chunks,
    Floods.idle_grpc,
    Floods.idle_http,
    Floods.failed_credentials,
    Floods.streams,
    Floods.reads,
    Floods.submits,
)
NAMES = tuple(flood.__name__ for flood in FLOODS)


async def flood(floods: Floods, names: Sequence[str]) -> None:
    """Says when they are under way, and floods until its standard input ends."""
    tasks = [asyncio.ensure_future(each(floods)) for each in FLOODS if each.__name__ in names]
    await asyncio.sleep(START_SECONDS)
    print("under way", flush=True)
    await asyncio.wait(
        [*tasks, asyncio.ensure_future(end_of_input())], return_when=asyncio.FIRST_COMPLETED
    )
    for task in tasks:
        if task.done():
            task.result()  # none ends by itself
        task.cancel()
    print(json.dumps(floods.answers))
    await asyncio.wait(tasks)


def main() -> None:
    task = json.loads(sys.stdin.readline())
    names = task.pop("names")
    asyncio.run(flood(Floods(**task), names))


if __name__ == "__main__":
    main()
