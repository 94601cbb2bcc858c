"""`trading-intents outbox`: failed rows listed, put in again or dropped, and each time written down
by whom and why."""

import os
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.conftest import Urls
from tests.outbox.rows import LIMIT, Table, claim_rows, new_row, put_rows
from tests.platform import environment, run_command
from trading_intents.cli import cli
from trading_intents.errors import InvalidRequest, NotFound
from trading_intents.outbox import operators
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import OutboxEventType, Queue, Status
from trading_intents.outbox.queue import FailedAttempt
from trading_intents.storage.database import Pool


async def fail_rows(pool: Pool, table: Table, count: int) -> list[int]:
    await put_rows(pool, *(new_row() for _ in range(count)))
    rows = await claim_rows(pool, count)
    async with pool.transaction() as tx:
        await outbox.retry(tx, [FailedAttempt(row, "the broker said no") for row in rows], 1)
    return [row.id for row in rows]


async def test_a_retry_puts_the_same_row_in_again_and_archives_the_old_one(
    pool: Pool, table: Table
) -> None:
    [row_id] = await fail_rows(pool, table, 1)
    old = await table.row(row_id)
    made = await operators.retry(pool, [row_id], "ada", "the broker is back")
    [new] = await table.rows()
    assert made == {row_id: (Queue.ACCOUNTS, new["id"])}
    assert new["id"] > row_id
    assert (new["status"], new["attempts"], new["last_error"]) == ("pending", 0, None)
    same = ("queue", "event_type", "organization_id", "order_key", "payload")
    assert [new[name] for name in same] == [old[name] for name in same]
    kept = dict(await table.connection.fetchrow("SELECT * FROM outbox_archive"))
    assert [kept[name] for name in (*same, "attempts", "last_error")] == [
        old[name] for name in (*same, "attempts", "last_error")
    ]
    assert (kept["action"], kept["retried_as"], kept["archived_by"], kept["reason"]) == (
        "retried",
        new["id"],
        "ada",
        "the broker is back",
    )
    assert (kept["created_at"], kept["failed_at"]) == (old["created_at"], old["finished_at"])
    assert kept["archived_at"] > kept["failed_at"]


async def test_a_drop_archives_and_puts_nothing_in(pool: Pool, table: Table) -> None:
    ids = await fail_rows(pool, table, 2)
    await operators.drop(pool, ids, "ada", "too late")
    assert await table.rows() == []
    kept = await table.connection.fetch(
        "SELECT id, action, retried_as FROM outbox_archive ORDER BY id"
    )
    assert [tuple(row) for row in kept] == [(row_id, "dropped", None) for row_id in ids]


@pytest.mark.parametrize("state", ["pending", "processing", "completed", "gone"])
@pytest.mark.parametrize("work", [operators.retry, operators.drop])
async def test_only_failed_rows_are_retried_or_dropped_and_all_or_none(
    pool: Pool,
    table: Table,
    state: str,
    work: Callable[[Pool, list[int], str, str], Awaitable[object]],
) -> None:
    [failed] = await fail_rows(pool, table, 1)
    await put_rows(pool, new_row(OutboxEventType.CREDENTIAL_CREATED))
    other = (await table.rows())[1]["id"]
    if state in ("processing", "completed"):
        rows = await claim_rows(pool)
        if state == "completed":
            async with pool.transaction() as tx:
                await outbox.complete(tx, rows)
    before = await table.rows()
    with pytest.raises(NotFound, match="no failed row"):
        await work(pool, [failed, other + 1000 if state == "gone" else other], "ada", "because")
    assert await table.rows() == before
    assert await table.connection.fetchval("SELECT count(*) FROM outbox_archive") == 0


async def test_rows_are_retried_in_the_order_in_which_they_were_queued(
    pool: Pool, table: Table
) -> None:
    first, second, third = await fail_rows(pool, table, 3)
    again = await operators.retry(pool, [third, first, second, first], "ada", "fixed")
    new = [row_id for _, row_id in again.values()]
    assert (list(again), new) == ([first, second, third], sorted(new))


async def test_a_row_that_is_named_twice_is_dropped_once(pool: Pool, table: Table) -> None:
    [failed] = await fail_rows(pool, table, 1)
    await operators.drop(pool, [failed, failed], "ada", "because")
    assert await table.connection.fetchval("SELECT count(*) FROM outbox_archive") == 1


async def test_rows_are_listed_by_queue_and_status_oldest_first(pool: Pool, table: Table) -> None:
    ids = await fail_rows(pool, table, 3)
    await put_rows(pool, new_row("user.deleted", Queue.USERS))
    async with pool.transaction() as tx:
        assert [
            row.id for row in await outbox.list_rows(tx, list(Queue), [Status.FAILED], 2)
        ] == ids[:2]
        [waiting] = await outbox.list_rows(tx, [Queue.USERS], list(Status), 100)
        assert await outbox.list_rows(tx, [Queue.INTENTS], list(Status), 100) == []
    assert (waiting.event_type, waiting.status, waiting.attempts) == (
        "user.deleted",
        Status.PENDING,
        0,
    )


async def test_an_operator_does_it_all_by_command(
    pool: Pool, table: Table, urls: Urls, tmp_path: Path
) -> None:
    ids = await fail_rows(pool, table, 2)
    settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    environ = environment(tmp_path, settings)
    listed = run_command(environ, "outbox", "list", "--queue", "accounts")
    assert listed.returncode == 0, listed.stderr
    lines = [line.split("\t") for line in listed.stdout.splitlines()]
    assert [int(line[0]) for line in lines] == ids
    assert lines[0][1:5] == ["accounts", "failed", "account.created", "1"]
    assert lines[0][7] == "the broker said no"
    again = run_command(environ, "outbox", "retry", str(ids[0]), "--reason", "it is back")
    assert (again.returncode, again.stdout) == (0, f"{ids[0]} again as {ids[1] + 1}\n")
    dropped = run_command(environ, "outbox", "drop", str(ids[1]), "--reason", "too late")
    assert (dropped.returncode, dropped.stdout) == (0, f"dropped {ids[1]}\n")
    refused = run_command(environ, "outbox", "drop", str(ids[1]), "--reason", "again")
    assert refused.returncode == 1
    assert f"there is no failed row {ids[1]}" in refused.stderr
    kept = await table.connection.fetch(
        "SELECT action, archived_by, reason FROM outbox_archive ORDER BY id"
    )
    me = pwd.getpwuid(os.getuid()).pw_name
    assert [tuple(row) for row in kept] == [
        ("retried", me, "it is back"),
        ("dropped", me, "too late"),
    ]


@pytest.mark.parametrize("command", ["retry", "drop"])
def test_a_reason_is_needed(command: str) -> None:
    assert invoke("outbox", command, "1").exit_code == 2
    assert invoke("outbox", command, "--reason", "because").exit_code == 2


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_list_has_a_limit(limit: str) -> None:
    assert invoke("outbox", "list", "--limit", limit).exit_code == 2


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


async def test_a_reason_of_blanks_is_refused_and_a_long_one_is_cut(
    pool: Pool, table: Table
) -> None:
    ids = await fail_rows(pool, table, 1)
    with pytest.raises(InvalidRequest):
        await operators.drop(pool, ids, "ada", " \n")
    await operators.drop(pool, ids, "ada", "x" * 1000)
    assert await table.connection.fetchval("SELECT length(reason) FROM outbox_archive") == 500


async def test_a_retried_row_can_be_claimed_to_the_limit_again(pool: Pool, table: Table) -> None:
    ids = await fail_rows(pool, table, 1)
    await operators.retry(pool, ids, "ada", "because")
    for attempt in range(1, LIMIT + 1):
        [row] = await claim_rows(pool)
        assert row.attempts == attempt
        await table.age_claims(6)
    assert await claim_rows(pool) == []
