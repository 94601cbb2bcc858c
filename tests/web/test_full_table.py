"""A full table of connections: which connection is closed, and what the reserve answers."""

import contextlib
import json
from collections.abc import AsyncIterator

from tests.waiting import eventually_async
from tests.web.conftest import Site
from tests.web.connections import LIMIT_SECONDS, THING, connected, exchange, metric, read_answer
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
    async with busy(site, {"127.0.0.2": 50, "127.0.0.3": 50}), contextlib.AsyncExitStack() as stack:
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
