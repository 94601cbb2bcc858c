"""The process's one writer: natural group commit. It takes those who wait, commits them as one transaction and answers
them; meanwhile the next batch gathers, and may leave behind that commit. Never answers before the commit is durable."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg

from trading_intents.errors import InternalError, OutcomeUnknown, PlatformError, Unavailable, wire_errors
from trading_intents.intents import store
from trading_intents.intents.model import Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.batch import (
    BatchDependencies,
    BatchResult,
    CommitLost,
    Receipt,
    run_batch,
)
from trading_intents.intents.writing.lock_waits import LockWaits
from trading_intents.intents.writing.optimistic import STALE, OptimisticPath, PendingCommit
from trading_intents.intents.writing.queue import Outcome, PendingSubmission, SubmissionQueue, group_by
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.database import Pool
from trading_intents.storage.pipeline import Pipeline, StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics, make_series

MAX_BATCH = 256
SMALL_BATCH = 16
ANSWER_SECONDS = 0.02  # from the commit, at the latest
SETTLE_SECONDS = 3.0  # from when the commit was sent
SETTLE_PAUSE_SECONDS = 0.05
MAX_LOST_COMMITS = 3  # a batch whose commit ends the server each time must not end it for ever
MAX_SKIPS = 1  # by batches, for an account that is locked elsewhere; then its commands wait for the lock
COMMITTED, ABORTED = "committed", "aborted"  # as PostgreSQL says it
AHEAD, ASKED = "ahead", "asked"  # the ways of a batch, as its metric names them
WAYS = (AHEAD, ASKED, STALE)


class Writer:
    """One per process: two would halve each other's batches. No timer: a caller alone gets one commit's latency."""

    def __init__(
        self,
        dependencies: BatchDependencies,
        pool: Pool,
        signals: Signals,
        metrics: Metrics,
        log: Log,
        is_optimistic: bool = True,
    ) -> None:
        self._dependencies, self._pool, self._signals = dependencies, pool, signals
        self._metrics, self._log = metrics, log
        self._clock = dependencies.clock
        self._queue = SubmissionQueue()
        self._lock_waits = LockWaits(dependencies.link, self._write_held, self._fail, dependencies.clock)
        self._wakeup = asyncio.Event()
        self._min_batch = 1  # how many must wait for the next batch to be taken
        self._max_batch = SMALL_BATCH
        self._load = 0  # how many were not answered when the last one was taken
        self._is_sent = False  # what was taken last, and is not decided by the server yet
        self._committing: list[PendingSubmission] = []  # their COMMIT is on its way
        self._unanswered: list[tuple[Sequence[PendingSubmission], Sequence[Outcome | None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._commit_task: asyncio.Task[None] | None = None
        self._optimistic = OptimisticPath(dependencies, is_optimistic, metrics, log)
        make_series(metrics.writer_batches, WAYS)
        make_series(metrics.intents_refused, {error.code for error in wire_errors()})

    def enqueue(self, submission: Submission, answer: Callable[[Outcome], None]) -> PendingSubmission:
        """`answer` is called once: decided, recorded and committed, or refused. Unavailable: there is no room."""
        pending = PendingSubmission(submission, answer, self._clock.monotonic())
        (self._lock_waits.queue_for(submission) or self._queue).put(pending)
        if len(self._queue) >= self._min_batch:
            self._wakeup.set()
        return pending

    async def submit(self, submission: Submission) -> Receipt:
        """As `enqueue`, awaited; a refusal is raised."""
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: Outcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        pending = self.enqueue(submission, answer)
        try:
            outcome = await answered
        finally:
            pending.is_abandoned = True
        if isinstance(outcome, PlatformError):
            raise outcome
        return outcome

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                if self._committing and len(self._queue) < self._min_batch:
                    continue
                batch = self._take()
                if not batch:
                    self._answer_all()
                    continue
                try:
                    if not await self._write_optimistic(batch):
                        await self._write(batch)
                except Exception as error:
                    self._fail_internal(batch, error)
                self._is_sent = False
                if len(self._queue) >= self._min_batch or (self._unanswered and not self._committing):
                    self._wakeup.set()
        finally:
            self._answer_all()
            self._dependencies.link.close()
            self._lock_waits.close()
            for task in self._tasks:
                task.cancel()

    def _take(self) -> list[PendingSubmission]:
        """Half of those who come and go at most: while one half commits, the other is read and answered."""
        load = len(self._queue) + len(self._committing) + sum(len(batch) for batch, _ in self._unanswered)
        self._load, load = load, max(load, self._load)
        self._max_batch = min(MAX_BATCH, max(SMALL_BATCH, (load + 1) // 2))
        return self._queue.take(self._max_batch)

    async def _write_optimistic(self, batch: list[PendingSubmission]) -> bool:
        """Whether it was decided by what is remembered. Then its COMMIT is on its way, and the next batch may leave
        when half as many wait as there is room for, or when this one has ended."""
        started_seconds = self._clock.monotonic()
        try:
            pending_commit = await self._optimistic.send([each.submission for each in batch], self._on_sent)
        except PlatformError as error:
            self._fail_behind(batch, error)
            return True
        if pending_commit is None:
            return False
        self._committing, self._min_batch = batch, max(SMALL_BATCH, self._max_batch // 2)
        self._commit_task = self._start(self._wait_commit(batch, pending_commit, started_seconds))
        return True

    async def _wait_commit(
        self, batch: list[PendingSubmission], pending_commit: PendingCommit, started_seconds: float
    ) -> None:
        try:
            result = await pending_commit.wait()
        except CommitLost as lost:
            self._optimistic.clear()
            self._start(self._settle(batch, lost.result))
        except StatementRefused:
            self._optimistic.suspend()
            self._queue.put_back(batch)  # to be asked about, and if need be one by one
        except PlatformError as error:
            self._optimistic.clear()
            self._fail(batch, error)
        except Exception as error:
            self._optimistic.suspend()
            self._fail_internal(batch, error)
        else:
            self._committed(batch, result)
            self._observe(AHEAD, batch, result, started_seconds)
        finally:
            if self._committing is batch:
                self._committing, self._min_batch = [], 1
                self._wakeup.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, batch: list[PendingSubmission]) -> None:
        """Commands of accounts that are locked elsewhere go into the next batch, then wait for the lock."""
        if self._committing and self._commit_task:
            await asyncio.wait({self._commit_task})  # a refusal there would take this one with it
        try:
            skipped = await self._attempt(self._dependencies, batch, statements.SKIP)
        except StatementRefused:
            await self._write_by_organization(batch)
        else:
            self._put_back_skipped(skipped)

    async def _write_by_organization(self, batch: Sequence[PendingSubmission]) -> None:
        """Another transaction holds a lock of one of these organizations: found by halves, it waits alone."""
        groups = group_by(batch, lambda pending: pending.organization_id)
        first, *others = groups
        if not others:
            self._lock_waits.add(first, batch)
            return
        for half in ([first, *others[1::2]], others[::2]):
            part = [pending for organization_id in half for pending in groups[organization_id]]
            try:
                self._put_back_skipped(await self._attempt(self._dependencies, part, statements.SKIP_AT_ONCE))
            except StatementRefused:
                await self._write_by_organization(part)

    def _put_back_skipped(self, skipped: Sequence[PendingSubmission]) -> None:
        for pending in skipped:
            pending.skips += 1
        self._queue.put_back(pending for pending in skipped if pending.skips <= MAX_SKIPS)
        held = [pending for pending in skipped if pending.skips > MAX_SKIPS]
        for account_id, own in group_by(held, lambda pending: pending.submission.account_id).items():
            self._lock_waits.add(account_id, own)

    async def _write_held(self, link: Pipeline, batch: list[PendingSubmission]) -> list[PendingSubmission]:
        """Beside the queue. Gives back what is locked still."""
        dependencies = replace(self._dependencies, link=link)
        try:
            # The second time because an account that stays locked must not keep the organization's others.
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
        """Has what could be decided answered; gives back what could not be locked. Refused: by a lock, and nothing was
        done."""
        if not batch:
            return []
        started_seconds, is_ours = self._clock.monotonic(), dependencies is self._dependencies
        ours = (self._on_sent, self._optimistic.update) if is_ours else ()
        try:
            result = await run_batch(dependencies, [each.submission for each in batch], locking, *ours)
        except CommitLost as lost:
            self._start(self._settle(batch, lost.result))
            return []
        except PlatformError as error:
            if is_ours:
                self._fail_behind(batch, error)
            else:
                self._fail(batch, error)
            return []
        except Exception as error:
            if isinstance(error, StatementRefused) and error.is_contention:
                raise
            return await self._repair(dependencies, batch, locking, error, is_second)
        finally:
            if is_ours:
                self._is_sent = False
        self._observe(ASKED, batch, result, started_seconds)
        if not is_ours:
            self._optimistic.clear_heads(each.submission.account_id for each in batch)
        return self._committed(batch, result)

    async def _repair(
        self,
        dependencies: BatchDependencies,
        batch: list[PendingSubmission],
        locking: statements.Locking,
        error: Exception,
        is_second: bool,
    ) -> list[PendingSubmission]:
        """It went wrong before the commit. A prepared statement may have been the reason, and is gone with its
        connection; else one bad command must not fail its neighbours."""
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
        self, way: str, batch: Sequence[PendingSubmission], result: BatchResult, started_seconds: float
    ) -> None:
        self._metrics.writer_batches.labels(way).inc()
        self._metrics.writer_batch_size.observe(len(batch))
        self._metrics.writer_wait_seconds.observe(started_seconds - min(each.since_seconds for each in batch))
        self._metrics.writer_decide_seconds.observe(result.decided_seconds - started_seconds)
        self._metrics.writer_commit_seconds.observe(self._clock.monotonic() - result.decided_seconds)

    def _fail_internal(self, batch: Sequence[PendingSubmission], error: Exception) -> None:
        fault = InternalError("an error of the platform; its log has the details under the request id")
        fault.__cause__ = error
        self._log.error("batch failed", size=len(batch), exc_info=error)
        self._fail(batch, fault)

    def _committed(self, batch: Sequence[PendingSubmission], result: BatchResult) -> list[PendingSubmission]:
        self._unanswered.append((batch, result.outcomes))
        if self._is_sent or not len(self._queue):
            self._answer_all()
        else:
            # When the next batch has left, so that the server has work while answers are written and requests are read;
            # but soon, whatever becomes of that one.
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._answer_all)
        if result.appended:
            self._signals.notify(channel(Queue.INTENTS))
            self._signals.notify(STREAM)
        return [pending for pending, outcome in zip(batch, result.outcomes, strict=True) if outcome is None]

    def _on_sent(self) -> None:
        self._is_sent = True
        asyncio.get_running_loop().call_soon(self._answer_all)

    def _answer_all(self) -> None:
        unanswered, self._unanswered = self._unanswered, []
        for batch, outcomes in unanswered:
            self._answer(batch, outcomes)

    def _answer(self, batch: Sequence[PendingSubmission], outcomes: Sequence[Outcome | None]) -> None:
        for pending, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, PlatformError):
                self._metrics.intents_refused.labels(outcome.code).inc()
            if outcome is not None:
                self._tell(pending, outcome)

    def _fail_behind(self, batch: list[PendingSubmission], error: PlatformError) -> None:
        """With those who wait behind: they would wait for the same."""
        self._fail([*batch, *self._queue.take(len(self._queue))], error)

    def _fail(self, batch: Sequence[PendingSubmission], error: PlatformError) -> None:
        for pending in batch:
            self._tell(pending, error)

    def _tell(self, pending: PendingSubmission, outcome: Outcome) -> None:
        """An answer that cannot be given must not keep the others of its batch from theirs."""
        try:
            pending.reply(outcome)
        except Exception as error:
            self._log.error("answer failed", exc_info=error)

    async def _settle(self, batch: list[PendingSubmission], result: BatchResult) -> None:
        """Beside the queue. Aborted: again. Not known in time: says so."""
        while self._clock.monotonic() - result.decided_seconds < SETTLE_SECONDS:
            status = await self._status(result.transaction_id, result.appended, _organizations(batch))
            if status == COMMITTED:
                self._put_back_skipped(self._committed(batch, result))
                self._wakeup.set()
                return
            if status == ABORTED:
                self._repeat(batch)
                return
            await asyncio.sleep(SETTLE_PAUSE_SECONDS)
        self._fail(batch, OutcomeUnknown())

    def _repeat(self, batch: list[PendingSubmission]) -> None:
        for pending in batch:
            pending.lost_commits += 1
        lost = [pending for pending in batch if pending.lost_commits > MAX_LOST_COMMITS]
        self._fail(lost, Unavailable("the connection to the database was lost; nothing was recorded"))
        self._queue.put_back(pending for pending in batch if pending.lost_commits <= MAX_LOST_COMMITS)
        self._wakeup.set()

    async def _status(
        self, transaction_id: str, place: store.ActionPlace | None, organizations: Sequence[UUID]
    ) -> str | None:
        try:
            async with asyncio.timeout(SETTLE_SECONDS), self._pool.transaction(organizations, read_only=True) as tx:
                status = await store.transaction_status(tx, transaction_id)
                # A server that crashed gives ids that it had not yet written down a second time.
                if status == COMMITTED and place and not await store.is_recorded(tx, place):
                    return ABORTED
                return status
        except asyncpg.InvalidParameterValueError:
            return ABORTED  # an id that is still to come: the server crashed and has forgotten it
        except (PlatformError, TimeoutError):
            return None


def _organizations(batch: Sequence[PendingSubmission]) -> list[UUID]:
    return list({UUID(pending.organization_id) for pending in batch})
