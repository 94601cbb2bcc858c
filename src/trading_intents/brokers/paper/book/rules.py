"""Rules that need no book: flaws of an order by itself (P11), and what a quote means to it (P3 to
P7)."""

from collections.abc import Iterable
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from msgspec.structs import replace

from trading_intents.brokers.paper.model import (
    CAPABILITIES,
    PaperOrder,
    Quote,
    tick_of,
)
from trading_intents.brokers.paper.prices import CENT, HALF_SPREAD_CENTS
from trading_intents.brokers.port import LegTicket, OrderTicket
from trading_intents.trading import (
    ZERO,
    FrozenStruct,
    OrderKind,
    OrderSide,
    TimeInForce,
    exact,
    parse_symbol,
)

BAD_SYMBOL = "unknown_symbol"
NOT_OFFERED = "not_offered"
BAD_PRICES = "prices_do_not_fit_the_kind"
UNKNOWN_ORDER = "unknown_order"
TOO_LATE = "too_late"
FAILED = "broker_failed"
ALL_BPS = 10_000
KILLED = {
    TimeInForce.IMMEDIATE_OR_CANCEL: "immediate_or_cancel",
    TimeInForce.FILL_OR_KILL: "fill_or_kill",
}
NO_ORDERS_AWAY = Decimal(10_000)  # where nothing rests: further than the walk ever goes
BAD_STEP = "quantity_off_step"
BAD_TICK = "price_off_tick"
REFUSALS = {
    BAD_SYMBOL: "there is no such symbol",
    NOT_OFFERED: "this kind of order is not offered with this time in force",
    BAD_PRICES: "its kind of order has other prices",
    BAD_STEP: "the quantity is no multiple of the symbol's step",
    BAD_TICK: "a price is no multiple of the symbol's tick",
    FAILED: "the paper broker could not work it, by an error of its own",
    "insufficient_buying_power": "it costs more than the buying power",
    "no_position_to_sell": "the account holds less than it sells",
    "position_is_long": "the account holds the symbol, so it cannot be sold short",
    "too_many_working_orders": "the account has as many working orders as the broker takes",
}


def find_flaw(terms: PaperOrder | OrderTicket | LegTicket) -> str | None:
    if parse_symbol(terms.symbol) != terms.symbol:
        return BAD_SYMBOL
    if terms.time_in_force not in CAPABILITIES.times_in_force.get(terms.kind, ()):
        return NOT_OFFERED
    needs_limit = terms.kind in (OrderKind.LIMIT, OrderKind.STOP_LIMIT)
    needs_stop = terms.kind in (OrderKind.STOP, OrderKind.STOP_LIMIT)
    if needs_limit != (terms.limit_price is not None):
        return BAD_PRICES
    if needs_stop != (terms.stop_price is not None):
        return BAD_PRICES
    trails = (terms.trail_amount is not None) + (terms.trail_bps is not None)
    if trails != (terms.kind is OrderKind.TRAILING_STOP):
        return BAD_PRICES
    step = CAPABILITIES.quantity_step
    assert step is not None
    if not _is_multiple(terms.quantity, step):
        return BAD_STEP
    for price in (terms.limit_price, terms.stop_price):
        if price is None:
            continue
        if price <= 0 or not _is_multiple(price, tick_of(terms.symbol, price)):
            return BAD_TICK
    return None


def unchangeable(order: PaperOrder | None) -> str | None:
    if order is None:
        return UNKNOWN_ORDER
    return None if order.is_working else TOO_LATE


def _is_multiple(amount: Decimal, step: Decimal) -> bool:
    with exact():
        return amount > 0 and amount % step == 0


def market_price(terms: PaperOrder, quote: Quote) -> Decimal:
    return quote.ask if terms.side is OrderSide.BUY else quote.bid


def touches(terms: PaperOrder, quote: Quote) -> bool:
    """Whether the quote's other side is at the limit or better; always, for an order without a
    limit."""
    limit = terms.limit_price
    if limit is None:
        return True
    return quote.ask <= limit if terms.side is OrderSide.BUY else quote.bid >= limit


def is_traded_through(terms: PaperOrder, quote: Quote) -> bool:
    """Whether a trade went beyond the limit. A trade at the limit went to earlier orders."""
    if terms.limit_price is None or quote.last is None:
        return False
    if terms.side is OrderSide.BUY:
        return quote.last < terms.limit_price
    return quote.last > terms.limit_price


def with_stop(order: PaperOrder, quote: Quote) -> PaperOrder:
    """A trailing stop, after its market was seen: the stop is the trail away from the best price so
    far, on the tick that is further from the market. A SELL's market is the bid, a BUY's the
    ask."""
    is_buy = order.side is OrderSide.BUY
    seen = market_price(order, quote)
    best = seen if order.best_price is None else (min if is_buy else max)(order.best_price, seen)
    trail = order.trail_amount
    if trail is None:
        assert order.trail_bps is not None
        trail = best * order.trail_bps / ALL_BPS
    # Bounded before it is rounded: the trail may be larger than the price.
    stop = best + trail if is_buy else max(best - trail, ZERO)
    tick = tick_of(order.symbol, stop)
    ticks = (stop / tick).to_integral_value(ROUND_CEILING if is_buy else ROUND_FLOOR)
    return replace(order, best_price=best, stop_price=max(ticks * tick, tick))


def is_triggered(terms: PaperOrder, quote: Quote) -> bool:
    assert terms.stop_price is not None
    seen = quote.last if quote.last is not None else market_price(terms, quote)
    return seen >= terms.stop_price if terms.side is OrderSide.BUY else seen <= terms.stop_price


class PriceLevels(FrozenStruct, kw_only=True):
    """The prices at which the first of a book's working orders could match, None where there is
    none of its kind; and when the first of them expires, or its stop is to be reported."""

    due_at: datetime | None
    any_price: bool  # an order without a limit rests, which every quote could match
    buy_limit: Decimal | None
    sell_limit: Decimal | None
    buy_stop: Decimal | None
    sell_stop: Decimal | None

    def could_match(self, quote: Quote) -> bool:
        if self.any_price:
            return True
        last = quote.last
        buy = self.buy_limit
        if buy is not None and (quote.ask <= buy or (last is not None and last < buy)):
            return True
        sell = self.sell_limit
        if sell is not None and (quote.bid >= sell or (last is not None and last > sell)):
            return True
        up = quote.ask if last is None else last  # what triggers a stop
        down = quote.bid if last is None else last
        if self.buy_stop is not None and up >= self.buy_stop:
            return True
        return self.sell_stop is not None and down <= self.sell_stop

    def cents_away(self, middle_cents: int) -> int:
        """The cents that the walk must move from this middle before an order could match; 0: it
        could now."""
        if self.any_price:
            return 0
        bid = (middle_cents - HALF_SPREAD_CENTS) * CENT
        ask = (middle_cents + HALF_SPREAD_CENTS) * CENT
        nearest = NO_ORDERS_AWAY
        if self.buy_limit is not None:
            nearest = min(nearest, ask - self.buy_limit)
        if self.sell_limit is not None:
            nearest = min(nearest, self.sell_limit - bid)
        if self.buy_stop is not None:
            nearest = min(nearest, self.buy_stop - ask)
        if self.sell_stop is not None:
            nearest = min(nearest, bid - self.sell_stop)
        return max(0, int((nearest / CENT).to_integral_value(ROUND_CEILING)))


def price_levels(orders: Iterable[PaperOrder]) -> PriceLevels:
    any_price = False
    due_at = None
    limits: dict[bool, list[Decimal]] = {True: [], False: []}
    stops: dict[bool, list[Decimal]] = {True: [], False: []}
    for order in orders:
        due_at = min(each for each in (due_at, order.expires_at, order.report_due_at) if each)
        is_buy = order.side is OrderSide.BUY
        if order.leaves == 0:
            continue  # an exit: its entry has no fill, or it sold all that was bought so far
        # A trailing one has none before its first quote.
        if order.waits_for_trigger and order.stop_price is not None:
            stops[is_buy].append(order.stop_price)
            if order.best_price is not None:
                limits[is_buy].append(order.best_price)  # a better price moves it
        elif order.limit_price is None:
            any_price = True
        else:
            limits[is_buy].append(order.limit_price)
    return PriceLevels(
        due_at=due_at,
        any_price=any_price,
        buy_limit=max(limits[True], default=None),
        sell_limit=min(limits[False], default=None),
        buy_stop=min(stops[True], default=None),
        sell_stop=max(stops[False], default=None),
    )
