"""A caller that holds calls open, with a credential or without, keeps no other from the gRPC
port."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conftest import Urls
from tests.platform import Platform, serving
from tests.stream.client import ACTION, LIMIT_SECONDS, Client, Follower
from tests.tenants import PLENTY, Tenants
from tests.waiting import eventually
from trading_intents.clock import SystemClock
from trading_intents.errors import InvalidRequest, LimitReached, RateLimited
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Pool
from trading_intents.stream.grpc.calls import FIRST_MESSAGE_SECONDS, Context, read, read_first
from trading_intents.stream.hub import TRANSPORTS, Hub, Session
from trading_intents.telemetry import Metrics, make_log

MAX_STREAMS = 3
STREAMS_PER_ORGANIZATION = 2
NO_ID = "01a1ddf6-8899-707d-b118-000000000000"
CALLS_PER_CONNECTION = 250
PUBLIC_CALLS = 200
PUBLIC_CALLS_PER_CONNECTION = 4
HEADERS_FRAME = 1
RST_STREAM_FRAME = 3
SETTINGS_FRAME = 4
MAX_CONCURRENT_STREAMS = 3
METHODS = ("/trading.TradingService/SubscribeEvents", "/trading.TradingService/StreamEvents")


@pytest.fixture(scope="module")
def small(
    tenants: Tenants, tenants_database: Urls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A process that holds three streams, two of one organization."""
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"}
    folder: Path = tmp_path_factory.mktemp("small")
    shares = {
        "MAX_STREAMS": str(MAX_STREAMS),
        "STREAMS_PER_ORGANIZATION": str(STREAMS_PER_ORGANIZATION),
    }
    with serving(folder, **settings, **shares) as platform:
        yield platform


class Silent:
    """A call whose message never comes."""

    def __init__(self, client: Client, caller: dict[str, str], method: str) -> None:
        self._left = threading.Event()
        call: Any = client.channel.stream_stream(method)
        metadata = tuple(caller.items())
        self.follower = Follower(call(self._no_message(), metadata=metadata, timeout=LIMIT_SECONDS))

    def _no_message(self) -> Iterator[bytes]:
        self._left.wait(LIMIT_SECONDS)
        yield from ()

    def ended(self) -> tuple[str, str]:
        try:
            return self.follower.ended()
        finally:
            self._left.set()


def await_subscribers(platform: Platform, count: int) -> None:
    """The platform hears of a cancelled call a moment later."""

    def subscribers() -> float:
        lines = platform.client.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith("ti_stream_subscribers{")
        )

    eventually(lambda: subscribers() == count, LIMIT_SECONDS)


def watch(client: Client) -> Any:
    stub = health_pb2_grpc.HealthStub(client.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=LIMIT_SECONDS)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def headers(path: bytes) -> bytes:
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"x",
        b"te": b"trailers",
    }
    fields[b"content-type"] = b"application/grpc"
    return b"".join(b"\x00" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in fields.items())


def test_health_watches_take_no_stream_of_a_subscribers(small: Platform, tenants: Tenants) -> None:
    clients = [Client(small.grpc) for _ in range(10)]
    watches = [[watch(client) for _ in range(PUBLIC_CALLS_PER_CONNECTION)] for client in clients]
    for call in (call for calls in watches for call in calls):
        assert next(call).status == health_pb2.HealthCheckResponse.SERVING
    for client in clients:
        assert Follower(watch(client)).ended()[0] == "RESOURCE_EXHAUSTED"
        await_subscribers(small, 0)
        client.follow(tenants.callers["key_all"], "", (ACTION,)).subscribed().cancel()
    assert all(call.is_active() for calls in watches for call in calls)
    for client in clients:
        client.close()


def test_a_new_call_without_a_credential_replaces_the_oldest(small: Platform) -> None:
    clients = [Client(small.grpc) for _ in range(PUBLIC_CALLS // PUBLIC_CALLS_PER_CONNECTION)]
    watches = [watch(client) for client in clients for _ in range(PUBLIC_CALLS_PER_CONNECTION)]
    for call in watches:
        next(call)
    newcomer = Client(small.grpc)
    stub = health_pb2_grpc.HealthStub(newcomer.channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=LIMIT_SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    eventually(lambda: not all(call.is_active() for call in watches), LIMIT_SECONDS)
    (ended,) = [call for call in watches if not call.is_active()]
    assert Follower(ended).ended()[0] == "RESOURCE_EXHAUSTED"
    for client in (*clients, newcomer):
        client.close()


# It proves the ten seconds.
@pytest.mark.slow
def test_a_call_without_a_message_ends_at_once_without_a_credential_and_after_ten_seconds_with_one(
    small: Platform, tenants: Tenants
) -> None:
    client = Client(small.grpc)
    known = [Silent(client, tenants.callers["key_all"], method) for method in METHODS]
    known.append(Silent(client, {}, "/grpc.health.v1.Health/Check"))
    for method in METHODS:
        assert Silent(client, {}, method).ended()[0] == "UNAUTHENTICATED"
    assert all(call.follower.call.is_active() for call in known)
    for call in known:
        assert call.ended() == (
            "RESOURCE_EXHAUSTED",
            f"the call sent no message within {FIRST_MESSAGE_SECONDS:.0f} s",
        )
    client.close()


def test_a_connection_holds_a_limited_number_of_calls(small: Platform) -> None:
    many = 1_000
    host, _, port = small.grpc.rpartition(":")
    with (
        socket.create_connection((host, int(port)), LIMIT_SECONDS) as wire,
        wire.makefile("rb") as answers,
    ):
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS_FRAME, 0, 0))
        calls = (
            frame(HEADERS_FRAME, 4, 2 * n + 1, headers(b"/grpc.health.v1.Health/Watch"))
            for n in range(many)
        )
        wire.sendall(b"".join(calls))
        settings = dict[int, int]()
        ended = set[int]()
        while len(ended) < many - PUBLIC_CALLS_PER_CONNECTION:
            head = answers.read(9)
            payload = answers.read(int.from_bytes(head[:3], "big"))
            if head[3] == SETTINGS_FRAME:
                settings |= dict(struct.iter_unpack(">HI", payload))
            elif head[3] in (HEADERS_FRAME, RST_STREAM_FRAME):
                ended.add(int.from_bytes(head[5:], "big"))
    assert settings[MAX_CONCURRENT_STREAMS] == CALLS_PER_CONNECTION


def test_an_organization_has_a_share_of_the_streams_and_a_full_table_leaves_the_process_ready(
    small: Platform, tenants: Tenants
) -> None:
    client = Client(small.grpc)

    def follow(caller: str) -> Follower:
        return client.follow(tenants.callers[caller], "", (ACTION,))

    await_subscribers(small, 0)
    followers = [follow(caller).subscribed() for caller in ("key_all", "key_live")]
    exhausted = (
        "RESOURCE_EXHAUSTED",
        "the organization has 2 streams, which is the limit; close some",
    )
    assert [follow(caller).ended() for caller in ("key_all", "key_live")] == [exhausted] * 2
    refused = small.client.get(f"/v1/accounts/{NO_ID}/events", headers=tenants.callers["key_all"])
    assert (refused.status_code, refused.json()["limit"]) == (429, "organization")
    assert {"retry-after", "ratelimit", "ratelimit-policy"} <= set(refused.headers)
    last = follow("other_key").subscribed()
    full = ("UNAVAILABLE", "this process has reached its limit of streams; try another, or again")
    assert follow("other_key").ended() == full
    assert small.client.get("/readyz").status_code == 200
    followers.pop().cancel()
    await_subscribers(small, 2)
    follow("key_all").subscribed()
    last.cancel()
    client.close()


async def test_one_organization_has_a_quarter_of_the_streams_unless_it_is_set() -> None:
    async def check() -> None: ...

    async def count(max_streams: int, per_organization: int) -> int:
        """As many as it takes: of many keys, so that no caller has too many."""
        hub = Hub(
            pool=cast(Pool, None),
            render=lambda *_: b"",
            max_streams=max_streams,
            per_organization=per_organization,
            clock=SystemClock(),
            metrics=Metrics(),
            log=make_log("critical"),
        )
        organization_id = OrganizationId(uuid4())
        for number in range(max_streams + 1):
            session = Session(
                transport=TRANSPORTS[number % 2],
                caller=f"key {number}",
                organization_id=organization_id,
                credential=number,
                expires_at=None,
                check=check,
            )
            try:
                hub.open(session, lambda: None)
            except RateLimited:
                return number
        return max_streams

    assert [await count(*sizes) for sizes in ((400, 0), (400, 7), (3, 0))] == [100, 7, 1]


class _Script:
    """A call's messages, after which nothing comes."""

    def __init__(self, *messages: object) -> None:
        self._messages = iter(messages)

    async def read(self) -> object:
        for message in self._messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError


async def test_every_wait_for_a_message_has_a_limit() -> None:
    context = cast(Context, _Script(b"one", grpc.aio.EOF, grpc.aio.EOF))
    assert await read(context, None) == b"one"
    assert await read(context, 0.01) is None
    with pytest.raises(InvalidRequest):
        await read_first(context)
    with pytest.raises(LimitReached, match="the call sent no message within 0 s"):
        await read(context, 0.01)
