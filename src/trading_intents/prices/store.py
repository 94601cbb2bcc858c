"""Statements of reference prices, for transactions and for pipelines. Never decides which price
counts."""

from collections.abc import Collection, Mapping
from decimal import Decimal
from uuid import UUID

from trading_intents.brokers.registry import BUILT_IN, POSTED_QUOTES, QUOTED_SYMBOLS
from trading_intents.prices.model import (
    PriceKey,
    PriceMarket,
    PriceSource,
    ReferencePrice,
    StoredPrices,
)
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pages import PageRequest, beyond_cursor, direction_of
from trading_intents.storage.pipeline import Reply, RowParameters, Statement
from trading_intents.trading import Symbol

# The table's column `environment` has a `PriceMarket`. For a statement that has `asked
# (organization_id, market, symbol)`: what `parse_reply` takes, and where it comes from. The
# built-in broker's quotes are read where it keeps them: a copy would cost every quote a second
# write.
KNOWN_PRICES = """
    json_build_object(
        'organization_id', asked.organization_id, 'market', asked.market, 'symbol', asked.symbol,
        'price', r.price, 'source', r.source, 'as_of', r.as_of,
        'bid', q.bid, 'ask', q.ask, 'quoted_at', q.posted_at, 'now', clock_timestamp()
    )::text
"""
PRICE_JOINS = f"""
    LEFT JOIN LATERAL (
        SELECT price, source, as_of FROM reference_prices
        WHERE organization_id = asked.organization_id AND environment = asked.market
          AND symbol = asked.symbol LIMIT 1
    ) AS r ON true
    LEFT JOIN LATERAL (
        SELECT bid, ask, posted_at FROM {POSTED_QUOTES}
        WHERE organization_id = asked.organization_id AND symbol = asked.symbol
            AND asked.market = 'simulated'
        ORDER BY number DESC LIMIT 1
    ) AS q ON true
"""  # noqa: S608 - our own constants
# As `market_of`, in a statement that has `broker` and `environment`.
MARKET = f"CASE WHEN broker = '{BUILT_IN}' THEN 'simulated' ELSE environment END"
_KEYS = RowParameters({"organization_id": "uuid", "market": "text", "symbol": "text"})
_READ_PRICES = f"""
    SELECT {KNOWN_PRICES} FROM {_KEYS.rows} AS asked {PRICE_JOINS}
"""  # noqa: S608 - our own constants


def read_prices(keys: Collection[PriceKey]) -> Statement:
    """A row for each key, of all that is known of it; `parse_reply` reads its reply. At least one
    key."""
    return Statement(
        _READ_PRICES,
        _KEYS.pack((str(key.organization_id), key.market, key.symbol) for key in keys),
    )


def parse_reply(reply: Reply) -> dict[PriceKey, StoredPrices]:
    return {row.key: row for row in reply.parse(StoredPrices)}


async def find_prices(tx: Tx, keys: Collection[PriceKey]) -> dict[PriceKey, StoredPrices]:
    """As `read_prices`, in a transaction that sees the keys' organizations; one statement, however
    many keys."""
    if not keys:
        return {}
    (reply,) = await PoolTransaction(tx).run([read_prices(keys)])
    return parse_reply(reply)


_PRICES = RowParameters(
    {
        "organization_id": "uuid",
        "environment": "text",
        "symbol": "text",
        "price": "numeric",
        "source": "text",
        "as_of": "timestamptz",
    }
)
_WRITE_PRICES = f"""
    INSERT INTO reference_prices AS r ({_PRICES.columns}) SELECT {_PRICES.columns}
    FROM {_PRICES.rows} AS n
    ON CONFLICT (organization_id, environment, symbol) DO UPDATE
    SET price = excluded.price, source = excluded.source, as_of = excluded.as_of
    WHERE (excluded.as_of, array_position(ARRAY['quote', 'trade', 'posted'], excluded.source::text))
          >= (r.as_of, array_position(ARRAY['quote', 'trade', 'posted'], r.source::text))
"""  # noqa: S608 - our own constants


def write_prices(prices: Mapping[PriceKey, ReferencePrice]) -> Statement:
    """Keeps each price that is not older than what is stored; of the same moment, the stronger
    source. By key."""
    rows = [
        (str(key.organization_id), key.market, key.symbol, each.price, each.source, each.as_of)
        for key, each in prices.items()
    ]
    return Statement(_WRITE_PRICES, _PRICES.pack(sorted(rows)))


async def is_stored(tx: Tx, key: PriceKey) -> bool:
    query = """
        SELECT EXISTS (
            SELECT FROM reference_prices
            WHERE organization_id = $1 AND environment = $2 AND symbol = $3
        )
    """
    return bool(await tx.fetchval(query, *key))


async def count_symbols(tx: Tx, organization_id: UUID, market: PriceMarket) -> int:
    query = "SELECT count(*) FROM reference_prices WHERE organization_id = $1 AND environment = $2"
    return int(await tx.fetchval(query, organization_id, market))


async def post_price(tx: Tx, key: PriceKey, price: Decimal) -> ReferencePrice:
    """Stored with the database's time, which is later than that of every price before it."""
    query = """
        INSERT INTO reference_prices AS r (organization_id, environment, symbol, price, source,
            as_of)
        VALUES ($1, $2, $3, $4, $5, clock_timestamp())
        ON CONFLICT (organization_id, environment, symbol) DO UPDATE
        SET price = excluded.price, source = excluded.source,
            as_of = greatest(clock_timestamp(), r.as_of)
        RETURNING as_of
    """
    as_of = await tx.fetchval(query, *key, price, PriceSource.POSTED)
    return ReferencePrice(key.symbol, key.market.environment, price, PriceSource.POSTED, as_of)


_LIST_SYMBOLS = """
    SELECT ARRAY (
        (SELECT symbol FROM reference_prices
         WHERE organization_id = $1 AND environment = $2 {beyond}
         ORDER BY symbol {direction} LIMIT $3)
        UNION
        (SELECT symbol FROM {symbols} WHERE organization_id = $1 AND $2 = 'simulated' {beyond}
         ORDER BY symbol {direction} LIMIT $3)
        ORDER BY symbol {direction} LIMIT $3
    )
"""


async def list_symbols(
    tx: Tx, organization_id: UUID, market: PriceMarket, page: PageRequest
) -> list[Symbol]:
    """Symbols of which a price is stored, or in the simulated market a quote was posted, in their
    order."""
    beyond, after = beyond_cursor(page, "symbol", 4)
    query = _LIST_SYMBOLS.format(
        symbols=QUOTED_SYMBOLS, beyond=beyond, direction=direction_of(page)
    )
    symbols: list[Symbol] = await tx.fetchval(
        query, organization_id, market, page.limit + 1, *after
    )
    return symbols
