"""Batches: what waits is worked on together, a bad item harms no other, and nobody who leaves holds
up who comes."""

import asyncio

import psycopg
import pytest

from tests.conftest import Urls
from trading_intents.errors import Unavailable
from trading_intents.storage.database import WORKER_ROLE
from trading_intents.storage.grouped import GroupCommit, GroupTransactions
from trading_intents.storage.pipeline import Pipeline, Statement


class Work:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()

    async def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        await self.gate.wait()
        if -1 in items:
            raise ValueError("bad")
        return [item * 10 for item in items]


async def test_what_comes_while_a_batch_is_worked_on_is_the_next_one() -> None:
    work = Work()
    group = GroupCommit(work)
    first = asyncio.create_task(group.put(1))
    await asyncio.sleep(0)
    others = [asyncio.create_task(group.put(item)) for item in (2, 3)]
    await asyncio.sleep(0)
    work.gate.set()
    assert await asyncio.gather(first, *others) == [10, 20, 30]
    assert work.batches == [[1], [2, 3]]


async def test_a_bad_item_harms_no_other() -> None:
    work = Work()
    work.gate.set()
    group = GroupCommit(work)
    results = await asyncio.gather(
        *(group.put(item) for item in (1, -1, 2)), return_exceptions=True
    )
    assert [results[0], results[2]] == [10, 20]
    assert isinstance(results[1], ValueError)


async def test_an_item_that_fails_alone_is_tried_once_more() -> None:
    work = Work()
    work.gate.set()
    with pytest.raises(ValueError, match="bad"):
        await GroupCommit(work).put(-1)
    assert work.batches == [[-1], [-1]]


@pytest.mark.parametrize("item", [1, -1])
async def test_who_leaves_while_its_batch_runs_holds_up_nobody(item: int) -> None:
    work = Work()
    group = GroupCommit(work)
    leaver = asyncio.create_task(group.put(item))
    while not work.batches:
        await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    work.gate.set()
    assert await asyncio.wait_for(group.put(2), 5) == 20


READ = Statement("SELECT count(*) FROM notes")
WRITE = Statement("INSERT INTO notes VALUES (1)")


async def test_nothing_is_written_once_the_connection_with_the_locks_is_lost(urls: Urls) -> None:
    pipeline = Pipeline(urls.login, WORKER_ROLE)
    transactions = GroupTransactions(pipeline)

    async def write(is_lost: bool) -> None:
        async with transactions.transaction() as tx:
            await tx.run([READ])
            if is_lost:
                pipeline.close()
                assert await (await pipeline.connect()).run([Statement("SELECT 1")]), (
                    "another one is open"
                )
            await tx.commit([WRITE])

    with psycopg.connect(urls.owner.reveal(), autocommit=True) as owner:
        owner.execute("CREATE TABLE notes (n integer); GRANT SELECT, INSERT ON notes TO ti_worker")
        with pytest.raises(Unavailable):
            await write(is_lost=True)
        assert owner.execute("SELECT count(*) FROM notes").fetchone() == (0,)
        await write(is_lost=False)
        assert owner.execute("SELECT count(*) FROM notes").fetchone() == (1,)
    transactions.close()
