"""Runs an App on uvicorn's HTTP protocol: bind first, serve, close. Owns no signals: the composition root does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from email.utils import formatdate

import uvicorn
from uvicorn.server import ServerState

from trading_intents.errors import StartupRefused
from trading_intents.web.routing import App

BACKLOG = 2048
MAX_CONNECTIONS = 10_000
KEEP_ALIVE_SECONDS = 75
CLOSE_SECONDS = 1


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything else is started; a taken one is refused in plain words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay off only for sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupRefused(
            f"cannot listen on {host} port {port} ({error.strerror}): end what uses it, or set "
            "TRADING_INTENTS_HTTP_HOST and TRADING_INTENTS_HTTP_PORT"
        ) from None
    listener.setblocking(False)
    return listener


@contextlib.asynccontextmanager
async def serving(app: App, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` while the block runs, then close every connection.

    uvicorn.Server is not used: it takes the signals, and it polls where we can wait.
    """
    config = _config(app)
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]  # uvicorn types it as a bare asyncio.Protocol
        sock=listener,
        backlog=BACKLOG,
    )
    dates = asyncio.create_task(_keep_date(state))
    try:
        yield
    finally:
        dates.cancel()
        server.close()
        await _close(state)


def _config(app: App) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    config.load()
    return config


async def _keep_date(state: ServerState) -> None:
    while True:
        state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        await asyncio.sleep(1)


async def _close(state: ServerState) -> None:
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        _, late = await asyncio.wait(state.tasks, timeout=CLOSE_SECONDS)
        for task in late:
            task.cancel()
