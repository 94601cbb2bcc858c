"""The paper broker's link: the port over the desk. Streams what is committed, in order, and runs the market."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.desk import DOWN, Asked, Desk, Reply
from trading_intents.brokers.paper.faults import Fault
from trading_intents.brokers.paper.model import CAPABILITIES, Order
from trading_intents.brokers.paper.prices import TICK_MILLIS
from trading_intents.brokers.paper.quotes import channel
from trading_intents.brokers.port import (
    Absent,
    AccountSnapshot,
    BrokerEvent,
    BrokerUnavailable,
    CommandResult,
    EventKind,
    Integration,
    IntegrationContext,
    Lookup,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
    Outcome,
    StreamGap,
)
from trading_intents.errors import OutcomeUnknown, PlatformError
from trading_intents.storage.database import Tx

# A wake-up can be lost: this often a link looks without one. Where no order rests it is only for what another worker,
# paused while it held the account, may have sent after all.
POLL_SECONDS, IDLE_POLL_SECONDS = 1.0, 30.0
LOOK_PAUSE_SECONDS = 0.02  # so that a flood of quotes is worked in bundles
RETRY_SECONDS = 0.5


class PaperBroker:
    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._down = asyncio.Event()
        self._desk = Desk(context, self._down)
        self._down.set()
        self._told = 0  # the last event handed out
        self._news, self._stirred = asyncio.Event(), asyncio.Event()
        self._wanted = False  # a look at the market
        self._running: asyncio.Task[None] | None = None
        self._mischief: set[Fault] = set()
        self._quiet_until_seconds = 0.0
        self._looked_seconds = 0.0

    async def open(self) -> None:
        try:
            self._told = await self._desk.open()
            await self._desk.look()
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        self._down.clear()
        self._context.signals.subscribe(channel(self._context.account.organization_id), self._on_quote)
        self._running = asyncio.create_task(self._run_market())

    async def close(self) -> None:
        self._break()
        self._context.signals.unsubscribe(channel(self._context.account.organization_id), self._on_quote)
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send(self._desk.submit(ticket), deadline)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send(self._desk.replace(ticket), deadline)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send(self._desk.cancel(ticket), deadline)

    async def lookup(self, client_order_id: str, broker_order_id: str | None, deadline: float) -> Lookup:
        """By the client order id alone: the journal has every one that ever arrived."""
        account_id = self._context.account.id
        try:
            async with (
                asyncio.timeout(deadline - self._context.clock.monotonic()),
                self._context.database.transaction(read_only=True) as tx,
            ):
                number = (await store.find_commands(tx, account_id, [client_order_id])).get(client_order_id)
                if number is None:
                    return Absent()
                order = await store.find_order(tx, account_id, number)
                events = await store.list_events_of(tx, account_id, [number])
        except (PlatformError, TimeoutError) as error:
            return LookupUnknown(str(error))
        return _snapshot(order, events[number])

    async def events(self) -> AsyncIterator[BrokerEvent | StreamGap]:
        while not self._down.is_set():
            self._news.clear()
            batch = await self._read_events()
            for event in batch:
                yield event
            if not batch:
                await self._news.wait()

    async def snapshot(self, since: datetime) -> AccountSnapshot:
        """Beside the executions every other event since, so that what ended meanwhile is told too."""
        account_id = self._context.account.id
        try:
            async with self._context.database.transaction(read_only=True, isolation="repeatable read") as tx:
                opened = await store.read_account(tx, account_id)
                working = await store.list_working(tx, account_id)
                events = await store.list_events_of(tx, account_id, [order.number for order in working])
                executions = await _events_since(tx, account_id, since)
                holdings = await store.list_holdings(tx, account_id, None)
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        positions = (
            BrokerEvent(
                kind=EventKind.POSITION,
                dedupe_key=f"paper:{opened.account.events}:{symbol}",
                symbol=symbol,
                quantity=holding.position,
                venue_time=opened.now,
            )
            for symbol, holding in holdings.items()
        )
        return AccountSnapshot(
            taken_at=opened.now,
            open_orders=tuple(_snapshot(order, events[order.number]) for order in working),
            executions=tuple(executions),
            positions=tuple(positions),
        )

    async def _send(self, asked: Asked, deadline: float) -> CommandResult:
        if self._down.is_set():
            return CommandResult(outcome=Outcome.NOT_SENT, message=DOWN)
        try:
            async with asyncio.timeout(deadline - self._context.clock.monotonic()):
                reply = await self._desk.take(asked)
                self._news.set()
                self._stirred.set()  # what rests may be another now, and with it when to look next
                return await self._answer(reply)
        except (TimeoutError, OutcomeUnknown) as error:
            if isinstance(error, TimeoutError) and not asked.is_taken:
                return CommandResult(outcome=Outcome.NOT_SENT, message="no time was left")
            self._look_soon()  # it may rest by now
            reason = error.detail if isinstance(error, OutcomeUnknown) else "no answer in time"
            return CommandResult(outcome=Outcome.UNKNOWN, message=reason)
        except PlatformError as error:
            return CommandResult(outcome=Outcome.NOT_SENT, message=error.detail)

    async def _answer(self, reply: Reply) -> CommandResult:
        """As the broker gives it, but for what is scripted to go wrong."""
        self._mischief |= reply.struck.kinds & {Fault.DUPLICATE, Fault.REORDER}
        if Fault.DELAY in reply.struck:
            seconds = reply.struck.delay_millis / 1000
            self._quiet_until_seconds = self._context.clock.monotonic() + seconds
            await asyncio.sleep(seconds)
        if Fault.DISCONNECT in reply.struck:
            self._break()
        if reply.struck.kinds & {Fault.DISCONNECT, Fault.DROP_ANSWER}:
            return CommandResult(outcome=Outcome.UNKNOWN, message="no answer came")
        return reply.result

    def _on_quote(self) -> None:
        if self._desk.has_orders:
            self._look_soon()

    def _look_soon(self) -> None:
        self._wanted = True
        self._stirred.set()

    def _break(self) -> None:
        self._down.set()
        self._news.set()

    async def _pause(self, seconds: float) -> None:
        """Or until the link is down."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._down.wait()

    async def _read_events(self) -> list[BrokerEvent]:
        await self._pause(self._quiet_until_seconds - self._context.clock.monotonic())
        try:
            async with self._context.database.transaction(read_only=True) as tx:
                rows = await store.list_events(tx, self._context.account.id, self._told)
        except PlatformError:
            await self._pause(RETRY_SECONDS)
            self._news.set()
            return []
        self._told = rows[-1][0] if rows else self._told
        events = [event for _, event in rows]
        if Fault.REORDER in self._mischief:
            events.reverse()
        if Fault.DUPLICATE in self._mischief:
            events += events
        if events:
            self._mischief.clear()
        return events

    async def _run_market(self) -> None:
        """Until cancelled. A link whose market stands still must not look alive: it ends with it."""
        try:
            while not self._down.is_set():
                await self._look_at_market()
        finally:
            self._break()

    async def _look_at_market(self) -> None:
        """Woken by a posted quote; else looks when the walk or the time may have done something, and now and then."""
        clock = self._context.clock
        due = self._looked_seconds + (POLL_SECONDS if self._desk.has_orders else IDLE_POLL_SECONDS)
        left = due - clock.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, TICK_MILLIS / 1000) if self._desk.walks else left):
                await self._stirred.wait()
        self._stirred.clear()
        if not self._wanted and clock.monotonic() < due and not self._desk.is_due(clock.now()):
            return
        await self._pause(self._looked_seconds + LOOK_PAUSE_SECONDS - clock.monotonic())
        self._looked_seconds, self._wanted = clock.monotonic(), False
        try:
            last = await self._desk.look()
        except PlatformError:
            await self._pause(RETRY_SECONDS)
        else:
            if last > self._told:
                self._news.set()


async def _events_since(tx: Tx, account_id: UUID, since: datetime) -> list[BrokerEvent]:
    found: list[BrokerEvent] = []
    first = await store.find_first_event(tx, account_id, since)
    while first is not None:
        rows = await store.list_events(tx, account_id, first - 1)
        found += (event for _, event in rows)
        first = rows[-1][0] + 1 if rows else None
    return found


def _snapshot(order: Order, events: list[BrokerEvent]) -> OrderSnapshot:
    return OrderSnapshot(
        client_order_id=order.client_order_id,
        broker_order_id=order.broker_order_id,
        symbol=order.terms.symbol,
        side=order.terms.side,
        quantity=order.terms.quantity,
        events=tuple(events),
    )


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, PaperBroker)
