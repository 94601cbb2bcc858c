"""Room for a number of connections. When it is full, who holds most of them loses one."""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Room(Generic[T]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.holders: dict[T, Hashable] = {}
        self.counts = Counter[Hashable]()
        # Connections that wait for their clients, the longest first, by holder, and these by how
        # many connections they hold.
        self._quiet: dict[int, dict[Hashable, dict[T, None]]] = {}

    @property
    def is_full(self) -> bool:
        return len(self.holders) >= self._limit

    def add(self, connection: T, holder: Hashable) -> None:
        self.holders[connection] = holder
        self._update(connection, 1, is_quiet=True)

    def remove(self, connection: T) -> bool:
        """False: it was not here."""
        if connection not in self.holders:
            return False
        self._update(connection, -1, is_quiet=False)
        del self.holders[connection]
        return True

    def set_quiet(self, connection: T, is_quiet: bool) -> None:
        if connection in self.holders:
            self._update(connection, 0, is_quiet)

    def _update(self, connection: T, change: int, is_quiet: bool) -> None:
        holder = self.holders[connection]
        count = self.counts[holder]
        quiet: dict[T, None] = {}
        if rank := self._quiet.get(count):
            quiet = rank.pop(holder, quiet)
            if not rank:
                del self._quiet[count]
        if is_quiet:
            quiet[connection] = None
        else:
            quiet.pop(connection, None)
        count += change
        self.counts[holder] = count
        if not count:
            del self.counts[holder]
        elif quiet:
            self._quiet.setdefault(count, {})[holder] = quiet

    def choose_quiet(self, holder: Hashable) -> T | None:
        """Gives the quiet connection that makes room for one more of `holder`: of who holds most,
        or its own if nobody with a quiet one holds more."""
        own = self.counts[holder]
        most = max(self._quiet, default=0)
        if most > own:
            holder = next(iter(self._quiet[most]))
        quiet = self._quiet.get(max(most, own), {}).get(holder, {})
        return next(iter(quiet), None)

    def choose_busy(self, holder: Hashable) -> T | None:
        """Gives one with a request likewise, if `holder` has none here, and another several."""
        if holder in self.counts or len(self.counts) == len(self.holders):
            return None
        [(holder, _)] = self.counts.most_common(1)
        return next(each for each, its in self.holders.items() if its == holder)
