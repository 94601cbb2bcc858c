"""Connections that send much at once share the loop: each parses a piece in its slot, and keeps
little."""

import asyncio
import tracemalloc

import pytest

from tests.web import wire as wire_module
from tests.web.wire import SMALLEST, Wire
from trading_intents.web.server.connection import PARSE_BYTES
from trading_intents.web.server.table import READ_BYTES

CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"2\r\nab\r\n"
FLOOD = (CHUNKED + CHUNK * READ_BYTES)[:READ_BYTES]


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of the loop parses one piece."""
    monkeypatch.setattr(wire_module, "slot_seconds", 0.0)


async def test_a_small_request_does_not_wait_for_large_ones(no_time: None) -> None:
    small = Wire()
    floods = [Wire(small) for _ in range(5)]
    for flood in floods:
        flood.receive(FLOOD)
    small.receive(SMALLEST)
    rounds = 0
    while not small.app.taken:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds <= 2 * len(floods)
    assert min(len(flood.connection._unread) for flood in floods) >= READ_BYTES - 3 * PARSE_BYTES
    assert not any(flood.transport.reads for flood in floods), "nothing more is received meanwhile"


@pytest.mark.parametrize("address", ["1.1.1.1", "10.0.0.1"], ids=["client", "trusted_proxy"])
async def test_a_small_request_waits_for_few_pieces_of_another_address(
    address: str, no_time: None
) -> None:
    """However many connections that address has."""
    small = Wire(address=address)
    floods = [Wire(small) for _ in range(9)]
    for flood in floods:
        flood.receive(FLOOD)
    small.receive(SMALLEST)
    rounds = 0
    while not small.app.taken:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds <= 5


async def test_all_that_waits_is_parsed_in_the_end(no_time: None) -> None:
    wires = [Wire()]
    wires += [Wire(wires[0]) for _ in range(4)]
    data = SMALLEST * (READ_BYTES // len(SMALLEST))
    for wire in wires:
        wire.receive(data)
    await asyncio.gather(*(wire.send([CHUNKED, CHUNK * 200, b"0\r\n\r\n"]) for wire in wires))
    bodies = [len(body or b"") for _, _, _, body in wires[0].app.taken]
    assert sorted(bodies) == [0] * (len(wires) * (READ_BYTES // len(SMALLEST))) + [400] * len(wires)


async def test_a_connection_that_is_lost_while_it_waits_is_forgotten(no_time: None) -> None:
    lost = Wire()
    other = Wire(lost)
    lost.receive(FLOOD)
    other.receive(SMALLEST)
    lost.connection.connection_lost(None)
    await other.send([])
    assert [target for _, target, _, _ in other.app.taken] == [b"/"]


async def test_small_chunks_take_no_more_memory_than_their_bytes() -> None:
    wire = Wire()
    wire.receive(CHUNKED)
    tracemalloc.start()
    try:
        for _ in range(2):
            wire.receive(CHUNK * (READ_BYTES // len(CHUNK)))
            while not wire.transport.reads:
                await asyncio.sleep(0)
        # Other threads of the tests allocate meanwhile.
        ours = [tracemalloc.Filter(True, name) for name in ("*/trading_intents/*", __file__)]
        kept = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
    finally:
        tracemalloc.stop()
    assert sum(each.size for each in kept) < 2 * READ_BYTES
    await wire.send([])
