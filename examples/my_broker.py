"""A broker integration of one's own, whole: the link to a venue that lives in memory. Copy it, and put your venue's
protocol where `Venue` is. A package adds it to the platform by an entry point, without touching the platform:

    [project.entry-points."trading_intents.brokers"]
    my_broker = "my_broker:INTEGRATION"
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from trading_intents.brokers.port import (
    DUPLICATE_ID,
    Absent,
    AccountSnapshot,
    BrokerEvent,
    BrokerUnavailable,
    Capabilities,
    CommandResult,
    EventKind,
    Integration,
    IntegrationContext,
    Lookup,
    LookupKind,
    OrderSnapshot,
    OrderTicket,
    Outcome,
    StreamGap,
)
from trading_intents.trading import Environment, OrderKind, OrderSide, RouteStrategy, TimeInForce

# Known without a connection: GET /v1/brokers shows it, and what it does not offer is refused before it is recorded.
CAPABILITIES = Capabilities(
    name="my_broker",
    environments=(Environment.PAPER,),
    times_in_force=dict.fromkeys((OrderKind.MARKET, OrderKind.LIMIT), (TimeInForce.DAY,)),
    routes=(RouteStrategy.SMART,),
    native_replace=False,
    credential_fields=("token",),
    lookup=LookupKind.DURABLE,
    unique_order_ids=True,
)


@dataclass
class Order:
    ticket: OrderTicket
    number: str
    filled: Decimal = Decimal(0)
    over: bool = False
    events: list[BrokerEvent] = field(default_factory=list)

    @property
    def leaves(self) -> Decimal:
        return self.ticket.quantity - self.filled


class Venue:
    """Stands for the other end of the wire."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.streams: list[asyncio.Queue[BrokerEvent | None]] = []
        self.events: list[BrokerEvent] = []
        self.bid = self.ask = self.bid_size = self.ask_size = Decimal(0)
        self.cash, self.position = Decimal(1_000_000), Decimal(0)

    def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.bid, self.ask, self.bid_size, self.ask_size = bid, ask, size, size
        for order in self.orders.values():
            self._match(order)

    def submit(self, ticket: OrderTicket) -> Order:
        order = Order(ticket, f"my-{len(self.orders) + 1}")
        self.orders[ticket.client_order_id] = order
        if ticket.quantity * (ticket.limit_price or self.ask) > self.cash:
            order.over = True
            self._tell(order, EventKind.REJECTED, reason="no money")
            return order
        self._tell(order, EventKind.ACCEPTED)
        self._match(order)
        return order

    def cancel(self, order: Order) -> None:
        order.over = True
        self._tell(order, EventKind.CANCELLED)

    def _match(self, order: Order) -> None:
        ticket, buys = order.ticket, order.ticket.side is OrderSide.BUY
        price, size = (self.ask, self.ask_size) if buys else (self.bid, self.bid_size)
        if ticket.limit_price is not None and (ticket.limit_price < price if buys else ticket.limit_price > price):
            return
        quantity = min(order.leaves, size)
        if order.over or quantity <= 0:
            return
        signed = quantity if buys else -quantity
        self.ask_size, self.bid_size = (size - quantity, self.bid_size) if buys else (self.ask_size, size - quantity)
        self.cash, self.position = self.cash - signed * price, self.position + signed
        order.filled += quantity
        order.over = not order.leaves
        self._tell(order, EventKind.FILL, quantity, price)

    def _tell(
        self,
        order: Order,
        kind: EventKind,
        quantity: Decimal | None = None,
        price: Decimal | None = None,
        reason: str | None = None,
    ) -> None:
        number = len(self.events) + 1
        event = BrokerEvent(
            kind=kind,
            dedupe_key=f"my_broker:{number}",  # from the venue's ids alone, so that it is the same wherever it is told
            client_order_id=order.ticket.client_order_id,
            broker_order_id=order.number,
            exec_id=f"x{number}" if kind is EventKind.FILL else None,
            symbol=order.ticket.symbol,
            side=order.ticket.side,
            quantity=quantity,
            price=price,
            cum_quantity=order.filled,
            venue_time=datetime.now(UTC),
            reason=reason,
        )
        self.events.append(event)
        order.events.append(event)
        for stream in self.streams:
            stream.put_nowait(event)


class MyBroker:
    """One account's link. It translates, and nothing else: it never sends twice and never decides what an order is."""

    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    def __init__(self, context: IntegrationContext, venue: Venue) -> None:
        self._context, self._venue = context, venue
        self._stream: asyncio.Queue[BrokerEvent | None] = asyncio.Queue()
        self._is_open = False

    async def open(self) -> None:
        # Here a real one connects, logs in with `self._context.secrets["token"].reveal()`, and subscribes;
        # AuthFailed and BrokerUnavailable say what went wrong.
        self._venue.streams.append(self._stream)
        self._is_open = True

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """NOT_SENT is provable, REJECTED definite, and everything else UNKNOWN: it is looked up, never sent again."""
        if refusal := self._not_sent(ticket, deadline):
            return refusal
        if ticket.client_order_id in self._venue.orders:
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID)
        order = self._venue.submit(ticket)
        reason = order.events[-1].reason
        outcome = Outcome.REJECTED if reason else Outcome.ACKED
        return CommandResult(outcome=outcome, broker_order_id=order.number, code=reason, updates=tuple(order.events))

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.REJECTED, code="no native replace")  # never called: capabilities say so

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        if refusal := self._not_sent(ticket, deadline):
            return refusal
        order = self._venue.orders.get(ticket.orig_client_order_id or "")
        if order is None or order.over:
            return CommandResult(outcome=Outcome.REJECTED, code="too late")
        self._venue.cancel(order)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.number)

    def _not_sent(self, ticket: OrderTicket, deadline: float) -> CommandResult | None:
        clock = self._context.clock
        stale = ticket.not_after is not None and clock.monotonic() > ticket.not_after
        if self._is_open and not stale and clock.monotonic() < deadline:
            return None
        return CommandResult(outcome=Outcome.NOT_SENT, message="the link is down, or it is too late")

    async def lookup(self, client_order_id: str, broker_order_id: str | None, deadline: float) -> Lookup:
        order = self._venue.orders.get(client_order_id)
        return _snapshot(order) if order else Absent()

    async def events(self) -> AsyncIterator[BrokerEvent | StreamGap]:
        while (event := await self._stream.get()) is not None:
            yield event

    async def snapshot(self, since: datetime) -> AccountSnapshot:
        if not self._is_open:
            raise BrokerUnavailable("the link is down")
        return AccountSnapshot(
            taken_at=datetime.now(UTC),
            open_orders=tuple(_snapshot(order) for order in self._venue.orders.values() if not order.over),
            executions=tuple(
                e for e in self._venue.events if e.kind is EventKind.FILL and (e.venue_time or since) >= since
            ),
            positions=None,
        )

    async def close(self) -> None:
        self._is_open = False
        self._stream.put_nowait(None)


def _snapshot(order: Order) -> OrderSnapshot:
    """An order is told as the events that lead to where it is."""
    ticket = order.ticket
    return OrderSnapshot(
        client_order_id=ticket.client_order_id,
        broker_order_id=order.number,
        symbol=ticket.symbol,
        side=ticket.side,
        quantity=ticket.quantity,
        events=tuple(order.events),
    )


def connect(context: IntegrationContext) -> MyBroker:
    return MyBroker(context, Venue())


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, connect)
