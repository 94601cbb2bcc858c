"""The process's one writer: natural group commit. It takes those who wait, commits them as one transaction and answers
them; meanwhile the next batch gathers, and may leave behind that commit. Never answers before the commit is durable."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from trading_intents.errors import InternalError, OutcomeUnknown, PlatformError, Unavailable
from trading_intents.intents import store
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing.batch import (
    CommitLost,
    Flight,
    Mistaken,
    Receipt,
    Settled,
    Tools,
    run_ahead,
    run_batch,
)
from trading_intents.intents.writing.memory import Memory
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.database import Pool
from trading_intents.storage.pipeline import Refused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics

MAX_WAITING = 5_000
CANCEL_RESERVE = MAX_WAITING // 10  # places that only CANCELs may take
MAX_BATCH = 256
SMALL_BATCH = 16
ANSWER_SECONDS = 0.02  # from the commit, at the latest
DISTRUST_SECONDS = 1.0  # after what was remembered turned out to be wrong
SETTLE_SECONDS = 3.0  # from when the commit was sent
SETTLE_PAUSE_SECONDS = 0.05
MAX_LOST_COMMITS = 3  # a batch whose commit ends the server each time must not end it for ever
COMMITTED, ABORTED = "committed", "aborted"  # as PostgreSQL says it
LOCK_NOT_AVAILABLE = "55P03"
AHEAD, ASKED, MISTAKEN = "ahead", "asked", "mistaken"  # the ways of a batch

Outcome = Receipt | PlatformError


@dataclass(slots=True)
class Waiting:
    submission: Submission
    answer: Callable[[Outcome], None]
    since_seconds: float
    gone: bool = False  # nobody waits for the answer: if it is not begun, it is not done
    lost_commits: int = 0


class Writer:
    """One per process: two would halve each other's batches. No timer: a caller alone gets one commit's latency."""

    def __init__(self, tools: Tools, pool: Pool, signals: Signals, metrics: Metrics, log: Log) -> None:
        self._tools, self._pool, self._signals, self._metrics, self._log = tools, pool, signals, metrics, log
        self._clock = tools.clock
        self._cancels: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._stirred = asyncio.Event()
        self._enough = 1  # how many must wait for the next batch to be taken
        self._room = SMALL_BATCH
        self._crowd = 0  # how many were not answered when the last one was taken
        self._has_left = False  # what was taken last, and is not decided by the server yet
        self._flying: list[Waiting] = []  # their COMMIT is on its way
        self._unanswered: list[tuple[Sequence[Waiting], Sequence[Outcome | None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._landing: asyncio.Task[None] | None = None
        self._memory = Memory(tools.brokers, tools.clock)
        self._trusted_from_seconds = 0.0

    def offer(self, submission: Submission, answer: Callable[[Outcome], None]) -> Waiting:
        """`answer` is called once: decided, recorded and committed, or refused. Unavailable: there is no room."""
        is_cancel = isinstance(submission.command, Cancel)
        room = MAX_WAITING if is_cancel else MAX_WAITING - CANCEL_RESERVE
        if self._count() >= room:
            raise Unavailable("too many commands are waiting")
        waiting = Waiting(submission, answer, self._clock.monotonic())
        (self._cancels if is_cancel else self._others).append(waiting)
        if self._count() >= self._enough:
            self._stirred.set()
        return waiting

    async def submit(self, submission: Submission) -> Receipt:
        """As `offer`, awaited; a refusal is raised."""
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: Outcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        waiting = self.offer(submission, answer)
        try:
            outcome = await answered
        finally:
            waiting.gone = True
        if isinstance(outcome, PlatformError):
            raise outcome
        return outcome

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                if self._flying and self._count() < self._enough:
                    continue
                batch = self._take()
                if not batch:
                    self._answer_all()
                    continue
                try:
                    if not await self._ahead(batch):
                        await self._write(batch)
                except Exception as error:
                    self._broken(batch, error)
                self._has_left = False
                if self._count() >= self._enough or (self._unanswered and not self._flying):
                    self._stirred.set()
        finally:
            self._answer_all()
            self._tools.link.close()
            for task in self._tasks:
                task.cancel()

    def _count(self) -> int:
        return len(self._cancels) + len(self._others)

    def _take(self) -> list[Waiting]:
        """Half of those who come and go at most: while one half commits, the other is read and answered."""
        crowd = self._count() + len(self._flying) + sum(len(batch) for batch, _ in self._unanswered)
        self._crowd, crowd = crowd, max(crowd, self._crowd)
        self._room = min(MAX_BATCH, max(SMALL_BATCH, (crowd + 1) // 2))
        batch: list[Waiting] = []
        for line in (self._cancels, self._others):
            while line and len(batch) < self._room:
                waiting = line.popleft()
                if waiting.gone:
                    waiting.answer(Unavailable("nobody waits for it"))  # whoever counts it as under way counts on that
                else:
                    batch.append(waiting)
        return batch

    async def _ahead(self, batch: list[Waiting]) -> bool:
        """Whether it was decided by what is remembered. Then its COMMIT is on its way, and the next batch may leave
        when half as many wait as there is room for, or when this one has ended."""
        started_seconds = self._clock.monotonic()
        if started_seconds < self._trusted_from_seconds:
            return False
        try:
            flight = await run_ahead(self._tools, [w.submission for w in batch], self._memory, self._leave)
        except PlatformError as error:
            self._fail_all(batch, error)
            return True
        except Mistaken as mistake:
            self._metrics.writer_batches.labels(MISTAKEN).inc()
            if mistake.others_write:
                self._distrust()
            else:
                self._memory.forget()
            return False
        except Exception as error:
            self._log.error("batch not decided ahead", size=len(batch), exc_info=error)
            self._distrust()
            return False
        if flight is None:
            return False
        self._flying, self._enough = batch, max(SMALL_BATCH, self._room // 2)
        self._landing = self._start(self._land(batch, flight, started_seconds))
        return True

    async def _land(self, batch: list[Waiting], flight: Flight, started_seconds: float) -> None:
        try:
            settled = await flight.land()
        except CommitLost as lost:
            self._memory.forget()
            self._start(self._settle(batch, lost.settled))
        except Refused:
            self._distrust()
            self._others.extendleft(reversed(batch))  # to be asked about, and if need be one by one
        except Exception as error:
            self._distrust()
            self._broken(batch, error)
        else:
            self._committed(batch, settled)
            self._observe(AHEAD, batch, settled, started_seconds)
        finally:
            if self._flying is batch:
                self._flying, self._enough = [], 1
                self._stirred.set()

    def _distrust(self) -> None:
        """Others write here too, or something is wrong: for a while every batch asks first."""
        self._memory.forget()
        self._trusted_from_seconds = self._clock.monotonic() + DISTRUST_SECONDS

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, batch: list[Waiting]) -> None:
        """What is locked elsewhere goes into the next batch; only an otherwise empty one waits for the locks."""
        if self._flying and self._landing:
            await asyncio.wait({self._landing})  # a refusal there would take this one with it
        skipped = await self._attempt(batch, wait=False)
        if len(skipped) == len(batch):
            await self._attempt(skipped, wait=True)
        else:
            self._others.extendleft(reversed(skipped))

    async def _attempt(self, batch: list[Waiting], wait: bool) -> list[Waiting]:
        """Has what could be decided answered; gives back what could not be locked."""
        started_seconds = self._clock.monotonic()
        try:
            settled = await run_batch(self._tools, [w.submission for w in batch], wait, self._leave, self._memory)
        except CommitLost as lost:
            self._start(self._settle(batch, lost.settled))
            return []
        except PlatformError as error:
            self._fail_all(batch, error)
            return []
        except Exception as error:
            await self._one_by_one(batch, error, wait)
            return []
        finally:
            self._has_left = False
        self._observe(ASKED, batch, settled, started_seconds)
        return self._committed(batch, settled)

    def _observe(self, way: str, batch: Sequence[Waiting], settled: Settled, started_seconds: float) -> None:
        self._metrics.writer_batches.labels(way).inc()
        self._metrics.writer_batch_size.observe(len(batch))
        self._metrics.writer_wait_seconds.observe(started_seconds - min(each.since_seconds for each in batch))
        self._metrics.writer_decide_seconds.observe(settled.decided_seconds - started_seconds)
        self._metrics.writer_commit_seconds.observe(self._clock.monotonic() - settled.decided_seconds)

    def _broken(self, batch: Sequence[Waiting], error: Exception) -> None:
        self._log.error("batch failed", size=len(batch), exc_info=error)
        _fail(batch, InternalError("our fault; the logs tell"))

    def _fail_all(self, batch: list[Waiting], error: PlatformError) -> None:
        """Those who wait behind would wait for the same."""
        waiting = [*batch, *self._cancels, *self._others]
        self._cancels.clear()
        self._others.clear()
        _fail(waiting, error)

    async def _one_by_one(self, batch: list[Waiting], error: Exception, wait: bool) -> None:
        """It went wrong before the commit: one bad command must not fail its neighbours."""
        if isinstance(error, Refused) and error.code == LOCK_NOT_AVAILABLE:
            # One account that stays locked must not fail those that are free by now.
            left = await self._attempt(batch, wait=False) if wait else batch
            _fail(left, Unavailable("the account is busy"))
        elif len(batch) == 1:
            self._log.error("command failed", exc_info=error)
            _fail(batch, InternalError("our fault; the logs tell"))
        else:
            for waiting in batch:
                await self._attempt([waiting], wait=True)

    def _committed(self, batch: Sequence[Waiting], settled: Settled) -> list[Waiting]:
        self._unanswered.append((batch, settled.outcomes))
        if self._has_left or not (self._cancels or self._others):
            self._answer_all()
        else:
            # When the next batch has left, so that the server has work while answers are written and requests are read;
            # but soon, whatever becomes of that one.
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._answer_all)
        if settled.appended:
            self._signals.notify(channel(Queue.INTENTS))
            self._signals.notify(STREAM)
        return [waiting for waiting, outcome in zip(batch, settled.outcomes, strict=True) if outcome is None]

    def _leave(self) -> None:
        self._has_left = True
        asyncio.get_running_loop().call_soon(self._answer_all)

    def _answer_all(self) -> None:
        unanswered, self._unanswered = self._unanswered, []
        for batch, outcomes in unanswered:
            self._answer(batch, outcomes)

    def _answer(self, batch: Sequence[Waiting], outcomes: Sequence[Outcome | None]) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, PlatformError):
                self._metrics.intents_refused.labels(outcome.code).inc()
            if outcome is not None:
                waiting.answer(outcome)

    async def _settle(self, batch: list[Waiting], settled: Settled) -> None:
        """Beside the queue. Aborted: again. Not known in time: says so."""
        while self._clock.monotonic() - settled.decided_seconds < SETTLE_SECONDS:
            status = await self._status(settled.transaction_id, settled.appended, _organizations(batch))
            if status == COMMITTED:
                self._others.extendleft(reversed(self._committed(batch, settled)))
                self._stirred.set()
                return
            if status == ABORTED:
                self._repeat(batch)
                return
            await asyncio.sleep(SETTLE_PAUSE_SECONDS)
        _fail(batch, OutcomeUnknown())

    def _repeat(self, batch: list[Waiting]) -> None:
        for waiting in batch:
            waiting.lost_commits += 1
        _fail([w for w in batch if w.lost_commits > MAX_LOST_COMMITS], Unavailable("the database went away"))
        self._others.extendleft(w for w in reversed(batch) if w.lost_commits <= MAX_LOST_COMMITS)
        self._stirred.set()

    async def _status(
        self, transaction_id: str, place: store.Place | None, organizations: Sequence[UUID]
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


def _organizations(batch: Sequence[Waiting]) -> list[UUID]:
    return list({UUID(waiting.submission.organization_id) for waiting in batch})


def _fail(batch: Sequence[Waiting], error: PlatformError) -> None:
    for waiting in batch:
        waiting.answer(error)
