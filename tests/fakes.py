"""Fakes that a test controls. Nothing here sleeps or reads the machine's clock."""

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

from trading_intents.brokers.port import (
    DUPLICATE_ID,
    Absent,
    AccountSnapshot,
    AuthFailed,
    BrokerBalance,
    BrokerEvent,
    BrokerUnavailable,
    Capabilities,
    CommandResult,
    EventKind,
    Integration,
    IntegrationContext,
    Lookup,
    LookupKind,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
    Outcome,
    SentOrder,
    StreamGap,
)
from trading_intents.trading import (
    Environment,
    Leg,
    OrderKind,
    RouteStrategy,
    TimeInForce,
    terms_of,
)

START = datetime(2026, 1, 5, 15, 0, tzinfo=UTC)


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self._elapsed_seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self._elapsed_seconds)

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time never runs backwards"
        self._elapsed_seconds += seconds


class Act(StrEnum):
    """The fake venue's treatment of one command."""

    ANSWER = "answer"  # taken, and acknowledged
    DROP = "drop"  # taken, and the answer is lost
    LOSE = "lose"  # never arrives, without an answer
    FAIL = "fail"  # provably never arrives
    LIMIT = "limit"  # refused by a rate limit
    REFUSE = "refuse"
    DUPLICATE = "duplicate"  # taken; the answer is that it is there already
    HANG = "hang"  # taken, without an answer for as long as the caller waits
    BREAK = "break"  # taken, and the adapter raises


@dataclass(kw_only=True)
class VenueOrder:
    account_id: UUID
    ticket: OrderTicket  # of the last version
    number: str
    events: list[BrokerEvent] = field(default_factory=list)
    filled: Decimal = Decimal(0)
    over: bool = False
    parent: str | None = None  # a leg's
    leg: Leg | None = None


class FakeVenue:
    """A broker in memory, with a book that outlives its sessions. It refuses a client order id that
    was used, for ever.
    `acts` is what becomes of the next commands."""

    def __init__(self, name: str = "fake", **capabilities: object) -> None:
        self.capabilities = Capabilities(
            **{  # type: ignore[arg-type] # a test names what it wants
                "name": name,
                "environments": tuple(Environment),
                "times_in_force": dict.fromkeys(OrderKind, tuple(TimeInForce)),
                "routes": tuple(RouteStrategy),
                "native_replace": True,
                "credential_fields": (),
                "lookup": LookupKind.DURABLE,
                "unique_order_ids": True,
                **capabilities,
            }
        )
        self.acts: deque[Act] = deque()
        # Command, client order id: all that arrived, each id once.
        self.journal: list[tuple[str, str]] = []
        self.tickets: list[OrderTicket] = []
        self.duplicates: list[tuple[str, str]] = []  # those that came under a used id
        self.orders: dict[str, VenueOrder] = {}  # by the client order ids of all versions
        self.sessions: list[VenueSession] = []
        self.is_away = False
        self.refuses_login = False
        self.is_mute = False  # takes commands, and its stream reports nothing
        self.fails_snapshots = False
        self.hides = False  # look-ups have no result
        self.names_legs = False  # in its own way: it keeps no client order ids of legs
        self.accepts_legs = True  # with their entry; False: `accept_legs` does
        self.lookups: list[str] = []
        self.sought: list[SentOrder] = []  # likewise, with all that was said of them
        self.known_open: tuple[SentOrder, ...] = ()  # as the last snapshot was asked for
        self.answers_lookups = asyncio.Event()  # cleared: they wait
        self.answers_lookups.set()
        self.snapshots = self.failed_snapshots = 0
        self.positions: tuple[BrokerEvent, ...] | None = None  # as snapshots report them
        self.balance: BrokerBalance | None = None  # likewise
        self.contexts: list[IntegrationContext] = []
        self.lost: dict[str, OrderTicket] = {}  # commands that never arrived, by client order id
        self._count = 0

    @property
    def integration(self) -> Integration:
        return Integration(self.capabilities.name, self.capabilities, self.connect)

    def connect(self, context: IntegrationContext) -> "VenueSession":
        self.contexts.append(context)
        return VenueSession(self, context.account.id)

    def arrived(self, command: str) -> list[str]:
        return [client_order_id for each, client_order_id in self.journal if each == command]

    def fill(self, client_order_id: str, quantity: Decimal, price: Decimal) -> None:
        order = self.orders[client_order_id]
        order.filled += quantity
        order.over = order.filled >= order.ticket.quantity
        self._emit(
            order,
            EventKind.FILL,
            exec_id=f"e{self._count}",
            quantity=quantity,
            price=price,
            cum_quantity=order.filled,
        )

    def bust(self, client_order_id: str) -> None:
        """Takes the order's last execution back."""
        order = self.orders[client_order_id]
        fill = [event for event in order.events if event.kind is EventKind.FILL][-1]
        order.filled -= fill.quantity or Decimal(0)
        order.over = order.over and not self.capabilities.bust_reopens
        self._emit(order, EventKind.FILL_BUST, replaces=fill.exec_id, cum_quantity=order.filled)

    def end(self, client_order_id: str, kind: EventKind) -> None:
        order = self.orders[client_order_id]
        order.over = True
        self._emit(order, kind)

    def disconnect(self) -> None:
        for session in self.sessions:
            session.end()
        self.sessions.clear()

    def report_balance(self, balance: BrokerBalance) -> None:
        self.balance = balance
        for session in self.sessions:
            session.received.put_nowait(balance)

    def leave_gap(self) -> None:
        for session in self.sessions:
            session.received.put_nowait(StreamGap("scripted"))

    def take(self, account_id: UUID, command: str, ticket: OrderTicket) -> CommandResult:
        """Applies a command that arrives to the book."""
        if ticket.client_order_id in {used for _, used in self.journal}:
            self.duplicates.append((command, ticket.client_order_id))
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID)
        self.journal.append((command, ticket.client_order_id))
        self.tickets.append(ticket)
        if command == "submit":
            made = self.orders[ticket.client_order_id] = VenueOrder(
                account_id=account_id, ticket=ticket, number=f"v{len(self.journal)}"
            )
            self._emit(made, EventKind.ACCEPTED)
            for leg in ticket.legs:
                own = OrderTicket(
                    client_order_id=leg.client_order_id,
                    symbol=leg.symbol,
                    side=leg.side,
                    kind=leg.kind,
                    **terms_of(leg),
                )
                number = f"{made.number}-{leg.leg}"
                self.orders[leg.client_order_id] = VenueOrder(
                    account_id=account_id,
                    ticket=own,
                    number=number,
                    parent=ticket.client_order_id,
                    leg=leg.leg,
                )
            if self.accepts_legs:
                self.accept_legs()
            return CommandResult(outcome=Outcome.ACKED, broker_order_id=made.number)
        order = self.orders.get(ticket.orig_client_order_id or "")
        if order is None or order.over:
            return CommandResult(
                outcome=Outcome.REJECTED, code="too_late", message="no such open order"
            )
        if command == "replace":
            before = order.ticket.client_order_id
            order.ticket = ticket
            self.orders[ticket.client_order_id] = order
            self._emit(order, EventKind.REPLACED, replaces=before)
        else:
            order.over = True
            self._emit(order, EventKind.CANCELLED)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.number)

    def accept_legs(self) -> None:
        for order in list(self.orders.values()):
            if order.leg and not order.events:
                self._emit(order, EventKind.ACCEPTED)

    def _emit(self, order: VenueOrder, kind: EventKind, **more: object) -> None:
        self._count += 1
        client_order_id: str | None = order.ticket.client_order_id
        if order.leg and self.names_legs and kind is not EventKind.REPLACED:
            client_order_id = None
            more = {**more, "parent": order.parent, "leg": order.leg}
        event = BrokerEvent(
            kind=kind,
            dedupe_key=f"{self.capabilities.name}:{self._count}",
            client_order_id=client_order_id,
            broker_order_id=order.number,
            **more,  # type: ignore[arg-type] # fields of the event
        )
        order.events.append(event)
        for session in self.sessions:
            if session.account_id == order.account_id and not self.is_mute:
                session.received.put_nowait(event)


class VenueSession:
    """A broker adapter over the fake venue."""

    def __init__(self, venue: FakeVenue, account_id: UUID) -> None:
        self._venue = venue
        self.account_id = account_id
        self.name = venue.capabilities.name
        self.capabilities = venue.capabilities
        self.received: asyncio.Queue[BrokerEvent | BrokerBalance | StreamGap | None] = (
            asyncio.Queue()
        )

    async def open(self) -> None:
        if self._venue.refuses_login:
            raise AuthFailed("scripted")
        if self._venue.is_away:
            raise BrokerUnavailable("scripted")
        self._venue.sessions.append(self)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._call("submit", ticket)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._call("replace", ticket)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._call("cancel", ticket)

    async def lookup(self, sent: SentOrder, deadline: float) -> Lookup:
        client_order_id = sent.client_order_id
        self._venue.lookups.append(client_order_id)
        self._venue.sought.append(sent)
        await self._venue.answers_lookups.wait()
        if self._venue.is_away or self._venue.hides:
            return LookupUnknown("scripted")
        order = self._venue.orders.get(client_order_id)
        if order and order.leg and self._venue.names_legs:
            order = order if sent.broker_order_id == order.number else None
        return self._snapshot(order) if order else Absent()

    def _snapshot(self, order: VenueOrder) -> OrderSnapshot:
        """With its legs, if the venue names them."""
        legs = [
            leg for leg in self._venue.orders.values() if leg.parent == order.ticket.client_order_id
        ]
        own = _snapshot(order)
        events = [event for leg in legs for event in leg.events] if self._venue.names_legs else []
        return dataclasses.replace(own, events=(*own.events, *events))

    async def events(self) -> AsyncIterator[BrokerEvent | BrokerBalance | StreamGap]:
        while (event := await self.received.get()) is not None:
            yield event

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        self._venue.known_open = tuple(open_orders)
        if self._venue.is_away or self._venue.fails_snapshots:
            self._venue.failed_snapshots += 1
            raise BrokerUnavailable("scripted")
        self._venue.snapshots += 1
        mine = [
            order for order in self._venue.orders.values() if order.account_id == self.account_id
        ]
        orders = {order.number: order for order in mine}.values()
        fills = [
            event for order in orders for event in order.events if event.kind is EventKind.FILL
        ]
        working = tuple(_snapshot(order) for order in orders if not order.over)
        return AccountSnapshot(
            taken_at=START,
            open_orders=working,
            executions=tuple(fills),
            positions=self._venue.positions,
            balance=self._venue.balance,
        )

    async def close(self) -> None:
        if self in self._venue.sessions:
            self._venue.sessions.remove(self)

    def end(self) -> None:
        self.received.put_nowait(None)

    async def _call(self, command: str, ticket: OrderTicket) -> CommandResult:
        venue = self._venue
        act = venue.acts.popleft() if venue.acts else Act.ANSWER
        if venue.is_away or act is Act.FAIL:
            return CommandResult(outcome=Outcome.NOT_SENT, message="scripted")
        if act is Act.LIMIT:
            return CommandResult(
                outcome=Outcome.NOT_SENT, message="scripted", retry_after_seconds=1
            )
        if act is Act.LOSE:
            venue.lost[ticket.client_order_id] = ticket
            return CommandResult(outcome=Outcome.UNKNOWN, message="scripted")
        if act is Act.REFUSE:
            venue.journal.append((command, ticket.client_order_id))
            return CommandResult(
                outcome=Outcome.REJECTED, code="scripted", message="scripted refusal"
            )
        result = venue.take(self.account_id, command, ticket)
        if act is Act.BREAK:
            raise ValueError("scripted")
        if act is Act.HANG:
            await asyncio.Event().wait()
        if act is Act.DROP:
            return CommandResult(outcome=Outcome.UNKNOWN, message="scripted")
        if act is Act.DUPLICATE:
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID, message="scripted")
        return result


def _snapshot(order: VenueOrder) -> OrderSnapshot:
    ticket = order.ticket
    return OrderSnapshot(
        client_order_id=ticket.client_order_id,
        broker_order_id=order.number,
        symbol=ticket.symbol,
        side=ticket.side,
        quantity=ticket.quantity,
        events=tuple(order.events),
    )
