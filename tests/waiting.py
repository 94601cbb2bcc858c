"""Waiting for a condition outside the program, bounded. Anything inside it has a signal: wait on that instead."""

import asyncio
import time
from collections.abc import Awaitable, Callable

POLL_SECONDS = 0.01


def eventually(condition: Callable[[], bool], limit_seconds: float) -> float:
    """Seconds until the condition held; fails at the limit."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_seconds, f"not within {limit_seconds} s"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - start


async def eventually_async(condition: Callable[[], Awaitable[bool]], limit_seconds: float) -> float:
    start = time.monotonic()
    while not await condition():
        assert time.monotonic() - start < limit_seconds, f"not within {limit_seconds} s"
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - start
