"""A bounded pool of open connections, the most recently used first, for which organizations wait in
a fair queue. It is our own, so that an idle one is taken without an await (decision 0026)."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

import asyncpg

from trading_intents.errors import StartupRefused
from trading_intents.loops import FairQueue, LoopSlots, stop_tasks, wait_at_most
from trading_intents.secret import Secret
from trading_intents.trading import FrozenStruct

# What the driver raises when it cannot connect or a connection is lost, and for what the server
# refuses.
CONNECTION_ERRORS = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
CLOSE_LIMIT_SECONDS = 5.0
# How many may be opened at once. When many callers start together, connections that are given back
# serve most of them.
MAX_OPENING = 2
# Open before they are needed, in a process that serves.
KEPT_CONNECTIONS = 4
KEEP_PAUSE_SECONDS = 1.0
# A firewall or proxy may have dropped connections that were idle for longer.
IDLE_LIMIT_SECONDS = 300.0

# Element types by name, with PostgreSQL's own numbers of their arrays and of the elements, which
# are the same on every server.
_ARRAYS = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int4": (1007, 23),
    "int8": (1016, 20),
    "float8": (1022, 701),
    "timestamptz": (1185, 1184),
    "numeric": (1231, 1700),
    "uuid": (2951, 2950),
}

_NO_ARRAY_FIELDS = ("basetype", "range_subtype", "attrtypoids", "attrnames")

# Positions in the write-ahead log are numbers here. A standby gives no row: it may be behind what
# was read elsewhere.
READ_SERVER = """
    SELECT epoch::text, (pg_last_wal_replay_lsn() - '0/0')::text,
        (pg_current_wal_insert_lsn() - '0/0')::text
    FROM stream_epoch WHERE NOT pg_is_in_recovery()
"""
# Of a message that the transaction itself writes: its COMMIT waits for the disk and a standby, as
# others' writes up to there, and does for nothing without a write of its own, even if it has an id.
# No row before the first write.
READ_POSITION = """
    SELECT (pg_logical_emit_message(true, '', '') - '0/0')::text
    WHERE pg_current_xact_id_if_assigned() IS NOT NULL
"""
REPORT_LOST_TAIL = (
    "UPDATE stream_epoch SET lost_tail = $1 WHERE epoch::text = $2 AND lost_tail IS NULL"
)
POOLER_CHECKS = 3  # others' transactions may get in between
READ_BACKEND = "SELECT pg_backend_pid()"
POOLED_BY_TRANSACTION = (
    "a pooler before the database gives each transaction another session: "
    "have it pool by session (PgBouncer: pool_mode = session)"
)
# It gave the next message of a statement to another session.
UNPREPARED = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)


class DatabaseUrls(FrozenStruct):
    owner_url: Secret  # may migrate; the embedded server's superuser
    url: Secret  # becomes ti_service
    # Becomes ti_worker; the embedded server's logins cannot become each other's role.
    worker_url: Secret


class WalHistory:
    """The highest position in the write-ahead log that this process saw before a COMMIT that was
    confirmed. A server whose history ends there or below has lost a tail: the process uses it only
    when its data were stamped as after a restore, which renews the epoch (decision 0050)."""

    def __init__(self) -> None:
        self.seen = 0
        self._epoch = ""
        self._began: str | None = None

    def note(self, position: str | bytes | None) -> None:
        self.seen = max(self.seen, int(position or 0))

    def find_lost_tail(self, seen: int, epoch: str, began: str | None, now: str) -> str | None:
        """Says what the server of a new connection lacks of what was `seen` before it was asked.
        `began` is where its recovery ended, in a promotion or after a crash; None: it started
        without one."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._began = began
            self.seen = 0
        elif began is None or began != self._began:
            end = int(began or now)
            if seen >= end:
                kept = f"the server's history ends at {end:X}"
                return f"{seen:X} of the log was seen committed, {kept}"
            self._began = began
        return None

    async def admit(self, connection: Any) -> None:
        """Raises ConnectionError for a standby, and for a server that has lost a tail, which it
        reports there."""
        seen = self.seen
        row = await connection.fetchrow(READ_SERVER)
        if row is None:
            raise ConnectionError("the server is a standby")
        epoch, began, now = row
        if lost := self.find_lost_tail(seen, epoch, began, now):
            await connection.execute(REPORT_LOST_TAIL, lost, epoch)
            raise ConnectionError(lost)


def register_array_types(connection: Any) -> None:
    """Registers these types. Else the driver asks the server for each on each new connection, which
    takes 10 ms."""
    types = []
    for element, (oid, element_oid) in _ARRAYS.items():
        array: dict[str, object] = dict.fromkeys(_NO_ARRAY_FIELDS)
        array |= {"oid": oid, "ns": "pg_catalog", "name": f"_{element}", "kind": b"b"}
        array |= {"elemtype": element_oid, "elemdelim": ","}
        types.append(array)
    connection._protocol.get_settings().register_data_types(types)


class PoolBusy(TimeoutError):
    """None was given back in time. The text says of what."""


@dataclass(eq=False, frozen=True, slots=True)
class _Waiter:
    organization: Hashable
    served: "asyncio.Future[None]"


class ConnectionPool:
    """Callers who wait are served in turn by organization, None for those of no single one. Where
    there are slots, one organization has a third of the connections at most, and its slots of the
    event loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        size: int,
        slots: LoopSlots[Hashable] | None = None,
    ) -> None:
        self._connect = connect
        self.size = size
        self._free = size
        self._per_organization = max(1, size // 3) if slots else size
        self.slots = slots
        self._held: Counter[Hashable] = Counter()
        self._waiting = FairQueue[Hashable, _Waiter]()
        # Of callers that count as having a connection, and wait for it.
        self._unserved: deque[asyncio.Future[Any]] = deque()
        self._opening: set[asyncio.Future[Any]] = set()
        self._idle: list[tuple[Any, float]] = []
        self._kept = min(size, KEPT_CONNECTIONS)
        self.warm = asyncio.Event()  # those that it keeps were all open, and half of them still are
        self._opened = asyncio.Event()
        self._closing = False
        self._all_free = asyncio.Event()

    async def take(self, limit_seconds: float, organization: Hashable = None) -> Any:
        """Gives a connection that was open a moment ago. TimeoutError when none was given back, or
        could be opened, in time."""
        if self._free and self._may_take(organization):  # those who wait then may not
            self._count_taken(organization)
            return self._most_recent() or await self._next(limit_seconds, organization)
        is_served = False
        try:
            async with asyncio.timeout(limit_seconds):
                await self._wait(organization)
                is_served = True
                return self._most_recent() or await self._next(limit_seconds, organization)
        except TimeoutError:
            if is_served:
                raise
            own = "" if self._may_take(organization) else " that an organization may have"
            every = "all connections of this process to the database"
            raise PoolBusy(f"{every}{own} are in use") from None

    def give_back(self, connection: Any, organization: Hashable = None) -> None:
        """Takes a connection back; a caller that does not know its state terminates it first."""
        if self._closing or connection.is_closed():
            connection.terminate()
        else:
            self._put(connection)
        self._release(organization)

    async def take_slot(self, organization: Hashable) -> None:
        """Waits for the organization's turn of the event loop: what was read is turned into an
        answer next."""
        if self.slots and organization is not None:
            await self.slots.take(organization)

    async def close(self) -> None:
        """Waits for connections in use, then closes all; one still in use is terminated when it is
        given back."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_SECONDS):
                while self._free < self.size:
                    self._all_free.clear()
                    await self._all_free.wait()
        await stop_tasks(*self._opening)
        # Closed together: a server that does not answer keeps each for the limit.
        idle = self._idle
        self._idle = []
        closing = (connection.close(timeout=CLOSE_LIMIT_SECONDS) for connection, _ in idle)
        await asyncio.gather(*closing, return_exceptions=True)
        # Terminated connections close their sockets in the loop's next iteration.
        await asyncio.sleep(0)

    def _may_take(self, organization: Hashable) -> bool:
        return organization is None or self._held[organization] < self._per_organization

    def _count_taken(self, organization: Hashable) -> None:
        self._free -= 1
        self._held[organization] += 1

    async def _wait(self, organization: Hashable) -> None:
        waiter = _Waiter(organization, asyncio.get_running_loop().create_future())
        self._waiting.append(organization, waiter)
        try:
            await waiter.served
        except BaseException:
            self._waiting.remove(organization, waiter)
            if not waiter.served.cancelled():
                self._release(organization)  # it was served
            raise

    def _release(self, organization: Hashable) -> None:
        self._free += 1
        self._held[organization] -= 1
        if not self._held[organization]:
            del self._held[organization]
        while self._free and (waiter := self._waiting.pop(self._may_take)):
            if not waiter.served.done():  # it was cancelled and has not run yet
                self._count_taken(waiter.organization)
                waiter.served.set_result(None)
        if self._free == self.size:
            self._all_free.set()

    def _most_recent(self) -> Any:
        oldest = asyncio.get_running_loop().time() - IDLE_LIMIT_SECONDS
        while self._idle:
            connection, since = self._idle.pop()
            if since >= oldest and not connection.is_closed():
                return connection
            connection.terminate()
        return None

    async def _next(self, limit_seconds: float, organization: Hashable) -> Any:
        """Waits for the next connection that is given back or opened."""
        served: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._unserved.append(served)
        self._open_missing()
        try:
            async with asyncio.timeout(limit_seconds):
                return await served
        except BaseException:
            with contextlib.suppress(ValueError):
                self._unserved.remove(served)
            if served.done() and not served.cancelled() and not served.exception():
                self._put(served.result())
            self._release(organization)
            raise

    def _put(self, connection: Any) -> None:
        if waiter := self._pop_unserved():
            waiter.set_result(connection)
        else:
            self._idle.append((connection, asyncio.get_running_loop().time()))

    def _pop_unserved(self) -> "asyncio.Future[Any] | None":
        while self._unserved:
            waiter = self._unserved.popleft()
            if not waiter.done():  # it was cancelled and has not run yet
                return waiter
        return None

    def _open_missing(self, kept: int = 0) -> None:
        """Each attempt is the pool's own: it goes on when those who wait for it give up."""
        used = self.size - self._free - len(self._unserved)
        known = len(self._idle) + len(self._opening)
        missing = max(len(self._unserved), kept - used) - known
        for _ in range(min(missing, MAX_OPENING - len(self._opening))):
            attempt = asyncio.ensure_future(self._connect())
            self._opening.add(attempt)
            attempt.add_done_callback(self._on_attempt)

    def _on_attempt(self, attempt: "asyncio.Future[Any]") -> None:
        self._opening.remove(attempt)
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self._put(attempt.result())
            self._opened.set()
        elif waiter := self._pop_unserved():
            waiter.set_exception(error)
        self._open_missing()

    async def keep(self) -> None:
        """Opens connections before they are needed, and others for those that were lost or are old,
        until cancelled."""
        while True:
            self._opened.clear()
            self._drop_unusable()
            count = self.size - self._free - len(self._unserved) + len(self._idle)
            if count >= self._kept:
                self.warm.set()
            elif 2 * count < self._kept:
                self.warm.clear()
            self._open_missing(self._kept)
            await wait_at_most(self._opened, KEEP_PAUSE_SECONDS)

    def _drop_unusable(self) -> None:
        """Drops one old connection at most, so that most stay while it is replaced."""
        if self._idle and self._idle[0][1] < asyncio.get_running_loop().time() - IDLE_LIMIT_SECONDS:
            self._idle.pop(0)[0].terminate()
        self._idle = [each for each in self._idle if not each[0].is_closed()]


class PoolQuota:
    """A limited share of a pool's connections."""

    def __init__(self, connections: "ConnectionPool | PoolQuota", size: int) -> None:
        self._connections = connections
        self.size = size
        self._permits = asyncio.Semaphore(size)

    async def take(self, limit_seconds: float, organization: Hashable = None) -> Any:
        async with asyncio.timeout(limit_seconds):
            await self._permits.acquire()
        try:
            return await self._connections.take(limit_seconds, organization)
        except BaseException:
            self._permits.release()
            raise

    def give_back(self, connection: Any, organization: Hashable = None) -> None:
        self._permits.release()
        self._connections.give_back(connection, organization)

    async def take_slot(self, organization: Hashable) -> None:
        await self._connections.take_slot(organization)


async def refuse_transaction_pooler(first: Any, second: Any) -> None:
    """Refuses two connections that share a backend, and one that has two: settings are lost."""
    try:
        for _ in range(POOLER_CHECKS):
            own = await first.fetchval(READ_BACKEND)
            # Holds the session that a pooler gave back last.
            async with second.transaction():
                others = [await each.fetchval(READ_BACKEND) for each in (second, first)]
            if others[0] == own or others[1] != own:
                raise StartupRefused(POOLED_BY_TRANSACTION)
    except UNPREPARED as error:
        raise StartupRefused(POOLED_BY_TRANSACTION) from error
