"""Accounts and credentials made over HTTP while the workers are killed and stopped at random."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Urls
from tests.intents.http_client import Tables
from tests.platform import Platform, serving
from tests.seeds import seeded
from tests.tenants import PLENTY, Headers
from tests.waiting import eventually

SECRETS = {"api_key_id": "id", "api_secret": "secret"}
STOPPED_SECONDS = 8.0
LOOK_SECONDS = 0.02


class Workers:
    """Two worker processes, one of which is always about to be killed or stopped."""

    def __init__(self, data_dir: Path, settings: dict[str, str], stop_seconds: float) -> None:
        self._data_dir, self._settings, self._stop_seconds = data_dir, settings, stop_seconds
        self._over = threading.Event()
        self.faults = {"killed": 0, "stopped": 0}

    def run(self, seed: int) -> None:
        chance = seeded(seed)
        while not self._over.is_set():
            with self._serving() as worker:
                self._over.wait(chance.uniform(1, 3))
                if self._stop_seconds and chance.random() < 0.3:
                    worker.process.send_signal(signal.SIGSTOP)
                    self.faults["stopped"] += 1
                    self._over.wait(self._stop_seconds)
                    worker.process.send_signal(signal.SIGCONT)
                    self._over.wait(1)
                worker.process.kill()
                worker.process.wait()
                self.faults["killed"] += 1

    def _serving(self) -> contextlib.AbstractContextManager[Platform]:
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
    made = platform.apply(
        {
            "organizations": [{"external_id": "o1", "api_keys": [key]}],
            "service_accounts": [{"client_id": "watch", "scopes": ["credential:read"]}],
        }
    )
    auth = ("watch", made["service_accounts"][0]["client_secret"])
    token = platform.client.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=auth).json()
    api_key = made["organizations"][0]["api_keys"][0]["api_key"]
    return {"x-api-key": api_key}, {"authorization": f"Bearer {token['access_token']}"}


def create(client: httpx.Client, headers: Headers, number: int) -> None:
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


@pytest.mark.parametrize(
    ("count", "stop_seconds"),
    [(100, 0.0), pytest.param(2000, STOPPED_SECONDS, marks=pytest.mark.chaos)],
)
def test_every_event_is_handled_once_though_workers_die(
    platform: Platform, settings: dict[str, str], tables: Tables, tmp_path: Path, count: int, stop_seconds: float
) -> None:
    bot, watch = callers(platform)
    workers = Workers(tmp_path, settings, stop_seconds)
    killers = [threading.Thread(target=workers.run, args=(seed,)) for seed in (1, 2)]
    for killer in killers:
        killer.start()
    try:
        with ThreadPoolExecutor(4) as threads, httpx.Client(base_url=platform.url, timeout=30, verify=False) as client:
            making = [threads.submit(create, client, bot, number) for number in range(count)]
            final: set[int] = set()
            while wait(making, LOOK_SECONDS).not_done:
                health(platform, watch)
                final = check_final(tables, final)
            for task in making:
                task.result()
        started = time.monotonic()
        eventually(lambda: health(platform, watch)["completed"] == 2 * count, 120)
        print(f"\n{workers.faults}, settled {time.monotonic() - started:.1f} s after the last request")
    finally:
        workers.end()
        for killer in killers:
            killer.join()
    report = health(platform, watch)
    assert (report["pending"], report["processing"], report["failed"]) == (0, 0, 0)
    check_final(tables, final)
    # Every completed event moved the account's link generation by one, in the transaction that completed it.
    assert tables.fetch("SELECT DISTINCT link_generation, link_wanted FROM accounts") == [
        {"link_generation": 2, "link_wanted": True}
    ]


def check_final(tables: Tables, before: set[int]) -> set[int]:
    """Rows that are in a final state; those that were must still be."""
    rows = tables.fetch("SELECT id FROM outbox WHERE status IN ('completed', 'failed')")
    final = {row["id"] for row in rows}
    assert before <= final
    return final
