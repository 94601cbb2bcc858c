"""What is counted of open orders, whatever happens to them: a scan of the orders says the same."""

import random
from typing import Any

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.ledger_invariants import assert_true_exposures
from tests.execution.recorded_orders import Books, Sent, fill, open_books, ours, told, track
from trading_intents.brokers.port import EventKind as E
from trading_intents.controls.limits.upkeep import keep_tracking
from trading_intents.orders.facts import FactKind as F
from trading_intents.storage.database import Database

STEPS = 60
SEEDS = 6


async def exposure(books: Books, symbol: str = "AAPL") -> tuple[int, str, str] | None:
    row = await books.owner.fetchrow(
        "SELECT open_orders, open_buy::text, open_sell::text FROM exposures WHERE account_id = $1 AND symbol = $2",
        books.accounts[0],
        symbol,
    )
    return None if row is None else (row["open_orders"], row["open_buy"], row["open_sell"])


async def test_an_order_counts_while_it_is_open_with_what_is_unfilled(books: Books) -> None:
    order = await books.create("100.5", limit="10")
    assert await exposure(books) == (1, "100.5", "0")
    await books.tell(told(E.ACCEPTED, order, "a"), fill(order, "e1", "40.25"))
    assert await exposure(books) == (1, "60.25", "0")
    await books.cancel(order)
    assert await exposure(books) == (1, "60.25", "0"), "a pending CANCEL may come too late"
    await books.tell(told(E.CANCELLED, order, "c", cum_quantity="40.25"))
    assert await exposure(books) == (0, "0.00", "0")


async def test_an_order_under_replace_counts_its_larger_version_once(books: Books) -> None:
    order = await books.create("50", limit="10", side="SELL")
    await books.tell(told(E.ACCEPTED, order, "a"), fill(order, "e1", "10"))
    larger = await books.replace(order, "80", "10")
    assert await exposure(books) == (1, "0", "70")
    await books.tell(told(E.REPLACE_REJECTED, larger, "r1"))
    assert await exposure(books) == (1, "0", "40")
    smaller = await books.replace(order, "20", "10")
    assert await exposure(books) == (1, "0", "40")
    await books.tell(told(E.REPLACED, smaller, "r2", replaces=order.client_order_id))
    assert await exposure(books) == (1, "0", "10")


async def test_an_order_in_doubt_is_open_and_a_resurrected_one_counts_again(books: Books) -> None:
    order = await books.create("5", side="SELL_SHORT")
    await books.tell(own=(ours(order, F.UNCERTAIN),))
    assert await exposure(books) == (1, "0", "5")
    await books.tell(own=(ours(order, F.NOT_DELIVERED),))
    assert await exposure(books) == (0, "0", "0")
    await books.tell(told(E.ACCEPTED, order, "a"))
    assert await exposure(books) == (1, "0", "5")
    await books.tell(fill(order, "e1", "2"))
    assert await exposure(books) == (1, "0", "3")


async def test_a_busted_fill_is_open_again(books: Books) -> None:
    order = await books.create("10", limit="10")
    await books.tell(told(E.ACCEPTED, order, "a"), fill(order, "e1", "10"))
    assert await exposure(books) == (0, "0", "0")
    await books.tell(told(E.FILL_BUST, order, "b", replaces="e1"))
    assert await exposure(books) == (1, "10", "0")


async def test_an_account_without_such_a_limit_is_counted_no_more(books: Books, database: Database) -> None:
    order = await books.create("10", limit="10")
    assert await keep_tracking(database.worker) > 0
    assert await exposure(books) == (1, "10", "0"), "the limit stands"
    await books.owner.execute("DELETE FROM trading_limits")
    await keep_tracking(database.worker)
    assert await exposure(books) is None
    await books.tell(told(E.ACCEPTED, order, "a"), fill(order, "e1", "4"))
    await books.create("7", limit="10")
    assert await exposure(books) is None
    await track(books, 0)
    await books.create("1", limit="10")
    assert await exposure(books) == (3, "14", "0")


async def test_an_account_whose_order_is_held_keeps_no_other_counted(urls: Urls, database: Database) -> None:
    async with open_books(urls, database, accounts=2) as books:
        await track(books, 0, 1)
        for account in (0, 1):
            await books.create("10", limit="10", account=account)
        first = min(books.accounts)  # which is found first
        await books.owner.execute("DELETE FROM trading_limits")
        tracked = "SELECT array_agg(account_id) FROM account_heads WHERE tracked"
        holder = await asyncpg.connect(urls.owner.reveal())
        async with holder.transaction():
            await holder.execute("SELECT FROM orders WHERE account_id = $1 FOR UPDATE", first)
            await keep_tracking(database.worker)
            assert await books.owner.fetchval(tracked) == [first]
        await holder.close()
        await keep_tracking(database.worker)
        assert await books.owner.fetchval(tracked) is None


async def test_upkeep_removes_symbols_of_which_nothing_is_open(books: Books, database: Database) -> None:
    order = await books.create("5")
    await keep_tracking(database.worker)
    assert await exposure(books) == (1, "5", "0")
    await books.tell(told(E.ACCEPTED, order, "a"), fill(order, "e1", "5"))
    assert await exposure(books) == (0, "0", "0")
    await keep_tracking(database.worker)
    assert await exposure(books) is None


class RandomCourse:
    """Commands, and what a broker may tell of them, in any order and however often."""

    def __init__(self, books: Books, seed: int) -> None:
        self.books, self.chance = books, random.Random(seed)
        self.orders: list[Sent] = []
        self.replaces: dict[Sent, list[Sent]] = {}
        self.told: list[Any] = []

    async def step(self, number: int, database: Database) -> None:
        books, chance = self.books, self.chance
        if not self.orders or chance.random() < 0.3:
            sides, symbols = ("BUY", "SELL", "SELL_SHORT"), ("AAPL", "MSFT")
            amount = f"{chance.randrange(1, 100)}.{chance.randrange(1, 10)}"
            self.orders.append(
                await books.create(amount, limit="10", side=chance.choice(sides), symbol=chance.choice(symbols))
            )
            return
        order = chance.choice(self.orders)
        row = await books.order(order)
        is_open, free = row["finished_at"] is None, row["pending_replace_seq"] is None and not row["cancel_requested"]
        kind = chance.choice(("replace", "cancel", "tell", "tell", "tell", "limits"))
        if kind == "replace" and is_open and free:
            replaced = await books.replace(order, str(chance.randrange(1, 150)), "10")
            self.replaces.setdefault(order, []).append(replaced)
        elif kind == "cancel" and is_open:
            await books.cancel(order)
        elif kind == "limits" and chance.random() < 0.2:
            await books.owner.execute("DELETE FROM trading_limits")
            await keep_tracking(database.worker)
            if chance.random() < 0.7:
                await track(books, 0)
        else:
            await self._tell(order, number)

    async def _tell(self, order: Sent, number: int) -> None:
        chance, last = self.chance, self.replaces.get(order, [order])[-1]
        if self.told and chance.random() < 0.2:
            await self.books.tell(chance.choice(self.told))
            return
        execution, amount = f"e{number}", f"{chance.randrange(1, 40)}.5"
        events = [
            told(E.ACCEPTED, order, f"a{number}"),
            fill(order, execution, amount),
            fill(last, execution, amount),
            told(E.REPLACED, last, f"r{number}", replaces=order.client_order_id),
            told(E.REPLACE_REJECTED, last, f"j{number}"),
            told(E.CANCELLED, order, f"c{number}"),
            told(E.EXPIRED, order, f"x{number}"),
            told(E.FILL_BUST, order, f"b{number}", replaces=f"e{chance.randrange(number)}"),
        ]
        facts = [ours(order, F.UNCERTAIN), ours(order, F.NOT_DELIVERED), ours(last, F.REPLACE_DROPPED)]
        if chance.random() < 0.2:
            await self.books.tell(own=(chance.choice(facts),))
        else:
            self.told.append(chance.choice(events))
            await self.books.tell(self.told[-1])


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_after_any_course_of_events_the_orders_say_the_same(urls: Urls, database: Database, seed: int) -> None:
    async with open_books(urls, database) as books:
        await track(books, 0)
        course = RandomCourse(books, seed)
        for number in range(STEPS):
            await course.step(number, database)
            await assert_true_exposures(database)
