"""Values of the paper broker: quotes, orders and accounts. Pure: no I/O, no clock, no
randomness."""

import hashlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

import msgspec

from trading_intents import trading
from trading_intents.brokers.port import (
    BrokerEvent,
    Capabilities,
    LinkedOrders,
    LookupKind,
    OrderTicket,
    PriceTick,
)
from trading_intents.trading import (
    ZERO,
    FrozenStruct,
    Leg,
    OrderKind,
    OrderSide,
    Symbol,
    TimeInForce,
)

QUOTE_LIFE = timedelta(seconds=15)
STOP_REPORTS = timedelta(seconds=1)  # of a stop that trails, at most so often
GOOD_TILL_CANCEL_DAYS = 90
# A short sale's proceeds are locked, and as much again is required: its value counts twice against
# the buying power.
SHORT_MARGIN = 2
_ID_CHARACTERS = 20

_TIMES = (
    TimeInForce.DAY,
    TimeInForce.GOOD_TILL_CANCEL,
    TimeInForce.IMMEDIATE_OR_CANCEL,
    TimeInForce.FILL_OR_KILL,
)
CAPABILITIES = Capabilities(
    name="paper",
    environments=(trading.Environment.PAPER,),
    times_in_force=dict.fromkeys(OrderKind, _TIMES) | {OrderKind.TRAILING_STOP: _TIMES[:2]},
    routes=(trading.RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=(),
    quantity_step=Decimal("0.000000001"),
    price_ticks=(PriceTick(ZERO, Decimal("0.0001")), PriceTick(Decimal(1), Decimal("0.01"))),
    lookup=LookupKind.DURABLE,
    unique_order_ids=True,
    tells_balances=True,
    exits=LinkedOrders(
        (OrderSide.BUY, OrderSide.SELL_SHORT), (OrderKind.MARKET, OrderKind.LIMIT), _TIMES[:2]
    ),
    one_cancels_other=LinkedOrders(tuple(OrderSide), (OrderKind.LIMIT,), _TIMES[:2]),
    calls_at_once=32,
)
PAIR_TICK = Decimal("0.00000001")  # of symbols such as BTC/USD


def made_id(*parts: object) -> str:
    """Makes an id that is the same in every repeated run."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode(), digest_size=_ID_CHARACTERS // 2).hexdigest()


def made_order_id(seed: int, account_id: str, number: int) -> str:
    """Makes an order's id, which says its number."""
    return f"{made_id(seed, account_id, 'order', number)}-{number}"


def order_number(seed: int, account_id: str, broker_order_id: str) -> int | None:
    """The number in an id that `made_order_id` made."""
    number = broker_order_id.rpartition("-")[2]
    is_ours = number.isdecimal() and broker_order_id == made_order_id(seed, account_id, int(number))
    return int(number) if is_ours else None


class Source(StrEnum):
    WALK = "walk"
    POSTED = "posted"


class Prices(FrozenStruct, kw_only=True):
    bid: Decimal
    ask: Decimal
    bid_size: Decimal
    ask_size: Decimal
    last: Decimal | None = None  # a trade
    last_size: Decimal | None = None


class Quote(Prices, kw_only=True):
    """One event of a symbol's market. Numbered by symbol and source."""

    source: Source
    number: int
    at: datetime

    @property
    def name(self) -> str:
        return f"{self.source}:{self.number}"

    def is_fresh(self, now: datetime) -> bool:
        """The walk always has a present price; a posted quote counts for a limited time."""
        return self.source is Source.WALK or now - self.at <= QUOTE_LIFE


class PostedQuote(Quote, kw_only=True):
    source: Source = Source.POSTED
    symbol: Symbol


_STOPS = (OrderKind.STOP, OrderKind.STOP_LIMIT, OrderKind.TRAILING_STOP)


class PaperOrderStatus(StrEnum):
    WORKING = "WORKING"
    FILLED = "FILLED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"


def price_of(terms: trading.VersionTerms) -> Decimal | None:
    """Its limit, else its stop; None: the market's."""
    return terms.stop_price if terms.limit_price is None else terms.limit_price


class PaperOrder(trading.VersionTerms, kw_only=True, omit_defaults=True):
    symbol: Symbol
    side: OrderSide
    kind: OrderKind
    number: int  # of its first event in the account
    broker_order_id: str
    client_order_id: str  # of the version that works
    rank: int  # in the queue: the number of the event of its acceptance or last replace
    status: PaperOrderStatus = PaperOrderStatus.WORKING
    triggered: bool = False
    filled: Decimal = ZERO
    paid: Decimal = ZERO  # quantity times price of all its fills
    # Of what is left, the part of a BUY that buys a short back: it needs no buying power.
    covers: Decimal = ZERO
    reserve_price: Decimal = ZERO
    parent: int | None = None  # a leg's: the number of the order that it was sent with
    leg: Leg | None = None
    is_held: bool = False  # an exit whose entry has no fill yet
    best_price: Decimal | None = None  # of the market since a trailing stop works
    told_stop: Decimal | None = None  # a trailing stop's, as it was last reported
    told_at: datetime | None = None  # the last change that no command asked for
    seen_quote: int = 0  # the number of the last posted quote when this version was accepted
    accepted_at: datetime
    expires_at: datetime

    @property
    def is_working(self) -> bool:
        return self.status is PaperOrderStatus.WORKING

    @property
    def leaves(self) -> Decimal:
        if not self.is_working or self.is_held:
            return ZERO
        return max(self.quantity - self.filled, ZERO)

    @property
    def reserved(self) -> Decimal:
        return max(self.leaves - self.covers, ZERO) * self.reserve_price

    @property
    def waits_for_trigger(self) -> bool:
        return self.kind in _STOPS and not self.triggered

    @property
    def report_due_at(self) -> datetime | None:
        """The time to report where a trailing stop is now: at once or, after another report, a
        second later."""
        if (
            self.kind is not OrderKind.TRAILING_STOP
            or self.triggered
            or self.stop_price == self.told_stop
        ):
            return None
        return self.accepted_at if self.told_at is None else self.told_at + STOP_REPORTS

    @property
    def is_exit(self) -> bool:
        return self.leg in (Leg.TAKE_PROFIT, Leg.STOP_LOSS)


class PaperEvent(FrozenStruct):
    order: int | None
    event: BrokerEvent
    seq: int  # in the account


class JournalRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run of events of one order, with the number of the first; and the command that caused it,
    if one did. A row without an event takes a number too."""

    account_id: UUID
    seq: int
    number: int | None = None  # the order's
    at: datetime
    command: str | None = None
    client_order_id: str | None = None
    duplicate: bool | None = None
    ticket: OrderTicket | None = None
    events: list[BrokerEvent]
    ended: PaperOrder | None = None  # the order as it ended, if it did

    @property
    def last(self) -> int:
        return self.seq + max(len(self.events), 1) - 1


class PaperAccount(FrozenStruct, kw_only=True):
    """Totals over all symbols, and the last number given to an event."""

    cash: Decimal
    reserved: Decimal = ZERO
    short_value: Decimal = ZERO  # what the open shorts were sold for
    events: int = 0

    @property
    def buying_power(self) -> Decimal:
        return self.cash - self.reserved - SHORT_MARGIN * self.short_value


class PaperHolding(FrozenStruct, kw_only=True):
    """A symbol in an account: the position, and how much of the present quote's displayed sizes it
    has used."""

    position: Decimal = ZERO  # negative: short
    short_value: Decimal = ZERO
    source: Source | None = None
    number: int = 0  # of the last quote that was worked
    bid_taken: Decimal = ZERO
    ask_taken: Decimal = ZERO

    @property
    def posted_number(self) -> int:
        """Of the last posted quote that was worked; 0: none was."""
        return self.number if self.source is Source.POSTED else 0


def expiry(time_in_force: TimeInForce, at: datetime) -> datetime:
    """An IOC or FOK order that waits for its trigger lasts for the day. The market never closes: a
    day is a UTC day."""
    if time_in_force is TimeInForce.GOOD_TILL_CANCEL:
        return at + timedelta(days=GOOD_TILL_CANCEL_DAYS)
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + timedelta(days=1)


def tick_of(symbol: Symbol, price: Decimal) -> Decimal:
    if "/" in symbol:
        return PAIR_TICK
    ticks = reversed(CAPABILITIES.price_ticks)
    return next(step.tick for step in ticks if price >= step.from_price)
