"""Halts that close positions, on a venue in memory: when they make an order, for how much, and what
they wait for."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.halt_calls import (
    actions,
    closing_orders,
    halt,
    held_head,
    hold,
    resume,
    shown,
    until,
    until_waiting,
    working,
)
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.execution.halting import model
from trading_intents.trading import Symbol

pytestmark = pytest.mark.usefixtures("soon")


async def test_every_position_is_closed_by_a_market_order_of_the_other_side(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process, "AAPL", "10")
        await hold(in_process, "MSFT", "3")
        (still_open,) = await working(in_process, symbol="AAPL")
        found = await halt(in_process, close_positions=True)
        closing = await closing_orders(in_process, found, 2)
        assert (await in_process.order(still_open))["order_status"] == "CANCELLED"
        made = [
            (row["symbol"], row["side"], row["quantity"])
            for row in await actions(in_process, found, "CREATE")
        ]
        assert sorted(made) == [("AAPL", "SELL", "10"), ("MSFT", "SELL", "3")]
        account_id = str(in_process.account)
        waiting = [
            {"account_id": account_id, "symbol": each, "reason": "closing"}
            for each in ("AAPL", "MSFT")
        ]
        await until(
            in_process, found, state="closing", positions=2, positions_done=0, waiting=waiting
        )
        for row in await actions(in_process, found, "CREATE"):
            in_process.fill(await in_process.coid(row["intent_id"]), row["quantity"])
        await until(in_process, found, state="done", positions=2, positions_done=2, waiting=[])
        assert len(await actions(in_process, found, "CREATE")) == len(closing)


async def test_closing_passes_halts_limits_switches_and_a_disabled_account(urls: Urls) -> None:
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
            """
                INSERT INTO trading_limits (owner_id, organization_id, rules)
                SELECT id, organization_id,
            """
            """ '{"max_order_quantity": "0.01", "allowed_symbols": ["MSFT"]}' FROM accounts""",
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
            """
                INSERT INTO symbol_times (account_id, symbol, organization_id, trading_start,
                    trading_end)
            """
            """
                 SELECT id, 'AAPL', organization_id, t - interval '2 h', t - interval '1 h'
                 FROM accounts,
            """
            " (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::time(0) AS t) AS now"
        )
        found = await halt(in_process, close_positions=True)
        waiting = await until_waiting(in_process, found, "outside_trading_window")
        assert waiting == [
            {
                "account_id": str(in_process.account),
                "symbol": "AAPL",
                "reason": "outside_trading_window",
            }
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


async def test_a_closing_order_that_cannot_be_recorded_is_waited_for_by_its_symbol(
    urls: Urls,
) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await hold(in_process)
        async with held_head(in_process, in_process.account):
            found = await halt(in_process, close_positions=True)
            waiting = await until_waiting(in_process, found, "unavailable")
        assert waiting == [
            {"account_id": str(in_process.account), "symbol": "AAPL", "reason": "unavailable"}
        ]
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


def reported(symbol: str, quantity: str, number: int = 1) -> BrokerEvent:
    return BrokerEvent(
        kind=EventKind.POSITION,
        dedupe_key=f"position:{symbol}:{quantity}:{number}",
        symbol=Symbol(symbol),
        quantity=Decimal(quantity),
    )


@contextlib.asynccontextmanager
async def reporting_positions(in_process: InProcessExecution) -> AsyncIterator[None]:
    """A worker whose broker reports positions from the beginning, so that none is an opening
    position."""
    in_process.venue.positions = ()
    async with executing(in_process):
        yield


# Takes more than five seconds: that is how long the broker must have said it.
async def test_the_brokers_quantity_is_closed_once_it_has_said_it_twice(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, reporting_positions(in_process):
        await hold(in_process)
        in_process.venue.positions = (reported("AAPL", "8"), reported("TSLA", "-2"))
        found = await halt(in_process, close_positions=True)
        halted_at = (await shown(in_process, found))["created_at"]
        waiting = await until_waiting(in_process, found, "position_unconfirmed")
        assert sorted(each["symbol"] for each in waiting) == ["AAPL", "TSLA"]
        await closing_orders(in_process, found, 2)
        rows = await actions(in_process, found, "CREATE")
        made = [(row["symbol"], row["side"], row["quantity"]) for row in rows]
        assert sorted(made) == [("AAPL", "SELL", "8"), ("TSLA", "BUY", "2")]
        assert all(row["created_at"] - halted_at >= timedelta(seconds=5) for row in rows)


async def test_a_symbol_that_the_broker_leaves_out_is_closed(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "CONFIRM_SECONDS", 1.0)
    async with open_in_process(urls) as in_process, reporting_positions(in_process):
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
            return bool(await actions(in_process, found, "CREATE"))

        await in_process.until(is_made)
        (row,) = await actions(in_process, found, "CREATE")
        await in_process.put_off(row["intent_id"])
        await resume(in_process, found)
        await in_process.make_due()
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


@pytest.mark.parametrize("both_close", [True, False])
async def test_halts_of_an_account_and_its_organization_close_a_position_once(
    urls: Urls, both_close: bool
) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            await hold(in_process)
        whole = await halt(in_process, whole=True, close_positions=both_close)
        own = await halt(in_process, close_positions=True)
        async with executing(in_process):

            async def made() -> list[UUID]:
                rows = [
                    *await actions(in_process, own, "CREATE"),
                    *await actions(in_process, whole, "CREATE"),
                ]
                return [row["intent_id"] for row in rows]

            async def is_made() -> bool:
                return bool(await made())

            await in_process.until(is_made)
            (order,) = await made()
            await in_process.until_status(order, "NEW")
            if both_close:
                await until_waiting(in_process, whole, "closing")
            in_process.fill(await in_process.coid(order))
            for found in (own, whole):
                await until(in_process, found, state="done")
            assert await made() == [order]
            assert in_process.venue.duplicates == []


async def test_a_resume_of_one_halt_leaves_the_others_work(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            await hold(in_process)
        whole = await halt(in_process, whole=True, close_positions=True)
        own = await halt(in_process, close_positions=True)
        await resume(in_process, own)
        async with executing(in_process):
            (order,) = await closing_orders(in_process, whole)
            in_process.fill(await in_process.coid(order))
            await until(in_process, whole, state="done", positions=1, positions_done=1)
        assert await actions(in_process, own, "CREATE") == []
        assert (await shown(in_process, own))["state"] == "resumed"
