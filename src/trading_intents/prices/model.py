"""The choice of a symbol's reference price. Pure: no I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from trading_intents.brokers.port import Simulation
from trading_intents.brokers.registry import BUILT_IN
from trading_intents.trading import Environment, FrozenStruct, Symbol, exact, normalized


class PriceMarket(StrEnum):
    """A market of prices. The built-in broker is a market of its own: what it simulates is no price
    of the accounts that another broker has in its paper environment."""

    SIMULATED = "simulated"
    PAPER = "paper"
    LIVE = "live"

    @property
    def environment(self) -> Environment:
        return Environment.LIVE if self is PriceMarket.LIVE else Environment.PAPER


def market_of(broker: str, environment: Environment) -> PriceMarket:
    return PriceMarket.SIMULATED if broker == BUILT_IN else PriceMarket(environment)


def markets_of(environment: Environment) -> tuple[PriceMarket, ...]:
    """The first is the one that is meant where no account is named."""
    return (
        (PriceMarket.LIVE,)
        if environment is Environment.LIVE
        else (PriceMarket.SIMULATED, PriceMarket.PAPER)
    )


class PriceSource(StrEnum):
    """The source of a price, the weakest first: of two of the same moment, the stronger one
    counts."""

    QUOTE = "quote"
    TRADE = "trade"
    POSTED = "posted"


_STRENGTH = {source: strength for strength, source in enumerate(PriceSource)}


class ReferencePrice(FrozenStruct):
    symbol: Symbol
    environment: Environment
    price: Decimal
    source: PriceSource
    as_of: datetime


class PriceKey(NamedTuple):
    organization_id: UUID
    market: PriceMarket
    symbol: Symbol


class StoredPrices(msgspec.Struct, frozen=True, kw_only=True):
    """All that the database has for a key, at one moment of its clock: the newest stored price, and
    of the simulated market the newest quote that the organization posted. `store.read_prices` makes
    its row, `store.parse_reply` parses it."""

    organization_id: UUID
    market: PriceMarket
    symbol: Symbol
    price: Decimal | None = None
    source: PriceSource | None = None
    as_of: datetime | None = None
    bid: Decimal | None = None
    ask: Decimal | None = None
    quoted_at: datetime | None = None
    now: datetime

    @property
    def key(self) -> PriceKey:
        return PriceKey(self.organization_id, self.market, self.symbol)

    @property
    def stored(self) -> ReferencePrice | None:
        if self.price is None or self.source is None or self.as_of is None:
            return None
        return ReferencePrice(
            self.symbol, self.market.environment, self.price, self.source, self.as_of
        )

    @property
    def posted_quote(self) -> ReferencePrice | None:
        if self.bid is None or self.ask is None or self.quoted_at is None:
            return None
        with exact():
            middle = normalized((self.bid + self.ask) / 2)
        return ReferencePrice(
            self.symbol, self.market.environment, middle, PriceSource.QUOTE, self.quoted_at
        )

    @property
    def found(self) -> list[ReferencePrice]:
        return [each for each in (self.stored, self.posted_quote) if each]


def newest(prices: Sequence[ReferencePrice]) -> ReferencePrice | None:
    """Of two of the same moment: the posted one, else the trade, else the quote that is named
    last."""
    return max(
        reversed(prices), key=lambda price: (price.as_of, _STRENGTH[price.source]), default=None
    )


@dataclass(frozen=True, slots=True)
class PriceRules:
    """Picks a reference price; `simulation` is the simulated market."""

    max_age_seconds: int
    simulation: Simulation

    def pick(self, known: StoredPrices) -> ReferencePrice | None:
        """The newest price that is not too old.

        In the simulated market its own price counts where the organization posts no quotes of the
        symbol, and stands back behind a price that was posted, until that is too old.
        """
        oldest = known.now - timedelta(seconds=self.max_age_seconds)
        young = [each for each in known.found if each.as_of >= oldest]
        is_simulated = known.market is PriceMarket.SIMULATED and known.bid is None
        if is_simulated and all(each.source is PriceSource.TRADE for each in young):
            young.append(self._simulate(known))
        return newest(young)

    def pick_last(self, known: StoredPrices) -> ReferencePrice | None:
        """As `pick`, or where every price is too old, the newest of these."""
        return self.pick(known) or newest(known.found)

    def _simulate(self, known: StoredPrices) -> ReferencePrice:
        found = self.simulation.price(known.symbol, known.now)
        return ReferencePrice(
            known.symbol, known.market.environment, found.price, PriceSource.QUOTE, found.as_of
        )
