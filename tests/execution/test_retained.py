"""The state that is retained for new subscribers of the stream, and lists of bounded length."""

import asyncio
import uuid
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.recorded_orders import Books, fill, open_books, reported
from trading_intents.accounts.store import find_account
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.port import EventKind as E
from trading_intents.clock import TimeRange
from trading_intents.ids import OrganizationId
from trading_intents.orders import events, service, store
from trading_intents.orders.events import retained_orders, retained_positions
from trading_intents.orders.service import Orders
from trading_intents.orders.store import OrderFilter
from trading_intents.prices.model import PriceRules
from trading_intents.storage.database import Database
from trading_intents.stream.model import Event
from trading_intents.stream.trading_pb2 import TradingEvent
from trading_intents.trading import Environment
from trading_intents.web.paging import Page


async def kept(
    books: Books, account: UUID | None = None, environment: Environment | None = None
) -> tuple[list[Any], list[Any]]:
    """The messages of the retained orders and positions."""
    organization = OrganizationId(books.organization)
    async with books.database.worker.transaction(read_only=True, isolation="repeatable read") as tx:
        pages = [page async for page in retained_orders(tx, organization, account, environment)]
        orders = [event for page in pages for event in page]
        found = [page async for page in retained_positions(tx, organization, account, environment)]
        positions = [event for page in found for event in page]
    assert all(len(page) <= events.RETAINED_PAGE for page in (*pages, *found))
    return [_message(event).broker_order for event in orders], [
        _message(event).broker_position for event in positions
    ]


def _message(event: Event) -> TradingEvent:
    return TradingEvent.FromString(event.payload)


async def age(books: Books, table: str, column: str) -> None:
    await books.owner.execute(f"UPDATE {table} SET {column} = {column} - interval '61 minutes'")


async def test_working_orders_and_open_positions_are_retained_and_others_for_an_hour(
    books: Books,
) -> None:
    working = await books.create("10")
    done = await books.create("10")
    sold = await books.create("10", side="SELL", symbol="MSFT")
    bought = await books.create("10", symbol="MSFT")
    await books.record(
        reported(E.ACCEPTED, working),
        fill(done, "e1", "10"),
        fill(bought, "e2", "10"),
        fill(sold, "e3", "10"),
    )
    orders, positions = await kept(books)
    assert orders[0].order_id == str(working.order_id)  # what works comes first
    assert {order.order_id for order in orders} == {
        str(each.order_id) for each in (working, done, sold, bought)
    }
    assert [(position.symbol, position.quantity) for position in positions] == [
        ("AAPL", "10"),
        ("MSFT", "0"),
    ]
    await age(books, "orders", "finished_at")
    await age(books, "holdings", "received_at")
    orders, positions = await kept(books)
    assert [order.order_id for order in orders] == [str(working.order_id)]
    assert [position.symbol for position in positions] == ["AAPL"]


async def test_the_retained_state_is_the_last_that_was_published(books: Books) -> None:
    sent = await books.create("10", reference="mine")
    await books.record(
        reported(E.ACCEPTED, sent, broker_order_id="b1", at=1),
        fill(sent, "e1", "4", "2.5", at=2, fee="1"),
    )
    orders, positions = await kept(books)
    published_of = {type(event).__name__: event for event in await books.events()}
    assert orders == [published_of["BrokerOrder"]]
    assert positions == [published_of["BrokerPosition"]]


async def test_retained_state_is_narrowed_to_an_account_or_an_environment(
    urls: Urls, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "RETAINED_PAGE", 2)
    async with open_books(urls, database, 2) as books:
        for account in (0, 0, 0, 1):
            sent = await books.create("10", account=account)
            await books.record(fill(sent, f"{sent.seq}", "4"), account=account)
        assert [len(each) for each in await kept(books)] == [4, 2]
        done = [await books.create("10", symbol=symbol) for symbol in "ABCDE"]
        await books.record(*(fill(sent, f"{sent.seq}", "10") for sent in done))  # all in one moment
        orders, positions = await kept(books, books.accounts[0])
        assert len({order.order_id for order in orders}) == len(orders) == 8
        assert [position.symbol for position in positions] == ["A", "AAPL", "B", "C", "D", "E"]
        await age(books, "orders", "finished_at")
        await books.owner.execute("DELETE FROM holdings WHERE symbol <> 'AAPL'")
        assert [len(each) for each in await kept(books)] == [4, 2]
        assert [len(each) for each in await kept(books, books.accounts[0])] == [3, 1]
        assert [len(each) for each in await kept(books, None, Environment.PAPER)] == [4, 2]
        assert [len(each) for each in await kept(books, None, Environment.LIVE)] == [0, 0]
        assert [len(each) for each in await kept(books, uuid.uuid4())] == [0, 0]


async def test_a_rare_filter_reads_a_stretch_of_the_account_at_a_time(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SCAN_ACTIONS", 3)
    for index in range(11):
        sent = await books.create("10", symbol="RARE" if index in (0, 9) else "AAPL")
        await books.record(fill(sent, f"e{index}", "10"))
    organization = OrganizationId(books.organization)
    async with books.database.service.transaction([organization]) as tx:
        account = await find_account(tx, organization, books.accounts[0])
    assert account
    orders = Orders(books.database.service, PriceRules(900, PaperSimulation(1)))
    walks: list[list[list[int]]] = []
    for is_descending in (False, True):
        after: int | None = None
        walks.append([])
        while after is not None or not walks[-1]:
            page = Page("", 50, after, is_descending)
            found = await orders.list(account, OrderFilter(symbol="RARE"), page)
            walks[-1].append([row.create_seq for row in found.rows])
            after = found.more_after
    assert walks == [[[1], [], [], [10]], [[10], [], [], [1]]]
    found = await orders.list(account, OrderFilter(), Page("", 50, None))
    assert (len(found.rows), found.more_after) == (11, None)


async def test_a_reader_of_trades_misses_none_that_commits_late(books: Books) -> None:
    orders = [await books.create("10", symbol=f"S{index % 3}") for index in range(40)]
    following = list(range(40))
    seen: list[str] = []
    done = asyncio.Event()

    async def write() -> None:
        while following:
            index = following.pop()
            await books.record(fill(orders[index], f"e{index}", "10"))

    async def read() -> None:
        after: int | None = None
        while True:
            ended = done.is_set()
            async with books.database.service.transaction(
                [books.organization], read_only=True
            ) as tx:
                rows = await store.list_trades(
                    tx, books.accounts[0], TimeRange(), Page("", 4, after)
                )
            seen.extend(row.exec_id for row in rows)
            after = rows[-1].seq if rows else after
            if ended and not rows:
                return

    async def write_all() -> None:
        await asyncio.gather(*(write() for _ in range(3)))
        done.set()

    await asyncio.gather(write_all(), read())
    assert sorted(seen) == sorted(f"e{index}" for index in range(40))
