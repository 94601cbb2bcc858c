"""Reads that may be a little old: never older than they may be, and renewed before they are."""

import asyncio

from tests.fakes import ManualClock
from trading_intents.storage.ttl_cache import TtlCache


class Source:
    """Gives the number of the read; the next one waits while `slow` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.open = asyncio.Event()
        self.open.set()

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.open.wait()
        return number


async def reads_ended() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_peek_reads_nothing_that_is_not_there_and_renews_what_ages() -> None:
    clock = ManualClock()
    source = Source()
    recent = TtlCache[str, int](clock, 0.8, 10)
    assert recent.get_cached("k", source.read) is None
    assert source.reads == 0
    assert await recent.get("k", source.read) == 1
    clock.advance(0.39)
    assert recent.get_cached("k", source.read) == 1
    await reads_ended()
    assert source.reads == 1, "it is young"
    clock.advance(0.02)
    assert [recent.get_cached("k", source.read) for _ in range(3)] == [1, 1, 1]
    await reads_ended()
    assert source.reads == 2, "renewed once, however many ask"
    clock.advance(0.5)
    assert recent.get_cached("k", source.read) == 2
    clock.advance(5)
    assert recent.get_cached("k", source.read) is None, "too old, though it is being renewed"


async def test_an_age_counts_from_before_the_read() -> None:
    clock = ManualClock()
    source = Source()
    recent = TtlCache[str, int](clock, 0.8, 10)
    await recent.get("k", source.read)
    clock.advance(0.5)
    source.open.clear()
    recent.get_cached("k", source.read)
    await reads_ended()
    clock.advance(0.7)
    source.open.set()
    await reads_ended()
    assert recent.get_cached("k", source.read) == 2
    clock.advance(0.2)
    assert recent.get_cached("k", source.read) is None


async def test_a_slow_renewal_does_not_replace_a_later_read() -> None:
    clock = ManualClock()
    source = Source()
    recent = TtlCache[str, int](clock, 0.8, 10)
    await recent.get("k", source.read)
    clock.advance(0.5)
    source.open.clear()
    recent.get_cached("k", source.read)
    await reads_ended()
    clock.advance(0.4)
    later = asyncio.create_task(recent.get("k", source.read))
    await reads_ended()
    source.open.set()
    assert await later == 3
    await reads_ended()
    assert recent.get_cached("k", source.read) == 3


async def test_what_was_read_before_a_change_is_not_kept_after_it() -> None:
    clock = ManualClock()
    source = Source()
    recent = TtlCache[str, int](clock, 0.8, 10)
    await recent.get("k", source.read)
    clock.advance(0.5)
    source.open.clear()
    recent.get_cached("k", source.read)
    await reads_ended()
    recent.clear()
    source.open.set()
    await reads_ended()
    assert recent.get_cached("k", source.read) is None
    assert await recent.get("k", source.read) == 3
