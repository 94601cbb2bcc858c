"""No account slows another: one whose broker is slow, whose queue is long, or whose rows another transaction holds."""

import asyncio
import time
from uuid import UUID

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.floor import Floor, executing, open_floor
from trading_intents.brokers.port import CommandResult, IntegrationContext, OrderTicket
from trading_intents.intents.model import Cancel
from trading_intents.testing.fakes import Venue, VenueLink

CALL_SECONDS = 3.0
QUEUED = 300
MARGIN_SECONDS = 0.1
ROUNDS = 3


class SlowVenue(Venue):
    """Takes CALL_SECONDS for each command of the accounts in `slow`."""

    def __init__(self) -> None:
        super().__init__("paper")
        self.slow: set[UUID] = set()

    def connect(self, context: IntegrationContext) -> VenueLink:
        return SlowLink(self, context.account.id)


class SlowLink(VenueLink):
    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        assert isinstance(self._venue, SlowVenue)
        if self.account_id in self._venue.slow:
            await asyncio.sleep(CALL_SECONDS)
        return await super().submit(ticket, deadline)


async def time_create_and_cancel(floor: Floor, account: UUID) -> tuple[float, float]:
    """The best of some rounds: seconds until a CREATE is acknowledged, and until a CANCEL has ended it."""
    creates, cancels = [], []
    for _ in range(ROUNDS):
        began = time.monotonic()
        intent = await floor.create(account=account)
        await floor.until_status(intent, "NEW")
        creates.append(time.monotonic() - began)
        began = time.monotonic()
        await floor.submit(floor.office.command(account, Cancel(str(intent))))
        await floor.until_status(intent, "CANCELLED")
        cancels.append(time.monotonic() - began)
    return min(creates), min(cancels)


@pytest.mark.alone(seconds=15)
async def test_a_slow_account_delays_no_other(urls: Urls) -> None:
    venue = SlowVenue()
    async with open_floor(urls, accounts=2, venue=venue) as floor, executing(floor):
        slow, fast = floor.office.accounts
        alone = await time_create_and_cancel(floor, fast)
        venue.slow.add(slow)
        await asyncio.gather(*(floor.create(account=slow) for _ in range(QUEUED)))
        beside = await time_create_and_cancel(floor, fast)
        for before, after in zip(alone, beside, strict=True):
            assert after <= max(2 * before, before + MARGIN_SECONDS), (alone, beside)
        waiting = await floor.office.owner.fetchval(
            "SELECT count(*) FROM outbox WHERE lane = $1 AND finished_at IS NULL", slow
        )
        assert waiting > QUEUED / 2, "the slow account was done before the test was"


async def test_a_cancel_overtakes_the_queue_of_its_own_account(urls: Urls) -> None:
    venue = SlowVenue()
    async with open_floor(urls, venue=venue) as floor, executing(floor, most_age_millis=60_000):
        working = await floor.create()
        await floor.until_status(working, "NEW")
        venue.slow.add(floor.account)
        queued = await asyncio.gather(*(floor.create() for _ in range(100)))
        await floor.cancel(working)
        await floor.until_status(working, "CANCELLED", 2 * CALL_SECONDS + 1)
        await floor.cancel(queued[-1])
        ended = await floor.until_status(queued[-1], "CANCELLED", 2 * CALL_SECONDS + 1)
        assert ended["reason"] == "before_send"
        assert await floor.coid(queued[-1]) not in venue.arrived("SUBMIT")


@pytest.mark.parametrize("held", ["stream_heads", "orders"])
async def test_what_another_transaction_holds_delays_nobody_else(urls: Urls, held: str) -> None:
    """A process that stands still in a transaction keeps its locks for seconds."""
    async with (
        open_floor(urls, accounts=1) as floor,
        open_floor(urls, accounts=1, venue=floor.venue) as other,
        executing(floor),
    ):
        mine = await floor.create()
        await floor.until_status(mine, "NEW")
        theirs = await other.create()
        await other.until_status(theirs, "NEW")
        holder = await asyncpg.connect(urls.owner.reveal())
        async with holder.transaction():
            where = {"stream_heads": "organization_id = $1", "orders": "order_id = $1"}[held]
            key = other.office.organization if held == "stream_heads" else theirs
            await holder.execute(f"SELECT FROM {held} WHERE {where} FOR UPDATE", key)
            floor.fill(await other.coid(theirs))
            floor.fill(await floor.coid(mine))
            await floor.until_status(mine, "FILLED", 1.0)
            assert (await other.order(theirs))["order_status"] == "NEW"
        await holder.close()
        await other.until_status(theirs, "FILLED")
