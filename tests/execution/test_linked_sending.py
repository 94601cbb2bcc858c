"""Entries with legs at a venue in memory: sent together, looked up, cancelled and ended
together."""

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.linked_orders import group_orders
from tests.fakes import Act
from tests.kept_connections import open_pools
from trading_intents.brokers.port import EventKind
from trading_intents.execution.model import HOLD_SECONDS
from trading_intents.execution.restored.restoring import restore_commands
from trading_intents.intents.model import Create, Replace, Spec
from trading_intents.telemetry import Metrics
from trading_intents.trading import EXITS, Leg, OrderKind, OrderSide, RouteStrategy, Symbol

HURRY = """
    UPDATE orders SET absent_at = absent_at - interval '10 s', lookup_due_at = clock_timestamp()
    WHERE absent_at > clock_timestamp() - interval '10 s'
"""

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
async def trading(urls: Urls) -> AsyncIterator[InProcessExecution]:
    async with open_in_process(urls) as opened:
        yield opened
        async with open_pools(urls.login, 2, Metrics()) as database:
            await assert_true_books(database)


async def create_group(trading: InProcessExecution) -> list[UUID]:
    """An entry, its take profit and its stop loss, which no worker has seen yet."""
    entry = await trading.create()
    legs = {}
    for leg in EXITS:
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity="10",
            limit_price="110",
            stop_price=None,
            trail_amount=None,
        )
        if leg is Leg.STOP_LOSS:
            spec = Spec(
                kind=OrderKind.STOP,
                quantity="10",
                limit_price=None,
                stop_price="90",
                trail_amount=None,
            )
        command = Create(Symbol("AAPL"), OrderSide.SELL, RouteStrategy.SMART, spec)
        receipt = await trading.submit(trading.in_process_writer.command(trading.account, command))
        legs[leg] = UUID(receipt.intent_id)
    await group_orders(trading.in_process_writer.owner, entry, legs)
    return [entry, *legs.values()]


async def until_shown(trading: InProcessExecution, orders: list[UUID], *expected: str) -> None:
    last: list[str] = []

    async def is_shown() -> bool:
        last[:] = [await show(trading, order) for order in orders]
        return last == list(expected)

    try:
        await trading.until(is_shown)
    except AssertionError:
        raise AssertionError(f"not {expected}: {last}") from None


async def show(trading: InProcessExecution, order: UUID) -> str:
    row = await trading.order(order)
    return " ".join(filter(None, [row["order_status"], row["reason"], *row["flags"]]))


async def test_a_send_carries_the_legs(trading: InProcessExecution) -> None:
    orders = await create_group(trading)
    async with executing(trading):
        await until_shown(trading, orders, "NEW", "NEW", "NEW")
        (ticket,) = trading.venue.tickets
        assert [(leg.leg, leg.kind, leg.side, leg.client_order_id) for leg in ticket.legs] == [
            (Leg.TAKE_PROFIT, OrderKind.LIMIT, OrderSide.SELL, await trading.coid(orders[1])),
            (Leg.STOP_LOSS, OrderKind.STOP, OrderSide.SELL, await trading.coid(orders[2])),
        ]
        assert [(leg.limit_price, leg.stop_price, leg.quantity) for leg in ticket.legs] == [
            (Decimal(110), None, Decimal(10)),
            (None, Decimal(90), Decimal(10)),
        ]
        trading.fill(await trading.coid(orders[0]))
        await until_shown(trading, orders, "FILLED", "NEW", "NEW")
        assert [(await trading.order(order))["active"] for order in orders] == [True, True, True]
        single = await trading.create()
        await trading.until_status(single, "NEW")
        assert trading.venue.tickets[-1].legs == ()


async def test_a_refused_entry_ends_its_legs_and_what_is_asked_of_them(
    trading: InProcessExecution,
) -> None:
    orders = await create_group(trading)
    trading.venue.acts.append(Act.REFUSE)
    await trading.cancel(orders[1])
    async with executing(trading):
        await until_shown(trading, orders, "REJECTED scripted", *["REJECTED entry_rejected"] * 2)
        await trading.until_queue_is_empty()


async def test_a_cancel_before_the_send_ends_the_group(trading: InProcessExecution) -> None:
    orders = await create_group(trading)
    for order in orders:
        await trading.cancel(order)
    async with executing(trading):
        await until_shown(
            trading, orders, "CANCELLED before_send", *["REJECTED entry_rejected"] * 2
        )
        await trading.until_queue_is_empty()
    assert trading.venue.journal == []


async def test_a_cancel_waits_until_the_broker_names_the_leg(trading: InProcessExecution) -> None:
    """For longer than an order that is no leg would be waited for, and without an attempt."""
    orders = await create_group(trading)
    trading.venue.names_legs = True
    trading.venue.accepts_legs = False
    async with executing(trading, attempt_limit=2):
        await until_shown(trading, orders, "NEW", "PENDING_NEW", "PENDING_NEW")
        await trading.cancel(orders[1])
        await trading.in_process_writer.submit(
            trading.in_process_writer.command(
                trading.account,
                Replace(
                    str(orders[2]),
                    Spec(
                        kind=OrderKind.STOP,
                        quantity="10",
                        limit_price=None,
                        stop_price="91",
                        trail_amount=None,
                    ),
                ),
            )
        )

        async def is_held_for_long() -> bool:
            row = (await trading.rows(orders[1]))[0]
            assert (row["status"], row["attempts"]) in {("pending", 0), ("processing", 1)}
            return bool(row["due_at"] - row["created_at"] > timedelta(seconds=HOLD_SECONDS + 1))

        await trading.until(is_held_for_long)
        assert [command for command, _ in trading.venue.journal] == ["submit"]
        trading.venue.accept_legs()
        await until_shown(trading, orders, "NEW", "CANCELLED", "NEW")
        assert sorted(command for command, _ in trading.venue.journal) == [
            "cancel",
            "replace",
            "submit",
        ]
        assert (await trading.order(orders[1]))["external_order_id"].endswith("take_profit")


async def test_a_lost_entry_is_sent_again_with_its_legs(trading: InProcessExecution) -> None:
    orders = await create_group(trading)
    trading.venue.acts.append(Act.LOSE)
    async with executing(trading):
        await until_shown(trading, orders, "UNKNOWN scripted", "PENDING_NEW", "PENDING_NEW")

        async def is_sent_again() -> bool:
            await trading.in_process_writer.owner.execute(HURRY)
            return bool(trading.venue.journal)

        await trading.until(is_sent_again)
        await until_shown(trading, orders, "NEW", "NEW", "NEW")
    assert [len(ticket.legs) for ticket in trading.venue.tickets] == [2]


@pytest.mark.parametrize("names_legs", [False, True])
async def test_legs_are_found_where_answer_and_stream_are_lost(
    trading: InProcessExecution, names_legs: bool
) -> None:
    orders = await create_group(trading)
    trading.venue.names_legs = names_legs
    trading.venue.is_mute = True
    trading.venue.acts.append(Act.DROP)
    async with executing(trading):
        await trading.until_status(orders[0], "NEW")
        trading.venue.leave_gap()
        await until_shown(trading, orders, "NEW", "NEW", "NEW")


async def test_an_entry_that_nothing_protects_is_counted_until_an_order_covers_it(
    trading: InProcessExecution,
) -> None:
    orders = await create_group(trading)
    metrics = Metrics()
    async with executing(trading, metrics=metrics):
        await until_shown(trading, orders, "NEW", "NEW", "NEW")
        trading.fill(await trading.coid(orders[0]))
        for leg in orders[1:]:
            trading.venue.end(await trading.coid(leg), EventKind.CANCELLED)
        await until_shown(trading, orders, "FILLED", "CANCELLED", "CANCELLED")
        later = """
            UPDATE orders SET uncovered_since = uncovered_since - interval '5 s',
                updated_at = updated_at - interval '5 s'
            WHERE uncovered_since IS NOT NULL
        """
        await trading.in_process_writer.owner.execute(later)

        async def until_counted(count: int) -> None:
            async def is_counted() -> bool:
                name = "ti_execution_unprotected_entries"
                return metrics.registry.get_sample_value(name) == count

            await trading.until(is_counted)

        def alerts() -> float | None:
            kind = {"kind": "unprotected"}
            return metrics.registry.get_sample_value("ti_execution_alerts_total", kind)

        await until_counted(1)
        assert alerts() == 1
        stop = await trading.create(side=OrderSide.SELL)
        await trading.until_status(stop, "NEW")
        await until_counted(0)
        trading.venue.end(await trading.coid(stop), EventKind.CANCELLED)
        await until_counted(1)
        assert alerts() == 2


async def test_legs_are_never_stale(trading: InProcessExecution) -> None:
    orders = await create_group(trading)
    async with executing(trading):
        await until_shown(trading, orders, "NEW", "NEW", "NEW")
        trading.fill(await trading.coid(orders[0]))
        single = await trading.create()
        await trading.until_status(single, "NEW")
        await trading.in_process_writer.owner.execute(
            """
                INSERT INTO symbol_times (account_id, organization_id, symbol, stale_order_millis)
                VALUES ($1, $2, $3, 1)
            """,
            trading.account,
            trading.in_process_writer.organization,
            "AAPL",
        )
        await trading.until_status(single, "CANCELLED")
        assert trading.system_cancels == [single]


async def test_a_restored_group_is_looked_up_and_known_by_its_names(
    trading: InProcessExecution,
) -> None:
    orders = await create_group(trading)
    async with open_pools(trading.urls.login, 2, Metrics()) as database:
        assert await restore_commands(database.worker, "test", "a test", halts=False) == 3
    async with executing(trading):

        async def is_given_up() -> bool:
            await trading.in_process_writer.owner.execute(HURRY)
            return bool((await trading.order(orders[0]))["finished_at"])

        await trading.until(is_given_up)
        await until_shown(trading, orders, "EXPIRED stale", *["REJECTED entry_rejected"] * 2)
    assert trading.venue.journal == []
