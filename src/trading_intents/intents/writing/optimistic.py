"""The optimistic write path: a batch is decided by cached state, sent before the database has answered what it met, and
committed only if that is the same. Behind the setting WRITER_OPTIMISTIC; the ordinary path needs nothing of it."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock
from trading_intents.controls.model import Switch, TimeRule
from trading_intents.errors import PlatformError, Unavailable
from trading_intents.intents.model import AccountState, Create, KeyState, Submission
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.batch import BatchDependencies, BatchResult, decide_all, wait_committed
from trading_intents.intents.writing.batch_state import BatchReads, BatchState, parse_replies
from trading_intents.storage.pipeline import (
    ConnectionDropped,
    ConnectionLost,
    PipelineConnection,
    PipelineRequest,
    StatementRefused,
)
from trading_intents.telemetry import Log, Metrics

CACHE_PAUSE_SECONDS = 1.0  # after the cache was wrong
STALE = "mistaken"  # as the metric of batches names it
MAX_KNOWN = 50_000
MAX_LATE = timedelta(milliseconds=500)  # how long after its decision a batch may meet the server
MAX_EARLY = timedelta(milliseconds=1)  # how far our idea of the server's clock may be ahead of it


class StateCache:
    def __init__(self, brokers: Registry, clock: Clock) -> None:
        self._brokers, self._clock = brokers, clock
        self._start: datetime | None = None  # when our clock was zero, by the server's
        self._last: datetime | None = None
        self._link: PipelineConnection | None = None
        self.clear()

    def use(self, link: PipelineConnection) -> None:
        """Forgets what was read on another connection: it may lead to a server that lost the latest commits, where a
        version that was seen comes again for other rules."""
        if link is not self._link:
            self.clear()
            self._link = link

    def clear(self) -> None:
        self._known: set[tuple[str, str, str, str]] = set()  # organization, account, key, symbol
        self._heads: dict[str, tuple[int, str]] = {}
        self._versions: dict[str, str] = {}  # of the rest, by organization
        self._accounts: dict[str, AccountState] = {}
        self._keys: dict[str, KeyState] = {}
        self._switches: dict[tuple[str, str], Switch] = {}
        self._windows: dict[tuple[str, str], TimeRule] = {}

    def clear_heads(self, account_ids: Iterable[str]) -> None:
        for account_id in account_ids:
            self._heads.pop(account_id, None)

    def update(self, submissions: Sequence[Submission], met: BatchState) -> None:
        """`met` as it is after its batch was committed."""
        is_old = any(self._versions.get(key, version) != version for key, version in met.versions.items())
        if is_old or len(self._known) > MAX_KNOWN:
            self.clear()
        self._track_clock(met.now)
        for each in submissions:
            account_id, key_id = each.account_id, each.key_id
            if account_id not in met.heads or key_id is None or key_id not in met.keys:
                continue
            self._heads[account_id] = met.heads[account_id]
            self._accounts[account_id] = met.accounts[account_id]
            self._keys[key_id] = met.keys[key_id]
            if isinstance(each.command, Create):
                self._known.add((each.organization_id, account_id, key_id, each.command.symbol))
        self._versions |= met.versions
        self._switches |= met.switches
        self._windows |= met.windows

    def covers(self, submissions: Sequence[Submission]) -> bool:
        """Whether all that they will meet can be recalled."""
        for each in submissions:
            place = each.organization_id, each.account_id, each.key_id or "", getattr(each.command, "symbol", "")
            if place not in self._known or each.account_id not in self._heads:
                return False
        return True

    def now(self) -> datetime:
        """The server's clock as far as we know, and never back."""
        assert self._start is not None, "nothing is known yet"
        now = self._start + timedelta(seconds=self._clock.monotonic())
        self._last = max(now, self._last or now)
        return self._last

    def snapshot(self, now: datetime) -> BatchState:
        """What will be met if nothing happened since. Its heads stay ours: they move on with each decision."""
        return BatchState(
            brokers=self._brokers,
            heads=self._heads,
            order_rows={},
            orders={},
            earlier={},
            now=now,
            now_text=now.isoformat(),
            transaction_id="",
            versions=self._versions,
            accounts=self._accounts,
            keys=self._keys,
            switches=self._switches,
            windows=self._windows,
        )

    def is_valid(self, now: datetime, met: BatchState) -> bool:
        """Whether it would have been decided alike by what it met beside the heads. `now` is what we recalled."""
        self._track_clock(met.now)
        return (
            -MAX_EARLY <= met.now - now <= MAX_LATE
            and not met.earlier
            and all(self._versions.get(organization_id) == version for organization_id, version in met.versions.items())
        )

    def _track_clock(self, now: datetime) -> None:
        """An answer is always late: the least late one tells best. One that is too early tells of a clock set back."""
        start = now - timedelta(seconds=self._clock.monotonic())
        is_back = self._last is not None and now < self._last
        self._start = start if is_back or self._start is None else max(self._start, start)
        if self._last is not None:
            self._last = min(self._last, now + MAX_EARLY)


class CacheStale(Exception):
    """What was remembered holds no longer."""

    def __init__(self, others_write: bool) -> None:
        super().__init__()
        self.others_write = others_write  # to the same accounts: it will happen again


class PendingCommit:
    """A batch whose COMMIT is on its way."""

    def __init__(self, request: PipelineRequest, result: BatchResult) -> None:
        self._request, self._result = request, result

    async def wait(self) -> BatchResult:
        """Committed when it returns. CommitLost: perhaps. Refused: nothing was recorded."""
        await wait_committed(self._request, self._result)
        return self._result


class OptimisticPath:
    """The cache, and when it is not to be used."""

    def __init__(self, dependencies: BatchDependencies, is_enabled: bool, metrics: Metrics, log: Log) -> None:
        self._dependencies, self._is_enabled, self._metrics, self._log = dependencies, is_enabled, metrics, log
        self._cache = StateCache(dependencies.brokers, dependencies.clock)
        self._from_seconds = 0.0

    async def send(self, submissions: Sequence[Submission], on_sent: Callable[[], None]) -> PendingCommit | None:
        """None: nothing was recorded, and the ordinary path is to be taken. Unavailable: the database is away."""
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
                self.clear()
        except Exception as error:
            self._log.error("batch not decided ahead", size=len(submissions), exc_info=error)
            self.suspend()
        return None

    def update(self, link: PipelineConnection, submissions: Sequence[Submission], state: BatchState) -> None:
        """After an ordinary batch was committed."""
        if self._is_enabled:
            self._cache.use(link)
            self._cache.update(submissions, state)

    def clear(self) -> None:
        self._cache.clear()

    def clear_heads(self, account_ids: Iterable[str]) -> None:
        self._cache.clear_heads(account_ids)

    def suspend(self) -> None:
        """Others write to these accounts too, or something is wrong: for a while every batch is read for first."""
        self._cache.clear()
        self._from_seconds = self._dependencies.clock.monotonic() + CACHE_PAUSE_SECONDS


async def run_optimistic(
    dependencies: BatchDependencies, submissions: Sequence[Submission], cache: StateCache, on_sent: Callable[[], None]
) -> PendingCommit | None:
    """Decides by the cache while the database reads, and sends COMMIT only if the database met the same state.

    None: the cache does not cover the batch, or no connection is open. CacheStale, Unavailable: nothing was recorded.
    `on_sent` runs when the batch has been sent.
    """
    link = dependencies.link.open_connection
    if link is None:
        return None
    cache.use(link)
    if not cache.covers(submissions):
        return None
    asked, now = BatchReads(submissions), cache.now()
    others_write = True  # as long as we do not know
    request = link.send([*asked.locks(statements.NO_WAIT), *asked.checks()], more=True)
    try:
        state = cache.snapshot(now)
        heads = {account_id: state.heads[account_id] for account_id in asked.account_ids}
        work, outcomes = decide_all(dependencies, submissions, state)
        # What leaves from here on is refused by the server if BEGIN was: row-level security lets in what belongs to
        # the organizations that the transaction named behind its BEGIN, and nothing else.
        request.append_statements(work.writes(), more=True)
        decided_seconds = dependencies.clock.monotonic()
        on_sent()
        request.append_statements(work.events(), more=True)  # made while the server is at work on the rest
        with contextlib.suppress(StatementRefused):
            met = parse_replies(dependencies.brokers, asked, await request.head())
            others_write = met.heads != heads
            if not others_write and cache.is_valid(now, met):
                request.append_statements([statements.COMMIT])
                result = BatchResult(outcomes, work.batch.last(), met.transaction_id, decided_seconds)
                return PendingCommit(request, result)
        with contextlib.suppress(StatementRefused):
            request.append_statements([statements.ROLLBACK])
            await request.end()
    except ConnectionDropped:
        pass  # something was refused: of this batch, or of the one before it
    except ConnectionLost:
        raise Unavailable("the connection to the database was lost; nothing was recorded") from None
    except BaseException:
        link.close(ConnectionDropped())  # the transaction ends with it
        raise
    raise CacheStale(others_write)
