"""Shares the loop's time among the connections that have received more than can be parsed at once."""

import asyncio
import time
from collections import deque
from typing import Protocol

TURN_SECONDS = 0.01  # of each turn of the loop, for parsing the bytes of all connections


class WaitingConnection(Protocol):
    def parse_piece(self) -> None:
        """Parses a piece of what it received, and waits again if more is left."""
        ...


class ParseBudget:
    """When a turn's time is used up, or others wait, a connection waits; each in its turn parses one piece."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[WaitingConnection] = deque()
        self._turn_ends_at: float | None = None  # None: nothing was parsed in this turn of the loop

    def has_time(self) -> bool:
        if self._waiting:
            return False
        return self._now() < (self._turn_ends_at or self._begin_turn())

    def wait(self, connection: WaitingConnection) -> None:
        self._waiting.append(connection)
        if self._turn_ends_at is None:
            self._begin_turn()

    def _begin_turn(self) -> float:
        self._turn_ends_at = self._now() + TURN_SECONDS
        self._loop.call_soon(self._end_turn)
        return self._turn_ends_at

    def _end_turn(self) -> None:
        self._turn_ends_at = None
        if self._waiting:
            ends_at = self._begin_turn()
            self._waiting.popleft().parse_piece()
            while self._waiting and self._now() < ends_at:
                self._waiting.popleft().parse_piece()

    def _now(self) -> float:
        return time.monotonic()  # the loop's own time stands still during a turn
