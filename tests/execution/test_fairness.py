"""No account slows another: one whose broker is slow, whose queue is long, or whose rows another
transaction holds."""

import asyncio
import time
from statistics import median
from uuid import UUID

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import (
    InProcessExecution,
    executing,
    open_in_process,
)
from tests.fakes import Act, FakeVenue, VenueSession
from tests.intents.in_process_writer import add_account
from trading_intents.brokers.port import (
    CommandResult,
    IntegrationContext,
    Lookup,
    OrderTicket,
    SentOrder,
)
from trading_intents.execution.dispatcher import MAX_IN_FLIGHT
from trading_intents.execution.reconciler import MAX_LOOKUPS
from trading_intents.execution.sessions.event_reader import MAX_OPENING
from trading_intents.execution.sessions.session import OPEN_SECONDS
from trading_intents.intents.model import Cancel
from trading_intents.storage.database import LOCK_LIMIT_SECONDS

CALL_SECONDS = 3.0
QUEUED = 300
MARGIN_SECONDS = 0.1
ROUNDS = 9


class SlowVenue(FakeVenue):
    """Takes `call_seconds` for each CREATE of the accounts in `slow`, for each look-up of those in
    `slow_lookups`."""

    def __init__(self, calls_at_once: int = 10) -> None:
        super().__init__("paper", calls_at_once=calls_at_once)
        self.call_seconds = CALL_SECONDS
        self.slow: set[UUID] = set()
        self.slow_lookups: set[UUID] = set()
        self.under_way = self.max_under_way = self.ended = 0  # slow calls

    def connect(self, context: IntegrationContext) -> VenueSession:
        return SlowSession(self, context.account.id)


class SlowSession(VenueSession):
    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        assert isinstance(self._venue, SlowVenue)
        if self.account_id in self._venue.slow:
            await self._delay(self._venue)
        return await super().submit(ticket, deadline)

    async def lookup(self, sent: SentOrder, deadline: float) -> Lookup:
        assert isinstance(self._venue, SlowVenue)
        if self.account_id in self._venue.slow_lookups:
            await self._delay(self._venue)
        return await super().lookup(sent, deadline)

    async def _delay(self, venue: SlowVenue) -> None:
        venue.under_way += 1
        venue.max_under_way = max(venue.max_under_way, venue.under_way)
        try:
            await asyncio.sleep(venue.call_seconds)
        finally:
            venue.under_way -= 1
            venue.ended += 1


async def time_create_and_cancel(
    in_process: InProcessExecution, account: UUID
) -> tuple[float, float]:
    """Seconds until a CREATE is acknowledged, and until a CANCEL has ended it, in the middle one of
    some rounds."""
    creates = []
    cancels = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        intent = await in_process.create(account=account)
        await in_process.until_status(intent, "NEW")
        creates.append(time.monotonic() - began)
        began = time.monotonic()
        await in_process.submit(in_process.in_process_writer.command(account, Cancel(str(intent))))
        await in_process.until_status(intent, "CANCELLED")
        cancels.append(time.monotonic() - began)
    return median(creates), median(cancels)


@pytest.mark.slow
@pytest.mark.deadline
async def test_a_slow_account_delays_no_other(urls: Urls) -> None:
    venue = SlowVenue()
    async with open_in_process(urls, accounts=2, venue=venue) as in_process, executing(in_process):
        slow, fast = in_process.in_process_writer.accounts
        unloaded = await time_create_and_cancel(in_process, fast)
        venue.slow.add(slow)
        await asyncio.gather(*(in_process.create(account=slow) for _ in range(QUEUED)))
        beside = await time_create_and_cancel(in_process, fast)
        for before, after in zip(unloaded, beside, strict=True):
            assert after <= max(2 * before, before + MARGIN_SECONDS), (unloaded, beside)
        waiting = await in_process.in_process_writer.owner.fetchval(
            "SELECT count(*) FROM commands WHERE account_id = $1", slow
        )
        assert waiting > QUEUED / 2, "the slow account was done before the test was"


async def test_an_account_has_no_more_commands_under_way_than_its_broker_takes(urls: Urls) -> None:
    venue = SlowVenue(calls_at_once=4)
    async with open_in_process(urls, accounts=2, venue=venue) as in_process:
        slow, fast = in_process.in_process_writer.accounts
        venue.slow.add(slow)
        await asyncio.gather(*(in_process.create(account=slow) for _ in range(20)))
        async with executing(in_process):
            await in_process.until_true(lambda: venue.under_way >= venue.capabilities.calls_at_once)
            await in_process.create(account=slow)
            # Claimed after all of the others.
            await in_process.until_status(await in_process.create(account=fast), "NEW")
            claimed = await in_process.in_process_writer.owner.fetchval(
                "SELECT count(sent_at) FROM known_commands WHERE account_id = $1", slow
            )
            # On a slow machine some of the calls have ended meanwhile, and others have begun.
            assert (claimed - venue.ended <= 4, venue.max_under_way) == (True, 4), (
                claimed,
                venue.ended,
            )


@pytest.mark.slow
@pytest.mark.deadline
async def test_calls_that_are_not_answered_delay_no_other_account(urls: Urls) -> None:
    """An account whose broker takes more calls at once than this process has under way
    altogether."""
    venue = SlowVenue(calls_at_once=MAX_IN_FLIGHT + 1)
    async with open_in_process(urls, accounts=2, venue=venue) as in_process:
        slow, fast = in_process.in_process_writer.accounts
        venue.slow.add(slow)
        await asyncio.gather(*(in_process.create(account=slow) for _ in range(MAX_IN_FLIGHT)))
        async with executing(in_process):
            await in_process.until_true(lambda: venue.under_way == MAX_IN_FLIGHT)
            await in_process.until_status(await in_process.create(account=fast), "NEW")
            assert venue.ended == 0, "the order waited for a slow call"


@pytest.mark.slow
@pytest.mark.deadline
async def test_slow_look_ups_of_an_account_delay_no_other(urls: Urls) -> None:
    venue = SlowVenue()
    async with open_in_process(urls, accounts=2, venue=venue) as in_process, executing(in_process):
        slow, fast = in_process.in_process_writer.accounts
        venue.slow_lookups.add(slow)
        venue.acts += [Act.DROP] * MAX_LOOKUPS
        for _ in range(MAX_LOOKUPS):
            await in_process.create(account=slow)
        await in_process.until_true(lambda: venue.under_way == MAX_LOOKUPS)
        venue.acts.append(Act.DROP)
        venue.is_mute = True
        await in_process.until_status(await in_process.create(account=fast), "NEW")
        assert venue.lookups, "it was not the look-up that reported it"
        assert venue.ended == 0, "the look-up waited for a slow one"


@pytest.mark.slow
async def test_a_cancel_overtakes_the_queue_of_its_own_account(urls: Urls) -> None:
    venue = SlowVenue()
    venue.call_seconds = CALL_SECONDS / 2  # its queue of a hundred takes ten times that
    async with (
        open_in_process(urls, venue=venue) as in_process,
        executing(in_process, max_age_millis=60_000),
    ):
        working = await in_process.create()
        await in_process.until_status(working, "NEW")
        venue.slow.add(in_process.account)
        queued = await asyncio.gather(*(in_process.create() for _ in range(100)))
        await in_process.cancel(working)
        await in_process.until_status(working, "CANCELLED", 2 * venue.call_seconds + 1)
        await in_process.cancel(queued[-1])
        ended = await in_process.until_status(queued[-1], "CANCELLED", 2 * venue.call_seconds + 1)
        assert ended["reason"] == "before_send"
        assert await in_process.coid(queued[-1]) not in venue.arrived("submit")


@pytest.mark.deadline
@pytest.mark.parametrize("held", ["stream_heads", "orders"])
async def test_what_another_transaction_holds_delays_nobody_else(urls: Urls, held: str) -> None:
    """A process that stands still in a transaction keeps its locks for seconds."""
    async with (
        open_in_process(urls, accounts=1) as in_process,
        open_in_process(urls, accounts=1, venue=in_process.venue) as other,
        executing(in_process),
    ):
        mine = await in_process.create()
        await in_process.until_status(mine, "NEW")
        theirs = await other.create()
        await other.until_status(theirs, "NEW")
        my_id = await in_process.coid(mine)
        their_id = await other.coid(theirs)
        holder = await asyncpg.connect(urls.owner.reveal())
        async with holder.transaction():
            where = {"stream_heads": "organization_id = $1", "orders": "order_id = $1"}[held]
            key = other.in_process_writer.organization if held == "stream_heads" else theirs
            await holder.execute(f"SELECT FROM {held} WHERE {where} FOR UPDATE", key)
            in_process.fill(their_id)  # nothing is awaited between them: both are in one batch
            in_process.fill(my_id)
            # Nobody waited for the lock.
            await in_process.until_status(mine, "FILLED", LOCK_LIMIT_SECONDS - 0.4)
            assert (await other.order(theirs))["order_status"] == "NEW"
        await holder.close()
        await other.until_status(theirs, "FILLED")


@pytest.mark.slow
async def test_a_locked_order_keeps_no_other_accounts_command_from_failing(urls: Urls) -> None:
    async with open_in_process(urls, accounts=2) as in_process:
        locked, free = [
            await in_process.create(account=each) for each in in_process.in_process_writer.accounts
        ]
        in_process.venue.acts.append(Act.FAIL)
        holder = await asyncpg.connect(urls.owner.reveal())
        async with holder.transaction():
            await holder.execute("SELECT FROM orders WHERE order_id = $1 FOR UPDATE", locked)
            async with executing(in_process, attempt_limit=1):
                await in_process.until_status(free, "REJECTED")
                assert (await in_process.order(locked))["order_status"] == "PENDING_NEW"
        await holder.close()


class HangingVenue(FakeVenue):
    """Opens no session, and says nothing."""

    def connect(self, context: IntegrationContext) -> VenueSession:
        self.contexts.append(context)
        return HangingSession(self, context.account.id)


class HangingSession(VenueSession):
    async def open(self) -> None:
        await asyncio.Event().wait()


async def test_a_broker_that_opens_no_session_delays_no_other_brokers(urls: Urls) -> None:
    hanging = HangingVenue("paper")
    other = FakeVenue("other")
    async with (
        open_in_process(urls, accounts=2 * MAX_OPENING, venue=hanging) as in_process,
        executing(in_process, others=[other.integration]),
    ):
        await in_process.until_true(lambda: len(hanging.contexts) >= 2 * MAX_OPENING)
        writer = in_process.in_process_writer
        added = await add_account(writer.owner, writer.organization, broker="other")

        async def is_connected() -> bool:
            return await in_process.connection(added) == "connected"

        await in_process.until(is_connected, OPEN_SECONDS)
