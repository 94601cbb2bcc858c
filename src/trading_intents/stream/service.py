"""Use cases of the stream: open one, subscribe and unsubscribe within it, close it. Knows no
transport."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID
from weakref import WeakValueDictionary

from trading_intents import errors
from trading_intents.accounts.model import Account
from trading_intents.accounts.service import Accounts, AccountTarget
from trading_intents.identity.access import Gate, caller_of
from trading_intents.identity.model import ApiKeyPrincipal
from trading_intents.ids import OrganizationId, parse_id
from trading_intents.storage.database import Pool, Tx
from trading_intents.stream import log as event_log
from trading_intents.stream.hub import PAGE_EVENTS, Hub, OrganizationFeed, Session
from trading_intents.stream.log import Cursor, make_cursor, open_cursor
from trading_intents.stream.model import Event, EventType
from trading_intents.stream.subscriber import EventBatch, Subscriber, primed, status
from trading_intents.stream.subscription_filter import (
    NARROWED,
    EventPage,
    Subscription,
    SubscriptionFilter,
)
from trading_intents.stream.text import Message
from trading_intents.telemetry import Log
from trading_intents.trading import SYMBOL_RULE, Environment, FrozenStruct, parse_symbol
from trading_intents.web.request import Request

MAX_READS = 4  # of history, so that connections are left for live events
# In a process: each holds a connection with a snapshot until the retained state is handed over.
MAX_PRIMINGS = 4
SLOT_SECONDS = 60.0
# While it is primed, a reader must make room for a page within this time, which is less than a
# transaction may be idle. In all, it may keep its snapshot waiting for the seconds at the start,
# and one more for each so many events.
PAGE_SECONDS = 1.5
PRIMING_START_SECONDS = 10.0
MIN_PRIMED_PER_SECOND = 1_000
MAX_SCOPES = 1_000
NOT_KEPT = "the events after the cursor are no longer kept; subscribe without it"

# Reads the working orders or open positions, and those finished within the hour, a page at a time.
# None: of all accounts, of both environments.
Retained = Callable[
    [Tx, OrganizationId, UUID | None, Environment | None], AsyncIterator[Sequence[Event]]
]


class SubscribeRequest(FrozenStruct):
    """One Subscribe, as its transport read it. No account means all."""

    account: str | None
    kinds: frozenset[EventType]
    symbol: str = ""
    orders_primed: bool = False
    resume_after: str = ""

    def check(self) -> None:
        """Raises InvalidRequest for a request that no caller may make."""
        if not self.kinds:
            # As in the proto: HTTP checks its own.
            names = errors.either(f"EVENT_TYPE_{kind.name}" for kind in EventType)
            raise errors.InvalidRequest(f"subscriptions names no known kind of event; use {names}")
        if self.account is not None and self.symbol and parse_symbol(self.symbol) is None:
            raise errors.InvalidRequest(f"instrument_key {SYMBOL_RULE}")
        if self.resume_after:
            open_cursor(self.resume_after)


@dataclass(eq=False, slots=True)
class StreamScope:
    """A subscription of a stream. `after` is the last seq that was handed to it, None before there
    is one."""

    wanted: Subscription
    after: int | None = None
    joined: bool = False
    attaching: "asyncio.Task[None] | None" = None


@dataclass(eq=False, slots=True)
class Stream:
    """A caller's open stream: one subscription for each account scope."""

    request: Request
    subscriber: Subscriber
    scopes: dict[UUID | None, StreamScope] = field(default_factory=dict)
    feed: OrganizationFeed | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class Attachment:
    """A subscription that begins, after the cursor or primed with what is retained. `due` is the
    one that it replaces, if that has events to get."""

    stream: Stream
    scope: StreamScope
    due: StreamScope | None
    organization_id: OrganizationId
    cursor: Cursor | None
    kinds: Sequence[EventType]
    accepted: "asyncio.Future[None]"

    def fail(self, error: errors.PlatformError) -> None:
        if self.accepted.done():
            self.stream.subscriber.end(error)
        else:
            self.accepted.set_exception(error)


class Streams:
    def __init__(
        self,
        pool: Pool,
        hub: Hub,
        accounts: Accounts,
        gate: Gate,
        retained: Mapping[EventType, Retained],
        log: Log,
    ) -> None:
        self._pool = pool
        self._hub = hub
        self._accounts = accounts
        self._gate = gate
        self._log = log
        self._retained = retained
        primings = max(1, min(MAX_PRIMINGS, pool.size // 2 - 1))  # live events need connections too
        self._reads = asyncio.Semaphore(MAX_READS)
        self._snapshots = asyncio.Semaphore(primings)
        # So that one organization leaves room for another.
        self._of_organization = max(1, primings // 2)
        self._primings: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        self._readers: WeakValueDictionary[OrganizationId, asyncio.Semaphore] = (
            WeakValueDictionary()
        )

    def open(self, transport: str, request: Request, notify: Callable[[], None]) -> Stream:
        """Opens a stream for a caller that the gate has identified; the hub repeats both checks of
        the gate."""

        async def check() -> None:
            await self._gate.identify(request)
            # Else its first request is still to be read, and that comes before the permission.
            if stream.scopes:
                self._gate.permit(request)

        caller = caller_of(request)
        organization_id = caller.organization.id if caller.organization else None
        session = Session(
            transport=transport,
            caller=caller.limit_key,
            organization_id=organization_id,
            credential=_credential(request),
            expires_at=caller.expires_at,
            check=check,
        )
        stream = Stream(request, self._hub.open(session, notify))
        return stream

    def close(self, stream: Stream) -> None:
        for scope in stream.scopes.values():
            if scope.attaching is not None:
                scope.attaching.cancel()
        self._hub.close(stream.subscriber)

    async def subscribe(self, stream: Stream, requested: SubscribeRequest) -> None:
        """Returns once the subscription is accepted; its first events follow. It replaces an
        earlier one of the same scope."""
        caller = caller_of(stream.request)
        requested.check()
        cursor = open_cursor(requested.resume_after) if requested.resume_after else None
        wanted = await self._wanted(stream.request, requested)
        if wanted.account_id not in stream.scopes and len(stream.scopes) >= MAX_SCOPES:
            raise errors.LimitReached(
                f"the stream has {MAX_SCOPES} subscriptions, which is the limit"
            )
        left = self._leave(stream, wanted.account_id)
        scope = stream.scopes[wanted.account_id] = StreamScope(wanted)
        primed = NARROWED if requested.orders_primed else NARROWED - {EventType.BROKER_ORDER}
        begun = Attachment(
            stream=stream,
            scope=scope,
            due=left if cursor is None else None,
            organization_id=caller.organization_id,
            cursor=cursor,
            kinds=sorted(primed & wanted.kinds) if cursor is None else [],
            accepted=asyncio.get_running_loop().create_future(),
        )
        scope.attaching = asyncio.create_task(self._attach(begun))
        await begun.accepted

    async def unsubscribe(self, stream: Stream, account: str | None) -> None:
        account_id = None if account is None else parse_id(account)
        if account is None or account_id is not None:
            self._leave(stream, account_id)
        await stream.subscriber.offer([status("unsubscribed")])

    async def _wanted(self, request: Request, requested: SubscribeRequest) -> Subscription:
        if requested.account is None:
            environment = None
            principal = caller_of(request).principal
            if isinstance(principal, ApiKeyPrincipal):
                environment = principal.environment
            return Subscription(None, environment, requested.kinds, None)
        symbol = parse_symbol(requested.symbol) if requested.symbol else None
        account = await self.find_account(request, requested.account)
        return Subscription(account.id, None, requested.kinds, symbol)

    async def find_account(self, request: Request, account_id: str) -> Account:
        return await self._accounts.find(
            AccountTarget(
                caller_of(request).organization_id,
                parse_id(account_id),
                lambda account: self._gate.permit_object(request, account.environment),
            )
        )

    def _leave(self, stream: Stream, account_id: UUID | None) -> StreamScope | None:
        """Ends a scope's subscription, and records the last seq that it got. Gives it, unless it
        got none."""
        scope = stream.scopes.pop(account_id, None)
        if scope is None:
            return None
        if scope.attaching is not None:
            scope.attaching.cancel()
        if scope.joined and stream.feed is not None:
            scope.after = stream.feed.position
            self._change(stream)
        return scope if scope.after is not None else None

    def _change(self, stream: Stream) -> None:
        assert stream.feed is not None
        joined = frozenset(scope.wanted for scope in stream.scopes.values() if scope.joined)
        stream.feed.change(stream.subscriber, joined)

    async def _attach(self, begun: Attachment) -> None:
        try:
            epoch = await self._begin(begun)
            await self._join(begun.stream, begun.scope, epoch)
        except errors.PlatformError as error:
            begun.fail(error)
        except Exception as error:
            self._log.error("stream subscription failed", exc_info=error)
            begun.fail(errors.InternalError("an error of the platform; its log has the details"))
        finally:
            begun.accepted.cancel()

    async def _begin(self, begun: Attachment) -> UUID:
        """Hands over what comes before the head of the log. Gives the log's epoch."""
        stream = begun.stream
        organization_id = begun.organization_id
        if begun.due is not None:
            # First hand over what the replaced subscription had not got yet, so that no event is
            # missed in between.
            async with self._snapshot(organization_id, None) as tx:
                epoch, head = await event_log.read_head(tx, organization_id)
            await self._catch_up(stream, begun.due, epoch, head)
        await stream.subscriber.offer([])
        async with contextlib.AsyncExitStack() as snapshot:
            primed_for = stream.request if begun.kinds else None
            tx = await snapshot.enter_async_context(self._snapshot(organization_id, primed_for))
            epoch, head = await event_log.read_head(tx, organization_id)
            cursor = begun.cursor or Cursor(epoch, head)
            if not await _leads_on(tx, organization_id, cursor, epoch, head):
                raise errors.CursorExpired(NOT_KEPT)
            if not begun.kinds:
                await snapshot.aclose()
            stream.feed = self._hub.follow(stream.subscriber, organization_id, epoch, head)
            begun.scope.after = cursor.seq
            async with _keeping_up(PAGE_SECONDS if begun.kinds else None):
                if begun.due is not None:
                    await self._catch_up(
                        stream, begun.due, epoch, head, tx if begun.kinds else None
                    )
                if not begun.accepted.done():
                    begun.accepted.set_result(None)
                await stream.subscriber.offer([status("subscribed")])
            await self._prime(tx, begun, make_cursor(epoch, head))
        return epoch

    @contextlib.asynccontextmanager
    async def _snapshot(
        self, organization_id: OrganizationId, primed_for: Request | None
    ) -> AsyncIterator[Tx]:
        """Opens a transaction whose reads, the stream's head too, are all as of one moment."""
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(SLOT_SECONDS):
                    for slot in self._slots(organization_id, primed_for):
                        await held.enter_async_context(slot)
            except TimeoutError:
                raise errors.Unavailable(
                    "this process has too many subscriptions to begin; try again"
                ) from None
            transaction = self._pool.transaction(
                [organization_id], read_only=True, isolation="repeatable read"
            )
            yield await held.enter_async_context(transaction)

    def _slots(
        self, organization_id: OrganizationId, primed_for: Request | None
    ) -> tuple[asyncio.Semaphore, ...]:
        """The semaphores of a read or a priming. An organization has half of them at most, so that
        it leaves room for another. A caller's streams are primed one after the other, so slow ones
        delay only their own caller."""
        if primed_for is None:
            own = self._readers.setdefault(organization_id, asyncio.Semaphore(MAX_READS // 2))
            return own, self._reads
        own = self._primings.setdefault(caller_of(primed_for).limit_key, asyncio.Semaphore(1))
        shared = self._primings.setdefault(
            organization_id, asyncio.Semaphore(self._of_organization)
        )
        return own, shared, self._snapshots

    async def _prime(self, tx: Tx, begun: Attachment, cursor: str) -> None:
        loop = asyncio.get_running_loop()
        subscriber = begun.stream.subscriber
        wanted = begun.scope.wanted
        handed = 0
        waited_seconds = 0.0
        for kind in begun.kinds:
            read = self._retained[kind]
            pages = read(tx, begun.organization_id, wanted.account_id, wanted.environment)
            async for page in pages:
                began = loop.time()
                allowed_seconds = PRIMING_START_SECONDS + handed / MIN_PRIMED_PER_SECOND
                async with _keeping_up(min(PAGE_SECONDS, allowed_seconds - waited_seconds)):
                    chosen = [each for each in page if wanted.symbol in (None, each.symbol)]
                    await subscriber.offer([Message(event.payload) for event in chosen])
                if subscriber.error is not None:
                    raise subscriber.error
                handed += len(page)
                waited_seconds += loop.time() - began
            async with _keeping_up(PAGE_SECONDS):
                await subscriber.offer([primed(kind, cursor)])

    async def _join(self, stream: Stream, scope: StreamScope, epoch: UUID) -> None:
        """Reads history at the reader's own pace until it reaches the live events, then joins the
        other subscribers."""
        feed = stream.feed
        assert feed is not None
        assert scope.after is not None
        while not feed.oldest_buffered_seq <= scope.after <= feed.position:
            if scope.after > feed.position:
                await feed.reach(scope.after)
            else:
                await self._catch_up(stream, scope, epoch, feed.oldest_buffered_seq)
        # There is no await from here on, so no event can come in between.
        page = EventPage(feed.since(scope.after))
        messages = SubscriptionFilter([scope.wanted]).select_messages(page)
        if messages:
            stream.subscriber.put(EventBatch(messages))
        scope.joined = True
        self._change(stream)

    async def _catch_up(
        self,
        stream: Stream,
        scope: StreamScope,
        epoch: UUID,
        until: int,
        snapshot: Tx | None = None,
    ) -> None:
        feed = stream.feed
        subscription_filter = SubscriptionFilter([scope.wanted])
        assert feed is not None
        assert scope.after is not None
        while scope.after < until:
            limit = min(PAGE_EVENTS, until - scope.after)
            reading = (
                contextlib.nullcontext(snapshot)
                if snapshot
                else self._snapshot(feed.organization_id, None)
            )
            async with reading as tx:
                after = {feed.organization_id: scope.after}
                read_epoch, pages = await event_log.read_after(tx, after, limit)
            page = pages.get(feed.organization_id, [])
            if read_epoch != epoch or not event_log.is_dense(page, scope.after):
                raise errors.CursorExpired(NOT_KEPT)
            await stream.subscriber.offer(subscription_filter.select_messages(EventPage(page)))
            scope.after = page[-1].seq


@contextlib.asynccontextmanager
async def _keeping_up(limit_seconds: float | None) -> AsyncIterator[None]:
    """Limits how long a reader may keep a snapshot waiting."""
    try:
        async with asyncio.timeout(limit_seconds):
            yield
    except TimeoutError:
        raise errors.LimitReached("the reader is too slow to be primed; read while it is") from None


def _credential(request: Request) -> Hashable:
    """Streams with the same credential are checked together."""
    return tuple(
        request.header(name) for name in (b"x-api-key", b"authorization", b"x-organization-id")
    )


async def _leads_on(
    tx: Tx, organization_id: OrganizationId, cursor: Cursor, epoch: UUID, head: int
) -> bool:
    if cursor.epoch != epoch or cursor.seq > head:
        return False
    return cursor.seq == head or await event_log.is_kept(tx, organization_id, cursor.seq + 1)
