"""Binds the HTTP port and serves an App on it. Owns no signals: the composition root does."""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from trading_intents.errors import PortTaken
from trading_intents.loops import start_loop
from trading_intents.web.routing import App
from trading_intents.web.server.connection import HttpConnection
from trading_intents.web.server.table import ConnectionLimits, ConnectionTable
from trading_intents.web.server.tls import CertificateFiles, accept

BACKLOG = 2048
MAX_ACCEPTED = 16  # in each turn of the loop
LISTENING = "0A"  # the state in /proc/net/tcp


def bind(host: str, port: int, setting: str = "HTTP") -> socket.socket:
    """Takes the port before anything else is started; a taken port is refused with a clear message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay off only for sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"cannot listen on {host} port {port} ({error.strerror}): end what uses it, or set "
            f"TRADING_INTENTS_{setting}_HOST and TRADING_INTENTS_{setting}_PORT"
        ) from None
    listener.setblocking(False)
    return listener


def find_holder(port: int, platform: str | None) -> int | None:
    """The process that listens on the port, if it is the platform's (its pid, or of a process below it) or, without a
    pid, any that serves one. Sees what this user may see in /proc."""
    sockets = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{inode}]")
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(file) in sockets and _is_platform(file.parts[2], platform):
                return int(file.parts[2])
    return None


def _is_platform(pid: str, platform: str | None) -> bool:
    if platform is None:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return re.search(rb"trading[-_]intents\0(?:.*\0)?serve\0", command) is not None
    while pid not in (platform, "0"):
        pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]  # its parent
    return pid == platform


@contextlib.asynccontextmanager
async def serving(
    app: App, listener: socket.socket, limits: ConnectionLimits, files: CertificateFiles | None = None
) -> AsyncIterator[None]:
    """Serves `app` while the block runs, then closes every connection; by TLS, if there is a certificate."""
    table = ConnectionTable(app, limits)
    loops = [start_loop(table.tick())]
    async with contextlib.AsyncExitStack() as stack:
        if files:
            stack.callback(listener.close)
            loops.append(start_loop(accept(table, listener, files)))
        else:
            # asyncio accepts as many at once as its backlog says; the kernel's is set again after it.
            server = await asyncio.get_running_loop().create_server(
                lambda: HttpConnection(table), sock=listener, backlog=MAX_ACCEPTED
            )
            stack.callback(server.close)
            listener.listen(BACKLOG)
        try:
            yield
        finally:
            for each in loops:
                each.cancel()
    await table.close()
