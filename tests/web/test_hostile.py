"""Clients that send without reading, without end or without sense: each is bounded, and nobody else
waits for it."""

import asyncio
import contextlib
import gc
import json
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.waiting import eventually_async
from tests.web.conftest import Site, open_site
from tests.web.connections import GET, LIMIT_SECONDS, connected, exchange, metric, read_answer
from trading_intents.errors import PlatformError
from trading_intents.loops import LoopSlots
from trading_intents.web.operations import MAX_AGE_SECONDS
from trading_intents.web.request import answer_json
from trading_intents.web.server import connection as connection_module
from trading_intents.web.server import table as table_module
from trading_intents.web.server.connection import HttpConnection

CHUNKED = (
    b"PUT /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def answered(site: Site, route: str, status: int = 200) -> float:
    return metric(site, "ti_http_requests_total", route=route, status=str(status))


@contextlib.asynccontextmanager
async def idle(site: Site, count: int, address: str = "127.0.0.1") -> AsyncIterator[None]:
    """So many connections from an address that send nothing."""
    writers = [
        (await asyncio.open_connection("127.0.0.1", site.port, local_addr=(address, 0)))[1]
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


async def test_others_are_answered_between_two_pipelined_requests(site: Site) -> None:
    route = "/v1/things/{symbol}/time"
    count = 2000
    async with connected(site) as (_, flood), connected(site) as (reader, writer):
        flood.write(b"GET /v1/things/A/time HTTP/1.1\r\nhost: x\r\n\r\n" * count)
        await flood.drain()
        for _ in range(5):
            writer.write(GET)
            assert (await read_answer(reader))[0] == 200
        assert answered(site, route) < count


async def test_a_client_that_does_not_read_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_SECONDS", 0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", site.port))
        _, writer = await asyncio.open_connection(sock=client)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
        await send_until_closed(writer, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
        writer.close()
    assert await site.app.drain(LIMIT_SECONDS)


async def test_metrics_are_rendered_once_in_a_moment(site: Site) -> None:
    first = (await site.client.get("/metrics")).content
    assert (await site.client.get("/metrics")).content == first
    site.clock.advance(MAX_AGE_SECONDS)
    assert b'route="/metrics",status="200"} 2.0' in (await site.client.get("/metrics")).content


async def test_readiness_is_looked_at_once_in_a_moment(site: Site) -> None:
    answers = await asyncio.gather(*(site.client.get("/readyz") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert site.readiness_checks == 1


async def test_a_trailer_is_no_header(site: Site) -> None:
    head = b"POST /v1/places/here/orders HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    status, headers, _ = await exchange(
        site, head + b"0\r\nx-name: ada\r\nx-request-id: theirs\r\n\r\n"
    )
    assert (status, headers["x-request-id"] != "theirs") == (401, True)


@pytest.mark.parametrize(
    "endless",
    [b"a:b\r\n" * 4000, b"x" * 4096],
    ids=["many trailers", "one trailer that does not end"],
)
@pytest.mark.parametrize("body", [b"", b"2\r\n{}\r\n"])
async def test_trailers_without_end_are_400_and_the_end(
    site: Site, endless: bytes, body: bytes
) -> None:
    async with connected(site) as (reader, writer):
        writer.write(CHUNKED + body + b"0\r\n")
        sending = asyncio.create_task(send_until_closed(writer, endless))
        status, headers, answer = await read_answer(reader)
        assert (status, json.loads(answer)["code"], headers["connection"]) == (
            400,
            "invalid_request",
            "close",
        )
        await sending


async def send_until_closed(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                writer.write(data)
                await writer.drain()


def in_chunks(body: bytes) -> bytes:
    return CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


async def test_a_body_in_chunks_of_one_byte_is_read(site: Site) -> None:
    status, _, answer = await exchange(site, in_chunks(b'{"symbol":"' + b"A" * 6000 + b'"}'))
    assert (status, len(json.loads(answer)["symbol"])) == (200, 6000)


async def test_chunk_sizes_of_more_than_32_kib_are_400_and_the_end(site: Site) -> None:
    status, headers, answer = await exchange(site, in_chunks(b'{"symbol":"' + b"A" * 7000 + b'"}'))
    assert (status, json.loads(answer)["code"], headers["connection"]) == (
        400,
        "invalid_request",
        "close",
    )


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (CHUNKED, b"1000\r\n" + b"a" * 4096 + b"\r\n"),
        (
            CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: 99999999999"),
            b"a" * 65_536,
        ),
    ],
    ids=["chunks", "one piece"],
)
async def test_a_body_without_end_is_413_and_the_end(site: Site, head: bytes, piece: bytes) -> None:
    async with connected(site) as (reader, writer):
        writer.write(head)
        sending = asyncio.create_task(send_until_closed(writer, piece))
        status, headers, answer = await read_answer(reader)
        assert (status, json.loads(answer)["code"], headers["connection"]) == (
            413,
            "payload_too_large",
            "close",
        )
        await sending


@pytest.mark.deadline
async def test_a_closed_connection_leaves_nothing_behind(site: Site) -> None:
    async def none_is_left() -> bool:
        new = gc.get_objects(generation=0)
        is_connected = any(
            isinstance(each, HttpConnection) and each._app is site.app for each in new
        )
        return not is_connected and not any(isinstance(each, PlatformError) for each in new)

    async def has_new_date() -> bool:
        writer.write(GET)
        dates.add((await read_answer(reader))[1]["date"])
        return len(dates) > 1

    dates = set[str]()
    gc.collect()  # what other tests have kept is of an older generation then
    gc.disable()
    try:
        # Until all connections were looked at, once a second.
        async with connected(site) as (reader, writer):
            await eventually_async(has_new_date, LIMIT_SECONDS)
        for data in (GET, GET[:10], CHUNKED + b"0\r\nabc", b"nonsense\r\n\r\n", b""):
            async with connected(site) as (_, writer):
                writer.write(data)
                await writer.drain()
                writer.write_eof()
        await eventually_async(none_is_left, LIMIT_SECONDS)
    finally:
        gc.enable()


async def test_a_fault_on_the_quick_way_is_500_with_its_id_and_ends(site: Site) -> None:
    head = (
        b"POST /v1/quick/broken HTTP/1.1\r\nhost: x\r\n"
        b"x-request-id: mine\r\ncontent-length: 0\r\n\r\n"
    )
    status, headers, body = await exchange(site, head)
    assert (status, headers["x-request-id"], json.loads(body)["request_id"]) == (
        500,
        "mine",
        "mine",
    )
    assert b"secret-marker" not in body
    assert answered(site, "/v1/quick/{name}", 500) == 1
    logged = json.loads(site.logs.getvalue())
    assert (logged["request_id"], "secret-marker" in logged["exception"]) == ("mine", True)
    assert await site.app.drain(LIMIT_SECONDS)


async def test_what_is_no_request_is_counted_and_logged_with_its_id(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await exchange(site, b"nonsense\r\n\r\n"))[1]["x-request-id"]]
    monkeypatch.setattr(connection_module, "REQUEST_SECONDS", 0)
    ids.append((await exchange(site, GET[:20]))[1]["x-request-id"])
    assert (answered(site, "none", 400), answered(site, "none", 408)) == (1, 1)
    logged = [json.loads(line) for line in site.logs.getvalue().splitlines()]
    assert [(line["event"], line["request_id"], line["status"]) for line in logged] == [
        ("request refused", ids[0], 400),
        ("request refused", ids[1], 408),
    ]


async def test_a_flood_of_nonsense_does_not_fill_the_log(site: Site) -> None:
    for _ in range(50):
        assert (await exchange(site, b"nonsense\r\n\r\n"))[0] == 400
    assert len(site.logs.getvalue().splitlines()) == 10
    site.clock.advance(1)
    await exchange(site, b"nonsense\r\n\r\n")
    assert len(site.logs.getvalue().splitlines()) == 11


async def test_one_address_cannot_take_every_connection(site: Site) -> None:
    async with idle(site, 50):
        status, headers, body = await exchange(site, b"")
        assert (status, headers["retry-after"]) == (503, "1")
        assert (
            json.loads(body)["detail"] == "this address has too many open connections; close some"
        )
        assert metric(site, "ti_http_connections_refused_total", limit="address") == 1
        assert (
            json.loads(site.logs.getvalue())["detail"]
            == "this address has too many open connections; close some"
        )
        other, writer = await asyncio.open_connection(
            "127.0.0.1", site.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(GET)
        assert (await read_answer(other))[0] == 200
        writer.close()

    async def has_room() -> bool:
        return metric(site, "ti_http_connections") < 50

    await eventually_async(has_room, LIMIT_SECONDS)
    assert (await exchange(site, GET))[0] == 200


def test_connections_take_half_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        assert table_module.connection_limits(7).per_address == 7
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (512, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    assert table_module.connection_limits(0) == table_module.ConnectionLimits(
        total=512, per_address=256
    )


async def test_a_connection_that_sends_nothing_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "FIRST_BYTE_SECONDS", 0)
    async with connected(site) as (reader, writer):
        writer.write(b"\r\n\r\n")  # no request begins with them
        assert await reader.read() == b""


async def test_a_client_that_closes_its_half_gets_its_answers(site: Site) -> None:
    slow = b"GET /v1/slow HTTP/1.1\r\nhost: x\r\n\r\n"
    async with connected(site) as (reader, writer):
        writer.write(slow + GET + GET + GET[:10])
        writer.write_eof()
        await site.entered.wait()
        site.leave.set()
        assert [(await read_answer(reader))[0] for _ in range(3)] == [200, 200, 200]
        assert await reader.read() == b""
    assert await site.app.drain(LIMIT_SECONDS)


async def test_a_client_that_closes_its_half_gets_the_quick_answer(site: Site) -> None:
    async with connected(site) as (reader, writer):
        writer.write(b"POST /v1/quick/later HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        writer.write_eof()
        await site.entered.wait()
        await asyncio.sleep(0)
        site.pending.pop()(answer_json({"done": True}))
        status, headers, _ = await read_answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
    assert await site.app.drain(LIMIT_SECONDS)


async def test_a_client_that_goes_away_before_its_answers_turn_disturbs_nobody(site: Site) -> None:
    """Before its request's turn as well."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    site.app.slots = LoopSlots(0)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            _, writer = await stack.enter_async_context(connected(site))
            writer.write(b"POST /v1/quick/later HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        while len(site.pending) < 4:
            await asyncio.sleep(0)
        for answer in site.pending:
            answer(answer_json({"done": True}))
    assert await site.app.drain(LIMIT_SECONDS)
    assert faults == []


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_abandoned_request_leaves_no_traceback(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    faults: list[object] = []

    async def abandon() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context)
        )
        async with open_site() as site:
            reset = struct.pack("ii", 1, 0)
            async with connected(site) as (_, writer):
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, reset
                )
                writer.write(b"GET /v1/slow HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
                await site.entered.wait()

            async def is_gone() -> bool:
                return metric(site, "ti_http_connections") == 0

            await eventually_async(is_gone, LIMIT_SECONDS)
            site.leave.set()
            assert await site.app.drain(LIMIT_SECONDS)
            assert answered(site, "/v1/slow") == 1
            assert site.logs.getvalue() == ""

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(abandon())
    assert faults == []


async def test_a_head_in_two_pieces_after_a_large_body_is_read(site: Site) -> None:
    body = b'{"symbol":"' + b"A" * 40_000 + b'"}'
    head = (
        b"PUT /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n"
    )
    async with connected(site) as (reader, writer):
        writer.write(head % len(body) + body + GET[:10])
        assert (await read_answer(reader))[0] == 200
        writer.write(GET[10:])
        assert (await read_answer(reader))[0] == 200


LIMITED = b"GET /v1/limited HTTP/1.1\r\nhost: x\r\nx-name: ada\r\n\r\n"


async def spend_limit(site: Site, monkeypatch: pytest.MonkeyPatch, max_refused: int = 0) -> None:
    """And have refused connections held back when there are more than that."""
    monkeypatch.setattr(table_module, "MAX_REFUSED", max_refused)
    for _ in range(10):
        assert (await site.client.get("/v1/limited", headers={"x-name": "ada"})).status_code == 200


async def test_a_client_that_ignores_retry_after_is_not_read_until_then(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spend_limit(site, monkeypatch)
    monkeypatch.setattr(connection_module, "BACK_OFF_SECONDS", 60.0)
    async with connected(site) as (reader, writer), connected(site) as (other_reader, other):
        for _ in range(2):
            writer.write(LIMITED)
            assert (await read_answer(reader))[0] == 429
        writer.write(GET)
        held = asyncio.create_task(read_answer(reader))
        for _ in range(20):  # nobody else waits for it
            other.write(GET)
            assert (await read_answer(other_reader))[0] == 200
        assert not held.done()
        held.cancel()


async def test_a_client_that_did_not_wait_is_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spend_limit(site, monkeypatch)
    monkeypatch.setattr(connection_module, "BACK_OFF_SECONDS", 0.05)
    async with connected(site) as (reader, writer):
        for _ in range(20):
            writer.write(LIMITED)
            assert (await read_answer(reader))[0] == 429
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200


async def test_one_refusal_holds_nothing_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await spend_limit(site, monkeypatch)
    monkeypatch.setattr(connection_module, "BACK_OFF_SECONDS", 60.0)
    async with connected(site) as (reader, writer):
        writer.write(LIMITED)
        assert (await read_answer(reader))[0] == 429
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200


async def test_few_refused_connections_are_read_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spend_limit(site, monkeypatch, max_refused=1)
    monkeypatch.setattr(connection_module, "BACK_OFF_SECONDS", 60.0)
    async with connected(site) as (reader, writer):
        for _ in range(20):
            writer.write(LIMITED)
            assert (await read_answer(reader))[0] == 429
