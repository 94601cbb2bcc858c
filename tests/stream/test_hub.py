"""The hub: one reader for all, the same bytes, nothing missed or repeated, and nobody held up by
anybody."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from tests.stream.follow import ApiOnlyPlatform, Reader, numbered
from trading_intents.errors import CursorExpired, LimitReached, Unauthorized, Unavailable
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Database, Pool, Row, Tx
from trading_intents.stream.hub import STUCK_SECONDS
from trading_intents.stream.log import append, renew_epoch
from trading_intents.stream.model import SILENT, Event
from trading_intents.stream.subscriber import MAX_BYTES_BEHIND, MAX_EVENTS_BEHIND

PAGE = 500


@pytest.fixture
def organization(organizations: list[OrganizationId]) -> OrganizationId:
    return organizations[0]


@pytest.fixture
async def api_platform(database: Database) -> AsyncIterator[ApiOnlyPlatform]:
    async with ApiOnlyPlatform(database).running() as api_platform:
        yield api_platform


def numbered_from(
    organization: OrganizationId, first: int, last: int, size: int = 0
) -> list[Event]:
    return [numbered(organization, number, size) for number in range(first, last + 1)]


async def test_everyone_gets_the_same_bytes(
    api_platform: ApiOnlyPlatform, organizations: list[OrganizationId]
) -> None:
    one, other = organizations[:2]
    readers = [await Reader(api_platform, one).subscribe() for _ in range(3)]
    stranger = await Reader(api_platform, other).subscribe()
    await api_platform.append([*numbered_from(one, 1, 20), numbered(other, 99)])
    for reader in readers:
        assert (await reader.has(20)).numbers == list(range(1, 21))
    first, *others = [[id(message) for message in reader.messages[1:]] for reader in readers]
    assert all(these == first for these in others)
    assert (await stranger.has(99)).numbers == [99]
    followed = [api_platform.hub.has_followers(str(each)) for each in organizations]
    assert followed == [True, True, *[False] * (len(organizations) - 2)], "whose commits wake it"


async def test_facts_that_show_nothing_leave_no_hole_and_are_sent_to_nobody(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    first, last = numbered_from(organization, 1, 2)
    silent = replace(first, payload=SILENT, facts="[]")
    await api_platform.append([silent, first, silent, silent, last, silent])
    assert (await reader.has(2)).numbers == [1, 2]
    again = await Reader(api_platform, organization).subscribe(reader.cursors[1])
    assert (await again.has(2)).numbers == [2]
    await api_platform.append([silent, numbered(organization, 3)])
    for one in (reader, again):
        assert (await one.has(3)).numbers[-2:] == [2, 3]
        assert not any(message.data.startswith(SILENT) for message in one.messages)


async def test_without_a_wake_up_the_poll_finds_it(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    await api_platform.append([numbered(organization, 1)], wake=False)
    assert (await reader.has(1)).numbers == [1]


@pytest.mark.parametrize("total", [1_500, pytest.param(3_000, marks=pytest.mark.chaos)])
async def test_whoever_joins_or_resumes_in_the_midst_misses_nothing(
    api_platform: ApiOnlyPlatform, organization: OrganizationId, total: int
) -> None:
    chance = random.Random(7)
    whole = await Reader(api_platform, organization).subscribe()
    readers: list[tuple[int, Reader]] = []

    async def write() -> None:
        number = 1
        while number <= total:
            last = min(number + chance.randrange(40), total)
            await api_platform.append(numbered_from(organization, number, last))
            number = last + 1

    async def join() -> None:
        while not writing.done():
            if whole.numbers:
                after = chance.choice(whole.numbers)
                readers.append(
                    (
                        after,
                        await Reader(api_platform, organization).subscribe(whole.cursors[after]),
                    )
                )
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    await asyncio.gather(writing, join())
    assert (await whole.has(total)).numbers == list(range(1, total + 1))
    assert len(readers) > 5
    for after, reader in readers:
        if after < total:
            await reader.has(total)
        assert reader.numbers == list(range(after + 1, total + 1))


async def test_a_reader_that_stops_is_ended_and_can_resume(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    stopped = Reader(api_platform, organization, reading=False)
    reader = Reader(api_platform, organization)
    another = Reader(api_platform, organization)
    for one in (stopped, reader, another):
        await one.subscribe()
    total = MAX_EVENTS_BEHIND + 2 * PAGE
    for first in range(1, total, PAGE):
        await api_platform.append(numbered_from(organization, first, first + PAGE - 1))
    for one in (reader, another):
        assert (await one.has(total)).numbers == list(range(1, total + 1))
    assert isinstance(await stopped.ended(), LimitReached)
    assert stopped.line.take() is None
    stopped.close()
    resumed = await Reader(api_platform, organization).subscribe(reader.cursors[17])
    assert (await resumed.has(total)).numbers == list(range(18, total + 1))


async def test_a_reader_that_is_too_many_bytes_behind_is_ended(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    stopped = Reader(api_platform, organization, reading=False)
    reader = Reader(api_platform, organization)
    another = await Reader(api_platform, organization).subscribe()
    for one in (stopped, reader):
        await one.subscribe()
    size = 100_000
    total = MAX_BYTES_BEHIND // size + 2
    for number in range(1, total + 1):
        await api_platform.append([numbered(organization, number, size)])
    assert isinstance(await stopped.ended(), LimitReached)
    await another.has(total)
    assert (await reader.has(total)).numbers == list(range(1, total + 1))


async def test_when_all_are_slow_the_log_waits_for_them(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    reader = await Reader(api_platform, organization, reading=False).subscribe()
    total = MAX_EVENTS_BEHIND + 4 * PAGE
    for first in range(1, total, PAGE):
        await api_platform.append(numbered_from(organization, first, first + PAGE - 1), wake=False)
    api_platform.hub.wake()
    async with asyncio.timeout(60):
        while len(reader.messages) < 1 + total:
            for _ in range(20):  # rounds of the loop: much slower than the hub reads
                await asyncio.sleep(0)
            reader.take_one()
            assert reader.line.error is None
            assert reader.line.events < MAX_EVENTS_BEHIND
    assert reader.numbers == list(range(1, total + 1))


async def test_the_past_is_handed_over_at_the_readers_pace(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    total = MAX_EVENTS_BEHIND + 4 * PAGE
    first = await Reader(api_platform, organization).subscribe()
    await api_platform.append(numbered_from(organization, 1, 1))
    await first.has(1)
    for start in range(2, total, 2_000):
        await api_platform.append(
            numbered_from(organization, start, min(start + 1_999, total)), wake=False
        )
    slow = await Reader(api_platform, organization, reading=False).subscribe(first.cursors[1])
    most = 0
    async with asyncio.timeout(60):
        while len(slow.messages) < total:
            await asyncio.sleep(0)
            most = max(most, slow.line.events)
            slow.take_one()
    assert slow.numbers == list(range(2, total + 1))
    assert most <= 1_000 + PAGE


async def append_each(api_platform: ApiOnlyPlatform, events: Sequence[Event]) -> None:
    """Each in a report of its own."""
    for event in events:
        await api_platform.append([event])


async def test_a_cursor_leads_on_for_seven_days(
    api_platform: ApiOnlyPlatform, organization: OrganizationId, owner: asyncpg.Connection
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    await append_each(api_platform, numbered_from(organization, 1, 20))
    cursors = (await reader.has(20)).cursors
    age = "UPDATE reports SET at = clock_timestamp() - make_interval(days => 7, mins => $1)"
    await owner.execute(f"{age} WHERE seq <= 10", 1)
    await owner.execute(f"{age} WHERE seq > 10", -1)
    with pytest.raises(CursorExpired):
        await Reader(api_platform, organization).subscribe(cursors[9])
    edge = await Reader(api_platform, organization).subscribe(cursors[10])
    assert (await edge.has(20)).numbers == list(range(11, 21))
    await owner.execute(age, 1)
    last = await Reader(api_platform, organization).subscribe(cursors[20])
    await api_platform.append([numbered(organization, 21)])
    assert (await last.has(21)).numbers == [21]


async def test_a_reader_goes_on_in_the_midst_of_a_report(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    await api_platform.append(numbered_from(organization, 1, 1_000))
    cursors = (await reader.has(1_000)).cursors
    for seq in (1, 99, 100, 101, 499, 500, 501, 999):
        resumed = await Reader(api_platform, organization).subscribe(cursors[seq])
        assert (await resumed.has(1_000)).numbers == list(range(seq + 1, 1_001))


async def test_what_is_no_longer_kept_cannot_be_resumed(
    api_platform: ApiOnlyPlatform, organization: OrganizationId, owner: asyncpg.Connection
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    await append_each(api_platform, numbered_from(organization, 1, 20))
    cursors = (await reader.has(20)).cursors
    await owner.execute("DELETE FROM reports WHERE seq <= 10")
    for seq in (1, 9):
        with pytest.raises(CursorExpired):
            await Reader(api_platform, organization).subscribe(cursors[seq])
    edge = await Reader(api_platform, organization).subscribe(cursors[10])
    last = await Reader(api_platform, organization).subscribe(cursors[20])
    await api_platform.append([numbered(organization, 21)])
    assert (await edge.has(21)).numbers == list(range(11, 22))
    assert (await last.has(21)).numbers == [21]


async def test_a_gap_in_the_log_ends_its_followers(
    database: Database, organization: OrganizationId, owner: asyncpg.Connection
) -> None:
    api_platform = ApiOnlyPlatform(database)
    reader = await Reader(api_platform, organization).subscribe()
    await append_each(api_platform, numbered_from(organization, 1, 20))
    await owner.execute("DELETE FROM reports WHERE seq <= 10")
    async with api_platform.running():
        assert isinstance(await reader.ended(), CursorExpired)


@pytest.mark.parametrize("lost", [2, 12, 20])
async def test_a_hole_inside_a_page_is_not_handed_on(
    database: Database, organization: OrganizationId, owner: asyncpg.Connection, lost: int
) -> None:
    api_platform = ApiOnlyPlatform(database)
    reader = await Reader(api_platform, organization).subscribe()
    await api_platform.append([numbered(organization, 1)])
    async with api_platform.running():
        cursor = (await reader.has(1)).cursors[1]
    behind = await Reader(api_platform, organization).subscribe()
    await append_each(api_platform, numbered_from(organization, 2, 20))
    await owner.execute("DELETE FROM reports WHERE seq = $1", lost)
    async with api_platform.running():
        for each in (reader, behind):
            assert isinstance(await each.ended(), CursorExpired)
            assert lost + 1 not in each.numbers
        metric = api_platform.metrics.registry.get_sample_value("ti_stream_holes_total")
        assert metric == 1
        resumed = Reader(api_platform, organization)
        with contextlib.suppress(CursorExpired):
            await resumed.subscribe(cursor)
            assert isinstance(await resumed.ended(), CursorExpired)
        assert lost + 1 not in resumed.numbers


async def test_a_restored_database_makes_old_cursors_useless(
    database: Database,
    api_platform: ApiOnlyPlatform,
    organization: OrganizationId,
    owner: asyncpg.Connection,
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    await api_platform.append(numbered_from(organization, 1, 3))
    cursors = (await reader.has(3)).cursors
    async with database.worker.transaction() as tx:
        await renew_epoch(tx, "ada", "restored")
    api_platform.hub.wake()
    assert isinstance(await reader.ended(), CursorExpired)
    reader.close()
    with pytest.raises(CursorExpired):
        await Reader(api_platform, organization).subscribe(cursors[3])
    again = await Reader(api_platform, organization).subscribe()
    await api_platform.append([numbered(organization, 4)])
    assert (await again.has(4)).numbers == [4]
    (row,) = await owner.fetch(
        "SELECT * FROM stream_epoch_renewals JOIN stream_epoch USING (epoch)"
    )
    assert (row["renewed_by"], row["reason"]) == ("ada", "restored")


async def test_a_log_that_lost_its_end_makes_its_followers_begin_anew(
    api_platform: ApiOnlyPlatform, organization: OrganizationId, owner: asyncpg.Connection
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    await api_platform.append(numbered_from(organization, 1, 3))
    await reader.has(3)
    await owner.execute("UPDATE stream_heads SET seq = 1")
    api_platform.hub.wake()
    assert isinstance(await reader.ended(), CursorExpired)


class FlakyPool:
    """A database that is away for a while."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.away = False
        self.refused = asyncio.Event()

    @contextlib.asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[Tx]:
        self._check()
        async with self._pool.transaction(*args, **kwargs) as tx:
            yield tx

    async def fetch(self, *args: Any) -> list[Row]:
        self._check()
        return await self._pool.fetch(*args)

    def _check(self) -> None:
        if self.away:
            self.refused.set()
            raise Unavailable("the database is away")


async def test_streams_outlast_a_database_that_is_away(
    database: Database, organization: OrganizationId
) -> None:
    pool: Any = FlakyPool(database.worker)
    async with ApiOnlyPlatform(database, pool=pool).running() as api_platform:
        reader = await Reader(api_platform, organization).subscribe()
        pool.away = True
        await api_platform.append([numbered(organization, 1)])
        await pool.refused.wait()
        pool.away = False
        assert (await reader.has(1)).numbers == [1]


async def test_a_connection_that_takes_nothing_for_long_is_given_up(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    stuck = await Reader(api_platform, organization, reading=False).subscribe()
    stuck.line.moved_at -= STUCK_SECONDS
    assert isinstance(await stuck.ended(), LimitReached)


async def test_a_caller_who_cannot_be_checked_stays_and_one_who_may_not_goes(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    api_platform.gate.error = Unavailable("the database is away")
    await api_platform.append([numbered(organization, 1)])
    await reader.has(1)
    api_platform.gate.error = Unauthorized("gone")
    assert isinstance(await reader.ended(), Unauthorized)


async def test_a_draining_process_ends_its_streams_and_takes_no_more(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    reader = await Reader(api_platform, organization).subscribe()
    api_platform.hub.drain()
    assert isinstance(await reader.ended(), Unavailable)
    with pytest.raises(Unavailable):
        Reader(api_platform, organization)


async def test_nothing_is_kept_of_whoever_left(
    api_platform: ApiOnlyPlatform, organization: OrganizationId
) -> None:
    readers = [await Reader(api_platform, organization).subscribe() for _ in range(5)]
    await api_platform.append([numbered(organization, 1)])
    for reader in readers:
        await reader.has(1)
        reader.close()
    hub = api_platform.hub
    kept = [len(hub._sessions), len(hub._callers), len(hub._feeds), len(hub._follows)]
    assert kept == [0, 0, 0, 0]


async def test_a_damaged_row_ends_the_streams_of_its_organization_alone(
    api_platform: ApiOnlyPlatform,
    organizations: list[OrganizationId],
    owner: asyncpg.Connection,
) -> None:
    one, another, sound, *_ = organizations
    readers = [await Reader(api_platform, each).subscribe() for each in (one, another, sound)]
    async with owner.transaction():
        await append(owner, [numbered(one, 1), numbered(another, 1), numbered(sound, 1)])
        await owner.execute(
            """
            INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type,
                created_at, record, hash, stream_seq)
            VALUES ($1, 1, $1, $1, 'CREATE', now(), '{', repeat('0', 64), 3)
            """,
            one,
        )
        await owner.execute("UPDATE stream_heads SET seq = 3 WHERE organization_id = $1", one)
        await owner.execute("UPDATE reports SET events = 'x' WHERE organization_id = $1", another)
    for damaged in readers[:2]:
        assert isinstance(await damaged.ended(), CursorExpired)
    await api_platform.append([numbered(sound, 2)])
    assert (await readers[2].has(2)).numbers == [1, 2]
