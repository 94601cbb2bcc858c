"""Shares the loop's time among the connections that have received more than can be parsed at
once."""

import asyncio
import time
from collections.abc import Hashable
from typing import Protocol

from trading_intents.loops import FairQueue

SLOT_SECONDS = 0.001  # of each round of the loop, for parsing the bytes of all connections


class WaitingConnection(Hashable, Protocol):
    def parse_piece(self) -> None:
        """Parses a piece of what it received, and waits again if more is left."""


class ParseBudget:
    """Makes a connection wait when a round's time is used up or others wait; addresses in turn
    parse one piece."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = FairQueue[Hashable, WaitingConnection]()
        # By time.monotonic(): the loop's own time stands still during a round. None: nothing was
        # parsed in this one.
        self._slot_ends_at: float | None = None

    def has_time(self) -> bool:
        if self._waiting.count:
            return False
        return time.monotonic() < (self._slot_ends_at or self._begin_slot())

    def wait(self, address: Hashable, connection: WaitingConnection) -> None:
        self._waiting.append(address, connection)
        if self._slot_ends_at is None:
            self._begin_slot()

    def _begin_slot(self) -> float:
        self._slot_ends_at = time.monotonic() + SLOT_SECONDS
        self._loop.call_soon(self._end_slot)
        return self._slot_ends_at

    def _end_slot(self) -> None:
        self._slot_ends_at = None
        if self._waiting.count:
            ends_at = self._begin_slot()
            while connection := self._waiting.pop():
                connection.parse_piece()
                if time.monotonic() >= ends_at:
                    break
