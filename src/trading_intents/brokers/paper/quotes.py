"""Quotes that an organization posts for its own paper accounts, from the first on the only prices
of the symbol; and the present quotes, as the organization sees them."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.model import PostedQuote, Prices, Quote, Source
from trading_intents.brokers.paper.prices import tick_number, walk_quote
from trading_intents.errors import LimitReached, VersionConflict
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Pool
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pages import PageRequest
from trading_intents.storage.signals import Signals
from trading_intents.trading import Symbol

MAX_SYMBOLS_PER_ORGANIZATION = 10_000
# A session that was closed for more quotes of a symbol than this misses the earlier ones.
QUOTES_KEPT = 1_000


def channel(organization_id: OrganizationId) -> str:
    """The channel of an organization's quotes, which wakes the sessions of its accounts."""
    return f"paper_quotes_{organization_id.hex}"


class Quotes:
    def __init__(self, pool: Pool, signals: Signals, seed: int) -> None:
        self._pool = pool
        self._signals = signals
        self._seed = seed

    async def post(
        self,
        organization_id: OrganizationId,
        symbol: Symbol,
        prices: Prices,
        expected: frozenset[int] | None = None,
    ) -> Quote:
        """`expected` are the numbers that the last quote may have."""
        async with self._pool.transaction([organization_id]) as tx:
            number = await store.next_quote_number(tx, organization_id, symbol)
            if expected is not None and number == 1:
                raise VersionConflict("no quote was posted yet")
            if expected is not None and number - 1 not in expected:
                raise VersionConflict(f"the version is {number - 1}")
            if number == 1:
                symbols = await store.count_symbols(tx, organization_id)
                if symbols > MAX_SYMBOLS_PER_ORGANIZATION:
                    raise LimitReached(
                        f"the organization has {MAX_SYMBOLS_PER_ORGANIZATION} symbols with "
                        "quotes, which is the limit"
                    )
            posted_at = await store.insert_quote(tx, organization_id, symbol, number, prices)
            if number > QUOTES_KEPT:
                await store.delete_quotes(tx, organization_id, symbol, number - QUOTES_KEPT)
        self._signals.notify(channel(organization_id))
        return Quote(source=Source.POSTED, number=number, at=posted_at, **asdict(prices))

    async def find(self, organization_id: OrganizationId, symbol: Symbol) -> Quote:
        """The last one posted, however old, or the walk's of this moment."""
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            asked = store.AskedQuotes(organization_id, organization_id, symbol)
            posted, clock = await PoolTransaction(tx).run(
                [store.list_quotes([asked]), store.READ_CLOCK]
            )
        tick = tick_number(clock.parse(datetime)[0])
        return store.parse_last(posted).get(symbol) or walk_quote(self._seed, symbol, tick)

    async def list(
        self, organization_id: OrganizationId, page: PageRequest
    ) -> Sequence[PostedQuote]:
        """The last ones posted, by symbol. The walk has a quote of every symbol that there can be:
        it is left out."""
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            return await store.list_last_quotes(tx, organization_id, page)
