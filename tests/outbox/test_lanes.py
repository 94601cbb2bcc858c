"""Nothing of a lane is left behind its position, whatever waits, comes late or is made urgent, and
what is over costs no claim."""

import json
import random
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.outbox.rows import Table, claim_lanes, put_command
from tests.property_sizes import examples
from trading_intents.outbox.intents_queue import claim_by_lane
from trading_intents.outbox.lanes import LATE_SECONDS, LOOK_SECONDS, Lane, LaneRequest, SeenRow
from trading_intents.storage.database import Pool

CREATE = "CREATE"
CANCEL = "CANCEL"
END = "DELETE FROM commands WHERE id = $1"
RETRY = """
    UPDATE commands SET sent_at = NULL, due_at = clock_timestamp() + interval '1 h' WHERE id = $1
"""


@dataclass
class Reader:
    """Claims the rows of one lane behind its position, as a worker does."""

    pool: Pool
    table: Table
    lane_id: uuid.UUID = field(default_factory=uuid.uuid4)
    lane: Lane = field(default_factory=Lane)
    now: float = 0.0
    held: dict[int, str] = field(default_factory=dict)

    async def put(self, order: uuid.UUID | None = None, action_type: str = CREATE) -> int:
        return await put_command(self.table.connection, self.lane_id, order, action_type)

    async def claim(self, slots: int = 4, limit: int = 100) -> list[int]:
        request = self.lane.begin(LaneRequest(lane=str(self.lane_id), slots=slots), self.now)
        seen = await claim_lanes(self.pool, [request], limit, held=self.held)
        self.lane.note(request, seen, self.now)
        rows = await self.table.connection.fetch(
            "SELECT id, order_id FROM commands WHERE sent_at IS NOT NULL AND id <> ALL ($1)",
            [*self.held],
        )
        self.held |= {row["id"]: str(row["order_id"]) for row in rows}
        return sorted(row["id"] for row in rows)

    async def make_due(self) -> None:
        await self.table.connection.execute("UPDATE commands SET due_at = clock_timestamp()")

    async def end(self, row_id: int, statement: str = END) -> None:
        await self.table.connection.execute(statement, row_id)
        order = self.held.pop(row_id)
        if statement != END:
            self.lane.put_back(row_id, order, self.now)
        self.lane.release(order, self.now)


@pytest.fixture
def reader(pool: Pool, table: Table) -> Reader:
    return Reader(pool, table)


async def test_rows_are_seen_once_in_their_order(reader: Reader) -> None:
    ids = [await reader.put() for _ in range(10)]
    assert await reader.claim() == ids[:4]
    assert (reader.lane.urgent, reader.lane.other) == (0, ids[3])
    assert reader.lane.is_due(reader.now), "there is more"
    assert await reader.claim() == ids[4:8]
    assert await reader.claim() == ids[8:]
    assert await reader.claim() == []
    assert not reader.lane.is_due(reader.now)
    assert reader.lane.waiting == {}


async def test_rows_over_the_share_of_a_lane_are_seen_again(reader: Reader) -> None:
    ids = [await reader.put() for _ in range(4)]
    assert await reader.claim(limit=1) == ids[:1]
    assert reader.lane.waiting == {}
    assert await reader.claim(limit=2) == ids[1:3]
    assert await reader.claim() == ids[3:]


async def test_a_later_row_of_an_order_waits_and_is_claimed_next(reader: Reader) -> None:
    order = uuid.uuid4()
    first = await reader.put(order)
    second = await reader.put(order, "REPLACE")
    other = await reader.put()
    assert await reader.claim() == [first, other]
    assert not reader.lane.is_due(reader.now)
    await reader.end(first)
    assert reader.lane.is_due(reader.now)
    assert await reader.claim() == [second]


async def test_a_row_that_is_tried_again_is_known(reader: Reader) -> None:
    row = await reader.put()
    for _ in range(3):
        await reader.put()
    assert row in await reader.claim()
    await reader.end(row, RETRY)
    assert await reader.claim() == []
    assert not reader.lane.is_due(reader.now)
    await reader.make_due()
    reader.now += LOOK_SECONDS
    assert await reader.claim() == [row]


async def test_a_cancel_takes_a_row_with_it_that_nobody_has_seen(reader: Reader) -> None:
    """The lane's position of urgent rows is behind it."""
    far = uuid.uuid4()
    done = await reader.put(action_type=CANCEL)
    queued = [await reader.put() for _ in range(20)]
    create = await reader.put(far)
    assert done in await reader.claim()
    later = await reader.put(action_type=CANCEL)
    assert later in await reader.claim(slots=1)
    cancel = await reader.put(far, CANCEL)
    assert create in await reader.claim(slots=1)
    await reader.end(create)
    assert cancel in await reader.claim(slots=1)
    assert queued[-1] not in reader.held


async def test_a_cancel_takes_a_row_with_it_that_waits(reader: Reader) -> None:
    order = uuid.uuid4()
    create = await reader.put(order)
    assert await reader.claim() == [create]
    await reader.end(create, RETRY)
    assert await reader.claim() == []
    cancel = await reader.put(order, CANCEL)
    assert await reader.claim() == [create]
    await reader.end(create)
    assert await reader.claim() == [cancel]


async def test_a_row_that_commits_late_is_found_by_the_look_of_a_second(reader: Reader) -> None:
    """Of an operator's retry, or a look-up's, which hold no lock of the account."""
    async with reader.pool.transaction([]) as tx:
        late = await tx.fetchval(
            """
            INSERT INTO commands (organization_id, account_id, order_id, seq, action_type)
            VALUES ($1, $2, $1, 1, 'CREATE') RETURNING id
            """,
            uuid.uuid4(),
            reader.lane_id,
        )
        reader.now = LATE_SECONDS + LOOK_SECONDS
        await reader.claim()
        later = await reader.put()
        reader.lane.is_woken = True
        assert await reader.claim() == [later]
    assert later > late
    reader.lane.is_woken = True
    assert await reader.claim() == []
    reader.now += LATE_SECONDS - LOOK_SECONDS
    assert reader.lane.is_due(reader.now)
    assert await reader.claim() == [late]


async def test_a_new_holder_reads_the_whole_lane(reader: Reader) -> None:
    ids = [await reader.put() for _ in range(6)]
    assert await reader.claim() == ids[:4]
    assert await reader.claim(slots=2) == ids[4:]
    for row in ids[1:5]:
        await reader.end(row)
    taken = Reader(reader.pool, reader.table, reader.lane_id)
    assert sorted([*await taken.claim(), *await taken.claim()]) == [ids[0], ids[5]]


async def test_whatever_happens_every_row_is_claimed_in_the_order_of_its_order(
    reader: Reader,
) -> None:
    chance = random.Random(54)
    orders = [uuid.uuid4() for _ in range(5)]
    queued = {}
    ended: dict[str, list[int]] = {}
    for _ in range(120):
        reader.now += chance.choice((0.0, 0.1, LOOK_SECONDS))
        if chance.random() < 0.4:
            order = chance.choice(orders)
            kind = chance.choice((CREATE, "REPLACE", CANCEL))
            queued[await reader.put(order, kind)] = str(order)
        reader.lane.is_woken = True
        await reader.claim(slots=chance.randint(1, 3), limit=chance.randint(1, 3))
        for row in [*reader.held]:
            if chance.random() < 0.5:
                statement = chance.choice((END, END, RETRY))
                if statement == END:
                    ended.setdefault(reader.held[row], []).append(row)
                await reader.end(row, statement)
        await reader.make_due()
    for _ in range(200):
        reader.now += LOOK_SECONDS
        await reader.make_due()
        await reader.claim()
        for row in [*reader.held]:
            ended.setdefault(reader.held[row], []).append(row)
            await reader.end(row)
    assert sum(map(len, ended.values())) == len(queued)
    assert all(rows == sorted(rows) for rows in ended.values())


@pytest.mark.parametrize("orders", [3_000, pytest.param(100_000, marks=pytest.mark.chaos)])
async def test_a_claim_costs_no_more_for_what_is_over_while_a_snapshot_is_held(
    reader: Reader, orders: int
) -> None:
    table = reader.table
    await table.connection.execute("ALTER TABLE commands SET (autovacuum_enabled = false)")
    async with reader.pool.transaction(isolation="repeatable read") as holder:
        await holder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await holder.fetchval("SELECT count(*) FROM commands")
        await table.connection.execute(
            f"""
            INSERT INTO commands (organization_id, account_id, order_id, seq, action_type, urgent)
            SELECT $1, $1, gen_random_uuid(), n, 'CREATE', n % 3 = 0
            FROM generate_series(1, {orders}) AS n
            """,
            reader.lane_id,
        )
        last = await table.connection.fetchrow(
            "SELECT max(id) FILTER (WHERE urgent) AS urgent, max(id) FILTER (WHERE NOT urgent) AS"
            " other FROM commands"
        )
        await table.connection.execute("DELETE FROM commands")
        new = [await reader.put() for _ in range(3)]
        whole = await blocks(reader)
        assert whole > orders // 50, "what is over is in the way"
        reader.lane = Lane(**dict(last))
        reader.now = LATE_SECONDS + LOOK_SECONDS
        for now_seconds in (0.0, reader.now):
            reader.lane.begin(LaneRequest(lane="", slots=1), now_seconds)
        assert await blocks(reader) < 100
        assert await reader.claim() == new


async def blocks(reader: Reader) -> int:
    """Blocks that a claim touches, which is rolled back."""
    request = LaneRequest(
        lane=str(reader.lane_id),
        slots=4,
        urgent_after=reader.lane.urgent,
        other_after=reader.lane.other,
    )
    claiming = claim_by_lane([request], 4)
    connection = reader.table.connection
    values = ", ".join(f"'{each!s}'" for each in claiming.arguments)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE claim AS {claiming.sql}")
    (row,) = await connection.fetch(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim ({values})"
    )
    await transaction.rollback()
    await connection.execute("DEALLOCATE claim")
    plan = json.loads(row[0])[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


ROWS = st.lists(
    st.builds(
        SeenRow,
        lane=st.just("a"),
        id=st.integers(1, 20),
        is_urgent=st.booleans(),
        order_id=st.sampled_from("abc"),
        is_claimed=st.booleans(),
        is_left=st.booleans(),
        wait_seconds=st.floats(0, 5),
    ),
    unique_by=lambda row: row.id,
)


@settings(max_examples=examples(300))
@given(ROWS, st.integers(0, 20), st.integers(0, 20))
def test_a_row_that_is_not_claimed_is_known_or_before_nothing(
    seen: list[SeenRow], urgent: int, other: int
) -> None:
    """Behind the position, or waiting."""
    lane = Lane(urgent, other)
    lane.note(LaneRequest(lane="a", slots=5), seen, 0.0)
    for row in seen:
        last = lane.urgent if row.is_urgent else lane.other
        if not row.is_claimed:
            assert (row.id in lane.waiting) == (row.id <= last)
