"""Positions at average cost: an opening, then trades in the order they were booked. Pure: no clock.
To the last digit, realized_pnl = value_sold - value_bought + open_cost - opening_cost - fees."""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import NamedTuple, TypeVar

from msgspec.structs import asdict, replace

from trading_intents.ids import IdText
from trading_intents.trading import (
    ZERO,
    FrozenStruct,
    OrderSide,
    exact,
    normalized,
    quotient,
    total,
)


class Booking(FrozenStruct):
    """The part of a trade that changes a position."""

    side: OrderSide
    quantity: Decimal
    price: Decimal
    fee: Decimal | None
    at: datetime


class NetPosition(FrozenStruct, kw_only=True):
    """`open_cost` is what the open quantity cost, signed as it is. Fees lower realized_pnl, never
    move the cost.

    An opening whose price is not known is closed before anything else, at the price of the trade
    that closes it."""

    opening_quantity: Decimal = ZERO  # held before our first trade
    opening_price: Decimal | None = None  # None: not known
    opening_cost: Decimal = ZERO  # as far as it is known
    uncosted_quantity: Decimal = ZERO  # the part that is left of an opening without a price
    quantity: Decimal = ZERO  # negative: short
    open_cost: Decimal = ZERO
    realized_pnl: Decimal = ZERO
    value_bought: Decimal = ZERO
    value_sold: Decimal = ZERO
    fees: Decimal = ZERO
    day: date | None = None  # of the last trade, in UTC
    day_pnl: Decimal = ZERO  # realized on that day
    fee_quantity: Decimal = ZERO  # fees that were taken in the symbol itself

    @property
    def average_cost(self) -> Decimal | None:
        """The exact fraction to 18 decimals; zero when flat, None while the cost of a part is not
        known."""
        if self.uncosted_quantity:
            return None
        return quotient(self.open_cost, self.quantity) if self.quantity else ZERO

    def market_value(self, price: Decimal) -> Decimal:
        with exact():
            return self.quantity * price

    def unrealized_pnl(self, price: Decimal) -> Decimal | None:
        """None while the cost of a part is not known."""
        if self.uncosted_quantity:
            return None
        with exact():
            return self.quantity * price - self.open_cost

    def daily_pnl(self, today: date) -> Decimal:
        """Realized since 00:00 UTC of `today`."""
        return self.day_pnl if self.day == today else ZERO


class PositionRow(NetPosition, kw_only=True):
    """The position in a holding's row: with what the broker last reported of it."""

    account_id: IdText
    symbol: str
    organization_id: IdText
    received_at: datetime | None = None  # None: it was never booked
    revision: int = 0  # how often it was written
    broker_quantity: Decimal | None = None
    broker_key: str | None = None
    broker_sent_at: datetime | None = None
    # The report does not agree with our quantity, and no fill booked since explains it; None before
    # a report.
    differs: bool | None = None


P = TypeVar("P", bound=NetPosition)  # a position, or a row of one


def opening(quantity: Decimal, price: Decimal | None) -> NetPosition:
    """The position before the first trade; its cost is the broker's average price where there is
    one."""
    with exact():
        cost = ZERO if price is None else normalized(quantity * price)
    return NetPosition(
        opening_quantity=normalized(quantity),
        opening_price=price,
        opening_cost=cost,
        uncosted_quantity=normalized(quantity) if price is None else ZERO,
        quantity=normalized(quantity),
        open_cost=cost,
    )


def reopen(row: PositionRow, start: NetPosition | None = None) -> PositionRow:
    """The row before its first trade, with another opening or its own; `fee_quantity` stays."""
    start = start or opening(row.opening_quantity, row.opening_price)
    return replace(row, **asdict(start) | {"fee_quantity": row.fee_quantity})


def from_trades(bookings: Iterable[Booking], position: P) -> P:
    """Adds trades to a position. After a bust or a correction it is computed anew: averages cannot
    be undone."""
    with exact():
        for booking in bookings:
            if booking.quantity:  # a busted trade does not count, nor does its fee
                position = _add(position, booking)
    return replace(position, **{name: normalized(getattr(position, name)) for name in _SUMS})


_SUMS = (
    "opening_cost",
    "uncosted_quantity",
    "quantity",
    "open_cost",
    "realized_pnl",
    "value_bought",
    "value_sold",
    "fees",
    "day_pnl",
)


def take_fee(position: P, quantity: Decimal, at: datetime) -> P:
    """Books a fee in the symbol itself: sold for nothing, so that what it cost lowers realized_pnl
    as other fees do. Below 0: given back."""
    side = OrderSide.SELL if quantity > 0 else OrderSide.BUY
    after = from_trades((Booking(side, abs(quantity), ZERO, None, at),), position)
    with exact():
        return replace(after, fee_quantity=normalized(position.fee_quantity + quantity))


def _add(position: P, booking: Booking) -> P:
    signed = booking.quantity if booking.side is OrderSide.BUY else -booking.quantity
    value = booking.quantity * booking.price
    closed = _closed_uncosted(position, signed)
    opening_cost = position.opening_cost + closed * booking.price
    costed = position.quantity - position.uncosted_quantity
    open_cost = _open_cost(costed, position.open_cost, signed + closed, booking.price)
    bought = position.value_bought + (value if signed > 0 else ZERO)
    sold = position.value_sold + (value if signed < 0 else ZERO)
    fees = position.fees + (booking.fee or ZERO)
    realized = sold - bought + open_cost - opening_cost - fees
    day = booking.at.astimezone(UTC).date()
    earlier = position.day_pnl if position.day is not None and day <= position.day else ZERO
    # A late trade of an earlier day does not count in this day's result.
    gained = (
        ZERO
        if position.day is not None and day < position.day
        else realized - position.realized_pnl
    )
    return replace(
        position,
        opening_cost=opening_cost,
        uncosted_quantity=position.uncosted_quantity - closed,
        quantity=position.quantity + signed,
        open_cost=open_cost,
        realized_pnl=realized,
        value_bought=bought,
        value_sold=sold,
        fees=fees,
        day=day if position.day is None else max(day, position.day),
        day_pnl=earlier + gained,
    )


def _closed_uncosted(position: NetPosition, signed: Decimal) -> Decimal:
    """The quantity that a trade closes of the part without a cost, with that part's sign."""
    uncosted = position.uncosted_quantity
    if uncosted == 0 or (uncosted > 0) == (signed > 0):
        return ZERO
    return -signed if abs(signed) < abs(uncosted) else uncosted


def _open_cost(held: Decimal, cost: Decimal, signed: Decimal, price: Decimal) -> Decimal:
    after = held + signed
    if held == 0 or signed == 0 or (held > 0) == (signed > 0):
        return cost + signed * price
    if after == 0:
        return ZERO
    if (after > 0) == (held > 0):
        return quotient(cost * after, held)
    return after * price  # crossed zero: the old position is closed whole, the rest is new


def open_quantity(quantity: Decimal, replacing: Decimal | None, filled: Decimal) -> Decimal:
    """The quantity of an open order that is left unfilled; of two versions, the larger."""
    with exact():
        return max(max(quantity, replacing or ZERO) - filled, ZERO)


class SummedOrder(NamedTuple):
    """An open order, as sums see it."""

    group: str  # its own id; of a leg its parent's
    side: OrderSide
    unfilled: Decimal
    is_active: bool = True


class OpenSums(NamedTuple):
    """Open orders and their unfilled quantities, or a difference of these."""

    orders: int
    buy: Decimal
    sell: Decimal  # SELL_SHORT too

    def plus(self, other: "OpenSums", times: int = 1) -> "OpenSums":
        with exact():
            return OpenSums(
                self.orders + times * other.orders,
                self.buy + times * other.buy,
                self.sell + times * other.sell,
            )


NOTHING_OPEN = OpenSums(0, ZERO, ZERO)


def open_sums(orders: Iterable[SummedOrder]) -> OpenSums:
    """Of orders of one group and side, which their broker links, the one or the other is filled:
    the larger counts. An exit counts nothing before its entry's first fill."""
    count = 0
    buys: dict[str, Decimal] = {}
    sells: dict[str, Decimal] = {}
    for each in orders:
        count += 1
        largest = buys if each.side is OrderSide.BUY else sells
        unfilled = each.unfilled if each.is_active else ZERO
        largest[each.group] = max(largest.get(each.group, ZERO), unfilled)
    return OpenSums(count, total(buys.values()), total(sells.values()))


class Holding(FrozenStruct):
    """A symbol in an account. Of an order with a pending REPLACE the larger of its two versions
    counts."""

    quantity: Decimal  # ours; negative: short
    selling: Decimal  # unfilled, of open SELLs
    buying: Decimal
    open_orders: int
    is_newer: bool  # an order of the symbol came after the one that the asker knew as the last

    @property
    def left_to_close(self) -> Decimal:
        """The position less what open orders close already; it never changes its sign."""
        with exact():
            if self.quantity > 0:
                return max(self.quantity - self.selling, ZERO)
            return min(self.quantity + self.buying, ZERO)

    def with_order(self, side: OrderSide, opens: Decimal, is_new: bool) -> "Holding":
        """The holding once so much more is open, by a new order or another version of one."""
        with exact():
            return Holding(
                self.quantity,
                self.selling + (opens if side is OrderSide.SELL else ZERO),
                self.buying + (opens if side is OrderSide.BUY else ZERO),
                self.open_orders + is_new,
                self.is_newer or is_new,
            )
