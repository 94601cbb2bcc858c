"""The simulator of Alpaca in a thread, for tests without an event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.brokers.alpaca.simulator import Simulator

T = TypeVar("T")
STEP_SECONDS = 30  # for the simulator's thread to do something


class ThreadedSimulator:
    """For tests without an event loop: the simulator runs in a thread, and `do` runs there what
    touches it."""

    def __init__(self, simulator: Simulator, loop: asyncio.AbstractEventLoop) -> None:
        self.simulator = simulator
        self._loop = loop

    def do(self, step: Callable[[], T]) -> T:
        async def run() -> T:
            return step()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(STEP_SECONDS)


@contextlib.contextmanager
def simulating_in_thread(socket: Path | None = None) -> Iterator[ThreadedSimulator]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    simulator = Simulator()
    asyncio.run_coroutine_threadsafe(simulator.start(socket), loop).result(STEP_SECONDS)
    try:
        yield ThreadedSimulator(simulator, loop)
    finally:
        asyncio.run_coroutine_threadsafe(simulator.stop(), loop).result(STEP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STEP_SECONDS)
        loop.close()
