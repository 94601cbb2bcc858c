"""Waiting for a condition outside the program, bounded. Anything inside it has a signal: wait on that instead."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

POLL_SECONDS = 0.01
MOST_POLL_SECONDS = 0.05
GROWTH = 1.2


def eventually(condition: Callable[[], bool], limit_seconds: float) -> float:
    """Seconds until the condition held; fails at the limit."""
    start, pauses = time.monotonic(), _pauses()
    while not condition():
        assert time.monotonic() - start < limit_seconds, f"not within {limit_seconds} s"
        time.sleep(next(pauses))
    return time.monotonic() - start


async def eventually_async(condition: Callable[[], Awaitable[bool]], limit_seconds: float) -> float:
    start, pauses = time.monotonic(), _pauses()
    while not await condition():
        assert time.monotonic() - start < limit_seconds, f"not within {limit_seconds} s"
        await asyncio.sleep(next(pauses))
    return time.monotonic() - start


def _pauses() -> Iterator[float]:
    """Longer and longer: whoever waits for seconds leaves the machine to what it waits for."""
    pause = POLL_SECONDS
    while True:
        yield pause
        pause = min(pause * GROWTH, MOST_POLL_SECONDS)
