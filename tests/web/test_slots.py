"""Requests share the event loop by slots: many of one organization, or of no caller, delay no other
caller's."""

import asyncio
import contextlib
import socket
from itertools import pairwise

import pytest

from tests.web.conftest import Site
from tests.web.connections import connected, metric, read_answer
from trading_intents.loops import LoopSlots
from trading_intents.web.request import Answer
from trading_intents.web.server import table as table_module
from trading_intents.web.server.table import MAX_ACCEPTED

FLOOD = 40
MAX_BEFORE = 5  # answers that may leave before the other caller's
LATER = b"POST /v1/later HTTP/1.1\r\nhost: x\r\nx-name: %s\r\ncontent-length: 0\r\n\r\n"
STOP = b"POST /v1/stops HTTP/1.1\r\nhost: x\r\nx-name: %s\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def time_to_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine too: what is counted is who is served."""
    monkeypatch.setattr(table_module, "PARSE_SECONDS", 10.0)


@pytest.mark.parametrize(
    ("flood", "statuses"),
    [
        (STOP % b"friend", {200}),
        (b"GET /v1/things/x/time HTTP/1.1\r\nhost: x\r\n\r\n", {200}),
        (b"GET /v1/things/x/time?x=1 HTTP/1.1\r\nhost: x\r\n\r\n", {422}),
        (b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n", {404}),
        (b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", {414}),
        (b"nonsense\r\n\r\n", {400}),
    ],
    ids=["a_caller", "public", "refused", "not_found", "too_long", "unreadable"],
)
async def test_a_flood_of_requests_delays_no_other_caller(
    site: Site, flood: bytes, statuses: set[int]
) -> None:
    """All are received before the first is read; with each answer, its rank among them is known."""
    answered: list[tuple[str, int]] = []
    site.app.slots = LoopSlots(0)

    async def read(name: str, reader: asyncio.StreamReader) -> None:
        answered.append((name, (await read_answer(reader))[0]))

    requests = [("flood", flood)] * FLOOD + [("other", STOP % b"bob")]
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(site)) for _ in requests]
        for (_, request), (_, writer) in zip(requests, opened, strict=True):
            writer.write(request)
        await asyncio.gather(
            *(read(name, reader) for (name, _), (reader, _) in zip(requests, opened, strict=True))
        )
    assert {status for name, status in answered if name == "flood"} == statuses
    assert answered.index(("other", 200)) <= MAX_BEFORE


async def test_answers_of_a_batch_delay_no_other_caller(site: Site) -> None:
    """Many of one caller are known at once, before that of another one."""
    answered: list[str] = []

    async def read(name: str, reader: asyncio.StreamReader) -> None:
        assert (await read_answer(reader))[0] == 200
        answered.append(name)

    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for name in ["friend"] * FLOOD + ["bob"]:
            reader, writer = await stack.enter_async_context(connected(site))
            writer.write(LATER % name.encode())
            opened.append((name, reader))
            while len(site.pending) < len(opened):
                await asyncio.sleep(0)
        site.app.slots = LoopSlots(0)
        for answer in site.pending:
            answer(Answer())
        await asyncio.gather(*(read(name, reader) for name, reader in opened))
    assert answered.index("bob") <= MAX_BEFORE


async def test_few_connections_are_accepted_in_each_round_of_the_loop(site: Site) -> None:
    """All are made before the loop runs: the kernel completes them, as many as a backlog holds."""
    with contextlib.ExitStack() as stack:
        for _ in range(FLOOD):
            stack.enter_context(socket.create_connection(("127.0.0.1", site.port)))
        counts = [0.0]
        while counts[-1] < FLOOD:
            await asyncio.sleep(0)
            counts.append(metric(site, "ti_http_connections"))
        assert max(after - before for before, after in pairwise(counts)) <= MAX_ACCEPTED
