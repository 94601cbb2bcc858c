"""What an account's log says of its last minute, kept in memory by the process that appends to it. Pure: no I/O, no
clock. The hash of the log's head says whether it is still all of it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from trading_intents.controls.limits.model import RATE_SECONDS

MAX_ACCOUNTS = 10_000
MAX_MISSED = 1_000  # actions of other processes that are read while other accounts' commands wait
Head = tuple[int, str]  # the seq and hash of an action, up to which a log is known
NOWHERE: Head = (0, "")


class RecentOrders:
    """Accepted CREATEs and REPLACEs by second, and when CREATEs of these terms were last accepted, up to an action."""

    def __init__(self, window_millis: int) -> None:
        """`window_millis`: for how long terms are remembered."""
        self.window_millis = window_millis
        self.head: Head = NOWHERE
        self._window = timedelta(milliseconds=window_millis)
        self._seconds: dict[int, int] = {}  # the oldest first
        self._orders = 0  # in all of them
        self._accepted: dict[str, datetime] = {}  # the oldest first

    def count(self, now: datetime) -> int:
        """The orders of the last minute, by whole seconds."""
        oldest = int(now.timestamp()) - RATE_SECONDS
        while self._seconds and (second := next(iter(self._seconds))) <= oldest:
            self._orders -= self._seconds.pop(second)
        return self._orders

    def find(self, terms: str) -> datetime | None:
        return self._accepted.get(terms)

    def accept(self, terms: str, now: datetime) -> None:
        """Without `terms` it is no CREATE."""
        self.add(int(now.timestamp()), 1)
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


RecentByAccount = dict[str, RecentOrders]


class RecentRead(NamedTuple):
    """An account whose log is to be read: from where it is known, and how far back its terms count."""

    account_id: str
    known: Head
    window_millis: int


def plan_reads(
    windows: Mapping[str, int], known: RecentByAccount, heads: Mapping[str, Head], may_take_long: bool
) -> tuple[list[RecentRead], set[str]]:
    """What is to be read of logs that now end at these heads; and the accounts whose reads would take too long here.
    The windows are those of accounts that are judged by their last orders."""
    reads, too_long = list[RecentRead](), set[str]()
    for account_id, window_millis in windows.items():
        head, recent = heads[account_id], known.get(account_id)
        if recent is None or recent.window_millis < window_millis:
            read, is_short = RecentRead(account_id, NOWHERE, window_millis), False
        elif recent.head != head:
            read = RecentRead(account_id, recent.head, recent.window_millis)
            is_short = 0 < head[0] - recent.head[0] <= MAX_MISSED
        else:
            continue
        if may_take_long or is_short:
            reads.append(read)
        else:
            too_long.add(account_id)
    return reads, too_long


def find_whole(known: RecentByAccount, heads: Mapping[str, Head]) -> RecentByAccount:
    """What is known of these accounts up to their heads."""
    return {
        account_id: recent
        for account_id, head in heads.items()
        if (recent := known.get(account_id)) is not None and recent.head == head
    }


def put_recent(
    known: RecentByAccount, reads: Sequence[RecentRead], rows: Iterable[Sequence[Any]], heads: Mapping[str, Head]
) -> None:
    """Takes the rows of `read_recent`."""
    of: dict[str, list[list[Any]]] = {"known": [], "second": [], "create": []}
    for kind, *row in rows:
        of[kind].append(row)
    still_known = {account_id for account_id, is_known, _ in of["known"] if is_known == "true"}
    for account_id, _, window_millis in reads:
        recent = known.pop(account_id, None)  # so that it becomes the newest
        if recent is None or account_id not in still_known:
            recent = RecentOrders(window_millis)
        recent.head = heads[account_id]
        known[account_id] = recent
    for account_id, second, orders in sorted(of["second"]):
        known[account_id].add(int(second), int(orders))
    for account_id, terms, accepted_at in sorted(of["create"], key=lambda row: datetime.fromisoformat(row[2])):
        known[account_id].remember(terms, datetime.fromisoformat(accepted_at))
    while len(known) > MAX_ACCOUNTS:
        del known[next(iter(known))]
