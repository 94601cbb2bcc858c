"""Rows flow through worker processes that are killed, stopped and ended: each is completed once,
with one effect."""

import asyncio
import contextlib
import random
import signal
import subprocess
from collections.abc import AsyncIterator

import pytest

from tests.fork_server import Fork
from tests.outbox.rows import Table, new_row, put_rows
from tests.waiting import eventually_async
from trading_intents.outbox.model import OutboxEventType, Status
from trading_intents.outbox.operators import read_health
from trading_intents.secret import Secret
from trading_intents.storage.database import Database

pytestmark = pytest.mark.slow

PROGRAM = "tests.outbox.worker_process"
PROCESSES = 3
FLOW_SECONDS = 60
SAMPLE_SECONDS = 0.1


class Process:
    """A worker's process; the test ends it, one way or another."""

    def __init__(self, url: Secret) -> None:
        self._process = Fork(PROGRAM, url.reveal(), stdout=subprocess.PIPE)

    async def ready(self) -> None:
        assert self._process.stdout is not None
        assert await asyncio.to_thread(self._process.stdout.readline) == "working\n"

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self, number: signal.Signals) -> int:
        self.send(number)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return await asyncio.to_thread(self._process.wait, FLOW_SECONDS)


@contextlib.asynccontextmanager
async def faulty_workers(
    url: Secret, chance: random.Random, most_faults: int, pause_seconds: float
) -> AsyncIterator[list[str]]:
    """Processes that are killed, or paused, so many times, each replaced by a new one; gives what
    was done."""
    faults: list[str] = []
    over = asyncio.Event()

    async def live() -> None:
        while not over.is_set():
            process = Process(url)
            await process.ready()
            if len(faults) >= most_faults:
                await over.wait()
                assert await process.end(signal.SIGTERM) == 0
                return
            await until_over(chance.uniform(0.1, 1.0))
            if pause_seconds and chance.random() < 0.5:
                process.send(signal.SIGSTOP)
                await until_over(pause_seconds)
                process.send(signal.SIGCONT)
                faults.append("paused")
                await until_over(1.0)
            await process.end(signal.SIGKILL)
            faults.append("killed")

    async def until_over(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds)

    lives = [asyncio.create_task(live()) for _ in range(PROCESSES)]
    try:
        yield faults
    finally:
        over.set()
        await asyncio.gather(*lives)


class Watch:
    """Looks at the table again and again: no row is lost, none leaves a final state, the report is
    true."""

    def __init__(self, database: Database, table: Table, rows: int) -> None:
        self._database = database
        self._table = table
        self._rows = rows
        self._final: dict[int, str] = {}

    async def over(self) -> bool:
        entries = await read_health(self._database.service)
        assert sum(entry.count for entry in entries) == self._rows
        assert {entry.status for entry in entries} <= set(Status)
        final = {row["id"]: row["status"] for row in await self._table.rows() if row["finished_at"]}
        assert self._final.items() <= final.items()
        self._final = final
        await asyncio.sleep(SAMPLE_SECONDS)
        return len(final) == self._rows


async def run_flow(
    database: Database,
    table: Table,
    url: Secret,
    rows: int,
    faults: int,
    pause_seconds: float,
    seed: int,
) -> list[str]:
    """Until all rows are through; then everything is as it must be."""
    await table.connection.execute(
        "CREATE TABLE effects (row_id bigint); GRANT INSERT ON effects TO ti_worker"
    )
    chance = random.Random(seed)
    keys = [new_row().order_key for _ in range(rows // 4)]
    new = [
        new_row(chance.choice(list(OutboxEventType)), order_key=chance.choice(keys))
        for _ in range(rows)
    ]
    await put_rows(database.worker, *new)
    watch = Watch(database, table, rows)
    async with faulty_workers(url, chance, faults, pause_seconds) as done:
        await eventually_async(watch.over, FLOW_SECONDS)
    assert set(await table.statuses()) == {"completed"}
    written = await table.connection.fetch(
        "SELECT row_id, count(*) FROM effects GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in written] == [(row["id"], 1) for row in await table.rows()]
    return done


# A row that a killed worker had claimed is another's after CLAIM_SECONDS, which are five.
@pytest.mark.parametrize(
    ("rows", "kills"), [(600, 3), pytest.param(2_000, 5, marks=pytest.mark.chaos)]
)
async def test_killed_workers_lose_nothing_and_double_nothing(
    database: Database, table: Table, database_url: Secret, rows: int, kills: int
) -> None:
    faults = await run_flow(
        database, table=table, url=database_url, rows=rows, faults=kills, pause_seconds=0, seed=4
    )
    assert len(faults) >= kills


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
async def test_paused_workers_wake_up_to_nothing(
    database: Database, table: Table, database_url: Secret, seed: int
) -> None:
    faults = await run_flow(
        database, table=table, url=database_url, rows=2_000, faults=15, pause_seconds=8.0, seed=seed
    )
    assert "paused" in faults


async def test_a_worker_that_gets_a_signal_leaves_no_claim(
    database: Database, table: Table, database_url: Secret
) -> None:
    await table.connection.execute(
        "CREATE TABLE effects (row_id bigint); GRANT INSERT ON effects TO ti_worker"
    )
    await put_rows(database.worker, *(new_row() for _ in range(2_000)))
    process = Process(database_url)
    await process.ready()

    async def under_way() -> bool:
        return await table.count("completed") > 100

    await eventually_async(under_way, FLOW_SECONDS)
    assert await process.end(signal.SIGTERM) == 0
    rows = await table.rows()
    assert {row["status"] for row in rows} == {"pending", "completed"}
    assert {row["attempts"] for row in rows if row["status"] == "pending"} == {0}
