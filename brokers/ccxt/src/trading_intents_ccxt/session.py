"""One account's session at a venue of ccxt's. It translates, and polls for what became of orders; it
never sends twice."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from trading_intents.brokers.port import (
    DUPLICATE_ID,
    Absent,
    AccountSnapshot,
    AuthFailed,
    BrokerEvent,
    BrokerUnavailable,
    CommandResult,
    IntegrationContext,
    Lookup,
    LookupUnknown,
    OrderTicket,
    Outcome,
    SentOrder,
    UnreadableEvent,
)
from trading_intents.brokers.rest_client import (
    AnswerUnclear,
    NotSent,
    answered,
    rejected,
    remember,
)
from trading_intents.loops import wait_at_most
from trading_intents.trading import Symbol, amount_text
from trading_intents_ccxt.exchange import IdTaken, Refused, ask
from trading_intents_ccxt.reads import VenueReads, count
from trading_intents_ccxt.venues import TIMES, Venue
from trading_intents_ccxt.wire import (
    SIDE_NAMES,
    VenueOrder,
    accepted,
    order_events,
    order_snapshot,
    trade_events,
)

SNAPSHOT_SECONDS = 9.0
MAX_FAILED_POLLS = 3  # each reads all that has changed: one that fails loses nothing
MAX_LACKING_POLLS = 10  # a venue may show what it took or executed a moment later


@dataclass
class Followed:
    """An order that is open, or may be."""

    symbol: Symbol
    filled: Decimal | None = None  # of which all executions were reported
    lacking_polls: int = 0  # those that lacked the order, or an execution of it

    def is_late(self) -> bool:
        self.lacking_polls += 1
        return self.lacking_polls >= MAX_LACKING_POLLS


class CcxtBroker:
    def __init__(
        self,
        venue: Venue,
        context: IntegrationContext,
        poll_seconds: float = 1.0,  # between readings while orders are open
        # After a command, whose order may be filled already; a burst of them is read together.
        quick_seconds: float = 0.2,
        watch_seconds: float = 30.0,  # between readings of all open orders, the unknown ones too
    ) -> None:
        self.name = venue.name
        self.capabilities = venue.capabilities
        self.ended: Exception | None = None
        self._venue = venue
        self._reads = VenueReads(venue, context)
        self._rest = self._reads.rest
        self._clock = context.clock
        self._poll_seconds = poll_seconds
        self._quick_seconds = quick_seconds
        self._watch_seconds = watch_seconds
        self._is_over = asyncio.Event()
        self._news = asyncio.Event()  # a command was sent: it may have filled an order
        self._followed: dict[str, Followed] = {}  # by their client order ids
        self._reported: dict[str, bool] = {}  # keys of events that `events` yielded
        self._names: dict[str, str] = {}  # client order ids, by the venue's

    def end(self, reason: Exception) -> None:
        self.ended = self.ended or reason
        self._is_over.set()
        self._news.set()

    async def open(self) -> None:
        deadline = self._rest.deadline(SNAPSHOT_SECONDS)
        await self._reads.load_markets(deadline)
        self._follow(await self._reads.list_open_orders(None, deadline))

    def _follow(self, orders: Sequence[VenueOrder]) -> None:
        for order in orders:
            if order.client_order_id:
                self._followed.setdefault(order.client_order_id, Followed(order.symbol))
                remember(self._names, order.id, order.client_order_id)

    @answered
    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        exchange = self._reads.exchange
        query = {
            "clientOrderId": ticket.client_order_id,
            "timeInForce": TIMES[ticket.time_in_force],
        }
        if ticket.limit_price is None:
            del query["timeInForce"]  # a market order has none there
        try:
            self._reads.check(ticket)
            price = None if ticket.limit_price is None else amount_text(ticket.limit_price)
            if ticket.not_after is not None and self._clock.monotonic() > ticket.not_after:
                raise NotSent("it is too old")
            row = await ask(
                exchange.create_order(
                    ticket.symbol,
                    ticket.kind.value.lower(),
                    SIDE_NAMES[ticket.side],
                    amount_text(ticket.quantity),
                    price,
                    query,
                ),
                deadline,
            )
        except IdTaken as error:
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID, message=str(error))
        except Refused as error:
            return rejected(error.code, str(error))
        except AnswerUnclear:
            self._expect(ticket.client_order_id, ticket.symbol)
            raise
        order_id = _id_of(row)
        remember(self._names, order_id, ticket.client_order_id)
        self._expect(ticket.client_order_id, ticket.symbol)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order_id)

    def _expect(self, client_order_id: str, symbol: Symbol) -> None:
        self._followed.setdefault(client_order_id, Followed(symbol))
        self._news.set()

    @answered
    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """ccxt makes a cancel and a new order of most: between the two there is none."""
        return rejected("no_native_replace", f"{self._venue.id} is not asked to change orders")

    @answered
    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        name = ticket.orig_client_order_id or ""
        query = {} if ticket.broker_order_id else {self._venue.lookup_field: name}
        cancelling = self._reads.exchange.cancel_order(ticket.broker_order_id, ticket.symbol, query)
        try:
            await ask(cancelling, deadline, is_cancel=True)
        except Refused as error:
            return rejected(error.code, str(error))
        finally:
            if name:
                self._expect(name, ticket.symbol)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=ticket.broker_order_id)

    async def lookup(self, sent: SentOrder, deadline: float) -> Lookup:
        try:
            await self._reads.load_markets(deadline)
            order = await self._reads.find(sent.client_order_id, sent.symbol, deadline)
            if order is None:
                return Absent()
            if not order.is_over:
                self._follow([order])
            trades = await self._reads.list_order_trades(order, deadline)
        except (AuthFailed, BrokerUnavailable, Refused) as error:
            return LookupUnknown(str(error))
        return order_snapshot(order, order_events(order, trades))

    async def events(self) -> AsyncIterator[BrokerEvent | UnreadableEvent]:
        """Polls read the present state: what they find new is reported, so that one that fails
        loses nothing."""
        failed = 0
        watched_at = self._clock.monotonic()
        while not self._is_over.is_set():
            await wait_at_most(self._news, self._pause_seconds())
            await wait_at_most(self._is_over, self._quick_seconds)
            self._news.clear()
            now = self._clock.monotonic()
            is_watching = now >= watched_at + self._watch_seconds
            try:
                found = await self._poll(is_watching)
                failed = 0
            except NotSent as error:
                await wait_at_most(self._is_over, error.retry_after_seconds or 1)
                continue
            except AuthFailed as error:
                self.end(error)
                break
            except BrokerUnavailable as error:
                failed += 1
                if failed == MAX_FAILED_POLLS:
                    self.end(error)
                continue
            watched_at = now if is_watching else watched_at
            for event in found:
                if event.dedupe_key not in self._reported:
                    remember(self._reported, event.dedupe_key, True)
                    yield event
            for why in self._rest.take_unreadable():
                yield UnreadableEvent(why)
        if self.ended and not isinstance(self.ended, NotSent):
            raise self.ended

    def _pause_seconds(self) -> float:
        """However many symbols are read, the requests of a minute are as many."""
        symbols = {followed.symbol for followed in self._followed.values()}
        pause_seconds = self._poll_seconds * len(symbols)
        return min(pause_seconds or self._watch_seconds, self._watch_seconds)

    async def _poll(self, is_watching: bool) -> list[BrokerEvent]:
        """The events of the orders that are followed, until their ends."""
        deadline = self._rest.deadline(SNAPSHOT_SECONDS)
        await self._reads.load_markets(deadline)
        if is_watching:
            self._follow(await self._reads.list_open_orders(None, deadline))
        found = list[BrokerEvent]()
        for symbol in sorted({each.symbol for each in self._followed.values()}):
            rows = await self._reads.list_open_orders(symbol, deadline)
            working = {order.client_order_id: order for order in rows}
            for name, followed in list(self._followed.items()):
                if followed.symbol == symbol:
                    order = working.get(name) or await self._reads.find(name, symbol, deadline)
                    found += await self._read_order(name, followed, order, deadline)
        return found

    async def _read_order(
        self, name: str, followed: Followed, order: VenueOrder | None, deadline: float
    ) -> list[BrokerEvent]:
        """Gives what is new of an order. Its end is reported after all of its executions."""
        if order is None:
            if followed.is_late():  # should it come yet, a look-up or the next watch finds it
                self._followed.pop(name, None)
            return []
        if order.filled == followed.filled and not order.is_over:
            return []
        trades = await self._reads.list_order_trades(order, deadline)
        events = order_events(order, trades)
        if count(trades) < order.filled and not followed.is_late():
            return events[:-1] if order.is_over else events
        followed.filled = order.filled
        if order.is_over:
            self._followed.pop(name, None)
        return events

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        """Executions are asked for by symbol: of the orders that are open here or there."""
        deadline = self._rest.deadline(SNAPSHOT_SECONDS)
        await self._reads.load_markets(deadline)
        for sent in open_orders:
            if sent.broker_order_id:
                remember(self._names, sent.broker_order_id, sent.client_order_id)
        taken_at = self._rest.now()
        orders = await self._reads.list_open_orders(None, deadline)
        self._follow(orders)
        symbols = {sent.symbol for sent in open_orders} | {order.symbol for order in orders}
        executions = list[BrokerEvent]()
        for symbol in sorted(symbols):
            for trade in await self._reads.list_trades(symbol, since, deadline):
                name = trade.client_order_id or self._names.get(trade.order_id)
                executions += trade_events(replace(trade, client_order_id=name))
        return AccountSnapshot(
            taken_at=taken_at,
            open_orders=tuple(order_snapshot(order, [accepted(order)]) for order in orders),
            executions=tuple(executions),
            positions=None,
            unreadable=self._rest.take_unreadable(),
        )

    async def close(self) -> None:
        self.end(NotSent("the session is closed"))
        await self._rest.close()


def _id_of(row: dict[str, Any]) -> str:
    order_id = row["id"]
    if not isinstance(order_id, str):
        raise AnswerUnclear("the answer has no id of the order")
    return order_id
