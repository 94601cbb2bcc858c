"""The answers of HAProxy itself, as deploy/haproxy configures it, have the platform's form of an error."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.deploy.programs import DEPLOY, find, libraries
from tests.free_port import free_port
from tests.waiting import eventually
from trading_intents.errors import OutcomeUnknown, Unavailable

pytestmark = pytest.mark.slow

START_SECONDS = 20
READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@contextmanager
def haproxy(folder: Path, api_port: int) -> Iterator[str]:
    """As it is deployed, but in plain HTTP, and with one API process, at this port."""
    port = free_port()
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    for pattern, ours in (
        (r"^ +(user|group|stats socket|ssl-default-bind-options) .*\n", ""),
        (r"bind :443 .*", f"bind 127.0.0.1:{port}"),
        (r"(?s)frontend stream.*", ""),
        (r"10\.0\.1\.1:8080", f"127.0.0.1:{api_port}"),
        (r" +server api-2 .*\n", ""),
    ):
        text, count = re.subn(pattern, ours, text, flags=re.MULTILINE)
        assert count, pattern
    (folder / "haproxy.cfg").write_text(text)
    process = subprocess.Popen(
        [find("haproxy"), "-db", "-f", folder / "haproxy.cfg"],
        env=os.environ | libraries(),
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: is_open(port), START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_problem(answer: httpx.Response, status: int, code: str, title: str) -> None:
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    )
    assert problem.keys() == {"type", "title", "status", "detail", "code", "request_id"}
    assert (problem["type"], problem["title"]) == (f"/docs#{code}", title)
    assert (problem["status"], problem["code"]) == (status, code)
    assert int(answer.headers["retry-after"]) == 1
    assert problem["request_id"] == answer.headers["x-request-id"]


def test_a_request_that_no_process_can_take_is_unavailable(tmp_path: Path) -> None:
    with haproxy(tmp_path, free_port()) as url:

        def is_down() -> bool:
            return httpx.get(f"{url}/v1/accounts").status_code == Unavailable.status

        eventually(is_down, START_SECONDS)
        answer = httpx.get(f"{url}/v1/accounts", headers={"x-request-id": "mine-1"})
        is_problem(answer, 503, Unavailable.code, Unavailable.title)
        assert answer.headers["x-request-id"] == "mine-1"
        for hostile in ('"}{"', "a b", "x" * 65):
            answer = httpx.get(f"{url}/v1/accounts", headers={"x-request-id": hostile})
            json.loads(answer.content)
            is_problem(answer, 503, Unavailable.code, Unavailable.title)
            assert answer.headers["x-request-id"] != hostile


def test_a_request_whose_process_ends_has_an_unknown_outcome(tmp_path: Path) -> None:
    """The process: it takes every check, and closes on every order."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = subprocess.Popen(
            ["python3", "-c", CLOSES_ON_ORDERS, str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )
        try:
            with haproxy(tmp_path, listener.getsockname()[1]) as url:
                answer = httpx.post(f"{url}/v1/accounts/1/intents", json={})
                is_problem(answer, 502, OutcomeUnknown.code, OutcomeUnknown.title)
        finally:
            server.kill()
            server.wait()


CLOSES_ON_ORDERS = f"""
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    client, _ = listener.accept()
    if client.recv(65536).startswith(b"GET /readyz"):
        client.sendall({READY!r})
    client.close()
"""
