"""A broker integration of one's own, whole: a session with a venue that lives in a file. Copy it,
and put your venue's protocol where `Venue` is. A package adds it to the platform by an entry point,
without touching the platform:

    [project.entry-points."trading_intents.brokers"]
    my_broker = "my_broker:INTEGRATION"
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

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
    SentOrder,
    StreamGap,
)
from trading_intents.trading import Environment, OrderKind, OrderSide, RouteStrategy, TimeInForce

# Known without a connection: GET /v1/brokers shows it, and what it does not offer is refused before
# it is recorded.
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


@dataclass(kw_only=True)
class Book:
    """All that the venue knows of one account."""

    orders: dict[str, Order] = field(default_factory=dict)  # by client order id
    # Reported so far; its next value numbers the next event, and is never used again.
    events: int = 0
    cash: Decimal = Decimal(1_000_000)
    bid: Decimal = Decimal(0)
    ask: Decimal = Decimal(0)
    bid_size: Decimal = Decimal(0)
    ask_size: Decimal = Decimal(0)

    def position(self, symbol: str) -> Decimal:
        position = Decimal(0)
        for order in self.orders.values():
            if order.ticket.symbol == symbol:
                is_buy = order.ticket.side is OrderSide.BUY
                position += order.filled if is_buy else -order.filled
        return position


class Venue:
    """Stands for the other end of the wire. Its book is a file, since a venue does not forget when
    you restart: what it has reported keeps its keys, what it was sent is found for ever, and the
    next event has a key of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.book = msgspec.json.decode(file.read_bytes(), type=Book) if file.exists() else Book()
        self.streams: list[asyncio.Queue[BrokerEvent | None]] = []

    def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        book = self.book
        book.bid = bid
        book.ask = ask
        book.bid_size = size
        book.ask_size = size
        for order in book.orders.values():
            self._match(order)
        self._save()

    def submit(self, ticket: OrderTicket) -> Order:
        book = self.book
        order = Order(ticket, f"my-{len(book.orders) + 1}")
        book.orders[ticket.client_order_id] = order
        if refusal := self._refusal(ticket):
            order.over = True
            self._report(order, EventKind.REJECTED, reason=refusal)
        else:
            self._report(order, EventKind.ACCEPTED)
            self._match(order)
        self._save()
        return order

    def _refusal(self, ticket: OrderTicket) -> str | None:
        book = self.book
        if ticket.side is OrderSide.SELL and ticket.quantity > book.position(ticket.symbol):
            return "nothing to sell"
        cost = ticket.quantity * (ticket.limit_price or book.ask)
        return "no money" if cost > book.cash else None

    def cancel(self, order: Order) -> None:
        order.over = True
        self._report(order, EventKind.CANCELLED)
        self._save()

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self.book))
        draft.replace(self._file)

    def _match(self, order: Order) -> None:
        book = self.book
        ticket = order.ticket
        buys = ticket.side is OrderSide.BUY
        price = book.ask if buys else book.bid
        limit = price if ticket.limit_price is None else ticket.limit_price
        if limit < price if buys else limit > price:
            return
        quantity = min(order.leaves, book.ask_size if buys else book.bid_size)
        if order.over or quantity <= 0:
            return
        if buys:
            book.ask_size -= quantity
            book.cash -= quantity * price
        else:
            book.bid_size -= quantity
            book.cash += quantity * price
        order.filled += quantity
        order.over = not order.leaves
        self._report(order, EventKind.FILL, quantity, price)

    def _report(
        self,
        order: Order,
        kind: EventKind,
        quantity: Decimal | None = None,
        price: Decimal | None = None,
        reason: str | None = None,
    ) -> None:
        self.book.events += 1
        number = self.book.events
        event = BrokerEvent(
            kind=kind,
            # From the venue's ids alone, so that it is the same in every source. An event under a
            # key that the account had before is taken for the earlier one, and lost: a venue that
            # starts to count again every day needs the day in its keys.
            dedupe_key=f"my_broker:{number}",
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
        order.events.append(event)
        for stream in self.streams:
            stream.put_nowait(event)


class MyBroker:
    """One account's session. It translates, and nothing else: it never sends twice and never
    decides what an order is."""

    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    venue: Venue  # while it is open, and what it was when it was closed

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._stream: asyncio.Queue[BrokerEvent | None] = asyncio.Queue()
        self._is_open = False

    async def open(self) -> None:
        # Here a real one connects, logs in with `self._context.secrets["token"].reveal()`, and
        # subscribes; AuthFailed and BrokerUnavailable say what went wrong.
        folder = Path(self._context.settings.get("MY_BROKER_FOLDER", ".data/my_broker"))
        self.venue = Venue(folder / f"{self._context.account.id}.json")
        self.venue.streams.append(self._stream)
        self._is_open = True

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        """NOT_SENT is provable, REJECTED definite, and everything else UNKNOWN: it is looked up,
        never sent again."""
        if refusal := self._not_sent(ticket, deadline):
            return refusal
        if ticket.client_order_id in self.venue.book.orders:
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID)
        order = self.venue.submit(ticket)
        reason = order.events[-1].reason
        outcome = Outcome.REJECTED if reason else Outcome.ACKED
        return CommandResult(
            outcome=outcome, broker_order_id=order.number, code=reason, updates=tuple(order.events)
        )

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        # Never called: capabilities say so.
        return CommandResult(outcome=Outcome.REJECTED, code="no native replace")

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        if refusal := self._not_sent(ticket, deadline):
            return refusal
        order = self.venue.book.orders.get(ticket.orig_client_order_id or "")
        if order is None or order.over:
            return CommandResult(outcome=Outcome.REJECTED, code="too late")
        self.venue.cancel(order)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.number)

    def _not_sent(self, ticket: OrderTicket, deadline: float) -> CommandResult | None:
        clock = self._context.clock
        stale = ticket.not_after is not None and clock.monotonic() > ticket.not_after
        if self._is_open and not stale and clock.monotonic() < deadline:
            return None
        return CommandResult(
            outcome=Outcome.NOT_SENT, message="the session is down, or it is too late"
        )

    async def lookup(self, sent: SentOrder, deadline: float) -> Lookup:
        order = self.venue.book.orders.get(sent.client_order_id)
        return _snapshot(order) if order else Absent()

    async def events(self) -> AsyncIterator[BrokerEvent | StreamGap]:
        while (event := await self._stream.get()) is not None:
            yield event

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        if not self._is_open:
            raise BrokerUnavailable("the session is down")
        orders = self.venue.book.orders.values()
        executions = list[BrokerEvent]()
        for order in orders:
            for event in order.events:
                if event.kind is EventKind.FILL and (event.venue_time or since) >= since:
                    executions.append(event)
        return AccountSnapshot(
            taken_at=datetime.now(UTC),
            open_orders=tuple(_snapshot(order) for order in orders if not order.over),
            executions=tuple(executions),
            positions=None,
        )

    async def close(self) -> None:
        self._is_open = False
        self._stream.put_nowait(None)


def _snapshot(order: Order) -> OrderSnapshot:
    """Reports an order as the events that lead to its present state."""
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
    return MyBroker(context)


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, connect)
