"""The last minute of an account's log, kept in memory by the process that appends to it. Pure: no
I/O, no clock. The seq and hash of the log's head say whether it is still all of it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from trading_intents.controls.limits.model import RATE_SECONDS

MAX_ACCOUNTS = 10_000
MAX_READ_ACTIONS = 1_000  # of all accounts together, while other accounts' commands wait
# After an account's last order its log says nothing of the last minute.
KEPT = timedelta(seconds=RATE_SECONDS + 1)
LogHead = tuple[int, str]  # the seq and hash of an action, up to which a log is known
NOWHERE: LogHead = (0, "")


class RecentOrders:
    """Accepted CREATEs and REPLACEs by second, and when CREATEs of these terms were last accepted,
    up to an action."""

    def __init__(self, window_millis: int, now: datetime) -> None:
        """`window_millis`: for how long terms are remembered."""
        self.window_millis = window_millis
        self.head: LogHead = NOWHERE
        # Of a later moment some may be forgotten already, if the database's clock was set back.
        self.used_at = now
        self._window = timedelta(milliseconds=window_millis)
        self._seconds: dict[int, int] = {}
        self._orders = 0  # in all of them
        self._pruned_second = 0
        self._accepted: dict[str, datetime] = {}  # the oldest first

    def count(self, now: datetime) -> int:
        """The orders of the last minute, by whole seconds."""
        self._prune(_second_of(now))
        return self._orders

    def find(self, terms: str) -> datetime | None:
        return self._accepted.get(terms)

    def accept(self, terms: str, now: datetime) -> None:
        """Without `terms` it is no CREATE."""
        second = _second_of(now)
        self._prune(second)
        self.add(second, 1)
        self.remember(terms, now)

    def add(self, second: int, orders: int) -> None:
        self._seconds[second] = self._seconds.get(second, 0) + orders
        self._orders += orders

    def remember(self, terms: str, accepted_at: datetime) -> None:
        if not terms or not self._window:
            return
        self._accepted.pop(terms, None)  # so that it becomes the newest
        self._accepted[terms] = accepted_at
        while accepted_at - self._accepted[oldest := next(iter(self._accepted))] > self._window:
            del self._accepted[oldest]

    def _prune(self, second: int) -> None:
        if second == self._pruned_second:
            return
        self._pruned_second = second
        for old in [each for each in self._seconds if each <= second - RATE_SECONDS]:
            self._orders -= self._seconds.pop(old)


@lru_cache(maxsize=16)  # the orders of a batch have the same moment
def _second_of(now: datetime) -> int:
    return int(now.timestamp())


RecentByAccount = dict[str, RecentOrders]  # the one that was used longest ago first


class RecentRequest(NamedTuple):
    """An account whose log is to be read: after what is known of it, and how far back its terms
    count."""

    account_id: str
    known: RecentOrders | None
    window_millis: int

    @property
    def head(self) -> LogHead:
        return self.known.head if self.known else NOWHERE


def find_whole(
    memory: RecentByAccount, heads: Mapping[str, LogHead], now: datetime
) -> RecentByAccount:
    """Finds the accounts that are known up to their heads. Forgets the accounts that have been idle
    for longer than it matters."""
    whole: RecentByAccount = {}
    for account_id, head in heads.items():
        recent = memory.get(account_id)
        if recent is not None and recent.head == head and recent.used_at <= now:
            recent.used_at = now
            memory[account_id] = whole[account_id] = memory.pop(account_id)
    while memory and (
        len(memory) > MAX_ACCOUNTS or next(iter(memory.values())).used_at < now - KEPT
    ):
        del memory[next(iter(memory))]
    return whole


def request_recent(
    windows: Mapping[str, int], memory: RecentByAccount, whole: RecentByAccount, now: datetime
) -> list[RecentRequest]:
    """Plans the reads of accounts that are judged by their last orders; the windows are theirs."""
    reads: list[RecentRequest] = []
    for account_id, window_millis in windows.items():
        recent = memory.get(account_id)
        if recent is None or recent.window_millis < window_millis or recent.used_at > now:
            reads.append(RecentRequest(account_id, None, window_millis))
        elif account_id not in whole:
            reads.append(RecentRequest(account_id, recent, recent.window_millis))
    return reads


def put_recent(
    memory: RecentByAccount,
    reads: Sequence[RecentRequest],
    rows: Iterable[Sequence[Any]],
    heads: Mapping[str, LogHead],
    now: datetime,
) -> RecentByAccount:
    """Takes the rows of `read_recent`. What is known of an account is not in them if reading it
    would take too long."""
    of: dict[str, list[list[Any]]] = {"account": [], "second": [], "create": []}
    for kind, *row in rows:
        of[kind].append(row)
    asked = {read.account_id: read for read in reads}
    found = dict[str, RecentOrders]()
    for account_id, is_known, is_read in of["account"]:
        if is_read != "true":
            continue
        read = asked[account_id]
        recent = (
            read.known
            if read.known and is_known == "true"
            else RecentOrders(read.window_millis, now)
        )
        recent.head = heads[account_id]
        recent.used_at = now
        memory.pop(account_id, None)  # so that it becomes the newest
        memory[account_id] = found[account_id] = recent
    for account_id, second, orders in of["second"]:
        found[account_id].add(int(second), int(orders))
    for account_id, terms, accepted_at in sorted(
        of["create"], key=lambda row: datetime.fromisoformat(row[2])
    ):
        found[account_id].remember(terms, datetime.fromisoformat(accepted_at))
    return found
