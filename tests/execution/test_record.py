"""What is recorded of a broker's reports: facts, orders, trades, positions, stats and stream, each once."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Urls
from tests.execution.books import Books, D, fill, open_books, ours, told
from tests.execution.truth import assert_true_books
from trading_intents.brokers.port import EventKind as E
from trading_intents.orders.facts import FactKind as F
from trading_intents.storage.database import Database


@pytest.fixture
async def books(urls: Urls, database: Database) -> AsyncIterator[Books]:
    async with open_books(urls, database) as opened:
        yield opened
        await assert_true_books(database)


async def test_an_order_is_accepted_and_filled(books: Books) -> None:
    sent = await books.create("10")
    await books.tell(
        told(E.ACCEPTED, sent, broker_order_id="b1", at=1), own=(ours(sent, F.ACCEPTED, broker_order_id="b1"),)
    )
    row = await books.order(sent)
    assert (row["order_status"], row["external_order_id"], row["version"]) == ("NEW", "b1", 2)
    recorded = await books.tell(fill(sent, "e1", "4", "10", at=2), fill(sent, "e2", "6", "11", at=3, fee="0.5"))
    assert recorded.changed
    row = await books.order(sent)
    assert (row["order_status"], row["filled_quantity"], row["average_price"]) == ("FILLED", D(10), D("10.6"))
    assert row["version"] == 3
    assert await books.filled(sent) == [("e1", "4", "10"), ("e2", "6", "11")]
    position = await books.position()
    assert (position["quantity"], position["open_cost"], position["realized_pnl"]) == (D(10), D(106), D("-0.5"))
    assert [type(event).__name__ for event in await books.events()] == [
        "BrokerOrder",
        "BrokerOrder",
        "BrokerOrder",
        "BrokerTrade",
        "BrokerTrade",
        "BrokerPosition",
    ]
