"""The HTTP connection itself, byte by byte over a real socket: what a well-behaved client never
sends, too."""

import contextlib
import json

import pytest

from tests.web.conftest import Site
from tests.web.connections import GET, connected, exchange, read_answer
from trading_intents.web.server import connection as connection_module


async def test_a_connection_serves_many_requests(site: Site) -> None:
    async with connected(site) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            status, headers, body = await read_answer(reader)
            assert (status, json.loads(body)) == (200, {"status": "alive"})
            assert headers["date"].endswith("GMT")
            assert "connection" not in headers


async def test_pipelined_requests_are_answered_in_their_order(site: Site) -> None:
    paths = [f"/v1/things/S{n}/time" for n in range(40)]
    async with connected(site) as (reader, writer):
        writer.write(b"".join(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for path in paths))
        answers = [json.loads((await read_answer(reader))[2])["text"] for _ in paths]
    assert answers == [f"S{n}" for n in range(40)]


async def test_a_request_may_come_byte_by_byte(site: Site) -> None:
    async with connected(site) as (reader, writer):
        for byte in GET:
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await read_answer(reader))[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nconnection: keep-alive, close\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\nconnection: Close\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nconnection: close\r\nconnection: keep-alive\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nConnection: keep-alive, close\r\n\r\n",
    ],
)
async def test_who_wants_the_connection_closed_gets_it_closed(site: Site, head: bytes) -> None:
    async with connected(site) as (reader, writer):
        writer.write(head)
        status, headers, _ = await read_answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n"
        + b"".join(b"x-%d: y\r\n" % n for n in range(200))
        + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
        b"upgrade: y\r\ncontent-length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(9000)) + b"\r\n",
        b"POST /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_400_and_the_end(site: Site, data: bytes) -> None:
    async with connected(site) as (reader, writer):
        writer.write(data)
        status, headers, body = await read_answer(reader)
        assert (status, json.loads(body)["code"]) == (400, "invalid_request")
        assert headers["connection"] == "close"
        assert json.loads(body)["request_id"] == headers["x-request-id"] != ""
        # If more was on its way than we cared to read.
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    assert (await site.client.get("/healthz")).status_code == 200


async def test_an_upgrade_is_not_taken_and_the_request_answered(site: Site) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    status, headers, _ = await exchange(site, head)
    assert (status, headers["connection"]) == (200, "close")


async def test_a_chunked_body_is_read(site: Site) -> None:
    head = (
        b"PUT /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    status, _, body = await exchange(site, head + b'4\r\n{"sy\r\nb\r\nmbol":"A" }\r\n0\r\n\r\n')
    assert (status, json.loads(body)["symbol"]) == (200, "A")


async def test_a_client_that_expects_100_continue_gets_it(site: Site) -> None:
    head = b"PUT /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    async with connected(site) as (reader, writer):
        writer.write(head + b"content-length: 14\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'{"symbol":"A"}')
        assert (await read_answer(reader))[0] == 200


async def test_http_1_0_knows_no_100_continue(site: Site) -> None:
    head = b"PUT /v1/orders HTTP/1.0\r\ncontent-type: application/json\r\n"
    head += b"content-length: 14\r\nexpect: 100-continue\r\n\r\n"
    assert (await exchange(site, head + b'{"symbol":"A"}'))[0] == 200


async def test_a_204_has_no_body_and_head_has_only_the_length(site: Site) -> None:
    async with connected(site) as (reader, writer):
        writer.write(b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert "content-length: 18" in head
        assert (await read_answer(reader))[0] == 200


async def test_a_request_that_does_not_arrive_in_time_is_408(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "REQUEST_SECONDS", 0)
    status, headers, body = await exchange(
        site, b"PUT /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    )
    assert (status, json.loads(body)["code"], headers["connection"]) == (
        408,
        "request_timeout",
        "close",
    )
    assert json.loads(body)["request_id"] == headers["x-request-id"] != ""


async def test_an_idle_connection_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "KEEP_ALIVE_SECONDS", 0)
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await read_answer(reader)
        assert await reader.read() == b""


async def test_a_client_that_goes_away_disturbs_nobody(site: Site) -> None:
    async with connected(site) as (_, writer):
        writer.write(b"GET /v1/slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await site.entered.wait()
    site.leave.set()
    assert (await site.client.get("/healthz")).status_code == 200
