"""An order that nobody works on is found, looked up and alerted; no order that somebody works on."""

from io import StringIO

import pytest

from tests.execution.recorded_orders import Books, Sent, fill, ours, reported
from trading_intents.brokers.port import EventKind as E
from trading_intents.clock import SystemClock
from trading_intents.execution.checking.invariants import (
    CHECK_SECONDS,
    InvariantCheck,
    find_broken,
)
from trading_intents.orders.facts import FactKind as F
from trading_intents.storage.database import Database
from trading_intents.telemetry import Metrics, make_log


async def create(books: Books) -> Sent:
    return await books.create("10", limit="5")


async def lose_answer(books: Books) -> Sent:
    order = await create(books)
    await books.record(own=(ours(order, F.UNCERTAIN),))
    return order


async def work(books: Books) -> Sent:
    order = await create(books)
    await books.record(reported(E.ACCEPTED, order, f"a{order.seq}"))
    return order


async def replace(books: Books) -> Sent:
    order = await work(books)
    await books.replace(order, "20", "5")
    return order


async def cancel(books: Books) -> Sent:
    order = await work(books)
    await books.cancel(order)
    return order


async def fill_all(books: Books) -> Sent:
    order = await work(books)
    await books.record(fill(order, f"e{order.seq}", "10"))
    return order


LOSE_ROWS = "DELETE FROM commands WHERE order_id = $1"
LOSE_ANSWERS = """
    UPDATE sent_commands SET unclear_at = clock_timestamp()
    WHERE order_id = $1 AND action_type <> 'CREATE'
"""
LOOK_UP = "UPDATE orders SET lookup_due_at = clock_timestamp() WHERE order_id = $1"
FORGET = "UPDATE orders SET lookup_due_at = NULL WHERE order_id = $1"
UNANSWERED = {
    "not sent": (create, "PENDING_NEW"),
    "in doubt": (lose_answer, "UNKNOWN"),
    "to be replaced": (replace, "PENDING_REPLACE"),
    "to be cancelled": (cancel, "PENDING_CANCEL"),
}


async def forgotten(books: Books, database: Database) -> list[tuple[object, str]]:
    async with database.worker.transaction(read_only=True, plans="fresh") as tx:
        found = await find_broken(tx, books.accounts)
    assert found.differences == []
    return [(each.order_id, each.order_status) for each in found.forgotten]


@pytest.mark.parametrize("case", UNANSWERED)
async def test_an_unanswered_order_without_row_and_look_up_is_forgotten(
    books: Books, database: Database, case: str
) -> None:
    make, status = UNANSWERED[case]
    order = await make(books)
    other = await make(books)
    for each in (order, other):
        await books.owner.execute(LOSE_ANSWERS, each.order_id)
    assert await forgotten(books, database) == []
    await books.owner.execute(LOSE_ROWS, order.order_id)
    assert await forgotten(books, database) == [(order.order_id, status)]
    await books.owner.execute(LOOK_UP, order.order_id)
    assert await forgotten(books, database) == []


async def needs_no_row(books: Books, database: Database, make: object) -> None:
    assert callable(make)
    order = await make(books)
    await books.owner.execute(LOSE_ROWS, order.order_id)
    assert await forgotten(books, database) == []


@pytest.mark.parametrize("make", [work, fill_all])
async def test_an_answered_order_needs_no_row(
    books: Books, database: Database, make: object
) -> None:
    await needs_no_row(books, database, make)


@pytest.mark.parametrize("make", [replace, cancel])
async def test_a_command_that_the_broker_took_is_waited_for(
    books: Books, database: Database, make: object
) -> None:
    await needs_no_row(books, database, make)


async def test_a_forgotten_order_is_looked_up_with_one_alert(
    books: Books, database: Database
) -> None:
    log = StringIO()
    metrics = Metrics()
    check = InvariantCheck(database.worker, SystemClock(), metrics, make_log("error", log))

    async def run() -> float:
        while await check.check() != CHECK_SECONDS:
            pass
        return float(metrics.execution_alerts.labels("order_forgotten")._value.get())

    order = await lose_answer(books)
    assert await run() == 0
    assert metrics.invariants_checked_at._value.get() > 0
    await books.owner.execute(LOSE_ROWS, order.order_id)
    assert await run() == 1
    assert f'"order": "{order.order_id}"' in log.getvalue()
    query = "SELECT lookup_due_at <= clock_timestamp() FROM orders WHERE order_id = $1"
    assert await books.owner.fetchval(query, order.order_id)
    assert await run() == 1
    await books.owner.execute(FORGET, order.order_id)
    assert await run() == 2
