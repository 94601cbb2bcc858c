"""Pools of connections, one per database role, and the transactions on them. Knows no table."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from uuid import UUID

import asyncpg

from trading_intents.errors import (
    DiskFailed,
    OutcomeUnknown,
    PlatformError,
    StartupRefused,
    Unavailable,
)
from trading_intents.loops import LoopSlots, start_loop, stop_tasks
from trading_intents.secret import Secret
from trading_intents.storage.connections import (
    CONNECTION_ERRORS,
    POOLED_BY_TRANSACTION,
    READ_POSITION,
    UNPREPARED,
    ConnectionPool,
    PoolBusy,
    PoolQuota,
    WalHistory,
    refuse_transaction_pooler,
    register_array_types,
)
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import FrozenStruct

OWNER_ROLE = "ti_owner"
SERVICE_ROLE = "ti_service"
WORKER_ROLE = "ti_worker"
ADMIN_ROLE = "ti_admin"  # provisions: a member of the service's role
OLDEST_SERVER_VERSION = 150_000
# Callers learn within 3 s that the database is unavailable: acquire and BEGIN together take less.
ACQUIRE_LIMIT_SECONDS = 2.0
CONNECT_LIMIT_SECONDS = 10.0  # of an attempt, which no caller waits for so long but a start
BEGIN_LIMIT_SECONDS = 0.9
COMMAND_LIMIT_SECONDS = 2.5
ROLLBACK_LIMIT_SECONDS = 1.0
# In this order: an idle transaction is killed before the commands that wait for its locks time out.
IDLE_LIMIT_SECONDS = 2.2
LOCK_LIMIT_SECONDS = 2.4
CONNECTION_CHECK_SECONDS = 0.5
HEALTH_LIMIT_SECONDS = 1.0
# A few hundred kilobytes that do not fit into this memory would go to a temporary file beside the
# tables, which cannot be written on a full disk.
WRITE_PROBE = (
    "BEGIN; SET LOCAL work_mem = '64kB'; SELECT count(*) FROM generate_series(1, 10000); COMMIT"
)
RECONNECT_PAUSE_SECONDS = 0.1

# Where one of them is off, the server may forget what it confirmed.
DURABLE_SETTINGS = ("fsync", "synchronous_commit")

Row = Mapping[str, Any]
Plans = Literal["by_key", "fresh"]
# The settings below raise costs to where the server would compile a statement each time: that takes
# up to a second.
NO_JIT = "jit = off"
# How sessions plan, so that no plan depends on how large the tables were when it was made (decision
# 0039).
PLANS_BY_KEY = (
    NO_JIT,
    "plan_cache_mode = force_generic_plan",
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
)
_FRESH_PLANS = (
    "plan_cache_mode = force_custom_plan",
    "enable_seqscan = on",
    "enable_bitmapscan = on",
    "enable_hashjoin = on",
    "enable_mergejoin = on",
)
Isolation = Literal["read committed", "repeatable read", "serializable"]

LOST = (
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
)
# The connection is lost only if it is closed: these also report a wrong number or type of
# arguments.
LOST_IF_CLOSED = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
DISK_FAILED = (asyncpg.DiskFullError, asyncpg.PostgresSystemError)
CANNOT_CONNECT = (*LOST, *LOST_IF_CLOSED, asyncpg.InsufficientResourcesError)
REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,  # a wrong password is one
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidParameterValueError,  # SET ROLE to one that does not exist
    asyncpg.InsufficientPrivilegeError,
)
# Used instead of the driver's text, which can quote a part of the password.
UNREADABLE_URL = (
    "the database URL cannot be read: write postgresql://login:password@host:port/database, "
    "with %-codes for any of :/?#[]@ in the password"
)


class Tx(Protocol):
    """An open transaction. `timeout` is in seconds and replaces COMMAND_LIMIT_SECONDS."""

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]: ...

    async def fetchrow(
        self, query: str, *args: object, timeout: float | None = None
    ) -> Row | None: ...

    async def fetchval(self, query: str, *args: object, timeout: float | None = None) -> Any: ...

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...


def pack_array(values: Sequence[str | None]) -> str:
    """A column of texts as one parameter, which `from_column` in SQL makes an array again.

    It is faster than an array: the driver checks each element of an array for being an array
    itself. There is at least one value, and none has the two control characters: a value with one
    of them would become two values, or none.
    """
    joined = "\x1f".join(["\x1e" if value is None else value for value in values])
    assert joined.count("\x1f") == len(values) - 1, (
        "a value holds the separator, or there is no value"
    )
    assert joined.count("\x1e") == values.count(None), "a value holds the sign of NULL"
    return joined


def state_role(role: str) -> str:
    """Begins every transaction: behind a pooler its session may have another role."""
    return f'SET LOCAL ROLE "{role}"'


def session_setup(role: str, lock_limit_seconds: float, **more_seconds: float) -> list[str]:
    """The first statements on each connection. The limits are the server's: they hold for a client
    that is stopped, cut off or gone, and keep its locks and statements from outliving it.

    An idle transaction is ended only while the server waits for a new request: end what is sent
    with a Sync.
    """
    limits_seconds = {
        "idle_in_transaction_session_timeout": IDLE_LIMIT_SECONDS,
        "lock_timeout": lock_limit_seconds,
        # Ends a statement whose client has closed the connection. Unlike a cancel request it cannot
        # hit a COMMIT.
        "client_connection_check_interval": CONNECTION_CHECK_SECONDS,
        **more_seconds,
    }
    return [
        f'SET ROLE "{role}"',
        *(f"SET {name} = '{round(seconds * 1000)}ms'" for name, seconds in limits_seconds.items()),
        *(f"SET {setting}" for setting in PLANS_BY_KEY),
    ]


class Pool:
    def __init__(
        self,
        connections: ConnectionPool | PoolQuota,
        role: str,
        metrics: Metrics,
        history: WalHistory | None = None,
    ) -> None:
        self._connections = connections
        self._role = role
        self._metrics = metrics
        self._history = history
        self._in_use = metrics.pool_in_use.labels(role)
        self._away_until_seconds = 0.0

    @property
    def size(self) -> int:
        return self._connections.size

    def share(self) -> "Pool":
        """A quota of half the connections: callers that use all of it leave the other half free."""
        quota = PoolQuota(self._connections, max(1, self._connections.size // 2))
        return Pool(quota, self._role, self._metrics, self._history)

    @contextlib.asynccontextmanager
    async def transaction(
        self,
        organizations: Sequence[UUID] = (),
        *,
        read_only: bool = False,
        isolation: Isolation = "read committed",
        plans: Plans = "by_key",
        slot: Hashable = None,
    ) -> AsyncIterator[Tx]:
        """Commits at the end, rolls back on an error. Sees the tenant rows of these organizations
        only. Without one organization, those with an equal `slot` wait in one line for a
        connection.

        `plans` says how statements are planned. "by_key": once, and through indexes whatever the
        tables' size. "fresh": each time, by any plan, for the tables as they are now; for
        statements that work on many rows.

        Raises Unavailable when the database is unavailable and nothing was recorded, OutcomeUnknown
        when the connection was lost during the commit.
        """
        if len(organizations) == 1:
            slot = organizations[0]
        connection = await self._take(slot)
        try:
            await _begin(
                connection,
                self._role,
                organizations,
                read_only=read_only,
                isolation=isolation,
                plans=plans,
            )
            try:
                yield connection
                position = (
                    None
                    if read_only or not self._history
                    else await connection.fetchval(READ_POSITION)
                )
            except BaseException as error:
                await _rollback(connection, error)
                raise
            await _commit(connection, read_only)
            if position and self._history:
                self._history.note(position)
        finally:
            self._give_back(connection, slot)
        await self._connections.take_slot(slot)

    @property
    def connections(self) -> ConnectionPool:
        assert isinstance(self._connections, ConnectionPool), "a quota has none of its own"
        return self._connections

    async def healthy(self) -> bool:
        """Whether the database answers and its disk has room, within HEALTH_LIMIT_SECONDS."""
        try:
            async with asyncio.timeout(HEALTH_LIMIT_SECONDS), self.session() as connection:
                await connection.execute(WRITE_PROBE)
                return True
        except (PlatformError, *CONNECTION_ERRORS):
            return False

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """Gives a connection outside a transaction, which sees no tenant's rows."""
        connection = await self._take()
        try:
            yield connection
        except BaseException:
            connection.terminate()
            raise
        finally:
            self._give_back(connection)

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]:
        """Reads by one statement outside a transaction, in one round trip. It acts as the session's
        role, and sees rows of tenants only if it names them itself."""
        async with self.session() as connection:
            try:
                rows: list[Row] = await connection.fetch(query, *args, timeout=timeout)
            except Exception as error:
                if _is_lost(connection, error):
                    raise Unavailable("the connection to the database was lost") from error
                raise
        return rows

    async def _take(self, slot: Hashable = None) -> Any:
        now = asyncio.get_running_loop().time
        if now() < self._away_until_seconds:
            raise Unavailable("the database cannot be reached")
        try:
            connection = await self._connections.take(ACQUIRE_LIMIT_SECONDS, slot)
        except CANNOT_CONNECT as error:
            if not isinstance(error, (TimeoutError, asyncpg.InsufficientResourcesError)):
                # Pause between reconnects so that a recovering server is not flooded.
                self._away_until_seconds = now() + RECONNECT_PAUSE_SECONDS
            reason = "the database cannot be reached"
            raise Unavailable(str(error) if isinstance(error, PoolBusy) else reason) from error
        self._in_use.inc()
        return connection

    def _give_back(self, connection: Any, slot: Hashable = None) -> None:
        self._in_use.dec()
        self._connections.give_back(connection, slot)


@dataclass(frozen=True, slots=True)
class Database:
    """`stream` has the service's role and connections of its own, so that reading history delays no
    request.
    `restoring` is the worker's, and also there when a server has lost a tail."""

    service: Pool
    stream: Pool
    _worker: Pool | None
    restoring: Pool | None = None

    @property
    def worker(self) -> Pool:
        assert self._worker is not None, "opened without the worker's login"
        return self._worker

    def _kept(self) -> list[ConnectionPool]:
        return [pool.connections for pool in (self.service, self.stream, self._worker) if pool]

    @property
    def is_warm(self) -> bool:
        return all(pool.warm.is_set() for pool in self._kept())

    @contextlib.asynccontextmanager
    async def kept_warm(self) -> AsyncIterator[None]:
        """Keeps connections open. The block begins when all are, or later than a start can wait."""
        loops = [start_loop(pool.keep()) for pool in self._kept()]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_LIMIT_SECONDS):
                    for pool in self._kept():
                        await pool.warm.wait()
            yield
        finally:
            await stop_tasks(*loops)


@contextlib.asynccontextmanager
async def open_database(
    url: Secret,
    pool_size: int,
    log: Log,
    metrics: Metrics,
    worker_url: Secret | None = None,
    needs_worker: bool = True,
    history: WalHistory | None = None,
) -> AsyncIterator[Database]:
    """Connects once as every role and refuses a server or role that could lose or show what it must
    not.

    Without `worker_url` one login becomes both roles.
    """
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            open_pool(
                url=url,
                role=SERVICE_ROLE,
                size=pool_size,
                metrics=metrics,
                history=history,
                slots=LoopSlots[Hashable](),
            )
        )
        stream = await stack.enter_async_context(
            open_pool(url, SERVICE_ROLE, pool_size, metrics, history)
        )
        await _refuse_transaction_pooler(service, stream)
        worker = restoring = None
        if needs_worker:
            login = worker_url or url
            worker = await stack.enter_async_context(
                open_pool(login, WORKER_ROLE, pool_size, metrics, history)
            )
            restoring = await stack.enter_async_context(open_pool(login, WORKER_ROLE, 1, metrics))
            await _refuse_transaction_pooler(worker, restoring)
        log.debug("database opened", pool_size=pool_size)
        yield Database(service, stream, worker, restoring)


async def _refuse_transaction_pooler(first: Pool, second: Pool) -> None:
    async with first.session() as one, second.session() as two:
        await refuse_transaction_pooler(one, two)


@contextlib.contextmanager
def explain_refusals(settings: str) -> Iterator[None]:
    """Each failure to connect becomes an error of ours, whose text has no part of the URL."""
    try:
        yield
    except ValueError:
        raise StartupRefused(UNREADABLE_URL) from None
    except REFUSED as error:
        raise StartupRefused(f"the database refuses us ({error}): check {settings}") from error
    except UNPREPARED as error:
        raise StartupRefused(POOLED_BY_TRANSACTION) from error
    except CANNOT_CONNECT as error:
        raise Unavailable("the database cannot be reached") from error


@contextlib.asynccontextmanager
async def open_pool(
    url: Secret,
    role: str,
    size: int,
    metrics: Metrics,
    history: WalHistory | None = None,
    slots: LoopSlots[Hashable] | None = None,
) -> AsyncIterator[Pool]:
    async def connect() -> Any:
        connection = await asyncpg.connect(
            url.reveal(), timeout=CONNECT_LIMIT_SECONDS, command_timeout=COMMAND_LIMIT_SECONDS
        )
        register_array_types(connection)
        try:
            await _init_session(connection, role)
            if history:
                await history.admit(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    connections = ConnectionPool(connect, size, slots)
    try:
        with explain_refusals("TRADING_INTENTS_DATABASE_URL, _WORKER_URL and _OWNER_URL, migrate"):
            connections.give_back(await connections.take(CONNECT_LIMIT_SECONDS))
        yield Pool(connections, role, metrics, history)
    finally:
        await connections.close()


class _Session(FrozenStruct):
    sees_all: bool
    version: int
    fsync: str
    synchronous_commit: str


async def _init_session(connection: Any, role: str) -> None:
    await connection.execute(";".join(session_setup(role, LOCK_LIMIT_SECONDS)))
    query = """
        SELECT rolsuper OR rolbypassrls OR pg_has_role(rolname, $1, 'MEMBER') AS sees_all,
               current_setting('server_version_num')::int AS version,
               current_setting('fsync') AS fsync,
               current_setting('synchronous_commit') AS synchronous_commit
        FROM pg_roles WHERE rolname = current_user
    """
    session = _Session(**await connection.fetchrow(query, OWNER_ROLE))
    if session.sees_all:
        raise StartupRefused(
            f"database role {role} is a superuser, has BYPASSRLS or is {OWNER_ROLE}: take that away"
        )
    if session.version < OLDEST_SERVER_VERSION:
        raise StartupRefused("the database is older than PostgreSQL 15")
    for setting in DURABLE_SETTINGS:
        if getattr(session, setting) == "off":
            raise StartupRefused(
                f"the database has {setting} off and could forget what it confirmed: turn it on"
            )


async def show_organizations(tx: Tx, organizations: Sequence[UUID]) -> None:
    """Lets the transaction see the rows of these tenants: for one that creates the organization
    itself."""
    await tx.execute(
        "SELECT set_config('trading_intents.organizations', $1, true)", _array_of(organizations)
    )


def _array_of(organizations: Sequence[UUID]) -> str:
    """The hex of a UUID needs no quoting."""
    return f"{{{','.join(organization.hex for organization in organizations)}}}"


async def _begin(
    connection: Any,
    role: str,
    organizations: Sequence[UUID],
    read_only: bool,
    isolation: Isolation,
    plans: Plans,
) -> None:
    # One round trip.
    begin = (
        f"BEGIN ISOLATION LEVEL {isolation} {'READ ONLY' if read_only else 'READ WRITE'};"
        f"{state_role(role)};"
        f"SELECT set_config('trading_intents.organizations', '{_array_of(organizations)}', true)"
    )
    if plans == "fresh":
        begin += "".join(f";SET LOCAL {setting}" for setting in _FRESH_PLANS)
    try:
        await connection.execute(begin, timeout=BEGIN_LIMIT_SECONDS)
    except BaseException as error:
        connection.terminate()
        if isinstance(error, CONNECTION_ERRORS):
            # Whatever the error is, the server takes no transactions: it may have become a standby.
            raise Unavailable("the database cannot be reached") from error
        raise


async def _rollback(connection: Any, cause: BaseException) -> None:
    if isinstance(cause, DISK_FAILED):
        connection.terminate()
        raise DiskFailed from cause
    if _is_lost(connection, cause) or isinstance(cause, asyncpg.InsufficientResourcesError):
        connection.terminate()
        raise Unavailable(
            "the connection to the database was lost; nothing was recorded"
        ) from cause
    try:
        await _to_the_end(connection, "ROLLBACK", ROLLBACK_LIMIT_SECONDS)
    except Exception:
        connection.terminate()
    if isinstance(cause, (asyncpg.LockNotAvailableError, asyncpg.SerializationError)):
        raise Unavailable(
            "the database is busy: another transaction holds, or has changed, the same rows"
        ) from cause
    # The connection's statements are prepared anew.
    if isinstance(cause, asyncpg.InvalidCachedStatementError):
        raise Unavailable(
            "the database's schema has changed; nothing was recorded, try again"
        ) from cause


async def _commit(connection: Any, read_only: bool) -> None:
    if connection.is_closed():
        raise Unavailable("the connection to the database was lost; nothing was recorded")
    try:
        tag = await _to_the_end(connection, "COMMIT", COMMAND_LIMIT_SECONDS)
    except asyncpg.LockNotAvailableError as error:  # of a deferred trigger
        raise Unavailable(
            "the database is busy: another transaction holds a lock for too long"
        ) from error
    except DISK_FAILED as error:  # the server has rolled it back
        raise DiskFailed from error
    except Exception as error:
        if not _is_lost(connection, error):
            raise
        connection.terminate()
        lost = Unavailable("the connection to the database was lost; nothing was recorded")
        raise (lost if read_only else OutcomeUnknown()) from error
    if tag != "COMMIT":
        raise AssertionError(
            "a failed statement's error was swallowed inside a transaction, which then rolled back"
        )


async def _to_the_end(connection: Any, command: str, limit_seconds: float) -> str:
    """Lets the command finish if the caller is cancelled. If the caller is cancelled again, the
    connection is not reused."""
    task: asyncio.Task[str] = asyncio.ensure_future(
        connection.execute(command, timeout=limit_seconds)
    )
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task])
        finally:
            if not task.done() or task.exception() is not None:
                connection.terminate()
                await asyncio.gather(task, return_exceptions=True)
        raise


def _is_lost(connection: Any, error: BaseException) -> bool:
    return isinstance(error, LOST) or (isinstance(error, LOST_IF_CLOSED) and connection.is_closed())
