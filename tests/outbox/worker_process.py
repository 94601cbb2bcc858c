"""Run as a program: an accounts worker in a process of its own, whose handlers each write one
effect, until SIGTERM.

Usage: python -m tests.outbox.worker_process DATABASE_URL
"""

import asyncio
import random
import signal
import sys

from trading_intents.clock import SystemClock
from trading_intents.outbox.model import ClaimedRow, Done, OutboxEventType, Queue, RowHandler
from trading_intents.outbox.worker import Worker, WorkerContext
from trading_intents.secret import Secret
from trading_intents.storage.database import Tx, open_database
from trading_intents.telemetry import Metrics, make_log

ATTEMPT_LIMIT = 100  # each kill costs the rows under way an attempt, and none may fail for it
SLOTS = 20
MAX_WORK_SECONDS = 0.05
DRAIN_SECONDS = 10


async def handle(row: ClaimedRow) -> Done:
    async def write(tx: Tx) -> None:
        await tx.execute("INSERT INTO effects (row_id) VALUES ($1)", row.id)

    await asyncio.sleep(random.uniform(0, MAX_WORK_SECONDS))
    return Done(write)


async def work(url: Secret) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    handlers: dict[str, RowHandler] = dict.fromkeys(map(str, OutboxEventType), handle)
    log = make_log("error")
    async with open_database(url, 5, log, Metrics()) as database:
        worker = Worker(
            Queue.ACCOUNTS,
            handlers,
            WorkerContext(database.worker, ATTEMPT_LIMIT, SystemClock(), Metrics(), log),
            SLOTS,
        )
        worker.start()
        print("working", flush=True)
        await stop.wait()
        await worker.stop(DRAIN_SECONDS)


if __name__ == "__main__":
    asyncio.run(work(Secret(sys.argv[1])))
