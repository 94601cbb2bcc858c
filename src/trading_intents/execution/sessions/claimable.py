"""Sessions whose commands may be claimed, as a claim asks for their lanes and notes what it saw."""

import contextlib
from collections.abc import Iterator, Sequence

from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.outbox.lanes import LaneRequest, SeenRow
from trading_intents.trading import FrozenStruct


class Claimable(FrozenStruct):
    """With a condition, our own SQL about the row `candidate`, lanes are read as a whole; `slots`
    are then those of each that needs no broker."""

    sessions: Sequence[BrokerSession]
    where: str = ""
    slots: int | None = None

    def begin(self, now_seconds: float) -> list[LaneRequest]:
        requests = []
        for session in self.sessions:
            slots = self.slots or session.free_slots
            name = session.account_text
            whole = LaneRequest(lane=name, slots=slots)
            requests.append(whole if self.where else session.lane.begin(whole, now_seconds))
        return requests

    def note(
        self, requests: Sequence[LaneRequest], seen: Sequence[SeenRow], now_seconds: float
    ) -> bool:
        """Whether there may be more to claim at once."""
        if self.where:
            return any(row.is_left for row in seen)
        rows: dict[str, list[SeenRow]] = {}
        for row in seen:
            rows.setdefault(row.lane, []).append(row)
        for session, request in zip(self.sessions, requests, strict=True):
            session.lane.note(request, rows.get(request.lane, ()), now_seconds)
        return any(session.lane.is_woken for session in self.sessions)

    @property
    def held(self) -> set[int]:
        """The commands that are under way."""
        held = set[int]()
        for session in self.sessions:
            held |= session.in_flight
        return held

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """No lease is given back meanwhile. If it fails, nothing is known of what was seen."""
        for session in self.sessions:
            session.is_claiming = True
        try:
            yield
        except BaseException:
            for session in self.sessions:
                session.lane.is_woken = True
            raise
        finally:
            for session in self.sessions:
                session.is_claiming = False
