"""The open HTTP connections: how many there may be, in all and of one address, and what they share.
Divides the process's descriptors among HTTP, gRPC and the rest."""

import asyncio
import contextlib
import resource
import sys
from collections import Counter
from email.utils import formatdate
from typing import Protocol

from trading_intents.errors import PlatformError, Unavailable
from trading_intents.trading import FrozenStruct
from trading_intents.web.limits import limited_address
from trading_intents.web.routing import App
from trading_intents.web.server.parse_budget import ParseBudget

MAX_CONNECTIONS = 10_000  # of HTTP, and of gRPC
POOLS = 3
OTHER_DATABASE_CONNECTIONS = 32  # the others: pipelines, waits for locks, LISTEN
READ_BYTES = 16 * 1024
CLOSE_SECONDS = 1.0
# Connections beyond the total, for these paths alone.
PROBES = frozenset({b"/healthz", b"/readyz"})
PROBE_RESERVE = 16
MAX_REFUSED = 16  # connections answered 429 within a second, before any is held back


class ConnectionLimits(FrozenStruct):
    total: int
    per_address: int  # trusted proxies are exempt


def connection_limits(per_address: int) -> ConnectionLimits:
    """Half of the descriptors are for HTTP."""
    total = min(MAX_CONNECTIONS, _max_descriptors() // 2)
    return ConnectionLimits(total, per_address or total // 2)


def max_grpc_connections(pool_size: int) -> int:
    """A quarter of the descriptors, and at most half of what HTTP and PostgreSQL leave: brokers,
    files and connections that are being refused need some too."""
    descriptors = _max_descriptors()
    left = descriptors - descriptors // 2 - POOLS * pool_size - OTHER_DATABASE_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, descriptors // 4, left // 2))


def _max_descriptors() -> int:
    """Raises the soft limit of open files to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class OpenConnection(Protocol):
    def check(self, now: float) -> None:
        """Ends the connection if it is past a deadline."""

    def abort(self) -> None:
        """Ends the connection at once."""

    def finish(self) -> asyncio.Task[None] | None:
        """Takes no more requests; gives the task that still answers, if there is one."""


class ConnectionTable:
    def __init__(self, app: App, limits: ConnectionLimits) -> None:
        self.app = app
        self._limits = limits
        # Each with the address that it counts for.
        self.connections: dict[OpenConnection, str | None] = {}
        self._by_address: Counter[str | None] = Counter()
        self.budget = ParseBudget()
        # Without a whole request, for the longest time first.
        self._quiet: dict[OpenConnection, None] = {}
        self._probing: set[OpenConnection] = set()  # of the reserve
        self.buffer = bytearray(READ_BYTES)  # a read is parsed or copied before the next one
        self.date = b""
        self._refused = 0

    def add(self, connection: OpenConnection, peer: str) -> PlatformError | None:
        """Counts a connection; gives the refusal if it is one too many of its address. When the
        table is full, the oldest connection without a request is closed for it; if all have one, it
        is one of the reserve."""
        metrics = self.app.metrics
        address = None if self.app.client_address.trusts(peer) else limited_address(peer)
        self.connections[connection] = address
        self._by_address[address] += 1
        metrics.http_connections.inc()
        if address is not None and self._by_address[address] > self._limits.per_address:
            metrics.http_connections_refused.labels("address").inc()
            return Unavailable("this address has too many open connections; close some")
        if len(self.connections) > self._limits.total:
            metrics.http_connections_refused.labels("total").inc()
            self._close_oldest()
            if len(self.connections) > self._limits.total + PROBE_RESERVE:
                return self._full()
            if len(self.connections) - len(self._probing) > self._limits.total:
                self._probing.add(connection)
        self._quiet[connection] = None
        return None

    def _close_oldest(self) -> None:
        """Closes the connection that has been without a request for longest. Those of the reserve
        stay while it has room."""
        has_reserve = len(self.connections) <= self._limits.total + PROBE_RESERVE
        for connection in self._quiet:
            if not has_reserve or connection not in self._probing:
                self.remove(connection)
                connection.abort()
                return

    def set_busy(self, connection: OpenConnection, path: bytes) -> PlatformError | None:
        """Notes that a connection has a whole request. Gives the refusal of one of the reserve that
        asks for more than the reserve is for, while the table is still full."""
        self._quiet.pop(connection, None)
        if (
            connection in self._probing
            and path not in PROBES
            and len(self.connections) > self._limits.total
        ):
            return self._full()
        return None

    def _full(self) -> PlatformError:
        return Unavailable("this process has too many open connections; try again")

    def set_quiet(self, connection: OpenConnection) -> None:
        if connection in self.connections:
            self._quiet[connection] = None

    def remove(self, connection: OpenConnection) -> None:
        if connection not in self.connections:
            return  # it was closed for another
        address = self.connections.pop(connection)
        self._quiet.pop(connection, None)
        self._probing.discard(connection)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self.app.metrics.http_connections.dec()

    def count_refused(self, seconds: float) -> None:
        """Counts a connection that was answered 429, for so long."""
        self._refused += 1
        asyncio.get_running_loop().call_later(seconds, self._forget_refused)

    def _forget_refused(self) -> None:
        self._refused -= 1

    def may_hold_back(self, connection: OpenConnection) -> bool:
        is_proxy = self.connections.get(connection) is None
        return self._refused > MAX_REFUSED and not is_proxy

    async def tick(self) -> None:
        """Runs once a second: renews the date header, and ends connections that are past a
        deadline."""
        while True:
            self.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
            self._check_deadlines()
            await asyncio.sleep(1)

    # Apart, so that the last connection is not kept while the loop sleeps.
    def _check_deadlines(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.check(now)

    async def close(self) -> None:
        answering = []
        for connection in list(self.connections):
            if task := connection.finish():
                answering.append(task)
        if answering:
            _, late = await asyncio.wait(answering, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
