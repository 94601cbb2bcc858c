"""Claims rows of one queue and runs their handlers, each for at most HANDLER_SECONDS. Goes on when
the database fails."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from trading_intents.clock import Clock
from trading_intents.loops import finish_tasks, repeat, start_loop, stop_tasks
from trading_intents.outbox import model
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.outcomes import (
    ClaimedAttempt,
    OutcomeWriter,
    log_failures,
    make_outbox_series,
    reason_of,
    report_failed,
)
from trading_intents.outbox.upkeep import keep_outbox
from trading_intents.storage.database import Pool
from trading_intents.telemetry import Log, Metrics

SLOTS = 100
POLL_SECONDS = 1.0
POLL_SLACK_SECONDS = 0.05  # a timer may end a moment early
# A claim that is older than this before its handler starts is given back: the process was paused.
START_SECONDS = 2.0
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)


class _ClaimLost(Exception):
    """Another worker has the row by now; raised to roll the handler's writes back."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The objects from which every worker of a process is built."""

    pool: Pool
    attempt_limit: int
    clock: Clock
    metrics: Metrics
    log: Log


class Worker:
    def __init__(
        self,
        queue: model.Queue,
        handlers: Mapping[str, model.RowHandler],
        context: WorkerContext,
        slots: int = SLOTS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`poll_seconds` is how long a lost wake-up can delay a row."""
        self._queue = queue
        self._handlers = handlers
        self._context = context
        self._slots = slots
        self._outcomes = OutcomeWriter(
            context.pool, context.attempt_limit, context.clock, context.metrics, context.log
        )
        make_outbox_series(queue, handlers, context.metrics)
        self._running: set[asyncio.Task[None]] = set()
        self._wakeup = asyncio.Event()
        self._stopping = False
        self._poll_seconds = poll_seconds
        self._swept_seconds = -POLL_SECONDS
        self._upkeep: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None

    def start(self) -> None:
        context = self._context
        self._upkeep = start_loop(
            keep_outbox(self._queue, context.pool, context.metrics, context.log)
        )
        self._claiming = start_loop(self._claim_until_stopped())

    def wake(self) -> None:
        """Claims soon, because there may be a new row."""
        self._wakeup.set()

    async def stop(self, limit_seconds: float) -> None:
        """Claims no more, releases what was not started, waits for the handlers that run; then
        cancels them."""
        self._stopping = True
        self.wake()
        await finish_tasks(lambda: [self._claiming, *self._running], limit_seconds)
        await stop_tasks(self._upkeep)
        await self._outcomes.close()

    async def _claim_until_stopped(self) -> None:
        await repeat(
            self._claim,
            self._poll_seconds,
            log_failures(self._context.log, "outbox not claimed", queue=self._queue),
            self._wakeup,
            retry_seconds=RETRY_SECONDS,
            is_over=lambda: self._stopping,
        )

    async def _claim(self) -> None:
        """Claims rows, and once a second, in the same transaction, fails those that have no attempt
        left."""
        free = self._slots - len(self._running) if self._handlers else 0
        before_seconds = self._context.clock.monotonic()
        limit = self._context.attempt_limit
        is_sweep_due = before_seconds - self._swept_seconds >= POLL_SECONDS - POLL_SLACK_SECONDS
        if not (free or is_sweep_due):
            return
        async with self._context.pool.transaction(plans="fresh") as tx:
            failed = await outbox.sweep(tx, self._queue, limit) if is_sweep_due else []
            rows = await outbox.claim(tx, self._queue, self._handlers, free, limit) if free else []
        if is_sweep_due:
            self._swept_seconds = before_seconds
        for event_type in failed:
            report_failed(self._queue, event_type, self._context.metrics, self._context.log)
        for row in rows:
            task = asyncio.create_task(self._handle(ClaimedAttempt(row, before_seconds)))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        # A slot is free, and a later row of the same order key may be due now.
        self._running.discard(task)
        self._wakeup.set()
        if not task.cancelled() and (error := task.exception()):
            self._context.log.error("outbox row not settled", queue=self._queue, exc_info=error)

    async def _handle(self, held: ClaimedAttempt) -> None:
        if self._stopping or self._age_seconds(held) > START_SECONDS:
            await self._outcomes.put(held, model.Release())
            return
        outcome: model.RowOutcome | None = await self._run(held)
        if isinstance(outcome, model.Done) and outcome.write:
            outcome = await self._write(held, outcome)
        if outcome:
            await self._outcomes.put(held, outcome)

    async def _run(self, held: ClaimedAttempt) -> model.Done | model.Retry:
        row = held.row
        started_seconds = self._context.clock.monotonic()
        try:
            async with asyncio.timeout(model.HANDLER_SECONDS - self._age_seconds(held)):
                return await self._handlers[row.event_type](row)
        except TimeoutError:
            return model.Retry(f"not done within {model.HANDLER_SECONDS} s")
        except Exception as error:
            return self._failed_attempt(row, error)
        finally:
            spent_seconds = self._context.clock.monotonic() - started_seconds
            self._context.metrics.outbox_handler_seconds.labels(row.queue, row.event_type).observe(
                spent_seconds
            )

    async def _write(self, held: ClaimedAttempt, done: model.Done) -> model.Retry | None:
        """Runs the handler's writes and completes the row, which must still be claimed, in one
        transaction."""
        row = held.row
        assert done.write is not None
        try:
            async with asyncio.timeout(model.CLAIM_SECONDS - self._age_seconds(held)):
                async with self._context.pool.transaction([row.organization_id]) as tx:
                    await done.write(tx)
                    if not await outbox.complete(tx, [row]):
                        raise _ClaimLost
        except _ClaimLost:
            self._context.log.warning("outbox claim lost", **row.log_fields)
            return None
        except Exception as error:
            return self._failed_attempt(row, error)
        self._context.metrics.outbox_rows.labels(row.queue, row.event_type, "completed").inc()
        return None

    def _failed_attempt(self, row: model.ClaimedRow, error: Exception) -> model.Retry:
        self._context.log.warning(
            "outbox handler failed",
            **row.log_fields,
            exc_info=error,
        )
        return model.Retry(reason_of(error))

    def _age_seconds(self, held: ClaimedAttempt) -> float:
        return self._context.clock.monotonic() - held.since_seconds
