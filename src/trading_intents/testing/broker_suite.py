"""The rules of broker integrations, as numbered cards. An author writes a Stage for the venue, and
runs `play` for each card of `broker_cards.CARDS`. Needs no test framework."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Protocol
from uuid import uuid4

from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.port import (
    BrokerAdapter,
    BrokerEvent,
    Capabilities,
    EventKind,
    OrderTicket,
    Outcome,
)
from trading_intents.orders.facts import client_order_id
from trading_intents.trading import ZERO, FrozenStruct, OrderKind, OrderSide, Symbol, TimeInForce

CALL_SECONDS = 3.5
WAIT_SECONDS = 5.0
MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
# Reported by some venues and not by others, about a state that ends by itself.
PASSING = frozenset(
    {
        EventKind.PENDING_CANCEL,
        EventKind.PENDING_REPLACE,
        EventKind.STATUS,
        EventKind.TRIGGERED,
        EventKind.POSITION,
        EventKind.FEE,
    }
)


class StageFault(StrEnum):
    DROP_ANSWER = "drop_answer"  # the next command is taken, and its answer lost
    LOSE_COMMAND = "lose_command"  # the next command never arrives, and no answer comes
    BREAK_LINK = "break_link"  # the connection breaks after the next command
    BUST_FILL = "bust_fill"  # at once: the last execution is taken back
    # From now on: sessions are opened, and their update streams refused.
    REFUSE_UPDATES = "refuse_updates"
    # The next execution is reported by rows that cannot be read, in the stream and in lists.
    GARBLE = "garble"
    # The next look-up is answered by an error that says nothing of the order, such as 403.
    REFUSE_LOOKUP = "refuse_lookup"
    LOSE_LOOKUP = "lose_lookup"  # the next look-up gets no answer


class BookedFill(FrozenStruct):
    quantity: Decimal
    price: Decimal
    fee: Decimal | None = None  # None: the venue takes none, or reports it elsewhere


class BookedOrder(FrozenStruct, kw_only=True):
    """An order that the venue took, with the terms of its last version."""

    client_order_ids: tuple[str, ...]  # of its versions, the last one last
    side: OrderSide
    kind: OrderKind
    quantity: Decimal  # through all versions
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    time_in_force: TimeInForce
    fills: tuple[BookedFill, ...] = ()


class Stage(Protocol):
    """An empty account at a venue, or a simulator of it, whose market the test makes. One is made
    for each card."""

    capabilities: Capabilities
    symbol: Symbol  # that nobody else trades
    faults: frozenset[StageFault]  # those that it can do

    async def connect(self) -> BrokerAdapter:
        """A new session of the account, not opened, as another process would make it after a
        restart: of earlier sessions there is nothing left but what the venue keeps. Made by the
        integration's own `connect`."""

    async def now(self) -> datetime:
        """The venue's clock."""

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        """Sets the market from now on, `size` on both sides, without a trade."""

    async def fault(self, fault: StageFault) -> None:
        """DROP_ANSWER, LOSE_COMMAND and BREAK_LINK meet a CANCEL and a REPLACE too."""

    async def book(self) -> Sequence[BookedOrder] | None:
        """Every order that the venue took, without legs, from its own records: what the adapter
        sent and reported is compared with it after each card. None: it shows none."""


Need = Callable[[Capabilities], object]


@dataclass(frozen=True, slots=True)
class Card:
    """`needs` says for which brokers it is meant; `fault`, what the stage must be able to do."""

    number: int
    title: str
    play: Callable[["CardRun"], Awaitable[None]]
    needs: Need = lambda capabilities: True
    fault: StageFault | None = None

    @property
    def name(self) -> str:
        return f"{self.number:02} {self.title}"


class Sent(FrozenStruct):
    ticket: OrderTicket
    result: port.CommandResult


@dataclass(kw_only=True)
class CardRun:
    stage: Stage
    broker: BrokerAdapter
    received: list[BrokerEvent] = field(default_factory=list)
    gaps: list[port.StreamGap] = field(default_factory=list)
    missing: port.StreamGap | None = None  # why the session has no updates
    sent: "list[Sent]" = field(
        default_factory=list
    )  # CREATEs and REPLACEs, whatever became of them
    # What any source reported, by its key.
    seen: dict[str, BrokerEvent] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _following: "asyncio.Task[None] | None" = None

    @property
    def has_ended(self) -> bool:
        return self._following is None or self._following.done()

    async def open(self) -> None:
        self.missing = await self.broker.open()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        await self.broker.close()
        if self._following:
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.gather(self._following, return_exceptions=True)

    async def connect_again(self) -> None:
        await self.close()
        self.broker = await self.stage.connect()
        await self.open()

    async def _follow(self) -> None:
        try:
            async for event in self.broker.events():
                if isinstance(event, port.StreamGap):
                    self.gaps.append(event)
                elif isinstance(event, BrokerEvent):
                    self.received.append(event)
                    self._note([event])
                self._news.set()
        finally:
            # Waited for by `expect_end`: the task is done one pass of the loop after this.
            asyncio.get_running_loop().call_soon(self._news.set)

    def _note(self, events: Iterable[BrokerEvent]) -> None:
        for event in events:
            self.seen.setdefault(event.dedupe_key, event)

    async def quote(self, bid: str, ask: str, size: str = "1000") -> None:
        await self.stage.quote(Decimal(bid), Decimal(ask), Decimal(size))

    def ticket(
        self,
        side: OrderSide,
        quantity: str,
        limit: str | None = None,
        stop: str | None = None,
        time_in_force: TimeInForce | None = None,
    ) -> OrderTicket:
        """Has the first time in force that the broker offers for the kind, if none is given: DAY
        for one that nobody is sent, or that it refuses."""
        kinds = {
            (False, False): OrderKind.MARKET,
            (True, False): OrderKind.LIMIT,
            (False, True): OrderKind.STOP,
            (True, True): OrderKind.STOP_LIMIT,
        }
        kind = kinds[limit is not None, stop is not None]
        offered = self.stage.capabilities.times_in_force.get(kind) or (TimeInForce.DAY,)
        return OrderTicket(
            client_order_id=new_id(),
            symbol=self.stage.symbol,
            side=side,
            kind=kind,
            quantity=Decimal(quantity),
            limit_price=None if limit is None else Decimal(limit),
            stop_price=None if stop is None else Decimal(stop),
            time_in_force=time_in_force or offered[0],
        )

    async def send(self, ticket: OrderTicket) -> Sent:
        return self._noted(ticket, await self.broker.submit(ticket, deadline()))

    def _noted(self, ticket: OrderTicket, result: port.CommandResult) -> Sent:
        sent = Sent(ticket, result)
        self.sent.append(sent)
        self._note(result.updates)
        return sent

    async def send_taken(self, ticket: OrderTicket) -> Sent:
        """The card fails unless the order is taken."""
        sent = await self.send(ticket)
        assert sent.result.outcome is Outcome.ACKED, sent.result
        return sent

    async def buy(
        self,
        quantity: str,
        limit: str | None = None,
        stop: str | None = None,
        time_in_force: TimeInForce | None = None,
    ) -> Sent:
        ticket = self.ticket(OrderSide.BUY, quantity, limit, stop, time_in_force)
        return await self.send_taken(ticket)

    def never_sent(self) -> Sent:
        ticket = self.ticket(OrderSide.BUY, "1", "90")
        return Sent(ticket, port.CommandResult(outcome=Outcome.NOT_SENT))

    async def buy_resting(self, quantity: str) -> Sent:
        """Sends a BUY at 90, below the market."""
        await self.quote("99", "101")
        return await self.buy(quantity, "90")

    async def buy_filled(self, quantity: str) -> Sent:
        """Sends a BUY that the market fills at once, at 100."""
        await self.quote("99", "100")
        sent = await self.buy(quantity)
        await self.expect_filled(quantity, sent)
        return sent

    async def buy_filled_in_part(self) -> Sent:
        """Sends a BUY of 10 at 100, of which the market fills 4."""
        await self.quote("99", "100", "4")
        sent = await self.buy("10", "100")
        await self.expect_filled("4", sent)
        return sent

    async def replace(self, sent: Sent, quantity: str, limit: str | None = None) -> Sent:
        before = sent.ticket
        terms = self.ticket(before.side, quantity, limit, time_in_force=before.time_in_force)
        ticket = self._about(sent, terms)
        return self._noted(ticket, await self.broker.replace(ticket, deadline()))

    async def cancel(self, sent: Sent, with_broker_id: bool = True) -> Sent:
        terms = replace(sent.ticket, client_order_id=new_id(), legs=())
        ticket = self._about(sent, terms)
        if not with_broker_id:
            ticket = replace(ticket, broker_order_id=None)
        result = await self.broker.cancel(ticket, deadline())
        self._note(result.updates)
        return Sent(ticket, result)

    def _about(self, sent: Sent, ticket: OrderTicket) -> OrderTicket:
        return replace(
            ticket,
            orig_client_order_id=sent.ticket.client_order_id,
            broker_order_id=sent.result.broker_order_id or sent.ticket.broker_order_id,
        )

    async def found(self, sent: Sent) -> port.OrderSnapshot:
        """Looks the order up; the card fails unless it is found."""
        order = await self.broker.lookup(self.known(sent), deadline())
        assert isinstance(order, port.OrderSnapshot), order
        self._note(order.events)
        return order

    def known(self, sent: Sent) -> port.SentOrder:
        """The order as the platform knows it."""
        ticket = sent.ticket
        return port.SentOrder(
            client_order_id=ticket.client_order_id,
            broker_order_id=sent.result.broker_order_id,
            symbol=ticket.symbol,
            side=ticket.side,
            kind=ticket.kind,
            quantity=ticket.quantity,
        )

    async def snapshot(self) -> port.AccountSnapshot:
        since = await self.stage.now() - timedelta(days=1)
        snapshot = await self.broker.snapshot(since, [self.known(each) for each in self.sent])
        self._note(snapshot.executions)
        for order in snapshot.open_orders:
            self._note(order.events)
        return snapshot

    def reported(self, *sent: Sent) -> list[BrokerEvent]:
        """The stream's events about these commands' order, each once, without the optional ones."""
        clients = {each.ticket.client_order_id for each in sent}
        numbers = {each.result.broker_order_id for each in sent} - {None}
        found = dict[str, BrokerEvent]()
        for event in self.received:
            is_meant = event.client_order_id in clients or event.broker_order_id in numbers
            if is_meant and event.kind not in PASSING:
                found[event.dedupe_key] = event
        return list(found.values())

    async def expect(self, kinds: Sequence[EventKind], *sent: Sent) -> list[BrokerEvent]:
        """Waits until the stream has reported exactly these about the order, in this order; a fill
        may come in parts."""
        expected = list(kinds)
        await self.wait_until(lambda: _folded(self.reported(*sent)) == expected or self.has_ended)
        events = self.reported(*sent)
        assert _folded(events) == expected, f"expected {expected}, reported {_folded(events)}"
        return events

    async def expect_filled(self, quantity: str, *sent: Sent) -> list[BrokerEvent]:
        """Waits until the order's fills sum up to this."""
        await self.wait_until(lambda: total(self.fills(*sent)) >= Decimal(quantity))
        fills = self.fills(*sent)
        assert total(fills) == Decimal(quantity), f"filled {total(fills)}, not {quantity}"
        return fills

    def fills(self, *sent: Sent) -> list[BrokerEvent]:
        return [event for event in self.reported(*sent) if event.kind is EventKind.FILL]

    async def expect_end(self) -> None:
        await self.wait_until(lambda: self.has_ended or bool(self.gaps))
        assert self.has_ended or self.gaps, "the stream goes on without a gap"

    async def compare_book(self, is_readable: bool) -> None:
        """Compares the venue's records with what was sent and, while the session is open and all of
        it can be read, with what was reported."""
        now = await self.stage.now()
        for event in self.seen.values():
            if event.venue_time:
                assert event.venue_time.tzinfo, f"a time without its zone: {event}"
                is_near = abs(event.venue_time - now) < MAX_CLOCK_DIFFERENCE
                assert is_near, f"a time that is none of the venue's: {event}"
        book = await self.stage.book()
        if book is None:
            return
        check_terms(book, self.sent)
        if self.has_ended or not is_readable:
            return
        await self.snapshot()  # it has what the stream had not to report
        await self.wait_until(lambda: not differing_fills(book, self.seen.values()))
        differing = differing_fills(book, self.seen.values())
        assert not differing, "; ".join(differing)

    async def wait_until(self, is_met: Callable[[], bool]) -> None:
        """Waits for the stream; returns without an error when it is too late."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while not is_met():
                    self._news.clear()
                    await self._news.wait()


def deadline(seconds: float = CALL_SECONDS) -> float:
    return time.monotonic() + seconds


def keys_of(events: Iterable[BrokerEvent], kind: EventKind) -> set[str]:
    return {event.dedupe_key for event in events if event.kind is kind}


def total(events: Iterable[BrokerEvent]) -> Decimal:
    return sum((each.quantity or ZERO for each in events if each.kind is EventKind.FILL), ZERO)


def new_id() -> str:
    """As long as those that the platform makes."""
    return client_order_id(uuid4())


def check_terms(book: Sequence[BookedOrder], commands: Sequence[Sent]) -> None:
    """Each order at the venue is one that was sent, once, with the terms that were meant."""
    tickets = {sent.ticket.client_order_id: sent.ticket for sent in commands}
    taken = set[str]()
    for order in book:
        for name in order.client_order_ids:
            assert name in tickets, f"the venue has {name}, which nobody sent"
            assert name not in taken, f"the venue has {name} twice"
            taken.add(name)
        meant = tickets[order.client_order_ids[-1]]
        for term in ("side", "kind", "quantity", "limit_price", "stop_price", "time_in_force"):
            is_moving = term == "stop_price" and order.kind is OrderKind.TRAILING_STOP
            held = getattr(order, term)
            wanted = getattr(meant, term)
            assert held == wanted or is_moving, f"{term} {held} at the venue, {wanted} was sent"
    for sent in commands:
        if sent.result.outcome is Outcome.ACKED and sent.ticket.orig_client_order_id is None:
            name = sent.ticket.client_order_id
            assert name in taken, f"{name} is called taken, and the venue lacks it"


def differing_fills(book: Sequence[BookedOrder], events: Iterable[BrokerEvent]) -> list[str]:
    """Says how the reported executions, each once by its key, differ from the venue's own."""
    fills = [event for event in events if event.kind is EventKind.FILL]
    differing = list[str]()
    for order in book:
        own = [event for event in fills if event.client_order_id in order.client_order_ids]
        differing += _differences(order, own)
    return differing


def _differences(order: BookedOrder, fills: Sequence[BrokerEvent]) -> Iterator[str]:
    reported = sorted((fill.quantity, fill.price) for fill in fills)
    booked = sorted((fill.quantity, fill.price) for fill in order.fills)
    if reported != booked:
        yield f"the venue has executions {booked}, reported are {reported}"
    sides = {fill.side for fill in fills} - {None, order.side}
    if sides:
        yield f"an execution of a {order.side} is reported as {sides}"
    fees = sum((fill.fee or ZERO for fill in fills), ZERO)
    taken = sum((fill.fee or ZERO for fill in order.fills), ZERO)
    is_known = all(fill.fee is not None for fill in order.fills)
    if is_known and fees != taken:
        yield f"the venue took fees of {taken}, reported are {fees}"


def _folded(events: Sequence[BrokerEvent]) -> list[EventKind]:
    """The kinds of events, with consecutive fills as one."""
    kinds = list[EventKind]()
    for event in events:
        if event.kind is not EventKind.FILL or kinds[-1:] != [EventKind.FILL]:
            kinds.append(event.kind)
    return kinds


async def play(card: Card, stage: Stage) -> None:
    """AssertionError says what was wrong. Only for cards that are meant for the broker."""
    run = CardRun(stage=stage, broker=await stage.connect())
    await run.open()
    try:
        await card.play(run)
        await run.compare_book(card.fault is not StageFault.GARBLE)
    except AssertionError as error:
        raise AssertionError(f"card {card.name}: {error}") from error
    finally:
        await run.close()


def offers(
    kind: OrderKind,
    time_in_force: TimeInForce | None = None,  # None: any
    can: Callable[[Capabilities], object] = lambda broker: True,
) -> Need:
    def needed(broker: Capabilities) -> bool:
        times = broker.times_in_force.get(kind, ())
        is_offered = time_in_force in times if time_in_force else bool(times)
        return is_offered and bool(can(broker))

    return needed


def looks_up(broker: Capabilities) -> bool:
    return broker.lookup is not port.LookupKind.NONE


def looks_up_for_ever(broker: Capabilities) -> bool:
    return broker.lookup is port.LookupKind.DURABLE


TAKES_MARKET = offers(OrderKind.MARKET)
TAKES_LIMIT = offers(OrderKind.LIMIT)
REPLACES = offers(OrderKind.LIMIT, can=lambda broker: broker.native_replace)
LOOKS_UP_REPLACES = offers(
    OrderKind.LIMIT, can=lambda broker: broker.native_replace and looks_up(broker)
)
REPORTS_BALANCES = offers(OrderKind.MARKET, can=lambda broker: broker.tells_balances)
KEEPS_FILLED = offers(OrderKind.MARKET, can=lambda broker: not broker.bust_reopens)
REFUSES_USED_IDS = offers(OrderKind.LIMIT, can=lambda broker: broker.unique_order_ids)
LINKS_EXITS = offers(OrderKind.MARKET, can=lambda broker: broker.exits)
LINKS_PAIRS = offers(OrderKind.MARKET, can=lambda broker: broker.one_cancels_other)
# Not ours: its rows may be anything.
HAS_OWN_VENUE = offers(OrderKind.LIMIT, can=lambda broker: broker.credential_fields)
ASKS_A_VENUE = offers(
    OrderKind.LIMIT, can=lambda broker: broker.credential_fields and looks_up(broker)
)
# What its updates say is found by look-ups too: it can do without them for a while.
HAS_OTHER_SOURCES = offers(
    OrderKind.LIMIT, can=lambda broker: broker.credential_fields and looks_up_for_ever(broker)
)
