"""Commands that are sent a second time: a CREATE that provably never arrived, under its own id; a
CANCEL whose answer was lost, each time under another."""

import asyncio
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.arranged import (
    alerts,
    leave_marked,
    make_older,
    prove_absent,
    until_missed,
)
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act, FakeVenue, VenueSession
from trading_intents.brokers.port import IntegrationContext, Lookup, SentOrder
from trading_intents.execution.model import PROOF_SECONDS
from trading_intents.telemetry import Metrics

ATTEMPTS = 10

pytestmark = pytest.mark.usefixtures("soon")


async def lose_create(in_process: InProcessExecution) -> UUID:
    """A CREATE that was marked, never arrived, and was found missing once."""
    in_process.venue.acts.append(Act.LOSE)
    intent = await in_process.create()
    await until_missed(in_process)
    return intent


async def test_a_create_that_never_arrived_is_sent_again_under_its_id(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await lose_create(in_process)
        coid = await in_process.coid(intent)
        assert in_process.venue.journal == []
        await prove_absent(in_process)
        await in_process.until_status(intent, "NEW")
        assert in_process.venue.journal == [("submit", coid)]
        assert list(in_process.venue.lost) == [coid]
        await in_process.until_queue_is_empty()
        in_process.fill(coid)
        await in_process.until_status(intent, "FILLED")
        assert (await in_process.order(intent))["flags"] == []


@pytest.mark.usefixtures("retried_soon")
async def test_a_create_is_sent_again_until_it_arrives(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await lose_create(in_process)
        in_process.venue.acts += [Act.LOSE, Act.FAIL]
        await prove_absent(in_process)
        await in_process.until_true(lambda: len(in_process.venue.acts) == 1)
        await until_missed(in_process)
        await prove_absent(in_process)
        await in_process.until_status(intent, "NEW")
        assert in_process.venue.journal == [("submit", await in_process.coid(intent))]


async def test_a_create_that_is_too_old_by_then_is_not_delivered(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await lose_create(in_process)
        await make_older(in_process, 31)
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "REJECTED")
        assert order["reason"] == "not_delivered"
        await in_process.until_queue_is_empty()
        assert in_process.venue.journal == []


async def test_a_create_that_a_control_stops_by_then_is_refused(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await lose_create(in_process)
        await in_process.in_process_writer.owner.execute(
            "INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)"
            " VALUES ($1, 'AAPL', $2, true)",
            in_process.account,
            in_process.in_process_writer.organization,
        )
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "REJECTED")
        assert order["reason"] == "symbol_manually_disabled"
        assert in_process.venue.journal == []


async def test_a_create_that_was_cancelled_meanwhile_is_not_sent_again(urls: Urls) -> None:
    """The broker refused that CANCEL, since it has no such order."""
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await lose_create(in_process)
        await in_process.cancel(intent)
        await in_process.until_true(lambda: bool(in_process.venue.arrived("cancel")))
        await in_process.until_queue_is_empty()
        assert (await in_process.order(intent))["order_status"] == "UNKNOWN"
        await until_missed(in_process)
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "CANCELLED")
        assert order["reason"] == "before_send"
        assert in_process.venue.arrived("submit") == []


async def test_a_replace_waits_for_the_create_that_is_sent_again(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await lose_create(in_process)
        await in_process.replace(intent, "7")
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "NEW")
        assert order["quantity"] == 7
        assert [command for command, _ in in_process.venue.journal] == ["submit", "replace"]


async def test_a_create_that_arrived_after_all_is_found_by_its_refused_repetition(
    urls: Urls,
) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.is_mute = True
        intent = await lose_create(in_process)
        in_process.venue.acts.append(Act.DUPLICATE)
        await prove_absent(in_process)
        await in_process.until_status(intent, "NEW")
        assert in_process.venue.journal == [("submit", await in_process.coid(intent))]


async def test_a_create_that_arrives_before_its_repetition_is_not_sent_again(urls: Urls) -> None:
    """As a worker leaves it that was paused between its mark and its call."""
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intent = await lose_create(in_process)
        coid = await in_process.coid(intent)
        owner = in_process.in_process_writer.owner
        await owner.execute("UPDATE orders SET sent_at = NULL")
        await owner.execute("UPDATE orders SET lookup_due_at = NULL, lookups = 0, absent_at = NULL")
        await owner.execute(
            """
                INSERT INTO commands (organization_id, account_id, order_id, seq, action_type,
                    is_resend, due_at)
                SELECT organization_id, account_id, order_id, create_seq, 'CREATE', true,
                    clock_timestamp() + interval '1 h'
                FROM orders
            """
        )
        async with executing(in_process):
            await in_process.until_true(lambda: bool(in_process.venue.sessions))
            in_process.venue.take(in_process.account, "submit", in_process.venue.lost[coid])
            await in_process.until_status(intent, "NEW")
            await in_process.make_due()
            await in_process.until_queue_is_empty()
            await in_process.until_true(lambda: in_process.venue.lookups.count(coid) > 1)
        assert (in_process.venue.journal, in_process.venue.duplicates) == ([("submit", coid)], [])


class HeldVenue(FakeVenue):
    """Answers look-ups only when `answer` is set, with what it knew when it was asked."""

    def __init__(self) -> None:
        super().__init__("paper")
        self.notify_committed = asyncio.Event()
        self.notify_committed.set()

    def connect(self, context: IntegrationContext) -> VenueSession:
        self.contexts.append(context)
        return HeldSession(self, context.account.id)


class HeldSession(VenueSession):
    async def lookup(self, sent: SentOrder, deadline: float) -> Lookup:
        found = await super().lookup(sent, deadline)
        assert isinstance(self._venue, HeldVenue)
        await self._venue.notify_committed.wait()
        return found


async def test_a_look_up_from_before_another_one_proves_nothing(urls: Urls) -> None:
    """As of a worker that was paused while the order was sent again by another."""
    venue = HeldVenue()
    async with open_in_process(urls, venue=venue) as in_process, executing(in_process) as execution:
        intent = await lose_create(in_process)
        before = len(venue.lookups)
        venue.notify_committed.clear()
        await prove_absent(in_process)
        await in_process.until_true(lambda: len(venue.lookups) > before)
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET lookup_due_at = clock_timestamp() + interval '1 h'"
        )
        venue.notify_committed.set()
        await in_process.until_true(lambda: not execution._reconciler._looking)
        assert (await in_process.order(intent))["order_status"] == "UNKNOWN"
        assert await in_process.rows(intent) == [], "not queued again"
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT sent_at FROM orders")
            is not None
        )


@pytest.mark.usefixtures("retried_soon")
async def test_a_lost_cancel_is_sent_again_under_another_id(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts += [Act.LOSE, Act.FAIL, Act.LOSE]
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")
        await in_process.until_queue_is_empty()
        cancels = [*in_process.venue.lost, *in_process.venue.arrived("cancel")]
        assert len(set(cancels)) == len(cancels) == 3
        assert cancels[0] == await in_process.coid(intent, "CANCEL")
        known = await in_process.in_process_writer.owner.fetch(
            "SELECT client_order_id FROM sent_commands WHERE action_type = 'CANCEL'"
        )
        assert {row["client_order_id"] for row in known} == set(cancels)


async def test_a_cancel_whose_worker_died_after_its_mark_is_sent_again(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intent = await in_process.create()
            await in_process.until_status(intent, "NEW")
        await in_process.cancel(intent)
        await leave_marked(in_process, intent, "CANCEL")
        async with executing(in_process):
            await in_process.until_status(intent, "CANCELLED")
            await in_process.until_queue_is_empty()
        (sent,) = in_process.venue.arrived("cancel")
        assert sent != await in_process.coid(intent, "CANCEL")


@pytest.mark.usefixtures("retried_soon")
async def test_a_lost_cancel_is_sent_again_by_the_next_worker(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intent = await in_process.create()
            await in_process.until_status(intent, "NEW")
            in_process.venue.acts += [Act.LOSE] * 2
            await in_process.cancel(intent)
            await in_process.until_true(lambda: not in_process.venue.acts)
        async with executing(in_process):
            await in_process.until_status(intent, "CANCELLED")
        assert len({*in_process.venue.lost, *in_process.venue.arrived("cancel")}) == 3


async def test_a_cancel_whose_answer_was_lost_is_settled_by_a_look_up(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.is_mute = True
        in_process.venue.acts.append(Act.DROP)
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")
        await in_process.until_queue_is_empty()
        assert len(in_process.venue.arrived("cancel")) == 1


async def test_a_cancel_that_ten_attempts_could_not_deliver_raises_an_alert(urls: Urls) -> None:
    metrics = Metrics()
    async with open_in_process(urls) as in_process, executing(in_process, metrics=metrics):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts += [Act.LOSE] * ATTEMPTS
        await in_process.cancel(intent)

        async def is_used_up() -> bool:
            await in_process.make_due()
            return [row["status"] for row in await in_process.rows(intent)] == ["failed"]

        await in_process.until(is_used_up)
        assert (len(in_process.venue.lost), alerts(metrics, "cancel_not_delivered")) == (
            ATTEMPTS,
            0,
        )
        await until_missed(in_process)
        assert (await in_process.order(intent))["order_status"] == "PENDING_CANCEL"
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "NEW")
        assert order["reason"] == "cancel_not_delivered"
        await in_process.until_true(lambda: alerts(metrics, "cancel_not_delivered") == 1)
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")


async def test_a_refused_cancel_is_not_sent_again(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts += [Act.LOSE, Act.REFUSE]
        await in_process.cancel(intent)
        # By the refusal, not by a look-up.
        order = await in_process.until_status(intent, "NEW", PROOF_SECONDS - 2)
        assert order["reason"] == "cancel_not_delivered"
        await in_process.until_queue_is_empty()
        assert len(in_process.venue.arrived("cancel")) == 1


async def test_a_broker_that_fails_holds_no_repeated_cancel(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.fails_snapshots = True
        in_process.venue.acts += [Act.FAIL] * 5
        others = [await in_process.create() for _ in range(5)]
        await in_process.until_true(
            lambda: execution.leases.sessions[in_process.account].breaker.is_open
        )
        in_process.venue.acts.append(Act.LOSE)
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")
        assert len(in_process.venue.arrived("submit")) == 1
        assert {(await in_process.order(other))["order_status"] for other in others} == {
            "PENDING_NEW"
        }
