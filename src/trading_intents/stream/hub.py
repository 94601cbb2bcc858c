"""Reads the log of each followed organization once, however many subscribers it has. Hands on only
committed events, skips none of them, and lets no subscriber wait for another."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from uuid import UUID

from trading_intents import errors
from trading_intents.clock import Clock
from trading_intents.ids import OrganizationId
from trading_intents.loops import repeat
from trading_intents.storage.database import Pool
from trading_intents.stream import log as event_log
from trading_intents.stream.log import LoggedEvent
from trading_intents.stream.subscriber import EventBatch, Subscriber, heartbeat
from trading_intents.stream.subscription_filter import EventPage, Subscription, SubscriptionFilter
from trading_intents.telemetry import Log, Metrics, make_series

TRANSPORTS = ("grpc", "sse")  # values of the metrics' label `door`
LEFT = "left"  # used instead of an error's code when the reader ended the stream
POLL_SECONDS = 1.0  # events arrive within this time; a wake-up only makes it sooner
PAGE_EVENTS = 500
MAX_PAGES = 16
RECENT_EVENTS = 1_000
RECENT_BYTES = 1024 * 1024
TICK_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0
# A connection that takes nothing for so long is ended, however little it is behind.
STUCK_SECONDS = 60.0
CHECK_SECONDS = 2.0
MAX_CHECKS = 4
MAX_STREAMS_PER_CALLER = 100
# An organization is not read while all of its subscribers that still take events have this much
# waiting: this process is the slow one then, and events wait better in the log than in memory.
BACKLOG_EVENTS = 2_000
BACKLOG_BYTES = 2 * 1024 * 1024
STOPPED_SECONDS = 2.0
BACKLOG_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The caller of a stream. `check` raises once its credential is no longer valid; streams with
    the same one share a check."""

    transport: str
    caller: str
    organization_id: OrganizationId | None  # None: a service account named one that does not exist
    credential: Hashable
    expires_at: datetime | None
    check: Callable[[], Awaitable[None]]


@dataclass(eq=False, slots=True, kw_only=True)
class OrganizationFeed:
    """An organization with subscribers. `position` is the last seq that was handed to them."""

    organization_id: OrganizationId
    position: int
    members: set[Subscriber] = field(default_factory=set)
    _wanted: dict[Subscriber, frozenset[Subscription]] = field(default_factory=dict)
    _groups: dict[frozenset[Subscription], tuple[SubscriptionFilter, dict[Subscriber, None]]] = (
        field(default_factory=dict)
    )
    _recent: deque[LoggedEvent] = field(default_factory=deque)
    _recent_bytes: int = 0
    # Each page sets it and makes another.
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def oldest_buffered_seq(self) -> int:
        """Events after this seq need not be read again."""
        return self.position - len(self._recent)

    def since(self, seq: int) -> list[LoggedEvent]:
        assert self.oldest_buffered_seq <= seq <= self.position
        return list(islice(self._recent, seq - self.oldest_buffered_seq, None))

    async def reach(self, seq: int) -> None:
        while self.position < seq:
            await self._moved.wait()

    def change(self, subscriber: Subscriber, wanted: frozenset[Subscription]) -> None:
        """Sets what the subscriber wants from the next event on; an empty set removes it."""
        before = self._wanted.pop(subscriber, None)
        if before is not None:
            members = self._groups[before][1]
            del members[subscriber]
            if not members:
                del self._groups[before]
        if wanted:
            self._wanted[subscriber] = wanted
            self._groups.setdefault(wanted, (SubscriptionFilter(wanted), {}))[1][subscriber] = None

    def deliver(self, events: list[LoggedEvent]) -> int:
        """Hands events to all subscribers, and gives how many deliveries that were."""
        page = EventPage(events)
        count = 0
        for subscription_filter, members in self._groups.values():
            messages = subscription_filter.select_messages(page)
            if messages:
                batch = EventBatch(messages)
                count += len(messages) * len(members)
                for subscriber in members:
                    subscriber.put(batch)
        self._remember(events)
        self.position = events[-1].seq
        self._moved.set()
        self._moved = asyncio.Event()
        return count

    def _remember(self, events: list[LoggedEvent]) -> None:
        self._recent.extend(events)
        self._recent_bytes += sum(len(event.message.data) for event in events)
        while len(self._recent) > RECENT_EVENTS or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().message.data)

    def is_backlogged(self, now: float) -> bool:
        is_any_taking = False
        for subscriber in self._wanted:
            if now - subscriber.moved_at < STOPPED_SECONDS:
                if subscriber.events <= BACKLOG_EVENTS and subscriber.bytes <= BACKLOG_BYTES:
                    return False
                is_any_taking = True
        return is_any_taking


class Hub:
    def __init__(
        self,
        pool: Pool,
        max_streams: int,
        per_organization: int,
        clock: Clock,
        metrics: Metrics,
        log: Log,
    ) -> None:
        """`per_organization` 0: a quarter of the streams."""
        self._max_streams = max_streams
        self._per_organization = per_organization or max(1, max_streams // 4)
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._log = log
        make_series(metrics.stream_subscribers, TRANSPORTS)
        make_series(
            metrics.stream_ended,
            TRANSPORTS,
            (LEFT, *{error.code for error in errors.wire_errors()}),
        )
        self._sessions: dict[Subscriber, Session] = {}
        # Streams of each caller, and of each organization.
        self._callers: Counter[Hashable] = Counter()
        self._feeds: dict[OrganizationId, OrganizationFeed] = {}
        self._follows: dict[Subscriber, OrganizationFeed] = {}
        self._epoch: UUID | None = None
        self._wakeup = asyncio.Event()
        self.draining = False

    def open(self, session: Session, notify: Callable[[], None]) -> Subscriber:
        """Registers a new connection, until `close`."""
        if self.draining:
            raise errors.Unavailable("this process is shutting down; try another, or again")
        if self._callers[session.caller] >= MAX_STREAMS_PER_CALLER:
            raise errors.LimitReached(
                f"the caller has {MAX_STREAMS_PER_CALLER} streams, which is the limit; close some"
            )
        if self._callers[session.organization_id] >= self._per_organization:
            detail = (
                f"the organization has {self._per_organization} streams, which is the limit; "
                "close some"
            )
            raise errors.RateLimited("organization", detail, {"retry-after": "1"})
        if len(self._sessions) >= self._max_streams:
            raise errors.Unavailable(
                "this process has reached its limit of streams; try another, or again"
            )
        subscriber = Subscriber(notify)
        self._sessions[subscriber] = session
        self._callers.update((session.caller, session.organization_id))
        self._metrics.stream_subscribers.labels(session.transport).inc()
        return subscriber

    def close(self, subscriber: Subscriber) -> None:
        session = self._sessions.pop(subscriber)
        for counted in (session.caller, session.organization_id):
            self._callers[counted] -= 1
            if not self._callers[counted]:
                del self._callers[counted]
        self._metrics.stream_subscribers.labels(session.transport).dec()
        self._metrics.stream_ended.labels(
            session.transport, subscriber.error.code if subscriber.error else LEFT
        ).inc()
        feed = self._follows.pop(subscriber, None)
        if feed is not None:
            feed.change(subscriber, frozenset())
            feed.members.discard(subscriber)
            if not feed.members:
                self._drop(feed)

    def follow(
        self, subscriber: Subscriber, organization_id: OrganizationId, epoch: UUID, head: int
    ) -> OrganizationFeed:
        """`head` is where reading begins if the organization has no subscriber yet."""
        if not self._feeds:
            self._epoch = epoch
        feed = self._feeds.setdefault(
            organization_id, OrganizationFeed(organization_id=organization_id, position=head)
        )
        feed.members.add(subscriber)
        self._follows[subscriber] = feed
        self.wake()
        return feed

    def wake(self) -> None:
        """Reads the log soon, because there may be new events."""
        self._wakeup.set()

    def has_followers(self, organization_id: str) -> bool:
        return OrganizationId(UUID(organization_id)) in self._feeds

    def drain(self) -> None:
        self.draining = True
        for subscriber in list(self._sessions):
            subscriber.end(
                errors.Unavailable("this process is shutting down; try another, or again")
            )

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(
                repeat(self._advance, POLL_SECONDS, self._log_failed_read, self._wakeup)
            )
            group.create_task(repeat(self._tick, TICK_SECONDS, self._log_failed_upkeep))
            group.create_task(repeat(self._check, CHECK_SECONDS, self._log_failed_upkeep))

    def _log_failed_read(self, _: str, error: Exception) -> None:
        if isinstance(error, errors.PlatformError):
            self._log.warning("event log not readable", reason=error.detail)
        else:
            self._log.error("event log read failed", exc_info=error)

    async def _advance(self) -> float:
        """Hands on new events, page by page. Gives how long to wait for a wake-up after that."""
        pause_seconds = POLL_SECONDS
        while self._feeds:
            now = asyncio.get_running_loop().time()
            waiting = {
                organization_id: feed
                for organization_id, feed in self._feeds.items()
                if not feed.is_backlogged(now)
            }
            after = {organization_id: feed.position for organization_id, feed in waiting.items()}
            epoch, pages = await event_log.read_after(self._pool, after, PAGE_EVENTS, MAX_PAGES)
            if epoch != self._epoch:
                self._forget(epoch)
                continue
            has_more = len(pages) == MAX_PAGES
            for organization_id, page in pages.items():
                feed = waiting[organization_id]
                self._hand_on(feed, page)
                self._requeue(feed)
                has_more |= len(page) == PAGE_EVENTS
            # A commit from here on wakes the hub again.
            if not has_more:
                if len(waiting) < len(self._feeds):
                    pause_seconds = BACKLOG_PAUSE_SECONDS
                break
        self._metrics.stream_caught_up_at.set_to_current_time()
        return pause_seconds

    def _hand_on(self, feed: OrganizationFeed, page: list[LoggedEvent]) -> None:
        # A gap means that this process was stopped for longer than events are kept, or that rows of
        # the log are lost.
        if not event_log.is_dense(page, feed.position):
            self._metrics.stream_holes.inc()
            self._log.error(
                "events missing from the log",
                organization=str(feed.organization_id),
                after_seq=feed.position,
            )
            self._end(feed)
            return
        self._metrics.stream_events.inc(len(page))
        self._metrics.stream_deliveries.inc(feed.deliver(page))

    def _forget(self, epoch: UUID) -> None:
        """Ends all streams, because the database was restored and their cursors are invalid."""
        if self._epoch is not None:
            for feed in list(self._feeds.values()):
                self._end(feed)
        self._epoch = epoch

    def _requeue(self, feed: OrganizationFeed) -> None:
        """Moves it behind the others, so that a busy organization does not keep the rest from being
        read."""
        if self._feeds.get(feed.organization_id) is feed:
            self._feeds[feed.organization_id] = self._feeds.pop(feed.organization_id)

    def _drop(self, feed: OrganizationFeed) -> None:
        if self._feeds.get(feed.organization_id) is feed:
            del self._feeds[feed.organization_id]

    def _end(self, feed: OrganizationFeed) -> None:
        self._drop(feed)
        for subscriber in feed.members:
            subscriber.end(errors.CursorExpired("the log no longer has what follows: prime again"))

    def _log_failed_upkeep(self, work: str, error: Exception) -> None:
        self._log.error("stream upkeep failed", work=work, exc_info=error)

    async def _tick(self) -> None:
        """Sends heartbeats, and ends streams that take nothing or whose credential has expired."""
        now = self._clock.now()
        now_seconds = asyncio.get_running_loop().time()
        beat = None
        for subscriber, session in list(self._sessions.items()):
            still_seconds = now_seconds - subscriber.moved_at
            if session.expires_at is not None and session.expires_at <= now:
                subscriber.end(errors.Unauthorized("the credential has expired"))
            elif not subscriber.events and still_seconds >= HEARTBEAT_SECONDS:
                beat = beat or EventBatch([heartbeat(now)])
                subscriber.put(beat)
            elif subscriber.events and still_seconds >= STUCK_SECONDS:
                subscriber.end(errors.LimitReached(f"nothing was read for {STUCK_SECONDS:.0f} s"))

    async def _check(self) -> None:
        checks = {session.credential: session.check for session in self._sessions.values()}
        waiting = iter(checks.items())
        while some := list(islice(waiting, MAX_CHECKS)):
            await asyncio.gather(
                *(self._check_one(credential, check) for credential, check in some)
            )

    async def _check_one(self, credential: Hashable, check: Callable[[], Awaitable[None]]) -> None:
        try:
            await check()
        except errors.Unavailable:
            return  # it cannot be checked now; new events cannot be read either
        except errors.PlatformError as error:
            for subscriber, session in list(self._sessions.items()):
                if session.credential == credential:
                    subscriber.end(error)
        except Exception as error:
            self._log.error("stream caller not checked", exc_info=error)
