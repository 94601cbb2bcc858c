"""Writes the outcomes of claimed rows, all that wait in one transaction. Never runs a handler."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from trading_intents.clock import Clock
from trading_intents.errors import PlatformError
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import (
    CLAIM_SECONDS,
    ClaimedRow,
    Done,
    Queue,
    Release,
    Retry,
    RowOutcome,
    Status,
)
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import GroupCommit
from trading_intents.telemetry import Log, Metrics, make_series

PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ClaimedAttempt:
    """A claim, and this process's monotonic time from before it, so that its age is never
    underestimated."""

    row: ClaimedRow
    since_seconds: float


@dataclass(frozen=True, slots=True)
class _EndedAttempt:
    attempt: ClaimedAttempt
    outcome: RowOutcome


class OutcomeWriter:
    def __init__(
        self, pool: Pool, attempt_limit: int, clock: Clock, metrics: Metrics, log: Log
    ) -> None:
        self._pool = pool
        self._attempt_limit = attempt_limit
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._group: GroupCommit[_EndedAttempt, None] = GroupCommit(self._write)

    async def put(self, attempt: ClaimedAttempt, outcome: RowOutcome) -> None:
        """Returns once the outcome is written, or once the claim is void. The claims of a worker
        limit how many wait."""
        await self._group.put(_EndedAttempt(attempt, outcome))

    async def close(self) -> None:
        await self._group.close()

    async def _write(self, batch: list[_EndedAttempt]) -> list[None]:
        """Tries again for as long as the claims hold; after that other workers have the rows."""
        held = batch
        while held:
            try:
                async with self._pool.transaction(plans="fresh") as tx:
                    statuses = await self._write_all(tx, held)
            except Exception as error:
                self._log.warning(
                    "outbox results not written", rows=len(held), reason=reason_of(error)
                )
                await asyncio.sleep(PAUSE_SECONDS)
                oldest_seconds = self._clock.monotonic() - CLAIM_SECONDS
                held = [each for each in held if each.attempt.since_seconds > oldest_seconds]
            else:
                self._count(held, statuses)
                break
        return [None] * len(batch)

    async def _write_all(self, tx: Tx, batch: list[_EndedAttempt]) -> dict[UUID, Status]:
        """Gives the new status for each token; the missing ones no longer held."""
        done: list[ClaimedRow] = []
        failed: list[outbox.FailedAttempt] = []
        released: list[ClaimedRow] = []
        # In id order, as every statement takes its locks.
        for each in sorted(batch, key=lambda each: each.attempt.row.id):
            row = each.attempt.row
            match each.outcome:
                case Done():
                    done.append(row)
                case Retry(reason):
                    failed.append(outbox.FailedAttempt(row, reason))
                case Release():
                    released.append(row)
        statuses: dict[UUID, Status] = {}
        if done:
            statuses |= dict.fromkeys(await outbox.complete(tx, done), Status.COMPLETED)
        if failed:
            statuses |= await outbox.retry(tx, failed, self._attempt_limit)
        if released:
            statuses |= dict.fromkeys(await outbox.release(tx, released), Status.PENDING)
        return statuses

    def _count(self, batch: list[_EndedAttempt], statuses: dict[UUID, Status]) -> None:
        for each in batch:
            row = each.attempt.row
            status = statuses.get(row.token)
            if status is None:
                self._log.warning("outbox claim void", **row.log_fields)
            elif not isinstance(each.outcome, Release):
                self._metrics.outbox_rows.labels(row.queue, row.event_type, ENDED[status]).inc()
                if status is Status.FAILED:
                    self._log.error("outbox row failed", **row.log_fields)


def make_outbox_series(queue: Queue, event_types: Iterable[str], metrics: Metrics) -> None:
    event_types = tuple(event_types)
    make_series(metrics.outbox_handler_seconds, (queue,), event_types)
    make_series(metrics.outbox_rows, (queue,), event_types, ENDED.values())


ENDED = {Status.COMPLETED: "completed", Status.PENDING: "retried", Status.FAILED: "failed"}


def report_failed(queue: Queue, event_type: str, metrics: Metrics, log: Log) -> None:
    log.error("outbox row failed", queue=queue, event_type=event_type)
    metrics.outbox_rows.labels(queue, event_type, "failed").inc()


def log_failures(log: Log, event: str, **fields: str) -> Callable[[str, Exception], None]:
    """Gives what logs the errors of a loop's work under this event."""

    def on_error(work: str, error: Exception) -> None:
        log.warning(event, work=work, reason=reason_of(error), **fields)

    return on_error


def reason_of(error: Exception) -> str:
    """The reason that may be recorded of an error: our own text, or only the name of another's
    class, as its text can hold anything."""
    if isinstance(error, PlatformError):
        return f"{error.code}: {error.detail}"
    return type(error).__name__
