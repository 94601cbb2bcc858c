"""Floods beside one tenant's reads and submits: their p99 stays near that without floods, and
memory as it was."""

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chaos.floods import NAMES, SUBMIT, get, post, read_answer
from tests.chaos.memory import memory_mb
from tests.conftest import Urls
from tests.platform import Platform, serving

FLOOD_SECONDS = 6.0
RECOVERY_SECONDS = 1.0
BASELINE_SECONDS = 3.0
END_SECONDS = 30
PAUSE_SECONDS = 0.01
MAX_SLOWDOWN = 5
MAX_EXTRA_MILLIS = 50
# Of the serving process, after a flood: what allocators keep of the most connections and requests
# that it ever had at once. A flood that comes again must find that room.
MAX_GROWTH_MB = 100
MAX_GROWTH_AGAIN_MB = 20
KEYS = 25
SETTINGS = {"ROLES": "api,stream", "MAX_STREAMS": "400"}
PERMISSIONS = ["intent:edit", "intent:read", "stream:read"]


@dataclass
class Latencies:
    reads: list[float] = field(default_factory=list)
    submits: list[float] = field(default_factory=list)

    @property
    def p99_millis(self) -> list[float]:
        """Of reads, and of submits."""
        return [sorted(each)[int(len(each) * 0.99)] * 1000 for each in (self.reads, self.submits)]


@dataclass
class Measured:
    """The tenant that is measured: one connection reads, one submits, each with a pause after each
    answer."""

    platform: Platform
    port: int
    account_id: str
    api_key: str

    async def run(self, seconds: float, latencies: Latencies) -> None:
        path = f"/v1/accounts/{self.account_id}"
        until = time.monotonic() + seconds
        read = get(f"{path}/orders?limit=10".encode(), self.api_key)
        submit = post(f"{path}/intents".encode(), SUBMIT, api_key=self.api_key)
        await asyncio.gather(
            self._ask(read, "200", until, latencies.reads),
            self._ask(submit, "202", until, latencies.submits),
        )

    async def _ask(self, request: bytes, status: str, until: float, seconds: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while time.monotonic() < until:
                started = time.monotonic()
                writer.write(request)
                assert await read_answer(reader) == status
                seconds.append(time.monotonic() - started)
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            writer.close()
            await writer.wait_closed()


@dataclass
class Site:
    platform: Platform
    measured: Measured
    flooding: dict[str, Any]  # what the flooding program is given


@pytest.fixture
def site(urls: Urls, tmp_path: Path) -> Iterator[Site]:
    database = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    account = {"name": "a", "broker": "paper", "environment": "paper"}
    keys = [
        {"name": f"k{n}", "environment": "paper", "permissions": PERMISSIONS} for n in range(KEYS)
    ]
    made = [
        {"external_id": name, "api_keys": keys, "accounts": [account]}
        for name in ("measured", "flooding")
    ]
    with serving(tmp_path, **SETTINGS, **database) as platform:
        measured, flooding = platform.provision({"organizations": made})["organizations"]
        port = urlsplit(platform.url).port
        grpc_port = int(platform.grpc.rpartition(":")[2])
        assert port
        task = {"port": port, "grpc_port": grpc_port, "account_id": flooding["accounts"][0]["id"]}
        task["api_keys"] = [key["api_key"] for key in flooding["api_keys"]]
        account_id = measured["accounts"][0]["id"]
        api_key = measured["api_keys"][0]["api_key"]
        yield Site(platform, Measured(platform, port, account_id, api_key), task)


@contextlib.contextmanager
def flooded(site: Site, names: Sequence[str], answers: dict[str, dict[str, int]]) -> Iterator[None]:
    """The floods are under way when the block begins, and gone when it has ended."""
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.chaos.floods"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(site.flooding | {"names": names}) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "under way\n"
            yield
            process.stdin.close()
            answers |= json.loads(process.stdout.read())
            process.wait(END_SECONDS)
        finally:
            process.kill()


# What the server may answer to each flood, beside closing its connections.
ANSWERS = {
    "brackets": {"400", "422", "429"},
    "escapes": {"414"},
    "forms": {"413", "429"},
    "unknown_paths": {"404"},
    "chunks": {"400", "408"},
    "idle_grpc": set[str](),
    "idle_http": set[str](),
    "failed_credentials": {"401", "429"},
    "streams": {"200", "202", "429"},
    "reads": {"200", "429", "503"},
    "submits": {"202", "429", "503"},
}


@pytest.mark.chaos
def test_a_tenant_is_served_beside_each_flood_and_beside_all(site: Site) -> None:
    """The baseline is measured before the first flood and a moment after each, so that a machine
    that is busier for a while is so in both."""
    gc.disable()
    baseline = Latencies()
    beside = dict[str, Latencies]()
    asyncio.run(site.measured.run(2 * BASELINE_SECONDS, baseline))
    began_mb = memory_mb(site.platform)
    grown = dict[str, float]()
    most = dict[str, float]()
    phases = {name: (name,) for name in NAMES} | {"all": NAMES, "all again": NAMES}
    for label, names in phases.items():
        answers: dict[str, dict[str, int]] = {}
        beside[label] = Latencies()
        with flooded(site, names, answers):
            asyncio.run(site.measured.run(FLOOD_SECONDS, beside[label]))
            during_mb = memory_mb(site.platform)
        asyncio.run(site.measured.run(RECOVERY_SECONDS, Latencies()))
        asyncio.run(site.measured.run(BASELINE_SECONDS, baseline))
        grown[label] = memory_mb(site.platform) - began_mb
        most[label] = max(grown[label], during_mb - began_mb)
        read, submit = beside[label].p99_millis
        print(
            f"{label}: p99 {read:.1f}, {submit:.1f} ms, +{during_mb - began_mb:.0f}, +{grown[label]:.0f} MB, {answers}"
        )
        if len(names) == 1 and ANSWERS[label]:  # beside all others, a flood may not get far
            assert answers[label].keys() & ANSWERS[label]
        assert all(
            reported.keys() <= ANSWERS[name] | {"closed"} for name, reported in answers.items()
        )
    gc.enable()
    limits = [
        max(MAX_SLOWDOWN * millis, millis + MAX_EXTRA_MILLIS) for millis in baseline.p99_millis
    ]
    counted = f"{len(baseline.reads)} reads, {len(baseline.submits)} submits without floods"
    print(f"{counted}: p99 {baseline.p99_millis}, at most {limits} ms")
    # All floods at once use up the process: what the tenant waits then is shown, and every request
    # of it succeeds.
    slow = {
        label: beside[label].p99_millis
        for label in NAMES
        if any(
            millis > limit for millis, limit in zip(beside[label].p99_millis, limits, strict=True)
        )
    }
    assert slow == {}
    assert max(grown.values()) <= MAX_GROWTH_MB
    # Not what "all" had left: an allocator gives memory back when it likes, and once only between
    # the two.
    assert grown["all again"] <= most["all"] + MAX_GROWTH_AGAIN_MB
    assert not [
        line
        for line in site.platform.logs
        if not line.startswith("{") or '"level": "error"' in line
    ]
