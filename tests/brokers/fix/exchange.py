"""A FIX venue with a session for each of its clients, in a thread of its own: platforms in other
processes trade there, and it can be killed."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tests.brokers.fix.venue import FixVenue

T = TypeVar("T")
STEP_SECONDS = 30  # for its thread to do something
SENDER = re.compile(rb"\x0149=([^\x01]*)\x01")


@dataclass
class FixExchange:
    loop: asyncio.AbstractEventLoop
    port: int = 0
    clients: dict[str, FixVenue] = field(default_factory=dict)
    endings: list[str] = field(default_factory=list)  # of its sessions
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Nothing is said to anybody; what was numbered is kept."""
        assert self._server
        self._server.close()
        for venue in self.clients.values():
            venue.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65_536)
        found = SENDER.search(data)
        if found is None:
            writer.close()
            return
        reader.feed_data(data)
        venue = self.clients.setdefault(found[1].decode(), FixVenue(client=found[1].decode()))
        self.endings.append(await venue.serve(reader, writer))

    def do(self, step: Callable[[], T]) -> T:
        """Runs in the venue's thread."""

        async def run() -> T:
            return step()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(STEP_SECONDS)

    def restart(self, pause: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(self.kill(), self.loop).result(STEP_SECONDS)
        pause()
        asyncio.run_coroutine_threadsafe(self.start(), self.loop).result(STEP_SECONDS)


@contextlib.contextmanager
def exchange_in_thread() -> Iterator[FixExchange]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    exchange = FixExchange(loop)
    asyncio.run_coroutine_threadsafe(exchange.start(), loop).result(STEP_SECONDS)
    try:
        yield exchange
    finally:
        asyncio.run_coroutine_threadsafe(exchange.kill(), loop).result(STEP_SECONDS)
        asyncio.run_coroutine_threadsafe(_finish(), loop).result(STEP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STEP_SECONDS)
        loop.close()


async def _finish() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(tasks, timeout=STEP_SECONDS) if tasks else None
