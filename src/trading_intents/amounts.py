"""Exact arithmetic. Sums and products lose no digit, and only a quotient is ever rounded. Never a float."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

ZERO = Decimal(0)
SHOWN_DECIMALS = 18
_STEP = Decimal(1).scaleb(-SHOWN_DECIMALS)
# A product of two numbers of a venue has at most 160 digits; the rest is for sums of many.
EXACT = Context(prec=400, rounding=ROUND_HALF_EVEN)
_ONE = Decimal(1)


def exact() -> AbstractContextManager[Context]:
    """The context for all arithmetic on amounts; Python's own keeps only 28 digits."""
    return localcontext(EXACT)


def total(amounts: Iterable[Decimal]) -> Decimal:
    with exact():
        return sum(amounts, ZERO)


def quotient(dividend: Decimal, divisor: Decimal) -> Decimal:
    """The exact fraction rendered to 18 decimals, half to even, without trailing zeros."""
    with exact():
        return normalized((dividend / divisor).quantize(_STEP))


def normalized(amount: Decimal) -> Decimal:
    """The same number in one spelling, so that equal amounts are equal texts wherever they are stored."""
    is_whole = amount == amount.to_integral_value()
    return amount.quantize(_ONE, context=EXACT) if is_whole else amount.normalize(EXACT)
