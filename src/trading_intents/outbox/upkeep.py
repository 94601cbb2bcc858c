"""Background work on the outbox: removes old rows and measures the backlog."""

import asyncio

from trading_intents.loops import repeat
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import Queue, Status
from trading_intents.outbox.outcomes import log_failures
from trading_intents.storage.database import Pool
from trading_intents.telemetry import Log, Metrics

PRUNE_SECONDS = 60.0
MEASURE_SECONDS = 10.0
KEEP_SECONDS = 7 * 24 * 3600


async def keep_outbox(queue: Queue, pool: Pool, metrics: Metrics, log: Log) -> None:
    """Runs until cancelled."""

    async def prune() -> None:
        removed = outbox.PRUNE_ROWS
        while removed == outbox.PRUNE_ROWS:
            async with pool.transaction(plans="fresh") as tx:
                removed = await outbox.prune(tx, queue, KEEP_SECONDS)

    async def measure() -> None:
        async with pool.transaction(read_only=True, plans="fresh") as tx:
            backlog = await outbox.measure(tx, queue)
        metrics.outbox_backlog.labels(queue, Status.PENDING).set(backlog.pending)
        metrics.outbox_backlog.labels(queue, Status.PROCESSING).set(backlog.processing)
        metrics.outbox_backlog.labels(queue, Status.FAILED).set(backlog.failed)
        metrics.outbox_oldest_pending.labels(queue).set(backlog.oldest_pending_seconds)
        metrics.outbox_oldest_claim.labels(queue).set(backlog.oldest_claim_seconds)

    on_error = log_failures(log, "outbox upkeep failed", queue=queue)
    async with asyncio.TaskGroup() as group:
        group.create_task(repeat(prune, PRUNE_SECONDS, on_error))
        group.create_task(repeat(measure, MEASURE_SECONDS, on_error))
