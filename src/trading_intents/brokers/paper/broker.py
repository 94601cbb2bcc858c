"""The paper broker's adapter over its venue. Streams committed events in order, and runs the
market."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.faults import ActiveFaults, FaultKind
from trading_intents.brokers.paper.market import Market
from trading_intents.brokers.paper.model import CAPABILITIES, JournalRow, PaperAccount, PaperOrder
from trading_intents.brokers.paper.quotes import channel
from trading_intents.brokers.paper.store import CommandTarget, FoundOrder, find_orders
from trading_intents.brokers.paper.venue.batches import PaperVenue
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueReply, VenueRequest
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.paper.venue.valuation import Valuation
from trading_intents.brokers.port import (
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
    Simulation,
    StreamGap,
)
from trading_intents.errors import OutcomeUnknown, PlatformError
from trading_intents.loops import stop_tasks, wait_at_most
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pipeline import Statement, StatementRefused
from trading_intents.trading import Symbol

# How often it checks whether another worker, paused while it held the account, has sent a command
# after all.
CHECK_SECONDS = 30.0
RETRY_SECONDS = 0.5
DOWN = "the session is down"


class PaperBroker:
    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._seed = int(context.settings["PAPER_SEED"])
        self._venue = context.share("venue", lambda: PaperVenue(context))
        self._books = AccountBooks(
            seed=self._seed,
            account_id=context.account.id,
            organization_id=context.account.organization_id,
            on_rows=self._on_rows,
        )
        self._market = Market(context, self._venue, self._books)
        self._down = asyncio.Event()
        self._down.set()
        self._last_streamed = 0  # the last event handed out
        self._committed: deque[JournalRow] = deque()
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._armed_faults: set[FaultKind] = set()
        self._quiet_until_seconds = 0.0
        self._checked_seconds = 0.0
        self._valuation = Valuation(self._seed)
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
            channel(self._context.account.organization_id), self._market.on_quote
        )
        self._running = asyncio.create_task(self._run_market())

    async def close(self) -> None:
        self._break()
        self._context.signals.unsubscribe(
            channel(self._context.account.organization_id), self._market.on_quote
        )
        await stop_tasks(self._running)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("SUBMIT", ticket, deadline)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("REPLACE", ticket, deadline)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("CANCEL", ticket, deadline)

    async def lookup(
        self, client_order_id: str, broker_order_id: str | None, deadline: float
    ) -> Lookup:
        """Looks up by the client order id alone: the journal has every one that ever arrived."""
        asked = [CommandTarget(self._context.account.id, client_order_id)]
        try:
            async with (
                asyncio.timeout(deadline - self._context.clock.monotonic()),
                self._context.database.transaction(read_only=True) as tx,
            ):
                (reply,) = await PoolTransaction(tx).run([find_orders(asked)])
        except (PlatformError, TimeoutError) as error:
            return LookupUnknown(str(error))
        for found in reply.parse(FoundOrder):
            return _snapshot(found)
        return Absent()

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

    async def snapshot(self, since: datetime) -> AccountSnapshot:
        """Gives every other event since beside the executions, so that orders that ended meanwhile
        are included."""
        account_id = self._context.account.id
        try:
            async with self._context.database.transaction(
                read_only=True, isolation="repeatable read"
            ) as tx:
                run = PoolTransaction(tx)
                clock, totals, working, held = await run.run(
                    [
                        store.READ_CLOCK,
                        store.read_account(account_id),
                        store.list_working([account_id]),
                        store.list_holdings([account_id]),
                    ]
                )
                positions = store.parse_positions(held)
                asked = list[CommandTarget]()
                for _, order in working.parse(tuple[UUID, PaperOrder]):
                    asked.append(CommandTarget(account_id, None, order.number))
                found, posted = await run.run([find_orders(asked), self._last_quotes(positions)])
                executions = await store.list_events_since(run, account_id, since)
        except PlatformError as error:
            raise BrokerUnavailable(error.detail) from None
        (now,) = clock.parse(datetime)
        (account,) = totals.parse(PaperAccount)
        reported = list[BrokerEvent]()
        for symbol, quantity in positions.items():
            position = BrokerEvent(
                kind=EventKind.POSITION,
                dedupe_key=f"paper:{account.events}:{symbol}",
                symbol=symbol,
                quantity=quantity,
                venue_time=now,
            )
            reported.append(position)
        self._valuation.load(store.parse_last(posted))
        return AccountSnapshot(
            taken_at=now,
            open_orders=tuple(map(_snapshot, found.parse(FoundOrder))),
            executions=tuple(executions),
            positions=tuple(reported),
            balance=self._valuation.balance(account, positions, now),
        )

    def _last_quotes(self, held: Iterable[Symbol]) -> Statement:
        return store.list_quotes([self._books.asked_quotes(symbol) for symbol in held])

    def _changed_balance(self) -> BrokerBalance | None:
        """The balance, if it is another one than was reported last. None is reported before the
        session's snapshot has read the prices of what is held."""
        books = self._books
        if books.totals is None or books.worked_at is None or not self._valuation.is_loaded:
            return None
        balance = self._valuation.balance(books.totals, books.positions(), books.worked_at)
        last = self._balance
        if last is not None and replace(balance, as_of=last.as_of) == last:
            return None
        self._balance = balance
        return balance

    async def _send(self, command: str, ticket: OrderTicket, deadline: float) -> CommandResult:
        if self._down.is_set():
            return _not_sent(DOWN)
        request = VenueRequest(
            books=self._books, command=command, ticket=ticket, symbols=frozenset({ticket.symbol})
        )
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

    def _on_rows(self, rows: Sequence[JournalRow], faults: Sequence[ActiveFaults]) -> None:
        for each in faults:
            self._armed_faults |= each.kinds & {FaultKind.DUPLICATE, FaultKind.REORDER}
            if FaultKind.DELAY in each:
                now = self._context.clock.monotonic()
                self._quiet_until_seconds = now + each.delay_millis / 1000
        self._committed.extend(rows)
        self._valuation.update(self._books.books.values())
        self._news.set()
        self._market.wake()  # other orders may rest now, which changes when to match next

    def _check_soon(self) -> None:
        self._checked_seconds = -CHECK_SECONDS
        self._market.wake()

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
        rows = [row for row in self._committed if row.seq > self._last_streamed]
        self._committed.clear()
        last = self._last_streamed
        is_whole = True
        for row in rows:
            is_whole = is_whole and row.seq == last + 1
            last = row.last
        known = self._books.totals.events if self._books.totals else last
        if not is_whole or known > last:
            rows = await self._read_rows(known)
        else:
            self._last_streamed = last
        events = list(chain.from_iterable(row.events for row in rows))
        if FaultKind.REORDER in self._armed_faults:
            events.reverse()
        if FaultKind.DUPLICATE in self._armed_faults:
            events += events
        self._armed_faults.clear()
        return events

    async def _read_rows(self, until: int) -> list[JournalRow]:
        """Not every number has a row."""
        asked = store.list_rows(self._context.account.id, self._last_streamed)
        try:
            async with self._context.database.transaction(read_only=True) as tx:
                (reply,) = await PoolTransaction(tx).run([asked])
        except PlatformError:
            await self._pause(RETRY_SECONDS)
            self._news.set()
            return []
        rows = reply.parse(JournalRow)
        self._last_streamed = rows[-1].last if rows else until
        return rows

    async def _run_market(self) -> None:
        """Runs until cancelled. If the market fails, the session ends, so that it does not seem
        alive."""
        try:
            while not self._down.is_set():
                await self._market.wait(self._checked_seconds + CHECK_SECONDS)
                try:
                    await self._check()
                    await self._market.look()
                except PlatformError:
                    await self._pause(RETRY_SECONDS)
        finally:
            self._break()

    async def _check(self) -> None:
        """Now and then takes over what another process did to the account, and values the
        positions anew."""
        now_seconds = self._context.clock.monotonic()
        if now_seconds < self._checked_seconds + CHECK_SECONDS:
            return
        self._checked_seconds = now_seconds
        books = self._books
        database = self._context.database
        async with database.transaction(read_only=True) as tx:
            (totals,) = await PoolTransaction(tx).run([store.read_account(books.account_id)])
        if totals.parse(PaperAccount) != [books.totals]:
            await self._venue.take(VenueRequest(books=books))
        async with database.transaction(read_only=True) as tx:
            asked = [store.READ_CLOCK, self._last_quotes(books.positions())]
            clock, posted = await PoolTransaction(tx).run(asked)
        (books.worked_at,) = clock.parse(datetime)
        if self._valuation.is_loaded:
            self._valuation.load(store.parse_last(posted))
        self._news.set()


def _not_sent(message: str) -> CommandResult:
    return CommandResult(outcome=Outcome.NOT_SENT, message=message)


def _snapshot(found: FoundOrder) -> OrderSnapshot:
    order = found.order
    return OrderSnapshot(
        client_order_id=order.client_order_id,
        broker_order_id=order.broker_order_id,
        symbol=order.symbol,
        side=order.side,
        quantity=order.quantity,
        events=found.events,
    )


def simulate(settings: Mapping[str, str]) -> Simulation:
    return PaperSimulation(int(settings["PAPER_SEED"]))


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, PaperBroker, simulate)
