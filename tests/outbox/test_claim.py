"""The rows that a claim takes: due, in order, with a handler, no more than asked for."""

import contextlib
import re
import uuid

import pytest

from tests.outbox.rows import LIMIT, Table, claim_rows, new_row, put_rows
from trading_intents.outbox.model import OutboxEventType, Queue
from trading_intents.outbox.queue import CLAIM, claim, complete, put
from trading_intents.storage.database import Database, Pool


async def test_rows_are_put_in_their_order_and_claimed_oldest_first(pool: Pool) -> None:
    rows = [new_row(order_key=uuid.UUID(int=n)) for n in range(300, 0, -1)]
    await put_rows(pool, *rows)
    claimed = await claim_rows(pool, 200) + await claim_rows(pool, 200)
    assert [row.order_key for row in claimed] == [row.order_key for row in rows]
    first = claimed[0]
    assert (first.queue, first.event_type, first.payload, first.attempts) == (
        Queue.ACCOUNTS,
        OutboxEventType.ACCOUNT_CREATED,
        {"version": 1},
        1,
    )
    assert first.organization_id == rows[0].organization_id
    assert len({row.token for row in claimed}) == 300


async def test_a_row_exists_only_if_its_transaction_commits(pool: Pool, table: Table) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with pool.transaction() as tx:
            await put(tx, [new_row()])
            raise ZeroDivisionError
    assert await table.rows() == []


async def test_a_claim_is_written_with_the_databases_time(pool: Pool, table: Table) -> None:
    await put_rows(pool, new_row())
    before = await table.connection.fetchval("SELECT clock_timestamp()")
    [claimed] = await claim_rows(pool)
    after = await table.connection.fetchval("SELECT clock_timestamp()")
    row = await table.row(claimed.id)
    assert (row["status"], row["attempts"], row["claim_token"]) == ("processing", 1, claimed.token)
    assert before < row["claimed_at"] < after


async def test_what_is_not_due_has_no_handler_or_is_of_another_queue_is_left(
    pool: Pool, table: Table
) -> None:
    await put_rows(
        pool,
        new_row(),
        new_row(OutboxEventType.CREDENTIAL_CREATED),
        new_row("user.deleted", Queue.USERS),
    )
    [late, _, _] = await table.rows()
    await table.set(late["id"], "due_at = clock_timestamp() + interval '1 minute'")
    assert await claim_rows(pool, types=[OutboxEventType.ACCOUNT_CREATED]) == []
    await table.set(late["id"], "due_at = clock_timestamp()")
    assert [row.id for row in await claim_rows(pool, types=[OutboxEventType.ACCOUNT_CREATED])] == [
        late["id"]
    ]


@pytest.mark.parametrize(("age_seconds", "taken"), [(4.9, False), (5.1, True)])
async def test_a_claim_is_taken_back_after_five_seconds(
    pool: Pool, table: Table, age_seconds: float, taken: bool
) -> None:
    await put_rows(pool, new_row())
    [first] = await claim_rows(pool)
    while True:
        await table.age_claims(age_seconds)
        second = await claim_rows(pool)
        age = await table.connection.fetchval(
            "SELECT extract(epoch FROM clock_timestamp() - claimed_at)::float8 FROM outbox"
        )
        if taken or age < 5:  # else the machine was so slow that the claim grew old meanwhile
            break
    assert [(row.id, row.attempts) for row in second] == ([(first.id, 2)] if taken else [])
    assert all(row.token != first.token for row in second)


async def test_rows_of_one_order_key_wait_for_each_other_and_for_nobody_else(
    pool: Pool, table: Table
) -> None:
    one = uuid.uuid4()
    other = uuid.uuid4()
    await put_rows(pool, *(new_row(order_key=key) for key in (one, one, other, one)))
    ids = [row["id"] for row in await table.rows()]
    first = await claim_rows(pool)
    assert [row.id for row in first] == [ids[0], ids[2]]
    assert await claim_rows(pool) == []
    await table.set(
        ids[0], "status = 'pending', claimed_at = NULL, claim_token = NULL, due_at = 'infinity'"
    )
    # The first waits for its next attempt, and the others for it.
    assert await claim_rows(pool) == []
    await table.set(ids[0], "status = 'failed', finished_at = now(), last_error = 'x'")
    assert [row.id for row in await claim_rows(pool)] == [ids[1]]


async def test_an_order_key_counts_within_its_queue(pool: Pool) -> None:
    shared = uuid.uuid4()
    await put_rows(pool, new_row(order_key=shared), new_row("user.deleted", Queue.USERS, shared))
    assert len(await claim_rows(pool, queue=Queue.USERS)) == 1


async def test_a_row_at_the_attempt_limit_is_never_claimed(pool: Pool, table: Table) -> None:
    await put_rows(pool, new_row())
    for attempt in range(1, LIMIT + 1):
        [row] = await claim_rows(pool)
        assert row.attempts == attempt
        await table.age_claims(6)
    assert await claim_rows(pool) == []


async def test_two_claims_at_once_share_the_rows(pool: Pool) -> None:
    await put_rows(pool, *(new_row() for _ in range(30)))
    async with pool.transaction() as one, pool.transaction() as other:
        first = await claim(one, Queue.ACCOUNTS, [OutboxEventType.ACCOUNT_CREATED], 20, LIMIT)
        second = await claim(other, Queue.ACCOUNTS, [OutboxEventType.ACCOUNT_CREATED], 20, LIMIT)
    assert (len(first), len(second)) == (20, 10)
    assert {row.id for row in first}.isdisjoint({row.id for row in second})


@pytest.mark.parametrize("limit", [1, 5, 20])
@pytest.mark.parametrize("known_rows", [0, 1, 5_000])
async def test_a_claim_takes_no_more_than_asked_whatever_the_statistics_say(
    pool: Pool, table: Table, limit: int, known_rows: int
) -> None:
    await table.connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    await fill(table, known_rows)
    await table.connection.execute("ANALYZE outbox; TRUNCATE outbox")
    await put_rows(pool, *(new_row() for _ in range(100)))
    for fresh_plans in (True, False):
        for _ in range(7):  # a cached plan comes with the sixth
            async with pool.transaction(plans="fresh" if fresh_plans else "by_key") as tx:
                claimed = await claim(
                    tx, Queue.ACCOUNTS, [OutboxEventType.ACCOUNT_CREATED], limit, LIMIT
                )
                assert len(claimed) == limit
                await complete(tx, claimed)
            await put_rows(pool, *(new_row() for _ in range(limit)))


async def fill(table: Table, count: int) -> None:
    """Completed rows, most of them of users."""
    await table.connection.execute(
        """
        INSERT INTO outbox (queue, event_type, organization_id, order_key, payload, status,
            attempts, finished_at)
        SELECT queue, 'account.created', id, id, '{}', 'completed', 1, now()
        FROM generate_series(1, $1::int) AS n
        CROSS JOIN LATERAL (
            SELECT md5(n::text)::uuid AS id, CASE n % 50 WHEN 0 THEN 'accounts' ELSE 'users' END
        ) AS made (id, queue)
        """,
        count,
    )


@pytest.mark.parametrize(
    "finished_rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.chaos)]
)
async def test_partial_indexes_are_used_in_a_table_full_of_finished_rows(
    database: Database, table: Table, finished_rows: int
) -> None:
    await table.connection.execute("ALTER TABLE outbox SET UNLOGGED")  # a third faster
    await fill(table, finished_rows)
    await put_rows(database.worker, *(new_row() for _ in range(20)))
    for statistics in ("SELECT 1", "ANALYZE outbox"):
        await table.connection.execute(statistics)
        text = await plan(table, CLAIM, f"'accounts', '{{account.created}}', {LIMIT}, 5, 20")
        assert "Seq Scan" not in text
        indexes = {*re.findall(r"(?:using|Bitmap Index Scan on) (outbox_\w+)", text)}
        assert indexes == {"outbox_unfinished", "outbox_order", "outbox_pkey"}, text
    report = await health_plan(table)
    assert "outbox_accounts " in report
    assert "Seq Scan" not in report


async def health_plan(table: Table) -> str:
    """Of what stands in the function, as the role that it runs as."""
    body = await table.connection.fetchval(
        "SELECT pg_get_function_sqlbody('accounts_outbox_health'::regproc)"
    )
    [query] = re.findall(r"BEGIN ATOMIC(.*);\s*END", body, re.DOTALL)
    await table.connection.execute("SET ROLE ti_owner")
    lines = await table.connection.fetch(f"EXPLAIN {query}")
    await table.connection.execute("RESET ROLE")
    return "\n".join(line[0] for line in lines)


async def plan(table: Table, statement: str, arguments: str) -> str:
    """The generic plan, as every session makes it for a claim, but free to scan the table."""
    connection = table.connection
    await connection.execute("SET plan_cache_mode = force_generic_plan; SET ROLE ti_worker")
    await connection.execute(f"PREPARE claim (text, text[], bigint, float8, bigint) AS {statement}")
    lines = await connection.fetch(f"EXPLAIN EXECUTE claim ({arguments})")
    await connection.execute("DEALLOCATE claim; RESET ROLE")
    return "\n".join(line[0] for line in lines)
