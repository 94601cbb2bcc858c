"""Runs an App on uvicorn: bind first, serve, close. Owns no signal handlers: the composition root does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from trading_intents.errors import StartupRefused
from trading_intents.web.routing import App

BACKLOG = 2048
MAX_CONNECTIONS = 10_000
KEEP_ALIVE_SECONDS = 75


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything else is started; a taken one is refused in plain words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: App, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` while the block runs, then close every connection."""
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
