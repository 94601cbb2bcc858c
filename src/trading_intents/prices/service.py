"""Use cases of reference prices: post one, read one, list them."""

from collections.abc import Sequence
from decimal import Decimal

from trading_intents.errors import LimitReached, NotFound
from trading_intents.ids import OrganizationId
from trading_intents.prices import store
from trading_intents.prices.model import (
    PriceKey,
    PriceMarket,
    PriceRules,
    ReferencePrice,
    markets_of,
)
from trading_intents.storage.database import Pool
from trading_intents.storage.pages import PageRequest
from trading_intents.trading import Environment, FrozenStruct, Symbol

MAX_SYMBOLS = 10_000  # of an organization and market; trades add further ones


class FoundPrices(FrozenStruct):
    prices: Sequence[ReferencePrice]
    more_after: Symbol | None  # where the next page begins; None: there is none


class ReferencePrices:
    def __init__(self, pool: Pool, rules: PriceRules) -> None:
        self._pool = pool
        self._rules = rules

    async def post(
        self,
        organization_id: OrganizationId,
        environment: Environment,
        symbol: Symbol,
        price: Decimal,
    ) -> ReferencePrice:
        """In every market of the environment."""
        keys = [PriceKey(organization_id, market, symbol) for market in markets_of(environment)]
        async with self._pool.transaction([organization_id]) as tx:
            for key in keys:
                if await store.is_stored(tx, key):
                    continue
                if await store.count_symbols(tx, organization_id, key.market) >= MAX_SYMBOLS:
                    raise LimitReached(
                        f"the organization has {MAX_SYMBOLS} symbols with prices there, the most"
                    )
            posted = [await store.post_price(tx, key, price) for key in keys]
        return posted[0]

    async def find(
        self, organization_id: OrganizationId, market: PriceMarket, symbol: Symbol | None
    ) -> ReferencePrice:
        """Not found: none is known, or it is too old."""
        found = None
        if symbol is not None:
            key = PriceKey(organization_id, market, symbol)
            async with self._pool.transaction([organization_id], read_only=True) as tx:
                known = await store.find_prices(tx, [key])
            found = self._rules.pick(known[key])
        if found is None:
            raise NotFound("no reference price of the symbol is known")
        return found

    async def list(
        self, organization_id: OrganizationId, market: PriceMarket, page: PageRequest
    ) -> FoundPrices:
        """By symbol; those whose price is too old are left out, so that a page may be short and
        have a next one."""
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            symbols = await store.list_symbols(tx, organization_id, market, page)
            keys = [PriceKey(organization_id, market, symbol) for symbol in symbols[: page.limit]]
            known = await store.find_prices(tx, keys)
        prices = []
        for key in keys:
            price = self._rules.pick(known[key])
            if price:
                prices.append(price)
        more = symbols[page.limit - 1] if len(symbols) > page.limit else None
        return FoundPrices(prices, more)
