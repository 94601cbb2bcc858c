"""Reference prices from recorded reports: of trades, corrections and reports, the newest whatever
comes first."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.execution.recorded_orders import NOON, Books, D, fill, reported
from trading_intents.brokers.port import EventKind as E
from trading_intents.prices.model import PriceKey, PriceMarket, PriceSource, ReferencePrice
from trading_intents.prices.store import write_prices
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import Environment, Symbol

POSTED = PriceSource.POSTED
TRADE = PriceSource.TRADE
QUOTE = PriceSource.QUOTE


async def stored(books: Books, symbol: str = "AAPL") -> tuple[Decimal, str, datetime] | None:
    row: Any = await books.owner.fetchrow(
        "SELECT * FROM reference_prices WHERE symbol = $1", symbol
    )
    return row and (row["price"], row["source"], row["as_of"])


async def test_a_trade_is_the_symbols_price(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "4", "10", at=1), fill(sent, "e2", "4", "11", at=2))
    assert await stored(books) == (D(11), "trade", NOON + timedelta(seconds=2))
    await books.record(fill(sent, "e3", "2", "9", at=0))
    assert await stored(books) == (D(11), "trade", NOON + timedelta(seconds=2)), (
        "a trade that comes late is older"
    )


async def test_a_venues_fast_clock_makes_no_price_of_the_future(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "10", "10", at=10**9))
    found = await stored(books)
    assert found is not None
    assert found[2] <= await books.owner.fetchval("SELECT clock_timestamp()")


async def test_a_corrected_trade_corrects_the_price(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "10", "10", at=1))
    await books.record(
        reported(E.FILL_CORRECT, sent, "c1", 1, replaces="e1", quantity="10", price="12")
    )
    found = await stored(books)
    assert found is not None
    assert found[:2] == (D(12), "trade")


async def test_a_price_that_a_broker_reports_with_a_position_counts(books: Books) -> None:
    await books.record(reported(E.POSITION, None, "p1", 5, symbol="AAPL", quantity="3", price="20"))
    assert await stored(books) == (D(20), "quote", NOON + timedelta(seconds=5))
    await books.record(reported(E.POSITION, None, "p2", 6, symbol="AAPL", quantity="3"))
    assert await stored(books) == (D(20), "quote", NOON + timedelta(seconds=5))


async def test_a_fill_that_is_only_inferred_sets_no_price(books: Books) -> None:
    sent = await books.create("10")
    await books.record(
        reported(
            E.STATUS, sent, "s1", 1, cum_quantity="10", average_price="9", broker_status="filled"
        )
    )
    assert await stored(books) is None


async def test_the_prices_of_a_batch_are_one_statement(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    run = PoolTransaction.run

    async def counting(self: PoolTransaction, statements: Any) -> Any:
        runs.extend(statement.sql for statement in statements)
        return await run(self, statements)

    monkeypatch.setattr(PoolTransaction, "run", counting)
    orders = [await books.create("3", symbol=f"S{number}") for number in range(5)]
    await books.record(
        *(fill(sent, f"e{n}", "3", str(n + 1), at=n) for n, sent in enumerate(orders))
    )
    assert sum("reference_prices" in sql for sql in runs) == 1
    assert await stored(books, "S4") == (D(5), "trade", NOON + timedelta(seconds=4))


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ((TRADE, 1), (TRADE, 2), "second"),
        ((TRADE, 2), (TRADE, 1), "first"),
        ((TRADE, 1), (TRADE, 1), "second"),
        ((POSTED, 1), (TRADE, 1), "first"),
        ((TRADE, 1), (POSTED, 1), "second"),
        ((QUOTE, 1), (TRADE, 1), "second"),
        ((TRADE, 1), (QUOTE, 1), "first"),
        ((POSTED, 1), (QUOTE, 2), "second"),
    ],
)
async def test_the_stored_price_is_the_newest_and_of_the_same_moment_the_stronger(
    books: Books, first: tuple[PriceSource, int], second: tuple[PriceSource, int], kept: str
) -> None:
    key = PriceKey(books.organization, PriceMarket.PAPER, Symbol("AAPL"))
    for price, (source, at) in enumerate((first, second), 1):
        reported_price = ReferencePrice(
            key.symbol, Environment.PAPER, D(price), source, NOON + timedelta(seconds=at)
        )
        async with books.database.worker.transaction() as tx:
            await PoolTransaction(tx).run([write_prices({key: reported_price})])
    found = await stored(books)
    assert found is not None
    assert found[0] == (1 if kept == "first" else 2)
