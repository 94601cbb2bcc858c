"""After the claim: what ends it, that a token which is not the row's ends nothing, and who may
touch what."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from tests.outbox.rows import LIMIT, Table, claim_rows, new_row, put_rows
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import ClaimedRow, Queue, Status
from trading_intents.outbox.queue import FailedAttempt
from trading_intents.storage.database import Database, Pool, Tx

Ending = Callable[[Tx, ClaimedRow], Awaitable[object]]
ENDINGS: dict[str, Ending] = {
    "complete": lambda tx, row: outbox.complete(tx, [row]),
    "retry": lambda tx, row: outbox.retry(tx, [FailedAttempt(row, "again")], LIMIT),
    "fail": lambda tx, row: outbox.retry(tx, [FailedAttempt(row, "no more")], 1),
    "release": lambda tx, row: outbox.release(tx, [row]),
}
every_ending = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)


async def claimed_row(pool: Pool) -> ClaimedRow:
    await put_rows(pool, new_row())
    [row] = await claim_rows(pool)
    return row


async def end(pool: Pool, ending: Ending, row: ClaimedRow) -> object:
    async with pool.transaction() as tx:
        return await ending(tx, row)


@every_ending
async def test_a_claim_that_another_worker_took_back_ends_nothing(
    pool: Pool, table: Table, ending: Ending
) -> None:
    stale = await claimed_row(pool)
    await table.age_claims(6)
    await claim_rows(pool)
    before = await table.rows()
    assert not await end(pool, ending, stale)
    assert await table.rows() == before


@every_ending
@pytest.mark.parametrize("final", ["complete", "fail"])
async def test_a_finished_row_stays_as_it_is(
    pool: Pool, table: Table, ending: Ending, final: str
) -> None:
    row = await claimed_row(pool)
    assert await end(pool, ENDINGS[final], row)
    before = await table.rows()
    assert before[0]["status"] in ("completed", "failed")
    assert not await end(pool, ending, row)
    await table.age_claims(6)
    assert await claim_rows(pool) == []
    async with pool.transaction() as tx:
        assert await outbox.sweep(tx, Queue.ACCOUNTS, 1) == []
    assert await table.rows() == before


@every_ending
async def test_a_token_ends_its_claim_once(pool: Pool, ending: Ending) -> None:
    row = await claimed_row(pool)
    assert await end(pool, ending, row)
    assert not await end(pool, ending, row)


async def test_a_batch_says_which_claims_still_held(pool: Pool, table: Table) -> None:
    await put_rows(pool, *(new_row() for _ in range(4)))
    rows = await claim_rows(pool)
    await table.set(rows[1].id, f"claim_token = '{uuid.uuid4()}'")
    async with pool.transaction() as tx:
        held = await outbox.complete(tx, rows)
    assert held == {rows[0].token, rows[2].token, rows[3].token}
    assert await table.statuses() == ["completed", "processing", "completed", "completed"]


async def test_setbacks_wait_longer_each_time_and_the_last_one_fails_at_once(
    pool: Pool, table: Table
) -> None:
    await put_rows(pool, new_row())
    waits = []
    for attempt in range(1, LIMIT + 1):
        await table.make_due()
        [row] = await claim_rows(pool)
        before = await table.connection.fetchval("SELECT clock_timestamp()")
        async with pool.transaction() as tx:
            became = await outbox.retry(tx, [FailedAttempt(row, f"attempt {attempt}")], LIMIT)
        after = await table.row(row.id)
        waits.append((after["due_at"] - before) // timedelta(seconds=1))
        assert became == {row.token: Status.PENDING if attempt < LIMIT else Status.FAILED}
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    assert (after["status"], after["attempts"], after["last_error"]) == (
        "failed",
        LIMIT,
        f"attempt {LIMIT}",
    )
    assert after["claimed_at"] is None
    await table.make_due()
    assert await claim_rows(pool) == []


async def test_an_error_text_is_one_bounded_line(pool: Pool, table: Table) -> None:
    row = await claimed_row(pool)
    async with pool.transaction() as tx:
        await outbox.retry(tx, [FailedAttempt(row, "a\nb\x00c\x1b[31m" + "x" * 1000)], LIMIT)
    kept = (await table.row(row.id))["last_error"]
    assert kept.startswith("a b c [31mxxx")
    assert len(kept) == 500


async def test_a_release_gives_the_attempt_back(pool: Pool, table: Table) -> None:
    row = await claimed_row(pool)
    await end(pool, ENDINGS["release"], row)
    after = await table.row(row.id)
    assert (after["status"], after["attempts"], after["claim_token"]) == ("pending", 0, None)
    assert [r.attempts for r in await claim_rows(pool)] == [1]


async def test_the_sweep_fails_what_is_used_up_and_has_no_live_claim(
    pool: Pool, table: Table
) -> None:
    await put_rows(pool, *(new_row() for _ in range(5)))
    rows = await claim_rows(pool)
    ids = [row.id for row in rows]
    gone = "claimed_at = clock_timestamp() - interval '6 seconds'"
    await table.set(ids[0], f"attempts = {LIMIT}")
    await table.set(ids[1], f"attempts = {LIMIT}, {gone}")
    await table.set(ids[2], f"attempts = {LIMIT - 1}, {gone}")
    waiting = "status = 'pending', claimed_at = NULL, claim_token = NULL"
    await table.set(ids[3], f"attempts = {LIMIT}, last_error = 'known', {waiting}")
    await table.set(ids[4], f"attempts = {LIMIT - 1}, {waiting}")
    async with pool.transaction() as tx:
        assert await outbox.sweep(tx, Queue.USERS, LIMIT) == []
        assert await outbox.sweep(tx, Queue.ACCOUNTS, LIMIT) == ["account.created"] * 2
    assert await table.statuses() == ["processing", "failed", "processing", "failed", "pending"]
    errors = [row["last_error"] for row in await table.rows()]
    assert errors == [None, "the worker of the last attempt went away", None, "known", None]


async def test_only_rows_completed_long_ago_are_pruned(pool: Pool, table: Table) -> None:
    await put_rows(pool, *(new_row() for _ in range(5)))
    rows = await claim_rows(pool, 4)
    async with pool.transaction() as tx:
        await outbox.complete(tx, rows[:3])
        await outbox.retry(tx, [FailedAttempt(rows[3], "no")], 1)
    await table.connection.execute(
        "UPDATE outbox SET finished_at = now() - interval '1 hour' WHERE status = 'failed'"
    )
    for row in rows[:2]:
        await table.set(row.id, "finished_at = clock_timestamp() - interval '61 seconds'")
    async with pool.transaction() as tx:
        assert await outbox.prune(tx, Queue.USERS, 60) == 0
        assert await outbox.prune(tx, Queue.ACCOUNTS, 60) == 2
    assert await table.statuses() == ["completed", "failed", "pending"]


@pytest.mark.parametrize("final", ["complete", "fail"])
async def test_the_database_itself_keeps_final_rows_and_unfinished_ones(
    pool: Pool, table: Table, final: str
) -> None:
    await end(pool, ENDINGS[final], await claimed_row(pool))
    await put_rows(pool, new_row())
    async with pool.transaction() as tx:
        moved = await tx.execute(
            """
                UPDATE outbox SET status = 'pending', finished_at = NULL
                WHERE finished_at > '-infinity'
            """
        )
        assert moved == "UPDATE 0"
        assert await tx.execute("DELETE FROM outbox WHERE status = 'pending'") == "DELETE 0"
    assert len(await table.rows()) == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        "status = 'processing'",
        "status = 'completed'",
        "status = 'lost'",
        "claim_token = gen_random_uuid()",
        "finished_at = now()",
        "attempts = -1",
        "queue = 'other'",
        "event_type = 'account.renamed'",
        "payload = '[]'",
        "last_error = repeat('x', 501)",
    ],
)
async def test_the_database_refuses_a_row_that_makes_no_sense(
    pool: Pool, table: Table, nonsense: str
) -> None:
    await put_rows(pool, new_row())
    with pytest.raises(asyncpg.CheckViolationError):
        await table.connection.execute(f"UPDATE outbox SET {nonsense}")


async def test_the_service_sees_and_puts_only_its_organizations_rows(database: Database) -> None:
    mine = uuid.uuid4()
    yours = uuid.uuid4()
    await put_rows(database.service, new_row(organization_id=mine), new_row(organization_id=yours))
    for organizations, seen in (([mine], 1), ([mine, yours], 2), ([uuid.uuid4()], 0), ([], 0)):
        async with database.service.transaction(organizations) as tx:
            assert await tx.fetchval("SELECT count(*) FROM outbox") == seen
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with database.service.transaction([mine]) as tx:
            await outbox.put(tx, [new_row(organization_id=yours)])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox SET attempts = 0",
        "DELETE FROM outbox",
        "TRUNCATE outbox",
        "SELECT * FROM outbox_archive",
    ],
)
async def test_the_service_may_not_move_rows_nor_read_the_archive(
    database: Database, statement: str
) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([uuid.uuid4()]) as tx:
            await tx.execute(statement)


async def test_completing_in_any_order_at_once_ends_every_row(pool: Pool, table: Table) -> None:
    """Locks are taken in id order: two batches over the same rows never wait for each other in a
    ring."""
    await put_rows(pool, *(new_row() for _ in range(200)))
    rows = await claim_rows(pool, 200)

    async def complete(order: list[ClaimedRow]) -> int:
        async with pool.transaction() as tx:
            return len(await outbox.complete(tx, order))

    assert sorted(await asyncio.gather(complete(rows), complete(rows[::-1]))) == [0, 200]
    assert await table.count("completed") == 200
