"""A venue on a loopback port, with the faults of the broker cards. Each venue's REST is a class on top
of this one."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from spot_book import SpotBook

from trading_intents.testing.broker_suite import StageFault

LOOKUP_FAULTS = frozenset({StageFault.REFUSE_LOOKUP, StageFault.LOSE_LOOKUP})
LOST = frozenset({StageFault.LOSE_COMMAND, StageFault.LOSE_LOOKUP})
UNANSWERED = frozenset({StageFault.DROP_ANSWER, StageFault.BREAK_LINK})
# A page in front of the venue, which knows nothing of orders.
FORBIDDEN = "<html><body>403 Forbidden</body></html>"


class Dropped(Exception):
    """The connection is closed without an answer."""


@dataclass
class Request:
    method: str
    path: str
    query: str
    fields: Mapping[str, str]  # of the query and a form; of JSON at its top
    body: str
    headers: Mapping[str, str]


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str] | None = None


@dataclass(eq=False)
class SaidFault:
    """The next command, or look-up, gets this answer, after it was carried out or instead."""

    answer: Answer
    is_done: bool
    is_of_lookup: bool = False


class Simulator:
    """`answer` is the venue's own."""

    venue: ClassVar[str]
    credentials: ClassVar[Mapping[str, str]]

    def __init__(self, book: SpotBook | None = None) -> None:
        self.book = book or SpotBook()
        self.faults: list[StageFault | SaidFault] = []
        self.is_broken = False
        self.requests: list[Request] = []
        self.failures: list[Exception] = []  # of its own

    def is_command(self, request: Request) -> bool:
        raise NotImplementedError

    def is_lookup(self, request: Request) -> bool:
        raise NotImplementedError

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    def handle(self, request: Request) -> Answer:
        self.requests.append(request)
        if self.is_broken:
            raise Dropped
        fault = self._take_fault(request)
        if fault in LOST:
            raise Dropped
        if fault is StageFault.REFUSE_LOOKUP:
            return Answer(403, FORBIDDEN)
        if isinstance(fault, SaidFault) and not fault.is_done:
            return fault.answer
        with self.book.lock:
            answer = self.answer(request)
        self.is_broken = fault is StageFault.BREAK_LINK
        if fault in UNANSWERED:
            raise Dropped
        return fault.answer if isinstance(fault, SaidFault) else answer

    def _take_fault(self, request: Request) -> StageFault | SaidFault | None:
        fault = self.faults[0] if self.faults else None
        is_of_lookup = fault in LOOKUP_FAULTS
        if isinstance(fault, SaidFault):
            is_of_lookup = fault.is_of_lookup
        is_met = self.is_lookup if is_of_lookup else self.is_command
        return self.faults.pop(0) if fault and is_met(request) else None

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        simulator = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                fields = dict(parse_qsl(url.query, keep_blank_values=True))
                if body.startswith("{"):
                    fields |= json.loads(body)
                else:
                    fields |= dict(parse_qsl(body, keep_blank_values=True))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, url.path, url.query, fields, body, headers)
                try:
                    answer = simulator.handle(request)
                except Dropped:
                    self.close_connection = True
                    return
                except Exception as error:
                    simulator.failures.append(error)
                    raise
                text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                data = text.encode()
                self.send_response(answer.status)
                self.send_header("content-type", "application/json;charset=UTF-8")
                self.send_header("content-length", str(len(data)))
                for name, value in (answer.headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_DELETE = do_GET  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        assert not self.failures, "the simulator itself failed"
