"""Priming: the retained state of one moment, a page at a time, and nobody held up by a reader that
stops."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.kept_connections import open_pools
from tests.stream.follow import ACTIONS, ApiOnlyPlatform, Reader, numbered
from trading_intents.errors import LimitReached
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, Tx
from trading_intents.stream import service
from trading_intents.stream.model import Event, EventType
from trading_intents.stream.subscriber import FREE_EVENTS, MAX_EVENTS_BEHIND
from trading_intents.telemetry import Metrics

PAGE = 500
POOL_SIZE = 10  # as by default
LIMIT_SECONDS = 30


def wait_for_slow_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they read just fast enough, for ever."""
    for limit in ("PAGE_SECONDS", "PRIMING_START_SECONDS"):
        monkeypatch.setattr(service, limit, 10.0 * LIMIT_SECONDS)


@pytest.fixture
def organization(organizations: list[OrganizationId]) -> OrganizationId:
    return organizations[0]


@pytest.mark.parametrize("total", [150, pytest.param(400, marks=pytest.mark.chaos)])
async def test_priming_and_live_fit_without_a_gap(
    database: Database, organization: OrganizationId, total: int
) -> None:
    """The retained state is the number of events so far; the next one must be the one after it."""

    async def retained(
        tx: Tx, organization_id: OrganizationId, *scope: object
    ) -> AsyncIterator[Sequence[Event]]:
        yield [
            numbered(
                organization_id, 1 + await tx.fetchval("SELECT coalesce(max(seq), 0) FROM reports")
            )
        ]

    readers: list[Reader] = []
    async with ApiOnlyPlatform(database, retained).running() as api_platform:

        async def write() -> None:
            for number in range(1, total + 1):
                await api_platform.append([numbered(organization, number)])

        writing = asyncio.create_task(write())
        while not writing.done():
            kinds = ACTIONS | {EventType.BROKER_POSITION}
            readers.append(await Reader(api_platform, organization).subscribe(kinds=kinds))
        await writing
        assert len(readers) > 5
        for reader in readers:
            await reader.until(lambda reader: reader.numbers)
            state = reader.numbers[0]
            await reader.until(lambda reader: len(reader.numbers) >= 2 + total - state)  # noqa: B023 - awaited at once
            assert reader.numbers[1:] == list(range(state, total + 1))


POSITIONS = ACTIONS | {EventType.BROKER_POSITION}


async def test_the_pages_of_a_priming_are_of_one_moment(
    database: Database, organization: OrganizationId
) -> None:
    async def retained(
        tx: Tx, organization_id: OrganizationId, *scope: object
    ) -> AsyncIterator[Sequence[Event]]:
        for _ in range(3):
            yield [
                numbered(
                    organization_id,
                    1_000 + await tx.fetchval("SELECT coalesce(max(seq), 0) FROM reports"),
                )
            ]
            await api_platform.append([numbered(organization, 1 + await owner_count())])

    async def owner_count() -> int:
        async with database.worker.transaction(read_only=True) as tx:
            return int(await tx.fetchval("SELECT coalesce(max(seq), 0) FROM reports"))

    async with ApiOnlyPlatform(database, retained).running() as api_platform:
        await api_platform.append([numbered(organization, 1)])
        reader = await Reader(api_platform, organization).subscribe(kinds=POSITIONS)
        assert (await reader.has(4)).numbers == [1_001] * 3 + [2, 3, 4]


@pytest.mark.parametrize("takes", [True, False])
async def test_a_large_state_is_primed_a_page_at_a_time(
    database: Database, organization: OrganizationId, takes: bool
) -> None:
    pages = MAX_EVENTS_BEHIND // PAGE + 1
    read = 0
    most = 0

    async def retained(
        tx: Tx, organization_id: OrganizationId, *scope: object
    ) -> AsyncIterator[Sequence[Event]]:
        nonlocal read, most
        for page in range(pages):
            assert await tx.fetchval("SELECT 1") == 1
            read += 1
            yield [numbered(organization_id, 1 + page * PAGE + index) for index in range(PAGE)]
            most = max(most, reader.line.events)

    async with ApiOnlyPlatform(database, retained).running() as api_platform:
        reader = Reader(api_platform, organization, reading=takes)
        neighbour = await Reader(api_platform, organization).subscribe()
        await reader.subscribe(kinds=POSITIONS)
        if takes:
            await reader.until(lambda reader: len(reader.numbers) == pages * PAGE)
            assert reader.numbers == list(range(1, pages * PAGE + 1))
        else:
            assert isinstance(await reader.ended(), LimitReached)
            assert read <= 4
        assert most <= 1_000 + PAGE
        await api_platform.append([numbered(organization, 1)])
        await neighbour.has(1)
        again = await Reader(api_platform, organization).subscribe(kinds=POSITIONS)
        await again.until(lambda reader: len(reader.numbers) == pages * PAGE)


async def test_readers_that_stop_while_they_are_primed_hold_up_no_other_organization(
    database_url: Secret, organizations: list[OrganizationId], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_slow_readers(monkeypatch)
    one, other = organizations[:2]

    async def retained(
        tx: Tx, organization_id: OrganizationId, *scope: object
    ) -> AsyncIterator[Sequence[Event]]:
        for _ in range(10 if organization_id == one else 1):
            yield [numbered(organization_id, 1)] * PAGE

    async with (
        open_pools(database_url, POOL_SIZE, Metrics()) as database,
        ApiOnlyPlatform(database, retained).running() as api_platform,
    ):
        stopped = [Reader(api_platform, one, reading=False) for _ in range(10)]
        subscribing = [asyncio.create_task(reader.subscribe(kinds=POSITIONS)) for reader in stopped]
        await stopped[0].until(lambda reader: reader.line.events >= 1_000)
        # Less than the reader that stopped is waited for.
        async with asyncio.timeout(LIMIT_SECONDS):
            free = await Reader(api_platform, other).subscribe(kinds=POSITIONS)
            await free.until(lambda reader: len(reader.numbers) == PAGE)
        for task in subscribing:
            task.cancel()
        await asyncio.gather(*subscribing, return_exceptions=True)
        for reader in stopped:
            reader.close()


PAGES = 6
PAGE_EVENTS = FREE_EVENTS // 2
SLOW_STREAMS = 8


async def six_pages(
    tx: Tx, organization_id: OrganizationId, *scope: object
) -> AsyncIterator[Sequence[Event]]:
    for page in range(PAGES):
        yield [
            numbered(organization_id, page * PAGE_EVENTS + number)
            for number in range(1, PAGE_EVENTS + 1)
        ]


async def test_slow_streams_of_one_caller_keep_no_other_caller_from_being_primed(
    database_url: Secret, organizations: list[OrganizationId], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_slow_readers(monkeypatch)
    async with (
        open_pools(database_url, POOL_SIZE, Metrics()) as database,
        ApiOnlyPlatform(database, six_pages).running() as api_platform,
        asyncio.timeout(LIMIT_SECONDS),
    ):
        slow = [
            Reader(api_platform, organizations[0], reading=False, caller="slow")
            for _ in range(SLOW_STREAMS)
        ]
        asking = [asyncio.create_task(reader.subscribe(kinds=POSITIONS)) for reader in slow]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        reader = await Reader(api_platform, organizations[0]).subscribe(kinds=POSITIONS)
        await reader.until(lambda reader: len(reader.numbers) == PAGES * PAGE_EVENTS)
        assert sum(task.done() for task in asking) == 1, "one after the other"
        for task in asking:
            task.cancel()
        for reader in slow:
            reader.close()
