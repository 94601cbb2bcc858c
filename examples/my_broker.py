"""A broker integration of one's own, whole: an account's session with a venue that takes commands by
REST and is polled for updates. Copy it, and put your venue's protocol in place of this one. A package
adds it to the platform by an entry point, without touching the platform:

    [project.entry-points."trading_intents.brokers"]
    my_broker = "my_broker:INTEGRATION"
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from trading_intents.brokers.port import (
    DUPLICATE_ID,
    Absent,
    AccountSnapshot,
    AuthFailed,
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
from trading_intents.brokers.rest_client import (
    AnswerUnclear,
    BrokerRow,
    Moment,
    NotSent,
    RestClient,
    answered,
    rejected,
    url_setting,
)
from trading_intents.loops import wait_at_most
from trading_intents.trading import (
    Environment,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
    amount_text,
)

POLL_SECONDS = 0.05
TIMES = {TimeInForce.DAY: "day", TimeInForce.GOOD_TILL_CANCEL: "gtc"}
SIDES = {"buy": OrderSide.BUY, "sell": OrderSide.SELL, "short": OrderSide.SELL_SHORT}
SIDE_NAMES = {side: name for name, side in SIDES.items()}
ENDS = {"cancelled": EventKind.CANCELLED, "refused": EventKind.REJECTED}

# Known without a connection: GET /v1/brokers shows it, and what it does not offer is refused before
# it is recorded. Say nothing that no card has proved.
CAPABILITIES = Capabilities(
    name="my_broker",
    environments=(Environment.PAPER,),
    times_in_force=dict.fromkeys((OrderKind.MARKET, OrderKind.LIMIT), tuple(TIMES)),
    routes=(RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=("token",),
    quantity_step=Decimal("0.000000001"),
    lookup=LookupKind.DURABLE,
    unique_order_ids=True,
    requests_per_minute=6_000,
    tells_positions=True,
)

# A setting is the variable TRADING_INTENTS_MY_BROKER_URL of every process, the same for all
# accounts; what differs between accounts, and is secret, is a credential field. A setting of
# another kind than an address is a `port.Setting` with a rule of its own.
SETTINGS = (
    url_setting(
        "MY_BROKER_URL",
        "Where the venue is: https, or http on loopback.",
        "http://127.0.0.1:9100",
    ),
)


# The venue's JSON. A BrokerRow with a number that no venue means cannot be read.


class VenueOrder(BrokerRow, kw_only=True):
    id: str
    cid: str
    symbol: str
    side: str
    qty: Decimal
    filled: Decimal
    state: str
    why: str | None = None


class VenueFill(BrokerRow, kw_only=True):
    id: str
    order: str
    cid: str
    symbol: str
    side: str
    qty: Decimal
    price: Decimal
    fee: Decimal
    total: Decimal  # of the order, with this one
    at: Moment


class VenueEvent(BrokerRow, kw_only=True):
    seq: int
    kind: str
    order: VenueOrder
    fill: VenueFill | None = None
    old: str | None = None  # the client order id before a replace


class VenuePosition(BrokerRow, kw_only=True):
    symbol: str
    qty: Decimal


class Refusal(msgspec.Struct):
    error: str


class MyBroker:
    """One account's session. It translates, and nothing else: it never sends twice and never
    decides what an order is."""

    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    def __init__(self, context: IntegrationContext) -> None:
        # No I/O here. RestClient shares what the sessions of a process must have once, through
        # `context.share`: a TLS context, and the rate limit of each credential. Do so with whatever
        # your venue counts for all of them together, and with what takes long to make.
        token = context.secrets["token"].reveal()
        url = context.settings["MY_BROKER_URL"]
        limit = CAPABILITIES.requests_per_minute or 0
        self._rest = RestClient(context, url, {"X-Token": token}, limit)
        self._clock = context.clock
        self.ended: Exception | None = None  # why nothing can be sent any more, for `answered`
        self._is_over = asyncio.Event()
        self._last_seq = 0

    def end(self, reason: Exception) -> None:
        self.ended = self.ended or reason
        self._is_over.set()

    async def open(self) -> None:
        """AuthFailed and BrokerUnavailable, which `ask` raises, say what went wrong. Events until
        now are the snapshot's business."""
        while events := await self._read_events():
            self._last_seq = events[-1].seq

    async def _read_events(self) -> list[VenueEvent]:
        query = {"after": self._last_seq}
        answer = await self._rest.ask("GET", "/events", self._rest.deadline(), params=query)
        return self._rest.read_rows(answer.read(list[msgspec.Raw]), VenueEvent)

    # Commands. `answered` makes a CommandResult of what RestClient raises:
    #   NotSent        nothing reached the venue, or it did nothing and may be asked again: NOT_SENT
    #   AuthFailed     401; the session ends, and is opened again with another credential: NOT_SENT
    #   AnswerUnclear  it may have arrived (no answer, half of one, 5xx): UNKNOWN, which is looked up
    # Never catch AnswerUnclear to send again, nor to call it anything else.

    @answered
    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return await self._send("POST", "/orders", ticket, deadline, body_of(ticket))

    @answered
    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        path = await self._path_of(ticket, deadline)
        return await self._send("PUT", path, ticket, deadline, body_of(ticket))

    @answered
    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        path = await self._path_of(ticket, deadline)
        return await self._send("DELETE", path, ticket, deadline, None)

    async def _path_of(self, ticket: OrderTicket, deadline: float) -> str:
        """By the venue's id, which is not known while the answer to the CREATE is missing."""
        order_id = ticket.broker_order_id
        if order_id is None:
            try:
                found = await self._find(ticket.orig_client_order_id or "", deadline)
            except AnswerUnclear as error:
                raise NotSent(str(error)) from None  # only the reading failed
            order_id = found.id if found else "none"
        return f"/orders/{order_id}"

    async def _send(
        self,
        method: str,
        path: str,
        ticket: OrderTicket,
        deadline: float,
        body: Mapping[str, str] | None,
    ) -> CommandResult:
        # Right before the write: an order that has waited for too long is not wanted any more.
        if ticket.not_after is not None and self._clock.monotonic() > ticket.not_after:
            raise NotSent("it is too old")
        answer = await self._rest.ask(method, path, deadline, method == "DELETE", json=body)
        if answer.status == 409:  # "I have this id" is no refusal: the order is there
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID)
        if answer.status in (404, 422):
            return rejected(msgspec.json.decode(answer.body, type=Refusal).error)
        order = answer.read(VenueOrder)
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=order.id)

    async def _find(self, client_order_id: str, deadline: float) -> VenueOrder | None:
        query = {"cid": client_order_id}
        answer = await self._rest.ask("GET", "/orders", deadline, params=query)
        return None if answer.status == 404 else answer.read(VenueOrder)

    async def lookup(self, sent: SentOrder, deadline: float) -> Lookup:
        """Absent is a proof: only the venue's own "there is none" is one."""
        try:
            order = await self._find(sent.client_order_id, deadline)
            if order is None:
                return Absent()
            return order_snapshot(order, await self._list_fills(deadline))
        except (BrokerUnavailable, AuthFailed) as error:
            return LookupUnknown(str(error))

    async def _list_fills(self, deadline: float) -> list[VenueFill]:
        answer = await self._rest.ask("GET", "/fills", deadline)
        return self._rest.read_rows(answer.read(list[msgspec.Raw]), VenueFill)

    async def events(self) -> AsyncIterator[BrokerEvent | StreamGap]:
        """BrokerUnavailable ends the session: it is opened again, and the account reconciled."""
        while not self._is_over.is_set():
            for row in await self._read_events():
                self._last_seq = row.seq
                yield event_of(row)
            await wait_at_most(self._is_over, POLL_SECONDS)
        if isinstance(self.ended, AuthFailed):
            raise self.ended

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        """Rows that cannot be read are left out and named; a position that is left out would count
        as 0, so that there are none then. `open_orders` are for venues that list by symbol."""
        deadline = self._rest.deadline()
        fills = await self._list_fills(deadline)
        answer = await self._rest.ask("GET", "/orders", deadline, params={"open": 1})
        orders = self._rest.read_rows(answer.read(list[msgspec.Raw]), VenueOrder)
        answer = await self._rest.ask("GET", "/positions", deadline)
        rows = answer.read(list[msgspec.Raw])
        taken_at = datetime.now(UTC)
        held = self._rest.read_rows(rows, VenuePosition)
        positions = tuple(position_event(each, taken_at) for each in held)
        return AccountSnapshot(
            taken_at=taken_at,
            open_orders=tuple(order_snapshot(order, fills) for order in orders),
            executions=tuple(fill_event(fill) for fill in fills if fill.at >= since),
            positions=positions if len(held) == len(rows) else None,
            unreadable=self._rest.take_unreadable(),
        )

    async def close(self) -> None:
        self.end(BrokerUnavailable("the session is closed"))
        await self._rest.close()


def body_of(ticket: OrderTicket) -> dict[str, str]:
    """Amounts as text: a float would change them."""
    body = {
        "cid": ticket.client_order_id,
        "symbol": ticket.symbol,
        "side": SIDE_NAMES[ticket.side],
        "qty": amount_text(ticket.quantity),
        "tif": TIMES[ticket.time_in_force],
    }
    if ticket.limit_price is not None:
        body["limit"] = amount_text(ticket.limit_price)
    return body


# Events. A key is made of the venue's ids alone, so that it is the same in every source, and never
# used for anything else: an event under a known key is taken for the earlier one, and lost. A venue
# that starts to count again every day needs the day in its keys.


def event_of(row: VenueEvent) -> BrokerEvent:
    order = row.order
    if row.fill:
        return fill_event(row.fill)
    if row.kind == "open":
        return order_event(EventKind.ACCEPTED, order, "open")
    if row.kind == "replaced":
        return order_event(EventKind.REPLACED, order, f"replaced:{order.cid}", row.old)
    return order_event(ENDS[row.kind], order, row.kind)


def order_event(
    kind: EventKind, order: VenueOrder, name: str, replaces: str | None = None
) -> BrokerEvent:
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"my_broker:{order.id}:{name}",
        client_order_id=order.cid,
        broker_order_id=order.id,
        replaces=replaces,
        symbol=Symbol(order.symbol),
        side=SIDES[order.side],
        cum_quantity=order.filled,
        broker_status=order.state,
        reason=order.why,
    )


def fill_event(fill: VenueFill) -> BrokerEvent:
    return BrokerEvent(
        kind=EventKind.FILL,
        dedupe_key=f"my_broker:{fill.id}",
        exec_id=fill.id,
        client_order_id=fill.cid,
        broker_order_id=fill.order,
        symbol=Symbol(fill.symbol),
        side=SIDES[fill.side],
        quantity=fill.qty,
        price=fill.price,
        fee=fill.fee,
        cum_quantity=fill.total,
        venue_time=fill.at,
    )


def position_event(position: VenuePosition, taken_at: datetime) -> BrokerEvent:
    return BrokerEvent(
        kind=EventKind.POSITION,
        dedupe_key=f"my_broker:position:{position.symbol}:{taken_at.isoformat()}",
        symbol=Symbol(position.symbol),
        quantity=position.qty,
    )


def order_snapshot(order: VenueOrder, fills: Sequence[VenueFill]) -> OrderSnapshot:
    """Reports an order as the events that lead to its present state."""
    events = [order_event(EventKind.ACCEPTED, order, "open")]
    events += [fill_event(fill) for fill in fills if fill.order == order.id]
    if kind := ENDS.get(order.state):
        events.append(order_event(kind, order, order.state))
    return OrderSnapshot(
        client_order_id=order.cid,
        broker_order_id=order.id,
        symbol=Symbol(order.symbol),
        side=SIDES[order.side],
        quantity=order.qty,
        events=tuple(events),
    )


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, MyBroker, settings=SETTINGS)
