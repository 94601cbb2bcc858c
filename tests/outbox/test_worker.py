"""The worker's handlers: a success is one transaction, and what they raise steers the row."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from tests.outbox.rows import LIMIT, Table, new_row, put_rows
from tests.outbox.working import SteadyClock, until, until_finished, working, writing
from trading_intents.errors import InvalidRequest
from trading_intents.outbox import queue
from trading_intents.outbox.model import ClaimedRow, Done, OutboxEventType
from trading_intents.storage.database import Pool, Tx
from trading_intents.telemetry import Metrics

MARKER = "s3cret-marker"
LONG_SECONDS = 1000


class LeapingClock(SteadyClock):
    """Each look at it is three seconds after the last: a process that is paused again and again."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return 3.0 * self._looks


@pytest.fixture
async def effects(table: Table) -> Callable[[], Awaitable[list[int]]]:
    """Rows that handlers write; gives the ids written."""
    await table.connection.execute(
        "CREATE TABLE effects (row_id bigint); GRANT INSERT ON effects TO ti_worker"
    )

    async def written() -> list[int]:
        return [
            row[0] for row in await table.connection.fetch("SELECT row_id FROM effects ORDER BY 1")
        ]

    return written


async def test_a_success_and_the_handlers_writes_are_one_transaction(
    pool: Pool, table: Table, effects: Callable[[], Awaitable[list[int]]]
) -> None:
    async def handle(row: ClaimedRow) -> Done:
        return writing(row)

    await put_rows(pool, *(new_row() for _ in range(10)))
    async with working(pool, handle):
        await until_finished(table)
    rows = await table.rows()
    assert {row["status"] for row in rows} == {"completed"}
    assert await effects() == [row["id"] for row in rows]
    together = await table.connection.fetchval(
        "SELECT count(*) FROM effects e JOIN outbox o ON o.xmin = e.xmin"
    )
    assert together == 10


async def test_writes_are_undone_when_the_claim_was_lost_meanwhile(
    pool: Pool, table: Table, effects: Callable[[], Awaitable[list[int]]]
) -> None:
    entered = asyncio.Event()
    go_on = asyncio.Event()
    ended = asyncio.Event()

    async def handle(row: ClaimedRow) -> Done:
        entered.set()
        await go_on.wait()
        ended.set()
        return writing(row)

    await put_rows(pool, new_row())
    async with working(pool, handle):
        await entered.wait()
        other = uuid.uuid4()
        await table.connection.execute("UPDATE outbox SET claim_token = $1", other)
        go_on.set()
        await ended.wait()
    [row] = await table.rows()
    assert (row["status"], row["claim_token"]) == ("processing", other)
    assert await effects() == []


async def test_a_write_that_fails_undoes_everything_and_is_tried_again(
    pool: Pool, table: Table, effects: Callable[[], Awaitable[list[int]]]
) -> None:
    async def handle(row: ClaimedRow) -> Done:
        async def write(tx: Tx) -> None:
            await tx.execute("INSERT INTO effects VALUES ($1)", row.id)
            raise InvalidRequest("not yet")

        return writing(row) if row.attempts == 2 else Done(write)

    await put_rows(pool, new_row())
    async with working(pool, handle):
        await until_finished(table)
    [row] = await table.rows()
    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert await effects() == [row["id"]]


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (InvalidRequest("our own words"), "invalid_request: our own words"),
        (ValueError(MARKER), "ValueError"),
        (TimeoutError(MARKER), "not done within 4 s"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_handler_that_fails_is_tried_again_and_only_safe_words_are_kept(
    pool: Pool, table: Table, monkeypatch: pytest.MonkeyPatch, error: Exception, kept: str
) -> None:
    # The second attempt is not to come yet.
    monkeypatch.setattr(queue, "backoff_seconds", lambda attempts: LONG_SECONDS)

    async def handle(row: ClaimedRow) -> Done:
        raise error

    await put_rows(pool, new_row())
    async with working(pool, handle):

        async def set_back() -> bool:
            return (await table.rows())[0]["last_error"] is not None

        await until(set_back)
    [row] = await table.rows()
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 1, kept)


@pytest.mark.slow
@pytest.mark.deadline
async def test_a_handler_is_cut_before_its_claim_looks_dead(pool: Pool, table: Table) -> None:
    cut = asyncio.Event()
    claims = list[datetime]()

    async def handle(row: ClaimedRow) -> Done:
        claims.append(await table.connection.fetchval("SELECT claimed_at FROM outbox"))
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
        raise AssertionError

    await put_rows(pool, new_row())
    async with working(pool, handle):
        await cut.wait()
        age = await table.connection.fetchval("SELECT clock_timestamp()") - claims[0]
        assert 3.5 < age.total_seconds() < 5

        async def set_back() -> bool:
            return await table.statuses() == ["pending"]

        await until(set_back)
    assert (await table.rows())[0]["last_error"] == "not done within 4 s"


async def test_a_claim_that_grew_old_in_a_paused_process_is_not_started(
    pool: Pool, table: Table
) -> None:
    started: list[int] = []

    async def handle(row: ClaimedRow) -> Done:
        started.append(row.id)
        return Done()

    metrics = Metrics()
    await put_rows(pool, new_row())
    async with working(pool, handle, metrics=metrics, clock=LeapingClock()):

        async def claimed_often() -> bool:
            count = await table.connection.fetchval(
                "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox'"
            )
            return bool(count >= 20)

        await until(claimed_often)
    assert started == []
    assert [(row["status"], row["attempts"]) for row in await table.rows()] == [("pending", 0)]


async def test_a_poison_row_fails_after_exactly_the_limit_and_stops_nobody(
    pool: Pool, table: Table
) -> None:
    attempts: list[int] = []

    async def handle(row: ClaimedRow) -> Done:
        if row.event_type == OutboxEventType.ACCOUNT_DELETED:
            attempts.append(row.attempts)
            raise ValueError
        return Done()

    await put_rows(
        pool, new_row(OutboxEventType.ACCOUNT_DELETED), *(new_row() for _ in range(1_000))
    )
    metrics = Metrics()
    async with working(pool, handle, metrics=metrics) as worker:

        async def all_ended() -> bool:
            await table.make_due()
            worker.wake()
            return await table.count("failed") == 1 and await table.count("completed") == 1_000

        await until(all_ended)
    assert attempts == list(range(1, LIMIT + 1))
    ended = {
        sample.labels["ended"]: sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "ti_outbox_rows_total" and sample.value
    }
    assert ended == {"completed": 1_000, "retried": LIMIT - 1, "failed": 1}


async def test_one_order_key_runs_in_order_while_others_run_beside_it(
    pool: Pool, table: Table
) -> None:
    keys = [uuid.uuid4() for _ in range(4)]
    order: dict[uuid.UUID, list[int]] = {key: [] for key in keys}
    together = asyncio.Barrier(len(keys))
    running: set[uuid.UUID] = set()

    async def handle(row: ClaimedRow) -> Done:
        assert row.order_key not in running
        running.add(row.order_key)
        await together.wait()
        order[row.order_key].append(row.id)
        running.discard(row.order_key)
        return Done()

    await put_rows(pool, *(new_row(order_key=key) for key in keys * 10))
    async with working(pool, handle):
        await until_finished(table)
    assert await table.count("completed") == 40
    assert all(ids == sorted(ids) and len(ids) == 10 for ids in order.values())
