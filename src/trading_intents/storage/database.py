"""Pools of connections, one per database role, and the transactions on them. Knows no table."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from uuid import UUID

import asyncpg

from trading_intents.errors import OutcomeUnknown, StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.telemetry import Log, Metrics

OWNER_ROLE, SERVICE_ROLE, WORKER_ROLE = "ti_owner", "ti_service", "ti_worker"
OLDEST_SERVER_VERSION = 150_000
# A caller is told within 3 s that the database is away: acquiring and beginning together stay below that.
ACQUIRE_LIMIT_SECONDS = 2.0
BEGIN_LIMIT_SECONDS = 0.9
COMMAND_LIMIT_SECONDS = 2.5
ROLLBACK_LIMIT_SECONDS = 1.0
HEALTH_LIMIT_SECONDS = 1.0
CLOSE_LIMIT_SECONDS = 5.0

Row = Mapping[str, Any]
Isolation = Literal["read committed", "repeatable read", "serializable"]

_LOST = (
    OSError,  # TimeoutError is one
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
)
_AWAY = (*_LOST, asyncpg.InsufficientResourcesError)


class Tx(Protocol):
    """An open transaction. `timeout` is in seconds and replaces COMMAND_LIMIT_SECONDS."""

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]: ...

    async def fetchrow(self, query: str, *args: object, timeout: float | None = None) -> Row | None: ...

    async def fetchval(self, query: str, *args: object, timeout: float | None = None) -> Any: ...

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...

    async def executemany(
        self, command: str, args: Sequence[Sequence[object]], *, timeout: float | None = None
    ) -> None: ...


class Pool:
    """Connections that act as one database role."""

    def __init__(self, pool: Any, role: str, metrics: Metrics) -> None:
        self._pool = pool
        self._in_use = metrics.pool_in_use.labels(role)

    @contextlib.asynccontextmanager
    async def transaction(
        self, organizations: Sequence[UUID] = (), *, read_only: bool = False, isolation: Isolation = "read committed"
    ) -> AsyncIterator[Tx]:
        """Commits at the end, rolls back on an error. Sees the tenant rows of these organizations only.

        Raises Unavailable when the database is away and nothing was recorded, OutcomeUnknown when it went away in
        the very moment of the commit.
        """
        async with self._connection() as connection:
            with _away_is_unavailable():
                await connection.execute(_begin(organizations, read_only, isolation), timeout=BEGIN_LIMIT_SECONDS)
            try:
                with _lost_is_unavailable(connection):
                    yield connection
            except BaseException:
                await _rollback(connection)
                raise
            await _commit(connection, read_only)

    async def healthy(self) -> bool:
        """Whether the database answers, within HEALTH_LIMIT_SECONDS."""
        try:
            async with asyncio.timeout(HEALTH_LIMIT_SECONDS), self._connection() as connection:
                return bool(await connection.fetchval("SELECT 1") == 1)
        except (Unavailable, *_AWAY):
            return False

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        with _away_is_unavailable():
            connection = await self._pool.acquire(timeout=ACQUIRE_LIMIT_SECONDS)
        self._in_use.inc()
        try:
            yield connection
        except _LOST:
            connection.terminate()
            raise
        finally:
            self._in_use.dec()
            with contextlib.suppress(*_LOST):
                await self._pool.release(connection, timeout=ROLLBACK_LIMIT_SECONDS)


@dataclass(frozen=True, slots=True)
class Database:
    service: Pool
    worker: Pool


@contextlib.asynccontextmanager
async def open_database(url: Secret, pool_size: int, log: Log, metrics: Metrics) -> AsyncIterator[Database]:
    """Connects once as every role and refuses a server or role that could lose or show what it must not."""
    async with (
        open_pool(url, SERVICE_ROLE, pool_size, metrics) as service,
        open_pool(url, WORKER_ROLE, pool_size, metrics) as worker,
    ):
        log.info("database_opened", pool_size=pool_size)
        yield Database(service, worker)


@contextlib.asynccontextmanager
async def open_pool(url: Secret, role: str, size: int, metrics: Metrics) -> AsyncIterator[Pool]:
    async def become_role(connection: Any) -> None:
        await _become(connection, role)

    with _away_is_unavailable(), _refused_login_is_refused_start():
        pool = await asyncpg.create_pool(
            url.reveal(),
            min_size=1,
            max_size=size,
            timeout=ACQUIRE_LIMIT_SECONDS,
            command_timeout=COMMAND_LIMIT_SECONDS,
            init=become_role,
            reset=_keep_as_it_is,
        )
    try:
        yield Pool(pool, role, metrics)
    finally:
        await _close(pool)


async def _become(connection: Any, role: str) -> None:
    await connection.execute(f'SET ROLE "{role}"')
    row = await connection.fetchrow(
        """
        SELECT rolsuper OR rolbypassrls OR pg_has_role(rolname, $1, 'MEMBER') AS mighty,
               current_setting('server_version_num')::int AS version,
               current_setting('fsync') AS fsync,
               current_setting('synchronous_commit') AS synchronous_commit
        FROM pg_roles WHERE rolname = current_user
        """,
        OWNER_ROLE,
    )
    if row["mighty"]:
        raise StartupRefused(f"database role {role} is a superuser, has BYPASSRLS or is {OWNER_ROLE}: take that away")
    if row["version"] < OLDEST_SERVER_VERSION:
        raise StartupRefused("the database is older than PostgreSQL 15")
    for setting in ("fsync", "synchronous_commit"):
        if row[setting] == "off":
            raise StartupRefused(f"the database has {setting} off and could forget what it confirmed: turn it on")


async def _keep_as_it_is(connection: Any) -> None:
    """All state is local to a transaction, so a release needs no round trip."""


async def _close(pool: Any) -> None:
    try:
        await asyncio.wait_for(pool.close(), CLOSE_LIMIT_SECONDS)
    except BaseException as error:
        pool.terminate()
        if not isinstance(error, _LOST):
            raise


def _begin(organizations: Sequence[UUID], read_only: bool, isolation: Isolation) -> str:
    # One round trip. UUIDs can hold nothing but hexadecimal digits and dashes.
    ids = ",".join(str(UUID(int=organization.int)) for organization in organizations)
    access = "READ ONLY" if read_only else "READ WRITE"
    return (
        f"BEGIN ISOLATION LEVEL {isolation} {access};"
        f"SELECT set_config('trading_intents.organizations', '{{{ids}}}', true)"
    )


async def _commit(connection: Any, read_only: bool) -> None:
    if connection.is_closed():
        raise Unavailable("the database went away")
    commit = asyncio.ensure_future(connection.execute("COMMIT"))
    try:
        tag = await asyncio.shield(commit)
    except asyncio.CancelledError:
        # The caller is gone, the commit is on its way: the connection is free again when it is through.
        await asyncio.wait([commit])
        if commit.exception() is not None:
            connection.terminate()
        raise
    except _LOST as error:
        connection.terminate()
        if read_only:
            raise Unavailable("the database went away") from error
        raise OutcomeUnknown from error
    if tag != "COMMIT":
        raise AssertionError("a failed statement's error was swallowed inside a transaction, which then rolled back")


async def _rollback(connection: Any) -> None:
    """Shielded and bounded; a connection that does not come back clean is never used again."""
    if connection.is_closed():
        return
    rollback = asyncio.ensure_future(connection.execute("ROLLBACK", timeout=ROLLBACK_LIMIT_SECONDS))
    try:
        await asyncio.shield(rollback)
    except asyncio.CancelledError:
        connection.terminate()
        await asyncio.wait([rollback])
        raise
    except Exception:
        connection.terminate()


@contextlib.contextmanager
def _away_is_unavailable() -> Iterator[None]:
    try:
        yield
    except _AWAY as error:
        raise Unavailable("the database is away") from error


@contextlib.contextmanager
def _lost_is_unavailable(connection: Any) -> Iterator[None]:
    try:
        yield
    except _AWAY as error:
        if isinstance(error, TimeoutError):
            connection.terminate()
        raise Unavailable("the database went away") from error


@contextlib.contextmanager
def _refused_login_is_refused_start() -> Iterator[None]:
    try:
        yield
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.InsufficientPrivilegeError,
        asyncpg.UndefinedObjectError,
        asyncpg.InvalidParameterValueError,
    ) as error:
        raise StartupRefused(f"the database refuses us: {error}; run `trading-intents migrate`") from error
