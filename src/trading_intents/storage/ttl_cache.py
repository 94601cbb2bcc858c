"""A cache of reads. A value's age counts from before its read, and callers share a read that is
under way."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from trading_intents.clock import Clock

REFRESH_AFTER = 0.5  # of the maximum age

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Values that are None are not cached: new rows are found at once, and guessed keys take no
    memory."""

    def __init__(self, clock: Clock, max_age_seconds: float, max_entries: int) -> None:
        self._clock = clock
        self._max_age_seconds = max_age_seconds
        self._max_entries = max_entries
        self._entries: dict[K, tuple[float, asyncio.Task[V | None]]] = {}
        self._renewing: dict[K, asyncio.Task[V | None]] = {}

    async def get(self, key: K, read: Callable[[], Awaitable[V | None]]) -> V | None:
        now = self._clock.monotonic()
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > self._max_age_seconds:
            self._renewing.pop(key, None)  # it began before this read, so its value may be older
            entry = (now, asyncio.ensure_future(read()))
            self._keep(key, entry)
        if entry[1].done():
            return entry[1].result()
        # Shielded, so that a cancelled caller does not cancel the read for the others.
        return await asyncio.shield(entry[1])

    def get_cached(self, key: K, read: Callable[[], Awaitable[V | None]]) -> V | None:
        """The value that `get` would give without a read, else None. An older one is refreshed in
        the background."""
        entry = self._entries.get(key)
        now = self._clock.monotonic()
        if entry is None or now - entry[0] > self._max_age_seconds or not entry[1].done():
            return None
        if now - entry[0] > self._max_age_seconds * REFRESH_AFTER and key not in self._renewing:
            task = self._renewing[key] = asyncio.ensure_future(read())
            task.add_done_callback(lambda task: self._renew(key, (now, task)))
        return entry[1].result()

    def clear(self) -> None:
        self._entries.clear()
        self._renewing.clear()

    def _renew(self, key: K, entry: tuple[float, asyncio.Task[V | None]]) -> None:
        task = entry[1]
        is_useful = _is_useful(task)
        if self._renewing.get(key) is not task:
            return  # the cache was cleared or read again meanwhile, so this value may be older
        del self._renewing[key]
        if is_useful:
            self._entries[key] = entry

    def _keep(self, key: K, entry: tuple[float, asyncio.Task[V | None]]) -> None:
        if len(self._entries) >= self._max_entries:
            self._entries.clear()
        self._entries[key] = entry
        entry[1].add_done_callback(lambda task: self._drop_useless(key, entry))

    def _drop_useless(self, key: K, entry: tuple[float, asyncio.Task[V | None]]) -> None:
        if not _is_useful(entry[1]) and self._entries.get(key) is entry:
            del self._entries[key]


def _is_useful(task: "asyncio.Task[V | None]") -> bool:
    return not task.cancelled() and task.exception() is None and task.result() is not None
