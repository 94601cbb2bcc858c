"""The event log: dense seqs in commit order, no tenant in another's, and cursors that fit only
their log."""

import asyncio
import base64
import contextlib
import random
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.proxy import Verdict, proxied
from tests.stream.conftest import event, label_of, read_page
from trading_intents.errors import InvalidCursor
from trading_intents.ids import OrganizationId
from trading_intents.intents.writing.record import render_create
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, Row, Tx, open_database, open_pool
from trading_intents.stream.log import (
    MAX_COUNT,
    Cursor,
    LoggedEvent,
    append,
    is_dense,
    make_cursor,
    open_cursor,
    read_after,
    read_epoch,
    read_head,
)
from trading_intents.stream.model import Event, EventType, cursor_field, make_payload
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Environment

WRITERS = 8
TRANSACTIONS = 40
PAGE = 50
EPOCH = UUID(int=7)


async def test_events_are_numbered_in_their_order_for_each_organization(
    database: Database, organizations: list[OrganizationId]
) -> None:
    one, other, without_events, _ = organizations
    async with database.service.transaction(organizations) as tx:
        await append(tx, [event(one, "a"), event(other, "b"), event(one, "c")])
        await append(tx, [event(one, "d")])
    async with database.worker.transaction() as tx:
        assert await labels(tx, one) == [(1, "a"), (2, "c"), (3, "d")]
        assert await labels(tx, other) == [(1, "b")]
        assert [
            (await read_head(tx, organization))[1] for organization in (one, other, without_events)
        ] == [3, 1, 0]


def payload_of(logged: LoggedEvent) -> bytes:
    """The message without the cursor that reading adds."""
    return logged.message.data[: -len(cursor_field(GOOD))]


async def labels(tx: Tx, organization_id: OrganizationId) -> list[tuple[int, str]]:
    page = await read_page(tx, organization_id, 0, PAGE)
    return [(logged.seq, label_of(logged)) for logged in page]


async def test_a_reader_can_see_that_events_are_kept_no_longer(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    one = organizations[0]
    async with database.worker.transaction() as tx:
        await append(tx, [event(one) for _ in range(10)])
    await owner.execute("DELETE FROM reports WHERE seq <= 5")
    async with database.worker.transaction() as tx:
        assert [e.seq for e in await read_page(tx, one, 3, 4)] == [6, 7]
        assert [e.seq for e in await read_page(tx, one, 5, 4)] == [6, 7, 8, 9]
        assert (await read_page(tx, one, 0, 4), (await read_head(tx, one))[1]) == ([], 10)


async def test_an_event_is_read_as_it_was_appended(
    database: Database, organizations: list[OrganizationId]
) -> None:
    events = [
        Event(
            organization_id=str(organizations[0]),
            account_id=str(uuid4()),
            environment=environment,
            symbol=f"S{kind}",
            payload=make_payload(kind, account_id="x" * 20**number),
        )
        for environment in Environment
        for number, kind in enumerate(EventType)
    ]
    async with database.worker.transaction() as tx:
        await append(tx, events)
        found = await read_page(tx, organizations[0], 0, PAGE)
    assert [(str(e.account_id), e.environment, e.symbol, payload_of(e)) for e in found] == [
        (e.account_id, e.environment, e.symbol, e.payload) for e in events
    ]
    assert [e.kind for e in found] == [*EventType, *EventType]
    assert [e.seq for e in found] == list(range(1, len(events) + 1))


async def test_what_is_rolled_back_leaves_no_gap(
    database: Database, organizations: list[OrganizationId]
) -> None:
    one = organizations[0]
    with contextlib.suppress(RuntimeError):
        async with database.service.transaction([one]) as tx:
            await append(tx, [event(one)])
            raise RuntimeError
    async with database.service.transaction([one]) as tx:
        await append(tx, [event(one)])
        assert (await read_head(tx, one))[1] == 1


async def test_a_page_ends_at_its_limit_and_goes_on_after_a_seq(
    database: Database, organizations: list[OrganizationId]
) -> None:
    one = organizations[0]
    async with database.worker.transaction() as tx:
        await append(tx, [event(one) for _ in range(10)])
        assert [e.seq for e in await read_page(tx, one, 3, 4)] == [4, 5, 6, 7]
        assert await read_page(tx, one, 10, 4) == []


async def test_followers_see_every_event_of_many_writers_in_order(
    database_url: Secret, organizations: list[OrganizationId], metrics: Metrics
) -> None:
    written = dict.fromkeys(organizations, 0)
    seen: dict[OrganizationId, list[str]] = {organization: [] for organization in organizations}
    done = asyncio.Event()

    async def write(writer: int, database: Database) -> None:
        chance = random.Random(writer)
        for number in range(TRANSACTIONS):
            chosen = chance.choices(organizations, k=chance.randint(1, 6))
            async with database.service.transaction(organizations) as tx:
                await append(
                    tx,
                    [event(organization, f"{writer} {number}") for organization in chosen],
                )
            for organization in chosen:
                written[organization] += 1

    async def follow(organization: OrganizationId, database: Database) -> None:
        last = 0
        while True:
            finished = done.is_set()
            async with database.worker.transaction(read_only=True) as tx:
                events = await read_page(tx, organization, last, PAGE)
            assert [e.seq for e in events] == list(range(last + 1, last + len(events) + 1))
            seen[organization] += [label_of(e) for e in events]
            last += len(events)
            if finished and not events:
                return

    async with open_database(database_url, WRITERS, make_log("warning"), metrics) as database:
        followers = [
            asyncio.ensure_future(follow(organization, database)) for organization in organizations
        ]
        await asyncio.gather(*(write(writer, database) for writer in range(WRITERS)))
        done.set()
        await asyncio.gather(*followers)
    assert {organization: len(found) for organization, found in seen.items()} == written
    for found in seen.values():
        for writer in range(WRITERS):
            numbers = [int(p.split()[1]) for p in found if p.split()[0] == str(writer)]
            assert numbers == sorted(numbers)


async def test_the_hub_reads_what_is_new_in_one_round_trip(
    urls: Urls, database: Database, organizations: list[OrganizationId], metrics: Metrics
) -> None:
    one, other, _, stranger = organizations
    sent: list[bytes] = []

    def look(data: bytes) -> Verdict:
        sent.append(data)
        return Verdict.PASS

    with proxied(urls.login, look) as (_, url):
        async with open_pool(url, "ti_service", 1, metrics) as pool:
            await read_after(pool, render_create, {one: 0}, PAGE)  # which prepares the statement
            async with database.worker.transaction() as tx:
                await append(tx, [event(one), event(other), event(stranger), event(one)])
            sent.clear()
            epoch, pages = await read_after(pool, render_create, {one: 0, other: 0}, PAGE, 16)
            assert len(sent) == 1
            async with pool.session() as connection:
                left = "SELECT current_setting('trading_intents.organizations', true)"
                assert not await connection.fetchval(left), "what it named is named no longer"
                assert await connection.fetch("SELECT FROM reports") == []
                assert await connection.fetch("SELECT FROM stream_heads") == []
    async with database.worker.transaction() as tx:
        assert epoch == await read_epoch(tx)
    assert {each: [e.seq for e in page] for each, page in pages.items()} == {
        one: [1, 2],
        other: [1],
    }


async def test_outside_a_transaction_the_policies_still_hide_other_tenants(
    database: Database, organizations: list[OrganizationId]
) -> None:
    one, stranger, *_ = organizations
    async with database.worker.transaction() as tx:
        await append(tx, [event(one), event(stranger)])
    query = """
        WITH named AS MATERIALIZED (
            SELECT id FROM unnest(
                set_config('trading_intents.organizations', $1::uuid[]::text, true)::uuid[]
            ) AS id
        )
        SELECT organization_id FROM named, LATERAL (
            SELECT organization_id FROM {table} WHERE organization_id IN (id, $2) OFFSET 0
        ) AS found
    """
    for table in ("reports", "stream_heads"):
        rows = await database.stream.fetch(query.format(table=table), [one], stranger)
        assert [row["organization_id"] for row in rows] == [one]


async def test_few_organizations_are_read_at_a_time_the_first_first(
    database: Database, organizations: list[OrganizationId]
) -> None:
    async with database.worker.transaction() as tx:
        await append(tx, [event(each) for each in organizations])
    after = dict.fromkeys(reversed(organizations), 0)
    _, pages = await read_after(database.stream, render_create, after, PAGE, 3)
    assert list(pages) == list(after)[:3]
    after[organizations[3]] = 1
    _, pages = await read_after(database.stream, render_create, after, PAGE, 3)
    assert list(pages) == list(after)[1:]


async def test_an_organization_whose_events_are_gone_has_an_empty_page(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    one = organizations[0]
    async with database.worker.transaction() as tx:
        await append(tx, [event(one)])
    await owner.execute("DELETE FROM reports")
    assert (await read_after(database.stream, render_create, {one: 0}, PAGE))[1] == {one: []}
    assert (await read_after(database.stream, render_create, {one: 1}, PAGE))[1] == {}
    assert (await read_after(database.stream, render_create, {}, PAGE))[1] == {}


async def test_the_service_appends_and_reads_for_its_organizations_only(
    database: Database, organizations: list[OrganizationId]
) -> None:
    one, other, *_ = organizations
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([one]) as tx:
            await append(tx, [event(one), event(other)])
    async with database.worker.transaction() as tx:
        await append(tx, [event(one), event(other)])
    async with database.service.transaction([one]) as tx:
        assert [(await read_head(tx, organization))[1] for organization in (one, other)] == [1, 0]
        assert await tx.fetchval("SELECT count(*) FROM stream_heads") == 1
        assert [event.seq for event in await read_page(tx, one, 0, 10)] == [1]
        query = "SELECT FROM reports WHERE organization_id = $1"
        assert await tx.fetch(query, other) == []
        assert await tx.fetchval("SELECT count(*) FROM reports") == 1
    async with database.service.transaction() as tx:
        assert await tx.fetchval("SELECT count(*) FROM stream_heads") == 0
        assert await tx.fetchval("SELECT count(*) FROM reports") == 0


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("service", "UPDATE reports SET symbol = 'X'"),
        ("service", "DELETE FROM reports"),
        ("service", "DELETE FROM stream_heads"),
        ("service", "TRUNCATE reports"),
        ("worker", "UPDATE reports SET symbol = 'X'"),
        ("worker", "DELETE FROM reports"),
        ("worker", "DELETE FROM stream_heads"),
        ("worker", "DELETE FROM stream_epoch"),
        ("service", "UPDATE stream_epoch SET epoch = gen_random_uuid()"),
    ],
)
async def test_nobody_changes_the_log(database: Database, role: str, statement: str) -> None:
    pool = database.service if role == "service" else database.worker
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with pool.transaction() as tx:
            await tx.execute(statement)


async def test_the_owner_sees_no_tenants_events(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    async with database.worker.transaction() as tx:
        await append(tx, [event(organizations[0])])
    await owner.execute("SET ROLE ti_owner")
    assert await owner.fetchval("SELECT count(*) FROM reports") == 0
    assert await owner.fetchval("SELECT count(*) FROM stream_heads") == 0


async def test_the_epoch_is_one_and_stays(database: Database) -> None:
    async with database.worker.transaction() as tx:
        epoch = await read_epoch(tx)
        assert epoch == await read_epoch(tx)
        assert epoch.version == 4


@pytest.mark.parametrize("seq", [0, 1, 2**63 - 1])
def test_a_cursor_comes_back_as_it_went(seq: int) -> None:
    cursor = make_cursor(EPOCH, seq)
    assert len(cursor) <= 64
    assert open_cursor(cursor) == Cursor(EPOCH, seq)


GOOD = make_cursor(EPOCH, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        GOOD[:-1],
        GOOD + "A",
        GOOD[:-4] + "AA==",
        " " + GOOD[1:],
        GOOD[:-1] + "+",
        GOOD[:-1] + "é",
        GOOD[:-1] + "\ud800",
        "A" * 10_000,
        base64.urlsafe_b64encode(EPOCH.bytes + b"\xff" * 8).decode(),
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        open_cursor(text)


class Explaining:
    """Keeps the plan of a query."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.plan = ""

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        self.plan = "\n".join(
            row["QUERY PLAN"] for row in await self._tx.fetch(f"EXPLAIN {query}", *args)
        )
        return await self._tx.fetch(query, *args)


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_reader_finds_its_start_by_the_index(
    database: Database,
    organizations: list[OrganizationId],
    owner: asyncpg.Connection,
    mode: str,
    analyzed: bool,
) -> None:
    await owner.execute(
        """
        INSERT INTO reports (organization_id, seq, count, day, account_id, at, symbol, environment,
            events)
        SELECT id, n, 1, '2020-01-01', id, '2020-01-01', 'S', 'paper', '\\x1200'
        FROM unnest($1::uuid[]) AS id, generate_series(1, 10000) AS n
        """,
        organizations,
    )
    await owner.execute(
        "INSERT INTO stream_heads SELECT id, 10000 FROM unnest($1::uuid[]) AS id", organizations
    )
    if analyzed:
        await owner.execute("ANALYZE reports")
    async with database.worker.transaction() as tx:
        await tx.execute(f"SET LOCAL plan_cache_mode = {mode}")
        explaining = Explaining(tx)
        await read_page(explaining, organizations[1], 9_000, 500)  # type: ignore[arg-type] # it only fetches
        assert "reports_pkey" in explaining.plan, explaining.plan
        assert "Seq Scan on reports" not in explaining.plan
        found = await read_page(tx, organizations[1], 1_000, 500)
        assert await read_page(tx, organizations[1], 2**63 - 1, 500) == []
    assert [e.seq for e in found] == list(range(1_001, 1_501))


def of(organization_id: OrganizationId, account: int, symbol: str, order: int | None) -> Event:
    return Event(
        organization_id=str(organization_id),
        account_id=str(UUID(int=account)),
        environment=Environment.PAPER,
        symbol=symbol,
        payload=make_payload(EventType.BROKER_ORDER, account_id=f"{account} {symbol} {order}"),
        order_id=None if order is None else str(UUID(int=order)),
    )


async def test_a_report_holds_what_goes_with_one_order(
    database: Database, organizations: list[OrganizationId], owner: asyncpg.Connection
) -> None:
    one, other, *_ = organizations
    events = [
        *(of(one, 1, "A", 1) for _ in range(3)),
        of(one, 1, "A", None),  # the position of its symbol
        *(of(one, 1, "A", 2) for _ in range(2)),
        of(other, 9, "A", None),
        of(one, 1, "B", None),
        of(one, 1, "B", 3),
        *(of(one, 2, "B", 4) for _ in range(250)),
    ]
    async with database.worker.transaction() as tx:
        await append(tx, events)
    rows = await owner.fetch(
        "SELECT organization_id, order_id, seq, count FROM reports ORDER BY organization_id <> $1, seq",
        one,
    )
    orders = [None if row["order_id"] is None else row["order_id"].int for row in rows]
    counts = [row["count"] for row in rows]
    assert list(zip(orders, counts, strict=True)) == [
        (1, 4),
        (2, 2),
        (None, 1),
        (3, 1),
        *((4, count) for count in (100, 100, 50)),
        (None, 1),
    ]
    assert [row["seq"] for row in rows] == [4, 6, 7, 8, 108, 208, 258, 1]
    _, pages = await read_after(database.stream, render_create, {one: 0, other: 0}, 1_000, 2)
    read = [payload_of(each) for each in (*pages[one], *pages[other])]
    assert read == [each.payload for each in (*events[:6], *events[7:], events[6])]


async def test_a_report_is_read_whole_and_a_page_goes_on_within_one(
    database: Database, organizations: list[OrganizationId]
) -> None:
    one = organizations[0]
    async with database.worker.transaction() as tx:
        await append(tx, [of(one, 1, "A", 1) for _ in range(450)])
        for after in (0, 1, 99, 100, 101, 399, 449):
            page = await read_page(tx, one, after, 150)
            assert is_dense(page, after)
            assert min(150, 450 - after) <= len(page) < 150 + MAX_COUNT
