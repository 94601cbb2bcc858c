"""One organization's share of the process does not grow with its connections: beside one that
uses as many as it likes at full speed, another one's answers take at most twice as long."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.certificates import client_hello, make_certificate
from tests.chaos.floods import SUBMIT, get, post, read_answer
from tests.conftest import Urls
from tests.platform import serving
from tests.tenants import PLENTY

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TURNS = 2  # of alone and beside, so that a machine that is slower for a while is so in both
SECONDS = 2.0  # of a turn
END_SECONDS = 30
MAX_SLOWDOWN = 2.0
PERMISSIONS = ["intent:edit", "intent:read", "account:read"]
ADDRESS = "127.0.0.2"  # of the busy organization
OTHER = "127.0.0.3"
HALF_HANDSHAKES = 1_200
TRIES = 3  # of which one is not disturbed by the rest of the machine
MAX_HANDSHAKE_SECONDS = 0.25


@dataclass
class Site:
    port: int
    accounts: list[str]  # of the organization that is measured, and of the busy one
    keys: list[str]
    millis: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def requests(self, number: int) -> dict[str, bytes]:
        path = f"/v1/accounts/{self.accounts[number]}".encode()
        return {
            "submit": post(path + b"/intents", SUBMIT, api_key=self.keys[number]),
            "read": get(path, self.keys[number]),
            "healthz": get(b"/healthz"),
        }

    async def measure(self, seconds: float, label: str) -> None:
        """By one connection, each kind in turn."""
        kinds = self.requests(0)
        found = self.millis.setdefault(label, {kind: [] for kind in kinds})
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for kind, request in kinds.items():
                started = time.monotonic()
                writer.write(request)
                assert await read_answer(reader) in ("200", "202")
                found[kind].append((time.monotonic() - started) * 1000)
        writer.close()

    def slowdowns(self, label: str) -> dict[str, float]:
        return {
            kind: median(beside) / median(self.millis[f"{label} alone"][kind])
            for kind, beside in self.millis[label].items()
        }


@pytest.fixture
def site(urls: Urls, tmp_path: Path) -> Iterator[Site]:
    database = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    account = {"name": "a", "broker": "paper", "environment": "paper"}
    key = {"name": "k", "environment": "paper", "permissions": PERMISSIONS}
    made = [
        {"external_id": name, "api_keys": [key], "accounts": [account]}
        for name in ("measured", "busy")
    ]
    with serving(
        tmp_path, **PLENTY, **database, ROLES="api", HTTP_CONNECTIONS_PER_ADDRESS="450"
    ) as platform:
        organizations = platform.provision({"organizations": made})["organizations"]
        yield Site(
            port=urlsplit(platform.url).port or 0,
            accounts=[each["accounts"][0]["id"] for each in organizations],
            keys=[each["api_keys"][0]["api_key"] for each in organizations],
        )


@contextmanager
def busy(site: Site, kind: str, connections: int) -> Iterator[dict[str, Any]]:
    """An organization that sends one kind of request on so many connections, as fast as it gets
    answers. It runs at the lowest priority, so that it takes no processor from who measures."""
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.chaos.test_fair_shares"]
    report: dict[str, Any] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        request = site.requests(1)[kind].decode()
        task = {"port": site.port, "request": request, "connections": connections}
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        try:
            assert process.stdout.readline() == "under way\n"
            yield report
            process.stdin.close()
            report |= json.loads(process.stdout.read())
            process.wait(END_SECONDS)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["submit", "read"])
def test_a_share_does_not_grow_with_connections(site: Site, kind: str) -> None:
    found = dict[int, dict[str, float]]()
    asyncio.run(site.measure(SECONDS, "warm"))
    for connections in (10, 100, 400):
        label = str(connections)
        answered = list[float]()
        for _ in range(TURNS):
            asyncio.run(site.measure(SECONDS, f"{label} alone"))
            with busy(site, kind, connections) as report:
                asyncio.run(site.measure(SECONDS, label))
            answered.append(report["per_second"])
        found[connections] = site.slowdowns(label)
        shown = {each: round(times, 2) for each, times in found[connections].items()}
        alone = {each: round(median(m), 2) for each, m in site.millis[f"{label} alone"].items()}
        print(f"{kind}s on {connections}: {shown} x {alone} ms; {median(answered):.0f}/s")
    assert max(max(each.values()) for each in found.values()) <= MAX_SLOWDOWN


def test_half_handshakes_of_one_address_delay_no_other(urls: Urls, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    files = {"HTTP_TLS_CERTIFICATE_FILE": str(certificate), "HTTP_TLS_KEY_FILE": str(key)}
    database = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    trusting = ssl.create_default_context(cafile=certificate)
    hello = client_hello()
    with (
        serving(tmp_path / "data", **database, **files, ROLES="api") as platform,
        ExitStack() as stack,
    ):
        port = urlsplit(platform.url).port or 0
        seconds = list[float]()
        for _ in range(TRIES):
            for _ in range(HALF_HANDSHAKES):
                flood = stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), source_address=(ADDRESS, 0))
                )
                flood.sendall(hello)
            began = time.monotonic()
            with (
                socket.create_connection(("127.0.0.1", port), source_address=(OTHER, 0)) as plain,
                trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client,
            ):
                client.sendall(get(b"/healthz"))
                assert client.recv(1024).startswith(b"HTTP/1.1 200 ")
            seconds.append(time.monotonic() - began)
            stack.pop_all().close()
        print(f"behind {HALF_HANDSHAKES} half handshakes: {[round(each, 3) for each in seconds]} s")
    assert min(seconds) <= MAX_HANDSHAKE_SECONDS


async def send(port: int, request: bytes, connections: int) -> None:
    """Sends until standard input ends."""
    answered = 0
    are_answered = asyncio.Event()

    async def ask() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ADDRESS, 0))
        while True:
            writer.write(request)
            assert await read_answer(reader) in ("200", "202")
            answered += 1
            if answered == connections:
                are_answered.set()

    tasks = [asyncio.ensure_future(ask()) for _ in range(connections)]
    await are_answered.wait()
    print("under way", flush=True)
    began = time.monotonic()
    before = answered
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps({"per_second": (answered - before) / (time.monotonic() - began)}))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def main() -> None:
    task = json.loads(sys.stdin.readline())
    asyncio.run(send(task["port"], task["request"].encode(), task["connections"]))


if __name__ == "__main__":
    main()
