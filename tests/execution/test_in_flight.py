"""Commands that are claimed and not recorded yet are bounded by what is recorded, and the bound is
shared fairly."""

import asyncio
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act, FakeVenue, VenueSession
from trading_intents.brokers.port import CommandResult, IntegrationContext, OrderTicket
from trading_intents.execution import dispatcher
from trading_intents.execution.dispatcher import MIN_UNRECORDED, RECORDED_SECONDS

ORDERS = 3 * MIN_UNRECORDED
SLOW_RECORDER = """
    CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
    CREATE TRIGGER slow AFTER INSERT ON reports FOR EACH STATEMENT EXECUTE FUNCTION be_slow()
"""
IN_FLIGHT = """
    SELECT count(*) FILTER (WHERE status = 'processing') AS claimed,
        count(*) FILTER (WHERE finished_at > clock_timestamp() - make_interval(secs => $1))
            AS recorded,
        count(*) FILTER (WHERE finished_at IS NULL) AS waiting
    FROM outbox WHERE queue = 'intents'
"""


async def create_in_all(in_process: InProcessExecution, orders: int) -> None:
    accounts = in_process.in_process_writer.accounts
    await asyncio.gather(
        *(in_process.create(account=accounts[n % len(accounts)]) for n in range(orders))
    )


@pytest.mark.slow
async def test_no_more_is_claimed_than_was_recorded_lately(urls: Urls) -> None:
    venue = FakeVenue("paper", calls_at_once=ORDERS)
    async with open_in_process(urls, accounts=2, venue=venue) as in_process:
        owner = in_process.in_process_writer.owner
        most = 0
        await create_in_all(in_process, ORDERS)
        await owner.execute(SLOW_RECORDER)
        async with executing(in_process):

            async def is_done() -> bool:
                nonlocal most
                row = await owner.fetchrow(IN_FLIGHT, RECORDED_SECONDS)
                assert row["claimed"] <= max(MIN_UNRECORDED, row["recorded"]), dict(row)
                most = max(most, row["claimed"])
                return bool(row["waiting"] == 0)

            await in_process.until(is_done)
        assert most >= MIN_UNRECORDED
        assert await owner.fetchval("SELECT max(attempts) FROM outbox WHERE queue = 'intents'") == 1


class OrderOfArrival(FakeVenue):
    """Notes the account of each CREATE, in the order in which they arrive, and answers when the
    test lets it."""

    def __init__(self) -> None:
        super().__init__("paper")
        self.accounts: list[UUID] = []
        self.answers = asyncio.Event()

    def connect(self, context: IntegrationContext) -> VenueSession:
        self.contexts.append(context)
        return NotedSession(self, context.account.id)


class NotedSession(VenueSession):
    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        assert isinstance(self._venue, OrderOfArrival)
        self._venue.accounts.append(self.account_id)
        await self._venue.answers.wait()
        return await super().submit(ticket, deadline)


@pytest.fixture
def two_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_UNRECORDED", "MAX_IN_FLIGHT"):
        monkeypatch.setattr(dispatcher, name, 2)


@pytest.mark.usefixtures("two_unrecorded")
async def test_accounts_share_the_slots_when_there_are_more_than_may_be_in_flight(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All orders are there, whichever came first, before the broker answers the two that keep them
    waiting."""
    monkeypatch.setattr(dispatcher, "SLOW_SECONDS", 60.0)
    venue = OrderOfArrival()
    accounts = 5
    rounds = 3
    async with (
        open_in_process(urls, accounts=accounts, venue=venue) as in_process,
        executing(in_process) as execution,
    ):
        sessions = execution.leases.sessions
        await in_process.until_true(
            lambda: sum(session.is_up for session in sessions.values()) == accounts
        )
        await create_in_all(in_process, 2)
        await in_process.until_true(lambda: len(venue.accounts) == 2)
        await create_in_all(in_process, accounts * rounds)
        venue.answers.set()
        await in_process.until_rows_are("completed")
    shares = [
        venue.accounts[start : start + accounts]
        for start in range(2, 2 + accounts * rounds, accounts)
    ]
    assert [len(set(share)) for share in shares] == [accounts] * rounds, venue.accounts


@pytest.mark.usefixtures("two_unrecorded")
async def test_a_cancel_to_a_failing_broker_does_not_wait_for_other_accounts_orders(
    urls: Urls,
) -> None:
    queued = 60
    async with (
        open_in_process(urls, accounts=2) as in_process,
        executing(in_process, level="critical"),
    ):
        other = in_process.in_process_writer.accounts[1]
        working = await in_process.create()
        await in_process.until_status(working, "NEW")
        in_process.venue.fails_snapshots = True
        in_process.venue.acts += [Act.FAIL] * 5
        for _ in range(5):
            await in_process.create()
        await in_process.until_true(lambda: not in_process.venue.acts)
        await asyncio.gather(*(in_process.create(account=other) for _ in range(queued)))
        await in_process.cancel(working)
        await in_process.until_status(working, "CANCELLED")
        assert len(in_process.venue.arrived("submit")) < queued
