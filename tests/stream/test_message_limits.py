"""A caller that floods an open call with messages is answered at the pace of its limit, and delays
no organization."""

import asyncio
import contextlib
import functools
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import grpc
import pytest

from tests.conftest import Urls
from tests.kept_connections import open_pools
from tests.platform import Platform, serving
from tests.stream.client import ACTION, LIMIT_SECONDS, Client, kind_of
from tests.stream.follow import ApiOnlyPlatform, Reader
from tests.stream.wire import Wire
from tests.tenants import PLENTY, Tenants, key
from tests.waiting import eventually
from trading_intents.identity.model import Permission
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Tx
from trading_intents.stream import log as event_log
from trading_intents.telemetry import Metrics

BURST = 20
PER_SECOND = 20
CALLS = 3
FLOOD = 200
POOL_SIZE = 10  # as by default

Limited = Callable[[str], Platform]


@pytest.fixture(scope="module")
def limited(
    tenants: Tenants, tenants_database: Urls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Platform]]:
    """Gives a process in which this limit is low. Every test has callers of its own."""
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"}
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(limit: str) -> Platform:
            folder = tmp_path_factory.mktemp("limited")
            return stack.enter_context(
                serving(folder, **settings | {limit: f"{PER_SECOND}/{BURST}"})
            )

        yield start


def refused(platform: Platform, bucket: str) -> float:
    """The number of times that this limit was reached."""
    found = re.search(
        rf'^ti_rate_limited_total{{bucket="{bucket}"}} (.*)',
        platform.client.get("/metrics").text,
        re.M,
    )
    return float(found[1]) if found else 0.0


class Flood:
    """A call that sends its messages without waiting, and counts the answers."""

    def __init__(self, platform: Platform, key: str, command: str) -> None:
        self._client = Client(platform.grpc)
        self.answers = 0
        self._wire = Wire(self._client, {"x-api-key": key})
        for _ in range(FLOOD):
            getattr(self._wire, command)()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for event in self._wire.follower:
                self.answers += kind_of(event) == "status"

    def stop(self) -> None:
        assert self._wire.follower.call.is_active(), "it is slowed, not ended"
        self._wire.follower.cancel()
        self._wire.finish()
        self._thread.join()
        self._client.close()


@pytest.mark.parametrize("command", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize(("limit", "keys"), [("messages", 1), ("organization_messages", CALLS)])
def test_a_flood_is_answered_at_the_pace_of_the_limit_and_others_meanwhile(
    limited: Limited, tenants: Tenants, limit: str, keys: int, command: str
) -> None:
    organizations = [
        {
            "external_id": f"org_{uuid4()}",
            "api_keys": [key(f"{n}", "paper", [Permission.STREAM_READ]) for n in range(keys)],
        }
        for _ in range(2)
    ]
    flooding, bystander = tenants.platform.provision({"organizations": organizations})[
        "organizations"
    ]
    secrets = itertools.cycle(one["api_key"] for one in flooding["api_keys"])
    platform = limited("RATE_LIMIT_READS" if keys == 1 else "RATE_LIMIT_ORGANIZATION_READS")
    with contextlib.closing(Client(platform.grpc)) as client:
        before = refused(platform, limit)
        began = time.monotonic()
        floods = [Flood(platform, next(secrets), command) for _ in range(CALLS)]
        eventually(lambda: refused(platform, limit) > before, LIMIT_SECONDS)
        other = Wire(client, {"x-api-key": bystander["api_keys"][0]["api_key"]})
        for _ in range(BURST // 2):
            other.subscribe()
            other.expect_status("subscribed")
            other.unsubscribe()
            other.expect_status("unsubscribed")
        answers = sum(flood.answers for flood in floods)
        passed_seconds = time.monotonic() - began
        assert answers <= BURST + PER_SECOND * passed_seconds
        for flood in floods:
            flood.stop()
        other.finish()


def test_a_caller_may_subscribe_to_more_accounts_at_once_than_its_limit(
    limited: Limited, tenants: Tenants
) -> None:
    caller = tenants.callers["key_all"]
    accounts = [
        tenants.client.post(
            "/v1/accounts",
            json={"name": f"{n}", "broker": "paper", "environment": "paper"},
            headers=caller,
        ).json()["id"]
        for n in range(2 * BURST)
    ]
    client = Client(limited("RATE_LIMIT_READS").grpc)
    wire = Wire(client, caller)
    for account in accounts:
        wire.subscribe(account)
    # Another call is not refused meanwhile.
    client.follow(caller, "", (ACTION,)).subscribed().cancel()
    for _ in accounts:
        wire.expect_status("subscribed")
    assert wire.follower.call.is_active()
    wire.finish()
    client.close()


async def test_the_reads_of_one_organization_leave_room_for_anothers(
    database_url: Secret, organizations: list[OrganizationId], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, other = organizations[:2]
    read = event_log.read_head
    reading = asyncio.Event()

    async def read_head(tx: Tx, organization_id: OrganizationId) -> tuple[UUID, int]:
        if organization_id == busy:
            reading.set()
            await asyncio.Event().wait()
        return await read(tx, organization_id)

    monkeypatch.setattr(event_log, "read_head", read_head)
    async with (
        open_pools(database_url, POOL_SIZE, Metrics()) as database,
        ApiOnlyPlatform(database).running() as api_platform,
        asyncio.timeout(LIMIT_SECONDS),
    ):
        readers = [Reader(api_platform, busy) for _ in range(POOL_SIZE)]
        asking = [asyncio.create_task(reader.subscribe()) for reader in readers]
        await reading.wait()
        await Reader(api_platform, other).subscribe()
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        for reader in readers:
            reader.close()
