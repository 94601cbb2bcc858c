"""Leases in the table and sessions in the process stay equal, however slow commits are, and
whatever is lost."""

import asyncio
from functools import partial
from uuid import uuid4

import pytest

from tests.conftest import Urls
from tests.execution.arranged import alerts, until_connection
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.lost_answers import executing_through
from tests.fakes import FakeVenue, VenueSession
from trading_intents.brokers.port import IntegrationContext
from trading_intents.clock import SystemClock
from trading_intents.execution import service
from trading_intents.execution.service import Execution
from trading_intents.execution.sessions import leases as leases_module
from trading_intents.execution.sessions import store
from trading_intents.ids import id_maker
from trading_intents.storage.database import Database
from trading_intents.telemetry import Metrics

LEASE_SECONDS = 2.0
SLOW_COMMITS = """
    CREATE OR REPLACE FUNCTION wait_before_commit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep({}); RETURN NULL; END $$
"""
ON_RENEWALS = """
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON workers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_before_commit()
"""


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that end after two seconds, with all that is measured by them."""
    for module in (leases_module, store):
        monkeypatch.setattr(module, "LEASE_SECONDS", LEASE_SECONDS)
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", LEASE_SECONDS / 8)
    monkeypatch.setattr(leases_module, "GUARD_SECONDS", LEASE_SECONDS / 20)
    monkeypatch.setattr(leases_module, "BALANCE_SECONDS", LEASE_SECONDS / 8)


async def make_renewals_slow(in_process: InProcessExecution, seconds: float) -> None:
    owner = in_process.in_process_writer.owner
    await owner.execute(SLOW_COMMITS.format(seconds))
    if not await owner.fetchval("SELECT count(*) FROM pg_trigger WHERE tgname = 'slow'"):
        await owner.execute(ON_RENEWALS)


async def until_renewed(in_process: InProcessExecution, times: int) -> None:
    found = set()

    async def is_renewed() -> bool:
        found.add(
            await in_process.in_process_writer.owner.fetchval("SELECT max(expires_at) FROM workers")
        )
        return len(found) > times

    await in_process.until(is_renewed)


async def check_worked(in_process: InProcessExecution, execution: Execution) -> None:
    """Each account has its lease and its one session, and shows it; a CREATE and a CANCEL get
    through."""
    leases = execution.leases
    owner = in_process.in_process_writer.owner

    async def are_equal() -> bool:
        rows = await owner.fetch("SELECT account_id, worker_id, token FROM leases")
        held = {row["account_id"]: (row["worker_id"], row["token"]) for row in rows}
        sessions = {
            account_id: (session.lease.worker_id, session.lease.token)
            for account_id, session in leases.sessions.items()
        }
        return held == sessions and sorted(held) == sorted(in_process.in_process_writer.accounts)

    await in_process.until(are_equal)
    for account in in_process.in_process_writer.accounts:
        await until_connection(in_process, "connected", account)
    intent = await in_process.create()
    await in_process.until_status(intent, "NEW")
    await in_process.cancel(intent)
    await in_process.until_status(intent, "CANCELLED")


async def test_a_worker_is_woken_for_the_accounts_that_it_has_leased(urls: Urls) -> None:
    async with open_in_process(urls, accounts=2) as in_process, executing(in_process) as execution:
        leases = execution.leases
        await in_process.until_true(lambda: len(leases.sessions) == 2)
        one, other = (str(each) for each in in_process.in_process_writer.accounts)
        assert [leases.has_account(each) for each in (one, str(uuid4()))] == [True, False]
        lanes = {session.account_text: session.lane for session in leases.sessions.values()}
        for names in ((one,), ()):
            for lane in lanes.values():
                lane.is_woken = False
            leases.wake_lanes(*names)
            assert (lanes[one].is_woken, lanes[other].is_woken) == (True, not names)


@pytest.mark.slow
@pytest.mark.usefixtures("short_leases")
async def test_renewals_that_commit_slowly_end_no_session(urls: Urls) -> None:
    async with open_in_process(urls, accounts=3) as in_process, executing(in_process) as execution:
        await in_process.until_true(lambda: len(execution.leases.sessions) == 3)
        before = dict(execution.leases.sessions)
        await make_renewals_slow(in_process, LEASE_SECONDS * 0.4)
        await until_renewed(in_process, 3)
        assert execution.leases.sessions == before
        await check_worked(in_process, execution)


@pytest.mark.usefixtures("short_leases")
async def test_a_worker_whose_renewals_outlast_its_lease_sends_nothing_and_starts_over(
    urls: Urls,
) -> None:
    async with open_in_process(urls, accounts=3) as in_process, executing(in_process) as execution:
        await in_process.until_true(lambda: len(execution.leases.sessions) == 3)
        before = execution.leases.worker_id
        await make_renewals_slow(in_process, LEASE_SECONDS * 0.65)
        await in_process.until_true(
            lambda: not execution.leases.sessions and not in_process.venue.sessions
        )
        waiting = await in_process.create()
        assert execution.leases.claimable() == []
        await make_renewals_slow(in_process, 0)
        await in_process.until_status(waiting, "NEW")
        assert execution.leases.worker_id != before
        await check_worked(in_process, execution)


@pytest.mark.usefixtures("short_leases")
async def test_sessions_end_with_the_lease_though_the_database_does_not_answer(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        await in_process.until_true(lambda: len(in_process.venue.sessions) == 1)
        owner = in_process.in_process_writer.owner
        async with owner.transaction():
            await owner.execute("LOCK TABLE workers, leases IN ACCESS EXCLUSIVE MODE")
            await in_process.until_true(lambda: not in_process.venue.sessions)
            assert execution.leases.sessions == {}
        await check_worked(in_process, execution)


class SlowlyClosing(FakeVenue):
    """Its sessions take until `may_close` to close, as the closing handshake of a websocket
    does."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may_close = asyncio.Event()

    def connect(self, context: IntegrationContext) -> VenueSession:
        return SlowlyClosingSession(self, context.account.id)


class SlowlyClosingSession(VenueSession):
    async def close(self) -> None:
        await super().close()
        assert isinstance(self._venue, SlowlyClosing)
        await self._venue.may_close.wait()


@pytest.mark.usefixtures("soon")
async def test_a_lease_that_was_taken_unanswered_while_the_old_session_closes_is_worked(
    urls: Urls,
) -> None:
    async with executing_through(urls, venue=(venue := SlowlyClosing("paper"))) as (
        in_process,
        execution,
        lost,
    ):
        await until_connection(in_process, "connected")
        owner = in_process.in_process_writer.owner
        before = execution.leases.worker_id
        await owner.execute("UPDATE workers SET expires_at = clock_timestamp()")
        await in_process.until_true(lambda: execution.leases.worker_id != before)
        lost.is_on = True
        lease = "SELECT true FROM leases WHERE worker_id = $1"

        async def is_taken() -> bool:
            return bool(await owner.fetchval(lease, execution.leases.worker_id))

        await in_process.until(is_taken)
        lost.is_on = False
        await check_worked(in_process, execution)
        venue.may_close.set()


class CancelledOnce(FakeVenue):
    def connect(self, context: IntegrationContext) -> VenueSession:
        session = super().connect(context)
        if len(self.contexts) == 1:
            raise asyncio.CancelledError
        return session


@pytest.mark.usefixtures("soon")
async def test_a_session_whose_task_was_cancelled_from_within_is_replaced(urls: Urls) -> None:
    async with (
        open_in_process(urls, venue=CancelledOnce("paper")) as in_process,
        executing(in_process) as execution,
    ):
        await check_worked(in_process, execution)


async def test_a_worker_whose_renewal_is_about_to_commit_keeps_its_leases(
    urls: Urls, database: Database
) -> None:
    async with open_in_process(urls) as in_process:
        slow, other, never = (id_maker(SystemClock())() for _ in range(3))
        async with database.worker.transaction() as tx:
            await store.enlist(tx, slow, never)
            assert await store.take(tx, slow, 9) == in_process.in_process_writer.accounts

        async def take_others() -> list[object] | None:
            async with database.worker.transaction() as tx:
                await store.remove_expired(tx)
                return list(await store.take(tx, other, 9) or ())

        owner = in_process.in_process_writer.owner
        async with database.worker.transaction() as tx:
            assert await store.renew(tx, slow)
            # What the others see meanwhile is the time before the renewal, which has passed.
            assert await take_others() == []
        await owner.execute("UPDATE workers SET expires_at = clock_timestamp()")
        assert await take_others() == in_process.in_process_writer.accounts
        async with database.worker.transaction() as tx:
            assert not await store.renew(tx, slow)


async def test_a_taken_lease_shows_no_connection_of_the_last_holder(
    urls: Urls, database: Database
) -> None:
    async with open_in_process(urls) as in_process:
        await in_process.in_process_writer.owner.execute(
            "UPDATE accounts SET connection = 'connected'"
        )
        async with database.worker.transaction() as tx:
            await store.take(tx, id_maker(SystemClock())(), 9)
        assert await in_process.connection() == "disconnected"


@pytest.mark.usefixtures("soon")
async def test_a_connection_that_is_shown_wrongly_is_corrected(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await until_connection(in_process, "connected")
        await in_process.in_process_writer.owner.execute(
            "UPDATE accounts SET connection = 'credential_rejected'"
        )
        await until_connection(in_process, "connected")


async def test_a_lease_without_a_session_and_an_order_that_waits_too_long_raise_alerts(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.1)
    metrics = Metrics()
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, metrics=metrics) as execution,
    ):
        await until_connection(in_process, "connected")
        monkeypatch.setattr(execution.leases, "_match", lambda *_: None)  # as if it were wrong
        (session,) = execution.leases.sessions.values()
        execution.leases.sessions.clear()
        await session.close(0)
        await in_process.create()
        await in_process.in_process_writer.owner.execute(
            "UPDATE commands SET created_at = created_at - interval '1 hour'"
        )
        for kind in ("lease_without_session", "pending_too_old"):
            await in_process.until_true(partial(lambda kind: alerts(metrics, kind) > 0, kind))
        assert metrics.registry.get_sample_value("ti_execution_unknown_orders") == 0
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET order_status = 'UNKNOWN', lookup_due_at = now()"
        )
        await in_process.until_true(
            lambda: metrics.registry.get_sample_value("ti_execution_unknown_orders") == 1
        )
