"""A claim lasts as long as its account's lease: what a slow host or broker keeps this process
waiting for is not claimed again, not failed and not looked up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import FakeVenue, VenueSession
from trading_intents.brokers.port import CommandResult, IntegrationContext, OrderTicket
from trading_intents.execution import dispatcher
from trading_intents.execution.sessions import leases, store

HOUR_SECONDS = 3600.0
AGE_CLAIMS = (
    "UPDATE outbox SET claimed_at = claimed_at - interval '1 h' WHERE status = 'processing'"
)
AGE_MARKS = "UPDATE commands SET sent_at = sent_at - interval '1 h'"
# As if a worker had claimed it for the last time, and ended.
ABANDON = """
    UPDATE outbox SET status = 'processing', attempts = 1, claimed_at = clock_timestamp(),
        claim_token = gen_random_uuid()
    WHERE order_key = $1 AND status = 'pending'
"""

pytestmark = pytest.mark.usefixtures("soon", "lasting_lease")


class SlowVenue(FakeVenue):
    """Takes commands, and answers none before the test lets it."""

    def __init__(self, **capabilities: object) -> None:
        super().__init__("paper", **capabilities)
        self.commands: list[str] = []
        self.answers = asyncio.Event()

    def connect(self, context: IntegrationContext) -> VenueSession:
        return SlowSession(self, context.account.id)


class SlowSession(VenueSession):
    async def _call(self, command: str, ticket: OrderTicket) -> CommandResult:
        assert isinstance(self._venue, SlowVenue)
        self._venue.commands.append(command)
        await self._venue.answers.wait()
        return await super()._call(command, ticket)


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
    owner = in_process.in_process_writer.owner
    assert await owner.fetchval("SELECT max(attempts) FROM outbox WHERE queue = 'intents'") == 1


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
        await in_process.until_rows_are("completed")
        await check_sent_once(in_process, venue, [first, second])


async def test_a_command_without_another_attempt_is_not_failed_while_it_waits(urls: Urls) -> None:
    async with open_slow(urls, attempt_limit=1, calls_at_once=1) as (in_process, venue):
        owner = in_process.in_process_writer.owner
        waiting = await in_process.create()
        await until_commands(in_process, venue, 1)
        abandoned = await in_process.create()
        await owner.execute(ABANDON, abandoned)
        await owner.execute(AGE_CLAIMS)
        # By what might have failed the first as well.
        await in_process.until_status(abandoned, "REJECTED")
        venue.answers.set()
        await in_process.until_status(waiting, "NEW")
        await check_sent_once(in_process, venue, [waiting])


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
        await in_process.until_rows_are("completed")
        venue.is_mute = False
        venue.answers.clear()
        await in_process.cancel(waiting)
        await until_commands(in_process, venue, 4)
        await owner.execute(AGE_MARKS)
        await in_process.until_status(answered, "CANCELLED")  # a look-up finds it
        venue.answers.set()
        await in_process.until_status(waiting, "CANCELLED")
        assert set(venue.lookups) == {await in_process.coid(answered)}
