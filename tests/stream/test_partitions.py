"""Upkeep of the log's days: made ahead, dropped when old, and never in the way of an append."""

import asyncio

import asyncpg
import pytest

from tests.conftest import Urls
from tests.stream.conftest import event, read_page
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Database
from trading_intents.stream.log import (
    DAYS_AHEAD,
    KEEP_DAYS,
    append,
    drop_partitions,
    make_partitions,
)

ADD_PARTITION = """
    CREATE FUNCTION add_partition(days integer) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        day date := (clock_timestamp() AT TIME ZONE 'UTC')::date + days;
        name text := 'stream_events_' || to_char(day, 'YYYYMMDD');
    BEGIN
        EXECUTE format('CREATE TABLE %I PARTITION OF stream_events FOR VALUES FROM (%L) TO (%L)',
                       name, day::timestamp AT TIME ZONE 'UTC',
                           (day + 1)::timestamp AT TIME ZONE 'UTC');
        EXECUTE format('ALTER TABLE %I OWNER TO ti_owner', name);
        RETURN name;
    END
    $$
"""


async def keep(database: Database) -> bool:
    done = []
    for work in (make_partitions, drop_partitions):
        async with database.worker.transaction() as tx:
            done.append(await work(tx))
    return all(done)


async def days(owner: asyncpg.Connection) -> set[int]:
    """The days that have a partition, counted from today."""
    rows = await owner.fetch(
        """
        SELECT to_date(right(relname, 8),
            'YYYYMMDD') - (clock_timestamp() AT TIME ZONE 'UTC')::date AS day
        FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = 'stream_events'::regclass AND relname <> 'stream_events_default'
        """
    )
    return {row["day"] for row in rows}


async def put(
    owner: asyncpg.Connection, organization: OrganizationId, seq: int, days: float
) -> None:
    """An event of so many days from now."""
    await owner.execute(
        """
        INSERT INTO stream_events
        VALUES ($1, $2, $1, 'paper', 1, 'S', 'x', clock_timestamp() + $3 * interval '1 day')
        """,
        organization,
        seq,
        days,
    )


async def kept(owner: asyncpg.Connection) -> list[int]:
    return [row["seq"] for row in await owner.fetch("SELECT seq FROM stream_events ORDER BY seq")]


async def test_today_and_the_days_ahead_get_partitions(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    assert await keep(database)
    assert await days(owner) == set(range(DAYS_AHEAD + 1))
    assert await keep(database)
    assert await days(owner) == set(range(DAYS_AHEAD + 1))
    async with database.service.transaction(organizations) as tx:
        await append(tx, [event(organizations[0])])
    for day in range(DAYS_AHEAD + 1):
        await put(owner, organizations[0], 2 + day, day)
    assert await owner.fetchval("SELECT count(*) FROM stream_events_default") == 0


async def test_a_partition_is_locked_and_indexed_like_the_first(
    database: Database, owner: asyncpg.Connection
) -> None:
    await keep(database)
    rows = await owner.fetch(
        """
        SELECT c.relname, c.relrowsecurity
            AND c.relforcerowsecurity AS forced, c.relacl, c.relowner::regrole::text,
               (SELECT count(*) FROM pg_policy WHERE polrelid = c.oid) AS policies,
               (SELECT count(*) FROM pg_constraint
                   WHERE conrelid = c.oid AND contype = 'p') AS keys,
               (SELECT array_agg(atttypid ORDER BY attnum) FROM pg_attribute
                   WHERE attrelid = c.oid AND attnum > 0)
               = (SELECT array_agg(atttypid ORDER BY attnum) FROM pg_attribute
                  WHERE attrelid = inhparent AND attnum > 0)
        FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
        WHERE inhparent = 'stream_events'::regclass AND c.relname <> 'stream_events_default'
        """
    )
    assert {tuple(row.values())[1:] for row in rows} == {(True, None, "ti_owner", 0, 1, True)}


async def test_events_come_and_are_read_while_upkeep_is_late(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    one = organizations[0]
    async with database.service.transaction([one]) as tx:
        await append(tx, [event(one)])
    assert await owner.fetchval("SELECT count(*) FROM stream_events_default") == 1
    assert await keep(database)
    # Today's stay where they are, the next days have their own again.
    assert await days(owner) == set(range(1, DAYS_AHEAD + 1))
    async with database.service.transaction([one]) as tx:
        await append(tx, [event(one)])
    await put(owner, one, 3, 1)
    async with database.worker.transaction() as tx:
        assert [e.seq for e in await read_page(tx, one, 0, 10)] == [1, 2, 3]


async def test_events_are_dropped_after_seven_days_and_not_before(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    await owner.execute(ADD_PARTITION)
    for seq, day in enumerate((-KEEP_DAYS - 2, -KEEP_DAYS - 1, -KEEP_DAYS, -1), 1):
        await owner.execute("SELECT add_partition($1)", day)
        await put(owner, organizations[0], seq, day)
    assert await keep(database)
    assert await days(owner) == {-KEEP_DAYS, *range(-1, DAYS_AHEAD + 1)}
    assert await kept(owner) == [3, 4]


async def test_the_default_partition_is_emptied_after_seven_days_too(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    for seq, day in enumerate((-KEEP_DAYS - 1, -KEEP_DAYS, -1, 0), 1):
        await put(owner, organizations[0], seq, day)
    assert await keep(database)
    assert await kept(owner) == [2, 3, 4]


async def test_upkeep_gives_way_to_those_who_read_and_append(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    await owner.execute(ADD_PARTITION)
    await owner.execute("SELECT add_partition($1)", -KEEP_DAYS - 1)
    async with owner.transaction():
        await owner.execute("LOCK TABLE ONLY stream_events IN ROW EXCLUSIVE MODE")
        assert not await keep(database)
        # What it could not do did not keep it from making the coming days.
        assert await days(owner) == {-KEEP_DAYS - 1, *range(1, DAYS_AHEAD + 1)}
    assert await keep(database)
    assert await days(owner) == set(range(DAYS_AHEAD + 1))


@pytest.mark.parametrize("missing", ["an old day to drop", "days to make"])
async def test_nobody_waits_for_upkeep_that_meets_a_long_reader(
    database: Database,
    organizations: list[OrganizationId],
    owner: asyncpg.Connection,
    urls: Urls,
    missing: str,
) -> None:
    one = organizations[0]
    if missing == "an old day to drop":
        assert await keep(database)
        await owner.execute(ADD_PARTITION)
        await owner.execute("SELECT add_partition($1)", -KEEP_DAYS - 1)
    before = await days(owner)
    dump = await asyncpg.connect(urls.owner.reveal())
    try:
        # As a dump holds it for its whole run.
        await dump.execute("BEGIN; SELECT FROM stream_events LIMIT 1")
        upkeep = asyncio.create_task(keep(database))

        async def add() -> None:
            while not upkeep.done():
                async with database.service.transaction([one]) as tx:
                    await append(tx, [event(one)])

        adding = asyncio.create_task(add())
        while not upkeep.done():
            assert await owner.fetchval(COUNT_BLOCKED) == 0
        await adding
        assert not await upkeep
        assert await days(owner) == before
    finally:
        await dump.close()
    assert await keep(database)
    assert -KEEP_DAYS - 1 not in await days(owner)


async def test_a_busy_default_partition_puts_off_the_coming_days(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with owner.transaction():
        await owner.execute("LOCK TABLE stream_events_default IN ROW EXCLUSIVE MODE")
        assert not await keep(database)
        assert await days(owner) == set()
    assert await keep(database)


async def test_many_processes_may_keep_them_at_once(
    database: Database, owner: asyncpg.Connection
) -> None:
    assert all(await asyncio.gather(*(keep(database) for _ in range(5))))
    assert await days(owner) == set(range(DAYS_AHEAD + 1))


async def test_the_service_may_make_partitions_at_its_start(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with database.service.transaction() as tx:
        assert await make_partitions(tx)
    assert await days(owner) == set(range(DAYS_AHEAD + 1))


@pytest.mark.parametrize("ahead", [-1, 31])
async def test_partitions_are_made_for_a_month_at_most(database: Database, ahead: int) -> None:
    with pytest.raises(asyncpg.RaiseError):
        async with database.worker.transaction() as tx:
            await tx.execute("SELECT stream_make_partitions($1)", ahead)


@pytest.mark.parametrize("keep_days", [KEEP_DAYS - 1, 0])
async def test_nobody_can_have_events_dropped_early(database: Database, keep_days: int) -> None:
    with pytest.raises(asyncpg.RaiseError):
        async with database.worker.transaction() as tx:
            await tx.execute("SELECT stream_drop_partitions($1)", keep_days)


async def test_an_append_that_meets_the_making_of_todays_partition_waits_for_it(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    async def add() -> None:
        async with database.service.transaction(organizations) as tx:
            await append(tx, [event(organizations[0])])

    async def is_waiting() -> bool:
        return bool(await owner.fetchval(COUNT_BLOCKED))

    async with database.worker.transaction() as tx:
        assert await make_partitions(tx)
        adding = asyncio.create_task(add())
        await eventually_async(is_waiting, 5)
    await adding
    assert 0 in await days(owner)
    assert await kept(owner) == [1]
