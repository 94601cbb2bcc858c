"""The choice of a reference price, by table: the newest, of the same moment the stronger source,
and none that is too old."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from trading_intents.brokers.paper.prices import tick_number, walk_quote
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.prices.model import (
    PriceMarket,
    PriceRules,
    PriceSource,
    ReferencePrice,
    StoredPrices,
    newest,
)
from trading_intents.trading import Environment, Symbol

NOW = datetime(2026, 3, 4, 15, 30, 0, 100_000, tzinfo=UTC)
RULES = PriceRules(900, PaperSimulation(7))
POSTED = PriceSource.POSTED
TRADE = PriceSource.TRADE
QUOTE = PriceSource.QUOTE
SIMULATED = PriceMarket.SIMULATED
PAPER = PriceMarket.PAPER
LIVE = PriceMarket.LIVE
AAPL = Symbol("AAPL")
WALK = "walk"


def known(
    market: PriceMarket,
    stored: tuple[PriceSource, float] | None = None,
    quoted: float | None = None,
) -> StoredPrices:
    """Each by its age in seconds; the stored price is 10, the posted quote's middle 20.05."""
    stored_fields: dict[str, Any] = (
        {"price": Decimal(10), "source": stored[0], "as_of": ago(stored[1])} if stored else {}
    )
    quote: dict[str, Any] = (
        {"bid": Decimal("20"), "ask": Decimal("20.1"), "quoted_at": ago(quoted)}
        if quoted is not None
        else {}
    )
    return StoredPrices(
        organization_id=UUID(int=1), market=market, symbol=AAPL, now=NOW, **stored_fields, **quote
    )


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


CASES: list[tuple[StoredPrices, str | None]] = [
    (known(LIVE), None),
    (known(LIVE, (POSTED, 900)), "10"),
    (known(LIVE, (POSTED, 900.001)), None),
    (known(LIVE, (TRADE, 0)), "10"),
    (known(LIVE, (QUOTE, 5)), "10"),
    (known(SIMULATED, None, 5), "20.05"),
    (known(SIMULATED, None, 901), None),
    (known(SIMULATED, (TRADE, 6), 5), "20.05"),
    (known(SIMULATED, (TRADE, 4), 5), "10"),
    (known(SIMULATED, (TRADE, 5), 5), "10"),
    (known(SIMULATED, (POSTED, 5), 5), "10"),
    (known(SIMULATED, (QUOTE, 5), 5), "20.05"),
    (known(SIMULATED, (POSTED, 901), 800), "20.05"),
    (known(SIMULATED, (POSTED, 800), 901), "10"),
    (known(SIMULATED), WALK),
    (known(SIMULATED, (TRADE, 1)), WALK),
    (known(SIMULATED, (TRADE, 0)), "10"),  # newer than the walk's last tick
    (known(SIMULATED, (POSTED, 800)), "10"),
    (known(SIMULATED, (POSTED, 901)), WALK),
    (known(SIMULATED, (QUOTE, 800)), "10"),
]


@pytest.mark.parametrize(("stored", "price"), CASES)
def test_the_newest_price_that_is_not_too_old_counts(
    stored: StoredPrices, price: str | None
) -> None:
    found = RULES.pick(stored)
    quote = walk_quote(7, AAPL, tick_number(NOW))
    wanted = str((quote.bid + quote.ask) / 2) if price == WALK else price
    assert (str(found.price.normalize()) if found else None) == (
        str(Decimal(wanted).normalize()) if wanted else None
    )
    if found is not None:
        assert (found.symbol, found.environment) == (AAPL, stored.market.environment)
        assert (found.source is QUOTE) is (price in (WALK, "20.05") or stored.source is QUOTE)


def test_the_walk_is_only_the_paper_brokers() -> None:
    assert RULES.pick(known(PAPER)) is None
    found = RULES.pick(known(PAPER, (TRADE, 100)))
    assert found is not None
    assert found.source is TRADE


def test_the_last_known_price_may_be_of_any_age() -> None:
    last = RULES.pick_last(known(LIVE, (TRADE, 10**6)))
    assert last is not None
    assert (last.price, last.source) == (Decimal(10), TRADE)
    assert RULES.pick_last(known(LIVE)) is None
    walk = RULES.pick_last(known(SIMULATED, (POSTED, 10**6)))
    assert walk == RULES.pick(known(SIMULATED))


@pytest.mark.parametrize(
    ("first", "second", "wins"),
    [
        ((POSTED, 1), (TRADE, 0), TRADE),
        ((TRADE, 0), (POSTED, 1), TRADE),
        ((POSTED, 1), (TRADE, 1), POSTED),
        ((TRADE, 1), (POSTED, 1), POSTED),
        ((QUOTE, 1), (TRADE, 1), TRADE),
        ((POSTED, 1), (QUOTE, 1), POSTED),
    ],
)
def test_of_the_same_moment_the_stronger_source_counts(
    first: tuple[PriceSource, int], second: tuple[PriceSource, int], wins: PriceSource
) -> None:
    prices = [
        ReferencePrice(AAPL, Environment.LIVE, Decimal(1), source, ago(age))
        for source, age in (first, second)
    ]
    found = newest(prices)
    assert found is not None
    assert found.source is wins
