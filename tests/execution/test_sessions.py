"""Sessions: opened, reconciled, closed; what their state lets through; and which worker holds
them."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.arranged import alerts, retried, set_credential, until_connection
from tests.execution.in_process_execution import (
    MAX_AGE_MILLIS,
    InProcessExecution,
    executing,
    open_in_process,
)
from tests.fakes import Act, FakeVenue, VenueSession
from trading_intents.brokers.paper.broker import INTEGRATION
from trading_intents.brokers.port import AccountSnapshot, EventKind, IntegrationContext, SentOrder
from trading_intents.clock import SystemClock
from trading_intents.execution.service import Execution
from trading_intents.execution.sessions import session, store
from trading_intents.execution.sessions.store import LEASE_SECONDS
from trading_intents.telemetry import Metrics


async def test_a_session_that_ends_is_opened_again_and_reconciled(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.disconnect()
        in_process.fill(await in_process.coid(intent))
        await in_process.until_status(intent, "FILLED")
        await until_connection(in_process, "connected")
        assert in_process.venue.snapshots >= 2


async def test_a_gap_is_reconciled(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.is_mute = True
        in_process.fill(await in_process.coid(intent))
        in_process.venue.leave_gap()
        await in_process.until_status(intent, "FILLED")
        assert in_process.venue.snapshots >= 2


async def end_unheard(in_process: InProcessExecution, intent: UUID) -> None:
    """The venue ends the order, and drops the event."""
    in_process.venue.is_mute = True
    in_process.venue.end(await in_process.coid(intent), EventKind.CANCELLED)
    in_process.venue.is_mute = False


async def test_an_order_that_was_sent_just_before_the_session_ended_is_looked_up_later(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "JUST_SENT_SECONDS", just_sent_seconds := 2.0)
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await end_unheard(in_process, intent)
        in_process.venue.disconnect()
        ended = await in_process.until_status(intent, "CANCELLED")
        assert in_process.venue.snapshots >= 2
        assert in_process.venue.lookups == [await in_process.coid(intent)]
        sent_at = await in_process.in_process_writer.owner.fetchval("SELECT sent_at FROM orders")
        assert ended["finished_at"] - sent_at >= timedelta(seconds=just_sent_seconds)


async def test_open_orders_are_reconciled_now_and_then(urls: Urls) -> None:
    async with (
        open_in_process(urls, accounts=2) as in_process,
        executing(in_process, reconcile_seconds=0.5),
    ):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET sent_at = sent_at - interval '1 min'"
        )
        await end_unheard(in_process, intent)
        await in_process.until_status(intent, "CANCELLED")
        reconciled = in_process.venue.snapshots
        assert reconciled > 2, "once for each session, and then again"
        other = await in_process.create(account=in_process.in_process_writer.accounts[1])
        await in_process.until_true(lambda: in_process.venue.snapshots > reconciled + 1)
        assert (await in_process.order(other))["order_status"] == "NEW"


class HangingVenue(FakeVenue):
    """Answers no snapshot of the account `hanging`; `asked` names the account of each one."""

    hanging: UUID | None = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[UUID] = []

    def connect(self, context: IntegrationContext) -> VenueSession:
        self.contexts.append(context)
        return HangingSession(self, context.account.id)


class HangingSession(VenueSession):
    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        assert isinstance(self._venue, HangingVenue)
        self._venue.asked.append(self.account_id)
        if self._venue.hanging == self.account_id:
            self._venue.failed_snapshots += 1
            await asyncio.Event().wait()
        return await super().snapshot(since, open_orders)


async def test_a_broker_that_answers_no_snapshot_delays_no_other_accounts_reconcile(
    urls: Urls,
) -> None:
    venue = HangingVenue("paper")
    async with (
        open_in_process(urls, accounts=2, venue=venue) as in_process,
        executing(in_process, reconcile_seconds=0.3),
    ):
        intents = [
            await in_process.create(account=account)
            for account in in_process.in_process_writer.accounts
        ]
        for intent in intents:
            await in_process.until_status(intent, "NEW")
        venue.hanging = in_process.in_process_writer.accounts[0]
        await in_process.until_true(lambda: venue.failed_snapshots == 1)
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET sent_at = sent_at - interval '1 min'"
        )
        await end_unheard(in_process, intents[1])
        await in_process.until_status(intents[1], "CANCELLED", 5)
        assert venue.failed_snapshots == 1


async def test_an_account_without_open_orders_is_not_reconciled(urls: Urls) -> None:
    venue = HangingVenue("paper")
    async with (
        open_in_process(urls, accounts=2, venue=venue) as in_process,
        executing(in_process, reconcile_seconds=0.2),
    ):
        busy, idle = in_process.in_process_writer.accounts
        await in_process.create(account=busy)
        await in_process.until_true(lambda: venue.asked.count(busy) > 4)
        assert venue.asked.count(idle) == 1, "only when its session was opened"


async def test_a_reconcile_now_and_then_hurries_no_look_up(urls: Urls) -> None:
    """A broker that stayed connected can report no more than at the last look-up."""
    async with open_in_process(urls) as in_process, executing(in_process, reconcile_seconds=0.2):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET lookups = 3, lookup_due_at = clock_timestamp() + interval '1 hour'"
        )
        before = await in_process.order(intent)
        reconciled = in_process.venue.snapshots
        await in_process.until_true(lambda: in_process.venue.snapshots > reconciled + 2)
        after = await in_process.order(intent)
        assert (after["lookups"], after["lookup_due_at"]) == (3, before["lookup_due_at"])
        assert in_process.venue.lookups == []


@pytest.mark.usefixtures("soon")
async def test_an_order_that_the_broker_lost_raises_one_alert(urls: Urls) -> None:
    metrics = Metrics()
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, metrics=metrics, reconcile_seconds=0.2),
    ):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        coid = await in_process.coid(intent)
        lost = in_process.venue.orders.pop(coid)
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET sent_at = sent_at - interval '1 min'"
        )
        await in_process.until_true(lambda: bool(in_process.venue.lookups))
        hurry = """
            UPDATE orders SET lookup_due_at = clock_timestamp()
            WHERE lookup_due_at > clock_timestamp()
        """

        async def looked_up_again() -> bool:
            await in_process.in_process_writer.owner.execute(hurry)
            return len(in_process.venue.lookups) > 3

        await in_process.until(looked_up_again)
        assert alerts(metrics, "order_lost") == 1
        in_process.venue.orders[coid] = lost
        in_process.venue.end(coid, EventKind.EXPIRED)
        await in_process.until_status(intent, "EXPIRED")


async def test_a_broker_that_fails_to_list_its_open_orders_keeps_its_session(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process, reconcile_seconds=0.2):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.fails_snapshots = True
        await in_process.until_true(lambda: in_process.venue.failed_snapshots > 2)
        assert len(in_process.venue.contexts) == 1
        assert await in_process.connection() == "connected"


async def test_a_broker_that_is_away_is_tried_until_it_is_back(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.is_away = True
        async with executing(in_process):
            await in_process.until_true(lambda: len(in_process.venue.contexts) >= 3)
            in_process.venue.is_away = False
            await until_connection(in_process, "connected")


@pytest.mark.usefixtures("soon")
async def test_a_refused_credential_waits_for_another(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a credential that worked; this one never did.
    monkeypatch.setattr(session, "REFUSED_PAUSES_SECONDS", (0.01,))
    async with open_in_process(
        urls, venue=FakeVenue("paper", credential_fields=("token",))
    ) as in_process:
        async with executing(in_process):
            await until_connection(in_process, "credential_missing")
            in_process.venue.refuses_login = True
            await set_credential(in_process, "old")
            await until_connection(in_process, "credential_rejected")
            in_process.venue.refuses_login = False
            assert len(in_process.venue.contexts) == 1, "not tried again with the same one"
            await set_credential(in_process, "new")
            await until_connection(in_process, "connected")
        assert [context.secrets["token"].reveal() for context in in_process.venue.contexts] == [
            "old",
            "new",
        ]


async def test_a_credential_that_worked_is_tried_until_it_works_again(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the while it is shown as refused, also when it is just being tried."""
    monkeypatch.setattr(session, "REFUSED_PAUSES_SECONDS", (0.01, 0.02))
    shown = list[str]()
    open_session = VenueSession.open
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        await until_connection(in_process, "connected")
        (opened,) = execution.leases.sessions.values()

        async def note_state(self: VenueSession) -> None:
            shown.append(opened.state)
            await open_session(self)

        monkeypatch.setattr(VenueSession, "open", note_state)
        in_process.venue.refuses_login = True
        in_process.venue.disconnect()
        await in_process.until_true(lambda: len(shown) >= 5)
        in_process.venue.refuses_login = False
        await until_connection(in_process, "connected")
    assert {*shown[1:]} == {"credential_rejected"}


@pytest.mark.usefixtures("soon")
async def test_an_account_that_changes_in_name_only_keeps_its_session(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        await until_connection(in_process, "connected")
        (opened,) = execution.leases.sessions.values()
        await in_process.in_process_writer.owner.execute(
            "UPDATE accounts SET name = 'b', link_generation = link_generation + 1"
        )
        await in_process.until_true(lambda: opened.generation == 1)
        await in_process.in_process_writer.owner.execute(
            "UPDATE accounts SET external_account_id = 'x', link_generation = link_generation + 1"
        )
        await in_process.until_true(lambda: len(in_process.venue.contexts) == 2)
        assert in_process.venue.contexts[1].account.external_account_id == "x"


@pytest.mark.usefixtures("soon")
async def test_a_closed_account_has_no_session_and_no_lease(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        await until_connection(in_process, "connected")
        await in_process.in_process_writer.owner.execute(
            "UPDATE accounts SET closed_at = now(), link_generation = link_generation + 1"
        )
        await in_process.until_true(
            lambda: not execution.leases.sessions and not in_process.venue.sessions
        )
        assert await in_process.in_process_writer.count("leases") == 0


async def test_a_broker_that_fails_gets_cancels_only_until_a_snapshot_succeeds(urls: Urls) -> None:
    metrics = Metrics()
    async with open_in_process(urls) as in_process, executing(in_process, metrics=metrics):
        working = await in_process.create()
        await in_process.until_status(working, "NEW")
        in_process.venue.fails_snapshots = True
        in_process.venue.acts += [Act.FAIL] * 5
        failing = [await in_process.create() for _ in range(5)]
        await in_process.until_true(lambda: not in_process.venue.acts)
        later = await in_process.create()
        await in_process.cancel(working)
        await in_process.until_status(working, "CANCELLED")
        assert len(in_process.venue.arrived("submit")) == 1
        assert [row["attempts"] for row in await in_process.rows(later)] == [0]
        assert await in_process.connection() == "connected"
        in_process.venue.fails_snapshots = False
        for intent in (*failing, later):
            await in_process.until_status(intent, "NEW")
        assert len(in_process.venue.arrived("submit")) == 7


async def test_a_budget_keeps_something_for_cancels(urls: Urls) -> None:
    async with (
        open_in_process(urls, venue=FakeVenue("paper", requests_per_minute=12)) as in_process,
        executing(in_process),
    ):
        first = await in_process.create()
        await in_process.until_status(first, "NEW")
        more = [await in_process.create() for _ in range(3)]
        await in_process.cancel(first)
        await in_process.until_status(first, "CANCELLED", 5)  # the next request is free after 6.7
        assert len(in_process.venue.arrived("submit")) < 1 + len(more)
        await in_process.until_status(more[0], "NEW", 30)


class ShiftedClock(SystemClock):
    """The machine's wall clock is wrong by so many seconds."""

    def __init__(self, seconds: int) -> None:
        self._shift = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._shift


@pytest.mark.parametrize("seconds", [-31, 31])
async def test_a_worker_whose_clock_is_wrong_sends_all_the_same(urls: Urls, seconds: int) -> None:
    metrics = Metrics()
    clock = ShiftedClock(seconds)
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, clock=clock, integration=INTEGRATION, metrics=metrics),
    ):
        await until_connection(in_process, "connected")
        intent = await in_process.create()

        async def is_sent() -> bool:
            return bool((await in_process.order(intent))["external_order_id"])

        await in_process.until(is_sent)
        assert retried(metrics) == 0


@pytest.mark.parametrize("seconds", [-31, 0, 31])
async def test_a_ticket_ends_at_the_orders_age_whatever_the_wall_clock_says(
    urls: Urls, seconds: int
) -> None:
    clock = ShiftedClock(seconds)
    async with open_in_process(urls) as in_process:
        intent = await in_process.create()
        age = "UPDATE actions SET created_at = created_at - interval '10 s'"
        await in_process.in_process_writer.owner.execute(
            f"SET session_replication_role = replica; {age}"
        )
        before = clock.monotonic()
        async with executing(in_process, clock=clock):
            await in_process.until_status(intent, "NEW")
        not_after = in_process.venue.orders[await in_process.coid(intent)].ticket.not_after
        assert not_after is not None
        assert before < not_after < clock.monotonic() + MAX_AGE_MILLIS / 1000 - 10


def holders(*executions: Execution) -> list[int]:
    return [len(execution.leases.sessions) for execution in executions]


@pytest.mark.slow
@pytest.mark.deadline
async def test_accounts_are_spread_over_workers_and_free_when_one_stops(urls: Urls) -> None:
    async with open_in_process(urls, accounts=6) as in_process, executing(in_process) as first:
        await in_process.until_true(lambda: holders(first) == [6])
        async with executing(in_process) as second:
            await in_process.until_true(lambda: holders(first, second) == [3, 3])
            assert not set(first.leases.sessions) & set(second.leases.sessions)
            intents = [
                await in_process.create(account=account)
                for account in in_process.in_process_writer.accounts
            ]
            for intent in intents:
                await in_process.until_status(intent, "NEW")
        # None of them had to expire.
        await in_process.until_true(lambda: holders(first) == [6], LEASE_SECONDS - 1)
        assert len(in_process.venue.arrived("submit")) == 6


async def test_a_worker_whose_lease_ran_out_starts_over_under_another_name(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as first:
        await in_process.until_true(lambda: holders(first) == [1])
        name = first.leases.worker_id
        opened = next(iter(first.leases.sessions.values()))
        await in_process.in_process_writer.owner.execute(
            "UPDATE workers SET expires_at = clock_timestamp()"
        )
        await in_process.until_true(
            lambda: first.leases.worker_id != name and holders(first) == [1]
        )
        assert next(iter(first.leases.sessions.values())) is not opened
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")


async def test_a_new_account_is_worked_at_once(urls: Urls) -> None:
    async with open_in_process(urls, accounts=2) as in_process, executing(in_process) as execution:
        await in_process.until_true(lambda: holders(execution) == [2])
        intents = await asyncio.gather(
            *(
                in_process.create(account=account)
                for account in in_process.in_process_writer.accounts
            )
        )
        for intent in intents:
            await in_process.until_status(intent, "NEW", 5)
