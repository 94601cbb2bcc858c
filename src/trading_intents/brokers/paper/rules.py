"""The rules that need no book: what is wrong with an order by itself (P11), and what a quote means to it (P3 to P7)."""

from decimal import Decimal

from trading_intents.brokers.paper.model import CAPABILITIES, NEEDS, Order, Quote, Terms, exact, tick_of
from trading_intents.trading import OrderSide, Symbol, parse_symbol

BAD_SYMBOL, NOT_OFFERED, BAD_PRICES = "unknown_symbol", "not_offered", "prices_do_not_fit_the_kind"
BAD_STEP, BAD_TICK = "quantity_off_step", "price_off_tick"


def find_flaw(terms: Terms) -> str | None:
    """The first reason to refuse, or None."""
    if parse_symbol(terms.symbol) != terms.symbol:
        return BAD_SYMBOL
    if terms.time_in_force not in CAPABILITIES.times_in_force.get(terms.kind, ()):
        return NOT_OFFERED
    if NEEDS[terms.kind] != (terms.limit_price is not None, terms.stop_price is not None):
        return BAD_PRICES
    step = CAPABILITIES.quantity_step
    assert step is not None
    if not _is_multiple(terms.quantity, step):
        return BAD_STEP
    prices = [price for price in (terms.limit_price, terms.stop_price) if price is not None]
    return None if all(_fits_tick(terms.symbol, price) for price in prices) else BAD_TICK


def _fits_tick(symbol: Symbol, price: Decimal) -> bool:
    return price > 0 and _is_multiple(price, tick_of(symbol, price))


def _is_multiple(amount: Decimal, step: Decimal) -> bool:
    with exact():
        return amount > 0 and amount % step == 0


def market_price(terms: Terms, quote: Quote) -> Decimal:
    return quote.ask if terms.side is OrderSide.BUY else quote.bid


def touches(terms: Terms, quote: Quote) -> bool:
    """Whether the quote's other side is at the limit or better; any is, for an order without one."""
    limit = terms.limit_price
    if limit is None:
        return True
    return quote.ask <= limit if terms.side is OrderSide.BUY else quote.bid >= limit


def is_traded_through(terms: Terms, quote: Quote) -> bool:
    """A trade beyond the limit. One at the limit went to those who were there before."""
    if terms.limit_price is None or quote.last is None:
        return False
    return quote.last < terms.limit_price if terms.side is OrderSide.BUY else quote.last > terms.limit_price


def is_triggered(terms: Terms, quote: Quote) -> bool:
    assert terms.stop_price is not None
    seen = quote.last if quote.last is not None else market_price(terms, quote)
    return seen >= terms.stop_price if terms.side is OrderSide.BUY else seen <= terms.stop_price


def stirs(order: Order, quote: Quote) -> bool:
    """Whether an event could do anything to a resting order."""
    if order.waits_for_trigger:
        return is_triggered(order.terms, quote)
    return touches(order.terms, quote) or is_traded_through(order.terms, quote)
