"""Finished rows of the outbox go by themselves after a week."""

from tests.outbox.rows import Table, new_row, put_rows
from tests.waiting import eventually_async
from trading_intents.loops import start_loop, stop_tasks
from trading_intents.outbox import upkeep
from trading_intents.outbox.model import Queue
from trading_intents.storage.database import Pool
from trading_intents.telemetry import Metrics, make_log

LIMIT_SECONDS = 20


async def test_finished_rows_go_by_themselves(pool: Pool, table: Table) -> None:
    queue = Queue.USERS
    await put_rows(pool, *(new_row(queue=queue) for _ in range(3)))
    ids = [row["id"] for row in await table.rows()]
    for row_id, age in zip(ids, ("8 d", "6 d"), strict=False):
        finished = f"finished_at = clock_timestamp() - interval '{age}'"
        await table.set(
            row_id, f"status = 'completed', claimed_at = NULL, claim_token = NULL, {finished}"
        )
    keeping = start_loop(upkeep.keep_outbox(queue, pool, Metrics(), make_log("error")))

    async def has_pruned() -> bool:
        return [row["id"] for row in await table.rows()] == ids[1:]

    await eventually_async(has_pruned, LIMIT_SECONDS)
    await stop_tasks(keeping)
