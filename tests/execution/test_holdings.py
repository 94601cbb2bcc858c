"""Accepts and recordings write one row of a symbol: neither waits for the other's work, nothing of
either is lost, and the API cannot write a position."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import executing, open_in_process
from tests.execution.recorded_orders import Books, Sent, fill, open_books, reported
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.brokers.port import EventKind as E
from trading_intents.errors import Unavailable
from trading_intents.execution.checking.invariants import find_broken
from trading_intents.ids import OrganizationId
from trading_intents.intents.model import Create, Spec
from trading_intents.orders.ledger.matching import AccountRecording
from trading_intents.orders.ledger.recording import (
    RecordedAccount,
    publish_statements,
    record,
    write_statements,
)
from trading_intents.storage.database import Database, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

SYMBOLS = ("AAPL", "MSFT", "GOOG")
ORDERS = 12  # of an account and symbol
LIMIT_SECONDS = 10.0
MEETINGS = 5


class OneAtATime:
    """A connection for several tasks."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: object) -> Any:
            async with self._lock:
                return await getattr(self._connection, name)(*arguments)

        return call


async def derive(books: Books, tx: Tx, sent: Sent, exec_id: str) -> RecordedAccount:
    """The first part of a recording, without what it writes."""
    events = [fill(sent, exec_id, "10")]
    recording = AccountRecording(books.trading_client(), events)
    (recorded,), _ = await record(PoolTransaction(tx), [recording])
    return recorded


async def write(tx: Tx, recorded: RecordedAccount) -> None:
    statements = [*write_statements([recorded]), *publish_statements([recorded])]
    await PoolTransaction(tx).run(statements)


async def test_an_accept_does_not_wait_for_a_recording_of_its_symbol(
    books: Books, database: Database
) -> None:
    first, sent = [await books.create("10") for _ in range(2)]
    await books.record(fill(first, "e0", "10"))
    async with database.worker.transaction(plans="by_key") as tx:
        recorded = await derive(books, tx, sent, "e1")
        await PoolTransaction(tx).run(write_statements([recorded]))
        async with asyncio.timeout(LIMIT_SECONDS):
            await books.create("5")
        await PoolTransaction(tx).run(publish_statements([recorded]))
    held = await books.position()
    assert (held["quantity"], held["open_orders"], held["open_buy"]) == (20, 1, 5)


async def test_accepts_and_recordings_lock_symbols_in_one_order(urls: Urls, books: Books) -> None:
    """The first of them is held: none of the others is held by those that wait for it."""
    orders = [await books.create("10", symbol=symbol) for symbol in ("MSFT", "AAPL", "GOOG")]
    fills = [fill(each, f"e{each.seq}", "10") for each in orders]
    spec = Spec(
        kind=OrderKind.MARKET, quantity="1", limit_price=None, stop_price=None, trail_amount=None
    )
    holder = await asyncpg.connect(urls.owner.reveal())
    locking = "SELECT FROM holdings WHERE symbol {} FOR UPDATE NOWAIT"

    async def accept_all() -> None:
        commands = [
            Create(Symbol(symbol), OrderSide.BUY, RouteStrategy.SMART, spec)
            for symbol in ("MSFT", "AAPL", "GOOG")
        ]
        await asyncio.gather(*(books.commit(books.accounts[0], each, None) for each in commands))

    for work in (accept_all, partial(books.record, *fills)):
        async with holder.transaction():
            await holder.execute(locking.format("= 'AAPL'"))
            waiting = asyncio.create_task(work())
            await eventually_async(partial(is_blocked, holder), LIMIT_SECONDS)
            await holder.execute(locking.format("<> 'AAPL'"))
        await waiting
    await holder.close()


async def is_blocked(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(COUNT_BLOCKED))


@pytest.mark.parametrize("is_booked", [False, True])
async def test_a_position_that_was_written_since_it_was_read_is_refused(
    books: Books, database: Database, is_booked: bool
) -> None:
    first, second, third = [await books.create("10") for _ in range(3)]
    if is_booked:
        await books.record(fill(first, "e1", "10"))

    async def record_around() -> None:
        async with database.worker.transaction(plans="by_key") as tx:
            recorded = await derive(books, tx, second, "e2")
            await books.record(fill(third, "e3", "10"))
            await write(tx, recorded)

    with pytest.raises(Unavailable):
        await record_around()
    assert await books.trades(second) == {}
    await books.record(fill(second, "e2", "10"))
    held = await books.position()
    assert held["quantity"] == 20 + 10 * is_booked
    assert held["revision"] == 2 + is_booked


async def test_a_recorder_records_again_what_met_another_booking(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = list[str]()
    async with open_in_process(urls) as it, executing(it):
        other = await asyncpg.connect(urls.owner.reveal())

        async def record_late(*arguments: Any, **more: Any) -> Any:
            recorded, replies = await record(*arguments, **more)
            if len(met) < MEETINGS and any(each.positions for each in recorded):
                met.append(await other.execute("UPDATE holdings SET revision = revision + 1"))
            return recorded, replies

        monkeypatch.setattr("trading_intents.execution.recorder.record", record_late)
        intent = await it.create("10")
        await it.until_status(intent, "NEW")
        it.fill(await it.coid(intent), "10")
        await it.until_status(intent, "FILLED")
        held = await other.fetchrow("SELECT quantity, revision, open_orders FROM holdings")
        assert (met, tuple(held)) == (["UPDATE 1"] * MEETINGS, (10, MEETINGS + 1, 0))
        await other.close()


async def test_accepts_and_recordings_at_once_deadlock_never_and_lose_nothing(
    urls: Urls, database: Database
) -> None:
    """Each names all symbols of two accounts, in an order of its own."""
    chance = random.Random(7)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

    async def trade(books: Books, account: int) -> None:
        for _ in range(ORDERS):
            symbols = chance.sample(SYMBOLS, len(SYMBOLS))
            orders = await asyncio.gather(
                *(books.create("10", symbol=each, account=account) for each in symbols)
            )
            chance.shuffle(orders)
            fills = [fill(each, str(each.order_id), "4") for each in orders[1:]]
            cancelled = reported(E.CANCELLED, orders[0], f"c{orders[0].order_id}")
            await asyncio.gather(
                books.record(*fills[:1], cancelled, account=account),
                books.record(*fills[1:], account=account),
            )

    async with open_books(urls, database, 2) as books:
        books.owner = cast(asyncpg.Connection, OneAtATime(books.owner))
        before = await books.owner.fetchval(deadlocks)
        await asyncio.gather(*(trade(books, account) for account in (0, 1) * 3))
        async with database.worker.transaction(read_only=True) as tx:
            assert (await find_broken(tx, books.accounts)).differences == []
        rows = await books.owner.fetch(
            """
            SELECT h.quantity = t.quantity AS is_true FROM holdings h JOIN (
                SELECT account_id, symbol, sum(quantity) AS quantity FROM trades GROUP BY 1, 2
            ) AS t USING (account_id, symbol)
            """
        )
        assert [row["is_true"] for row in rows] == [True] * 2 * len(SYMBOLS)
        assert await books.owner.fetchval(deadlocks) == before


async def test_the_api_writes_no_position(books: Books, database: Database) -> None:
    await books.create("10")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([OrganizationId(books.organization)]) as tx:
            await tx.execute("UPDATE holdings SET quantity = 1")
