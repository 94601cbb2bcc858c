"""Health of the accounts queue across all organizations: counts and times only, from one snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import Status
from trading_intents.storage.database import Pool, Row


@dataclass(frozen=True, slots=True)
class OutboxHealth:
    """A row for each status and event type. All else is derived from these, so that they can never disagree."""

    entries: Sequence[Row]

    def count(self, status: Status) -> int:
        return sum(entry["count"] for entry in self.entries if entry["status"] == status)

    def oldest(self, status: Status, moment: str) -> datetime | None:
        """The earliest such moment of the rows in this status."""
        return min((entry[moment] for entry in self.entries if entry["status"] == status), default=None)


async def read_health(pool: Pool) -> OutboxHealth:
    async with pool.transaction(read_only=True) as tx:
        return OutboxHealth(await outbox.read_health(tx))
