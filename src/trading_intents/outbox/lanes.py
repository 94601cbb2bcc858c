"""The position in a lane of the intents queue up to which its rows were seen, and the rows before
it that wait. No I/O, no clock."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from trading_intents.trading import FrozenStruct

LOOK_SECONDS = 1.0
# A row whose transaction commits this long after a later row's is still found. One account's commit
# in the order of their ids, as its head is locked, but for those of operators and of look-ups.
LATE_SECONDS = 10.0


class SeenRow(FrozenStruct, kw_only=True):
    """A row that a claim has read: claimed, left to the next claim as its lane had its share, or
    waiting for so long, at least."""

    lane: str
    id: int
    is_urgent: bool
    order_id: str
    is_claimed: bool
    is_left: bool
    wait_seconds: float


class LaneRequest(FrozenStruct, kw_only=True):
    """Asks for as many rows as a lane has free slots, behind the last ids seen, of urgent rows and
    of the others. `waiting` are rows that were seen, of which `due` are looked at again."""

    lane: str
    slots: int
    urgent_after: int = 0
    other_after: int = 0
    waiting: tuple[int, ...] = ()
    due: tuple[int, ...] = ()


@dataclass(slots=True)
class WaitingRow:
    order_id: str
    due_seconds: float


@dataclass(slots=True)
class Lane:
    """Read as a whole when its lease is taken, and then behind its position."""

    urgent: int = 0
    other: int = 0
    waiting: dict[int, WaitingRow] = field(default_factory=dict)
    is_woken: bool = True
    _looks: deque[tuple[float, int, int]] = field(default_factory=deque)

    def is_due(self, now_seconds: float) -> bool:
        return self.is_woken or self._is_look_due(now_seconds) or bool(self._due_rows(now_seconds))

    def begin(self, request: LaneRequest, now_seconds: float) -> LaneRequest:
        """Once a second it is read behind what was seen ten seconds ago."""
        self.is_woken = False
        urgent = self.urgent
        other = self.other
        if self._is_look_due(now_seconds):
            self._looks.append((now_seconds, urgent, other))
            while len(self._looks) > 1 and self._looks[1][0] <= now_seconds - LATE_SECONDS:
                self._looks.popleft()
            _, urgent, other = self._looks[0]
        return replace(
            request,
            urgent_after=urgent,
            other_after=other,
            waiting=tuple(self.waiting),
            due=self._due_rows(now_seconds),
        )

    def note(self, request: LaneRequest, seen: Sequence[SeenRow], now_seconds: float) -> None:
        """Moves on behind what was seen. Waiting rows that were looked for and not seen are
        over."""
        for row_id in request.due:
            self.waiting.pop(row_id, None)
        new = [row for row in seen if row.id not in request.due]
        urgent = [row for row in new if row.is_urgent]
        other = [row for row in new if not row.is_urgent]
        self.urgent = _last_passed(urgent, self.urgent)
        self.other = _last_passed(other, self.other)
        for row in seen:
            last = self.urgent if row.is_urgent else self.other
            if not row.is_claimed and (row.id <= last or row.id in request.due):
                # What its transaction has read may change.
                due_seconds = now_seconds + min(row.wait_seconds, LOOK_SECONDS)
                self.put_back(row.id, row.order_id, due_seconds)
        is_full = max(len(urgent), len(other)) >= request.slots
        self.is_woken |= is_full or any(row.is_left for row in seen)

    def put_back(self, row_id: int, order_id: str, due_seconds: float) -> None:
        self.waiting[row_id] = WaitingRow(order_id, due_seconds)

    def release(self, order_id: str, now_seconds: float) -> None:
        """A row of this order is over, or waits: the later ones are to be looked at."""
        for each in self.waiting.values():
            if each.order_id == order_id:
                each.due_seconds = min(each.due_seconds, now_seconds)

    def _is_look_due(self, now_seconds: float) -> bool:
        """All lanes at the same moments, so that one claim looks at all."""
        last_seconds = self._looks[-1][0] if self._looks else -LOOK_SECONDS
        return now_seconds // LOOK_SECONDS > last_seconds // LOOK_SECONDS

    def _due_rows(self, now_seconds: float) -> tuple[int, ...]:
        due = [row for row, each in self.waiting.items() if each.due_seconds <= now_seconds]
        return tuple(due)


def _last_passed(seen: Sequence[SeenRow], last: int) -> int:
    """The last id before the first row that is left to the next claim."""
    first_left = min((row.id for row in seen if row.is_left and row.id > last), default=None)
    passed = [row.id for row in seen if first_left is None or row.id < first_left]
    return max([last, *passed])
