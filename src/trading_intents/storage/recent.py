"""Reads that may be a little old: kept for a moment, counted from before the read, and shared while under way."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from trading_intents.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Absent values (None) are not kept: what was just created is found at once, and guesses cost no memory."""

    def __init__(self, clock: Clock, max_age_seconds: float, max_entries: int) -> None:
        self._clock, self._max_age_seconds, self._max_entries = clock, max_age_seconds, max_entries
        self._entries: dict[K, tuple[float, asyncio.Task[V | None]]] = {}

    async def get(self, key: K, read: Callable[[], Awaitable[V | None]]) -> V | None:
        now = self._clock.monotonic()
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > self._max_age_seconds:
            entry = (now, asyncio.ensure_future(_run(read)))
            self._keep(key, entry)
        if entry[1].done():
            return entry[1].result()
        # Shielded: a caller that goes away must not cancel the read for the others.
        return await asyncio.shield(entry[1])

    def peek(self, key: K) -> V | None:
        """What a get would give at once; None if it would read."""
        entry = self._entries.get(key)
        if entry is None or self._clock.monotonic() - entry[0] > self._max_age_seconds or not entry[1].done():
            return None
        return entry[1].result()

    def forget(self) -> None:
        """The next get reads again."""
        self._entries.clear()

    def _keep(self, key: K, entry: tuple[float, asyncio.Task[V | None]]) -> None:
        if len(self._entries) >= self._max_entries:
            self._entries.clear()
        self._entries[key] = entry
        entry[1].add_done_callback(lambda task: self._drop_useless(key, entry))

    def _drop_useless(self, key: K, entry: tuple[float, asyncio.Task[V | None]]) -> None:
        task = entry[1]
        useless = task.cancelled() or task.exception() is not None or task.result() is None
        if useless and self._entries.get(key) is entry:
            del self._entries[key]


async def _run(read: Callable[[], Awaitable[V | None]]) -> V | None:
    return await read()
