"""Orders that their broker no longer works, or no longer knows, though they are open here."""

import contextlib
from collections.abc import AsyncIterator
from decimal import Decimal
from functools import partial
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.conftest import Urls
from tests.execution.arranged import alerts
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import VenueSession
from trading_intents.brokers.port import CommandResult, EventKind, OrderTicket, Outcome
from trading_intents.execution import service
from trading_intents.telemetry import Metrics

LONG_SENT = "UPDATE commands SET sent_at = sent_at - interval '1 min'"


@contextlib.asynccontextmanager
async def open_filled_in_part(urls: Urls) -> AsyncIterator[tuple[InProcessExecution, UUID]]:
    """An order of 10 here, of which the venue made 4 without a word, and filled them."""
    async with open_in_process(urls) as it, executing(it):
        intent = await it.create("10")
        await it.until_status(intent, "NEW")
        order = it.venue.orders[await it.coid(intent)]
        order.ticket = replace(order.ticket, quantity=Decimal(4))
        it.fill(await it.coid(intent), "4")
        await it.until_status(intent, "PARTIALLY_FILLED")
        yield it, intent


async def until_filled(it: InProcessExecution, intent: UUID) -> None:
    order = await it.until_status(intent, "FILLED")
    assert (order["quantity"], order["filled_quantity"]) == (4, 4)
    assert order["finished_at"]


async def test_a_cancel_that_is_too_late_ends_what_the_broker_filled_as_less(urls: Urls) -> None:
    async with open_filled_in_part(urls) as (it, intent):
        await it.cancel(intent)
        await until_filled(it, intent)


async def test_a_snapshot_without_an_order_ends_what_the_broker_filled_as_less(urls: Urls) -> None:
    async with open_filled_in_part(urls) as (it, intent):
        await it.in_process_writer.owner.execute(LONG_SENT)
        it.venue.leave_gap()
        await until_filled(it, intent)


async def test_a_snapshot_that_has_an_order_as_filled_ends_it(urls: Urls) -> None:
    async with open_filled_in_part(urls) as (it, intent):
        await it.in_process_writer.owner.execute(LONG_SENT)
        it.venue.orders[await it.coid(intent)].over = False  # listed as open
        it.venue.leave_gap()
        await until_filled(it, intent)


async def test_a_look_up_that_brings_a_fill_and_the_end_books_the_fill_once(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        intent = await it.create("10")
        await it.until_status(intent, "NEW")
        it.venue.is_mute = True
        order = it.venue.orders[await it.coid(intent)]
        order.ticket = replace(order.ticket, quantity=Decimal(4))
        it.fill(await it.coid(intent), "4")
        await it.cancel(intent)
        await until_filled(it, intent)
        owner = it.in_process_writer.owner
        assert await owner.fetchval("SELECT count(*) FROM trades") == 1
        assert await owner.fetchval("SELECT quantity FROM holdings") == 4


@pytest.mark.usefixtures("soon")
async def test_an_order_that_its_broker_rejects_with_a_fill_ends(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        intent = await it.create("10")
        await it.until_status(intent, "NEW")
        it.fill(await it.coid(intent), "3")
        it.venue.end(await it.coid(intent), EventKind.REJECTED)
        order = await it.until_status(intent, "CANCELLED")
        assert (order["filled_quantity"], order["reason"]) == (3, "ended_by_broker")


@pytest.mark.usefixtures("soon")
async def test_a_look_up_that_shows_a_fill_and_the_end_books_both_once(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        intent = await it.create("10")
        await it.until_status(intent, "NEW")
        it.venue.is_mute = True
        it.fill(await it.coid(intent), "3")
        it.venue.end(await it.coid(intent), EventKind.REJECTED)
        await it.cancel(intent)  # which is refused, and so the order is looked up
        order = await it.until_status(intent, "CANCELLED")
        assert (order["filled_quantity"], order["reason"]) == (3, "ended_by_broker")
        assert await it.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 3


async def test_a_cancel_that_is_refused_by_the_stream_alone_is_followed_by_a_look_up(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(self: VenueSession, ticket: OrderTicket, deadline: float) -> CommandResult:
        order = self._venue.orders[str(ticket.orig_client_order_id)]
        refused = replace(
            order.events[0],
            kind=EventKind.CANCEL_REJECTED,
            dedupe_key="refused",
            client_order_id=ticket.client_order_id,
        )
        self.received.put_nowait(refused)
        return CommandResult(outcome=Outcome.ACKED)

    monkeypatch.setattr(VenueSession, "cancel", cancel)
    async with open_in_process(urls) as it, executing(it):
        intent = await it.create()
        await it.until_status(intent, "NEW")
        it.venue.is_mute = True
        it.fill(await it.coid(intent))
        await it.cancel(intent)
        await it.until_status(intent, "FILLED")
        assert set(it.venue.lookups) == {await it.coid(intent)}


@pytest.mark.usefixtures("soon")
async def test_an_order_that_its_broker_does_not_know_is_counted_for_as_long(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.1)
    metrics = Metrics()

    def is_lost(count: int) -> bool:
        return metrics.registry.get_sample_value("ti_execution_lost_orders") == count

    async with open_in_process(urls) as it, executing(it, metrics=metrics):
        intent = await it.create()
        await it.until_status(intent, "NEW")
        lost = it.venue.orders.pop(await it.coid(intent))
        await it.cancel(intent)
        await it.until_true(lambda: alerts(metrics, "order_lost") == 1)
        await it.until_true(partial(is_lost, 1))
        absent_at = (await it.order(intent))["absent_at"]
        # Another CANCEL, which is refused too: the order is as lost as before.
        looked_up = len(it.venue.lookups)
        await it.cancel(intent)
        await it.until_true(lambda: len(it.venue.lookups) > looked_up)
        await it.until_true(partial(is_lost, 1))
        assert (await it.order(intent))["absent_at"] == absent_at
        assert alerts(metrics, "order_lost") == 1
        it.venue.orders[await it.coid(intent)] = lost
        it.venue.end(await it.coid(intent), EventKind.EXPIRED)
        await it.until_status(intent, "EXPIRED")
        await it.until_true(partial(is_lost, 0))
