"""Hostile HTTP clients beside honest ones: every honest request is answered, and memory stays as it
is."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.chaos.memory import memory_mb
from tests.conftest import Urls
from tests.platform import Platform, serving
from tests.tenants import PLENTY

pytestmark = pytest.mark.slow

HONEST_CLIENTS = 4
PAUSE_SECONDS = 0.04
BASELINE_SHARE = 0.1
END_SECONDS = 30
ROUND_SECONDS = 60
# Attacks that hold their connections end after HOLD_SECONDS; each kind must have been made and
# ended.
SHORT_SECONDS = 6
MAX_GROWTH_MB = 150
MAX_LATE_GROWTH_MB = 30
MAX_SLOWDOWN = 3
MIN_LIMIT_MILLIS = 50
ORDER = {
    "symbol": "AAPL",
    "order_side": "BUY",
    "spec": {"Limit": {"quantity": "1", "limit_price": "0.01"}},
}
SUBMIT = {"command": {"type": "CREATE", "payload": ORDER}}


@dataclass
class Measured:
    millis: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)

    @property
    def p99_millis(self) -> float:
        return sorted(self.millis)[int(len(self.millis) * 0.99)]


@dataclass
class Honest:
    """Clients that keep a connection, submit and read, and take nothing but success."""

    platform: Platform
    account_id: str
    api_key: str

    async def run(self, seconds: float, measured: Measured) -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._ask(until, measured) for _ in range(HONEST_CLIENTS)))

    async def _ask(self, until: float, measured: Measured) -> None:
        path = f"/v1/accounts/{self.account_id}/intents"
        headers = {"x-api-key": self.api_key}
        async with httpx.AsyncClient(
            base_url=self.platform.url, verify=False, timeout=10
        ) as client:
            while time.monotonic() < until:
                started = time.monotonic()
                submitted = await client.post(path, json=SUBMIT, headers=headers)
                measured.millis.append((time.monotonic() - started) * 1000)
                read = await client.get(f"{path}?limit=1", headers=headers)
                health = await client.get("/readyz", headers={"connection": "close"})
                assert [submitted.status_code, read.status_code, health.status_code] == [
                    202,
                    200,
                    200,
                ]
                measured.memory_mb.append(memory_mb(self.platform))
                await asyncio.sleep(PAUSE_SECONDS)


@pytest.fixture
def honest(urls: Urls, tmp_path: Path) -> Iterator[Honest]:
    urls_given = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    with serving(tmp_path, **PLENTY, **urls_given, ROLES="api") as platform:
        key = {"name": "bot", "environment": "paper", "permissions": ["intent:edit", "intent:read"]}
        account = {"name": "a", "broker": "paper", "environment": "paper"}
        made = platform.provision(
            {"organizations": [{"external_id": "o", "api_keys": [key], "accounts": [account]}]}
        )
        organization = made["organizations"][0]
        yield Honest(
            platform, organization["accounts"][0]["id"], organization["api_keys"][0]["api_key"]
        )


@contextlib.contextmanager
def attacked(honest: Honest, seconds: float, seed: int) -> Iterator[subprocess.Popen[str]]:
    task = {
        "port": urlsplit(honest.platform.url).port,
        "path": f"/v1/accounts/{honest.account_id}/intents",
        "api_key": honest.api_key,
        "seconds": seconds,
        "seed": seed,
    }
    command = [sys.executable, "-m", "tests.chaos.hostile"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        process.stdin.write(json.dumps(task))
        process.stdin.close()
        try:
            yield process
        finally:
            process.kill()


# Takes more than five seconds: attackers and honest clients share the platform for SHORT_SECONDS of
# them.
@pytest.mark.parametrize("seconds", [SHORT_SECONDS, pytest.param(600, marks=pytest.mark.chaos)])
def test_honest_clients_are_served_beside_hostile_ones(honest: Honest, seconds: int) -> None:
    """In rounds, each without attackers first: a disk that becomes slow is as slow for the
    baseline."""
    alone = Measured()
    beside = Measured()
    first_mb = 0.0
    made: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    round_seconds = min(seconds, ROUND_SECONDS)
    for seed in range(seconds // round_seconds):
        asyncio.run(honest.run(round_seconds * BASELINE_SHARE, alone))
        first_mb = first_mb or max(alone.memory_mb)
        with attacked(honest, round_seconds, seed) as attackers:
            asyncio.run(honest.run(round_seconds, beside))
            assert attackers.stdout
            done = json.loads(attackers.stdout.read())
            attackers.wait(END_SECONDS)
        made.update(done["made"])
        answers.update(done["answers"])
    half = len(beside.memory_mb) // 2
    early_mb = max(beside.memory_mb[:half])
    late_mb = max(beside.memory_mb[half:])
    print(
        f"\n{len(beside.millis)} honest submits: p99 {alone.p99_millis:.1f} ms alone, {beside.p99_millis:.1f} ms "
        f"beside {dict(made)}, answered {dict(answers)}; memory {first_mb:.0f}, {early_mb:.0f}, {late_mb:.0f} MB"
    )
    assert len(made) >= 6
    # Random bytes may make any request, as one of another media type: all are refused but those
    # meant to pass.
    assert [status for status in answers if status != "200" and not status.startswith("4")] == []
    assert late_mb <= first_mb + MAX_GROWTH_MB
    if seconds > ROUND_SECONDS:
        assert late_mb <= early_mb + MAX_LATE_GROWTH_MB
        assert beside.p99_millis <= max(MAX_SLOWDOWN * alone.p99_millis, MIN_LIMIT_MILLIS)
    assert not [
        line
        for line in honest.platform.logs
        if not line.startswith("{") or '"level": "error"' in line
    ]
