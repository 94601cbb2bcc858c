"""Pools and transactions: what they see, what they refuse, and what a caller gets when the
connection is lost."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.proxy import FaultProxy, Verdict, proxied
from tests.storage.conftest import query
from trading_intents.errors import OutcomeUnknown, StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.storage.database import (
    SERVICE_ROLE,
    Database,
    Isolation,
    Pool,
    Tx,
    open_database,
    open_pool,
)
from trading_intents.storage.migrate import pending
from trading_intents.telemetry import Metrics, make_log

TENANT_TABLE = """
    CREATE TABLE things (organization_id uuid NOT NULL, name text NOT NULL);
    CREATE INDEX ON things (organization_id);
    ALTER TABLE things ENABLE ROW LEVEL SECURITY;
    ALTER TABLE things FORCE ROW LEVEL SECURITY;
    CREATE POLICY service ON things TO ti_service
        USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
    GRANT SELECT, INSERT ON things TO ti_service;
    CREATE TABLE notes (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED);
    GRANT SELECT, INSERT ON notes TO ti_service;
"""
HOLD_LIMIT_SECONDS = 5
A = UUID(int=1)
B = UUID(int=2)
C = UUID(int=3)


@pytest.fixture(autouse=True)
async def tables(owner_url: Secret) -> None:
    connection = await asyncpg.connect(owner_url.reveal())
    await connection.execute(f"SET ROLE ti_owner; {TENANT_TABLE}")
    await connection.close()


class Watch:
    """Remembers the simple queries, and decides what becomes of a COMMIT."""

    def __init__(self) -> None:
        self.queries: list[bytes] = []
        self.at_commit = Verdict.PASS

    def look(self, data: bytes) -> Verdict:
        query = data[5:].rstrip(b"\0") if data[:1] == b"Q" else b""
        if query:
            self.queries.append(query)
        return self.at_commit if query == b"COMMIT" else Verdict.PASS


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def faulty(urls: Urls, watch: Watch) -> Iterator[tuple[FaultProxy, Secret]]:
    with proxied(urls.login, watch.look) as (proxy, url):
        yield proxy, url


@pytest.fixture
def proxy(faulty: tuple[FaultProxy, Secret]) -> FaultProxy:
    return faulty[0]


@pytest.fixture
async def proxied_pool(faulty: tuple[FaultProxy, Secret], metrics: Metrics) -> AsyncIterator[Pool]:
    """A pool of one connection, over a connection that can be cut."""
    async with open_pool(faulty[1], "ti_service", 1, metrics) as pool:
        yield pool


async def notes(urls: Urls) -> int:
    return int(await query(urls.owner.reveal(), "SELECT count(*) FROM notes"))


async def test_a_transaction_sees_its_organizations_only(database: Database) -> None:
    for organization in (A, B, C):
        async with database.service.transaction([organization]) as tx:
            await tx.execute("INSERT INTO things VALUES ($1, 'x')", organization)
    seen = {}
    for organizations in ((), (A,), (A, C), (uuid4(),)):
        async with database.service.transaction(organizations, read_only=True) as tx:
            rows = await tx.fetch("SELECT organization_id FROM things ORDER BY 1")
            seen[organizations] = [row["organization_id"] for row in rows]
    assert list(seen.values()) == [[], [A], [A, C], []]


async def test_a_row_of_another_organization_cannot_be_written(database: Database) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with database.service.transaction([A]) as tx:
            await tx.execute("INSERT INTO things VALUES ($1, 'x')", B)


async def test_the_policy_is_computed_once_and_can_use_an_index(database: Database) -> None:
    async with database.service.transaction([A]) as tx:
        await tx.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        plan = "\n".join(
            row["QUERY PLAN"] for row in await tx.fetch("EXPLAIN SELECT * FROM things")
        )
    assert "InitPlan" in plan
    assert "Index Cond: (organization_id = ANY" in plan


async def test_each_pool_acts_as_its_role(database: Database) -> None:
    async with database.service.transaction() as one, database.worker.transaction() as two:
        users = [await tx.fetchval("SELECT current_user::text") for tx in (one, two)]
    assert users == ["ti_service", "ti_worker"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_a_transaction_has_the_isolation_it_asked_for(
    database: Database, isolation: Isolation
) -> None:
    async with database.service.transaction(isolation=isolation) as tx:
        assert await tx.fetchval("SHOW transaction_isolation") == isolation


async def test_a_read_only_transaction_writes_nothing(database: Database) -> None:
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        async with database.service.transaction(read_only=True) as tx:
            await tx.execute("INSERT INTO notes VALUES (1)")


async def test_an_error_rolls_back_and_arrives_unchanged(urls: Urls, proxied_pool: Pool) -> None:
    pids: set[int] = set()

    async def fail(act: Callable[[Tx], Awaitable[object]]) -> None:
        async with proxied_pool.transaction() as tx:
            pids.add(await tx.fetchval("SELECT pg_backend_pid()"))
            await tx.execute("INSERT INTO notes VALUES (1)")
            await act(tx)

    async def look_for_a_file(tx: Tx) -> None:
        raise FileNotFoundError

    with pytest.raises(asyncpg.UndefinedColumnError):
        await fail(lambda tx: tx.fetch("SELECT nonsense"))
    # An argument is missing: ours to mend, nobody is away.
    with pytest.raises(asyncpg.InterfaceError):
        await fail(lambda tx: tx.fetch("SELECT $1::int"))
    with pytest.raises(FileNotFoundError):
        await fail(look_for_a_file)
    assert await notes(urls) == 0
    assert len(pids) == 1


async def test_an_error_at_commit_that_the_server_answers_is_certain(
    urls: Urls, database: Database
) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        async with database.service.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1), (1)")
    assert await notes(urls) == 0


async def test_a_swallowed_error_is_not_taken_for_a_commit(database: Database) -> None:
    with pytest.raises(AssertionError, match="swallowed"):
        async with database.service.transaction() as tx:
            await asyncio.gather(tx.fetch("SELECT nonsense"), return_exceptions=True)


async def test_a_transaction_is_two_round_trips_and_its_statements(
    proxied_pool: Pool, watch: Watch
) -> None:
    watch.queries.clear()
    for organization in (A, B):
        async with proxied_pool.transaction([organization]):
            pass
    assert [query[:5] for query in watch.queries] == [b"BEGIN", b"COMMI", b"BEGIN", b"COMMI"]


async def insert_and_lose_the_backend(urls: Urls, pool: Pool, then: str) -> None:
    async with pool.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (1)")
        pid = await tx.fetchval("SELECT pg_backend_pid()")
        await query(urls.owner.reveal(), f"SELECT pg_terminate_backend({pid}, 5000)")
        swallow = then == "swallow"
        with (
            pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError))
            if swallow
            else contextlib.nullcontext()
        ):
            await tx.execute("SELECT 1" if swallow else then)


@pytest.mark.parametrize("then", ["SELECT 1", "SELECT pg_sleep(60)", "swallow"])
async def test_a_backend_lost_before_the_commit_is_certain(
    urls: Urls, database: Database, then: str
) -> None:
    with pytest.raises(Unavailable):
        await insert_and_lose_the_backend(urls, database.service, then)
    assert await notes(urls) == 0
    assert await database.service.healthy()


async def test_a_connection_cut_at_commit_leaves_the_outcome_unknown(
    proxied_pool: Pool, watch: Watch
) -> None:
    for cut, n in ((Verdict.CUT_UNSENT, 1), (Verdict.CUT_UNANSWERED, 2)):
        watch.at_commit = cut
        with pytest.raises(OutcomeUnknown):
            async with proxied_pool.transaction() as tx:
                await tx.execute("INSERT INTO notes VALUES ($1)", n)
        with pytest.raises(Unavailable):
            async with proxied_pool.transaction(read_only=True):
                pass
        watch.at_commit = Verdict.PASS
    async with proxied_pool.transaction() as tx:
        assert [row["n"] for row in await tx.fetch("SELECT n FROM notes")] == [2]


async def test_the_server_is_not_asked_what_an_array_is(database: Database) -> None:
    values: dict[str, object] = {
        **{"boolean": True, "bytea": b"x", "integer": 1, "bigint": 1 << 40, "float8": 0.5},
        **{
            "timestamptz": datetime.now(UTC),
            "numeric": Decimal("1.50"),
            "uuid": uuid4(),
            "text": "x",
        },
    }
    asked: list[str] = []
    async with database.worker.transaction() as tx:
        connection: Any = tx
        connection.add_query_logger(lambda record: asked.append(record.query))
        for kind, value in values.items():
            assert await tx.fetchval(f"SELECT $1::{kind}[]", [value, None]) == [value, None]
    assert asked == [*(f"SELECT $1::{kind}[]" for kind in values), "COMMIT"]


@pytest.mark.deadline
async def test_a_stalled_connection_is_given_up_in_time(
    proxied_pool: Pool, proxy: FaultProxy
) -> None:
    proxy.stall()
    for attempt in (transact, never_healthy):
        before = time.monotonic()
        await attempt(proxied_pool)
        assert time.monotonic() - before < 3
    proxy.work()
    assert await proxied_pool.healthy()


async def transact(pool: Pool) -> None:
    with pytest.raises(Unavailable):
        async with pool.transaction():
            pass


async def never_healthy(pool: Pool) -> None:
    assert not await pool.healthy()


async def test_many_callers_on_a_cold_pool_share_what_the_first_made(
    urls: Urls, metrics: Metrics
) -> None:
    callers = 10
    all_hold = asyncio.Event()
    holding = 0
    open_ones = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND usename <> current_user
    """

    async def use() -> None:
        async with pool.transaction() as tx:
            await tx.fetchval("SELECT 1")

    async def hold() -> None:
        nonlocal holding
        async with pool.transaction():
            holding += 1
            if holding == callers:
                all_hold.set()
            await all_hold.wait()

    async with open_pool(urls.login, SERVICE_ROLE, callers, metrics) as pool:
        await asyncio.gather(*(use() for _ in range(callers)))
        assert await query(urls.owner.reveal(), open_ones) < callers
        await asyncio.gather(*(hold() for _ in range(callers)))
        assert await query(urls.owner.reveal(), open_ones) == callers, (
            "who need them all at once have them all"
        )


@pytest.mark.deadline
async def test_an_exhausted_pool_is_unavailable_and_counted(
    proxied_pool: Pool, metrics: Metrics
) -> None:
    async with proxied_pool.transaction():
        assert in_use(metrics) == 1
        before = time.monotonic()
        await transact(proxied_pool)
        assert time.monotonic() - before < 3
    assert in_use(metrics) == 0
    assert await proxied_pool.healthy()


def in_use(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value(
        "ti_database_connections_in_use", {"role": "ti_service"}
    )


async def test_cancelled_callers_leave_nothing_and_free_the_pool(
    urls: Urls, database: Database, metrics: Metrics
) -> None:
    async def insert(inserted: asyncio.Event) -> None:
        async with database.service.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1)")
            inserted.set()
            await tx.execute("SELECT pg_sleep(60)")

    for _ in range(20):
        events = [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.create_task(insert(event)) for event in events]
        await asyncio.gather(*(event.wait() for event in events))
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}
    assert await notes(urls) == 0
    assert in_use(metrics) == 0
    assert await database.service.healthy()


async def test_a_cancelled_caller_does_not_cancel_its_commit(
    urls: Urls, proxied_pool: Pool, proxy: FaultProxy, watch: Watch
) -> None:
    async def insert() -> None:
        async with proxied_pool.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (1)")

    watch.at_commit = Verdict.HOLD
    task = asyncio.create_task(insert())
    assert await asyncio.to_thread(proxy.held.wait, HOLD_LIMIT_SECONDS)
    task.cancel()
    watch.at_commit = Verdict.PASS
    proxy.work()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await notes(urls) == 1
    assert await proxied_pool.healthy()


async def test_a_caller_cancelled_twice_gives_the_connection_up(
    proxied_pool: Pool, proxy: FaultProxy, watch: Watch
) -> None:
    watch.at_commit = Verdict.HOLD
    task = asyncio.create_task(enter_and_leave(proxied_pool))
    assert await asyncio.to_thread(proxy.held.wait, HOLD_LIMIT_SECONDS)
    task.cancel()
    await asyncio.wait([task], timeout=0.01)
    task.cancel()
    await asyncio.wait([task], timeout=HOLD_LIMIT_SECONDS)
    assert task.cancelled()
    watch.at_commit = Verdict.PASS
    proxy.work()
    assert await proxied_pool.healthy()


async def enter_and_leave(pool: Pool) -> None:
    async with pool.transaction():
        pass


@pytest.mark.parametrize("role", ["postgres", "ti_owner", "ti_bypass"])
async def test_a_role_that_sees_everything_is_refused(
    urls: Urls, metrics: Metrics, role: str
) -> None:
    await query(urls.owner.reveal(), "DROP ROLE IF EXISTS ti_bypass")
    await query(urls.owner.reveal(), "CREATE ROLE ti_bypass BYPASSRLS")
    with pytest.raises(StartupRefused, match=role):
        async with open_pool(urls.owner, role, 1, metrics):
            pass


async def test_a_forgetful_server_is_refused(urls: Urls, metrics: Metrics) -> None:
    name = await query(urls.owner.reveal(), "SELECT current_database()")
    await query(urls.owner.reveal(), f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(StartupRefused, match="synchronous_commit"):
        async with open_database(urls.login, 1, make_log("warning"), metrics):
            pass


@pytest.mark.parametrize(
    "spoil",
    [
        lambda url: url.replace("@/", "x@/"),
        lambda url: url.replace("?", "_gone?"),
    ],
    ids=["password", "database"],
)
async def test_a_wrong_url_is_refused(
    urls: Urls, metrics: Metrics, spoil: Callable[[str], str]
) -> None:
    with pytest.raises(StartupRefused, match="DATABASE_URL"):
        async with open_database(
            Secret(spoil(urls.login.reveal())), 1, make_log("warning"), metrics
        ):
            pass


@pytest.mark.parametrize(
    "url", ["postgresql://u:se/cret@h/d", "postgresql://u:se#cret@h/d", "mysql://u:se@h/d", "se"]
)
async def test_an_unreadable_url_is_refused_without_showing_it(metrics: Metrics, url: str) -> None:
    with pytest.raises(StartupRefused) as refused:
        async with open_database(Secret(url), 1, make_log("warning"), metrics):
            pass
    with pytest.raises(StartupRefused) as pending_refused:
        await pending(Secret(url))
    for error in (refused.value, pending_refused.value):
        assert error.__cause__ is None
        assert "'se" not in error.detail


async def test_an_absent_server_is_unavailable(
    urls: Urls, metrics: Metrics, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable):
        async with open_database(
            Secret(urls.login.reveal().split("host=")[0] + f"host={tmp_path}"),
            1,
            make_log("warning"),
            metrics,
        ):
            pass
