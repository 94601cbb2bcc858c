"""Batches of accounts with limits that need state: what they read, and what they must not do to
other accounts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from unittest.mock import Mock
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import InProcessWriter, codes, open_in_process_writer
from tests.intents.writer_checks import creates_of, whole
from trading_intents.controls.limits.model import LimitState
from trading_intents.controls.limits.state.statements import read_limit_state
from trading_intents.intents.model import Cancel, Close, Command, Create, Replace, Spec, Submission
from trading_intents.intents.writing import lock_waits
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.statements import COMMIT, ROLLBACK, SKIP, begin
from trading_intents.storage.pipeline import PipelineRequest, Statement
from trading_intents.trading import ZERO, OrderKind, OrderSide, RouteStrategy, Symbol

LIMITS = {"max_open_orders": 1_000, "max_order_notional": "1000000", "max_daily_loss": "50"}


@pytest.fixture
async def local(urls: Urls) -> AsyncIterator[InProcessWriter]:
    async with open_in_process_writer(urls.login, urls.owner) as local:
        yield local


async def set_limits(local: InProcessWriter, account: UUID, organization: UUID) -> None:
    await local.owner.execute(
        """
            INSERT INTO trading_limits (owner_id, organization_id, rules)
            VALUES ($1, $2, $3)
        """,
        account,
        organization,
        msgspec.json.encode(LIMITS).decode(),
    )


@pytest.mark.parametrize("is_limited", [False, True], ids=["without limits", "with limits"])
async def test_an_account_of_another_tenant_is_refused_and_not_waited_for(
    local: InProcessWriter, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    """Also if both tenants were in one batch before, whose rules are cached."""
    (own,) = await creates_of(local, 1)
    first = local.accounts[0]
    if is_limited:
        await set_limits(local, first, local.organization)
    foreign = Submission(
        account_id=str(first),
        organization_id=own.organization_id,
        key_id=own.key_id,
        command=own.command,
        client_reference_id=None,
        idempotency_key=None,
        body_digest=None,
    )
    for _ in range(3):
        outcomes = await local.submit_all([local.create(first), own, foreign])
        assert codes(outcomes) == ["recorded", "recorded", "not_found"]
    add = Mock(wraps=local.writer._lock_waits.add)
    monkeypatch.setattr(local.writer._lock_waits, "add", add)
    for _ in range(3):
        assert codes([await local.submit(foreign)]) == ["not_found"]
    assert add.call_count == 0


async def test_a_replace_of_an_unknown_intent_begins_no_day(local: InProcessWriter) -> None:
    first = local.accounts[0]
    await set_limits(local, first, local.organization)
    replace = Replace(
        str(uuid4()),
        Spec(
            kind=OrderKind.MARKET,
            quantity="1",
            limit_price=None,
            stop_price=None,
            trail_amount=None,
        ),
    )
    assert codes([await local.submit(local.command(first, replace))]) == ["not_found"]
    assert await local.count("daily_baselines") == 0
    assert await whole(local) == []


@pytest.mark.parametrize("first", ["create", "replace", "cancel"])
async def test_the_first_command_after_a_limit_is_set_is_counted_once(
    local: InProcessWriter, first: str
) -> None:
    account = local.accounts[0]
    spec = Spec(
        kind=OrderKind.LIMIT, quantity="10", limit_price="1", stop_price=None, trail_amount=None
    )
    made = await local.submit(
        local.command(account, Create(Symbol("AAPL"), OrderSide.BUY, RouteStrategy.SMART, spec))
    )
    assert isinstance(made, Receipt)
    await set_limits(local, account, local.organization)
    commands: dict[str, tuple[Command, tuple[int, int]]] = {
        "create": (Create(Symbol("AAPL"), OrderSide.BUY, RouteStrategy.SMART, spec), (2, 20)),
        "replace": (
            Replace(
                made.intent_id,
                Spec(
                    kind=OrderKind.LIMIT,
                    quantity="25",
                    limit_price="1",
                    stop_price=None,
                    trail_amount=None,
                ),
            ),
            (1, 25),
        ),
        "cancel": (Cancel(made.intent_id), (1, 10)),
    }
    command, expected = commands[first]
    assert codes([await local.submit(local.command(account, command))]) == ["recorded"]
    assert (
        tuple(await local.owner.fetchrow("SELECT open_orders, open_buy FROM holdings")) == expected
    )


async def test_a_close_beside_a_replace_counts_that_order_once(local: InProcessWriter) -> None:
    account = local.accounts[0]
    spec = Spec(
        kind=OrderKind.LIMIT, quantity="5", limit_price="200", stop_price=None, trail_amount=None
    )
    made = await local.submit(
        local.command(account, Create(Symbol("AAPL"), OrderSide.SELL, RouteStrategy.SMART, spec))
    )
    assert isinstance(made, Receipt)
    await local.owner.execute(
        "UPDATE holdings SET received_at = clock_timestamp(), quantity = 10 WHERE account_id = $1",
        account,
    )
    replace = Replace(
        made.intent_id,
        Spec(
            kind=OrderKind.LIMIT,
            quantity="7",
            limit_price="199",
            stop_price=None,
            trail_amount=None,
        ),
    )
    commands = [local.command(account, command) for command in (replace, Close(Symbol("AAPL")))]
    assert codes(await local.submit_all(commands)) == ["recorded"] * 2
    assert await local.owner.fetchval("SELECT quantity FROM orders WHERE closes") == 3
    assert tuple(await local.owner.fetchrow("SELECT open_orders, open_sell FROM holdings")) == (
        2,
        10,
    )


async def test_an_account_with_many_open_orders_is_judged_without_reading_them(
    local: InProcessWriter,
) -> None:
    account = local.accounts[0]
    orders = 300
    assert (
        codes(await local.submit_all([local.create(account) for _ in range(orders)]))
        == ["recorded"] * orders
    )
    connection = await local.writer._dependencies.pipeline.connect()
    count = Statement(
        """
            SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
            FROM pg_stat_xact_user_tables
        """
        " WHERE relid = 'orders'::regclass"
    )
    read = read_limit_state([(str(local.organization), str(account), "AAPL")])
    # The server may still count what transactions before this one read.
    begun = begin([str(local.organization)], SKIP)
    *_, before, rows, after, _ = await connection.run([*begun, count, read, count, ROLLBACK])
    state = msgspec.json.decode(rows.texts()[0][2], type=LimitState)
    assert (state.account_open_orders, state.open_orders) == (orders, orders)
    assert (state.open_buy, state.open_sell) == (Decimal(orders), ZERO)
    assert after.texts() == before.texts()


@pytest.mark.parametrize("asked", [1, 200])
async def test_an_account_with_many_symbols_is_summed_once_for_a_batch(
    new_urls: Urls, asked: int
) -> None:
    """Rows that were deleted would be counted."""
    async with open_in_process_writer(new_urls.login, new_urls.owner) as local:
        first = str(local.accounts[0])
        symbols = 400
        await local.owner.execute(
            """
                INSERT INTO holdings (account_id, symbol, organization_id, open_orders, open_buy,
                    open_sell)
            """
            " SELECT $1, 'S' || number, $2, 1, number, 0 FROM generate_series(1, $3) AS number",
            first,
            local.organization,
            symbols,
        )
        connection = await local.writer._dependencies.pipeline.connect()
        organization = str(local.organization)
        read = read_limit_state(
            [(organization, first, f"S{number}") for number in range(1, asked + 1)]
        )
        count = Statement(
            """
                SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
                WHERE relid = 'holdings'::regclass
            """
        )
        *_, rows, fetched, _ = await connection.run(
            [*begin([str(local.organization)], SKIP), read, count, ROLLBACK]
        )
        states = [msgspec.json.decode(text, type=LimitState) for _, _, text in rows.texts()]
        assert [(each.account_open_orders, each.open_orders) for each in states] == [
            (symbols, 1)
        ] * asked
        assert [(each.open_buy, each.open_sell) for each in states] == [
            (Decimal(n), ZERO) for n in range(1, asked + 1)
        ]
        assert int(fetched.texts()[0][0]) <= symbols + asked


async def test_a_day_that_cannot_begin_yet_keeps_no_other_organization_waiting(
    local: InProcessWriter, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction holds the row of its last day."""
    monkeypatch.setattr(lock_waits, "MAX_WAIT_SECONDS", 60.0)
    (other,) = await creates_of(local, 1)
    first = local.create(local.accounts[0])
    for each in (first, other):
        await set_limits(local, UUID(each.account_id), UUID(each.organization_id))
    for _ in range(2):
        assert codes(await local.submit_all([first, other])) == ["recorded"] * 2
    await local.owner.execute("UPDATE daily_baselines SET day = day - 1")
    holder = await asyncpg.connect(urls.owner.reveal())
    async with holder.transaction():
        await holder.execute(
            "SELECT FROM daily_baselines WHERE organization_id = $1 FOR UPDATE", local.organization
        )
        waiting = asyncio.create_task(local.submit(first))
        for _ in range(3):
            assert codes([await local.submit(other)]) == ["recorded"]
        assert not waiting.done()
    assert codes([await waiting, await local.submit(first)]) == ["recorded"] * 2
    assert await local.owner.fetchval("SELECT count(DISTINCT day) FROM daily_baselines") == 1
    assert sorted(await whole(local)) == [4, 5]
    await holder.close()


async def test_a_connection_lost_before_the_commit_was_sent_records_each_order_once(
    local: InProcessWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has got the first part of the writes and not the rest."""
    first = local.accounts[0]
    await set_limits(local, first, local.organization)
    assert codes([await local.submit(local.create(first)) for _ in range(2)]) == ["recorded"] * 2
    append = PipelineRequest.append_statements
    lost = list[PipelineRequest]()

    def lose_once(
        request: PipelineRequest, statements: Sequence[Statement], more: bool = False
    ) -> None:
        if statements[-1:] == [COMMIT] and not lost:
            lost.append(request)
            request._connection.close()
        append(request, statements, more)

    monkeypatch.setattr(PipelineRequest, "append_statements", lose_once)
    assert (
        codes(await local.submit_all([local.create(first) for _ in range(3)])) == ["recorded"] * 3
    )
    assert len(lost) == 1
    assert await local.owner.fetchval("SELECT open_orders FROM holdings") == 5
    assert await whole(local) == [5]
