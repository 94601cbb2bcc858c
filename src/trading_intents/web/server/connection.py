"""One HTTP/1.1 connection on httptools: parses, hands whole requests to an App, writes the answers,
closes. Limits every byte that a client sends or does not read, and every wait for it."""

import asyncio
import random
from collections import deque
from http import HTTPStatus
from typing import cast

import httptools

from trading_intents.errors import InternalError, InvalidRequest, PlatformError, RequestTimeout
from trading_intents.web.body import MAX_BODY_BYTES
from trading_intents.web.request import (
    MAX_TARGET_BYTES,
    Answer,
    Headers,
    Incoming,
    StreamingBody,
)
from trading_intents.web.routing import Serving
from trading_intents.web.server.head import MAX_HEADERS, check_head, says_close
from trading_intents.web.server.table import ConnectionTable

PARSE_BYTES = 1024  # at a time: all requests in them are queued before the queue's limit is checked
MAX_PIPELINED = 16
MAX_PIPELINED_BYTES = 64 * 1024
# Also of bytes that are neither head nor body: chunk sizes, their extensions, trailers.
MAX_HEAD_BYTES = 32 * 1024
# Of a body: one that is too large, but not larger than this, is read to its end.
MAX_RECEIVED_BYTES = 1024 * 1024
FIRST_BYTE_SECONDS = 10
REQUEST_SECONDS = 10  # from a request's first byte to its last
KEEP_ALIVE_SECONDS = 75
WRITE_SECONDS = 30  # for a client to read enough that we may write again, or close
LAST_EVENT_SECONDS = 5  # for the end of a stream to be sent
BACK_OFF_SECONDS = 1.0  # the shortest Retry-After

_REASONS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
BODILESS = (204, 304)  # statuses whose answer ends with its head
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOTHING = memoryview(b"")
# Headers that change how a request is read.
_UNUSUAL = frozenset({b"connection", b"expect", b"transfer-encoding"})


class HttpConnection(asyncio.BufferedProtocol):
    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._app = table.app
        self._slots = table.slots
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._unread = _NOTHING  # received and not parsed yet; nothing more is received meanwhile
        self._is_in_line = False  # of those that wait for their turn to parse
        self._waiting: deque[Incoming] = deque()
        self._waiting_bytes = 0  # received while requests wait
        self._incoming: Incoming | None = None  # the request that is being answered
        self._serving: Serving | None = None
        self._feed: StreamingBody | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.paused = False
        self._is_reading = True
        self._is_half_closed = False
        self._is_held_back = False
        self._back_off_until = 0.0
        self._is_last = False  # no request follows those that wait
        self._headers: Headers = []
        self._url = b""
        self._request_deadline: float | None = None  # while a request arrives
        self._write_deadline: float | None = None  # while answers wait to be sent
        self._idle_deadline = self._loop.time() + FIRST_BYTE_SECONDS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = str(address[0]) if address else "unknown"
        self._table.add(self, self._peer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self)
        self._stop_receiving()
        self._waiting.clear()
        del self._parser  # it refers to this object, and cycles are collected rarely
        self._writable.set()
        if serving := self._serving:
            serving.abandon()
            if serving.is_over:
                self._incoming = self._serving = None
        if self._feed:
            self._feed.close()
        self._notify_idle()

    def eof_received(self) -> bool:
        """Answers what a client that half-closes its connection has sent; a stream of events
        ends."""
        self._is_half_closed = True
        self._stop_receiving()
        if self._feed or self._is_idle:
            self._close()
        self._notify_idle()
        return True

    def pause_writing(self) -> None:
        """Takes no more requests from a client that does not read its answers, and limits how long
        it may not."""
        self.paused = True
        self._writable.clear()
        self._table.set_quiet(self, True)
        if not self._feed:  # which has a limit of its own
            self._write_deadline = self._loop.time() + WRITE_SECONDS
            self._go_on()

    def resume_writing(self) -> None:
        self.paused = False
        self._writable.set()
        self._table.set_quiet(self, self._is_idle)
        if self._feed:
            self._feed.resume()
        elif not self._transport.is_closing():
            self._write_deadline = None
            self._go_on()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._table.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_last:
            return
        if nbytes <= PARSE_BYTES and self._slots.has_time():
            self._parse(self._table.buffer[:nbytes])
        else:
            self._unread = memoryview(self._table.buffer[:nbytes])
        self._use_slot()

    def _take_slot(self) -> None:
        self._is_in_line = False
        if not self._waiting and self._unread and self._has_room:
            piece = self._unread[:PARSE_BYTES]
            self._unread = self._unread[PARSE_BYTES:]
            self._parse(piece)
        self._use_slot()

    def _use_slot(self) -> None:
        if self._waiting and self._may_serve:
            self._serve_next()
        if self._waiting or self._unread or not self._is_reading:
            self._go_on()

    def _go_on(self) -> None:
        """Waits for the next turn if there is something to do in it, and receives more only when
        all that was received is parsed."""
        may_parse = self._has_room
        may_go_on = self._may_serve if self._waiting else self._unread and may_parse
        if may_go_on and not self._is_in_line:
            self._is_in_line = True
            self._slots.wait(self._table.holder_of(self), self._take_slot)
        wanted = may_parse and not self._unread
        if wanted == self._is_reading or self._is_last or self._transport.is_closing():
            return
        self._is_reading = wanted
        if not wanted:
            self._transport.pause_reading()
            return
        self._transport.resume_reading()
        if self._request_deadline is not None:  # the client did not cause this wait
            self._request_deadline = self._loop.time() + REQUEST_SECONDS

    @property
    def _may_serve(self) -> bool:
        return not self._is_busy and not self.paused and not self._transport.is_closing()

    @property
    def _has_room(self) -> bool:
        if self.paused or self._is_held_back or self._waiting_bytes >= MAX_PIPELINED_BYTES:
            return False
        return len(self._waiting) + (self._incoming is not None) < MAX_PIPELINED

    def _parse(self, piece: bytearray | memoryview) -> None:
        self._piece_bytes = len(piece)
        if self._waiting:
            self._waiting_bytes += self._piece_bytes
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._stop_receiving()  # the request is answered, but what follows is not HTTP/1.1
        except httptools.HttpParserError as error:
            if not self._is_last:
                self.refuse(_explain(error))
        if self._request_deadline is not None:
            self._framing_bytes += self._piece_bytes
            if self._framing_bytes > MAX_HEAD_BYTES + self._body_bytes:
                self.refuse(InvalidRequest("the headers, or the sizes of chunks, are too large"))
            elif self._body_bytes > MAX_RECEIVED_BYTES:
                self._keep_alive = False
                # The rest is not read: whoever calls is identified before it is refused.
                self.on_message_complete()

    # httptools calls these while it parses.

    def on_message_begin(self) -> None:
        self._request_deadline = self._loop.time() + REQUEST_SECONDS
        self._taken = self._app.enter(self)
        self._url = b""
        self._headers = []
        self._in_head = True
        # Counted from the next piece on: the bytes before, in this one, belong to other requests.
        self._framing_bytes = -self._piece_bytes
        self._body = bytearray()
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        if len(self._url) <= MAX_TARGET_BYTES:  # more is refused later
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is ignored
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = -self._piece_bytes
        headers = self._headers
        named = dict(self._headers)
        parser = self._parser
        self._named = named
        self._keep_alive = parser.should_keep_alive()
        # Only HTTP/1.1 is kept alive without a Connection header.
        usual = self._keep_alive and b"host" in named and len(named) == len(headers) <= MAX_HEADERS
        if not usual or not _UNUSUAL.isdisjoint(named) or parser.should_upgrade():
            version = parser.get_http_version()
            check_head(parser, version, headers, named)
            self._keep_alive = self._keep_alive and not says_close(headers)
            is_expected = version == "1.1" and named.get(b"expect", b"").lower() == b"100-continue"
            if is_expected and self._is_idle:
                self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes <= MAX_BODY_BYTES:  # more is refused later, once it is known who calls
            self._body += body

    def on_message_complete(self) -> None:
        self._request_deadline = None
        path, _, query = self._url.partition(b"?")
        self._url = b""
        if not self._table.begin_request(self, path):
            return
        body = bytes(self._body) if self._body_bytes <= MAX_BODY_BYTES else None
        keep = self._keep_alive
        method = self._parser.get_method().decode("ascii")
        incoming = Incoming(
            method=method,
            raw_path=path,
            query_string=query,
            headers=self._headers,
            body=body,
            peer=self._peer,
            keep_alive=keep,
            taken=self._taken,
            named=self._named,
        )
        self._waiting.append(incoming)
        if not keep:
            self._stop_receiving()

    @property
    def _is_busy(self) -> bool:
        return self._incoming is not None or self._feed is not None

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and not self._is_busy

    def _stop_receiving(self) -> None:
        self._is_last = True
        self._request_deadline = None
        self._unread = _NOTHING

    def refuse(self, error: PlatformError) -> None:
        """Answers the earlier requests, then sends this refusal and closes: the bytes are no
        request."""
        self._stop_receiving()
        self._app.enter(self)
        path, _, query = self._url.partition(b"?")
        self._waiting.append(
            Incoming(
                method="GET",
                raw_path=path,
                query_string=query,
                headers=self._headers,
                body=None,
                peer=self._peer,
                keep_alive=False,
                refusal=error,
            )
        )
        self._go_on()

    def _serve_next(self) -> None:
        incoming = self._incoming = self._waiting.popleft()
        if not self._waiting:
            self._waiting_bytes = 0
        self._table.set_quiet(self, False)
        serving = self._app.begin(incoming, self._respond)
        if not serving.is_over:
            self._serving = serving

    def _respond(self, answer: Answer) -> None:
        incoming = self._incoming
        assert incoming
        self._incoming = self._serving = None
        self._idle_deadline = self._loop.time() + KEEP_ALIVE_SECONDS
        if answer.feed:
            self._open_feed(answer, answer.feed, incoming.method)
        elif not self._transport.is_closing():
            self._write_answer(answer, incoming.method, incoming.keep_alive)
            if self._waiting or self._unread or not self._is_reading:
                self._go_on()
        self._notify_idle()

    def _write_answer(self, answer: Answer, method: str, keep: bool) -> None:
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._hold_back()
        close = not keep or self._app.draining or (self._is_last and not self._waiting)
        self._write(answer, method, close)
        if close:
            self._close()

    def _hold_back(self) -> None:
        """Does not read a connection that is refused again too soon when many are refused: a
        thousand that never wait would use up the process. Connections of trusted proxies, which
        many clients share, are read on."""
        now = self._loop.time()
        if now >= self._back_off_until:
            self._back_off_until = now + BACK_OFF_SECONDS
            self._table.count_refused(BACK_OFF_SECONDS)
        elif self._table.may_hold_back(self) and not self._is_held_back:
            self._is_held_back = True
            spread_seconds = random.random() * BACK_OFF_SECONDS  # noqa: S311 - no secret
            self._loop.call_at(self._back_off_until + spread_seconds, self._stop_holding_back)
            self._go_on()

    def _stop_holding_back(self) -> None:
        self._is_held_back = False
        if not self._transport.is_closing():
            self._go_on()

    def _write(self, answer: Answer, method: str, close: bool) -> None:
        parts = [_REASONS[answer.status], self._table.headers]
        for name, value in answer.headers:
            parts += (name, b": ", value, b"\r\n")
        if answer.status not in BODILESS:
            parts += (b"content-type: ", answer.content_type, b"\r\n")
            if not answer.feed:
                parts.append(b"content-length: %d\r\n" % len(answer.body))
        parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
        if method != "HEAD" and answer.status not in BODILESS:
            parts.append(answer.body)
        self._transport.write(b"".join(parts))

    def _open_feed(self, answer: Answer, feed: StreamingBody, method: str) -> None:
        """Starts the last answer of its connection, which ends with the body."""
        self._stop_receiving()
        self._waiting.clear()
        if not self._transport.is_closing():
            self._write(answer, method, close=True)
        if self._transport.is_closing() or self._is_half_closed or method == "HEAD":
            feed.close()
            self._close()
            return
        self._feed = feed
        self._write_deadline = None
        if not self._is_reading:  # the end of data shows that a reader has left
            self._is_reading = True
            self._transport.resume_reading()
        feed.open(self)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def end(self) -> None:
        self._close(LAST_EVENT_SECONDS)

    def _close(self, limit_seconds: float = WRITE_SECONDS) -> None:
        self._stop_receiving()
        self._waiting.clear()
        self._write_deadline = self._loop.time() + limit_seconds
        self._transport.close()

    def _notify_idle(self) -> None:
        """Notifies the table when no request waits for an answer, and the application when none is
        arriving either."""
        if self._incoming or self._waiting:
            return
        if not self._feed:
            self._table.set_quiet(self, True)
        if self._request_deadline is None:
            self._app.leave(self)

    def check(self, now: float) -> None:
        if self._write_deadline is not None:
            if now >= self._write_deadline:
                self._transport.abort()
        elif self._request_deadline is not None:
            if now >= self._request_deadline and self._is_reading:
                self.refuse(
                    RequestTimeout(f"the request did not arrive within {REQUEST_SECONDS} s")
                )
        elif self._is_idle and now >= self._idle_deadline:
            self._close()

    def abort(self) -> None:
        self._transport.abort()

    def finish(self) -> asyncio.Task[None] | None:
        """Takes no more requests; gives the task that still answers, if there is one."""
        self._stop_receiving()
        if self._feed:
            self._transport.abort()  # its stream has ended it, or is too late
        elif self._is_idle:
            self._close()
        return self._serving.task if self._serving else None


def _explain(error: httptools.HttpParserError) -> PlatformError:
    """The parser's own error, or the one that a callback raised."""
    if not isinstance(error, httptools.HttpParserCallbackError):
        return InvalidRequest("not an HTTP/1.1 request")
    if isinstance(error.__context__, PlatformError):
        return error.__context__
    fault = InternalError("an error of the platform; its log has the details under the request id")
    fault.__cause__ = error.__context__
    return fault
