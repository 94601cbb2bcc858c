"""A receiver of webhooks that verifies each with the specification's own library, and that can fail
in five ways."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Answer(Enum):
    TAKEN = "200"
    FAILED = "500"
    MOVED = "302, to itself"
    SILENT = "the connection ends without an answer"
    RESET = "the connection is reset"
    HANGING = "nothing comes, and nothing ends"


Choose = Callable[[int], Answer]


@dataclass(kw_only=True)
class Receiver:
    """A webhook receiver. It notes failed attempts too: a receiver may have worked on one that it
    did not answer."""

    url: str
    choose: Choose
    attempts: list[str] = field(default_factory=list)  # ids in the order of their arrival
    bodies: dict[str, bytes] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> list[str]:
        """As a receiver has them that keeps ids, also of what it failed to answer."""
        return list(dict.fromkeys(self.attempts))

    @property
    def taken(self) -> list[str]:
        """As a receiver has them that keeps what it took."""
        return [
            event_id
            for event_id, answer in zip(self.attempts, self.answers, strict=True)
            if answer is Answer.TAKEN
        ]

    def await_attempts(self, count: int, limit_seconds: float) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.attempts) >= count, limit_seconds), (
                self.attempts
            )

    def take(self, webhook: Webhook, headers: dict[str, str], body: bytes) -> Answer:
        event_id = headers.get("webhook-id", "")
        with self.arrived:
            try:
                webhook.verify(body, headers)
            except Exception as error:
                self.unverified.append(f"{event_id}: {error}")
            answer = self.choose(len(self.attempts))
            self.attempts.append(event_id)
            self.answers.append(answer)
            if self.bodies.setdefault(event_id, body) != body:
                self.unverified.append(f"{event_id}: another body than before")
            self.arrived.notify_all()
        return answer


@contextmanager
def receiving(secret: str, choose: Choose = lambda _: Answer.TAKEN) -> Iterator[Receiver]:
    webhook = Webhook(secret)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = receiver.take(
                webhook, {name.lower(): text for name, text in self.headers.items()}, body
            )
            # Others are answered on a connection that stays: the next attempt may be on its way.
            self.close_connection = answer in (Answer.SILENT, Answer.RESET, Answer.HANGING)
            match answer:
                case Answer.TAKEN | Answer.FAILED | Answer.MOVED:
                    self.send_response(int(answer.value[:3]))
                    self.send_header("location", receiver.url)
                    self.send_header("content-length", "0")
                    self.end_headers()
                case Answer.RESET:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                case Answer.HANGING:
                    receiver.ended.wait()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def shutdown_request(self, request: Any) -> None:
            self.close_request(request)  # as it is: a graceful shutdown would come before the reset

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # the forwarder was killed

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(
            url=f"http://127.0.0.1:{server.server_port}/hooks/of-the-receiver", choose=choose
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.ended.set()
            server.shutdown()
            thread.join()
