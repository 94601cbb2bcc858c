"""The types of trading that all features use, and exact arithmetic on amounts: only a quotient is
ever rounded. Never a float, no I/O, no clock, no rules of one feature."""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from enum import StrEnum
from typing import Annotated, Any, NewType, TypeVar, dataclass_transform
from uuid import UUID

import msgspec

Symbol = NewType("Symbol", str)
# By the account's id, which where many rows are read and compared is a text.
Id = TypeVar("Id", UUID, str)
AccountSymbol = tuple[Id, str]

ZERO = Decimal(0)
SHOWN_DECIMALS = 18
_STEP = Decimal(1).scaleb(-SHOWN_DECIMALS)
# A product of two numbers of a venue has at most 160 digits; the rest is for sums of many.
EXACT = Context(prec=400, rounding=ROUND_HALF_EVEN)
_ONE = Decimal(1)

# Checked before a text is made a number: int(Decimal("1e1000000")) runs for a minute.
AMOUNT_PATTERN = r"^(0|[1-9]\d{0,17})(\.\d{1,18})?$"
SYMBOL_RULE = "must be 1 to 32 of A-Z 0-9 . / : _ - and start with a letter or digit"
NUMBER_FOR_AMOUNT = (
    'found a number; amounts are decimal strings such as "10.5", since a JSON number may lose '
    "digits"
)
AMOUNT_RULE = (
    'must be a decimal string greater than zero, such as "10.5": up to 18 digits, up to 18 decimals'
)
AMOUNT = re.compile(AMOUNT_PATTERN.replace("$", r"\Z"), re.ASCII)
_SYMBOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9./:_-]{0,31}\Z")


def parse_symbol(text: str) -> Symbol | None:
    """The symbol in upper case, its only spelling; None if it is invalid. Only ASCII is folded."""
    return Symbol(text.upper()) if _SYMBOL.match(text) else None


def parse_amount(text: str) -> Decimal | None:
    """An amount as callers send it, greater than zero; None if it is invalid."""
    amount = Decimal(text) if AMOUNT.match(text) else None
    return amount or None


def amount_text(amount: Decimal) -> str:
    """The form of every amount that the platform sends: plain digits, without trailing zeros."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def maybe_text(amount: Decimal | None) -> str | None:
    return None if amount is None else amount_text(amount)


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
    """The same number in one spelling, so that equal amounts are equal texts wherever they are
    stored."""
    is_whole = amount == amount.to_integral_value()
    return amount.quantize(_ONE, context=EXACT) if is_whole else amount.normalize(EXACT)


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class FrozenStruct(msgspec.Struct, frozen=True, gc=False):
    """A value: made in a fifth of a tuple's time, a tenth of a dataclass's. Garbage is not looked
    for in it, so that nothing in it may lead back to it: what holds a callable or a service is a
    dataclass."""


class Environment(StrEnum):
    PAPER = "paper"
    LIVE = "live"


class ActionType(StrEnum):
    CREATE = "CREATE"
    REPLACE = "REPLACE"
    CANCEL = "CANCEL"


class OrderKind(StrEnum):
    """An order kind, named as in an intent's spec."""

    MARKET = "Market"
    LIMIT = "Limit"
    STOP = "Stop"
    STOP_LIMIT = "StopLimit"
    TRAILING_STOP = "TrailingStop"


# The names of the kinds in records and orders.
ORDER_TYPES = {kind: kind.name for kind in OrderKind}
ORDER_KINDS = {name: kind for kind, name in ORDER_TYPES.items()}
OrderType = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(ORDER_KINDS)})]


class Leg(StrEnum):
    """The part of an order that its broker links to another one: an exit of an entry, or the stop
    beside a limit."""

    TAKE_PROFIT = "take_profit"
    STOP_LOSS = "stop_loss"
    ONE_CANCELS_OTHER = "one_cancels_other"


EXITS = (Leg.TAKE_PROFIT, Leg.STOP_LOSS)


class OrderSide(StrEnum):
    BUY = "BUY"
    SELL = "SELL"
    SELL_SHORT = "SELL_SHORT"


class TimeInForce(StrEnum):
    DAY = "DAY"
    GOOD_TILL_CANCEL = "GOOD_TILL_CANCEL"
    IMMEDIATE_OR_CANCEL = "IMMEDIATE_OR_CANCEL"
    FILL_OR_KILL = "FILL_OR_KILL"
    AT_OPEN = "AT_OPEN"
    AT_CLOSE = "AT_CLOSE"
    EXT = "EXT"


class VersionTerms(FrozenStruct, kw_only=True):
    """The terms of a CREATE or a REPLACE: whatever has terms is made of this, so that a new one is
    added here."""

    quantity: Decimal
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    trail_amount: Decimal | None = None
    trail_bps: int | None = None
    time_in_force: TimeInForce = TimeInForce.DAY

    @property
    def is_trailing(self) -> bool:
        return self.trail_amount is not None or self.trail_bps is not None


def terms_of(version: VersionTerms) -> dict[str, Any]:
    """The terms alone, by name."""
    return {name: getattr(version, name) for name in VersionTerms.__struct_fields__}


class RouteStrategy(StrEnum):
    SMART = "SMART"
    AMEX = "AMEX"
    ARCA = "ARCA"
    BATS = "BATS"
    BATY = "BATY"
    EDGA = "EDGA"
    EDGX = "EDGX"
    NSDQ = "NSDQ"
    NYSE = "NYSE"
    IEX = "IEX"
    MEMX = "MEMX"
