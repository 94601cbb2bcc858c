"""The process's one writer, a group commit: it commits the commands that wait in one transaction
and answers them, while the next batch gathers. Never answers before the commit is durable."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from trading_intents.controls.rules import RulesCache
from trading_intents.errors import (
    InternalError,
    OutcomeUnknown,
    PlatformError,
    Unavailable,
    wire_errors,
)
from trading_intents.intents import store
from trading_intents.intents.model import Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.batch import (
    BatchResult,
    CommitLost,
    Receipt,
    SubmitOutcome,
    run_batch,
    wait_for_budgets,
)
from trading_intents.intents.writing.lock_waits import LockWaits
from trading_intents.intents.writing.queue import PendingSubmission, SubmissionQueue, group_by
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.database import Pool
from trading_intents.storage.grouped import has_committed
from trading_intents.storage.pipeline import Pipeline, StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics, make_series

# Twice as many save 5 % of the time of each, and double what a lone command waits for.
MAX_BATCH = 96
SMALL_BATCH = 16
ANSWER_SECONDS = 0.02  # at the latest, after the commit
RESOLVE_SECONDS = 3.0  # after the COMMIT was sent
MAX_LOST_COMMITS = 3  # so that a batch whose commit crashes the server does not crash it for ever
# How many batches may pass over a locked account; then its commands wait for the lock.
MAX_SKIPS = 1


class Writer:
    """There is one in a process: two would halve each other's batches. It has no timer: a lone
    caller waits for one commit."""

    def __init__(
        self,
        dependencies: BatchDependencies,
        pool: Pool,
        signals: Signals,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._dependencies = dependencies
        self._pool = pool
        self._signals = signals
        self._metrics = metrics
        self._log = log
        self._clock = dependencies.clock
        self._queue = SubmissionQueue()
        self._lock_waits = LockWaits(
            dependencies.pipeline, self._write_held, self._fail, dependencies.clock
        )
        self._wakeup = asyncio.Event()
        self._last_waiting = 0  # how many commands waited when the last batch was taken
        self._unanswered: list[
            tuple[Sequence[PendingSubmission], Sequence[SubmitOutcome | None]]
        ] = []
        self._tasks: set[asyncio.Task[None]] = set()
        make_series(metrics.intents_refused, {error.code for error in wire_errors()})

    def enqueue(
        self, submission: Submission, answer: Callable[[SubmitOutcome], None]
    ) -> PendingSubmission:
        """Calls `answer` once, when the command is committed or refused. Unavailable: the queue is
        full."""
        pending = PendingSubmission(submission, answer, self._clock.monotonic())
        (self._lock_waits.queue_for(submission) or self._queue).put(pending)
        self._wakeup.set()
        return pending

    async def submit(self, submission: Submission) -> Receipt:
        """Like `enqueue`, but waits for the answer; a refusal is raised."""
        answered: asyncio.Future[SubmitOutcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: SubmitOutcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        pending = self.enqueue(submission, answer)
        try:
            outcome = await answered
        finally:
            pending.abandon()
        if isinstance(outcome, PlatformError):
            raise outcome
        return outcome

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                while batch := self._take():
                    try:
                        await self._write(batch)
                    except Exception as error:
                        self._fail_internal(batch, error)
                self._answer_all()
        finally:
            self._answer_all()
            self._dependencies.pipeline.close()
            self._lock_waits.close()
            for task in self._tasks:
                task.cancel()

    def _take(self) -> list[PendingSubmission]:
        """Takes at most half of the commands under way: while one half commits, the other is read
        and answered."""
        under_way = len(self._queue) + self._last_waiting
        self._last_waiting = len(self._queue)
        return self._queue.take(min(MAX_BATCH, max(SMALL_BATCH, under_way // 2)))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, batch: list[PendingSubmission]) -> None:
        """Commands of locked accounts go into the next batch, and after that wait for their
        lock."""
        try:
            skipped = await self._attempt(self._dependencies, batch, statements.SKIP)
        except StatementRefused:
            await self._write_by_organization(batch)
        else:
            self._put_back_skipped(skipped)

    async def _write_by_organization(self, batch: Sequence[PendingSubmission]) -> None:
        """Another transaction holds a lock of one of these organizations. Halving the batch finds
        it, and it waits alone."""
        groups = group_by(batch, lambda pending: pending.organization_id)
        first, *others = groups
        if not others:
            self._lock_waits.add(first, batch)
            return
        for half in ([first, *others[1::2]], others[::2]):
            part = list[PendingSubmission]()
            for organization_id in half:
                part += groups[organization_id]
            try:
                self._put_back_skipped(
                    await self._attempt(self._dependencies, part, statements.SKIP_AT_ONCE)
                )
            except StatementRefused:
                await self._write_by_organization(part)

    def _put_back_skipped(self, skipped: Sequence[PendingSubmission]) -> None:
        for pending in skipped:
            pending.skips += 1
        self._queue.put_back(pending for pending in skipped if pending.skips <= MAX_SKIPS)
        held = [pending for pending in skipped if pending.skips > MAX_SKIPS]
        for held_id, own in group_by(held, lambda pending: pending.held_id).items():
            self._lock_waits.add(held_id, own)

    async def _write_held(
        self, pipeline: Pipeline, batch: list[PendingSubmission]
    ) -> list[PendingSubmission]:
        """Runs beside the queue, on a connection of `LockWaits`. Gives back the commands that are
        still locked out."""
        dependencies = replace(self._dependencies, pipeline=pipeline, rules=RulesCache())
        if by_key := [each.submission for each in batch if each.held_id == each.submission.key_id]:
            await wait_for_budgets(pipeline, by_key)
        try:
            # The second attempt is for the organization's other accounts, if one account stays
            # locked.
            for locking in (statements.WAIT, statements.SKIP):
                with contextlib.suppress(StatementRefused):
                    return await self._attempt(dependencies, batch, locking)
        except Exception as error:
            self._fail_internal(batch, error)
            return []
        return batch

    async def _attempt(
        self,
        dependencies: BatchDependencies,
        batch: list[PendingSubmission],
        locking: statements.Locking,
        is_second: bool = False,
    ) -> list[PendingSubmission]:
        """Answers the commands that it could decide, and gives back those whose accounts are
        locked. Raises StatementRefused if a lock was not to be had; then nothing was recorded."""
        if not batch:
            return []
        started_seconds = self._clock.monotonic()
        is_ours = dependencies is self._dependencies
        submissions = [each.submission for each in batch]
        ours = (self._answer_soon,) if is_ours else ()
        try:
            result = await run_batch(dependencies, submissions, locking, *ours)
        except CommitLost as lost:
            self._start(self._resolve(batch, lost.result))
            return []
        except PlatformError as error:
            # Those in the queue need the same database.
            behind = self._queue.take(len(self._queue)) if is_ours else []
            self._fail([*batch, *behind], error)
            return []
        except Exception as error:
            if isinstance(error, StatementRefused) and error.is_contention:
                raise
            return await self._repair(dependencies, batch, locking, error, is_second)
        self._observe(batch, result, started_seconds)
        return self._committed(batch, result)

    async def _repair(
        self,
        dependencies: BatchDependencies,
        batch: list[PendingSubmission],
        locking: statements.Locking,
        error: Exception,
        is_second: bool,
    ) -> list[PendingSubmission]:
        """Handles an error before the commit. If a prepared statement was the cause, a new
        connection solves it; otherwise each command is tried alone, so that one bad command does
        not fail the others."""
        if isinstance(error, StatementRefused) and not is_second:
            return await self._attempt(dependencies, batch, locking, is_second=True)
        if len(batch) == 1:
            self._fail_internal(batch, error)
            return []
        held: list[PendingSubmission] = []
        for pending in batch:
            try:
                held += await self._attempt(dependencies, [pending], locking, is_second=True)
            except StatementRefused:
                held.append(pending)
        return held

    def _observe(
        self, batch: Sequence[PendingSubmission], result: BatchResult, started_seconds: float
    ) -> None:
        self._metrics.writer_batch_size.observe(len(batch))
        self._metrics.writer_wait_seconds.observe(
            started_seconds - min(each.since_seconds for each in batch)
        )
        self._metrics.writer_decide_seconds.observe(result.decided_seconds - started_seconds)
        self._metrics.writer_commit_seconds.observe(
            self._clock.monotonic() - result.decided_seconds
        )

    def _fail_internal(self, batch: Sequence[PendingSubmission], error: Exception) -> None:
        fault = InternalError(
            "an error of the platform; its log has the details under the request id"
        )
        fault.__cause__ = error
        self._log.error("batch failed", size=len(batch), exc_info=error)
        self._fail(batch, fault)

    def _committed(
        self, batch: Sequence[PendingSubmission], result: BatchResult
    ) -> list[PendingSubmission]:
        """Has it answered while the server writes the next batch, or when there is none; but soon
        in any case."""
        self._unanswered.append((batch, result.outcomes))
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._answer_all)
        if result.appended:
            organizations = {each.submission.organization_id for each in batch}
            self._signals.notify(channel(Queue.INTENTS), organizations)
            self._signals.notify(STREAM, organizations)
        skipped = [
            pending
            for pending, outcome in zip(batch, result.outcomes, strict=True)
            if outcome is None
        ]
        for pending in skipped:
            key_id = pending.submission.key_id or ""
            pending.held_id = (
                key_id if key_id in result.held_keys else pending.submission.account_id
            )
        return skipped

    def _answer_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._answer_all)

    def _answer_all(self) -> None:
        unanswered = self._unanswered
        self._unanswered = []
        for batch, outcomes in unanswered:
            self._answer(batch, outcomes)

    def _answer(
        self, batch: Sequence[PendingSubmission], outcomes: Sequence[SubmitOutcome | None]
    ) -> None:
        for pending, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, PlatformError):
                self._metrics.intents_refused.labels(outcome.code).inc()
            if outcome is not None:
                self._reply(pending, outcome)

    def _fail(self, batch: Sequence[PendingSubmission], error: PlatformError) -> None:
        for pending in batch:
            self._reply(pending, error)

    def _reply(self, pending: PendingSubmission, outcome: SubmitOutcome) -> None:
        """Logs an answer that cannot be given, so that the others of its batch still get theirs."""
        try:
            pending.reply(outcome)
        except Exception as error:
            self._log.error("answer failed", exc_info=error)

    async def _resolve(self, batch: list[PendingSubmission], result: BatchResult) -> None:
        """Asks the server how the commit ended, beside the queue. An aborted batch is written
        again; OutcomeUnknown if there is no reply in time."""
        proof = store.find_action(result.appended) if result.appended else None
        left_seconds = RESOLVE_SECONDS - (self._clock.monotonic() - result.decided_seconds)
        organizations = list({UUID(pending.organization_id) for pending in batch})
        match await has_committed(
            pool=self._pool,
            organizations=organizations,
            transaction_id=result.transaction_id,
            proof=proof,
            limit_seconds=left_seconds,
            log=self._log,
        ):
            case True:
                self._put_back_skipped(self._committed(batch, result))
                self._wakeup.set()
            case False:
                self._repeat(batch)
            case None:
                self._fail(batch, OutcomeUnknown())

    def _repeat(self, batch: list[PendingSubmission]) -> None:
        for pending in batch:
            pending.lost_commits += 1
        lost = [pending for pending in batch if pending.lost_commits > MAX_LOST_COMMITS]
        self._fail(
            lost, Unavailable("the connection to the database was lost; nothing was recorded")
        )
        self._queue.put_back(
            pending for pending in batch if pending.lost_commits <= MAX_LOST_COMMITS
        )
        self._wakeup.set()
