"""Group commit: whatever waits is decided and appended in one transaction, and answered after its commit."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock
from trading_intents.errors import InternalError, OutcomeUnknown, PlatformError, Unavailable
from trading_intents.ids import IdMaker
from trading_intents.intents import store
from trading_intents.intents.batch import Receipt, Settled, run_batch
from trading_intents.intents.model import Cancel, Submission
from trading_intents.outbox.model import Queue, channel
from trading_intents.storage.database import Pool
from trading_intents.storage.signals import Signals
from trading_intents.stream.log import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics

MAX_WAITING = 5_000
CANCEL_RESERVE = MAX_WAITING // 10  # places that only CANCELs may take
MAX_BATCH = 256
SETTLE_SECONDS = 3.0
SETTLE_PAUSE_SECONDS = 0.05
MAX_LOST_COMMITS = 3  # a batch whose commit ends the server each time must not end it for ever
COMMITTED, ABORTED = "committed", "aborted"  # as PostgreSQL says it


@dataclass(slots=True)
class _Waiting:
    submission: Submission
    answer: "asyncio.Future[Receipt]"
    since_seconds: float
    lost_commits: int = 0


class Writer:
    """One per process: two would halve each other's batches. No timer: a caller alone gets one commit's latency."""

    def __init__(
        self,
        pool: Pool,
        brokers: Registry,
        make_id: IdMaker,
        signals: Signals,
        clock: Clock,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._pool, self._brokers, self._make_id, self._signals = pool, brokers, make_id, signals
        self._clock, self._metrics, self._log = clock, metrics, log
        self._cancels: deque[_Waiting] = deque()
        self._others: deque[_Waiting] = deque()
        self._stirred = asyncio.Event()

    async def submit(self, submission: Submission) -> Receipt:
        """Decided, recorded and committed when this returns; else a PlatformError says why not."""
        is_cancel = isinstance(submission.command, Cancel)
        room = MAX_WAITING if is_cancel else MAX_WAITING - CANCEL_RESERVE
        if len(self._cancels) + len(self._others) >= room:
            raise Unavailable("too many commands are waiting")
        waiting = _Waiting(submission, asyncio.get_running_loop().create_future(), self._clock.monotonic())
        (self._cancels if is_cancel else self._others).append(waiting)
        self._stirred.set()
        return await waiting.answer

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._stirred.wait()
            batch = self._take()
            if not batch:
                self._stirred.clear()
                continue
            longest = max(self._clock.monotonic() - waiting.since_seconds for waiting in batch)
            self._metrics.writer_wait_seconds.observe(longest)
            try:
                await self._write(batch)
            except Exception as error:
                self._log.error("batch failed", size=len(batch), exc_info=error)
                _fail(batch, InternalError("our fault; the logs tell"))

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        for line in (self._cancels, self._others):
            while line and len(batch) < MAX_BATCH:
                waiting = line.popleft()
                if not waiting.answer.done():
                    batch.append(waiting)
        return batch

    async def _write(self, batch: list[_Waiting]) -> None:
        """What is locked elsewhere goes into the next batch; only an otherwise empty one waits for the locks."""
        skipped = await self._attempt(batch, wait=False)
        if len(skipped) == len(batch):
            await self._attempt(skipped, wait=True)
        else:
            self._others.extendleft(reversed(skipped))

    async def _attempt(self, batch: list[_Waiting], wait: bool) -> list[_Waiting]:
        """Answers what could be decided; gives back what could not be locked."""
        settled = None
        started_seconds = self._clock.monotonic()
        try:
            async with self._pool.transaction(_organizations(batch), plans="by_key") as tx:
                settled = await run_batch(tx, [w.submission for w in batch], self._brokers, self._make_id, wait)
                decided_seconds = self._clock.monotonic()
        except OutcomeUnknown as error:
            assert settled is not None
            if not await self._was_committed(settled, error, batch):
                return []
            decided_seconds = started_seconds
        except PlatformError as error:
            _fail(batch, error)
            return []
        except asyncpg.LockNotAvailableError:
            # One account that stays locked must not fail those that are free by now.
            left = await self._attempt(batch, wait=False) if wait else batch
            _fail(left, Unavailable("the account is busy"))
            return []
        except Exception as error:
            await self._one_by_one(batch, error)
            return []
        self._metrics.writer_batch_size.observe(len(batch))
        self._metrics.writer_decide_seconds.observe(decided_seconds - started_seconds)
        self._metrics.writer_commit_seconds.observe(self._clock.monotonic() - decided_seconds)
        if settled.appended:
            self._signals.notify(channel(Queue.INTENTS))
            self._signals.notify(STREAM)
        return self._answer(batch, settled.outcomes)

    def _answer(self, batch: Sequence[_Waiting], outcomes: Sequence[Receipt | PlatformError | None]) -> list[_Waiting]:
        skipped = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if outcome is None:
                skipped.append(waiting)
            elif isinstance(outcome, PlatformError):
                self._metrics.intents_refused.labels(outcome.code).inc()
                _fail([waiting], outcome)
            elif not waiting.answer.done():
                waiting.answer.set_result(outcome)
        return skipped

    async def _one_by_one(self, batch: list[_Waiting], error: Exception) -> None:
        """It went wrong before the commit: one bad command must not fail its neighbours."""
        if len(batch) == 1:
            self._log.error("command failed", exc_info=error)
            _fail(batch, InternalError("our fault; the logs tell"))
            return
        for waiting in batch:
            await self._attempt([waiting], wait=True)

    async def _was_committed(self, settled: Settled, error: OutcomeUnknown, batch: list[_Waiting]) -> bool:
        """The link was lost at COMMIT: the server knows how that ended. Aborted: again. Not known in time: says so."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while settled.transaction_id is not None:
                    status = await self._status(settled.transaction_id, settled.appended, _organizations(batch))
                    if status == COMMITTED:
                        return True
                    if status == ABORTED:
                        self._repeat(batch)
                        return False
                    await asyncio.sleep(SETTLE_PAUSE_SECONDS)
        except TimeoutError:
            pass
        _fail(batch, error)
        return False

    def _repeat(self, batch: list[_Waiting]) -> None:
        for waiting in batch:
            waiting.lost_commits += 1
        _fail([w for w in batch if w.lost_commits > MAX_LOST_COMMITS], Unavailable("the database went away"))
        self._others.extendleft(w for w in reversed(batch) if w.lost_commits <= MAX_LOST_COMMITS)
        self._stirred.set()

    async def _status(
        self, transaction_id: str, place: store.Place | None, organizations: Sequence[UUID]
    ) -> str | None:
        try:
            async with self._pool.transaction(organizations, read_only=True) as tx:
                status = await store.transaction_status(tx, transaction_id)
                # A server that crashed gives ids that it had not yet written down a second time.
                if status == COMMITTED and place and not await store.is_recorded(tx, place):
                    return ABORTED
                return status
        except asyncpg.InvalidParameterValueError:
            return ABORTED  # an id that is still to come: the server crashed and has forgotten it
        except PlatformError:
            return None


def _organizations(batch: Sequence[_Waiting]) -> list[UUID]:
    return list({w.submission.organization_id for w in batch})


def _fail(batch: Sequence[_Waiting], error: PlatformError) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
