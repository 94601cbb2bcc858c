"""Two API processes and PostgreSQL, each killed at random under load: what was answered is there,
whole and once."""

import asyncio
import hashlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.conftest import copy_folder
from tests.intents.canonical import canonical
from tests.intents.http_client import Body, cancel, create, limit, replace
from tests.journal import ALL_ROWS, read_messages
from tests.platform import serving
from tests.seeds import seeded
from tests.storage.conftest import ServerProcess, postmaster
from tests.tenants import EVERY_PERMISSION, PLENTY, Headers, key
from tests.waiting import eventually

pytestmark = pytest.mark.slow

CLIENTS = 8
ACCOUNTS = 3
RETURN_SECONDS = 30
MIN_KILLS = 2
MIN_CONFIRMED = 51
PAUSE_SECONDS = 0.02


class Fleet:
    """Two API processes, each of which is always about to be killed and started again."""

    def __init__(
        self, folder: Path, settings: dict[str, str], life_seconds: tuple[float, float]
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._life_seconds = life_seconds
        self.urls: dict[int, str] = {}
        self.over = threading.Event()
        self.kills = 0

    def run(self, number: int) -> None:
        chance = seeded(number)
        while not self.over.is_set():
            try:
                self._live(number, chance.uniform(*self._life_seconds))
            except AssertionError:
                continue  # PostgreSQL was away while it started, so it refused to

    def _live(self, number: int, seconds: float) -> None:
        with serving(self._folder, **self._settings) as platform:
            self.urls[number] = platform.url
            if self.over.wait(seconds):
                return
            platform.process.kill()
            platform.process.wait()
            del self.urls[number]
            self.kills += 1


@dataclass(kw_only=True)
class Load:
    """Clients that go on whatever happens, and remember their answers."""

    fleet: Fleet
    headers: Headers
    accounts: list[str]
    pace_seconds: float
    over: threading.Event = field(default_factory=threading.Event)
    confirmed: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)

    def trade(self, number: int) -> None:
        chance = seeded(100 + number)
        names = map(f"{number}-{{}}".format, itertools.count())
        with httpx.Client(headers=self.headers, timeout=20, verify=False) as client:
            while not self.over.wait(self.pace_seconds):
                account = chance.choice(self.accounts)
                intent = self.send(client, chance, account, next(names), create(limit()))
                for body in (replace(intent, limit("11")), cancel(intent), cancel(intent)):
                    if intent and chance.random() < 0.5:
                        self.send(client, chance, account, next(names), body)

    def send(
        self, client: httpx.Client, chance: random.Random, account: str, name: str, body: Body
    ) -> str | None:
        """Until it is settled or given up; every try has the same key. The intent, when it was
        taken."""
        sent = body | {"client_reference_id": name}
        is_doubtful = False
        for _ in range(chance.choice((1, 1, 5, 50))):
            living = list(self.fleet.urls.values())
            if not living:
                self.over.wait(PAUSE_SECONDS)
                continue
            try:
                url = f"{chance.choice(living)}/v1/accounts/{account}/intents"
                answer = client.post(url, json=sent, headers={"idempotency-key": name})
            except httpx.TransportError as error:
                self.codes["cut off"] += 1
                is_doubtful |= not isinstance(error, httpx.ConnectError)
                self.over.wait(PAUSE_SECONDS)
                continue
            said = answer.json()
            if answer.status_code == 202:
                self.codes["taken"] += 1
                self.confirmed[name] = (account, said["intent_id"], said["seq"])
                return str(said["intent_id"])
            code = said["code"]
            self.codes[code] += 1
            is_doubtful |= code == "outcome_unknown"
            if code in ("cancel_pending", "replace_pending"):
                break
            if answer.status_code != 503:
                self.wrong.append(f"{answer.status_code} {answer.text}")
                break
            self.over.wait(PAUSE_SECONDS)
        if not is_doubtful:
            self.refused.add(name)
        return None


@pytest.fixture
def server(cluster: Path, tmp_path: Path) -> Iterator[tuple[Path, Body]]:
    """PostgreSQL, whose keeper starts it again whenever it dies."""
    folder = copy_folder(cluster, tmp_path / "server")
    process = ServerProcess(folder)
    try:
        yield folder, process.until("url")
        assert process.stop() == 0
    finally:
        process.close()


def kill_postgres(
    folder: Path, seconds: float, pauses: tuple[float, float], over: threading.Event
) -> int:
    chance = seeded("kills")
    kills = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or kills < MIN_KILLS:
        over.wait(chance.uniform(*pauses))
        pid = postmaster(folder)
        os.kill(pid, signal.SIGKILL)
        kills += 1
        eventually(lambda pid=pid: is_replaced(folder, pid), RETURN_SECONDS)  # type: ignore[misc]  # bound now
    return kills


def is_replaced(folder: Path, pid: int) -> bool:
    try:
        return postmaster(folder) != pid
    except (OSError, ValueError):  # the file is away, or half written
        return False


def provision(folder: Path, settings: dict[str, str]) -> tuple[Headers, list[str]]:
    accounts = [
        {"name": f"a{n}", "broker": "paper", "environment": "paper"} for n in range(ACCOUNTS)
    ]
    document = {
        "external_id": "o",
        "accounts": accounts,
        "api_keys": [key("k", "paper", EVERY_PERMISSION)],
    }
    with serving(folder, **settings) as platform:
        made = platform.provision({"organizations": [document]})["organizations"][0]
    return {"x-api-key": made["api_keys"][0]["api_key"]}, [
        account["id"] for account in made["accounts"]
    ]


@pytest.mark.parametrize(
    ("seconds", "pauses", "pace_seconds"),
    [(2, (0.5, 1.2), 0.1), pytest.param(300, (3, 8), 0, marks=pytest.mark.chaos)],
    ids=["short", "long"],
)
def test_every_answer_is_kept_whole_though_everything_dies(
    server: tuple[Path, Body],
    tmp_path: Path,
    seconds: int,
    pauses: tuple[float, float],
    pace_seconds: float,
) -> None:
    folder, said = server
    settings = PLENTY | {
        "DATABASE_URL": said["url"],
        "DATABASE_OWNER_URL": said["owner_url"],
        "ROLES": "api",
    }
    headers, accounts = provision(tmp_path / "api", settings)
    fleet = Fleet(tmp_path / "api", settings, pauses)
    load = Load(fleet=fleet, headers=headers, accounts=accounts, pace_seconds=pace_seconds)
    with ThreadPoolExecutor(2 + CLIENTS) as threads:
        living = [threads.submit(fleet.run, number) for number in range(2)]
        try:
            eventually(lambda: len(fleet.urls) == 2, RETURN_SECONDS)
            trading = [threads.submit(load.trade, number) for number in range(CLIENTS)]
            kills = kill_postgres(folder, seconds, pauses, load.over)
            eventually(lambda: fleet.kills >= MIN_KILLS and bool(load.refused), RETURN_SECONDS)
            goal = max(MIN_CONFIRMED, len(load.confirmed) + CLIENTS)
            eventually(lambda: len(load.confirmed) >= goal, RETURN_SECONDS)
        finally:
            load.over.set()
            fleet.over.set()
        for task in (*trading, *living):
            task.result()
    print(f"\n{fleet.kills} kills of processes, {kills} of PostgreSQL: {dict(load.codes)}")
    assert load.wrong == []
    asyncio.run(check(said["owner_url"], load))


async def check(url: str, load: Load) -> None:
    connection = await asyncpg.connect(url)
    try:
        await check_answers(connection, load)
        await check_logs(connection)
        await check_events(connection)
    finally:
        await connection.close()


async def check_answers(connection: asyncpg.Connection, load: Load) -> None:
    """Every 202 is in the log where it said, nothing that was surely refused is, and no name is
    there twice."""
    rows = await connection.fetch(
        "SELECT account_id::text, intent_id::text, seq, idempotency_key FROM actions"
    )
    recorded = {
        row["idempotency_key"]: (row["account_id"], row["intent_id"], row["seq"]) for row in rows
    }
    assert len(recorded) == len(rows)
    assert len(load.confirmed) >= MIN_CONFIRMED
    assert {name: recorded.get(name) for name in load.confirmed} == load.confirmed
    assert load.refused
    assert not load.refused & set(recorded)


async def check_logs(connection: asyncpg.Connection) -> None:
    """No gap in the seqs, the chain holds, and each action has its order and its row in the
    queue."""
    rows = await connection.fetch("SELECT * FROM actions ORDER BY account_id, seq")
    heads = {
        row["account_id"]: row for row in await connection.fetch("SELECT * FROM account_heads")
    }
    for account, group in itertools.groupby(rows, key=lambda row: row["account_id"]):
        previous = "0" * 64
        count = 0
        for count, row in enumerate(group, 1):
            assert row["seq"] == count
            assert canonical(json.loads(row["record"])) == row["record"]
            previous = hashlib.sha256(f"{previous}\n{row['record']}".encode()).hexdigest()
            assert row["hash"] == previous
        assert (heads[account]["seq"], heads[account]["hash"]) == (count, previous)
    orders = await connection.fetch("SELECT order_id, account_id, create_seq FROM orders")
    creates = [row for row in rows if row["action_type"] == "CREATE"]
    assert sorted(map(tuple, orders)) == sorted(
        (row["intent_id"], row["account_id"], row["seq"]) for row in creates
    )
    queued = await connection.fetch(
        """
            SELECT account_id, order_id, action_type, seq FROM commands
        """
    )
    expected = [(r["account_id"], r["intent_id"], r["action_type"], r["seq"]) for r in rows]
    assert sorted(map(tuple, queued)) == sorted(expected)


async def check_events(connection: asyncpg.Connection) -> None:
    """Both events of every action, one after the other, numbered without a gap."""
    messages = list(read_messages(await connection.fetch(ALL_ROWS)))
    assert [each.seq for each in messages] == list(range(1, len(messages) + 1))
    reported = [each.event for each in messages]
    pairs: list[Any] = [
        (reported[n].intent_action, reported[n + 1].broker_order)
        for n in range(0, len(reported), 2)
    ]
    assert all(action.intent_id == order.intent_id for action, order in pairs)
    actions = await connection.fetch("SELECT account_id::text, seq, intent_id::text FROM actions")
    said = sorted((action.account_id, action.seq, action.intent_id) for action, _ in pairs)
    assert said == sorted(map(tuple, actions))
