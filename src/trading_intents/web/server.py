"""HTTP/1.1 on httptools: bind, parse, hand whole requests to an App, write each answer at once, close.

Knows no route. Owns no signals: the composition root does.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

import httptools

from trading_intents.errors import InvalidRequest, PlatformError, RequestTimeout, StartupRefused, Unavailable
from trading_intents.web.body import MAX_BODY_BYTES
from trading_intents.web.problem import PROBLEM
from trading_intents.web.request import Answer, Begun, Feed, Incoming
from trading_intents.web.routing import App

BACKLOG = 2048
MAX_CONNECTIONS = 10_000
MAX_HEAD_BYTES = 32 * 1024
MAX_PIPELINED = 16
REQUEST_SECONDS = 10  # from a request's first byte to its last
KEEP_ALIVE_SECONDS = 75
CLOSE_SECONDS = 1.0
LAST_WORD_SECONDS = 5.0  # for the end of a feed to leave; whoever has stopped reading never takes it

_REASONS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def bind(host: str, port: int, setting: str = "HTTP") -> socket.socket:
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
            f"TRADING_INTENTS_{setting}_HOST and TRADING_INTENTS_{setting}_PORT"
        ) from None
    listener.setblocking(False)
    return listener


class _Server:
    """What the connections of one listener share."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.connections: set[_Connection] = set()
        self.date = b""

    async def tick(self) -> None:
        """Once a second: the date header, and connections that are too slow or idle for too long."""
        loop = asyncio.get_running_loop()
        while True:
            self.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
            for connection in list(self.connections):
                connection.check(loop.time())
            await asyncio.sleep(1)

    async def close(self) -> None:
        tasks = [task for connection in list(self.connections) if (task := connection.finish())]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()


class _Connection(asyncio.Protocol):
    """Requests of one client, answered one after the other."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Incoming] = deque()
        self._task: asyncio.Task[None] | None = None
        self._begun: Begun | None = None
        self._feed: Feed | None = None
        self.paused = False
        self._begun_at: float | None = None
        self._in_head = False
        self._idle_since = self._loop.time()
        self._last = False  # no request after the ones that wait

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self._refuse(Unavailable("too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._begun:
            self._begun.gone = True
        if self._feed:
            self._feed.close()
        self._give_up()

    def _give_up(self) -> None:
        """What has begun to arrive will not be a request."""
        if self._begun_at is not None:
            self._begun_at = None
            self._server.app.leave()

    def pause_writing(self) -> None:
        """The client does not read its answers: take no more requests from it."""
        self.paused = True
        if not self._feed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self._transport.resume_reading()
        if self._feed:
            self._feed.resume()

    def data_received(self, data: bytes) -> None:
        if self._last:
            return
        self._big = len(data) > MAX_HEAD_BYTES
        try:
            self._parser.feed_data(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(InvalidRequest("the head of the request is too large"))
        except httptools.HttpParserUpgrade:
            self._last = True  # the request is answered as it is; what follows is not HTTP/1.1
        except httptools.HttpParserError:
            self._refuse(InvalidRequest("not an HTTP/1.1 request"))

    # httptools calls these while it is fed.

    def on_message_begin(self) -> None:
        self._begun_at = self._loop.time()
        self._taken = self._server.app.enter()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._big and len(self._url) + sum(len(n) + len(v) for n, v in self._headers) > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("the head is too large")
        if (b"expect", b"100-continue") in self._headers and not self._busy:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes <= MAX_BODY_BYTES:  # more is refused later, once it is known who calls
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._begun_at = None
        path, _, query = self._url.partition(b"?")
        body = b"".join(self._body) if self._body_bytes <= MAX_BODY_BYTES else None
        keep = self._parser.should_keep_alive()
        method = self._parser.get_method().decode("ascii")
        incoming = Incoming(method, path, query, self._headers, body, self._peer, keep, self._taken)
        if keep and not self._busy:
            self._begun = self._server.app.begin(incoming, self._answer_begun)
            if self._begun:
                return
        self._waiting.append(incoming)
        if not self._busy:
            self._task = self._loop.create_task(self._answer_all())
        elif len(self._waiting) >= MAX_PIPELINED:
            self._transport.pause_reading()

    @property
    def _busy(self) -> bool:
        """A request is being answered."""
        return self._task is not None or self._begun is not None or self._feed is not None

    def _answer_begun(self, answer: Answer) -> None:
        self._begun = None
        self._server.app.leave()
        self._idle_since = self._loop.time()
        if self._transport.is_closing():
            self._forget_waiting()
            return
        close = self._server.app.draining or (self._last and not self._waiting)
        self._write(answer, "POST", close)
        if close:
            self._last = True
            self._transport.close()
        elif self._waiting:
            self._task = self._loop.create_task(self._answer_all())

    async def _answer_all(self) -> None:
        try:
            while self._waiting and not self._transport.is_closing():
                incoming = self._waiting.popleft()
                try:
                    answer = await self._server.app.handle(incoming)
                finally:
                    self._server.app.leave()
                if answer.feed:
                    self._write_feed(answer, answer.feed, incoming.method)
                    return
                close = not incoming.keep_alive or self._server.app.draining or (self._last and not self._waiting)
                self._write(answer, incoming.method, close)
                if close:
                    self._last = True
                    self._transport.close()
        finally:
            self._task = None
            self._idle_since = self._loop.time()
            self._forget_waiting()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _forget_waiting(self) -> None:
        """Nobody is there to be answered."""
        while self._waiting:
            self._waiting.popleft()
            self._server.app.leave()

    def _write_feed(self, answer: Answer, feed: Feed, method: str) -> None:
        """The last answer of its connection: its body ends with it."""
        self._last = True
        if not self._transport.is_closing():
            self._write(answer, method, close=True)
        if self._transport.is_closing() or method == "HEAD":
            feed.close()
            self._transport.close()
            return
        self._feed = feed
        feed.open(self)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def end(self) -> None:
        self._transport.close()
        self._loop.call_later(LAST_WORD_SECONDS, self._transport.abort)

    def _write(self, answer: Answer, method: str, close: bool) -> None:
        parts = [_REASONS[answer.status], self._server.date]
        for name, value in answer.headers:
            parts += (name, b": ", value, b"\r\n")
        if answer.status != 204:
            parts += (b"content-type: ", answer.content_type, b"\r\n")
            if not answer.feed:
                parts.append(b"content-length: %d\r\n" % len(answer.body))
        parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
        if method != "HEAD" and answer.status != 204:
            parts.append(answer.body)
        self._transport.write(b"".join(parts))

    def _refuse(self, error: PlatformError) -> None:
        """What cannot be read as a request: after the answers that are under way, one more and the end."""
        self._last = True
        self._give_up()
        if not self._busy:
            self._write(PROBLEM.answer(error, ""), "GET", close=True)
            self._transport.close()

    def check(self, now: float) -> None:
        if self._begun_at is not None and now - self._begun_at > REQUEST_SECONDS:
            self._refuse(RequestTimeout(f"the request did not arrive within {REQUEST_SECONDS} s"))
        elif not self._busy and self._begun_at is None and now - self._idle_since > KEEP_ALIVE_SECONDS:
            self._transport.close()

    def finish(self) -> asyncio.Task[None] | None:
        """No more requests; the task that still answers, if there is one."""
        self._last = True
        if not self._busy:
            self._transport.close()
        elif self._feed:
            self._transport.abort()  # what feeds it has ended it, or is too late
        return self._task


@contextlib.asynccontextmanager
async def serving(app: App, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` while the block runs, then close every connection."""
    shared = _Server(app)
    ticking = asyncio.create_task(shared.tick())
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(shared), sock=listener, backlog=BACKLOG)
    try:
        yield
    finally:
        ticking.cancel()
        server.close()
        await shared.close()
