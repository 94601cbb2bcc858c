"""Idle gRPC connections take a share of the process's descriptors, and leave HTTP and PostgreSQL
theirs."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import pytest

from tests.conftest import Urls
from tests.platform import environment, run_command
from tests.tenants import PLENTY
from trading_intents.stream.grpc.listener import GrpcListener
from trading_intents.stream.grpc.subscriptions import StreamServicer
from trading_intents.web.server import table

LIMIT_SECONDS = 10
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
MAX_CONNECTIONS = 4
FEW_DESCRIPTORS = 256
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv.pop(1)),) * 2)
runpy.run_module("trading_intents", run_name="__main__", alter_sys=True)
"""


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    wire = socket.create_connection((host, int(port)), LIMIT_SECONDS)
    wire.sendall(PREFACE)
    return wire


def is_admitted(wire: socket.socket) -> bool:
    """An admitted connection gets the server's settings, another one is closed."""
    with contextlib.suppress(ConnectionError):
        return wire.recv(1) != b""
    return False


@pytest.fixture
async def listener() -> AsyncIterator[GrpcListener]:
    class NoStreams:
        def handler(self) -> Any:
            return grpc.method_handlers_generic_handler("none", {})

    listener = GrpcListener(
        transport=cast(StreamServicer, NoStreams()),
        max_streams=1,
        max_connections=MAX_CONNECTIONS,
        host="127.0.0.1",
        port=0,
        files=None,
    )
    await listener.start()
    yield listener
    await listener.stop()


async def test_one_connection_more_than_allowed_is_closed_until_another_ends(
    listener: GrpcListener,
) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(connect(listener.address)) for _ in range(MAX_CONNECTIONS + 2)]
        assert [is_admitted(wire) for wire in wires] == [True] * MAX_CONNECTIONS + [False] * 2
        wires[0].close()
        while not is_admitted(stack.enter_context(connect(listener.address))):
            pass


@pytest.mark.parametrize(
    ("descriptors", "pool_size", "connections"),
    [
        (1024, 10, 225),
        (1024, 100, 90),
        (256, 10, 33),
        (100, 10, 1),
        (resource.RLIM_INFINITY, 10, 10_000),
    ],
)
def test_grpc_leaves_the_descriptors_that_http_and_postgresql_need(
    descriptors: int, pool_size: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    assert table.max_grpc_connections(pool_size) == connections
    assert table.connection_limits(0).total == (10_000 if descriptors < 0 else descriptors // 2)


@contextlib.contextmanager
def few_descriptors(
    urls: Urls, folder: Path
) -> Iterator[tuple[dict[str, str], int, dict[str, str]]]:
    """The addresses, the process id and the settings of a platform that may open few files."""
    settings = PLENTY | {
        "DATABASE_URL": urls.login.reveal(),
        "DATABASE_OWNER_URL": urls.owner.reveal(),
    }
    command = [sys.executable, "-c", LIMITED, str(FEW_DESCRIPTORS), "serve"]
    environ = environment(folder, settings)
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            received = next(line for line in process.stderr if '"serving"' in line)
            yield json.loads(received), process.pid, environ
        finally:
            process.terminate()


@pytest.mark.chaos
def test_http_is_served_beside_more_idle_grpc_connections_than_descriptors(
    urls: Urls, tmp_path: Path
) -> None:
    with few_descriptors(urls, tmp_path) as (addresses, pid, _), contextlib.ExitStack() as stack:
        wires = [
            stack.enter_context(connect(addresses["grpc"])) for _ in range(2 * FEW_DESCRIPTORS)
        ]
        assert 0 < sum(map(is_admitted, wires)) <= FEW_DESCRIPTORS // 4
        assert len(os.listdir(f"/proc/{pid}/fd")) < FEW_DESCRIPTORS // 2
        for path in ("/healthz", "/readyz", "/metrics"):
            assert httpx.get(addresses["http"] + path, timeout=LIMIT_SECONDS).status_code == 200


@pytest.mark.chaos
def test_streams_of_one_organization_leave_connections_to_the_others(
    urls: Urls, tmp_path: Path
) -> None:
    keys = [
        {"name": f"k{n}", "environment": "paper", "permissions": ["stream:read"]} for n in range(2)
    ]
    account = {"name": "a", "broker": "paper", "environment": "paper"}
    document = {"organizations": [{"external_id": "o", "api_keys": keys, "accounts": [account]}]}
    with (
        few_descriptors(urls, tmp_path) as (addresses, _, environ),
        contextlib.ExitStack() as stack,
    ):
        applied = run_command(environ, "admin", "apply", "-", stdin=json.dumps(document))
        made = json.loads(applied.stdout)["organizations"][0]
        host, port = addresses["http"].removeprefix("http://").split(":")
        statuses: Counter[bytes] = Counter()
        for number in range(FEW_DESCRIPTORS // 2):
            source = (f"127.0.0.{2 + number % 2}", 0)
            key = made["api_keys"][number % 2]["api_key"]
            wire = stack.enter_context(
                socket.create_connection((host, int(port)), LIMIT_SECONDS, source)
            )
            path = f"/v1/accounts/{made['accounts'][0]['id']}/events"
            wire.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n".encode())
            statuses[wire.recv(12)[9:]] += 1
        assert statuses == {b"200": FEW_DESCRIPTORS // 8, b"429": FEW_DESCRIPTORS * 3 // 8}
        assert httpx.get(addresses["http"] + "/metrics", timeout=LIMIT_SECONDS).status_code == 200
