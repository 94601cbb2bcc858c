"""The writes of a batch of commands: statements, row versions and WAL, counted inside its own
transaction."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from tests.brokers.paper.venue import PaperSession, Venue, open_venue
from tests.conftest import Databases
from trading_intents.brokers.port import BrokerEvent, EventKind, Outcome
from trading_intents.storage.grouped import PipelinedTransaction
from trading_intents.storage.pipeline import Reply, Statement

TOGETHER = 32
ROUNDS = 3
ROWS = Statement(
    "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables"
    " WHERE relname LIKE 'paper%'"
)
WAL = Statement("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")


@dataclass
class WriteCost:
    """The writes of the transactions since the last `take`."""

    rows: Counter[str] = field(default_factory=Counter)
    wal: int = 0
    statements: int = 0
    batches: int = 0

    def take(self) -> "WriteCost":
        taken = WriteCost(Counter(self.rows), self.wal, self.statements, self.batches)
        self.rows.clear()
        self.wal = self.statements = self.batches = 0
        return taken

    def add(self, replies: Sequence[Reply], sign: int) -> None:
        """The last two replies are of ROWS and WAL; the server counts on from transaction to
        transaction."""
        for table, count in replies[-2].texts():
            self.rows[table] += sign * int(count)
        self.wal += sign * int(replies[-1].texts()[0][0])


@pytest.fixture
async def cost(monkeypatch: pytest.MonkeyPatch) -> WriteCost:
    cost = WriteCost()
    run = PipelinedTransaction.run
    commit = PipelinedTransaction.commit

    async def counted_run(tx: PipelinedTransaction, statements: Sequence[Statement]) -> list[Reply]:
        cost.statements += len(statements)
        if tx.has_begun:
            return await run(tx, statements)
        replies = await run(tx, [ROWS, WAL, *statements])
        cost.add(replies[:2], -1)
        return replies[2:]

    async def counted_commit(
        tx: PipelinedTransaction, statements: Sequence[Statement] = ()
    ) -> list[Reply]:
        cost.statements += len(statements)
        if not tx.has_begun:  # the account's row
            return await commit(tx, statements)
        replies = await commit(tx, [*statements, ROWS, WAL])
        cost.add(replies, 1)
        cost.batches += 1
        return replies[:-2]

    monkeypatch.setattr(PipelinedTransaction, "run", counted_run)
    monkeypatch.setattr(PipelinedTransaction, "commit", counted_commit)
    return cost


@pytest.fixture
async def alone(databases: Databases) -> AsyncIterator[Venue]:
    """A venue in a database that nobody else writes to."""
    with databases() as urls:
        async with open_venue(urls.login, urls.owner) as venue:
            await venue.post("99x1000000 101x1000000")
            yield venue


def written(cost: WriteCost) -> dict[str, int]:
    return {table.removeprefix("paper_"): rows for table, rows in cost.rows.items() if rows}


async def submit_all(session: PaperSession, name: str, text: str) -> None:
    asked = [session.submit(f"{name}{n}", text) for n in range(TOGETHER)]
    assert {result.outcome for result in await asyncio.gather(*asked)} == {Outcome.ACKED}


async def test_a_market_order_is_one_row(alone: Venue, cost: WriteCost) -> None:
    session = await alone.open_session(uuid4())
    least = math.inf
    for number in range(ROUNDS):
        await session.broker._market.look()
        cost.take()
        await submit_all(session, f"c{number}", "buy 1 market")
        once = cost.take()
        assert written(once) == {"journal": TOGETHER, "holdings": 1, "accounts": 1}
        assert (once.batches, once.statements) == (1, 9), "six read, three write"
        least = min(least, once.wal)
    assert least / TOGETHER < 1_600, "bytes of WAL an order"


async def test_a_resting_order_is_a_row_for_each_thing_that_happens_to_it(
    alone: Venue, cost: WriteCost
) -> None:
    session = await alone.open_session(uuid4())
    cost.take()
    each = {"journal": TOGETHER, "working": TOGETHER, "holdings": 1, "accounts": 1}
    await submit_all(session, "c", "buy 1 limit 90")
    assert written(cost.take()) == each
    await submit_all(session, "d", "buy 1 limit 80")
    cost.take()
    asked = [session.cancel(f"x{n}", f"d{n}") for n in range(TOGETHER)]
    assert {result.outcome for result in await asyncio.gather(*asked)} == {Outcome.ACKED}
    cancelled = cost.take()
    assert written(cancelled) == each
    assert cancelled.statements == 10
    await alone.post("89x1000000 90x1000000")
    fills = 0
    while fills < TOGETHER:
        event = await session.event()
        assert isinstance(event, BrokerEvent)
        fills += event.kind is EventKind.FILL
    filled = cost.take()
    assert written(filled) == each
    assert filled.statements == 10
    assert await alone.value("SELECT count(*) FROM paper_working") == 0


async def test_an_id_that_was_used_costs_a_row(alone: Venue, cost: WriteCost) -> None:
    session = await alone.open_session(uuid4())
    await session.submit("one", "buy 1 market")
    cost.take()
    await session.submit("one", "buy 1 market")
    assert written(cost.take()) == {"journal": 1, "accounts": 1}
