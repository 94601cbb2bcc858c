"""Counted exposures equal a scan of the open orders, whatever happens to these."""

import asyncio
import random
from io import StringIO
from typing import Any

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.ledger_invariants import assert_true_exposures
from tests.execution.recorded_orders import Books, Sent, fill, limit, open_books, ours, reported
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.brokers.port import EventKind as E
from trading_intents.clock import SystemClock
from trading_intents.execution.checking.invariants import CHECK_SECONDS, InvariantCheck
from trading_intents.orders.facts import FactKind as F
from trading_intents.storage.database import Database
from trading_intents.telemetry import Metrics, make_log

STEPS = 60
SEEDS = 6
WAIT_SECONDS = 10.0


async def exposure(books: Books, symbol: str = "AAPL") -> tuple[int, str, str] | None:
    row = await books.owner.fetchrow(
        """
            SELECT open_orders, open_buy::text, open_sell::text FROM holdings
            WHERE account_id = $1 AND symbol = $2
        """,
        books.accounts[0],
        symbol,
    )
    return None if row is None else (row["open_orders"], row["open_buy"], row["open_sell"])


async def test_an_order_counts_while_it_is_open_with_what_is_unfilled(books: Books) -> None:
    order = await books.create("100.5", limit="10")
    assert await exposure(books) == (1, "100.5", "0")
    await books.record(reported(E.ACCEPTED, order, "a"), fill(order, "e1", "40.25"))
    assert await exposure(books) == (1, "60.25", "0")
    await books.cancel(order)
    assert await exposure(books) == (1, "60.25", "0"), "a pending CANCEL may come too late"
    await books.record(reported(E.CANCELLED, order, "c", cum_quantity="40.25"))
    assert await exposure(books) == (0, "0.00", "0")


async def test_an_order_under_replace_counts_its_larger_version_once(books: Books) -> None:
    order = await books.create("50", limit="10", side="SELL")
    await books.record(reported(E.ACCEPTED, order, "a"), fill(order, "e1", "10"))
    larger = await books.replace(order, "80", "10")
    assert await exposure(books) == (1, "0", "70")
    await books.record(reported(E.REPLACE_REJECTED, larger, "r1"))
    assert await exposure(books) == (1, "0", "40")
    smaller = await books.replace(order, "20", "10")
    assert await exposure(books) == (1, "0", "40")
    await books.record(reported(E.REPLACED, smaller, "r2", replaces=order.client_order_id))
    assert await exposure(books) == (1, "0", "10")


async def test_an_order_in_doubt_is_open_and_a_resurrected_one_counts_again(books: Books) -> None:
    order = await books.create("5", side="SELL_SHORT")
    await books.record(own=(ours(order, F.UNCERTAIN),))
    assert await exposure(books) == (1, "0", "5")
    await books.record(own=(ours(order, F.NOT_DELIVERED),))
    assert await exposure(books) == (0, "0", "0")
    await books.record(reported(E.ACCEPTED, order, "a"))
    assert await exposure(books) == (1, "0", "5")
    await books.record(fill(order, "e1", "2"))
    assert await exposure(books) == (1, "0", "3")


async def test_a_busted_fill_is_open_again(books: Books) -> None:
    order = await books.create("10", limit="10")
    await books.record(reported(E.ACCEPTED, order, "a"), fill(order, "e1", "10"))
    assert await exposure(books) == (0, "0", "0")
    await books.record(reported(E.FILL_BUST, order, "b", replaces="e1"))
    assert await exposure(books) == (1, "10", "0")


class Check:
    """The periodic comparison, with its own metrics and log."""

    def __init__(self, database: Database) -> None:
        self.metrics = Metrics()
        self.log = StringIO()
        log = make_log("error", self.log)
        self._check = InvariantCheck(database.worker, SystemClock(), self.metrics, log)

    async def run(self) -> float:
        """Through all accounts; how many alerts there were so far."""
        while await self._check.check() != CHECK_SECONDS:
            pass
        return float(self.metrics.execution_alerts.labels("exposure_differs")._value.get())


async def test_a_check_removes_symbols_of_which_nothing_is_open_or_was_ever_held(
    books: Books, database: Database
) -> None:
    check = Check(database)
    order = await books.create("5")
    refused = await books.create("5", symbol="MSFT")
    assert await check.run() == 0
    assert await exposure(books) == (1, "5", "0")
    await books.record(
        reported(E.ACCEPTED, order, "a"), fill(order, "e1", "5"), reported(E.REJECTED, refused, "r")
    )
    assert await exposure(books, "MSFT") == (0, "0", "0")
    assert await check.run() == 0
    assert await exposure(books, "MSFT") is None
    assert await exposure(books) == (0, "0", "0")
    assert (await books.position())["quantity"] == 5


WRONG = {
    "another count": ("UPDATE holdings SET open_orders = 7", '"counted": ["7", "10", "0"]'),
    "another quantity": ("UPDATE holdings SET open_sell = 0.5", '"counted": ["1", "10", "0.5"]'),
    "none": ("DELETE FROM holdings", '"counted": ["0", "0", "0"]'),
}


@pytest.mark.parametrize("how", WRONG)
async def test_an_exposure_that_differs_is_set_right_with_an_alert(
    books: Books, database: Database, how: str
) -> None:
    wrong, shown = WRONG[how]
    check = Check(database)
    await books.create("10", limit="10")
    await books.owner.execute(wrong)
    assert await check.run() == 1
    assert await exposure(books) == (1, "10", "0")
    assert '"exposure differs"' in check.log.getvalue()
    assert shown in check.log.getvalue()
    assert '"actual": ["1", "10", "0"]' in check.log.getvalue()
    assert await check.run() == 1


async def test_an_exposure_of_nothing_is_set_right_with_an_alert(
    books: Books, database: Database
) -> None:
    check = Check(database)
    order = await books.create("10", limit="10")
    await books.record(reported(E.REJECTED, order, "r"))
    await books.owner.execute("UPDATE holdings SET open_orders = 1")
    assert await check.run() == 1
    assert await exposure(books) in (None, (0, "0", "0"))


async def test_a_correction_counts_what_commits_while_it_waits(
    urls: Urls, books: Books, database: Database
) -> None:
    """A transaction has changed an order and its exposure, and commits after the difference was
    found."""
    check = Check(database)
    order = await books.create("10", limit="10")
    await books.owner.execute("UPDATE holdings SET open_orders = 9")
    recorder = await asyncpg.connect(urls.owner.reveal())
    async with recorder.transaction():
        await recorder.execute(
            "UPDATE orders SET filled_quantity = 4 WHERE order_id = $1", order.order_id
        )
        await recorder.execute("UPDATE holdings SET open_buy = open_buy - 4")
        checking = asyncio.create_task(check.run())

        async def is_waiting() -> bool:
            return bool(await books.owner.fetchval(COUNT_BLOCKED))

        await eventually_async(is_waiting, WAIT_SECONDS)
    await recorder.close()
    assert await checking == 1
    assert await exposure(books) == (1, "6", "0")
    await books.owner.execute("UPDATE orders SET filled_quantity = 0")
    assert await check.run() == 2


async def _add_legs(books: Books, chance: random.Random, symbol: str) -> None:
    """Adds legs in every state: filled in part, active or not, under REPLACE, ended."""
    parent = await books.create("10", limit="10", symbol=symbol)
    for _ in range(6):
        side = chance.choice(("BUY", "SELL", "SELL_SHORT"))
        leg = await books.create(str(chance.randrange(1, 9)), limit="10", side=side, symbol=symbol)
        if chance.random() < 0.3:
            await books.replace(leg, str(chance.randrange(1, 20)), "10")
        await books.owner.execute(
            "UPDATE orders SET parent_order_id = $2, active = $3, filled_quantity = $4,"
            " finished_at = CASE WHEN $5 THEN now() END WHERE order_id = $1",
            leg.order_id,
            parent.order_id if chance.random() < 0.8 else None,
            chance.random() < 0.7,
            chance.choice((0, 0, 1, 30)),
            chance.random() < 0.2,
        )


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_scan_adds_up_groups_as_the_one_rule_does(
    urls: Urls, database: Database, seed: int
) -> None:
    async with open_books(urls, database) as books:
        for symbol in ("AAPL", "MSFT"):
            await _add_legs(books, random.Random(seed), symbol)
        await books.owner.execute("DELETE FROM holdings")
        assert await Check(database).run() == 2
        await assert_true_exposures(database)


class RandomCourse:
    """Commands, and a broker's possible reports, in any order and however often."""

    def __init__(self, books: Books, seed: int) -> None:
        self.books = books
        self.chance = random.Random(seed)
        self.orders: list[Sent] = []
        self.replaces: dict[Sent, list[Sent]] = {}
        self.reported: list[Any] = []

    async def step(self, number: int) -> None:
        books = self.books
        chance = self.chance
        if not self.orders or chance.random() < 0.3:
            sides = ("BUY", "SELL", "SELL_SHORT")
            symbols = ("AAPL", "MSFT")
            amount = f"{chance.randrange(1, 100)}.{chance.randrange(1, 10)}"
            self.orders.append(
                await books.create(
                    amount, limit="10", side=chance.choice(sides), symbol=chance.choice(symbols)
                )
            )
            return
        order = chance.choice(self.orders)
        row = await books.order(order)
        is_open = row["finished_at"] is None
        free = row["pending_replace_seq"] is None and not row["cancel_requested"]
        kind = chance.choice(("replace", "cancel", "report", "report", "report", "limits"))
        if kind == "replace" and is_open and free:
            replaced = await books.replace(order, str(chance.randrange(1, 150)), "10")
            self.replaces.setdefault(order, []).append(replaced)
        elif kind == "cancel" and is_open:
            await books.cancel(order)
        elif kind == "limits" and chance.random() < 0.2:
            await limit(books, **({"max_open_orders": 100_000} if chance.random() < 0.7 else {}))
        else:
            await self._report(order, number)

    async def _report(self, order: Sent, number: int) -> None:
        chance = self.chance
        last = self.replaces.get(order, [order])[-1]
        if self.reported and chance.random() < 0.2:
            await self.books.record(chance.choice(self.reported))
            return
        execution = f"e{number}"
        amount = f"{chance.randrange(1, 40)}.5"
        events = [
            reported(E.ACCEPTED, order, f"a{number}"),
            fill(order, execution, amount),
            fill(last, execution, amount),
            reported(E.REPLACED, last, f"r{number}", replaces=order.client_order_id),
            reported(E.REPLACE_REJECTED, last, f"j{number}"),
            reported(E.CANCELLED, order, f"c{number}"),
            reported(E.EXPIRED, order, f"x{number}"),
            reported(E.FILL_BUST, order, f"b{number}", replaces=f"e{chance.randrange(number)}"),
        ]
        facts = [
            ours(order, F.UNCERTAIN),
            ours(order, F.NOT_DELIVERED),
            ours(last, F.REPLACE_DROPPED),
        ]
        if chance.random() < 0.2:
            await self.books.record(own=(chance.choice(facts),))
        else:
            self.reported.append(chance.choice(events))
            await self.books.record(self.reported[-1])


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_after_any_course_of_events_the_orders_say_the_same(
    urls: Urls, database: Database, seed: int
) -> None:
    async with open_books(urls, database) as books:
        course = RandomCourse(books, seed)
        check = Check(database)
        for number in range(STEPS):
            await course.step(number)
            await assert_true_exposures(database)
        assert await check.run() == 0
