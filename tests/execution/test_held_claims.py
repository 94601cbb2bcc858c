"""A claim lasts as long as its account's lease: what a slow host or broker keeps this process
waiting for is not claimed again, not failed and not looked up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.arranged import leave_marked
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.slow_venue import SlowVenue
from trading_intents.execution import dispatcher
from trading_intents.execution.sessions import leases, store

HOUR_SECONDS = 3600.0
AGE_CLAIMS = "UPDATE commands SET sent_at = sent_at - interval '1 h'"
AGE_MARKS = "UPDATE sent_commands SET sent_at = sent_at - interval '1 h'"
pytestmark = pytest.mark.usefixtures("soon", "lasting_lease")


@pytest.fixture
def lasting_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may take longer than the test."""
    monkeypatch.setattr(dispatcher, "CALL_SECONDS", HOUR_SECONDS)
    for module in (leases, store):
        monkeypatch.setattr(module, "LEASE_SECONDS", HOUR_SECONDS)


@asynccontextmanager
async def open_slow(
    urls: Urls, attempt_limit: int = 10, **capabilities: object
) -> AsyncIterator[tuple[InProcessExecution, SlowVenue]]:
    venue = SlowVenue(**capabilities)
    async with (
        open_in_process(urls, venue=venue) as in_process,
        executing(in_process, attempt_limit=attempt_limit),
    ):
        yield in_process, venue


async def until_commands(in_process: InProcessExecution, venue: SlowVenue, count: int) -> None:
    await in_process.until_true(lambda: len(venue.commands) >= count)


async def check_sent_once(
    in_process: InProcessExecution, venue: SlowVenue, orders: list[UUID]
) -> None:
    """No order was ever in doubt, and none was claimed twice."""
    assert sorted(venue.arrived("submit")) == sorted(
        [await in_process.coid(each) for each in orders]
    )
    assert venue.lookups == []
    for order in orders:
        assert "UNKNOWN" not in await in_process.streamed_statuses(order)


async def test_a_command_that_waits_for_its_broker_is_not_claimed_again(urls: Urls) -> None:
    async with open_slow(urls) as (in_process, venue):
        first = await in_process.create()
        await until_commands(in_process, venue, 1)
        await in_process.in_process_writer.owner.execute(AGE_CLAIMS)
        # A claim that might have taken the first as well.
        second = await in_process.create()
        await until_commands(in_process, venue, 2)
        venue.answers.set()
        for order in (first, second):
            await in_process.until_status(order, "NEW")
        await in_process.until_queue_is_empty()
        await check_sent_once(in_process, venue, [first, second])


async def test_a_marked_command_that_nobody_awaits_is_looked_up_beside_one_that_waits(
    urls: Urls,
) -> None:
    """Also one whose id is before all that its lane is read behind."""
    async with open_slow(urls) as (in_process, venue):
        owner = in_process.in_process_writer.owner
        venue.answers.set()
        left = await in_process.create()
        await in_process.until_status(left, "NEW")
        await in_process.until_queue_is_empty()
        venue.answers.clear()
        waiting = await in_process.create()
        await until_commands(in_process, venue, 2)
        await leave_marked(in_process, left)
        await owner.execute("UPDATE commands SET id = 0 WHERE order_id = $1", left)
        await owner.execute(AGE_CLAIMS)
        await in_process.until_true(lambda: bool(venue.lookups))
        venue.answers.set()
        await in_process.until_status(waiting, "NEW")
        await in_process.until_queue_is_empty()
        assert set(venue.lookups) == {await in_process.coid(left)}
        assert "UNKNOWN" not in await in_process.streamed_statuses(waiting)
        assert len(venue.arrived("submit")) == 2


async def test_an_order_whose_cancel_waits_for_its_answer_is_not_looked_up(urls: Urls) -> None:
    async with open_slow(urls) as (in_process, venue):
        owner = in_process.in_process_writer.owner
        venue.answers.set()
        orders = [await in_process.create() for _ in range(2)]
        for order in orders:
            await in_process.until_status(order, "NEW")
        answered, waiting = orders
        venue.is_mute = True
        await in_process.cancel(answered)
        await in_process.until_queue_is_empty()
        venue.is_mute = False
        venue.answers.clear()
        await in_process.cancel(waiting)
        await until_commands(in_process, venue, 4)
        await owner.execute(AGE_MARKS)
        await in_process.until_status(answered, "CANCELLED")  # a look-up finds it
        venue.answers.set()
        await in_process.until_status(waiting, "CANCELLED")
        assert set(venue.lookups) == {await in_process.coid(answered)}
