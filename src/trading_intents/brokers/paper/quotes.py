"""Quotes that an organization posts for its own paper accounts: from the first on, the symbol has no other prices."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.errors import LimitReached
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.signals import Signals
from trading_intents.trading import Symbol

MAX_SYMBOLS_PER_ORGANIZATION = 10_000
# A link that was away longer than this many quotes of a symbol misses the ones before.
QUOTES_KEPT = 1_000


def channel(organization_id: OrganizationId) -> str:
    """Whom a posted quote wakes: the links of this organization's accounts."""
    return f"paper_quotes_{organization_id.hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    bid: Decimal
    ask: Decimal
    bid_size: Decimal
    ask_size: Decimal
    last: Decimal | None = None
    last_size: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Posted:
    symbol: Symbol
    prices: Prices
    number: int
    posted_at: datetime


class Quotes:
    def __init__(self, pool: Pool, signals: Signals) -> None:
        self._pool, self._signals = pool, signals

    async def post(self, organization_id: OrganizationId, symbol: Symbol, prices: Prices) -> Posted:
        async with self._pool.transaction([organization_id]) as tx:
            number = await _next_number(tx, organization_id, symbol)
            if number == 1 and await _count_symbols(tx, organization_id) > MAX_SYMBOLS_PER_ORGANIZATION:
                raise LimitReached(
                    f"the organization has {MAX_SYMBOLS_PER_ORGANIZATION} symbols with quotes, which is the most"
                )
            posted_at = await _insert(tx, organization_id, symbol, number, prices)
            await _prune(tx, organization_id, symbol, number - QUOTES_KEPT)
        self._signals.notify(channel(organization_id))
        return Posted(symbol, prices, number, posted_at)


async def _next_number(tx: Tx, organization_id: UUID, symbol: Symbol) -> int:
    number: int = await tx.fetchval(
        """
        INSERT INTO paper_symbols AS s (organization_id, symbol, number) VALUES ($1, $2, 1)
        ON CONFLICT (organization_id, symbol) DO UPDATE SET number = s.number + 1
        RETURNING number
        """,
        organization_id,
        symbol,
    )
    return number


async def _count_symbols(tx: Tx, organization_id: UUID) -> int:
    count: int = await tx.fetchval("SELECT count(*) FROM paper_symbols WHERE organization_id = $1", organization_id)
    return count


async def _insert(tx: Tx, organization_id: UUID, symbol: Symbol, number: int, prices: Prices) -> datetime:
    posted_at: datetime = await tx.fetchval(
        """
        INSERT INTO paper_quotes (organization_id, symbol, number, bid, ask, bid_size, ask_size, last, last_size)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        RETURNING posted_at
        """,
        organization_id,
        symbol,
        number,
        prices.bid,
        prices.ask,
        prices.bid_size,
        prices.ask_size,
        prices.last,
        prices.last_size,
    )
    return posted_at


async def _prune(tx: Tx, organization_id: UUID, symbol: Symbol, until: int) -> None:
    if until > 0:
        await tx.execute(
            "DELETE FROM paper_quotes WHERE organization_id = $1 AND symbol = $2 AND number <= $3",
            organization_id,
            symbol,
            until,
        )
