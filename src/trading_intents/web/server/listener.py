"""Binds the HTTP port and serves an App on it. Owns no signals: the composition root does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from trading_intents.errors import PortTaken
from trading_intents.loops import start_loop
from trading_intents.web.routing import App
from trading_intents.web.server.connection import HttpConnection
from trading_intents.web.server.table import MAX_ACCEPTED, ConnectionLimits, ConnectionTable
from trading_intents.web.server.tls import STRICT_TRANSPORT, Acceptor, CertificateFiles

BACKLOG = 2048


def bind(host: str, port: int, setting: str = "HTTP", *, listens: bool = True) -> socket.socket:
    """Takes the port before anything else is started; a taken port is refused with a clear message.

    One that does not listen keeps the port for another socket that will.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay off only for sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        if listens:
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"cannot listen on {host} port {port} ({error.strerror}): end what uses it, or set "
            f"TRADING_INTENTS_{setting}_HOST and TRADING_INTENTS_{setting}_PORT"
        ) from None
    listener.setblocking(False)
    return listener


@contextlib.asynccontextmanager
async def serving(
    app: App,
    listener: socket.socket,
    limits: ConnectionLimits,
    files: CertificateFiles | None = None,
) -> AsyncIterator[None]:
    """Serves `app` while the block runs, then closes every connection; by TLS, if there is a
    certificate."""
    table = ConnectionTable(app, limits, STRICT_TRANSPORT if files else b"")
    loops = [start_loop(table.tick())]
    async with contextlib.AsyncExitStack() as stack:
        if files:
            stack.callback(listener.close)
            loops.append(start_loop(Acceptor(table, files).run(listener)))
        else:
            # asyncio accepts as many at once as its backlog says; the kernel's is set again after
            # it.
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
