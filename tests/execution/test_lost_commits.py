"""The connection is lost while a worker commits a change of leases: no account is left without its
session for that, and the worker can be stopped."""

import asyncio

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.arranged import set_credential, until_connection
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.lost_answers import executing_through
from tests.fakes import FakeVenue
from tests.intents.in_process_writer import add_account

STOP_LIMIT_SECONDS = 10
GIVE_BACK = b"SET worker_id = NULL WHERE worker_id = $1 AND account_id = ANY"

pytestmark = pytest.mark.usefixtures("soon")


async def until_found(in_process: InProcessExecution, query: str) -> None:
    async def found() -> bool:
        return bool(await in_process.in_process_writer.owner.fetchval(query))

    await in_process.until(found)


async def test_an_account_whose_lease_was_taken_unanswered_is_worked(urls: Urls) -> None:
    async with executing_through(urls) as (in_process, _, lost):
        await until_connection(in_process, "connected")
        lost.is_on = True
        writer = in_process.in_process_writer
        added = await add_account(writer.owner, writer.organization)
        await until_found(in_process, "SELECT count(*) = 2 FROM leases WHERE worker_id IS NOT NULL")
        lost.is_on = False
        await until_connection(in_process, "connected", added)


async def test_a_credential_that_was_noticed_unanswered_is_used(urls: Urls) -> None:
    venue = FakeVenue("paper", credential_fields=("token",))
    async with executing_through(urls, venue=venue) as (in_process, _, lost):
        await until_connection(in_process, "credential_missing")
        lost.is_on = True
        await set_credential(in_process, "new")
        await in_process.until_true(lambda: lost.count > 1)
        lost.is_on = False
        await until_connection(in_process, "connected")


async def test_a_closed_account_that_was_forgotten_unanswered_costs_no_other_its_session(
    urls: Urls,
) -> None:
    async with executing_through(urls, accounts=2) as (in_process, execution, lost):
        kept, closed = in_process.in_process_writer.accounts
        for account in (kept, closed):
            await until_connection(in_process, "connected", account)
        await in_process.in_process_writer.owner.execute(
            """
                UPDATE accounts SET closed_at = now(), link_generation = link_generation + 1
                WHERE id = $1
            """,
            closed,
        )
        sessions = execution.leases.sessions  # the closed one is not among them for long
        await in_process.until_true(lambda: closed not in sessions or sessions[closed].is_closed)
        lost.is_on = True
        await until_found(in_process, "SELECT count(*) = 1 FROM leases")
        lost.is_on = False
        await in_process.until_true(lambda: list(execution.leases.sessions) == [kept])
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT count(worker_id) FROM leases")
            == 1
        )


async def test_a_worker_that_was_stopped_while_it_claimed_may_be_stopped_again(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        await until_connection(in_process, "connected")
        holder = await asyncpg.connect(urls.owner.reveal())
        async with holder.transaction():
            await holder.execute("LOCK TABLE commands IN ACCESS EXCLUSIVE MODE")
            # How a claim begins: the server shows no more than a thousand characters of it.
            claiming = "wait_event_type = 'Lock' AND query LIKE '%WITH asked AS MATERIALIZED%'"
            here = f"{claiming} AND datname = current_database()"
            await until_found(in_process, f"SELECT count(*) > 0 FROM pg_stat_activity WHERE {here}")
            await execution.stop(0)
        await holder.close()
        await execution.stop(5)


async def test_a_worker_that_cannot_give_a_lease_back_stops_and_frees_all(urls: Urls) -> None:
    async with executing_through(urls, accounts=2) as (in_process, first, lost):
        await in_process.until_true(lambda: len(first.leases.sessions) == 2)
        lost.is_on = True
        lost.statement = GIVE_BACK
        async with executing(in_process) as second:
            await in_process.until_true(lambda: lost.count > 0)
            try:
                await asyncio.wait_for(first.stop(0), STOP_LIMIT_SECONDS)
            finally:
                lost.is_on = False
            await in_process.until_true(lambda: len(second.leases.sessions) == 2)
