"""One reader of each followed organization's log, however many subscribers; everyone gets the same bytes.

Nothing is handed on that has not committed, nothing committed is skipped, and no reader waits for another.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from uuid import UUID

from trading_intents.clock import Clock
from trading_intents.errors import CursorExpired, LimitReached, PlatformError, Unauthorized, Unavailable, wire_errors
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Pool, show_organizations
from trading_intents.stream import log as event_log
from trading_intents.stream.audience import Audience, Entry, Page, Wanted
from trading_intents.stream.log import LoggedEvent, make_cursor
from trading_intents.stream.model import cursor_field
from trading_intents.stream.subscriber import Batch, Message, Subscriber, heartbeat
from trading_intents.telemetry import Log, Metrics, make_series

TRANSPORTS = ("grpc", "sse")  # what the metrics call a door
LEFT = "left"  # in place of an error's code: the reader ended the stream
POLL_SECONDS = 1.0  # the guarantee; wake-ups only make it sooner
PAGE_EVENTS = 500
PAGES_AT_ONCE = 16
RECENT_EVENTS, RECENT_BYTES = 1_000, 1024 * 1024
TICK_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0
STUCK_SECONDS = 60.0  # a connection that takes nothing for so long is given up, however little it is behind
CHECK_SECONDS = 2.0
CHECKS_AT_ONCE = 4
MOST_STREAMS_PER_CALLER = 100
# While all of an organization's subscribers that still take anything have this much waiting, reading on would help none
# of them: it is us who are slow, and the log can wait better than memory can.
CROWDED_EVENTS, CROWDED_BYTES = 2_000, 2 * 1024 * 1024
STOPPED_SECONDS = 2.0
CROWDED_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Session:
    """Whose stream it is. `check` raises once the credential, which all with the same one share, no longer serves."""

    door: str
    caller: str
    credential: Hashable
    expires_at: datetime | None
    check: Callable[[], Awaitable[None]]


def make_entries(epoch: UUID, events: Sequence[LoggedEvent]) -> list[Entry]:
    return [
        Entry(
            event.seq,
            event.account_id,
            event.environment,
            event.kind,
            event.symbol,
            Message(event.payload + cursor_field(make_cursor(epoch, event.seq))),
        )
        for event in events
    ]


@dataclass(eq=False, slots=True)
class Followed:
    """An organization with subscribers. `position` is the last seq that was handed to them."""

    organization_id: OrganizationId
    position: int
    members: set[Subscriber] = field(default_factory=set)
    _wanted: dict[Subscriber, frozenset[Wanted]] = field(default_factory=dict)
    _audiences: dict[frozenset[Wanted], tuple[Audience, dict[Subscriber, None]]] = field(default_factory=dict)
    _recent: deque[Entry] = field(default_factory=deque)
    _recent_bytes: int = 0
    _reached: list[tuple[int, "asyncio.Future[None]"]] = field(default_factory=list)

    @property
    def floor(self) -> int:
        """From here on nothing needs to be read again."""
        return self.position - len(self._recent)

    def since(self, seq: int) -> list[Entry]:
        assert self.floor <= seq <= self.position
        return list(islice(self._recent, seq - self.floor, None))

    async def reach(self, seq: int) -> None:
        reached = asyncio.get_running_loop().create_future()
        self._reached.append((seq, reached))
        await reached

    def change(self, subscriber: Subscriber, wanted: frozenset[Wanted]) -> None:
        """From the next event on it wants this; nothing, when empty."""
        before = self._wanted.pop(subscriber, None)
        if before is not None:
            members = self._audiences[before][1]
            del members[subscriber]
            if not members:
                del self._audiences[before]
        if wanted:
            self._wanted[subscriber] = wanted
            self._audiences.setdefault(wanted, (Audience(wanted), {}))[1][subscriber] = None

    def deliver(self, entries: list[Entry]) -> int:
        """How many were handed out, to all subscribers together."""
        page, count = Page(entries), 0
        for audience, members in self._audiences.values():
            selected = audience.select(page)
            if selected:
                batch = Batch([entry.message for entry in selected])
                count += len(selected) * len(members)
                for subscriber in members:
                    subscriber.put(batch)
        self._remember(entries)
        self.position = entries[-1].seq
        arrived = [reached for seq, reached in self._reached if seq <= self.position]
        self._reached = [(seq, reached) for seq, reached in self._reached if seq > self.position]
        for reached in arrived:
            if not reached.done():
                reached.set_result(None)
        return count

    def _remember(self, entries: list[Entry]) -> None:
        self._recent.extend(entries)
        self._recent_bytes += sum(len(entry.message.data) for entry in entries)
        while len(self._recent) > RECENT_EVENTS or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().message.data)

    def is_crowded(self, now: float) -> bool:
        taking = [one for one in self._wanted if now - one.moved_at < STOPPED_SECONDS]
        return bool(taking) and all(one.events > CROWDED_EVENTS or one.bytes > CROWDED_BYTES for one in taking)


class Hub:
    def __init__(self, pool: Pool, max_streams: int, clock: Clock, metrics: Metrics, log: Log) -> None:
        self._max_streams = max_streams
        self._pool, self._clock, self._metrics, self._log = pool, clock, metrics, log
        make_series(metrics.stream_subscribers, TRANSPORTS)
        make_series(metrics.stream_ended, TRANSPORTS, (LEFT, *{error.code for error in wire_errors()}))
        self._sessions: dict[Subscriber, Session] = {}
        self._callers: Counter[str] = Counter()
        self._followed: dict[OrganizationId, Followed] = {}
        self._follows: dict[Subscriber, Followed] = {}
        self._epoch: UUID | None = None
        self._woken = asyncio.Event()
        self.draining = False

    @property
    def is_full(self) -> bool:
        return len(self._sessions) >= self._max_streams

    def open(self, session: Session, notify: Callable[[], None]) -> Subscriber:
        """A new connection; `close` ends what this begins."""
        if self.draining:
            raise Unavailable("this process is shutting down; try another, or again")
        if self._callers[session.caller] >= MOST_STREAMS_PER_CALLER:
            raise LimitReached(f"the caller has {MOST_STREAMS_PER_CALLER} streams, which is the most; close some")
        if self.is_full:
            raise Unavailable("this process holds all the streams that it may; try another, or again")
        subscriber = Subscriber(notify)
        self._sessions[subscriber] = session
        self._callers[session.caller] += 1
        self._metrics.stream_subscribers.labels(session.door).inc()
        return subscriber

    def close(self, subscriber: Subscriber) -> None:
        session = self._sessions.pop(subscriber)
        self._callers[session.caller] -= 1
        if not self._callers[session.caller]:
            del self._callers[session.caller]
        self._metrics.stream_subscribers.labels(session.door).dec()
        self._metrics.stream_ended.labels(session.door, subscriber.error.code if subscriber.error else LEFT).inc()
        followed = self._follows.pop(subscriber, None)
        if followed is not None:
            followed.change(subscriber, frozenset())
            followed.members.discard(subscriber)
            if not followed.members:
                self._drop(followed)

    def follow(self, subscriber: Subscriber, organization_id: OrganizationId, epoch: UUID, head: int) -> Followed:
        """`head` is where reading begins if nobody follows the organization yet."""
        if not self._followed:
            self._epoch = epoch
        followed = self._followed.setdefault(organization_id, Followed(organization_id, head))
        followed.members.add(subscriber)
        self._follows[subscriber] = followed
        self.wake()
        return followed

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()

    def drain(self) -> None:
        """End every stream; take no more."""
        self.draining = True
        for subscriber in list(self._sessions):
            subscriber.end(Unavailable("this process is shutting down; try another, or again"))

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._repeat(self._tick, TICK_SECONDS))
            group.create_task(self._repeat(self._check, CHECK_SECONDS))

    async def _read(self) -> None:
        pause_seconds = POLL_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._woken.wait()
            self._woken.clear()
            try:
                pause_seconds = await self._advance()
            except PlatformError as error:
                self._log.warning("event log not readable", reason=error.detail)
                pause_seconds = POLL_SECONDS
            except Exception as error:
                self._log.error("event log read failed", exc_info=error)
                pause_seconds = POLL_SECONDS

    async def _advance(self) -> float:
        """Hand on what is new, page by page; how long to wait for a wake-up after it."""
        while self._followed:
            now = asyncio.get_running_loop().time()
            waiting = {f.organization_id: f for f in self._followed.values() if not f.is_crowded(now)}
            async with self._pool.transaction(list(waiting), read_only=True, plans="by_key") as tx:
                epoch, heads = await event_log.read_heads(tx, list(waiting))
                behind = [f for f in waiting.values() if heads.get(f.organization_id, 0) != f.position][:PAGES_AT_ONCE]
                if behind:  # for a page, the fewer organizations are named, the less there is to compare
                    await show_organizations(tx, [f.organization_id for f in behind])
                pages = [await event_log.read_after(tx, f.organization_id, f.position, PAGE_EVENTS) for f in behind]
            if epoch != self._epoch:
                self._forget(epoch)
                continue
            for followed, page in zip(behind, pages, strict=True):
                self._hand_on(followed, page, epoch)
                self._line_up(followed)
            # What commits from here on wakes us again.
            if len(behind) < PAGES_AT_ONCE and all(len(page) < PAGE_EVENTS for page in pages):
                return POLL_SECONDS if len(waiting) == len(self._followed) else CROWDED_PAUSE_SECONDS
        return POLL_SECONDS

    def _hand_on(self, followed: Followed, page: list[LoggedEvent], epoch: UUID) -> None:
        # Where they are not dense we were away for longer than events are kept, or rows of the log are lost.
        if not event_log.is_dense(page, followed.position):
            self._metrics.stream_holes.inc()
            self._log.error(
                "events missing from the log",
                organization=str(followed.organization_id),
                after_seq=followed.position,
            )
            self._end(followed)
            return
        self._metrics.stream_events.inc(len(page))
        self._metrics.stream_deliveries.inc(followed.deliver(make_entries(epoch, page)))

    def _forget(self, epoch: UUID) -> None:
        """The database was restored: what was read from it before leads nowhere."""
        if self._epoch is not None:
            for followed in list(self._followed.values()):
                self._end(followed)
        self._epoch = epoch

    def _line_up(self, followed: Followed) -> None:
        """Behind the others: a busy organization must not keep the rest from being read."""
        if self._followed.get(followed.organization_id) is followed:
            self._followed[followed.organization_id] = self._followed.pop(followed.organization_id)

    def _drop(self, followed: Followed) -> None:
        if self._followed.get(followed.organization_id) is followed:
            del self._followed[followed.organization_id]

    def _end(self, followed: Followed) -> None:
        self._drop(followed)
        for subscriber in followed.members:
            subscriber.end(CursorExpired("the log no longer has what follows: prime again"))

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                await work()
            except Exception as error:
                self._log.error("stream upkeep failed", work=work.__name__, exc_info=error)

    async def _tick(self) -> None:
        """Heartbeats for the quiet, an end for the stuck and for those whose token ran out."""
        now, now_seconds, beat = self._clock.now(), asyncio.get_running_loop().time(), None
        for subscriber, session in list(self._sessions.items()):
            still_seconds = now_seconds - subscriber.moved_at
            if session.expires_at is not None and session.expires_at <= now:
                subscriber.end(Unauthorized("the token has expired"))
            elif not subscriber.events and still_seconds >= HEARTBEAT_SECONDS:
                beat = beat or Batch([heartbeat(now)])
                subscriber.put(beat)
            elif subscriber.events and still_seconds >= STUCK_SECONDS:
                subscriber.end(LimitReached(f"nothing was read for {STUCK_SECONDS:.0f} s"))

    async def _check(self) -> None:
        """Whose credential no longer serves is ended."""
        checks = {session.credential: session.check for session in self._sessions.values()}
        waiting = iter(checks.items())
        while some := list(islice(waiting, CHECKS_AT_ONCE)):
            await asyncio.gather(*(self._check_one(credential, check) for credential, check in some))

    async def _check_one(self, credential: Hashable, check: Callable[[], Awaitable[None]]) -> None:
        try:
            await check()
        except Unavailable:
            return  # there is no knowing; nothing new can be read either
        except PlatformError as error:
            for subscriber, session in list(self._sessions.items()):
                if session.credential == credential:
                    subscriber.end(error)
        except Exception as error:
            self._log.error("stream caller not checked", exc_info=error)
