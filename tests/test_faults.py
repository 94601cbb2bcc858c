"""The database dies, stalls and comes back under HTTP load: answers in time, nothing confirmed
lost, no restart."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.conftest import Urls
from tests.platform import Platform, serving
from tests.proxy import FaultProxy, proxied
from tests.storage.conftest import postmaster
from tests.tenants import PLENTY
from tests.waiting import eventually, eventually_async

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

WRITES_BETWEEN_KILLS = 15  # all of them together stay below an organization's limit of keys
WRITERS = 4
ANSWER_SECONDS = 3
RETURN_SECONDS = 5
WRITES_LIMIT_SECONDS = 30  # for many of them
# Less than Retry-After asks for, but enough to leave the machine to what it recovers.
PAUSE_SECONDS = 0.02
NO_LIMIT = "1000000/1000000"
UNLIMITED = dict.fromkeys(PLENTY, NO_LIMIT)


def admin_of(platform: Platform, user: str, organization: str) -> dict[str, str]:
    return {"authorization": f"Bearer {platform.token(user, organization)}"}


@dataclass(kw_only=True)
class Load:
    """Writers and readers that go on whatever is answered, and remember it."""

    client: httpx.AsyncClient
    confirmed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)
    slowest_seconds: float = 0.0
    confirmed_at: float = field(default_factory=time.monotonic)
    longest_gap_seconds: float = 0.0  # between two confirmed writes

    def confirm(self, name: str) -> None:
        before = self.confirmed_at
        self.confirmed_at = time.monotonic()
        self.longest_gap_seconds = max(self.longest_gap_seconds, self.confirmed_at - before)
        self.confirmed.append(name)

    async def request(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, object] | None = None
    ) -> httpx.Response:
        before = time.monotonic()
        answer = await self.client.request(method, path, headers=headers, json=body)
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - before)
        self.statuses.add(answer.status_code)
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
            assert "database" in answer.json()["detail"], "a 503 names what cannot be reached"
            await asyncio.sleep(PAUSE_SECONDS)
        return answer

    async def write(self, admin: dict[str, str], names: Iterator[str]) -> None:
        for name in names:
            body: dict[str, object] = {"name": name, "environment": "paper", "permissions": []}
            answer = await self.request("POST", "/v1/api-keys", admin, body)
            if answer.status_code == 201:
                self.confirm(name)
            elif answer.json()["code"] == "unavailable":
                self.refused.append(name)
            # What is left is outcome_unknown: recorded or not, and both are right.

    async def read(self, path: str, headers: dict[str, str]) -> None:
        while True:
            await self.request("GET", path, headers)

    async def more_confirmed(self, count: int) -> None:
        goal = len(self.confirmed) + count

        async def reached() -> bool:
            return len(self.confirmed) >= goal

        await eventually_async(reached, WRITES_LIMIT_SECONDS)


async def listed(client: httpx.AsyncClient, admin: dict[str, str]) -> set[str]:
    names: set[str] = set()
    query = {"limit": "100"}
    while True:
        page = (await client.get("/v1/api-keys", params=query, headers=admin)).json()
        names |= {key["name"] for key in page["data"]}
        if page["next_cursor"] is None:
            return names
        query["next_cursor"] = page["next_cursor"]


async def kill_postgres(data_dir: Path) -> None:
    """Returns once another one runs."""
    pid = postmaster(data_dir)
    os.kill(pid, signal.SIGKILL)

    async def replaced() -> bool:
        with contextlib.suppress(OSError, ValueError):  # the file is away, or half written
            return postmaster(data_dir) != pid
        return False

    await eventually_async(replaced, WRITES_LIMIT_SECONDS)


# Takes more than five seconds: PostgreSQL starts again after each kill, under load.
@pytest.mark.deadline
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.chaos)])
async def test_kills_of_postgresql_lose_no_answered_write(warm: Path, kills: int) -> None:
    with serving(warm, **UNLIMITED) as platform:
        admin = admin_of(platform, "demo", "demo")
        async with httpx.AsyncClient(
            base_url=platform.url, timeout=WRITES_LIMIT_SECONDS, verify=False
        ) as client:
            load = Load(client=client)
            names = map("key-{}".format, itertools.count())
            work = [load.write(admin, names) for _ in range(WRITERS)]
            work += [load.read("/v1/api-keys", admin), load.read("/readyz", {})]
            tasks = [asyncio.create_task(one) for one in work]
            await load.more_confirmed(WRITES_BETWEEN_KILLS)
            for _ in range(kills):
                await kill_postgres(warm)
                await load.more_confirmed(WRITES_BETWEEN_KILLS)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            kept = await listed(client, admin)
            metrics = (await client.get("/metrics")).text
        assert platform.process.poll() is None
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    assert load.statuses == {200, 201, 503}
    assert load.slowest_seconds < ANSWER_SECONDS
    assert load.longest_gap_seconds < RETURN_SECONDS
    assert set(load.confirmed) <= kept
    assert load.refused
    assert not set(load.refused) & kept
    assert f"ti_embedded_postgres_starts_total {kills + 1}.0" in metrics


@dataclass
class Behind:
    """A platform whose database is behind a proxy that can fail."""

    platform: Platform
    proxy: FaultProxy
    admin: dict[str, str]

    def ask(self, method: str, path: str, **body: object) -> httpx.Response:
        before = time.monotonic()
        answer = self.platform.client.request(method, path, json=body or None, headers=self.admin)
        assert time.monotonic() - before < ANSWER_SECONDS
        return answer

    def write(self) -> httpx.Response:
        return self.ask("POST", "/v1/api-keys", name="bot", environment="paper", permissions=[])


@pytest.fixture
def behind(tmp_path: Path, urls: Urls) -> Iterator[Behind]:
    with (
        proxied(urls.login) as (proxy, through),
        serving(
            tmp_path, DATABASE_URL=through.reveal(), DATABASE_OWNER_URL=urls.owner.reveal()
        ) as platform,
    ):
        platform.provision(
            {
                "organizations": [
                    {"external_id": "acme", "users": [{"external_id": "ada", "role": "admin"}]}
                ]
            }
        )
        yield Behind(platform, proxy, admin_of(platform, "ada", "acme"))


FAULTS: list[Callable[[FaultProxy], None]] = [
    *[FaultProxy.refuse, FaultProxy.reset] * 3,
    FaultProxy.stall,
    *[
        lambda proxy: proxy.cut_after(0),
        lambda proxy: proxy.cut_after(40),
        lambda proxy: proxy.cut_after(1),
    ],
]


# Takes more than five seconds: ten outages, each until it is reported and until it is over.
@pytest.mark.deadline
def test_ten_outages_are_answered_in_time_and_survived(behind: Behind) -> None:
    for fault in FAULTS:
        assert behind.write().status_code == 201
        fault(behind.proxy)
        eventually(lambda: behind.ask("GET", "/readyz").status_code == 503, ANSWER_SECONDS)
        for answer in (
            behind.write(),
            behind.ask("GET", "/v1/api-keys"),
            behind.ask("GET", "/readyz"),
        ):
            assert answer.status_code == 503
            assert answer.json()["code"] in ("unavailable", "outcome_unknown")
            assert "the database" in answer.json()["detail"]
            assert int(answer.headers["retry-after"]) >= 1
        assert behind.ask("GET", "/healthz").status_code == 200
        behind.proxy.work()
        eventually(lambda: behind.write().status_code == 201, RETURN_SECONDS)
        eventually(lambda: behind.ask("GET", "/readyz").status_code == 200, RETURN_SECONDS)
    assert behind.platform.process.poll() is None


def test_a_process_that_starts_while_the_database_is_away_says_so(
    tmp_path: Path, urls: Urls
) -> None:
    with proxied(urls.login) as (proxy, through):
        proxy.refuse()
        with (
            pytest.raises(AssertionError, match="the database cannot be reached"),
            serving(
                tmp_path, DATABASE_URL=through.reveal(), DATABASE_OWNER_URL=urls.owner.reveal()
            ),
        ):
            pass
