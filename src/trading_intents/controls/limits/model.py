"""Limits and the one rule that judges an order by them. No I/O, no clock; in doubt it says no, and
it never raises."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec

from trading_intents.controls.model import LimitValue, Reason, ScopeAnswer, Subject, Triggered
from trading_intents.ids import OrganizationId
from trading_intents.trading import (
    EXACT,
    EXITS,
    ZERO,
    FrozenStruct,
    Leg,
    OrderKind,
    OrderSide,
    Symbol,
    VersionTerms,
    amount_text,
    exact,
    quotient,
)

MAX_COLLAR_BPS = 10_000
MAX_COUNT = 100_000
MAX_SYMBOLS = 1_000
MAX_WINDOW_MILLIS = 60_000
RATE_SECONDS = 60
_BPS = 10_000


class TradingLimits(FrozenStruct, kw_only=True, omit_defaults=True):
    """The limits of one level; None where there is none."""

    max_order_quantity: Decimal | None = None
    max_order_notional: Decimal | None = None
    price_collar_bps: int | None = None
    max_open_orders: int | None = None
    max_position_quantity: Decimal | None = None
    max_orders_per_minute: int | None = None
    allow_short: bool | None = None
    allowed_symbols: frozenset[str] | None = None
    duplicate_window_millis: int | None = None
    max_daily_loss: Decimal | None = None
    timezone: str | None = None  # of max_daily_loss
    max_daily_notional: Decimal | None = None

    @property
    def needs_exposure(self) -> bool:
        """Whether they are judged by the account's open orders and positions."""
        return (
            self.allow_short is False
            or self.max_open_orders is not None
            or self.max_position_quantity is not None
            or self.max_daily_loss is not None
        )

    @property
    def needs_recent(self) -> bool:
        return self.max_orders_per_minute is not None or self.duplicate_window_millis is not None

    @property
    def needs_price(self) -> bool:
        return self.max_order_notional is not None or self.price_collar_bps is not None


NO_LIMIT = TradingLimits()


class StoredLimits(FrozenStruct):
    limits: TradingLimits
    created_at: datetime
    updated_at: datetime
    version: int


class LossLimit(FrozenStruct):
    account_id: UUID
    organization_id: OrganizationId
    max_daily_loss: Decimal
    timezone: str | None


Levels = tuple[tuple[TradingLimits, ScopeAnswer], ...]  # the widest first


class AppliedLimits(FrozenStruct):
    """The limits of one symbol on one account; None where nothing is set."""

    organization: TradingLimits | None = None
    account: TradingLimits | None = None
    symbol: TradingLimits | None = None
    key: TradingLimits | None = None  # of the caller

    def levels(self, subject: Subject) -> Levels:
        scopes: tuple[ScopeAnswer, ...] = (
            {"Organization": subject.organization_id},
            {"Account": subject.account_id},
            {"Symbol": {"account_id": subject.account_id, "symbol": subject.symbol}},
            {"ApiKey": subject.key_id or ""},
        )
        return tuple((each, scope) for each, scope in zip(self._all, scopes, strict=True) if each)

    @property
    def needs_exposure(self) -> bool:
        return any(each.needs_exposure for each in self._all if each)

    @property
    def needs_recent(self) -> bool:
        """A key's last orders are counted apart."""
        return any(each.needs_recent for each in self._all[:-1] if each)

    @property
    def needs_price(self) -> bool:
        return any(each.needs_price for each in self._all if each)

    @property
    def _all(self) -> tuple[TradingLimits | None, ...]:
        return self.organization, self.account, self.symbol, self.key


NO_LIMITS = AppliedLimits()


class AskedOrder(VersionTerms, kw_only=True):
    is_create: bool
    closes: bool = False  # made to close a position; it is nobody's duplicate
    symbol: Symbol
    side: OrderSide
    kind: OrderKind
    open_before: Decimal = ZERO  # what the order counts as open now
    open_after: Decimal = ZERO  # what it will count: the larger of its two versions, unfilled
    terms: str = ""  # of a CREATE: what makes another one its duplicate
    counted: Decimal = ZERO  # what the versions before added to days' sums, of a pair those of both
    leg: Leg | None = None
    legs: tuple["AskedOrder", ...] = ()  # of a CREATE that has some

    @property
    def new_orders(self) -> int:
        return self.is_create + len(self.legs)

    @property
    def opens(self) -> Decimal:
        """By how much it changes what is open."""
        return EXACT.subtract(self.open_after, self.open_before)


class LimitState(msgspec.Struct, gc=False, kw_only=True):
    """An account's orders and results so far, and the symbol's price. Quantities are of the symbol.
    It moves on with each order of the symbol that is accepted."""

    position: Decimal = ZERO  # negative: short
    open_buy: Decimal = ZERO  # unfilled, of all open orders of that side
    open_sell: Decimal = ZERO  # those of SELL_SHORT too
    open_orders: int = 0
    account_open_orders: int = 0
    orders_last_minute: int = 0
    duplicate_at: datetime | None = None  # when a CREATE with the same fields was last accepted
    reference_price: Decimal | None = None
    daily_result: Decimal = ZERO
    # False: the broker reports positions, and has not reported this account's yet.
    is_position_known: bool = True
    key_orders_last_minute: int = 0
    key_daily_notional: Decimal = ZERO


def judge_limits(
    levels: Levels, asked: AskedOrder, state: LimitState | None, now: datetime
) -> tuple[Triggered, ...]:
    """Gives every limit that refuses the order. Without a state it was counted before, and what
    needs neither the account's state nor a price is judged again."""
    found: list[Triggered] = []
    with exact():
        for level, scope in levels:
            if asked.closes and "ApiKey" in scope:
                continue
            for each in _judge_level(level, scope, asked, state, now):
                if each not in found:  # orders of a group have the same quantity and symbol
                    found.append(each)
    return tuple(found)


def _judge_level(
    level: TradingLimits,
    scope: ScopeAnswer,
    asked: AskedOrder,
    state: LimitState | None,
    now: datetime,
) -> Iterator[Triggered]:
    """An exit closes what its entry opens, whatever it is worth then; a stop loss at any price."""
    for each in (asked, *asked.legs):
        yield from _judge_stateless(level, scope, each)
        if state and each.leg not in EXITS:
            yield from _judge_notional(level, scope, each, state.reference_price)
        if state and each.leg is not Leg.STOP_LOSS:
            yield from _judge_collar(level, scope, each, state.reference_price)
    if state is None or asked.leg in EXITS:
        return  # whatever adds up, an exit's entry is judged by
    yield from _judge_daily_notional(level, scope, asked, state)
    yield from _judge_exposure(level, scope, asked, state)
    if not asked.leg:
        yield from _judge_recent(level, scope, asked, state, now)


def _judge_stateless(
    level: TradingLimits, scope: ScopeAnswer, asked: AskedOrder
) -> Iterator[Triggered]:
    most = level.max_order_quantity
    allowed = level.allowed_symbols
    if most is not None and asked.quantity > most:
        limit = amount_text(most)
        quantity = amount_text(asked.quantity)
        detail = f"the order's quantity is {quantity}; at most {limit} is allowed"
        yield Triggered(Reason.MAX_ORDER_QUANTITY, scope, detail, limit, quantity)
    if level.allow_short is False and asked.side is OrderSide.SELL_SHORT:
        detail = "the order sells short, which is not allowed"
        yield Triggered(Reason.ALLOW_SHORT, scope, detail, False, asked.side)
    if allowed is not None and asked.symbol not in allowed:
        detail = f"{asked.symbol} is not among the {len(allowed)} allowed symbols"
        yield Triggered(Reason.ALLOWED_SYMBOLS, scope, detail, sorted(allowed), asked.symbol)


def _judge_notional(
    level: TradingLimits,
    scope: ScopeAnswer,
    asked: AskedOrder,
    reference: Decimal | None,
) -> Iterator[Triggered]:
    most = level.max_order_notional
    if most is None:
        return
    price = _highest_price(asked, reference)
    if price is None:
        yield _no_price(Reason.MAX_ORDER_NOTIONAL, scope, asked, amount_text(most))
        return
    notional = asked.quantity * price
    if notional > most:
        limit = amount_text(most)
        worth = amount_text(notional)
        detail = f"the order's value at {amount_text(price)} is {worth}; at most {limit} is allowed"
        yield Triggered(Reason.MAX_ORDER_NOTIONAL, scope, detail, limit, worth)


def _judge_collar(
    level: TradingLimits,
    scope: ScopeAnswer,
    asked: AskedOrder,
    reference: Decimal | None,
) -> Iterator[Triggered]:
    collar = level.price_collar_bps
    if collar is None or asked.limit_price is None:
        return
    if reference is None:
        yield _no_price(Reason.PRICE_COLLAR_BPS, scope, asked, collar)
        return
    is_buy = asked.side is OrderSide.BUY
    beyond = asked.limit_price - reference if is_buy else reference - asked.limit_price
    if beyond > 0 and beyond * _BPS > reference * collar:
        bps = amount_text(quotient(beyond * _BPS, reference))
        side = "above" if is_buy else "below"
        detail = (
            f"the limit price {amount_text(asked.limit_price)} is {side} the reference price "
            f"{amount_text(reference)} by {bps} basis points; at most {collar} are allowed"
        )
        yield Triggered(Reason.PRICE_COLLAR_BPS, scope, detail, collar, bps)


def added_notional(asked: AskedOrder, reference: Decimal | None) -> Decimal | None:
    """The value that the order adds to a day's sum, of a pair the dearer one; of a REPLACE, what
    the versions before have not added yet. None: no price is known."""
    dearest = asked.counted
    for each in (asked, *asked.legs):
        if each.leg in EXITS:
            continue
        price = _highest_price(each, reference)
        if price is None:
            return None
        dearest = max(dearest, EXACT.multiply(each.quantity, price))
    return EXACT.subtract(dearest, asked.counted)


def _judge_daily_notional(
    level: TradingLimits,
    scope: ScopeAnswer,
    asked: AskedOrder,
    state: LimitState,
) -> Iterator[Triggered]:
    most = level.max_daily_notional
    if most is None:
        return
    added = added_notional(asked, state.reference_price)
    if added is None:
        yield _no_price(Reason.MAX_DAILY_NOTIONAL, scope, asked, amount_text(most))
    elif added and state.key_daily_notional + added > most:
        limit = amount_text(most)
        reached = amount_text(state.key_daily_notional + added)
        detail = (
            f"with it the key's orders of today (UTC) are worth {reached}; at most {limit} is "
            "allowed"
        )
        yield Triggered(Reason.MAX_DAILY_NOTIONAL, scope, detail, limit, reached)


def _highest_price(terms: VersionTerms, reference: Decimal | None) -> Decimal | None:
    highest = reference
    for price in (terms.limit_price, terms.stop_price):
        if price is not None and (highest is None or price > highest):
            highest = price
    return highest


def _no_price(field: Reason, scope: ScopeAnswer, asked: AskedOrder, limit: LimitValue) -> Triggered:
    detail = f"{field} needs a reference price of {asked.symbol}, and none is known"
    return Triggered(Reason.NO_REFERENCE_PRICE, scope, detail, limit, asked.symbol)


def _judge_exposure(
    level: TradingLimits,
    scope: ScopeAnswer,
    asked: AskedOrder,
    state: LimitState,
) -> Iterator[Triggered]:
    most_orders = level.max_open_orders
    if asked.is_create and most_orders is not None:
        orders = state.account_open_orders if "Account" in scope else state.open_orders
        orders += asked.new_orders
        if orders > most_orders:
            detail = f"there were {orders} open orders with it; at most {most_orders} are allowed"
            yield Triggered(Reason.MAX_OPEN_ORDERS, scope, detail, most_orders, orders)
    if not state.is_position_known:
        yield from _unknown_positions(level, scope, asked)
        return
    most = level.max_position_quantity
    reached = _reached(asked, state)
    if most is not None and abs(reached) > most and not _only_reduces(asked, state, reached):
        limit = amount_text(most)
        detail = (
            f"with the open orders of its side the position would be {amount_text(reached)}; "
            f"at most {limit} is allowed, long or short"
        )
        quantity = amount_text(abs(reached))
        yield Triggered(Reason.MAX_POSITION_QUANTITY, scope, detail, limit, quantity)
    if level.allow_short is False and asked.side is OrderSide.SELL and reached < 0:
        free = max(reached + asked.open_after, ZERO)
        sold = amount_text(asked.open_after)
        detail = (
            f"the order sells {sold}; the long position less other open sells is "
            f"{amount_text(free)}, and selling short is not allowed"
        )
        yield Triggered(Reason.ALLOW_SHORT, scope, detail, False, sold)
    loss = level.max_daily_loss
    if loss is None or -state.daily_result < loss or _only_reduces(asked, state, reached):
        return
    limit = amount_text(loss)
    lost = amount_text(-state.daily_result)
    detail = f"today's result is a loss of {lost}; from {limit} on only orders that reduce pass"
    yield Triggered(Reason.MAX_DAILY_LOSS, scope, detail, limit, lost)


def _unknown_positions(
    level: TradingLimits, scope: ScopeAnswer, asked: AskedOrder
) -> Iterator[Triggered]:
    needed: list[tuple[Reason, LimitValue]] = []
    if level.max_position_quantity is not None:
        needed.append((Reason.MAX_POSITION_QUANTITY, amount_text(level.max_position_quantity)))
    if level.allow_short is False and asked.side is OrderSide.SELL:
        needed.append((Reason.ALLOW_SHORT, False))
    if level.max_daily_loss is not None:
        needed.append((Reason.MAX_DAILY_LOSS, amount_text(level.max_daily_loss)))
    for field, limit in needed:
        detail = f"{field} needs the account's positions, which its broker has not reported yet"
        yield Triggered(Reason.POSITION_UNKNOWN, scope, detail, limit, asked.symbol)


def _reached(asked: AskedOrder, state: LimitState) -> Decimal:
    """The position if the order and all open orders of its side were filled, and none of the
    other."""
    if asked.side is OrderSide.BUY:
        return state.position + state.open_buy - asked.open_before + asked.open_after
    return state.position - state.open_sell + asked.open_before - asked.open_after


def _only_reduces(asked: AskedOrder, state: LimitState, reached: Decimal) -> bool:
    return (
        state.position < 0 and reached <= 0
        if asked.side is OrderSide.BUY
        else state.position > 0 and reached >= 0
    )


def _judge_recent(
    level: TradingLimits,
    scope: ScopeAnswer,
    asked: AskedOrder,
    state: LimitState,
    now: datetime,
) -> Iterator[Triggered]:
    rate = level.max_orders_per_minute
    window = level.duplicate_window_millis
    orders = (state.key_orders_last_minute if "ApiKey" in scope else state.orders_last_minute) + 1
    if rate is not None and orders > rate:
        detail = (
            f"{orders} orders were accepted in {RATE_SECONDS} seconds with it; at most {rate} are "
            "allowed"
        )
        yield Triggered(Reason.MAX_ORDERS_PER_MINUTE, scope, detail, rate, orders)
    if window is None or not asked.is_create or asked.closes or state.duplicate_at is None:
        return
    since_millis = max((now - state.duplicate_at) // timedelta(milliseconds=1), 0)
    if since_millis < window:
        detail = (
            f"an equal order was accepted {since_millis} ms before; within {window} ms it counts "
            "as a duplicate"
        )
        yield Triggered(Reason.DUPLICATE_WINDOW_MILLIS, scope, detail, window, since_millis)
