"""Hostile HTTP clients at a fixed rate, as a program of its own: its work must not slow the honest
clients' clocks.

Reads its task from standard input; prints how often each kind of attack was made, and what the
server answered.
"""

import asyncio
import contextlib
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

ADDRESS = "127.0.0.2"  # the honest ones come from another
HOLD_SECONDS = 5.0
IDLE_CONNECTIONS = 200
TRAILER_BYTES = 1 << 20
DEEP = b'{"command":{"payload":' + b"[" * 5000 + b"]" * 5000 + b',"type":"CREATE"}}'
METRICS = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /api/v1/auth/api-key/validate HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"


@dataclass(kw_only=True)
class Attackers:
    port: int
    path: str  # of an account's intents
    api_key: str
    chance: random.Random
    made: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    async def pipeline_without_reading(self) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            client.bind((ADDRESS, 0))
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", self.port))
            async with asyncio.timeout(HOLD_SECONDS):
                while True:
                    await loop.sock_sendall(client, METRICS * 1000)

    async def send_trailers(self) -> None:
        trailers = self.chance.choice([b"a:b\r\n" * 10_000, b"x" * 50_000])
        await self._exchange(CHUNKED + trailers * (TRAILER_BYTES // len(trailers)))

    async def send_slowly(self) -> None:
        _, writer = await self._connect()
        for byte in METRICS[: self.chance.randrange(5)]:
            await asyncio.sleep(HOLD_SECONDS / 5)
            writer.write(bytes([byte]))
        writer.close()

    async def close_half(self) -> None:
        await self._exchange(METRICS * 3, close_half=True)

    async def send_deep_body(self) -> None:
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: x\r\nx-api-key: {self.api_key}\r\ncontent-type: "
            "application/json\r\n"
        )
        await self._exchange(
            f"{head}content-length: {len(DEEP)}\r\n\r\n".encode() + DEEP, close_half=True
        )

    async def send_random_bytes(self) -> None:
        start = self.chance.choice(
            [b"", b"GET ", CHUNKED, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n"]
        )
        await self._exchange(
            start + self.chance.randbytes(self.chance.randrange(1, 9000)), close_half=True
        )

    async def stay_idle(self) -> None:
        reader, _ = await self._connect()
        await reader.read()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ADDRESS, 0))

    async def _exchange(self, data: bytes, close_half: bool = False) -> None:
        reader, writer = await self._connect()
        try:
            writer.write(data)
            if close_half:
                writer.write_eof()
            async with asyncio.timeout(HOLD_SECONDS):
                if line := await reader.readline():
                    self.answers[line.split()[1].decode()] += 1
                await reader.read()
        finally:
            writer.close()

    async def repeat(self, attack: Callable[[], Awaitable[None]], per_second: float) -> None:
        """At the rate, whatever becomes of each."""
        running: set[asyncio.Task[None]] = set()
        while True:
            task = asyncio.create_task(self._try(attack))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(1 / per_second)

    async def keep_idle(self) -> None:
        while True:
            await self._try(self.stay_idle)

    async def _try(self, attack: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await attack()
        self.made[attack.__name__] += 1


async def attack(attackers: Attackers, seconds: float) -> None:
    rates: list[tuple[Callable[[], Awaitable[None]], float]] = [
        (attackers.pipeline_without_reading, 2),
        (attackers.send_trailers, 2),
        (attackers.send_slowly, 5),
        (attackers.close_half, 10),
        (attackers.send_deep_body, 10),
        (attackers.send_random_bytes, 10),
    ]
    tasks = [asyncio.create_task(attackers.repeat(*each)) for each in rates]
    tasks += [asyncio.create_task(attackers.keep_idle()) for _ in range(IDLE_CONNECTIONS)]
    await asyncio.wait(tasks, timeout=seconds)
    print(json.dumps({"made": attackers.made, "answers": attackers.answers}))


def main() -> None:
    task = json.load(sys.stdin)
    attackers = Attackers(
        port=task["port"],
        path=task["path"],
        api_key=task["api_key"],
        chance=random.Random(task["seed"]),
    )
    asyncio.run(attack(attackers, task["seconds"]))


if __name__ == "__main__":
    main()
