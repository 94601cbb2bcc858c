"""Limits on an account's last orders: two processes that append to its log judge by the log,
whoever wrote it."""

import asyncio
import random
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import msgspec
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from trading_intents.controls.limits.state import recent, statements
from trading_intents.controls.limits.state.recent import (
    RecentByAccount,
    RecentOrders,
    RecentRequest,
    RecentRow,
    put_recent,
)
from trading_intents.controls.limits.state.statements import read_recent
from trading_intents.intents.model import Create, Spec, Submission
from trading_intents.intents.writing.batch import run_batch
from trading_intents.intents.writing.statements import SKIP, WAIT
from trading_intents.storage.database import pack_array
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

RATE = 25
STEPS = 80
UNWRITABLE = 999  # a quantity that the database refuses


@pytest.fixture
async def pair(urls: Urls) -> AsyncIterator[tuple[InProcessWriter, InProcessWriter]]:
    """Two processes, of which both write for the first one's accounts."""
    async with (
        open_in_process_writer(urls.login, urls.owner) as first,
        open_in_process_writer(urls.login, urls.owner) as second,
    ):
        await first.owner.execute(
            "INSERT INTO trading_limits (owner_id, organization_id, rules)"
            """ VALUES ($1, $2, '{"max_orders_per_minute": 25, "duplicate_window_millis": 60000}')""",
            first.accounts[0],
            first.organization,
        )
        await first.owner.execute(f"ALTER TABLE orders ADD CHECK (quantity <> {UNWRITABLE})")
        yield first, second


def create(local: InProcessWriter, quantity: int, account: int = 0) -> Submission:
    spec = Spec(
        kind=OrderKind.MARKET,
        quantity=str(quantity),
        limit_price=None,
        stop_price=None,
        trail_amount=None,
    )
    command = Create(Symbol("AAPL"), OrderSide.BUY, RouteStrategy.SMART, spec)
    return local.command(local.accounts[account], command)


@pytest.mark.parametrize("seed", range(4))
async def test_what_either_process_accepts_counts_in_both(
    pair: tuple[InProcessWriter, InProcessWriter], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    if seed == 3:
        # All that others wrote is read apart.
        monkeypatch.setattr(statements, "MAX_READ_ACTIONS", 0)
    first = pair[0]
    chance = random.Random(seed)
    accepted: dict[int, str] = {}
    for _ in range(STEPS):
        writer = chance.choice(pair)
        quantity = chance.randint(1, 45)
        what = chance.random()
        if what < 0.1:
            outcome = await writer.submit(create(first, UNWRITABLE))
            assert codes([outcome]) == [
                "control_rejected" if len(accepted) == RATE else "internal_error"
            ]
        elif what < 0.2 and accepted:
            cancelled = accepted[chance.choice(list(accepted))]
            await writer.submit(first.cancel(first.accounts[0], cancelled))
        else:
            outcome = await writer.submit(create(first, quantity))
            if quantity in accepted or len(accepted) == RATE:
                assert codes([outcome]) == ["control_rejected"], (quantity, accepted)
            else:
                assert codes([outcome]) == ["recorded"], (quantity, accepted, outcome)
                accepted[quantity] = outcome.intent_id  # type: ignore[union-attr]  # recorded
    assert len(accepted) == RATE


async def test_a_process_that_only_cancelled_meanwhile_misses_nothing(
    pair: tuple[InProcessWriter, InProcessWriter],
) -> None:
    first, second = pair
    mine = await first.submit(create(first, 1))
    assert codes([mine, await second.submit(create(first, 2))]) == ["recorded"] * 2
    cancelled = await first.submit(first.cancel(first.accounts[0], mine.intent_id))  # type: ignore[union-attr]  # recorded
    assert codes([cancelled]) == ["recorded"]
    assert codes([await first.submit(create(first, 2))]) == ["control_rejected"]


async def test_a_log_is_read_with_other_commands_only_if_it_is_short(
    pair: tuple[InProcessWriter, InProcessWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, when nothing is known of any account."""
    first, second = pair
    dependencies = second.writer._dependencies
    await first.submit_all([create(first, quantity) for quantity in range(1, 5)])
    monkeypatch.setattr(statements, "MAX_READ_ACTIONS", 3)
    batch = [create(first, 1), create(first, 5), first.create(first.accounts[1])]
    result = await run_batch(dependencies, batch, SKIP)
    assert [each is None for each in result.outcomes] == [True, True, False], "it waits apart"
    monkeypatch.setattr(statements, "MAX_READ_ACTIONS", 4)
    result = await run_batch(dependencies, batch, SKIP)
    assert codes(result.outcomes) == ["control_rejected", "recorded", "recorded"]


async def test_logs_that_are_long_together_are_not_all_read_with_other_commands(
    pair: tuple[InProcessWriter, InProcessWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    await first.owner.execute(
        "INSERT INTO trading_limits (owner_id, organization_id, rules)"
        """ VALUES ($1, $2, '{"max_orders_per_minute": 9}')""",
        first.accounts[1],
        first.organization,
    )
    for account, orders in ((0, 2), (1, 3)):
        await first.submit_all(
            [create(first, quantity, account) for quantity in range(1, orders + 1)]
        )
    monkeypatch.setattr(statements, "MAX_READ_ACTIONS", 4)
    batch = [create(first, 8, account) for account in (0, 1, 2)]
    result = await run_batch(second.writer._dependencies, batch, SKIP)
    assert [each is None for each in result.outcomes] == [False, True, False], "the shortest first"


async def test_reading_one_account_forgets_none_of_the_same_batch(
    pair: tuple[InProcessWriter, InProcessWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair
    await first.owner.execute(
        "INSERT INTO trading_limits (owner_id, organization_id, rules)"
        """ VALUES ($1, $2, '{"max_orders_per_minute": 1}')""",
        first.accounts[1],
        first.organization,
    )
    assert codes([await first.submit(create(first, 1))]) == ["recorded"]
    monkeypatch.setattr(recent, "MAX_ACCOUNTS", 1)
    batch = [
        create(first, 1),
        create(first, 2),
        create(first, 1, account=1),
        create(first, 2, account=1),
    ]
    dependencies = first.writer._dependencies
    outcomes = (await run_batch(dependencies, batch, WAIT)).outcomes
    assert codes(outcomes) == ["control_rejected", "recorded", "recorded", "control_rejected"]
    assert codes((await run_batch(dependencies, batch, SKIP)).outcomes) == ["control_rejected"] * 4


async def test_both_processes_at_once_accept_no_order_too_many(
    pair: tuple[InProcessWriter, InProcessWriter],
) -> None:
    first, second = pair
    callers = [
        (writer, create(first, quantity)) for quantity in range(1, 33) for writer in (first, second)
    ]
    outcomes = await asyncio.gather(*(writer.submit(each) for writer, each in callers))
    assert sorted(codes(outcomes)) == ["control_rejected"] * (64 - RATE) + ["recorded"] * RATE
    assert await first.count("(SELECT DISTINCT quantity FROM orders) AS sizes") == RATE


async def test_orders_of_longer_ago_do_not_count(
    pair: tuple[InProcessWriter, InProcessWriter],
) -> None:
    first, second = pair
    await first.submit_all([create(first, quantity) for quantity in range(1, RATE + 1)])
    assert codes([await first.submit(create(first, 40))]) == ["control_rejected"]
    async with first.owner.transaction():
        await first.owner.execute("SET LOCAL session_replication_role = replica")
        await first.owner.execute("UPDATE actions SET created_at = created_at - interval '61 s'")
    assert (
        codes([await second.submit(create(first, quantity)) for quantity in (1, 2)])
        == ["recorded"] * 2
    )
    assert codes([await second.submit(create(first, 2))]) == ["control_rejected"]


async def read(owner: asyncpg.Connection, account: UUID, known: tuple[int, str]) -> RecentByAccount:
    now = await owner.fetchval("SELECT clock_timestamp()")
    base = RecentOrders(60_000, now) if known[0] else None
    if base:
        base.head = known
    asked = RecentRequest(str(account), base, 60_000)
    statement = read_recent([asked], may_take_long=True)
    texts = await owner.fetch(statement.sql, *statement.arguments)
    rows = [msgspec.json.decode(text, type=RecentRow) for (text,) in texts]
    (is_known,) = [row.is_known for row in rows if row.is_known is not None]
    assert is_known == (known[1] == f"{known[0]:064x}")
    return put_recent({}, [asked], rows, {str(account): known}, now)


@pytest.mark.parametrize("seed", range(3))
async def test_the_log_is_read_back_for_a_minute_and_no_further(urls: Urls, seed: int) -> None:
    chance = random.Random(seed)
    async with open_in_process_writer(urls.login, urls.owner) as local:
        account = local.accounts[0]
        owner = local.owner
        ages = sorted(
            (chance.choice([1, 40, 70, 4_000]) * chance.random() for _ in range(300)), reverse=True
        )
        kinds = [chance.choice(["CREATE", "REPLACE", "CANCEL"]) for _ in ages]
        await owner.execute(
            """
            INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type,
                created_at, record, hash, stream_seq)
            SELECT $1, n, gen_random_uuid(), $2, kind,
                clock_timestamp() - make_interval(secs => age),
                   json_build_object('symbol', 'AAPL', 'quantity', n)::text,
                       lpad(to_hex(n), 64, '0'), n
            FROM unnest($3::float[], from_column($4)) WITH ORDINALITY AS made (age, kind, n)
            """,
            account,
            local.organization,
            ages,
            pack_array(kinds),
        )
        await owner.execute("UPDATE account_heads SET seq = 300 WHERE account_id = $1", account)
        for _ in range(10):
            seq = chance.choice([0, chance.randint(1, 300)])
            known = (seq, f"{seq:064x}" if seq and chance.random() < 0.7 else "")
            since = seq if known[1] else 0
            found = (await read(owner, account, known))[str(account)]
            now = await owner.fetchval("SELECT clock_timestamp()")
            in_time = [age < 55 for age in ages]
            least = sum(kinds[n] != "CANCEL" and in_time[n] for n in range(since, 300))
            most = sum(kinds[n] != "CANCEL" and ages[n] < 61 for n in range(since, 300))
            assert least <= found.count(now) <= most
            terms = [n for n in range(since, 300) if kinds[n] == "CREATE" and in_time[n]]
            assert all(found.find(f"AAPL|{n + 1}||||") for n in terms)
