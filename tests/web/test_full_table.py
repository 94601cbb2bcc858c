"""A full table of connections: which connection is closed, what the reserve answers, and what a
refused connection takes from others."""

import asyncio
import contextlib
import json
import select
from collections.abc import AsyncIterator

from tests.waiting import eventually_async
from tests.web.conftest import Site
from tests.web.connections import (
    LIMIT_SECONDS,
    THING,
    connected,
    dialed,
    exchange,
    metric,
    read_answer,
)
from trading_intents.web.request import answer_json
from trading_intents.web.server import table as table_module


@contextlib.asynccontextmanager
async def busy(site: Site, counts: dict[str, int]) -> AsyncIterator[None]:
    """So many connections from each address that wait for an answer."""
    async with contextlib.AsyncExitStack() as stack:
        for address, count in counts.items():
            for _ in range(count):
                _, writer = await stack.enter_async_context(connected(site, address))
                writer.write(
                    b"POST /v1/quick/later HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
                )

        async def are_waiting() -> bool:
            return len(site.pending) == sum(counts.values())

        await eventually_async(are_waiting, LIMIT_SECONDS)
        try:
            yield
        finally:
            while site.pending:
                site.pending.pop()(answer_json({"done": True}))


async def test_when_two_addresses_hold_every_connection_the_oldest_without_a_request_is_closed(
    site: Site,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        addresses = [f"127.0.0.{2 + number % 2}" for number in range(100)]
        held = [await stack.enter_async_context(connected(site, address)) for address in addresses]
        used = held[0]
        begun = held[1]
        used[1].write(THING)
        assert (await read_answer(used[0]))[0] == 200  # so it is the newest now
        begun[1].write(THING[:10])
        for _ in range(3):
            reader, writer = await stack.enter_async_context(connected(site))
            writer.write(THING)
            assert (await read_answer(reader))[0] == 200
        closed = [begun, *held[2:4]]
        assert [await reader.read() for reader, _ in closed] == [b""] * 3
        for reader, writer in (used, *held[4:]):
            writer.write(THING)
            assert (await read_answer(reader))[0] == 200
        assert metric(site, "ti_http_connections_refused_total", limit="total") == 3
        assert metric(site, "ti_http_connections") == 100


async def test_a_trusted_proxy_may_have_all_connections_but_no_more(site: Site) -> None:
    async with busy(site, {"127.0.0.9": 100}):
        status, headers, body = await exchange(site, THING)
        assert (status, json.loads(body)["detail"]) == (
            503,
            "this process has too many open connections; try again",
        )
        assert headers["connection"] == "close"
        assert metric(site, "ti_http_connections_refused_total", limit="total") == 1


async def test_a_reserve_answers_probes_while_every_connection_has_a_request(site: Site) -> None:
    reserve = table_module.PROBE_RESERVE
    # Of a trusted proxy: each is of a client of its own.
    async with busy(site, {"127.0.0.9": 100}), contextlib.AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connected(site)) for _ in range(reserve)]
        for path in (b"/healthz", b"/readyz?x=1"):
            assert (await exchange(site, b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path))[0] == 200
        assert (await exchange(site, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"))[0] == 503
        assert await idle[0][0].read() == b"", (
            "the oldest of the reserve was closed for the first probe"
        )
        assert (await exchange(site, THING))[0] == 503
        site.pending.pop()(answer_json({"done": True}))
        assert (await exchange(site, THING))[0] == 200, "in place of the one that has its answer"


async def test_a_request_of_who_holds_none_ends_one_of_who_holds_most(site: Site) -> None:
    async with busy(site, {"127.0.0.2": 50, "127.0.0.3": 49, "127.0.0.4": 1}):
        async with connected(site) as (reader, writer):
            writer.write(THING)
            assert (await read_answer(reader))[0] == 200
            assert (await exchange(site, THING))[0] == 200, "its own idle one made room"
            assert await reader.read() == b""

        async def are_closed() -> bool:
            return metric(site, "ti_http_connections") == 99

        await eventually_async(are_closed, LIMIT_SECONDS)


async def test_connections_that_ask_for_nothing_close_no_request(site: Site) -> None:
    async with busy(site, {"127.0.0.2": 50, "127.0.0.3": 50}):
        for _ in range(20):
            async with connected(site):
                pass
        assert (await exchange(site, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"))[0] == 200
        assert metric(site, "ti_http_connections") >= 100


async def test_clients_that_do_not_read_their_answers_make_room(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        clients = []
        for number in range(100):
            client = stack.enter_context(dialed(site, f"127.0.0.{2 + number % 2}", 4096))
            clients.append(client)
            flood = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 3000
            stack.callback(loop.create_task(loop.sock_sendall(client, flood)).cancel)

        async def have_answers() -> bool:
            return len(select.select(clients, [], [], 0)[0]) == len(clients)

        async def are_others_answered() -> bool:
            async with contextlib.AsyncExitStack() as own:
                held = [await own.enter_async_context(connected(site)) for _ in range(5)]
                for _, writer in held:
                    writer.write(THING)
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    return {(await read_answer(reader))[0] for reader, _ in held} == {200}
            return False

        await eventually_async(have_answers, LIMIT_SECONDS)
        await eventually_async(are_others_answered, LIMIT_SECONDS)


async def test_refused_connections_close_nobodys(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        own = await stack.enter_async_context(connected(site))
        for address in ("127.0.0.2", "127.0.0.3"):
            for _ in range(50):
                await stack.enter_async_context(connected(site, address))
        refused = [
            stack.enter_context(dialed(site, f"127.0.0.{2 + number % 2}")) for number in range(60)
        ]
        newcomer = stack.enter_context(dialed(site, "127.0.0.1"))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(newcomer, THING)
        assert (await loop.sock_recv(newcomer, 1024)).startswith(b"HTTP/1.1 200 ")
        own[1].write(THING)
        assert (await read_answer(own[0]))[0] == 200
        assert metric(site, "ti_http_connections") == 100
        assert len(refused) == 60


async def test_two_addresses_that_dial_again_keep_nobody_out(site: Site) -> None:
    async def hold(address: str) -> None:
        while True:
            with dialed(site, address) as client, contextlib.suppress(ConnectionError):
                await asyncio.get_running_loop().sock_recv(client, 1)

    async with connected(site) as (reader, writer), asyncio.TaskGroup() as group:
        addresses = ["127.0.0.2", "127.0.0.3"] * 70
        dialing = [group.create_task(hold(address)) for address in addresses]

        async def is_full() -> bool:
            return metric(site, "ti_http_connections") == 100

        await eventually_async(is_full, LIMIT_SECONDS)
        for _ in range(15):
            assert (await exchange(site, THING))[0] == 200
        writer.write(THING)
        assert (await read_answer(reader))[0] == 200, "the first connection is still open"
        for task in dialing:
            task.cancel()
