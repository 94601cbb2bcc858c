"""The worker as a whole: slots, wake-ups, stopping, other workers, and a database that goes
away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.outbox.rows import LIMIT, Table, new_row, put_rows
from tests.outbox.working import LOG, WAIT_SECONDS, done, until, until_finished, working, writing
from tests.proxy import proxied
from tests.waiting import COUNT_BLOCKED
from trading_intents.outbox import worker as worker_module
from trading_intents.outbox.model import ClaimedRow, Done, OutboxEventType
from trading_intents.outbox.worker import Worker
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, Pool, open_database
from trading_intents.telemetry import Metrics

LONG_SECONDS = 1000.0


async def test_no_more_rows_are_claimed_than_there_are_slots(pool: Pool, table: Table) -> None:
    running = 0
    most = 0
    claimed = asyncio.Event()
    gate = asyncio.Event()

    async def handle(row: ClaimedRow) -> Done:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            claimed.set()
        await gate.wait()
        running -= 1
        return Done()

    await put_rows(pool, *(new_row() for _ in range(30)))
    async with working(pool, handle, slots=3):
        await claimed.wait()
        assert await table.count("processing") == 3
        gate.set()
        await until_finished(table)
    assert most == 3


async def test_rows_without_a_handler_here_are_left_to_others(pool: Pool, table: Table) -> None:
    await put_rows(
        pool, new_row(OutboxEventType.CREDENTIAL_CREATED), new_row(OutboxEventType.ACCOUNT_CREATED)
    )
    async with working(pool, {OutboxEventType.ACCOUNT_CREATED: done}), working(pool, {}):

        async def one_completed() -> bool:
            return await table.count("completed") == 1

        await until(one_completed)
    assert await table.statuses() == ["pending", "completed"]


async def test_two_workers_never_run_one_row(
    database: Database, database_url: Secret, table: Table
) -> None:
    ran: list[int] = []

    async def handle(row: ClaimedRow) -> Done:
        ran.append(row.id)
        await asyncio.sleep(0)
        return writing(row) if row.id % 2 else Done()

    await table.connection.execute(
        "CREATE TABLE effects (row_id bigint UNIQUE); GRANT INSERT ON effects TO ti_worker"
    )
    await put_rows(database.worker, *(new_row() for _ in range(600)))
    async with (
        open_database(database_url, 5, LOG, Metrics()) as other,
        working(database.worker, handle, slots=7),
        working(other.worker, handle, slots=13),
    ):
        await until_finished(table)
    assert sorted(ran) == [row["id"] for row in await table.rows()]
    assert {row["attempts"] for row in await table.rows()} == {1}


async def test_a_wake_up_is_enough_and_so_is_the_poll(
    pool: Pool, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def completed(count: int) -> None:
        async def reached() -> bool:
            return await table.count("completed") == count

        await until(reached)

    async with working(pool, done):
        await put_rows(pool, new_row())
        await completed(1)  # by the poll
    monkeypatch.setattr(worker_module, "POLL_SECONDS", LONG_SECONDS)
    async with working(pool, done) as worker:
        await completed(1)
        await put_rows(pool, new_row())
        worker.wake()
        await completed(2)


@contextlib.asynccontextmanager
async def claiming(worker: Worker, table: Table) -> AsyncIterator[None]:
    """While the block runs, the worker's claim waits for a lock."""
    async with table.connection.transaction():
        await table.connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        worker.wake()

        async def waits() -> bool:
            return bool(await table.connection.fetchval(COUNT_BLOCKED))

        await until(waits)
        yield


async def test_stopping_waits_for_what_runs_and_gives_back_what_was_not_started(
    pool: Pool, table: Table
) -> None:
    entered = asyncio.Event()
    go_on = asyncio.Event()
    started: list[int] = []

    async def handle(row: ClaimedRow) -> Done:
        started.append(row.id)
        entered.set()
        await go_on.wait()
        return Done()

    await put_rows(pool, new_row())
    async with working(pool, handle) as worker:
        await entered.wait()
        await put_rows(pool, new_row())
        async with claiming(worker, table):
            stopping = asyncio.create_task(worker.stop(WAIT_SECONDS))
            await asyncio.sleep(0)
        go_on.set()
        await stopping
    first, second = await table.rows()
    assert started == [first["id"]]
    assert (first["status"], second["status"], second["attempts"]) == ("completed", "pending", 0)


async def test_a_worker_that_was_stopped_while_it_claimed_may_be_stopped_again(
    pool: Pool, table: Table
) -> None:
    async with working(pool, done) as worker:
        async with claiming(worker, table):
            await worker.stop(0)
        await worker.stop(WAIT_SECONDS)


async def test_stopping_ends_at_its_limit_and_leaves_the_rest_to_others(
    pool: Pool, table: Table
) -> None:
    entered = asyncio.Event()

    async def handle(row: ClaimedRow) -> Done:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    await put_rows(pool, new_row())
    async with working(pool, handle) as worker:
        await entered.wait()
        await worker.stop(0.1)
    assert await table.statuses() == ["processing"]


async def test_a_database_that_goes_away_does_not_end_the_worker(
    database_url: Secret, table: Table
) -> None:
    handled: list[int] = []

    async def handle(row: ClaimedRow) -> Done:
        handled.append(row.id)
        return Done()

    with proxied(database_url) as (proxy, url):
        async with (
            open_database(url, 3, LOG, Metrics()) as database,
            working(database.worker, handle),
        ):
            for fault in (proxy.refuse, proxy.reset, proxy.stall):
                await asyncio.to_thread(fault)
                await put_rows_as_owner(table)
                await asyncio.to_thread(proxy.work)
                await until_finished(table)
    assert len(set(handled)) == 3


async def put_rows_as_owner(table: Table) -> None:
    await table.connection.execute(
        """
        INSERT INTO outbox (queue, event_type, organization_id, order_key, payload)
        VALUES ('accounts', 'account.created', gen_random_uuid(), gen_random_uuid(), '{}')
        """
    )


async def test_the_sweep_and_the_gauges_run_beside_the_claims(pool: Pool, table: Table) -> None:
    await put_rows(pool, *(new_row(OutboxEventType.CREDENTIAL_CREATED) for _ in range(3)))
    used_up = (await table.rows())[0]["id"]
    await table.set(used_up, f"attempts = {LIMIT}")
    await table.connection.execute("UPDATE outbox SET created_at = now() - interval '1 hour'")
    metrics = Metrics()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"queue": "accounts", **labels})

    async with working(pool, {}, metrics=metrics):

        async def measured() -> bool:
            return (
                value("ti_outbox_backlog_rows", status="pending") is not None
                and await table.count("failed") == 1
            )

        await until(measured)
    assert value("ti_outbox_rows_total", event_type="credential.created", ended="failed") == 1
    pending = value("ti_outbox_oldest_pending_seconds")
    assert pending is not None
    assert 3600 <= pending < 3700
    assert value("ti_outbox_oldest_claim_seconds") == 0
