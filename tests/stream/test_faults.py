"""Stream processes killed while events flow, and readers that stop: every event, in order, in
bounded memory."""

import asyncio
import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest

from tests.conftest import Urls
from tests.intents.http_client import Tables, create, limit
from tests.journal import OF_ORGANIZATION, read_messages
from tests.platform import Platform, serving
from tests.stream.client import ACTION, Client, body_of, kind_of, subscribe
from tests.stream.follow import numbered
from tests.stream.sse_reader import following
from tests.tenants import PLENTY, Tenants, key
from tests.waiting import eventually
from trading_intents.identity.model import Permission
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import open_database
from trading_intents.stream.log import append
from trading_intents.stream.model import EventType
from trading_intents.telemetry import Metrics, make_log

pytestmark = pytest.mark.slow

LIFE_SECONDS = (0.3, 1.5)
RUN_SECONDS = 300.0
# Large events fill windows and lines in less time.
EVENT_BYTES = 8_000
LARGE_EVENTS = 2_500
MAX_GROWTH_BYTES = 200 * 1024 * 1024
SAME_ID = """
    INSERT INTO accounts (id, organization_id, name, broker, environment)
    SELECT $2, organization_id, 'same id', broker, environment FROM accounts
    WHERE id = $1::text::uuid
"""


def provision(platform: Platform, accounts: int) -> dict[str, Any]:
    permissions = [Permission.STREAM_READ, Permission.INTENT_EDIT]
    document = {
        "external_id": f"org_{random.randrange(10**9)}",
        "accounts": [
            {"name": f"a{n}", "broker": "paper", "environment": "paper"} for n in range(accounts)
        ],
        "api_keys": [key("bot", "paper", permissions)],
    }
    (made,) = platform.provision({"organizations": [document]})["organizations"]
    return dict(made)


class Killed:
    """A stream process that is killed (-9) and started again, at another port each time."""

    def __init__(self, folder: Path, settings: dict[str, str], kills: int) -> None:
        self._folder = folder
        self._settings = settings
        self._max_kills = kills
        self.address = ""
        self.kills = 0
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random(7)
        while not self.over.is_set():
            with serving(self._folder, **self._settings) as platform:
                self.address = platform.grpc
                if self.kills < self._max_kills and not self.over.wait(
                    chance.uniform(*LIFE_SECONDS)
                ):
                    platform.process.kill()
                    platform.process.wait()
                    self.kills += 1
                else:
                    self.over.wait()

    def stop(self) -> None:
        self.over.set()
        self._thread.join()


class Faithful:
    """An organization-wide client that resumes after every end."""

    def __init__(self, killed: Killed, caller: dict[str, str]) -> None:
        self._killed = killed
        self._caller = caller
        self._cursor = ""
        self.seen: list[Any] = []
        self.ends: set[str] = set()
        self.subscribed = threading.Event()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.over.is_set():
            client = Client(self._killed.address)
            try:
                self._follow(client)
            except grpc.RpcError as error:
                call: Any = error
                self.ends.add(call.code().name)
            finally:
                client.close()

    def _follow(self, client: Client) -> None:
        request = subscribe(resume_after=self._cursor).SerializeToString()
        for event in client.send(self._caller, request, RUN_SECONDS):
            self._cursor = event.cursor or self._cursor
            if kind_of(event) == "primed":
                self.subscribed.set()
            elif event.cursor:
                self.seen.append(event)


@pytest.mark.parametrize(
    ("kills", "events", "accounts", "pace_seconds"),
    [(2, 100, 10, 0.3), pytest.param(10, 2_000, 50, 0.05, marks=pytest.mark.chaos)],
)
def test_a_client_that_resumes_sees_every_event_through_kills(
    tenants: Tenants,
    tenants_database: Urls,
    tables: Tables,
    tmp_path: Path,
    kills: int,
    events: int,
    accounts: int,
    pace_seconds: float,
) -> None:
    made = provision(tenants.platform, accounts)
    caller = {"x-api-key": made["api_keys"][0]["api_key"]}
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"}
    killed = Killed(tmp_path, settings, kills)
    eventually(lambda: bool(killed.address), RUN_SECONDS)
    client = Faithful(killed, caller)
    committed = 0
    try:
        assert client.subscribed.wait(RUN_SECONDS)
        account_ids = itertools.cycle(account["id"] for account in made["accounts"])
        while committed < events or killed.kills < kills:
            for _ in range(10):
                url = f"/v1/accounts/{next(account_ids)}/intents"
                answer = tenants.client.post(url, json=create(limit("1", "0.01")), headers=caller)
                assert answer.status_code == 202, answer.text
            killed.over.wait(pace_seconds)
            committed = count_events(tables, made["id"])
        eventually(lambda: len(client.seen) >= committed, RUN_SECONDS)
    finally:
        client.over.set()
        killed.stop()
        client.thread.join()
    # The worker may have gone on meanwhile.
    assert [without_cursor(event) for event in client.seen] == payloads(tables, made["id"])[
        : len(client.seen)
    ]
    assert killed.kills == kills
    assert client.ends <= {"UNAVAILABLE"}
    assert len({body_of(event).account_id for event in client.seen}) == accounts


def without_cursor(event: Any) -> bytes:
    copy = type(event)()
    copy.CopyFrom(event)
    copy.ClearField("cursor")
    data: bytes = copy.SerializeToString(deterministic=True)
    return data


def count_events(tables: Tables, organization_id: str) -> int:
    """Of the kinds that the client follows."""
    return len(payloads(tables, organization_id))


def payloads(tables: Tables, organization_id: str) -> list[bytes]:
    messages = read_messages(tables.fetch(OF_ORGANIZATION, organization_id))
    return [each.payload for each in messages if each.kind <= EventType.INTENT_ACTION]


@pytest.fixture
def stream(tenants: Tenants, tenants_database: Urls, tmp_path: Path) -> Iterator[Platform]:
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"}
    with serving(tmp_path, **settings) as platform:
        yield platform


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def append_large(urls: Urls, organization_id: OrganizationId) -> None:
    async with open_database(urls.login, 1, make_log("warning"), Metrics()) as database:
        for first in range(1, LARGE_EVENTS + 1, 50):
            async with database.worker.transaction() as tx:
                await append(
                    tx, [numbered(organization_id, first + n, EVENT_BYTES) for n in range(50)]
                )
                await tx.execute("SELECT pg_notify('stream', '')")


@pytest.mark.parametrize(("count", "stops"), [(3, 1), pytest.param(50, 5, marks=pytest.mark.chaos)])
def test_readers_that_stop_cost_the_others_nothing(
    tenants: Tenants, tenants_database: Urls, stream: Platform, count: int, stops: int
) -> None:
    made = provision(tenants.platform, 1)
    organization_id = OrganizationId(UUID(made["id"]))
    caller = {"x-api-key": made["api_keys"][0]["api_key"]}
    clients = [Client(stream.grpc) for _ in range(count)]
    request = subscribe("", (ACTION,)).SerializeToString()
    followers = [client.send(caller, request, RUN_SECONDS).subscribed() for client in clients]
    stopped = followers[:stops]
    reading = followers[stops:]
    got: list[list[int]] = [[] for _ in reading]

    def read(index: int) -> None:
        for event in reading[index]:
            got[index].append(event.intent_action.seq)
            if len(got[index]) == LARGE_EVENTS:
                return

    before = rss_bytes(stream.process.pid)
    most = 0
    threads = [threading.Thread(target=read, args=(index,)) for index in range(len(reading))]
    threads.append(
        threading.Thread(
            target=lambda: asyncio.run(append_large(tenants_database, organization_id))
        )
    )
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, rss_bytes(stream.process.pid) - before)
        threads[0].join(0.05)
        threads[-1].join(0.05)
    assert all(numbers == list(range(1, LARGE_EVENTS + 1)) for numbers in got)
    assert most < MAX_GROWTH_BYTES, most
    for follower in stopped:
        numbers = []
        last = ""
        try:
            for event in follower:
                numbers.append(event.intent_action.seq)
                last = event.cursor
        except grpc.RpcError:
            assert follower.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) < LARGE_EVENTS
        resumed = clients[0].follow(caller, "", (ACTION,), resume_after=last).subscribed()
        rest = [event.intent_action.seq for event in resumed.take(LARGE_EVENTS - len(numbers))]
        assert rest == list(range(len(numbers) + 1, LARGE_EVENTS + 1))
        resumed.cancel()
    for client in clients:
        client.close()


def test_a_stopped_text_reader_is_ended(
    tenants: Tenants, tenants_database: Urls, tables: Tables, stream: Platform
) -> None:
    made = provision(tenants.platform, 1)
    organization_id = OrganizationId(UUID(made["id"]))
    # The numbered events are of the account that has the organization's id.
    tables.execute(SAME_ID, made["accounts"][0]["id"], organization_id)
    caller = {"x-api-key": made["api_keys"][0]["api_key"]}
    there = Tenants(stream, tenants.answer, tenants.callers)
    before = rss_bytes(stream.process.pid)
    with following(there, caller, str(organization_id)) as reader:
        reader.until("primed")
        asyncio.run(append_large(tenants_database, organization_id))
        since = time.monotonic()
        eventually(
            lambda: 'ti_stream_ended_total{code="limit_reached",door="sse"}' in metrics(stream),
            RUN_SECONDS,
        )
        assert time.monotonic() - since < RUN_SECONDS
        assert rss_bytes(stream.process.pid) - before < MAX_GROWTH_BYTES


def metrics(platform: Platform) -> str:
    return platform.client.get("/metrics").text
