"""The cash and position that an order may take of an account, and the effect of its fills on both.
Pure; amounts are exact in the caller's context."""

from collections.abc import Sequence
from decimal import Decimal

from msgspec.structs import replace

from trading_intents.brokers.paper.book.linked import are_pair, counted
from trading_intents.brokers.paper.book.rules import market_price
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperHolding,
    PaperOrder,
    Quote,
    price_of,
)
from trading_intents.brokers.port import LegTicket
from trading_intents.trading import ZERO, OrderSide, quotient

NO_BUYING_POWER = "insufficient_buying_power"
NO_POSITION = "no_position_to_sell"
LONG_POSITION = "position_is_long"


def find_allowed(
    order: PaperOrder, account: PaperAccount, held: PaperHolding, size: Decimal, price: Decimal
) -> tuple[Decimal, str | None]:
    """Gives how much of it the account may trade, and why not more."""
    if size <= 0:
        return ZERO, None
    if order.side is OrderSide.SELL or order.is_exit:
        to_close = max(held.position if order.side is OrderSide.SELL else -held.position, ZERO)
        return min(size, to_close), NO_POSITION if order.leaves > to_close else None
    _, after, holding = booked(order, account, held, size, price)
    # Buying a short back lowers risk, so it needs no buying power.
    grows = abs(holding.position) > abs(held.position)
    return (ZERO, NO_BUYING_POWER) if grows and after.buying_power < 0 else (size, None)


def booked(
    order: PaperOrder, account: PaperAccount, held: PaperHolding, quantity: Decimal, price: Decimal
) -> tuple[PaperOrder, PaperAccount, PaperHolding]:
    """All three after the fill. Whether the order is finished is not decided here."""
    signed = quantity if order.side is OrderSide.BUY else -quantity
    after = held.position + signed
    short_value = held.short_value
    if after >= 0:
        short_value = ZERO
    elif signed > 0:
        short_value -= quotient(held.short_value * quantity, -held.position)
    else:
        short_value += min(quantity, -after) * price
    filled = replace(
        order,
        filled=order.filled + quantity,
        paid=order.paid + quantity * price,
        covers=max(order.covers - quantity, ZERO),
    )
    account = replace(
        account,
        cash=account.cash - signed * price,
        reserved=account.reserved - order.reserved + filled.reserved,
        short_value=account.short_value - held.short_value + short_value,
    )
    return filled, account, replace(held, position=after, short_value=short_value)


def with_reserve(
    order: PaperOrder,
    working: Sequence[PaperOrder],
    held: PaperHolding,
    quote: Quote | None,
    legs: Sequence[LegTicket] = (),
) -> PaperOrder:
    """Reserves what the account must be able to pay: at the order's limit, else at the present
    price. A limit reserves for the stop beside it too; exits only close."""
    if order.leg or order.side is OrderSide.SELL:
        return order
    limit = _highest_limit(order, working, legs)
    stop = price_of(order) or ZERO
    seen = market_price(order, quote) if quote is not None else ZERO
    if order.side is OrderSide.BUY:
        covered = sum((each.covers for each in _others(order, working)), ZERO)
        short = max(-held.position - covered, ZERO)
        price = limit or max(stop, seen)
        return replace(order, covers=min(order.leaves, short), reserve_price=price)
    price = max(limit, stop if order.waits_for_trigger else seen)
    return replace(order, reserve_price=price)


def _highest_limit(
    order: PaperOrder, working: Sequence[PaperOrder], legs: Sequence[LegTicket]
) -> Decimal:
    """Of the order and of what is beside it."""
    limit = order.limit_price or ZERO
    for leg in legs:
        if leg.side is order.side:
            limit = max(limit, price_of(leg) or ZERO)
    for each in working:
        if are_pair(each, order):
            limit = max(limit, price_of(each) or ZERO)
    return limit


def lacks_power(order: PaperOrder, account: PaperAccount, released: Decimal = ZERO) -> str | None:
    return NO_BUYING_POWER if order.reserved > max(account.buying_power + released, ZERO) else None


def lacks_position(
    order: PaperOrder, working: Sequence[PaperOrder], held: PaperHolding
) -> str | None:
    if order.side is OrderSide.SELL:
        promised = sum((each.leaves for each in counted(_others(order, working), order)), ZERO)
        return NO_POSITION if order.leaves > held.position - promised else None
    # Held shares are sold by a SELL; a SELL_SHORT that sold them would be marked wrongly.
    return LONG_POSITION if order.side is OrderSide.SELL_SHORT and held.position > 0 else None


def _others(order: PaperOrder, working: Sequence[PaperOrder]) -> list[PaperOrder]:
    return [each for each in working if each.side is order.side and each.number != order.number]
