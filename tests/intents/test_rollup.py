"""The buckets behind the stats: every action in them exactly once, each window exact, nothing kept
beyond its use."""

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

import asyncpg
import pytest

from tests.intents.in_process_writer import PRICES
from tests.kept_connections import open_owner
from tests.waiting import eventually_async
from trading_intents.clock import SystemClock
from trading_intents.execution.upkeep import keep_execution
from trading_intents.intents import store
from trading_intents.secret import Secret
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import (
    ORIGIN,
    WIDTHS_SECONDS,
    WINDOWS_SECONDS,
    Counted,
    Measure,
    Stats,
    Window,
    ack_key,
    begin,
    cover,
)
from trading_intents.storage.database import Database
from trading_intents.storage.pipeline import json_text
from trading_intents.stream.log import append
from trading_intents.stream.model import SILENT, Event
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Environment

SYMBOLS = [f"S{n}" for n in range(14)]
TYPES = ("CREATE", "REPLACE", "CANCEL")
ACTIONS = 3_000
ROUND_SEQS = 1_000
MINUTES_BACK = 40 * 24 * 60


@dataclass
class Book:
    """An account whose log is written by hand, at any time of the past."""

    owner: asyncpg.Connection
    account_id: uuid.UUID = field(default_factory=uuid.uuid4)
    organization_id: uuid.UUID = field(default_factory=uuid.uuid4)
    seq: int = 0

    async def open(self) -> None:
        organization = """
            INSERT INTO organizations (id, provider, external_id, name)
            VALUES ($1, 'local', $2, 'o')
        """
        account = """
            INSERT INTO accounts (id, organization_id, name, broker, environment)
            VALUES ($1, $2, 'a', 'x', 'paper')
        """
        await self.owner.execute(organization, self.organization_id, str(self.organization_id))
        await self.owner.execute(account, self.account_id, self.organization_id)
        head = "INSERT INTO account_heads VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await self.owner.execute(head, self.account_id, self.organization_id)

    async def append(self, actions: list[tuple[str, str, datetime]]) -> None:
        """Each: type, symbol, when."""
        rows = [
            (
                self.account_id,
                self.seq + n,
                uuid.uuid4(),
                self.organization_id,
                kind,
                f'{{"symbol":"{symbol}"}}',
                at,
            )
            for n, (kind, symbol, at) in enumerate(actions, 1)
        ]
        self.seq += len(rows)
        async with self.owner.transaction():
            await self.owner.executemany(
                """
                INSERT INTO actions (account_id, seq, intent_id, action_id, organization_id,
                    action_type, record,
                                     created_at, hash, stream_seq)
                VALUES ($1, $2, $3, $3, $4, $5, $6, $7, repeat('0', 64), $2)
                """,
                rows,
            )
            await self.owner.execute(
                """
                INSERT INTO stream_heads VALUES ($1, $2)
                ON CONFLICT (organization_id) DO UPDATE SET seq = excluded.seq
                """,
                self.organization_id,
                self.seq,
            )

    async def rolled_seq(self) -> int:
        query = (
            "SELECT coalesce((SELECT rolled_seq FROM stats_heads WHERE organization_id = $1), 0)"
        )
        found: int = await self.owner.fetchval(query, self.organization_id)
        return found

    async def in_buckets(self, width_seconds: int) -> int:
        """All actions in the buckets of that width, by type and by symbol."""
        query = """
            SELECT sum(amount)::bigint FROM stats_buckets
            WHERE account_id = $1 AND width_seconds = $2 AND measure = $3
        """
        by_type, by_symbol = [
            await self.owner.fetchval(query, self.account_id, width_seconds, measure) or 0
            for measure in (Measure.ACTION, Measure.SYMBOL)
        ]
        assert by_type == by_symbol
        return int(by_type)


@pytest.fixture
async def owner(owner_url: Secret) -> AsyncIterator[asyncpg.Connection]:
    async with open_owner(owner_url) as connection:
        yield connection


@pytest.fixture
async def book(owner: asyncpg.Connection) -> Book:
    opened = Book(owner)
    await opened.open()
    return opened


async def read(database: Database, book: Book, window: Window) -> Stats:
    organizations = [book.organization_id]
    async with database.service.transaction(
        organizations, read_only=True, isolation="repeatable read"
    ) as tx:
        return await stats_store.read(tx, book.account_id, window)


async def roll(database: Database) -> bool:
    async with database.worker.transaction() as tx:
        return await stats_store.roll_up(tx)


REFUSE = """
    INSERT INTO stats_entries (account_id, organization_id, at, measure, key, amount)
    VALUES ($1, $2, now(), 'refused', '', 1)
"""


def random_actions(seed: int, count: int) -> list[tuple[str, str, datetime]]:
    """In the order of their time, many at the edges of windows and buckets."""
    chance = random.Random(seed)
    now = datetime.now(UTC)
    moments = []
    for _ in range(count):
        back = timedelta(minutes=chance.choice((70, 1_500, MINUTES_BACK)) * chance.random())
        moment = now - back
        if chance.random() < 0.3:
            unit = timedelta(seconds=chance.choice(WIDTHS_SECONDS))
            moment = (
                ORIGIN
                + (moment - ORIGIN) // unit * unit
                + timedelta(microseconds=chance.choice((-1, 0)))
            )
        moments.append(moment)
    return [(chance.choice(TYPES), chance.choice(SYMBOLS), moment) for moment in sorted(moments)]


@pytest.mark.parametrize("rounds", [0, 1, None])
async def test_every_window_is_exact_whatever_is_rolled_up(
    database: Database, book: Book, monkeypatch: pytest.MonkeyPatch, rounds: int | None
) -> None:
    monkeypatch.setattr(stats_store, "TAIL_PAGE_SEQS", 700)
    monkeypatch.setattr(stats_store, "ROUND_SEQS_EACH", ROUND_SEQS)
    actions = random_actions(rounds or 7, ACTIONS)
    await book.append(actions)
    while rounds != 0 and await roll(database):
        if rounds == 1:
            break
    assert await book.rolled_seq() == {0: 0, 1: ROUND_SEQS, None: ACTIONS}[rounds]
    for window in Window:
        found = await read(database, book, window)
        start = datetime.fromisoformat(found.start)
        inside = [(kind, symbol) for kind, symbol, at in actions if at >= start]
        types = Counter(kind for kind, _ in inside)
        symbols = Counter(symbol for _, symbol in inside)
        assert {kind: getattr(found.actions, kind) for kind in TYPES} == {
            kind: types[kind] for kind in TYPES
        }
        assert found.actions.total == len(inside)
        ranked = sorted(symbols.items(), key=lambda item: (-item[1], item[0]))[:10]
        assert [(symbol.symbol, symbol.actions) for symbol in found.symbols] == ranked


async def test_two_workers_count_every_action_once(database: Database, book: Book) -> None:
    other = Book(book.owner)
    await other.open()
    for part in range(4):
        await book.append(random_actions(part, 800))
        await other.append(random_actions(part, 300))
        await asyncio.gather(*(roll(database) for _ in range(4)))
    while await roll(database):
        pass
    for width in WIDTHS_SECONDS:
        assert (await book.in_buckets(width), await other.in_buckets(width)) == (3_200, 1_200)


async def test_a_roll_up_that_dies_before_its_commit_counts_nothing(
    database: Database, book: Book
) -> None:
    await book.append(random_actions(1, 500))
    with contextlib.suppress(asyncio.CancelledError):
        async with database.worker.transaction() as tx:
            await stats_store.roll_up(tx)
            raise asyncio.CancelledError
    assert (await book.rolled_seq(), await book.in_buckets(60)) == (0, 0)
    await roll(database)
    assert (await book.rolled_seq(), await book.in_buckets(60)) == (500, 500)


async def test_what_another_worker_is_counting_is_left_to_it(
    database: Database, book: Book
) -> None:
    await book.append(random_actions(1, 200))
    await roll(database)
    await book.append(random_actions(2, 200))
    async with book.owner.transaction():
        await book.owner.execute("SELECT FROM stats_heads FOR UPDATE")
        assert await roll(database) is False
    assert await book.rolled_seq() == 200


async def test_a_worker_that_counts_a_new_account_delays_no_other(
    database: Database, book: Book
) -> None:
    await book.append(random_actions(1, 200))
    async with database.worker.transaction() as tx:
        await stats_store.roll_up(tx)
        assert await roll(database) is False
    assert (await book.rolled_seq(), await book.in_buckets(60)) == (200, 200)


async def test_the_rest_of_a_long_log_is_said_to_be_there(
    database: Database, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_store, "ROUND_SEQS_EACH", ROUND_SEQS)
    await book.append(random_actions(1, ROUND_SEQS + stats_store.BEHIND_SEQS))
    assert await roll(database) is True
    assert await roll(database) is False
    assert await book.rolled_seq() == book.seq


async def test_a_few_actions_are_left_to_the_reader(database: Database, book: Book) -> None:
    await book.append(random_actions(1, stats_store.BEHIND_SEQS - 1))
    assert await roll(database) is False
    assert await book.rolled_seq() == 0
    await book.append(random_actions(1, 1))
    await roll(database)
    assert await book.rolled_seq() == stats_store.BEHIND_SEQS


async def test_what_execution_reports_is_read(
    database: Database, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_store, "BEHIND_SEQS", 1)
    now = datetime.now(UTC)
    await book.append([("CREATE", "AAPL", now)] * 4)

    async def report(*counts: Counted, is_rolled: bool = True) -> None:
        event = Event(
            organization_id=str(book.organization_id),
            account_id=str(book.account_id),
            environment=Environment.PAPER,
            symbol="AAPL",
            payload=SILENT,
            counts=json_text(counts),
        )
        async with database.worker.transaction() as tx:
            await append(tx, [event])
        if is_rolled:
            await roll(database)

    def filled(symbol: str, quantity: str, value: str = "0") -> tuple[Counted, Counted]:
        quantities = Counted(Measure.FILLED_QUANTITY, symbol, Decimal(quantity))
        return quantities, Counted(Measure.FILLED_NOTIONAL, symbol, Decimal(value))

    finished = partial(Counted, Measure.FINISHED)
    await report(
        finished("FILLED", at=now),
        finished("CANCELLED", at=now),
        finished("CANCELLED", at=now - timedelta(days=2)),
        *filled("AAPL", "1.50", "281.25"),
        *filled("MSFT", "9"),
        *[Counted(Measure.ACK_MILLIS, ack_key(millis)) for millis in [4] * 98 + [120, 999_999]],
    )
    assert await book.rolled_seq() == 5
    await report(*filled("AAPL", "0.50"), is_rolled=False)
    tail = await read(database, book, Window.LAST_DAY)
    assert [shown.quantity for shown in tail.filled] == ["2"]
    await report(finished("CANCELLED", Decimal(-1), now), finished("FILLED", at=now))
    found = await read(database, book, Window.LAST_DAY)
    assert (found.intents.total, found.intents.FILLED, found.intents.CANCELLED) == (4, 2, 0)
    assert [(s.symbol, s.quantity, s.notional) for s in found.filled] == [("AAPL", "2", "281.25")]
    assert (found.broker_ack_latency_ms.p50, found.broker_ack_latency_ms.p99) == (5, 150)
    assert (await read(database, book, Window.LAST_WEEK)).intents.CANCELLED == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_buckets_of_a_window_follow_each_other_from_its_start_on(seed: int) -> None:
    chance = random.Random(seed)
    window = chance.choice(list(Window))
    now = ORIGIN + timedelta(seconds=chance.randrange(10**9))
    start = begin(window, now)
    ranges = cover(start, WINDOWS_SECONDS[window][1])
    assert [first for _, first, _ in ranges] == [start, *(past for _, _, past in ranges[:-1])]
    for (width, first, past), wider in zip(
        ranges, [width for width, _, _ in ranges[1:]], strict=False
    ):
        assert (first - ORIGIN) % timedelta(seconds=width) == timedelta(0)
        assert past - first < timedelta(seconds=wider), (
            "no more narrow ones than lead to the next wide one"
        )


async def test_what_no_window_reads_is_removed(database: Database, book: Book) -> None:
    now = datetime.now(UTC)
    ages = (
        timedelta(0),
        timedelta(days=1, minutes=2),
        timedelta(days=3),
        timedelta(days=20),
        timedelta(days=34),
    )
    await book.append([("CREATE", "AAPL", now - age) for age in reversed(ages) for _ in range(50)])
    await roll(database)
    before = {window: await read(database, book, window) for window in Window}
    async with database.worker.transaction() as tx:
        assert await stats_store.prune(tx) is False
    assert [await book.in_buckets(width) for width in WIDTHS_SECONDS] == [
        100,
        100,
        200,
        200,
        200,
        200,
    ]
    for window, found in before.items():
        assert (await read(database, book, window)).actions == found.actions


async def test_refusals_are_removed_after_their_days(database: Database, book: Book) -> None:
    for days in (0, 29, 31, 60):
        await book.owner.execute(
            """
            INSERT INTO refusals
                (id, organization_id, account_id, action_type, symbol, reasons, principal_id,
                    created_at)
            VALUES (gen_random_uuid(), $1, $2, 'CREATE', 'AAPL', '{x}', 'k',
                now() - make_interval(days => $3))
            """,
            book.organization_id,
            book.account_id,
            days,
        )
    async with database.worker.transaction() as tx:
        assert await store.prune_refusals(tx, 30) is False
    assert await book.owner.fetchval("SELECT count(*) FROM refusals") == 2


async def test_upkeep_rolls_up(database: Database, book: Book, metrics: Metrics) -> None:
    await book.append(random_actions(1, 500))
    task = asyncio.create_task(
        keep_execution(database.worker, PRICES, SystemClock(), metrics, make_log("error"))
    )

    async def done() -> bool:
        measured = bool(metrics.registry.get_sample_value("ti_stats_rolled_timestamp_seconds"))
        return await book.rolled_seq() == 500 and measured

    await eventually_async(done, 10)
    task.cancel()


async def test_a_tenant_sees_its_own_buckets_only(database: Database, book: Book) -> None:
    await book.append(random_actions(1, 200))
    await roll(database)
    async with database.service.transaction([uuid.uuid4()]) as tx:
        for table in ("stats_buckets", "stats_entries", "stats_heads"):
            assert await tx.fetch(f"SELECT FROM {table}") == []
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([book.organization_id]) as tx:
            await tx.execute(REFUSE, book.account_id, uuid.uuid4())


async def test_counts_are_exact_while_workers_add_them_to_the_buckets(
    database: Database, book: Book
) -> None:
    done = asyncio.Event()

    async def keep_adding() -> None:
        while not done.is_set():
            async with database.worker.transaction() as tx:
                await stats_store.add_entries(tx)

    workers = [asyncio.create_task(keep_adding()) for _ in range(2)]
    for count in range(1, 51):
        await book.owner.execute(REFUSE, book.account_id, book.organization_id)
        assert (await read(database, book, Window.LAST_DAY)).refused.total == count
    done.set()
    await asyncio.gather(*workers)
    assert (await read(database, book, Window.LAST_DAY)).refused.total == 50
