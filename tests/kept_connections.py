"""Connections that stay open from test to test, for a database that stays: a backend that is new
looks up and plans everything anew, which takes longer than most tests do. To other databases, or
through a proxy, none is kept."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from psycopg.pq import TransactionStatus

from trading_intents.secret import Secret
from trading_intents.storage.connections import ConnectionPool
from trading_intents.storage.database import (
    LOCK_LIMIT_SECONDS,
    SERVICE_ROLE,
    WORKER_ROLE,
    Database,
    Pool,
    open_database,
    open_pool,
)
from trading_intents.storage.pipeline import Pipeline, PipelineConnection
from trading_intents.telemetry import Metrics, make_log


def _lists() -> defaultdict[Any, list[Any]]:
    return defaultdict(list)


@dataclass
class IdleConnections:
    """Connections to one database that no test uses now, by what they are for."""

    loop: asyncio.AbstractEventLoop  # which the tests share
    owners: list[asyncpg.Connection] = field(default_factory=list)
    pipelines: defaultdict[tuple[str, float], list[PipelineConnection]] = field(
        default_factory=_lists
    )
    pools: defaultdict[tuple[str, int], list[Pool]] = field(default_factory=_lists)
    every_pool: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def pids(self) -> list[int]:
        """The backends' process ids."""
        pooled = [
            connection
            for pools in self.pools.values()
            for pool in pools
            for connection, _ in _pool(pool)._idle
        ]
        pipelines = [connection for kind in self.pipelines.values() for connection in kind]
        return [
            *(connection.get_server_pid() for connection in (*self.owners, *pooled)),
            *(connection._pgconn.backend_pid for connection in pipelines if not connection.lost),
        ]


_kept: dict[str, IdleConnections] = {}  # by the URLs of both logins


@contextlib.asynccontextmanager
async def keeping(*urls: Secret) -> AsyncIterator[IdleConnections]:
    """Keeps the connections to these URLs until the block ends."""
    idle = IdleConnections(asyncio.get_running_loop())
    _kept.update({url.reveal(): idle for url in urls})
    try:
        yield idle
    finally:
        for url in urls:
            del _kept[url.reveal()]
        await idle.every_pool.aclose()
        for connection in [each for kind in idle.pipelines.values() for each in kind]:
            connection.close()
        for owner in idle.owners:
            await owner.close()


def _idle(url: Secret) -> IdleConnections | None:
    idle = _kept.get(url.reveal())
    return idle if idle and idle.loop is asyncio.get_running_loop() else None


@contextlib.asynccontextmanager
async def open_owner(url: Secret) -> AsyncIterator[asyncpg.Connection]:
    """A superuser, for what a test must arrange behind the platform's back."""
    idle = _idle(url)
    owner = idle.owners.pop() if idle and idle.owners else await asyncpg.connect(url.reveal())
    try:
        yield owner
    finally:
        if idle and not owner.is_closed() and not owner.is_in_transaction():
            await owner.reset()
            await owner.execute("RESET ROLE")
            idle.owners.append(owner)
        else:
            await owner.close()


class KeptPipeline(Pipeline):
    """A pipeline that takes an idle connection, and leaves it open when it is closed."""

    def __init__(self, idle: list[PipelineConnection], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._idle = idle
        self._connection = idle.pop() if idle else None

    def another(self) -> Pipeline:
        return KeptPipeline(self._idle, self._url, self._role, self._lock_limit_seconds)

    def close(self) -> None:
        connection = self.open_connection
        if connection and (
            connection._requests or connection._pgconn.transaction_status != TransactionStatus.IDLE
        ):
            super().close()
        elif connection:
            self._idle.append(connection)
        self._connection = None


def make_pipeline(
    url: Secret, role: str, lock_limit_seconds: float = LOCK_LIMIT_SECONDS
) -> Pipeline:
    idle = _idle(url)
    if idle is None:
        return Pipeline(url, role, lock_limit_seconds)
    return KeptPipeline(idle.pipelines[role, lock_limit_seconds], url, role, lock_limit_seconds)


@contextlib.asynccontextmanager
async def open_pools(url: Secret, size: int, metrics: Metrics) -> AsyncIterator[Database]:
    """As `open_database`."""
    idle = _idle(url)
    if idle is None:
        async with open_database(url, size, make_log("critical"), metrics) as database:
            yield database
        return
    async with contextlib.AsyncExitStack() as stack:
        roles = (SERVICE_ROLE, SERVICE_ROLE, WORKER_ROLE)
        pools = [
            await stack.enter_async_context(_taken_pool(idle, url, role, size)) for role in roles
        ]
        service, stream, worker = (Pool(pool._connections, pool._role, metrics) for pool in pools)
        yield Database(service, stream, worker)


@contextlib.asynccontextmanager
async def _taken_pool(
    idle: IdleConnections, url: Secret, role: str, size: int
) -> AsyncIterator[Pool]:
    kept = idle.pools[role, size]
    pool = (
        kept.pop()
        if kept
        else await idle.every_pool.enter_async_context(open_pool(url, role, size, Metrics()))
    )
    yield pool
    # Nobody uses a connection of it any more.
    if len(_pool(pool)._idle) and _pool(pool)._free == size:
        kept.append(pool)


def _pool(pool: Pool) -> ConnectionPool:
    assert isinstance(pool._connections, ConnectionPool)
    return pool._connections
