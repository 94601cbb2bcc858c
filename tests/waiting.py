"""Waiting for a condition outside the program, bounded. Anything inside it has a signal: wait on
that instead."""

import asyncio
import time
from collections.abc import Awaitable, Callable

# How many sessions of the connection's own database wait for a lock: other tests' databases are on
# the same server.
COUNT_BLOCKED = """
    SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (
        SELECT pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE d.datname = current_database()
    )
"""
POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 0.25
# Of the time that was waited: whoever waits for seconds leaves the machine to what it waits for.
POLL_SHARE = 0.1


def eventually(condition: Callable[[], bool], limit_seconds: float) -> float:
    """Seconds until the condition held; fails at the limit."""
    start = time.monotonic()
    while not condition():
        time.sleep(_pause(time.monotonic() - start, limit_seconds))
    return time.monotonic() - start


async def eventually_async(condition: Callable[[], Awaitable[bool]], limit_seconds: float) -> float:
    start = time.monotonic()
    while not await condition():
        await asyncio.sleep(_pause(time.monotonic() - start, limit_seconds))
    return time.monotonic() - start


def _pause(waited_seconds: float, limit_seconds: float) -> float:
    """Until the condition is looked at again, the last time at the limit."""
    left_seconds = limit_seconds - waited_seconds
    assert left_seconds > 0, f"not within {limit_seconds} s"
    return min(max(POLL_SECONDS, waited_seconds * POLL_SHARE), MAX_POLL_SECONDS, left_seconds)
