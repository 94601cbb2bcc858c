"""Connections belong to the pool: an attempt to connect outlives the callers that wait for it, and
a pool keeps some open before they are needed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Urls
from tests.platform import serving
from tests.proxy import Verdict, proxied
from tests.waiting import eventually, eventually_async
from trading_intents.errors import Unavailable
from trading_intents.loops import LoopSlots, stop_tasks
from trading_intents.storage import connections as module
from trading_intents.storage import pipeline as pipelines
from trading_intents.storage.connections import KEPT_CONNECTIONS, MAX_OPENING, ConnectionPool
from trading_intents.storage.database import SERVICE_ROLE
from trading_intents.storage.pipeline import Pipeline

SIZE = 6
WAIT_SECONDS = 0.01
LIMIT_SECONDS = 10
SLOW_SECONDS = 2.2  # longer than a request waits for a connection
POOLS = 3


class FakeConnection:
    def __init__(self) -> None:
        self._is_closed = False

    def is_closed(self) -> bool:
        return self._is_closed

    def terminate(self) -> None:
        self._is_closed = True

    async def close(self, timeout: float) -> None:
        self._is_closed = True


@dataclass
class FakeServer:
    """Opens connections as long as it is allowed to."""

    attempts: int = 0
    allowed: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    error: Exception | None = None
    opened: list[FakeConnection] = field(default_factory=list)

    async def connect(self) -> FakeConnection:
        self.attempts += 1
        await self.allowed.acquire()
        if self.error:
            raise self.error
        self.opened.append(FakeConnection())
        return self.opened[-1]

    def allow(self, count: int) -> None:
        for _ in range(count):
            self.allowed.release()


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
async def pool(server: FakeServer) -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(server.connect, SIZE, slots=LoopSlots[Hashable]())
    yield made
    await made.close()


@pytest.fixture
async def kept(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ConnectionPool]:
    monkeypatch.setattr(module, "KEEP_PAUSE_SECONDS", WAIT_SECONDS)
    keeping = asyncio.create_task(pool.keep())
    yield pool
    await stop_tasks(keeping)


async def give_up(pool: ConnectionPool) -> None:
    with pytest.raises(TimeoutError):
        await pool.take(WAIT_SECONDS)


async def test_an_attempt_outlives_the_callers_that_give_up(
    pool: ConnectionPool, server: FakeServer
) -> None:
    await asyncio.gather(*(give_up(pool) for _ in range(3)))
    assert server.attempts == MAX_OPENING
    await give_up(pool)
    assert server.attempts == MAX_OPENING, "those that run are waited for"
    server.allow(MAX_OPENING)
    taken = [await pool.take(LIMIT_SECONDS) for _ in range(MAX_OPENING)]
    assert taken == server.opened
    assert server.attempts == MAX_OPENING
    for each in taken:
        pool.give_back(each)


async def test_a_failed_attempt_fails_the_caller_that_waited_longest(
    pool: ConnectionPool, server: FakeServer
) -> None:
    server.error = OSError("refused")
    waiting = [asyncio.create_task(pool.take(LIMIT_SECONDS)) for _ in range(3)]
    await asyncio.sleep(0)
    server.allow(1)
    with pytest.raises(OSError, match="refused"):
        await waiting[0]
    server.error = None
    server.allow(2)
    taken = [await waiting[1], await waiting[2]]
    assert taken == server.opened
    for each in taken:
        pool.give_back(each)


async def test_a_connection_that_is_given_back_serves_who_waits_for_a_new_one(
    pool: ConnectionPool, server: FakeServer
) -> None:
    server.allow(1)
    used = await pool.take(LIMIT_SECONDS)
    waiting = asyncio.create_task(pool.take(LIMIT_SECONDS))
    await asyncio.sleep(0)
    pool.give_back(used)
    assert await waiting is used
    pool.give_back(used)


@pytest.mark.parametrize("seed", range(3))
async def test_callers_that_come_and_go_leave_as_many_connections_as_there_may_be(
    pool: ConnectionPool, server: FakeServer, seed: int
) -> None:
    async def use(number: int) -> None:
        with contextlib.suppress(TimeoutError):
            taken = await pool.take(WAIT_SECONDS * (1 + (number + seed) % 3))
            try:
                assert not taken.is_closed()
                if number % 5 == seed:
                    taken.terminate()
                await asyncio.sleep(0)
            finally:
                pool.give_back(taken)

    callers = [asyncio.create_task(use(number)) for number in range(60)]
    for number, caller in enumerate(callers):
        server.allow(number % 2)
        await asyncio.sleep(0)
        if number % 7 == seed:
            caller.cancel()
        assert len([each for each in server.opened if not each.is_closed()]) <= SIZE
    await asyncio.gather(*callers, return_exceptions=True)
    server.allow(SIZE)
    taken = [await pool.take(LIMIT_SECONDS) for _ in range(SIZE)]
    assert len(set(taken)) == SIZE
    await give_up(pool)
    for each in taken:
        pool.give_back(each)


async def test_a_pool_is_warm_once_all_that_it_keeps_are_open(
    kept: ConnectionPool, server: FakeServer
) -> None:
    server.allow(KEPT_CONNECTIONS - 1)
    await eventually_async(lambda: have_opened(server, KEPT_CONNECTIONS - 1), LIMIT_SECONDS)
    await asyncio.sleep(0)
    assert not kept.warm.is_set()
    server.allow(1)
    await asyncio.wait_for(kept.warm.wait(), LIMIT_SECONDS)
    assert server.attempts == KEPT_CONNECTIONS, "more are opened when they are needed"
    server.opened[0].terminate()
    server.allow(1)
    await eventually_async(lambda: have_opened(server, KEPT_CONNECTIONS + 1), LIMIT_SECONDS)
    assert kept.warm.is_set(), "one that is replaced sends no caller away"
    for each in server.opened:
        each.terminate()
    await eventually_async(lambda: is_cold(kept), LIMIT_SECONDS)
    server.allow(KEPT_CONNECTIONS)
    await asyncio.wait_for(kept.warm.wait(), LIMIT_SECONDS)


async def have_opened(server: FakeServer, count: int) -> bool:
    return len(server.opened) == count


async def is_cold(pool: ConnectionPool) -> bool:
    return not pool.warm.is_set()


async def test_kept_connections_that_are_old_are_replaced_one_by_one(
    kept: ConnectionPool, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.allow(KEPT_CONNECTIONS)
    await asyncio.wait_for(kept.warm.wait(), LIMIT_SECONDS)
    first = list(server.opened)
    monkeypatch.setattr(module, "IDLE_LIMIT_SECONDS", 0)
    await eventually_async(lambda: have_closed(first, 1), LIMIT_SECONDS)
    for count in range(2, KEPT_CONNECTIONS + 1):
        assert kept.warm.is_set()
        server.allow(1)
        await eventually_async(partial(have_closed, first, count), LIMIT_SECONDS)


async def have_closed(connections: list[FakeConnection], count: int) -> bool:
    return len([each for each in connections if each.is_closed()]) >= count


async def test_an_attempt_of_a_pipeline_outlives_its_caller(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "ACQUIRE_LIMIT_SECONDS", WAIT_SECONDS)
    attempts = 0

    def count(data: bytes) -> Verdict:
        nonlocal attempts
        attempts += b"user\0" in data
        return Verdict.PASS

    with proxied(urls.login, count) as (proxy, url):
        proxy.connect_delay_seconds = 0.3
        pipeline = Pipeline(url, SERVICE_ROLE)
        with pytest.raises(Unavailable):
            await pipeline.connect()

        async def is_open() -> bool:
            with contextlib.suppress(Unavailable):
                await pipeline.connect()
            return pipeline.open_connection is not None

        await eventually_async(is_open, LIMIT_SECONDS)
        assert attempts == 1
        pipeline.close()


@pytest.mark.slow
def test_a_process_gets_warm_though_connecting_takes_longer_than_a_request_waits(
    urls: Urls, tmp_path: Path
) -> None:
    with (
        proxied(urls.login) as (proxy, through),
        serving(
            tmp_path, DATABASE_URL=through.reveal(), DATABASE_OWNER_URL=urls.owner.reveal()
        ) as platform,
        psycopg.connect(urls.owner.reveal(), autocommit=True) as owner,
    ):
        assert platform.client.get("/readyz").status_code == 200
        proxy.connect_delay_seconds = SLOW_SECONDS
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
        own = [owner.info.backend_pid]
        owner.execute(f"SELECT pg_terminate_backend(pid, 5000) {others}".encode(), own)
        assert platform.client.get("/readyz").status_code == 503

        def is_ready() -> bool:
            return platform.client.get("/readyz").status_code == 200

        eventually(is_ready, LIMIT_SECONDS * 2)
        [[count]] = owner.execute(f"SELECT count(*) {others}".encode(), own).fetchall()
        assert count >= POOLS * KEPT_CONNECTIONS, "ready means warm"
