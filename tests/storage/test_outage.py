"""The database goes away and comes back under load: nothing confirmed is lost, and every caller is
answered in time."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Urls
from tests.proxy import proxied
from tests.storage.conftest import ServerProcess, Start, kill_postgres, postmaster, query
from tests.waiting import eventually_async
from trading_intents.errors import OutcomeUnknown, Unavailable
from trading_intents.secret import Secret
from trading_intents.storage import connections
from trading_intents.storage import database as storage
from trading_intents.storage.database import SERVICE_ROLE, Database, open_database, open_pool
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import Metrics, make_log

pytestmark = pytest.mark.slow

ROUNDS = 3
WRITERS = 4
COMMITS_BETWEEN_KILLS = 30
CLIENT_PAUSE_SECONDS = 0.01
ANSWER_LIMIT_SECONDS = 3
RETURN_LIMIT_SECONDS = 5
POOL_SIZE = 10
COMMITS_LIMIT_SECONDS = 30  # for many of them, and for what the test prepares


@dataclass(kw_only=True)
class Outcomes:
    confirmed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    slowest_seconds: float = 0.0
    confirmed_at: float = field(default_factory=time.monotonic)
    longest_gap_seconds: float = 0.0  # between two confirmed commits

    def confirm(self, n: int) -> None:
        before = self.confirmed_at
        self.confirmed_at = time.monotonic()
        self.longest_gap_seconds = max(self.longest_gap_seconds, self.confirmed_at - before)
        self.confirmed.add(n)


async def prepared(process: ServerProcess) -> tuple[Secret, Secret]:
    said = process.until("url")
    owner = Secret(said["owner_url"])
    login = Secret(said["url"])
    await migrate(owner, login, make_log("warning"))
    await query(owner.reveal(), "CREATE TABLE IF NOT EXISTS t (n integer PRIMARY KEY)")
    await query(owner.reveal(), "GRANT SELECT, INSERT ON t TO ti_service")
    return owner, login


async def write(database: Database, n: int, outcomes: Outcomes) -> None:
    before = time.monotonic()
    try:
        async with database.service.transaction() as tx:
            await tx.execute("INSERT INTO t VALUES ($1)", n)
        outcomes.confirm(n)
    except Unavailable:
        outcomes.refused.add(n)
    except OutcomeUnknown:
        outcomes.unknown.add(n)
    outcomes.slowest_seconds = max(outcomes.slowest_seconds, time.monotonic() - before)


async def keep_writing(database: Database, numbers: Iterator[int], outcomes: Outcomes) -> None:
    while True:
        refused = len(outcomes.refused)
        await write(database, next(numbers), outcomes)
        if len(outcomes.refused) > refused:
            await asyncio.sleep(CLIENT_PAUSE_SECONDS)


async def keep_reading(database: Database, outcomes: Outcomes) -> None:
    """Reads all the time, and checks that each read has the rows that were confirmed before it."""
    while True:
        expected = set(outcomes.confirmed)
        try:
            async with database.service.transaction(read_only=True) as tx:
                assert {row["n"] for row in await tx.fetch("SELECT n FROM t")} >= expected
        except Unavailable:
            await asyncio.sleep(CLIENT_PAUSE_SECONDS)


async def more_confirmed(outcomes: Outcomes, count: int) -> None:
    goal = len(outcomes.confirmed) + count

    async def reached() -> bool:
        return len(outcomes.confirmed) >= goal

    await eventually_async(reached, COMMITS_LIMIT_SECONDS)


@pytest.mark.deadline
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.chaos)])
async def test_kills_under_load_lose_nothing(data_dir: Path, start: Start, kills: int) -> None:
    owner, login = await prepared(start(data_dir, "--loop", "uvloop"))
    outcomes = Outcomes()
    numbers = itertools.count()

    async def is_alive() -> bool:
        with contextlib.suppress(OSError, ValueError):  # the file is away, or half written
            return Path(f"/proc/{postmaster(data_dir)}").exists()
        return False

    async with open_database(login, WRITERS + 1, make_log("warning"), Metrics()) as database:
        tasks = [
            asyncio.create_task(keep_writing(database, numbers, outcomes)) for _ in range(WRITERS)
        ]
        tasks.append(asyncio.create_task(keep_reading(database, outcomes)))
        for _ in range(kills):
            await more_confirmed(outcomes, COMMITS_BETWEEN_KILLS)
            # The sessions of a killed server go on for a moment, and may commit meanwhile.
            await eventually_async(is_alive, COMMITS_LIMIT_SECONDS)
            kill_postgres(data_dir)
        await more_confirmed(outcomes, COMMITS_BETWEEN_KILLS)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}
    rows = set(await query(owner.reveal(), "SELECT array_agg(n) FROM t"))
    assert outcomes.confirmed <= rows
    assert not outcomes.refused & rows
    assert outcomes.refused
    assert outcomes.slowest_seconds < ANSWER_LIMIT_SECONDS
    assert outcomes.longest_gap_seconds < RETURN_LIMIT_SECONDS


@pytest.mark.deadline
async def test_a_stopped_server_is_unavailable_until_it_is_back(
    data_dir: Path, start: Start
) -> None:
    process = start(data_dir)
    _, login = await prepared(process)
    async with open_database(login, 2, make_log("warning"), Metrics()) as database:
        for n in range(ROUNDS):
            async with database.service.transaction() as tx:
                await tx.execute("INSERT INTO t VALUES ($1)", n)
            assert process.stop() == 0
            before = time.monotonic()
            with pytest.raises(Unavailable):
                async with database.service.transaction():
                    pass
            assert not await database.service.healthy()
            assert time.monotonic() - before < ANSWER_LIMIT_SECONDS
            process = start(data_dir)
            process.until("url")
            await eventually_async(database.service.healthy, RETURN_LIMIT_SECONDS)
        async with database.service.transaction() as tx:
            assert await tx.fetchval("SELECT count(*) FROM t") == ROUNDS


async def test_a_commit_that_waits_for_a_standby_is_not_cancelled(
    data_dir: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would read at once what a failover forgets."""
    monkeypatch.setattr(storage, "COMMAND_LIMIT_SECONDS", 0.5)
    owner, login = await prepared(start(data_dir))

    async def insert(n: int) -> None:
        async with database.service.transaction() as tx:
            await tx.execute("INSERT INTO t VALUES ($1)", n)

    async def first_that_waits() -> int:
        """The server may take some more before it reads its new setting."""
        for n in itertools.count():
            try:
                await insert(n)
            except OutcomeUnknown:
                return n
        raise AssertionError

    with proxied(login) as (_, through):  # by TCP, as in a cluster
        async with open_database(through, 2, make_log("warning"), Metrics()) as database:
            await name_standby(owner, "nobody")
            n = await first_that_waits()
            # Waits for that one, which neither came to be nor failed.
            with pytest.raises(Unavailable):
                await insert(n)
            await name_standby(owner, "")
            await eventually_async(lambda: has_row(database, n), COMMITS_LIMIT_SECONDS)


async def name_standby(owner: Secret, name: str) -> None:
    await query(owner.reveal(), f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    await query(owner.reveal(), "SELECT pg_reload_conf()")


async def has_row(database: Database, n: int) -> bool:
    async with database.service.transaction(read_only=True) as tx:
        return bool(await tx.fetchval("SELECT count(*) FROM t WHERE n = $1", n) == 1)


async def test_who_stands_still_in_a_transaction_keeps_nobody_longer_than_they_wait(
    database: Database,
) -> None:
    served = asyncio.Event()

    async def stand_still() -> None:
        async with database.worker.transaction() as held:
            await held.execute("SELECT pg_advisory_xact_lock(1)")
            async with database.service.transaction() as tx:
                await tx.execute("SELECT pg_advisory_xact_lock(1)")
            served.set()

    with pytest.raises((Unavailable, OutcomeUnknown)):
        await stand_still()
    assert served.is_set()


async def test_the_last_words_of_a_server_are_an_outage_before_the_connection_ends(
    urls: Urls,
) -> None:
    async def hear_last_words(tx: Any) -> None:
        heard = asyncio.Event()
        tx.add_log_listener(lambda *_: heard.set())
        proxy.send_last_words()
        async with asyncio.timeout(COMMITS_LIMIT_SECONDS):
            await heard.wait()

    async def transact(statement: str) -> None:
        async with pool.transaction() as tx:
            await hear_last_words(tx)
            if statement:
                await tx.execute(statement)

    with proxied(urls.login) as (proxy, url):
        async with open_pool(url, SERVICE_ROLE, 1, Metrics()) as pool:
            for statement, error in (("SELECT 1", Unavailable), ("", OutcomeUnknown)):
                with pytest.raises(error):
                    await transact(statement)
                assert await pool.healthy()


async def test_a_pool_whose_network_is_stalled_closes_all_its_connections_at_once(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CLOSE_LIMIT_SECONDS", 0.5)
    with proxied(urls.login) as (proxy, url):
        async with contextlib.AsyncExitStack() as stack:
            pool = await stack.enter_async_context(
                open_pool(url, SERVICE_ROLE, POOL_SIZE, Metrics())
            )
            async with contextlib.AsyncExitStack() as used:
                for _ in range(POOL_SIZE):
                    await used.enter_async_context(pool.transaction())
            proxy.stall()
            async with asyncio.timeout(POOL_SIZE * connections.CLOSE_LIMIT_SECONDS / 2):
                await stack.aclose()
