"""A bounded pool of open connections, the most recently used first. It is our own because every request uses it: an
idle connection is taken and given back without an await (decision 0026)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

# What the driver raises when it cannot connect or a connection is lost, and for what the server refuses.
CONNECTION_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
CLOSE_LIMIT_SECONDS = 5.0
# How many may be opened at once. When many callers start together, connections that are given back serve most of them.
MAKING_LIMIT = 2
IDLE_LIMIT_SECONDS = 300.0  # a firewall or proxy may have dropped connections that were idle for longer

# Element types by name, with PostgreSQL's own numbers of their arrays and of the elements, which are the same on every
# server.
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


def register_array_types(connection: Any) -> None:
    """Registers these types. Else the driver asks the server for each on each new connection, which takes 10 ms."""
    connection._protocol.get_settings().register_data_types(
        [
            {
                "oid": oid,
                "ns": "pg_catalog",
                "name": f"_{element}",
                "kind": b"b",
                "elemtype": element_oid,
                "elemdelim": ",",
                **dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames")),
            }
            for element, (oid, element_oid) in _ARRAYS.items()
        ]
    )


class ConnectionPool:
    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect = connect
        self.size = size
        self._permits = asyncio.Semaphore(size)
        self._making = asyncio.Semaphore(MAKING_LIMIT)
        self._idle: list[tuple[Any, float]] = []
        self._closing = False

    async def take(self, limit_seconds: float) -> Any:
        """Gives a connection that was open a moment ago. TimeoutError when none was given back, or could be opened, in
        time."""
        if not self._permits.locked():
            await self._permits.acquire()  # which does not wait here
            return self._most_recent() or await self._made(limit_seconds)
        async with asyncio.timeout(limit_seconds):
            await self._permits.acquire()
            return self._most_recent() or await self._made(limit_seconds)

    def give_back(self, connection: Any) -> None:
        """Takes a connection back; a caller that does not know its state terminates it first."""
        if self._closing or connection.is_closed():
            connection.terminate()
        else:
            self._idle.append((connection, asyncio.get_running_loop().time()))
        self._permits.release()

    async def close(self) -> None:
        """Waits for connections in use, then closes all; one still in use is terminated when it is given back."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_SECONDS):
                for _ in range(self.size):
                    await self._permits.acquire()
        idle, self._idle = self._idle, []  # closed together: a server that does not answer keeps each for the limit
        closing = (connection.close(timeout=CLOSE_LIMIT_SECONDS) for connection, _ in idle)
        await asyncio.gather(*closing, return_exceptions=True)
        await asyncio.sleep(0)  # terminated connections close their sockets in the loop's next iteration

    def _most_recent(self) -> Any:
        oldest = asyncio.get_running_loop().time() - IDLE_LIMIT_SECONDS
        while self._idle:
            connection, since = self._idle.pop()
            if since >= oldest and not connection.is_closed():
                return connection
            connection.terminate()
        return None

    async def _made(self, limit_seconds: float) -> Any:
        try:
            async with asyncio.timeout(limit_seconds), self._making:
                return self._most_recent() or await self._connect()
        except BaseException:
            self._permits.release()
            raise


class PoolQuota:
    """A limited share of a pool's connections."""

    def __init__(self, connections: "ConnectionPool | PoolQuota", size: int) -> None:
        self._connections, self.size = connections, size
        self._permits = asyncio.Semaphore(size)

    async def take(self, limit_seconds: float) -> Any:
        async with asyncio.timeout(limit_seconds):
            await self._permits.acquire()
        try:
            return await self._connections.take(limit_seconds)
        except BaseException:
            self._permits.release()
            raise

    def give_back(self, connection: Any) -> None:
        self._permits.release()
        self._connections.give_back(connection)
