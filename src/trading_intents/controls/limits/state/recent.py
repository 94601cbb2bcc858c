"""The last minute of an account's log, kept in memory by the process that appends to it. Pure: no
I/O, no clock. The seq and hash of the log's head say whether it is still all of it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from trading_intents.controls.limits.model import RATE_SECONDS
from trading_intents.trading import FrozenStruct

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
    """The requests for accounts that are judged by their last orders; the windows are theirs."""
    requests: list[RecentRequest] = []
    for account_id, window_millis in windows.items():
        recent = memory.get(account_id)
        if recent is None or recent.window_millis < window_millis or recent.used_at > now:
            requests.append(RecentRequest(account_id, None, window_millis))
        elif account_id not in whole:
            requests.append(RecentRequest(account_id, recent, recent.window_millis))
    return requests


class RecentRow(FrozenStruct, kw_only=True):
    """A row of `read_recent`: an account whose log was read, the orders of a second, or when a
    CREATE of these terms was last accepted."""

    account_id: str
    is_known: bool | None = None  # whether the log has what is known of the account
    second: int | None = None
    orders: int = 0
    terms: str = ""
    accepted_at: datetime | None = None


def put_recent(
    memory: RecentByAccount,
    requests: Sequence[RecentRequest],
    rows: Iterable[RecentRow],
    heads: Mapping[str, LogHead],
    now: datetime,
) -> RecentByAccount:
    """Takes the rows of `read_recent`. An account is not in them if reading its log would take too
    long."""
    asked = {request.account_id: request for request in requests}
    found: RecentByAccount = {}
    accepted: list[tuple[datetime, RecentRow]] = []
    seconds: list[tuple[int, RecentRow]] = []
    for row in rows:
        if row.accepted_at:
            accepted.append((row.accepted_at, row))
        elif row.second is not None:
            seconds.append((row.second, row))
        else:
            request = asked[row.account_id]
            recent = request.known if row.is_known else None
            if recent is None:
                recent = RecentOrders(request.window_millis, now)
            recent.head = heads[row.account_id]
            recent.used_at = now
            memory.pop(row.account_id, None)  # so that it becomes the newest
            memory[row.account_id] = found[row.account_id] = recent
    for second, row in seconds:
        found[row.account_id].add(second, row.orders)
    for accepted_at, row in sorted(accepted, key=itemgetter(0)):
        found[row.account_id].remember(row.terms, accepted_at)
    return found
