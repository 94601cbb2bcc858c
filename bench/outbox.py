"""Measures the outbox against its bars: rows a second through one worker, and the claim with 1,000,000 finished rows.

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
from trading_intents.outbox.model import ClaimedRow, Done, EventType, NewRow, Outcome, Queue
from trading_intents.outbox.queue import claim, complete, put
from trading_intents.outbox.worker import Shop, Worker
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, Pool, open_database
from trading_intents.storage.embedded import running
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import Metrics, make_log

ROWS = 20_000
ROUNDS = 3
FINISHED_ROWS = 1_000_000
CLAIMS = 300
CLAIM_ROWS = 10
ATTEMPT_LIMIT = 10
POOL_SIZE = 10
PUT_ROWS = 1_000
LOG = make_log("warning")


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ti-bench-") as folder:
        async with open_server(Path(folder)) as (database, owner):
            rates = [await rows_a_second(database) for _ in range(ROUNDS)]
            await owner.execute("TRUNCATE outbox")
            empty = [await claim_p99_seconds(database) for _ in range(ROUNDS)]
            await finish_rows(owner)
            full = [await claim_p99_seconds(database) for _ in range(ROUNDS)]
    return report(max(rates), min(empty), min(full))


@contextlib.asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[tuple[Database, asyncpg.Connection]]:
    async with running(folder, "", LOG, lambda: None) as server:
        await migrate(server.owner_url, server.url, LOG)
        owner = await connect(server.owner_url)
        async with open_database(server.url, POOL_SIZE, LOG, Metrics()) as database:
            yield database, owner
        await owner.close()


async def connect(url: Secret) -> asyncpg.Connection:
    return await asyncpg.connect(url.reveal())


async def rows_a_second(database: Database) -> float:
    """From the first claim to the last completion; every row has its own order key."""
    await put_rows(database.worker, ROWS)
    handled = 0
    over = asyncio.Event()

    async def handle(row: ClaimedRow) -> Outcome:
        nonlocal handled
        handled += 1
        if handled == ROWS:
            over.set()
        return Done()

    shop = Shop(database.worker, ATTEMPT_LIMIT, SystemClock(), Metrics(), LOG)
    worker = Worker(Queue.ACCOUNTS, {EventType.ACCOUNT_CREATED: handle}, shop)
    start = time.perf_counter()
    worker.start()
    await over.wait()
    await worker.stop(10)  # returns when the last ones are completed
    return ROWS / (time.perf_counter() - start)


async def claim_p99_seconds(database: Database) -> float:
    times = []
    for _ in range(CLAIMS):
        await put_rows(database.worker, CLAIM_ROWS)
        async with database.worker.transaction(fresh_plans=True) as tx:
            start = time.perf_counter()
            claimed = await claim(tx, Queue.ACCOUNTS, [EventType.ACCOUNT_CREATED], CLAIM_ROWS, ATTEMPT_LIMIT)
            times.append(time.perf_counter() - start)
        assert len(claimed) == CLAIM_ROWS
        async with database.worker.transaction(fresh_plans=True) as tx:
            await complete(tx, claimed)
    return statistics.quantiles(times, n=100)[98]


async def put_rows(pool: Pool, count: int) -> None:
    for start in range(0, count, PUT_ROWS):
        rows = [
            NewRow(
                Queue.ACCOUNTS, EventType.ACCOUNT_CREATED, OrganizationId(uuid.uuid4()), uuid.uuid4(), {"version": 1}
            )
            for _ in range(min(PUT_ROWS, count - start))
        ]
        async with pool.transaction() as tx:
            await put(tx, rows)


async def finish_rows(owner: asyncpg.Connection) -> None:
    await owner.execute(
        """
        INSERT INTO outbox (queue, event_type, organization_id, order_key, payload, status, attempts, finished_at)
        SELECT 'accounts', 'account.created', gen_random_uuid(), gen_random_uuid(), '{}', 'completed', 1, now()
        FROM generate_series(1, $1)
        """,
        FINISHED_ROWS,
    )


def report(rate: float, empty_seconds: float, full_seconds: float) -> int:
    ratio = full_seconds / empty_seconds
    table = Table("work", "measured", "bar", "goal", "", title="outbox")
    lines = (
        ("claim to complete, no-op handler, one worker", f"{rate:,.0f} rows/s", "≥ 2,000", "5,000", rate >= 2_000),
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
