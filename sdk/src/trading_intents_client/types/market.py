"""Quotes of the paper broker and reference prices."""

from datetime import datetime
from decimal import Decimal

from msgspec import Struct

from trading_intents_client.types.enums import Environment, PriceSource, QuoteSource


class Quote(Struct, frozen=True, kw_only=True):
    """A paper quote as the caller's organization sees it."""

    symbol: str
    bid: Decimal
    ask: Decimal
    bid_size: Decimal
    ask_size: Decimal
    last: Decimal | None
    last_size: Decimal | None
    source: QuoteSource
    as_of: datetime


class PostedQuote(Struct, frozen=True, kw_only=True):
    """The answer to a posted quote; `version` counts the symbol's quotes."""

    organization_id: str
    symbol: str
    bid: Decimal
    ask: Decimal
    bid_size: Decimal
    ask_size: Decimal
    last: Decimal | None
    last_size: Decimal | None
    updated_at: datetime
    version: int


class ReferencePrice(Struct, frozen=True, kw_only=True):
    """The price by which limits and positions are judged."""

    symbol: str
    environment: Environment
    price: Decimal
    source: PriceSource
    as_of: datetime
