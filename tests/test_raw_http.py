"""The tests' own HTTP client sends what httpx sends, and answers as httpx does."""

import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import raw_http
from tests.free_port import free_port
from tests.raw_http import FRAMING, QuickClient

ANSWER = b"HTTP/1.1 200 OK\r\nx-twice: a\r\nX-Twice: b\r\ncontent-type: text/plain\r\n"
HEADERS = {"X-Client": "1"}


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """Answers with the request, in one piece or in two chunks, and hangs up if asked to."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while request := received(connection):
                if b"/mute" in request:
                    return
                if b"/chunks" in request:
                    chunks = b"".join(
                        b"%x\r\n%s\r\n" % (len(part), part)
                        for part in (request[:9], request[9:], b"")
                    )
                    connection.sendall(ANSWER + b"transfer-encoding: chunked\r\n\r\n" + chunks)
                else:
                    connection.sendall(
                        ANSWER + b"content-length: %d\r\n\r\n" % len(request) + request
                    )

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def received(connection: socket.socket) -> bytes:
    """A request: httpx sends its head and its body apart."""
    request = connection.recv(65_536)
    length = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    missing = int(length[1]) - len(request.partition(b"\r\n\r\n")[2]) if length else 0
    return request + (connection.recv(65_536) if missing else b"")


def answered(client: httpx.Client, method: str, path: str, more: dict[str, Any]) -> Any:
    answer = client.request(method, path, **more)
    head, _, body = answer.content.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    sent = sorted(
        (name.lower(), value)
        for name, value in pairs
        if name.lower() not in FRAMING - {"content-length"}
    )
    return (
        first,
        sent,
        body,
        answer.status_code,
        answer.headers.get_list("x-twice"),
        answer.text == answer.content.decode(),
    )


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("GET", "/v1/accounts?limit=1&order=asc", {}),
        ("get", "/v1/accounts", {"params": {"limit": 1, "a": "é &+%/", "none": None, "on": True}}),
        ("GET", "/chunks", {"headers": {"X-Api-Key": "k", "host": "other"}}),
        (
            "POST",
            "/v1/a",
            {"json": {"a": "é", "b": [1, None]}, "headers": {"content-type": "text/json"}},
        ),
        ("POST", "/v1/a", {"json": 0}),
        ("POST", "/v1/a", {"content": "text"}),
        ("PUT", "/v1/a", {}),
        ("PATCH", "/v1/a", {"content": b""}),
        ("DELETE", "/v1/a%2Fb/ü", {}),
        ("POST", "/v1/a", {"data": {"a": "b"}, "auth": ("user", "password")}),
        ("GET", "/v1/a", {"headers": [("a", "1"), ("a", "2")]}),
        ("GET", "/v1/a", {"headers": {b"a": "é".encode()}}),
    ],
)
def test_it_sends_what_httpx_sends(echo: str, method: str, path: str, more: dict[str, Any]) -> None:
    with (
        httpx.Client(base_url=echo, headers=HEADERS, verify=False) as one,
        QuickClient(echo, HEADERS) as other,
    ):
        assert (
            answered(one, method, path, more)
            == answered(other, method, path, more)
            == answered(other, method, path, more)
        )


def test_a_connection_that_ends_raises_the_error_of_httpx(echo: str) -> None:
    with QuickClient(echo) as client:
        assert client.get("/before").status_code == 200
        with pytest.raises(httpx.ReadError):
            client.get("/mute")
        assert client.get("/after").status_code == 200
    with (
        QuickClient(f"http://127.0.0.1:{free_port()}") as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.get("/")


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with QuickClient(echo) as client:
        client.get("/first")
        (kept,) = client._idle
        client.get("/second")
        assert client._idle == [kept]
        monkeypatch.setattr(raw_http, "REUSE_SECONDS", 0)
        client.get("/third")
        assert kept not in client._idle
