"""The optimistic write path: a batch is decided by cached state and sent before its reads return, and committed only if
they show the same state. The setting WRITER_OPTIMISTIC turns it off; the ordinary path needs nothing of it."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock
from trading_intents.errors import PlatformError, Unavailable
from trading_intents.intents.model import Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.batch import BatchDependencies, BatchResult, decide_all, wait_committed
from trading_intents.intents.writing.state.batch_state import BatchReads, BatchState, parse_replies
from trading_intents.intents.writing.state.rules import MAX_KNOWN, RulesCache
from trading_intents.storage.pipeline import (
    ConnectionDropped,
    ConnectionLost,
    PipelineConnection,
    PipelineRequest,
    StatementRefused,
)
from trading_intents.telemetry import Log, Metrics

CACHE_PAUSE_SECONDS = 1.0  # for how long the cache is not used after it was wrong
STALE = "mistaken"  # the label that the metric of batches has for it
MAX_LATE = timedelta(milliseconds=500)  # how long after its decision a batch may reach the server
MAX_EARLY = timedelta(milliseconds=1)  # how far our estimate of the server's clock may be ahead of it


class StateCache:
    def __init__(self, brokers: Registry, clock: Clock, rules: RulesCache) -> None:
        self._brokers, self._clock, self._rules = brokers, clock, rules
        self._start: datetime | None = None  # the server's time at which our steady clock was zero
        self._last: datetime | None = None
        self._heads: dict[str, tuple[int, str]] = {}

    def clear(self) -> None:
        self._heads = {}
        self._rules.clear()

    def clear_heads(self, account_ids: Iterable[str]) -> None:
        for account_id in account_ids:
            self._heads.pop(account_id, None)

    def update(self, link: PipelineConnection, submissions: Sequence[Submission], state: BatchState) -> None:
        """Caches the state of a batch, as it is after the commit on this connection."""
        self._track_clock(state.now)
        self._rules.use(link)
        self._rules.keep(submissions, state.rules)
        self._heads |= state.heads
        if len(self._heads) > MAX_KNOWN:
            self._heads = {}

    def covers(self, link: PipelineConnection, submissions: Sequence[Submission]) -> bool:
        """Whether the cache holds everything that is needed to decide these commands. Open orders, positions and
        prices, which some limits need, are never cached."""
        return (
            all(each.account_id in self._heads for each in submissions)
            and self._rules.covers(link, submissions)
            and not self._rules.find_limited(submissions)
        )

    def now(self) -> datetime:
        """An estimate of the server's clock, which never goes back."""
        assert self._start is not None, "nothing is known yet"
        now = self._start + timedelta(seconds=self._clock.monotonic())
        self._last = max(now, self._last or now)
        return self._last

    def snapshot(self, now: datetime) -> BatchState:
        """The cached state as a batch's. Its heads are the cache's own, so each decision moves them in the cache
        too."""
        return BatchState(
            brokers=self._brokers,
            heads=self._heads,
            order_rows={},
            orders={},
            earlier={},
            now=now,
            now_text=now.isoformat(),
            transaction_id="",
            rules=self._rules.rules,
        )

    def is_valid(self, now: datetime, actual: BatchState) -> bool:
        """Whether the actual state, apart from the heads, would have led to the same decisions. `now` is the estimated
        time by which the batch was decided."""
        self._track_clock(actual.now)
        is_same = self._rules.check(actual.rules.versions)
        return -MAX_EARLY <= actual.now - now <= MAX_LATE and not actual.earlier and is_same

    def _track_clock(self, now: datetime) -> None:
        """Estimates the server's clock. A reply always comes late, so the least late one counts; one that is too early
        shows that the server's clock was set back."""
        start = now - timedelta(seconds=self._clock.monotonic())
        is_back = self._last is not None and now < self._last
        self._start = start if is_back or self._start is None else max(self._start, start)
        if self._last is not None:
            self._last = min(self._last, now + MAX_EARLY)


class CacheStale(Exception):
    """The cached state is not what the database has."""

    def __init__(self, others_write: bool) -> None:
        super().__init__()
        self.others_write = others_write  # to the same accounts, so it will happen again


class PendingCommit:
    """A batch whose COMMIT has been sent."""

    def __init__(self, request: PipelineRequest, result: BatchResult) -> None:
        self._request, self._result = request, result

    async def wait(self) -> BatchResult:
        """Returns when the batch is committed. CommitLost: it may have been. StatementRefused: nothing was recorded."""
        await wait_committed(self._request, self._result)
        return self._result


class OptimisticPath:
    """The cache, and the decision whether to use it."""

    def __init__(self, dependencies: BatchDependencies, metrics: Metrics, log: Log) -> None:
        """Without a cache of rules it is off."""
        self._dependencies, self._metrics, self._log = dependencies, metrics, log
        self._is_enabled = dependencies.rules is not None
        self._cache = StateCache(dependencies.brokers, dependencies.clock, dependencies.rules or RulesCache())
        self._from_seconds = 0.0

    async def send(self, submissions: Sequence[Submission], on_sent: Callable[[], None]) -> PendingCommit | None:
        """Decides and sends a batch. None: nothing was recorded, take the ordinary path. Unavailable: so is the
        database."""
        if not self._is_enabled or self._dependencies.clock.monotonic() < self._from_seconds:
            return None
        try:
            return await run_optimistic(self._dependencies, submissions, self._cache, on_sent)
        except PlatformError:
            raise
        except CacheStale as stale:
            self._metrics.writer_batches.labels(STALE).inc()
            if stale.others_write:
                self.suspend()
            else:
                self.clear_heads(each.account_id for each in submissions)  # the decisions moved them
        except Exception as error:
            self._log.error("optimistic batch failed", size=len(submissions), exc_info=error)
            self.suspend()
        return None

    def update(self, link: PipelineConnection, submissions: Sequence[Submission], state: BatchState) -> None:
        """Caches the state of an ordinary batch that was committed. Never raises: the batch would be written again."""
        if not self._is_enabled:
            return
        try:
            self._cache.update(link, submissions, state)
        except Exception as error:
            self._log.error("batch not cached", size=len(submissions), exc_info=error)
            self.suspend()

    def clear(self) -> None:
        self._cache.clear()

    def clear_heads(self, account_ids: Iterable[str]) -> None:
        self._cache.clear_heads(account_ids)

    def suspend(self) -> None:
        """Stops using the cache for a while, because others write to these accounts too or something is wrong."""
        self._cache.clear()
        self._from_seconds = self._dependencies.clock.monotonic() + CACHE_PAUSE_SECONDS


async def run_optimistic(
    dependencies: BatchDependencies, submissions: Sequence[Submission], cache: StateCache, on_sent: Callable[[], None]
) -> PendingCommit | None:
    """Decides by the cache while the database reads, and sends COMMIT only if the reads show the same state.

    None: the cache does not cover the batch, or no connection is open. CacheStale, Unavailable: nothing was recorded.
    `on_sent` runs when the batch has been sent.
    """
    link = dependencies.link.open_connection
    if link is None:
        return None
    if not cache.covers(link, submissions):
        return None
    reads, now = BatchReads(submissions), cache.now()
    others_write = True  # until the replies tell
    request = link.send([*reads.locks(statements.NO_WAIT), *reads.checks()], more=True)
    try:
        state = cache.snapshot(now)
        heads = {account_id: state.heads[account_id] for account_id in reads.account_ids}
        work, outcomes = decide_all(dependencies, submissions, state)
        # If BEGIN fails, the server refuses these statements too: row-level security lets in only rows of the
        # organizations that the transaction named right after its BEGIN.
        request.append_statements(work.writes(), more=True)
        decided_seconds = dependencies.clock.monotonic()
        on_sent()
        request.append_statements(work.events(), more=True)  # built while the server works on the rest
        with contextlib.suppress(StatementRefused):
            actual = parse_replies(dependencies.brokers, reads, await request.first_replies())
            others_write = actual.heads != heads
            if not others_write and cache.is_valid(now, actual):
                request.append_statements([statements.COMMIT])
                result = BatchResult(outcomes, work.batch.last(), actual.transaction_id, decided_seconds)
                return PendingCommit(request, result)
        with contextlib.suppress(StatementRefused):
            request.append_statements([statements.ROLLBACK])
            await request.all_replies()
    except ConnectionDropped:
        pass  # the server refused a statement of this batch or of the one before it
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    except BaseException:
        link.close(ConnectionDropped())  # which ends the transaction
        raise
    raise CacheStale(others_write)
