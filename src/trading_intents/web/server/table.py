"""The open HTTP connections: how many there may be, in all and of one address, and what they share.
Divides the process's descriptors among HTTP, gRPC and the rest."""

import asyncio
import contextlib
import resource
import sys
from collections.abc import Hashable
from email.utils import formatdate
from typing import Protocol

from trading_intents.errors import PlatformError, Unavailable
from trading_intents.loops import LoopSlots
from trading_intents.trading import FrozenStruct
from trading_intents.web.limits import limited_address
from trading_intents.web.routing import App
from trading_intents.web.server.room import Room

MAX_CONNECTIONS = 10_000  # of HTTP, and of gRPC
POOLS = 3
OTHER_DATABASE_CONNECTIONS = 32  # the others: pipelines, waits for locks, LISTEN
READ_BYTES = 16 * 1024
PARSE_SECONDS = 0.001  # of each round of the loop, for the bytes of all connections
CLOSE_SECONDS = 1.0
# Connections beyond the total, for these paths alone.
PROBES = frozenset({b"/healthz", b"/readyz"})
PROBE_RESERVE = 16
MAX_LEAVING = 16  # more at once are closed without an answer
MAX_ACCEPTED = 16  # in each round of the loop
FULL = "this process has too many open connections; try again"
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


class OpenConnection(Hashable, Protocol):
    def check(self, now: float) -> None:
        """Ends the connection if it is past a deadline."""

    def refuse(self, error: PlatformError) -> None:
        """Takes no more requests, and says why if it can."""

    def abort(self) -> None:
        """Ends the connection at once."""

    def finish(self) -> asyncio.Task[None] | None:
        """Takes no more requests; gives the task that still answers, if there is one."""


class ConnectionTable:
    def __init__(
        self,
        app: App,
        limits: ConnectionLimits,
        headers: bytes = b"",
    ) -> None:
        """`headers` are those of every answer, beside the date."""
        self.app = app
        self._limits = limits
        self._room = Room[OpenConnection](limits.total)
        self._reserve = Room[OpenConnection](PROBE_RESERVE)
        self._leaving: set[OpenConnection] = set()  # refused, until they have their answers
        self.slots = LoopSlots[Hashable](PARSE_SECONDS)  # of addresses
        self.buffer = bytearray(READ_BYTES)  # a read is parsed or copied before the next one
        self._fixed_headers = headers
        self.headers = b""
        self._refused = 0

    def address_of(self, peer: str) -> str | None:
        """Gives the address that limits count; None for a trusted proxy."""
        return None if self.app.client_address.trusts(peer) else limited_address(peer)

    def holder_of(self, connection: OpenConnection) -> Hashable:
        """Gives the address that it counts for; itself if it is of a trusted proxy, whose
        connections are of many clients."""
        reserve = self._reserve.holders
        return self._room.holders.get(connection, reserve.get(connection, connection))

    def add(self, connection: OpenConnection, peer: str) -> None:
        """Counts a connection, perhaps in the reserve, or refuses it."""
        address = self.address_of(peer)
        held = self._room.counts[address] + self._reserve.counts[address]
        if address is not None and held >= self._limits.per_address:
            self.count_excess("address")
            self._refuse(connection, "this address has too many open connections; close some")
            return
        holder = address or connection
        if self._room.is_full:
            self.count_excess("total")
        if self._has_room(self._room, holder):
            self._room.add(connection, holder)
        elif self._has_room(self._reserve, holder):
            self._reserve.add(connection, holder)
        else:
            self._refuse(connection, FULL)
            return
        self.app.metrics.http_connections.inc()

    def count_excess(self, limit: str) -> None:
        self.app.metrics.http_connections_refused.labels(limit).inc()

    def _has_room(
        self,
        room: Room[OpenConnection],
        holder: Hashable,
    ) -> bool:
        """If need be, by the end of a quiet connection."""
        if room.is_full:
            self._end(room.choose_quiet(holder))
        return not room.is_full

    def _end(self, connection: OpenConnection | None) -> None:
        if connection is not None:
            self.remove(connection)
            connection.abort()

    def _refuse(self, connection: OpenConnection, detail: str) -> None:
        if len(self._leaving) < MAX_LEAVING:
            self._leaving.add(connection)
            connection.refuse(Unavailable(detail))
        else:
            connection.abort()

    def begin_request(self, connection: OpenConnection, path: bytes) -> bool:
        """Whether a connection's whole request is taken. One of the reserve that asks for more than
        the reserve is for needs room beside the others now, or is refused."""
        holder = self._reserve.holders.get(connection)
        if holder is not None and path not in PROBES:
            if not self._has_room(self._room, holder):
                self._end(self._room.choose_busy(holder))
            if self._room.is_full:
                self.remove(connection)
                self._refuse(connection, FULL)
                return False
            self._reserve.remove(connection)
            self._room.add(connection, holder)
        return True

    def set_quiet(self, connection: OpenConnection, is_quiet: bool) -> None:
        """A quiet one waits for its client: for a whole request, or to read its answers."""
        room = self._reserve if connection in self._reserve.holders else self._room
        room.set_quiet(connection, is_quiet)

    def remove(self, connection: OpenConnection) -> None:
        self._leaving.discard(connection)
        if self._room.remove(connection) or self._reserve.remove(connection):
            self.app.metrics.http_connections.dec()

    def count_refused(self, seconds: float) -> None:
        """Counts a connection that was answered 429, for so long."""
        self._refused += 1
        asyncio.get_running_loop().call_later(seconds, self._forget_refused)

    def _forget_refused(self) -> None:
        self._refused -= 1

    def may_hold_back(self, connection: OpenConnection) -> bool:
        is_proxy = self.holder_of(connection) is connection
        return self._refused > MAX_REFUSED and not is_proxy

    async def tick(self) -> None:
        """Runs once a second: renews the headers' date, and ends connections that are past a
        deadline."""
        while True:
            date = formatdate(usegmt=True).encode()
            self.headers = b"date: %s\r\n%s" % (date, self._fixed_headers)
            self._check_deadlines()
            await asyncio.sleep(1)

    # Apart, so that the last connection is not kept while the loop sleeps.
    def _check_deadlines(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in self._all():
            connection.check(now)

    def _all(self) -> list[OpenConnection]:
        return [*self._room.holders, *self._reserve.holders, *self._leaving]

    async def close(self) -> None:
        answering = []
        for connection in self._all():
            if task := connection.finish():
                answering.append(task)
        if answering:
            _, late = await asyncio.wait(answering, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
