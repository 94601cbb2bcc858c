"""A worker that has lost the lease of an account marks and records nothing, whatever it has in flight;
and a lease is not given back while something is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.slow_venue import SlowVenue
from tests.fakes import Act
from tests.outbox.rows import values_of
from trading_intents.execution import dispatcher
from trading_intents.execution.claims import Lease, lock_leases, parse_leases
from trading_intents.execution.service import Execution
from trading_intents.execution.sessions import leases, store
from trading_intents.loops import stop_tasks
from trading_intents.storage.database import Database, Tx
from trading_intents.storage.pipeline import Reply
from trading_intents.telemetry import Metrics

HOUR_SECONDS = 3600.0

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def lasting_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is frozen for as long as the test takes believes in its lease."""
    monkeypatch.setattr(dispatcher, "CALL_SECONDS", HOUR_SECONDS)
    for module in (leases, store):
        monkeypatch.setattr(module, "LEASE_SECONDS", HOUR_SECONDS)


@pytest.fixture
async def owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(urls.owner.reveal())
    yield connection
    await connection.close()


async def add_lease(owner: asyncpg.Connection, seconds: float) -> Lease:
    lease = Lease(uuid4(), uuid4(), 1)
    expires = "clock_timestamp() + make_interval(secs => $2)"
    await owner.execute(f"INSERT INTO workers VALUES ($1, {expires})", lease.worker_id, seconds)
    async with owner.transaction():
        # Of an account that is not there.
        await owner.execute("SET LOCAL session_replication_role = replica")
        await owner.execute(
            "INSERT INTO leases (account_id, organization_id, worker_id) VALUES ($1, $1, $2)",
            lease.account_id,
            lease.worker_id,
        )
    return lease


async def fenced(tx: Tx, *asked: Lease) -> set[Lease]:
    statement = lock_leases(asked)
    rows = await tx.fetch(statement.sql, *values_of(statement))
    return parse_leases(Reply("", [tuple(str(each).encode() for each in row) for row in rows]))


async def test_only_a_lease_that_holds_passes_the_fence(
    database: Database, owner: asyncpg.Connection
) -> None:
    valid = await add_lease(owner, HOUR_SECONDS)
    expired = await add_lease(owner, -1.0)
    async with database.worker.transaction() as tx:
        assert await fenced(tx, valid, expired) == {valid}
        assert await fenced(tx, Lease(expired.worker_id, valid.account_id, 1)) == set()
    await owner.execute("UPDATE leases SET token = token + 1, worker_id = $1", valid.worker_id)
    async with database.worker.transaction() as tx:
        assert valid not in await fenced(tx, valid)
    await owner.execute("DELETE FROM workers")
    async with database.worker.transaction() as tx:
        assert await fenced(tx, valid) == set()


async def test_a_lease_is_not_taken_while_a_transaction_that_passed_the_fence_is_open(
    database: Database, owner: asyncpg.Connection
) -> None:
    lease = await add_lease(owner, HOUR_SECONDS)
    pool = database.worker
    async with pool.transaction() as open_tx:
        assert await fenced(open_tx, lease) == {lease}
        await owner.execute("UPDATE workers SET expires_at = now() - interval '1 s'")
        async with pool.transaction() as tx:
            await store.remove_expired(tx)
        assert await owner.fetchval("SELECT count(*) FROM workers") == 1
    async with pool.transaction() as tx:
        await store.remove_expired(tx)
    assert await owner.fetchval("SELECT count(*) FROM workers") == 0


@asynccontextmanager
async def frozen(in_process: InProcessExecution, execution: Execution) -> AsyncIterator[None]:
    """Its lease is taken, and it believes in it."""
    await stop_tasks(*execution.leases._tasks)
    owner = in_process.in_process_writer.owner
    await owner.execute("DELETE FROM workers WHERE id = $1", execution.leases.worker_id)
    async with executing(in_process):
        yield


@pytest.mark.usefixtures("lasting_lease")
async def test_a_worker_that_wakes_after_its_lease_was_taken_records_nothing(urls: Urls) -> None:
    venue = SlowVenue()
    async with open_in_process(urls, venue=venue) as in_process:
        owner = in_process.in_process_writer.owner
        async with executing(in_process) as execution:
            venue.acts.append(Act.REFUSE)
            order = await in_process.create()
            await in_process.until_true(lambda: len(venue.commands) == 1)
            async with frozen(in_process, execution):
                await in_process.until_status(order, "UNKNOWN")
                await in_process.until_queue_is_empty()
                await in_process.until_true(lambda: bool(venue.lookups))
                later = "UPDATE orders SET lookup_due_at = clock_timestamp() + interval '1 h'"
                assert await owner.execute(later) == "UPDATE 1"
                venue.answers.set()
                await in_process.until_true(lambda: not execution._dispatcher._sending)
                assert venue.arrived("submit") == [await in_process.coid(order)]
                assert (await in_process.order(order))["order_status"] == "UNKNOWN"


@pytest.mark.usefixtures("lasting_lease")
async def test_a_worker_that_wakes_after_its_lease_was_taken_sends_nothing(urls: Urls) -> None:
    venue = SlowVenue()
    venue.answers.set()
    metrics = Metrics()
    async with open_in_process(urls, venue=venue) as in_process:
        async with executing(in_process, metrics=metrics) as execution:
            await in_process.until_status(await in_process.create(), "NEW")
            async with frozen(in_process, execution):
                orders = [await in_process.create() for _ in range(4)]
                execution.leases.wake_lanes()
                for order in orders:
                    await in_process.until_status(order, "NEW")
                execution.leases.wake_lanes()
                await in_process.until_queue_is_empty()
        assert len(venue.arrived("submit")) == len(set(venue.arrived("submit"))) == 5
        assert (venue.duplicates, venue.lookups) == ([], [])
        assert metrics.execution_sends.labels("submit", "acked")._value.get() == 1, "the first"


@pytest.mark.slow
async def test_a_lease_is_given_back_once_nothing_of_it_is_in_flight(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its session has ended long before: the limits of both are lifted."""
    monkeypatch.setattr(dispatcher, "CALL_SECONDS", HOUR_SECONDS)
    monkeypatch.setattr(leases, "HANDLER_SECONDS", 0.1)
    venue = SlowVenue()
    async with open_in_process(urls, accounts=2, venue=venue) as in_process:
        accounts = in_process.in_process_writer.accounts
        async with executing(in_process) as first:
            orders = [await in_process.create(account=each) for each in accounts]
            await in_process.until_true(lambda: len(venue.commands) == 2)
            async with executing(in_process) as second:
                await in_process.until_true(
                    lambda: any(each.has_ended for each in first.leases.sessions.values())
                )
                assert len(first.leases.sessions) == 2
                assert not second.leases.sessions
                venue.answers.set()
                await in_process.until_true(lambda: len(second.leases.sessions) == 1)
                for order in orders:
                    await in_process.until_status(order, "NEW")
                    assert "UNKNOWN" not in await in_process.streamed_statuses(order)
