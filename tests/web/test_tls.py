"""HTTP by TLS: the same connection behind a handshake, certificates that are renewed in their
files, and handshakes that nobody finishes."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import uvloop

from tests.certificates import client_hello, make_certificate
from tests.conftest import Urls
from tests.platform import environment, run_command, serving
from tests.waiting import eventually, eventually_async
from tests.web.conftest import Site, open_site
from tests.web.connections import GET, LIMIT_SECONDS, dialed, metric, read_answer
from trading_intents.config import Settings
from trading_intents.web.server import tls as tls_module

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MakeLoop = Callable[[], asyncio.AbstractEventLoop]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    certificate, key = make_certificate(tmp_path)
    return Settings(http_tls_certificate_file=str(certificate), http_tls_key_file=str(key))


@contextlib.asynccontextmanager
async def connected(
    site: Site, trusted: Path | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[Stream]:
    """Without the file of a certificate that it trusts: by plain TCP."""
    context = ssl.create_default_context(cafile=trusted) if trusted else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", site.port, ssl=context, local_addr=(address, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def receive(client: socket.socket) -> bytes:
    """The first byte; nothing, if the connection is closed."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.get_running_loop().sock_recv(client, 1)
    return b""


async def until(holds: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return holds()

    await eventually_async(is_so, LIMIT_SECONDS)


async def check_requests(site: Site, certificate: Path) -> None:
    """Several on one connection, pipelined, large ones, and a client that does not wait for its
    answer."""
    async with connected(site, certificate) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            assert (await read_answer(reader))[0] == 200
        paths = [f"/v1/things/S{n}/time" for n in range(40)]
        writer.write(b"".join(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for path in paths))
        assert [json.loads((await read_answer(reader))[2])["text"] for _ in paths] == [
            f"S{n}" for n in range(40)
        ]
        body = b'{"symbol":"' + b"A" * 60_000 + b'"}'
        head = (
            b"PUT /v1/orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body + GET)
        assert [len((await read_answer(reader))[2]) > 60_000 for _ in range(2)] == [True, False]
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await read_answer(reader))[0] == 200
        assert await reader.read() == b""
    async with connected(site, certificate) as (reader, writer):
        writer.write(b"GET /v1/slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await site.entered.wait()
    await until(lambda: metric(site, "ti_http_connections") == 0)
    site.leave.set()
    assert await site.app.drain(LIMIT_SECONDS)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_tls_connection_does_all_that_a_plain_one_does(
    make_loop: MakeLoop, settings: Settings
) -> None:
    faults: list[object] = []

    async def use() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context)
        )
        async with open_site(settings) as site:
            await check_requests(site, Path(settings.http_tls_certificate_file))
            assert metric(site, "ti_tls_certificate_expires_timestamp_seconds", port="http") > 1e9
            assert site.logs.getvalue() == ""

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(use())
    assert faults == []


@pytest.mark.parametrize("make_loop", LOOPS)
def test_handshakes_that_nobody_finishes_count_as_connections_and_end(
    make_loop: MakeLoop, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[object] = []
    monkeypatch.setattr(tls_module, "FIRST_BYTE_SECONDS", 60)

    async def hold() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context)
        )
        async with open_site(settings) as site, contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(connected(site)) for _ in range(16)]
            await until(lambda: metric(site, "ti_http_connections") == 16)
            one_more = await stack.enter_async_context(connected(site))
            assert await one_more[0].read() == b"", "an address has 16 handshakes at once"
            assert metric(site, "ti_http_connections_refused_total", limit="address") == 1
            held[0][1].close()
            await until(lambda: metric(site, "ti_http_connections") == 15)
            held[1][1].write(b"GET / HTTP/1.1\r\n\r\n")  # no handshake
            await held[1][0].read()
            await until(lambda: metric(site, "ti_http_connections") == 14)
            certificate = Path(settings.http_tls_certificate_file)
            reader, writer = await stack.enter_async_context(connected(site, certificate))
            writer.write(GET)
            assert (await read_answer(reader))[0] == 200
        assert site.logs.getvalue() == ""

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(hold())
    assert faults == []


@pytest.mark.parametrize("make_loop", LOOPS)
def test_an_address_has_few_handshakes_and_others_do_not_wait_for_the_rest(
    make_loop: MakeLoop, settings: Settings
) -> None:
    """All of them dial before the first is accepted."""

    async def dial() -> None:
        hello = client_hello()
        async with open_site(settings) as site, contextlib.AsyncExitStack() as stack:
            flood = [stack.enter_context(dialed(site, "127.0.0.2")) for _ in range(400)]
            for client in flood:
                client.send(hello)
            certificate = Path(settings.http_tls_certificate_file)
            reader, writer = await stack.enter_async_context(
                connected(site, certificate, "127.0.0.3")
            )
            writer.write(GET)
            assert (await read_answer(reader))[0] == 200
            begun = await asyncio.gather(*(receive(client) for client in flood))
            assert sum(map(len, begun)) == 16
            assert metric(site, "ti_http_connections") == 17
            assert metric(site, "ti_http_connections_refused_total", limit="address") == 384
            flood[begun.index(b"\x16")].close()
            await until(lambda: metric(site, "ti_http_connections") == 16)
            next_one = stack.enter_context(dialed(site, "127.0.0.2"))
            next_one.send(hello)
            assert await receive(next_one) != b""

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(dial())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_addresses_take_slots_for_their_handshakes(make_loop: MakeLoop, settings: Settings) -> None:
    ended: list[str] = []

    async def dial() -> None:
        hello = client_hello()
        async with open_site(settings) as site, contextlib.AsyncExitStack() as stack:
            addresses = ["127.0.0.2"] * 14 + ["127.0.0.3"]
            clients = [stack.enter_context(dialed(site, address)) for address in addresses]
            for client in clients:
                client.send(hello)

            async def note(client: socket.socket, address: str) -> None:
                assert await receive(client) != b""
                ended.append(address)

            await asyncio.gather(*map(note, clients, addresses))

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(dial())
    assert ended.index("127.0.0.3") <= 4


async def test_an_address_has_half_of_the_connections_by_tls_too(settings: Settings) -> None:
    certificate = Path(settings.http_tls_certificate_file)
    async with open_site(settings) as site, contextlib.AsyncExitStack() as stack:
        for _ in range(50):
            await stack.enter_async_context(connected(site, certificate))
        one_more = await stack.enter_async_context(connected(site))
        assert await one_more[0].read() == b""
        assert metric(site, "ti_http_connections_refused_total", limit="address") == 1
        reader, writer = await stack.enter_async_context(connected(site, certificate, "127.0.0.3"))
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200


async def test_a_handshake_makes_room_when_the_table_is_full(settings: Settings) -> None:
    certificate = Path(settings.http_tls_certificate_file)
    async with open_site(settings) as site, contextlib.AsyncExitStack() as stack:
        # A trusted proxy's, which may have any number.
        held = [
            await stack.enter_async_context(connected(site, address="127.0.0.9"))
            for _ in range(100)
        ]
        reader, writer = await stack.enter_async_context(connected(site, certificate))
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200
        assert await held[0][0].read() == b""
        assert metric(site, "ti_http_connections") == 100


async def test_answers_say_that_browsers_come_by_tls_alone_where_it_is_ours(
    settings: Settings, site: Site
) -> None:
    name = "strict-transport-security"
    async with open_site(settings) as safe:
        for path in ("/healthz", "/v1/nowhere"):
            assert (await safe.client.get(path)).headers[name] == "max-age=31536000"
            assert name not in (await site.client.get(path)).headers


async def test_a_handshake_has_its_limit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "FIRST_BYTE_SECONDS", 0.01)
    async with open_site(settings) as site, connected(site) as (reader, _):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await until(lambda: metric(site, "ti_http_connections") == 0)


async def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(settings: Settings) -> None:
    certificate = Path(settings.http_tls_certificate_file)
    key = Path(settings.http_tls_key_file)
    old = certificate.with_name("old.pem")
    old.write_bytes(certificate.read_bytes())
    async with open_site(settings) as site, connected(site, old) as (reader, writer):
        working_key = key.read_bytes()
        key.write_text("half")
        for _ in range(2):
            async with connected(site, old):
                pass
        lines = [json.loads(line) for line in site.logs.getvalue().splitlines()]
        assert [(line["event"], line["setting"]) for line in lines] == [
            ("certificate not taken", "HTTP_TLS")
        ]
        key.write_bytes(working_key)
        make_certificate(certificate.parent)
        async with connected(site, certificate):
            pass
        with pytest.raises(ssl.SSLCertVerificationError):
            async with connected(site, old):
                pass
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200, "a connection that is open goes on"
        assert metric(site, "ti_tls_certificate_expires_timestamp_seconds", port="grpc") == 0


def test_rest_is_served_by_tls_and_plain_text_leaves_every_line_of_the_log_json(
    tenants_database: Urls, settings: Settings, tmp_path: Path
) -> None:
    files = {
        "HTTP_TLS_CERTIFICATE_FILE": settings.http_tls_certificate_file,
        "HTTP_TLS_KEY_FILE": settings.http_tls_key_file,
    }
    chosen = {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "api"} | files
    with serving(tmp_path / "data", **chosen) as platform:
        assert platform.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=settings.http_tls_certificate_file)
        with httpx.Client(base_url=platform.url, verify=trusting) as client:
            eventually(lambda: client.get("/readyz").status_code == 200, LIMIT_SECONDS)
            assert f"curl -s {platform.url}/" in client.get("/").text
            port = int(platform.url.rpartition(":")[2])
            for hello in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)), b""):
                with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECONDS) as plain:
                    plain.sendall(hello)
                    plain.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(ConnectionResetError):
                        while plain.recv(1024):
                            pass
            assert client.get("/healthz").status_code == 200
        assert platform.stop() == 0
    lines = [json.loads(line) for line in platform.logs]
    assert [line for line in lines if line["level"] not in ("debug", "info")] == []


@pytest.mark.parametrize("broken", ["certificate", "key"])
def test_a_file_that_is_none_ends_the_start(
    tenants_database: Urls, settings: Settings, tmp_path: Path, broken: str
) -> None:
    Path(getattr(settings, f"http_tls_{broken}_file")).write_text("nothing")
    files = {
        "HTTP_TLS_CERTIFICATE_FILE": settings.http_tls_certificate_file,
        "HTTP_TLS_KEY_FILE": settings.http_tls_key_file,
    }
    done = run_command(
        environment(tmp_path / "data", {"DATABASE_URL": tenants_database.login.reveal()} | files),
        "serve",
    )
    assert (done.returncode, "HTTP_TLS_CERTIFICATE_FILE" in done.stderr) == (1, True), done.stderr
