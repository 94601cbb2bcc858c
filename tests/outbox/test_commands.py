"""The queue of intents: a command is claimed in its lane, marked, put back, failed or deleted, and
shown to operators with the rows of the other queues."""

import re
import uuid
from typing import Any

import asyncpg
import pytest

from tests.outbox.rows import (
    Table,
    claim_commands,
    claim_lanes,
    new_row,
    put_command,
    put_rows,
    values_of,
)
from trading_intents.outbox import operators
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.intents_queue import (
    AttemptFailure,
    claim_by_lane,
    ending,
    holding,
    marking,
    putting_back,
)
from trading_intents.outbox.lanes import LaneRequest
from trading_intents.outbox.model import Queue, Status
from trading_intents.storage.database import Database, Pool
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pipeline import Statement

FINISHED = 20_000


async def run(pool: Pool, statement: Statement) -> None:
    async with pool.transaction() as tx:
        await tx.execute(statement.sql, *values_of(statement))


async def row_of(table: Table, row_id: int) -> dict[str, Any]:
    found = await table.connection.fetchrow("SELECT * FROM commands WHERE id = $1", row_id)
    return dict(found)


async def put_back(pool: Pool, row_id: int, **changes: object) -> None:
    values = {"attempts": 1, "delay": 0.0, "reason": "again", "has_failed": False} | changes
    failed_attempt = AttemptFailure(id=row_id, **values)  # type: ignore[arg-type]  # those of the test
    async with pool.transaction() as tx:
        await PoolTransaction(tx).run([putting_back([failed_attempt])])


async def test_a_command_is_claimed_only_in_its_lane(pool: Pool, table: Table) -> None:
    account = uuid.uuid4()
    row_id = await put_command(table.connection, account)
    assert await claim_commands(pool, {uuid.uuid4(): 5}) == []
    assert await claim_commands(pool, {account: 5}) == [(account, row_id)]


async def test_each_lane_gets_as_many_as_it_has_free_slots(pool: Pool, table: Table) -> None:
    full, free, idle = (uuid.uuid4() for _ in range(3))
    for account in [full] * 50 + [free] * 5:
        await put_command(table.connection, account)
    claimed = [lane for lane, _ in await claim_commands(pool, {full: 3, free: 10, idle: 10})]
    assert (claimed.count(full), claimed.count(free)) == (3, 5)


async def test_lanes_share_a_batch_evenly(pool: Pool, table: Table) -> None:
    """The account that came first does not take all of it."""
    lanes = [uuid.uuid4() for _ in range(4)]
    for account in lanes * 30:
        await put_command(table.connection, account)
    claimed = [lane for lane, _ in await claim_commands(pool, dict.fromkeys(lanes, 100), limit=20)]
    assert [claimed.count(lane) for lane in lanes] == [5, 5, 5, 5]
    after = None
    in_turn = []
    for _ in lanes:  # more lanes than a batch takes
        [(after, _)] = await claim_commands(
            pool, dict.fromkeys(lanes, 100), limit=1, after_lane=after
        )
        in_turn.append(after)
    assert in_turn == sorted(lanes)


async def test_urgent_commands_of_a_lane_are_claimed_first(pool: Pool, table: Table) -> None:
    account = uuid.uuid4()
    ids = [await put_command(table.connection, account) for _ in range(10)]
    await table.connection.execute("UPDATE commands SET urgent = true WHERE id = $1", ids[7])
    claimed = await claim_commands(pool, {account: 2})
    assert [found for _, found in claimed] == [ids[0], ids[7]]


async def test_a_marked_command_is_claimed_again_only_if_its_worker_does_not_have_it(
    pool: Pool, table: Table
) -> None:
    account = uuid.uuid4()
    row_id = await put_command(table.connection, account)
    assert await claim_commands(pool, {account: 5}) == [(account, row_id)]
    whole = LaneRequest(lane=str(account), slots=5)
    assert await claim_lanes(pool, [whole], 10, held=[row_id]) == []
    await run(pool, holding({row_id: 3600.0}))
    [seen] = await claim_lanes(pool, [whole], 10)
    assert (seen.id, seen.is_claimed) == (row_id, True)


async def test_a_command_that_another_transaction_holds_is_not_claimed(
    pool: Pool, table: Table
) -> None:
    account = uuid.uuid4()
    row_id = await put_command(table.connection, account)
    async with table.connection.transaction():
        await table.connection.execute("SELECT FROM commands WHERE id = $1 FOR UPDATE", row_id)
        [seen] = await claim_lanes(pool, [LaneRequest(lane=str(account), slots=5)], 10)
        assert (seen.id, seen.is_claimed, seen.is_left) == (row_id, False, False)
    assert await claim_commands(pool, {account: 5}) == [(account, row_id)]


async def test_a_held_command_is_due_again_after_its_delay(pool: Pool, table: Table) -> None:
    account = uuid.uuid4()
    row_id = await put_command(table.connection, account)
    await run(pool, holding({row_id: 3600.0}))
    [seen] = await claim_lanes(pool, [LaneRequest(lane=str(account), slots=5)], 10)
    assert not seen.is_claimed
    assert 3500 < seen.wait_seconds <= 3600
    await run(pool, holding({row_id: 0.0}))
    assert await claim_commands(pool, {account: 5}) == [(account, row_id)]


async def test_a_mark_changes_no_index(pool: Pool, table: Table) -> None:
    """So that it costs one row version, and not an entry in each index as well."""
    account = uuid.uuid4()
    ids = [await put_command(table.connection, account) for _ in range(50)]
    counts = """
        SELECT pg_stat_get_xact_tuples_updated('commands'::regclass) AS updated,
               pg_stat_get_xact_tuples_hot_updated('commands'::regclass) AS hot
    """
    async with pool.transaction(plans="by_key") as tx:
        [before] = await tx.fetch(counts)  # of transactions that are not reported yet
        await tx.execute(marking(ids).sql, ids)
        [after] = await tx.fetch(counts)
    assert after["updated"] - before["updated"] == 50
    # The others are of a page without room, and go to another.
    assert after["hot"] - before["hot"] > 40


async def test_a_failed_attempt_takes_the_mark_back_and_the_last_one_fails(
    pool: Pool, table: Table
) -> None:
    account = uuid.uuid4()
    row_id = await put_command(table.connection, account)
    await run(pool, marking([row_id]))
    row = await row_of(table, row_id)
    assert (row["attempts"], row["sent_at"] is None) == (1, False)
    await put_back(pool, row_id, reason="a\nb\x00c" + "x" * 1000, is_urgent=True)
    row = await row_of(table, row_id)
    assert (row["sent_at"], row["failed_at"], row["attempts"], row["urgent"]) == (
        None,
        None,
        1,
        True,
    )
    assert row["last_error"].startswith("a b c")
    assert len(row["last_error"]) == 500
    await put_back(pool, row_id, attempts=2, has_failed=True)
    row = await row_of(table, row_id)
    assert (row["failed_at"] is None, row["last_error"]) == (False, "again")
    assert await claim_commands(pool, {account: 5}) == []


async def test_what_failed_stays_as_it_is(pool: Pool, table: Table) -> None:
    row_id = await put_command(table.connection, uuid.uuid4())
    await put_back(pool, row_id, has_failed=True)
    before = await row_of(table, row_id)
    await run(pool, marking([row_id]))
    await run(pool, holding({row_id: 1.0}))
    await put_back(pool, row_id)
    assert await row_of(table, row_id) == before


async def test_a_failed_command_keeps_no_later_one_of_its_order_waiting(
    pool: Pool, table: Table
) -> None:
    account = uuid.uuid4()
    order = uuid.uuid4()
    first = await put_command(table.connection, account, order)
    later = await put_command(table.connection, account, order, "CANCEL")
    assert await claim_commands(pool, {account: 5}) == [(account, first)]
    await put_back(pool, first, has_failed=True)
    assert await claim_commands(pool, {account: 5}) == [(account, later)]


@pytest.mark.parametrize(
    "nonsense",
    ["failed_at = now()", "failed_at = now(), sent_at = now(), last_error = 'x'", "attempts = -1"],
)
async def test_the_database_refuses_a_command_that_makes_no_sense(
    table: Table, nonsense: str
) -> None:
    row_id = await put_command(table.connection, uuid.uuid4())
    with pytest.raises(asyncpg.CheckViolationError):
        await table.connection.execute(f"UPDATE commands SET {nonsense} WHERE id = $1", row_id)


async def test_the_api_marks_and_ends_no_command(database: Database, table: Table) -> None:
    organization = uuid.uuid4()
    row_id = await put_command(table.connection, organization)
    for statement in ("UPDATE commands SET sent_at = now()", "DELETE FROM commands"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.service.transaction([organization]) as tx:
                await tx.execute(statement)
    assert (await row_of(table, row_id))["sent_at"] is None


async def test_operators_see_commands_beside_rows_of_other_queues(pool: Pool, table: Table) -> None:
    await put_rows(pool, new_row())
    account = uuid.uuid4()
    pending, marked, failed = [await put_command(table.connection, account) for _ in range(3)]
    await run(pool, marking([marked]))
    await put_back(pool, failed, has_failed=True)
    async with pool.transaction() as tx:
        rows = await outbox.list_rows(tx, list(Queue), list(Status), 10)
        found = await outbox.list_rows(tx, [Queue.INTENTS], [Status.FAILED], 10)
        backlog = await outbox.measure(tx, Queue.INTENTS)
    assert [(row.queue, row.status) for row in rows] == [
        ("accounts", "pending"),
        ("intents", "pending"),
        ("intents", "processing"),
        ("intents", "failed"),
    ]
    assert len({row.id for row in rows}) == 4
    assert [(row.id, row.event_type, row.attempts) for row in found] == [
        (failed, "intent.create", 1)
    ]
    assert (backlog.pending, backlog.processing, backlog.failed) == (1, 1, 1)
    assert backlog.oldest_pending_seconds > backlog.oldest_claim_seconds > 0
    await run(pool, ending([pending, marked]))
    async with pool.transaction() as tx:
        assert [
            row.id for row in await outbox.list_rows(tx, [Queue.INTENTS], list(Status), 10)
        ] == [failed]


@pytest.mark.parametrize("is_retried", [True, False])
async def test_a_failed_command_is_archived_and_queued_anew_if_it_is_retried(
    pool: Pool, table: Table, is_retried: bool
) -> None:
    row_id = await put_command(table.connection, uuid.uuid4(), action_type="REPLACE")
    await table.connection.execute("UPDATE commands SET seq = 7, is_resend = true")
    await put_back(pool, row_id, has_failed=True)
    old = await row_of(table, row_id)
    if is_retried:
        made = await operators.retry(pool, [row_id], "ada", "the broker is back")
        new = dict(await table.connection.fetchrow("SELECT * FROM commands"))
        assert made == {row_id: (Queue.INTENTS, new["id"])}
        assert new["id"] > row_id
        same = ("organization_id", "account_id", "order_id", "seq", "action_type", "is_resend")
        assert [new[name] for name in same] == [old[name] for name in same]
        assert (new["attempts"], new["failed_at"], new["last_error"]) == (0, None, None)
    else:
        await operators.drop(pool, [row_id], "ada", "too late")
        assert await table.connection.fetchval("SELECT count(*) FROM commands") == 0
    kept = dict(await table.connection.fetchrow("SELECT * FROM outbox_archive"))
    assert (kept["id"], kept["queue"], kept["event_type"], kept["payload"]) == (
        row_id,
        "intents",
        "intent.replace",
        '{"seq": 7}',
    )
    assert (kept["order_key"], kept["lane"]) == (old["order_id"], old["account_id"])
    assert (kept["failed_at"], kept["attempts"]) == (old["failed_at"], 1)
    assert kept["action"] == ("retried" if is_retried else "dropped")


async def test_a_claim_reads_by_its_indexes_among_many_failed_commands(table: Table) -> None:
    connection = table.connection
    await connection.execute(
        """
        INSERT INTO commands (organization_id, account_id, order_id, seq, action_type, failed_at,
            last_error)
        SELECT id, id, id, n, 'CREATE', now(), 'x'
        FROM (SELECT n, md5(n::text)::uuid AS id FROM generate_series(1, $1::int) AS n) AS made
        """,
        FINISHED,
    )
    account = uuid.uuid4()
    for _ in range(20):
        await put_command(connection, account)
    claiming = claim_by_lane([LaneRequest(lane=str(account), slots=5)], 20)
    values = ", ".join(f"'{each!s}'" for each in claiming.arguments)
    for statistics in ("SELECT 1", "ANALYZE commands"):
        await connection.execute(statistics)
        await connection.execute("SET plan_cache_mode = force_generic_plan; SET ROLE ti_worker")
        await connection.execute(f"PREPARE claim AS {claiming.sql}")
        lines = await connection.fetch(f"EXPLAIN EXECUTE claim ({values})")
        await connection.execute("DEALLOCATE claim; RESET ROLE")
        text = "\n".join(line[0] for line in lines)
        assert "Seq Scan" not in text
        indexes = {*re.findall(r"(?:using|Bitmap Index Scan on) (commands_\w+)", text)}
        assert indexes == {"commands_by_account", "commands_by_order", "commands_pkey"}, text
