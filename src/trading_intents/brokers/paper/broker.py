"""The paper broker's adapter over its venue. Streams committed events in order, and runs the
market."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.faults import ActiveFaults, FaultKind
from trading_intents.brokers.paper.model import CAPABILITIES, PaperEvent, Source
from trading_intents.brokers.paper.prices import TICK_MILLIS, tick_number
from trading_intents.brokers.paper.quotes import channel
from trading_intents.brokers.paper.venue.batches import PaperVenue
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueReply, VenueRequest
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.paper.venue.valuation import Valuation
from trading_intents.brokers.port import (
    MAX_DIGITS,
    Absent,
    AccountSnapshot,
    BrokerBalance,
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
    SentOrder,
    Setting,
    Simulation,
    StreamGap,
)
from trading_intents.errors import OutcomeUnknown, PlatformError
from trading_intents.loops import Pacer, stop_tasks, wait_at_most
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import StatementRefused
from trading_intents.trading import Symbol

# A wake-up can be lost, so a session with working orders looks for posted quotes this often.
QUOTES_SECONDS = 1.0
# How often it checks whether another worker, paused while it held the account, has sent a command
# after all.
CHECK_SECONDS = 30.0
LOOK_PAUSE_SECONDS = 0.02  # so that many quotes are worked together
RETRY_SECONDS = 0.5
DOWN = "the session is down"


class PaperBroker:
    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._venue = context.share("venue", lambda: PaperVenue(context))
        self._books = AccountBooks(
            account_id=context.account.id,
            organization_id=context.account.organization_id,
            on_events=self._on_events,
        )
        self._down = asyncio.Event()
        self._down.set()
        self._last_streamed = 0  # the last event handed out
        self._committed: deque[PaperEvent] = deque()
        self._news = asyncio.Event()
        self._wakeup = asyncio.Event()
        self._is_quoted = False  # a quote was posted
        self._running: asyncio.Task[None] | None = None
        self._armed_faults: set[FaultKind] = set()
        self._quiet_until_seconds = 0.0
        self._looked_seconds = self._checked_seconds = self._quotes_seconds = 0.0
        self._valuation = Valuation(int(context.settings["PAPER_SEED"]))
        self._balance: BrokerBalance | None = None  # the last one reported

    async def open(self) -> None:
        try:
            await self._venue.open(self._books)
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        assert self._books.totals is not None
        self._last_streamed = self._books.totals.events
        self._committed.clear()
        self._checked_seconds = self._context.clock.monotonic()
        self._down.clear()
        self._context.signals.subscribe(
            channel(self._context.account.organization_id), self._on_quote
        )
        self._running = asyncio.create_task(self._run_market())

    async def close(self) -> None:
        self._break()
        self._context.signals.unsubscribe(
            channel(self._context.account.organization_id), self._on_quote
        )
        await stop_tasks(self._running)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("SUBMIT", ticket, deadline)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("REPLACE", ticket, deadline)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("CANCEL", ticket, deadline)

    async def lookup(self, order: SentOrder, deadline: float) -> Lookup:
        """Looks up by the client order id alone: the journal has every one that ever arrived."""
        try:
            async with (
                asyncio.timeout(deadline - self._context.clock.monotonic()),
                self._context.database.transaction(read_only=True) as tx,
            ):
                found = await store.find_order(tx, self._context.account.id, order.client_order_id)
        except (PlatformError, TimeoutError) as error:
            return LookupUnknown(str(error))
        return _snapshot(found) if found else Absent()

    async def events(self) -> AsyncIterator[BrokerEvent | BrokerBalance | StreamGap]:
        while not self._down.is_set():
            self._news.clear()
            batch = await self._take_events()
            for event in batch:
                yield event
            if balance := self._changed_balance():
                yield balance
            if not batch:
                await self._news.wait()
        if self._running and self._running.done() and not self._running.cancelled():
            self._running.result()  # raises what ended the market

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        """Gives every other event since beside the executions, so that orders that ended meanwhile
        are included."""
        account_id = self._context.account.id
        try:
            async with self._context.database.transaction(
                read_only=True, isolation="repeatable read"
            ) as tx:
                now = await read_clock(tx)
                working = await store.list_open(tx, account_id)
                executions = await store.list_events_since(tx, account_id, since)
                held = await store.list_positions(tx, account_id)
                totals = await store.read_totals(tx, account_id)
                await self._value(tx, held, totals.events)
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        positions = list[BrokerEvent]()
        for symbol, quantity in held.items():
            position = BrokerEvent(
                kind=EventKind.POSITION,
                dedupe_key=f"paper:{totals.events}:{symbol}",
                symbol=symbol,
                quantity=quantity,
                venue_time=now,
            )
            positions.append(position)
        return AccountSnapshot(
            taken_at=now,
            open_orders=tuple(map(_snapshot, working)),
            executions=tuple(executions),
            positions=tuple(positions),
            balance=self._valuation.balance(totals, now),
        )

    async def _value(self, tx: Tx, held: Mapping[Symbol, Decimal], number: int) -> None:
        organization_id = self._context.account.organization_id
        quotes = await store.find_last_quotes(tx, organization_id, list(held)) if held else {}
        self._valuation.load(held, quotes, number)

    def _changed_balance(self) -> BrokerBalance | None:
        """The balance, if it is another one than was reported last. None is reported before the
        session's snapshot has read the positions: the equity would be missing."""
        books = self._books
        if books.totals is None or books.worked_at is None or self._valuation.positions is None:
            return None
        balance = self._valuation.balance(books.totals, books.worked_at)
        last = self._balance
        if last is not None and replace(balance, as_of=last.as_of) == last:
            return None
        self._balance = balance
        return balance

    async def _send(self, command: str, ticket: OrderTicket, deadline: float) -> CommandResult:
        if self._down.is_set():
            return _not_sent(DOWN)
        request = VenueRequest(books=self._books, command=command, ticket=ticket)
        try:
            async with asyncio.timeout(deadline - self._context.clock.monotonic()):
                return await self._answer(await self._venue.take(request))
        except (TimeoutError, OutcomeUnknown) as error:
            request.is_abandoned = True
            if isinstance(error, TimeoutError) and not request.is_taken:
                return _not_sent("no time was left")
            self._check_soon()  # the order may rest now
            reason = error.detail if isinstance(error, OutcomeUnknown) else "no answer in time"
            return CommandResult(outcome=Outcome.UNKNOWN, message=reason)
        except PlatformError as error:
            return _not_sent(error.detail)
        except StatementRefused as error:
            return _not_sent(f"the database refused: {error.code}")

    async def _answer(self, reply: VenueReply) -> CommandResult:
        if FaultKind.DELAY in reply.faults:
            await asyncio.sleep(reply.faults.delay_millis / 1000)
        if FaultKind.DISCONNECT in reply.faults:
            self._break()
        if reply.faults.kinds & {FaultKind.DISCONNECT, FaultKind.DROP_ANSWER}:
            return CommandResult(outcome=Outcome.UNKNOWN, message="no answer came")
        return reply.result

    def _on_events(self, events: Sequence[PaperEvent], faults: Sequence[ActiveFaults]) -> None:
        for each in faults:
            self._armed_faults |= each.kinds & {FaultKind.DUPLICATE, FaultKind.REORDER}
            if FaultKind.DELAY in each:
                now = self._context.clock.monotonic()
                self._quiet_until_seconds = now + each.delay_millis / 1000
        self._committed.extend(events)
        symbols = {each.event.symbol for each in events}
        changed = [book for symbol, book in self._books.books.items() if symbol in symbols]
        self._valuation.update(changed, events[-1].seq)
        self._news.set()
        self._wakeup.set()  # other orders may rest now, which changes when to match next

    def _on_quote(self) -> None:
        if self._books.working():
            self._is_quoted = True
            self._wakeup.set()

    def _check_soon(self) -> None:
        self._checked_seconds = -CHECK_SECONDS
        self._wakeup.set()

    def _break(self) -> None:
        self._down.set()
        self._books.is_closed = True
        self._news.set()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await wait_at_most(self._down, seconds)

    async def _take_events(self) -> list[BrokerEvent]:
        """Takes events that were committed by this session, or reads them from the database if
        others came before."""
        await self._pause(self._quiet_until_seconds - self._context.clock.monotonic())
        while self._committed and self._committed[0].seq <= self._last_streamed:
            self._committed.popleft()
        last = self._books.totals.events if self._books.totals else self._last_streamed
        if self._committed and self._committed[0].seq == self._last_streamed + 1:
            events = [each.event for each in self._committed]
            self._last_streamed = self._committed[-1].seq
            self._committed.clear()
        elif self._committed or last > self._last_streamed:
            events = await self._read_events()
        else:
            return []
        if FaultKind.REORDER in self._armed_faults:
            events.reverse()
        if FaultKind.DUPLICATE in self._armed_faults:
            events += events
        self._armed_faults.clear()
        return events

    async def _read_events(self) -> list[BrokerEvent]:
        try:
            async with self._context.database.transaction(read_only=True) as tx:
                events = await store.list_events(tx, self._context.account.id, self._last_streamed)
        except PlatformError:
            await self._pause(RETRY_SECONDS)
            self._news.set()
            return []
        if events:
            self._last_streamed = events[-1].seq
        return [each.event for each in events]

    async def _run_market(self) -> None:
        """Runs until cancelled. If the market fails, the session ends, so that it does not seem
        alive."""
        try:
            while not self._down.is_set():
                await self._wait_for_market()
                try:
                    await self._look_at_market()
                except PlatformError:
                    await self._pause(RETRY_SECONDS)
        finally:
            self._break()

    async def _wait_for_market(self) -> None:
        clock = self._context.clock
        working = self._books.working()
        due = self._checked_seconds + CHECK_SECONDS
        if working:
            due = min(due, self._looked_seconds + QUOTES_SECONDS)
        if any(book.holding.source is not Source.POSTED for book in working):
            due = min(due, self._looked_seconds + TICK_MILLIS / 1000)
        await wait_at_most(self._wakeup, due - clock.monotonic())
        self._wakeup.clear()
        await self._pause(self._looked_seconds + LOOK_PAUSE_SECONDS - clock.monotonic())

    async def _look_at_market(self) -> None:
        """Has the venue match the books that a quote, the walk or the time affects; the others stay
        untouched."""
        clock = self._context.clock
        now_seconds = clock.monotonic()
        if now_seconds >= self._checked_seconds + CHECK_SECONDS:
            self._checked_seconds = now_seconds
            await self._check()
        is_quoted = self._is_quoted or now_seconds >= self._quotes_seconds + QUOTES_SECONDS
        self._looked_seconds = now_seconds
        self._is_quoted = False
        due = await self._find_due(clock.now())
        if is_quoted and self._books.working():
            self._quotes_seconds = now_seconds
            due |= await self._find_quoted()
        if due:
            await self._venue.take(VenueRequest(books=self._books, symbols=frozenset(due)))

    async def _check(self) -> None:
        """Takes over what another process did to the account; positions are valued anew."""
        account_id = self._context.account.id
        async with self._context.database.transaction(
            read_only=True, isolation="repeatable read"
        ) as tx:
            number = (await store.read_totals(tx, account_id)).events
            held = self._valuation.positions_at(number)
            if held is None:
                held = await store.list_positions(tx, account_id)
            if held:
                await self._value(tx, held, number)
                self._books.worked_at = await read_clock(tx)
                self._news.set()
        if self._books.totals is None or self._books.totals.events != number:
            await self._venue.take(VenueRequest(books=self._books))
        if self._books.totals and self._books.totals.events > self._last_streamed:
            self._news.set()

    async def _find_due(self, now: datetime) -> set[Symbol]:
        """Finds symbols in which an order expires or the walk has reached one. Other tasks run
        meanwhile."""
        due = set[Symbol]()
        tick = tick_number(now)
        pacer = Pacer()
        for book in self._books.working():
            await pacer.pause_if_due()
            due_at = book.levels.due_at
            is_walked = book.holding.source is not Source.POSTED
            if (due_at and due_at <= now) or (is_walked and self._is_near(book, tick)):
                due.add(book.symbol)
        return due

    def _is_near(self, book: OrderBook, tick: int) -> bool:
        if book.checked_tick >= tick:
            return False
        checked = max(book.checked_tick, book.holding.number)
        if self._venue.next_match_tick(book, checked, tick) is not None:
            return True
        book.checked_tick = tick
        return False

    async def _find_quoted(self) -> set[Symbol]:
        books = dict[Symbol, OrderBook]()
        seen = dict[Symbol, int]()
        for book in self._books.working():
            books[book.symbol] = book
            seen[book.symbol] = max(book.checked_quote, book.holding.posted_number)
        async with self._context.database.transaction(read_only=True) as tx:
            posted = await store.list_new_quotes(tx, self._context.account.organization_id, seen)
        due = set[Symbol]()
        for symbol, quotes in posted.items():
            book = books[symbol]
            is_walked = book.holding.source is not Source.POSTED
            if is_walked or any(map(book.levels.could_match, quotes)):
                due.add(symbol)
            else:
                book.checked_quote = quotes[-1].number
        return due


def _not_sent(message: str) -> CommandResult:
    return CommandResult(outcome=Outcome.NOT_SENT, message=message)


def _snapshot(found: store.TargetRow) -> OrderSnapshot:
    order = found.order
    return OrderSnapshot(
        client_order_id=order.client_order_id,
        broker_order_id=order.broker_order_id,
        symbol=order.symbol,
        side=order.side,
        quantity=order.quantity,
        events=tuple(found.events),
    )


def simulate(settings: Mapping[str, str]) -> Simulation:
    return PaperSimulation(int(settings["PAPER_SEED"]))


def _number(name: str, default: int, meaning: str) -> Setting:
    return Setting(
        name=name,
        meaning=meaning,
        default=str(default),
        rule="must be a whole number",
        is_valid=lambda text: text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS,
    )


INTEGRATION = Integration(
    CAPABILITIES.name,
    CAPABILITIES,
    PaperBroker,
    simulate,
    settings=(
        _number("PAPER_CASH", 1_000_000, "USD that an account of the paper broker starts with."),
        _number(
            "PAPER_MAX_OPEN_ORDERS",
            1_000,
            "Working orders that an account may have at the paper broker; one more is refused.",
        ),
        _number("PAPER_SEED", 1, "What the paper broker's prices, ids and chances are made from."),
    ),
)
