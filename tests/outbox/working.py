"""Workers within the test's own process, and what a test waits for while they work."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime

from tests.outbox.rows import LIMIT, Table
from tests.waiting import eventually_async
from trading_intents.clock import SystemClock
from trading_intents.outbox.model import ClaimedRow, Done, OutboxEventType, Queue, RowHandler
from trading_intents.outbox.worker import Worker, WorkerContext
from trading_intents.storage.database import Pool, Tx
from trading_intents.telemetry import Metrics, make_log

LOG = make_log("critical")
WAIT_SECONDS = 30


class SteadyClock(SystemClock):
    """The wall clock may say anything: nobody asks."""

    def now(self) -> datetime:
        raise AssertionError("the application's clock decides nothing")


@contextlib.asynccontextmanager
async def working(
    pool: Pool,
    handlers: RowHandler | Mapping[str, RowHandler],
    slots: int = 20,
    metrics: Metrics | None = None,
    clock: SystemClock | None = None,
) -> AsyncIterator[Worker]:
    by_type = (
        handlers
        if isinstance(handlers, Mapping)
        else dict.fromkeys(map(str, OutboxEventType), handlers)
    )
    context = WorkerContext(pool, LIMIT, clock or SteadyClock(), metrics or Metrics(), LOG)
    worker = Worker(Queue.ACCOUNTS, by_type, context, slots)
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop(WAIT_SECONDS)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    await eventually_async(condition, WAIT_SECONDS)


async def until_finished(table: Table) -> None:
    async def finished() -> bool:
        return set(await table.statuses()) <= {"completed", "failed"}

    await until(finished)


async def done(row: ClaimedRow) -> Done:
    return Done()


def writing(row: ClaimedRow) -> Done:
    async def write(tx: Tx) -> None:
        await tx.execute("INSERT INTO effects VALUES ($1)", row.id)

    return Done(write)
