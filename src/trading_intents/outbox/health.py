"""Health of the accounts queue across all organizations: counts and times only, from one snapshot."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import OutboxEventType, Status
from trading_intents.storage.database import Pool


@dataclass(frozen=True, slots=True)
class QueueHealth:
    status: Status
    event_type: OutboxEventType
    count: int
    oldest_created_at: datetime
    max_attempts: int
    oldest_claimed_at: datetime | None  # None unless processing


@dataclass(frozen=True, slots=True)
class OutboxHealth:
    """Everything else is derived from the entries, so that they can never disagree."""

    entries: tuple[QueueHealth, ...]

    def count(self, status: Status) -> int:
        return sum(entry.count for entry in self._of(status))

    def oldest_created_at(self, status: Status) -> datetime | None:
        return min((entry.oldest_created_at for entry in self._of(status)), default=None)

    @property
    def oldest_claim_at(self) -> datetime | None:
        return min((e.oldest_claimed_at for e in self.entries if e.oldest_claimed_at is not None), default=None)

    def _of(self, status: Status) -> Iterable[QueueHealth]:
        return (entry for entry in self.entries if entry.status is status)


async def read_health(pool: Pool) -> OutboxHealth:
    async with pool.transaction(read_only=True) as tx:
        rows = await outbox.read_health(tx)
    return OutboxHealth(
        tuple(
            QueueHealth(
                Status(row["status"]),
                OutboxEventType(row["event_type"]),
                row["count"],
                row["oldest_created_at"],
                row["max_attempts"],
                row["oldest_claimed_at"],
            )
            for row in rows
        )
    )
