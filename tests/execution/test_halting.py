"""Halts at work on a venue in memory: what they cancel and close, in which order, and what they wait for."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.test_halted_sends import halt, resume
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.controls.halts.model import Halt
from trading_intents.testing.fakes import Act
from trading_intents.trading import Symbol

pytestmark = pytest.mark.idle


async def shown(in_process: InProcessExecution, found: Halt) -> Any:
    row = await in_process.in_process_writer.owner.fetchrow("SELECT * FROM halts WHERE id = $1", found.id)
    return dict(row) | {"waiting": msgspec.json.decode(row["waiting"])}


async def until(in_process: InProcessExecution, found: Halt, limit_seconds: float = 15.0, **wanted: Any) -> Any:
    last: Any = None

    async def reached() -> bool:
        nonlocal last
        last = await shown(in_process, found)
        return all(last[name] == value for name, value in wanted.items())

    try:
        await in_process.until(reached, limit_seconds)
    except AssertionError:
        raise AssertionError(f"{wanted} not within {limit_seconds} s: {last}") from None
    return last


async def until_waiting(in_process: InProcessExecution, found: Halt, reason: str) -> list[dict[str, str]]:
    async def waits() -> bool:
        return reason in {each["reason"] for each in (await shown(in_process, found))["waiting"]}

    await in_process.until(waits)
    waiting: list[dict[str, str]] = (await shown(in_process, found))["waiting"]
    return waiting


async def actions(in_process: InProcessExecution, found: Halt, action_type: str) -> list[Any]:
    """The records that the halt appended."""
    rows = await in_process.in_process_writer.owner.fetch(
        "SELECT intent_id, created_at, record::jsonb ->> 'quantity' AS quantity,"
        " record::jsonb ->> 'order_side' AS side, record::jsonb ->> 'symbol' AS symbol FROM actions"
        " WHERE action_type = $1 AND record::jsonb ->> 'principal_type' = 'SYSTEM'"
        " AND record::jsonb ->> 'principal_id' = $2 ORDER BY seq",
        action_type,
        str(found.id),
    )
    return list(rows)


async def working(in_process: InProcessExecution, count: int = 1, **order: Any) -> list[UUID]:
    intents = [await in_process.create(**order) for _ in range(count)]
    for intent in intents:
        await in_process.until_status(intent, "NEW")
    return intents


async def hold(in_process: InProcessExecution, symbol: str = "AAPL", quantity: str = "10") -> None:
    """A position, bought."""
    (intent,) = await working(in_process, quantity=quantity, symbol=symbol)
    in_process.fill(await in_process.coid(intent), quantity)
    await in_process.until_status(intent, "FILLED")


async def closing_orders(in_process: InProcessExecution, found: Halt, count: int = 1) -> list[UUID]:
    """The intents of the halt's closing orders, once there are so many and the last is at the venue."""

    async def made() -> bool:
        return len(await actions(in_process, found, "CREATE")) == count

    await in_process.until(made)
    intents = [row["intent_id"] for row in await actions(in_process, found, "CREATE")]
    await in_process.until_status(intents[-1], "NEW")
    return intents


@contextlib.asynccontextmanager
async def held_head(in_process: InProcessExecution, account: UUID) -> AsyncIterator[None]:
    """Another transaction that holds the account's head."""
    owner = in_process.in_process_writer.owner
    async with owner.transaction():
        await owner.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", account)
        yield


async def test_every_open_order_gets_one_cancel_in_the_halts_name(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intents = await working(in_process, 5)
        found = await halt(in_process)
        done = await until(in_process, found, state="done")
        assert [(await in_process.order(each))["order_status"] for each in intents] == ["CANCELLED"] * 5
        cancels = await actions(in_process, found, "CANCEL")
        assert sorted(row["intent_id"] for row in cancels) == sorted(intents)
        assert (done["orders"], done["orders_done"], done["waiting"]) == (5, 5, [])
        assert len(in_process.venue.arrived("cancel")) == 5


async def test_a_halt_without_orders_is_done(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        assert (await until(in_process, await halt(in_process), state="done"))["orders"] == 0


async def test_a_halt_that_cancels_nothing_leaves_orders_working(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        found = await halt(in_process, cancel_orders=False)
        other = await halt(in_process, whole=True)
        await until(in_process, other, state="done")  # this one does
        assert await actions(in_process, found, "CANCEL") == []
        assert (await in_process.order(intent))["order_status"] == "CANCELLED"


async def test_an_unknown_order_is_cancelled_too(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.hides = True
        in_process.venue.is_mute = True
        in_process.venue.acts.append(Act.DROP)
        intent = await in_process.create()
        await in_process.until_status(intent, "UNKNOWN")
        found = await halt(in_process)
        await in_process.until_true(lambda: bool(in_process.venue.arrived("cancel")))
        assert (await shown(in_process, found))["state"] == "cancelling"
        in_process.venue.hides = in_process.venue.is_mute = False
        in_process.venue.leave_gap()
        await until(in_process, found, 45.0, state="done", orders=1, orders_done=1)


async def test_an_order_that_was_accepted_late_is_found(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        await in_process.create()
        # Recorded without a new version of the rules: the writer decides as one that read before the halt's commit.
        owner, organization = in_process.in_process_writer.owner, in_process.in_process_writer.organization
        await owner.execute("UPDATE organizations SET name = 'y'")
        await owner.execute("SET session_replication_role = replica")
        await owner.execute(
            "INSERT INTO halts (id, organization_id, account_id, reason, cancel_orders, close_positions, state,"
            " principal_type, principal_id) SELECT gen_random_uuid(), $1, id, 'x', true, false, 'cancelling', 'USER',"
            " 'u' FROM accounts",
            organization,
        )
        await owner.execute("SET session_replication_role = origin")
        late = await in_process.create()
        async with executing(in_process):
            assert (await in_process.until_status(late, "CANCELLED"))["reason"] == "halted"


async def test_a_refused_cancel_is_followed_by_others_ever_later(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        in_process.venue.acts.extend([Act.REFUSE] * 3)
        found = await halt(in_process)
        await until_waiting(in_process, found, "cancel_refused")
        await until(in_process, found, 20.0, state="done")
        times = [row["created_at"] for row in await actions(in_process, found, "CANCEL")]
        assert len(times) == 4
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert [pause >= timedelta(seconds=least) for pause, least in zip(pauses, (1, 2, 4), strict=True)] == [True] * 3
        assert (await in_process.order(intent))["order_status"] == "CANCELLED"


async def test_an_unanswered_cancel_is_not_followed_by_another(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        in_process.venue.is_away = True
        in_process.venue.disconnect()
        found = await halt(in_process)
        waiting = await until_waiting(in_process, found, "broker_disconnected")
        assert waiting == [
            {"account_id": str(in_process.account), "order_id": str(intent), "reason": "broker_disconnected"}
        ]
        in_process.venue.is_away = False
        await until(in_process, found, 30.0, state="done")
        assert len(await actions(in_process, found, "CANCEL")) == 1


async def test_a_resumed_halt_appends_nothing_more(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            await working(in_process, 2)
        found = await halt(in_process)
        await resume(in_process, found)
        async with executing(in_process):
            later = await in_process.create()
            await in_process.until_status(later, "NEW")
            await in_process.until_rows_are("completed")
        assert await actions(in_process, found, "CANCEL") == []
        assert (await shown(in_process, found))["state"] == "resumed"


async def test_an_account_that_is_held_delays_no_other_of_its_organization(urls: Urls) -> None:
    async with open_in_process(urls, accounts=4) as in_process, executing(in_process):
        accounts = in_process.in_process_writer.accounts
        for account in accounts:
            await working(in_process, 2, account=account)
        async with held_head(in_process, accounts[0]):
            found = await halt(in_process, whole=True)
            done = await until_pool(in_process, found, orders=8, orders_done=6)
            assert done["state"] == "cancelling"
        await until(in_process, found, state="done", orders=8, orders_done=8)


async def until_pool(in_process: InProcessExecution, found: Halt, **wanted: Any) -> Any:
    """As `until`, by another connection than the owner's."""
    last: Any = None

    async def reached() -> bool:
        nonlocal last
        writer = in_process.in_process_writer
        async with writer.pool.transaction([writer.organization], read_only=True) as tx:
            last = await tx.fetchrow("SELECT * FROM halts WHERE id = $1", found.id)
        return all(last[name] == value for name, value in wanted.items())

    await in_process.until(reached, 20.0)
    return last


async def test_a_worker_that_ends_in_between_is_followed_by_another(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intents = await working(in_process, 30)
        found = await halt(in_process)
        for _ in range(20):
            async with executing(in_process):
                await asyncio.sleep(0.1)
            if (await shown(in_process, found))["orders_done"] == 30:
                break
        async with executing(in_process):
            await until(in_process, found, 20.0, state="done", orders=30, orders_done=30)
        assert sorted(row["intent_id"] for row in await actions(in_process, found, "CANCEL")) == sorted(intents)
        assert in_process.venue.duplicates == []


async def test_every_position_is_closed_by_a_market_order_of_the_other_side(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process, "AAPL", "10")
        await hold(in_process, "MSFT", "3")
        (still_open,) = await working(in_process, symbol="AAPL")
        found = await halt(in_process, close_positions=True)
        closing = await closing_orders(in_process, found, 2)
        assert (await in_process.order(still_open))["order_status"] == "CANCELLED"
        made = [(row["symbol"], row["side"], row["quantity"]) for row in await actions(in_process, found, "CREATE")]
        assert sorted(made) == [("AAPL", "SELL", "10"), ("MSFT", "SELL", "3")]
        state = await until(in_process, found, state="closing", positions=2, positions_done=0)
        assert {each["reason"] for each in state["waiting"]} == {"closing"}
        for row in await actions(in_process, found, "CREATE"):
            in_process.fill(await in_process.coid(row["intent_id"]), row["quantity"])
        await until(in_process, found, state="done", positions=2, positions_done=2, waiting=[])
        assert len(await actions(in_process, found, "CREATE")) == len(closing)


async def test_closing_passes_halts_switches_and_a_disabled_account(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        await halt(in_process, whole=True, cancel_orders=False)
        owner = in_process.in_process_writer.owner
        for statement in (
            "INSERT INTO organization_controls (organization_id, manually_disabled)"
            " SELECT organization_id, true FROM accounts",
            "INSERT INTO account_controls (account_id, organization_id, manually_disabled)"
            " SELECT id, organization_id, true FROM accounts",
            "INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)"
            " SELECT id, 'AAPL', organization_id, true FROM accounts",
            "UPDATE accounts SET disabled = true",
        ):
            await owner.execute(statement)
        found = await halt(in_process, close_positions=True)
        (order,) = await closing_orders(in_process, found)
        in_process.fill(await in_process.coid(order))
        await until(in_process, found, state="done")


async def test_closing_waits_for_the_trading_window(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        owner = in_process.in_process_writer.owner
        await owner.execute(
            "INSERT INTO symbol_times (account_id, symbol, organization_id, trading_start, trading_end)"
            " SELECT id, 'AAPL', organization_id, t - interval '2 h', t - interval '1 h' FROM accounts,"
            " (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::time(0) AS t) AS now"
        )
        found = await halt(in_process, close_positions=True)
        waiting = await until_waiting(in_process, found, "outside_trading_window")
        assert waiting == [
            {"account_id": str(in_process.account), "symbol": "AAPL", "reason": "outside_trading_window"}
        ]
        assert await actions(in_process, found, "CREATE") == []
        await owner.execute("DELETE FROM symbol_times")
        (order,) = await closing_orders(in_process, found)
        in_process.fill(await in_process.coid(order))
        await until(in_process, found, state="done")


async def test_closing_waits_for_the_broker(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        in_process.venue.is_away = True
        in_process.venue.disconnect()
        found = await halt(in_process, close_positions=True)
        waiting = await until_waiting(in_process, found, "broker_disconnected")
        assert waiting[0]["symbol"] == "AAPL"
        assert await actions(in_process, found, "CREATE") == []
        in_process.venue.is_away = False
        await closing_orders(in_process, found)


async def test_a_closing_order_that_ends_unfilled_is_made_anew_later(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        found = await halt(in_process, close_positions=True)
        (first,) = await closing_orders(in_process, found)
        in_process.fill(await in_process.coid(first), "4")
        in_process.venue.end(await in_process.coid(first), EventKind.CANCELLED)
        _, second = await closing_orders(in_process, found, 2)
        rows = await actions(in_process, found, "CREATE")
        assert [row["quantity"] for row in rows] == ["10", "6"]
        ended = (await in_process.order(first))["finished_at"]
        assert rows[1]["created_at"] - ended >= timedelta(seconds=1)
        in_process.fill(await in_process.coid(second), "6")
        await until(in_process, found, state="done")


def told(symbol: str, quantity: str, number: int = 1) -> BrokerEvent:
    return BrokerEvent(
        kind=EventKind.POSITION,
        dedupe_key=f"position:{symbol}:{quantity}:{number}",
        symbol=Symbol(symbol),
        quantity=Decimal(quantity),
    )


@contextlib.asynccontextmanager
async def telling(in_process: InProcessExecution) -> AsyncIterator[None]:
    """A worker whose broker tells positions from the beginning, so that none is an opening position."""
    in_process.venue.positions = ()
    async with executing(in_process):
        yield


async def test_the_brokers_quantity_is_closed_once_it_has_said_it_twice(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, telling(in_process):
        await hold(in_process)
        in_process.venue.positions = (told("AAPL", "8"), told("TSLA", "-2"))
        found = await halt(in_process, close_positions=True)
        halted_at = (await shown(in_process, found))["created_at"]
        waiting = await until_waiting(in_process, found, "position_unconfirmed")
        assert sorted(each["symbol"] for each in waiting) == ["AAPL", "TSLA"]
        await closing_orders(in_process, found, 2)
        rows = await actions(in_process, found, "CREATE")
        made = [(row["symbol"], row["side"], row["quantity"]) for row in rows]
        assert sorted(made) == [("AAPL", "SELL", "8"), ("TSLA", "BUY", "2")]
        assert all(row["created_at"] - halted_at >= timedelta(seconds=5) for row in rows)


async def test_a_symbol_that_the_broker_leaves_out_is_closed(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, telling(in_process):
        await hold(in_process)
        found = await halt(in_process, close_positions=True)
        await until_waiting(in_process, found, "position_unconfirmed")
        await until(in_process, found, state="done", positions=1, positions_done=1)
        assert await actions(in_process, found, "CREATE") == []


async def test_closing_may_be_added_to_a_halt_that_is_done(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        found = await halt(in_process)
        await until(in_process, found, state="done")
        assert (await halt(in_process, close_positions=True)).id == found.id
        (order,) = await closing_orders(in_process, found)
        in_process.fill(await in_process.coid(order))
        await until(in_process, found, state="done", positions_done=1)


async def test_a_closing_order_that_a_resume_finds_unsent_is_cancelled(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        in_process.venue.acts.extend([Act.FAIL] * 2)
        found = await halt(in_process, close_positions=True)

        async def is_made() -> bool:
            return bool(await actions(in_process, found, "CREATE")) and not in_process.venue.acts

        await in_process.until(is_made)
        await resume(in_process, found)
        (row,) = await actions(in_process, found, "CREATE")
        order = await in_process.until_status(row["intent_id"], "CANCELLED")
        assert order["reason"] == "resumed"
        assert len(in_process.venue.arrived("submit")) == 1


async def test_a_closing_order_that_was_sent_runs_on_after_a_resume(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        found = await halt(in_process, close_positions=True)
        (order,) = await closing_orders(in_process, found)
        await resume(in_process, found)
        in_process.fill(await in_process.coid(order))
        await in_process.until_status(order, "FILLED")
        assert len(await actions(in_process, found, "CREATE")) == 1
