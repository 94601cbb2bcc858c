"""Accounts and credentials made over HTTP while the workers are killed and stopped at random."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Urls
from tests.execution.worker_processes import until_sessions_equal_leases
from tests.intents.http_client import Tables
from tests.platform import Platform, serving
from tests.seeds import seeded
from tests.tenants import PLENTY, Headers
from tests.waiting import eventually

pytestmark = pytest.mark.slow

SECRETS = {"api_key_id": "id", "api_secret": "secret"}
STOPPED_SECONDS = 8.0
CONNECTED_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Course:
    """The number of accounts, the pace of each client, and the faults of each worker meanwhile."""

    count: int
    pace_seconds: float
    life_seconds: tuple[float, float]
    kills: float  # of each of the two, after which it lives on
    look_seconds: float
    stop_seconds: float = 0.0


SHORT = Course(count=40, pace_seconds=0.2, life_seconds=(0.2, 0.8), kills=1, look_seconds=0.1)
LONG = Course(
    count=2000,
    pace_seconds=0.0,
    life_seconds=(1, 3),
    kills=math.inf,
    look_seconds=0.02,
    stop_seconds=STOPPED_SECONDS,
)


class Workers:
    """Two worker processes, one of which is always about to be killed or stopped."""

    def __init__(self, data_dir: Path, settings: dict[str, str], course: Course) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._course = course
        self._over = threading.Event()
        self.faults = {"killed": 0, "stopped": 0}

    def run(self, seed: int) -> None:
        chance = seeded(seed)
        kills = 0
        while not self._over.is_set():
            with self.serving() as worker:
                if kills >= self._course.kills:
                    self._over.wait()
                    return
                self._over.wait(chance.uniform(*self._course.life_seconds))
                if self._course.stop_seconds and chance.random() < 0.3:
                    worker.process.send_signal(signal.SIGSTOP)
                    self.faults["stopped"] += 1
                    self._over.wait(self._course.stop_seconds)
                    worker.process.send_signal(signal.SIGCONT)
                    self._over.wait(1)
                worker.process.kill()
                worker.process.wait()
                kills += 1
                self.faults["killed"] += 1

    def serving(self) -> contextlib.AbstractContextManager[Platform]:
        return serving(self._data_dir, **(self._settings | {"ROLES": "worker"}))

    def end(self) -> None:
        self._over.set()


@pytest.fixture
def settings(urls: Urls) -> dict[str, str]:
    return PLENTY | {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}


@pytest.fixture
def platform(settings: dict[str, str], tmp_path: Path) -> Iterator[Platform]:
    with serving(tmp_path, **(settings | {"ROLES": "api"})) as platform:
        yield platform


@pytest.fixture
def tables(urls: Urls) -> Iterator[Tables]:
    opened = Tables(urls.owner)
    yield opened
    opened.close()


def callers(platform: Platform) -> tuple[Headers, Headers]:
    permissions = ["account:edit", "credential:edit"]
    key = {"name": "bot", "environment": "paper", "permissions": permissions}
    made = platform.provision(
        {
            "organizations": [{"external_id": "o1", "api_keys": [key]}],
            "service_accounts": [{"client_id": "watch", "scopes": ["credential:read"]}],
        }
    )
    auth = ("watch", made["service_accounts"][0]["client_secret"])
    token = platform.client.post(
        "/oauth/token", data={"grant_type": "client_credentials"}, auth=auth
    ).json()
    api_key = made["organizations"][0]["api_keys"][0]["api_key"]
    return {"x-api-key": api_key}, {"authorization": f"Bearer {token['access_token']}"}


def create(client: httpx.Client, headers: Headers, number: int, pace_seconds: float) -> None:
    time.sleep(pace_seconds)
    body = {"name": f"a{number}", "broker": "remote", "environment": "paper"}
    account = client.post("/v1/accounts", json=body, headers=headers)
    assert account.status_code == 201, account.text
    url = f"/v1/accounts/{account.json()['id']}/credentials"
    assert client.post(url, json={"secrets": SECRETS}, headers=headers).status_code == 201


def health(platform: Platform, watch: Headers) -> dict[str, Any]:
    answer = platform.client.get("/v1/accounts/outbox/health", headers=watch)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()
    for status in ("pending", "processing", "failed", "completed"):
        entries = [entry["count"] for entry in report["entries"] if entry["status"] == status]
        assert report[status] == sum(entries), "totals are derived from the entries"
    return report


# A row that a killed worker had claimed is another's after CLAIM_SECONDS, which are five.
@pytest.mark.parametrize(
    "course", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)], ids=["short", "long"]
)
def test_every_event_is_handled_once_though_workers_die(
    platform: Platform, settings: dict[str, str], tables: Tables, tmp_path: Path, course: Course
) -> None:
    bot, watch = callers(platform)
    workers = Workers(tmp_path, settings, course)
    count = course.count
    killers = [threading.Thread(target=workers.run, args=(seed,)) for seed in (1, 2)]
    for killer in killers:
        killer.start()
    try:
        with (
            ThreadPoolExecutor(4) as threads,
            httpx.Client(base_url=platform.url, timeout=30, verify=False) as client,
        ):
            making = [
                threads.submit(create, client, bot, number, course.pace_seconds)
                for number in range(count)
            ]
            final: set[int] = set()
            while wait(making, course.look_seconds).not_done:
                health(platform, watch)
                final = check_final(tables, final)
            for task in making:
                task.result()
        started = time.monotonic()
        eventually(lambda: health(platform, watch)["completed"] == 2 * count, 120)
        print(
            f"\n{workers.faults}, settled {time.monotonic() - started:.1f} s after the last request"
        )
    finally:
        workers.end()
        for killer in killers:
            killer.join()
    if course is LONG:
        with workers.serving() as worker:
            until_sessions_equal_leases(
                tables, [worker], count, CONNECTED_SECONDS, has_broker=False
            )
    assert workers.faults["killed"] >= 2
    report = health(platform, watch)
    assert (report["pending"], report["processing"], report["failed"]) == (0, 0, 0)
    check_final(tables, final)
    # Every completed event moved the account's `link_generation` by one, in the transaction that
    # completed it.
    assert tables.fetch("SELECT DISTINCT link_generation, link_wanted FROM accounts") == [
        {"link_generation": 2, "link_wanted": True}
    ]


def check_final(tables: Tables, before: set[int]) -> set[int]:
    """Rows that are in a final state; those that were must still be."""
    rows = tables.fetch("SELECT id FROM outbox WHERE status IN ('completed', 'failed')")
    final = {row["id"] for row in rows}
    assert before <= final
    return final
