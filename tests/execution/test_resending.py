"""What is sent a second time: a CREATE that provably never arrived, under its own id; a CANCEL whose answer was lost,
each time under another."""

import asyncio
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import Floor, executing, open_floor
from tests.execution.test_sending import alerts, prove_absent, until_missed
from trading_intents.brokers.port import IntegrationContext, Lookup
from trading_intents.execution.model import PROOF_SECONDS
from trading_intents.telemetry import Metrics
from trading_intents.testing.fakes import Act, FakeVenue, VenueLink

pytestmark = pytest.mark.quiet

ATTEMPTS = 10


async def lose_create(floor: Floor) -> UUID:
    """A CREATE that was marked, never arrived, and was found missing once."""
    floor.venue.acts.append(Act.LOSE)
    intent = await floor.create()
    await until_missed(floor)
    return intent


async def hurry_rows(floor: Floor) -> None:
    await floor.office.owner.execute("UPDATE outbox SET due_at = clock_timestamp() WHERE status = 'pending'")


async def test_a_create_that_never_arrived_is_sent_again_under_its_id(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await lose_create(floor)
        coid = await floor.coid(intent)
        assert floor.venue.journal == []
        await prove_absent(floor)
        await floor.until_status(intent, "NEW")
        assert floor.venue.journal == [("submit", coid)]
        assert list(floor.venue.lost) == [coid]
        await floor.until_rows_are("completed")
        floor.fill(coid)
        await floor.until_status(intent, "FILLED")
        assert (await floor.order(intent))["flags"] == []


async def test_a_create_is_sent_again_until_it_arrives(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await lose_create(floor)
        floor.venue.acts += [Act.LOSE, Act.FAIL]
        await prove_absent(floor)
        await floor.until_true(lambda: len(floor.venue.acts) == 1)
        await until_missed(floor)
        await prove_absent(floor)
        await floor.until_status(intent, "NEW")
        assert floor.venue.journal == [("submit", await floor.coid(intent))]


async def test_a_create_that_is_too_old_by_then_is_not_delivered(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor, max_age_millis=1_500):
        intent = await lose_create(floor)

        async def is_old() -> bool:
            age = "SELECT clock_timestamp() > created_at + interval '1.5 s' FROM actions WHERE intent_id = $1"
            return bool(await floor.office.owner.fetchval(age, intent))

        await floor.until(is_old)
        await prove_absent(floor)
        order = await floor.until_status(intent, "REJECTED")
        assert order["reason"] == "not_delivered"
        await floor.until_rows_are("completed")
        assert floor.venue.journal == []


async def test_a_create_that_a_control_stops_by_then_is_refused(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await lose_create(floor)
        await floor.office.owner.execute(
            "INSERT INTO symbol_controls (account_id, symbol, organization_id, manually_disabled)"
            " VALUES ($1, 'AAPL', $2, true)",
            floor.account,
            floor.office.organization,
        )
        await prove_absent(floor)
        order = await floor.until_status(intent, "REJECTED")
        assert order["reason"] == "symbol_manually_disabled"
        assert floor.venue.journal == []


async def test_a_create_that_was_cancelled_meanwhile_is_not_sent_again(urls: Urls) -> None:
    """The broker refused that CANCEL, since it has no such order."""
    async with open_floor(urls) as floor, executing(floor):
        intent = await lose_create(floor)
        await floor.cancel(intent)
        await floor.until_true(lambda: bool(floor.venue.arrived("cancel")))
        await floor.until_rows_are("completed")
        assert (await floor.order(intent))["order_status"] == "UNKNOWN"
        await until_missed(floor)
        await prove_absent(floor)
        order = await floor.until_status(intent, "CANCELLED")
        assert order["reason"] == "before_send"
        assert floor.venue.arrived("submit") == []


async def test_a_replace_waits_for_the_create_that_is_sent_again(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await lose_create(floor)
        await floor.replace(intent, "7")
        await prove_absent(floor)
        order = await floor.until_status(intent, "NEW")
        assert order["quantity"] == 7
        assert [command for command, _ in floor.venue.journal] == ["submit", "replace"]


async def test_a_create_that_arrived_after_all_is_found_by_its_refused_repetition(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        floor.venue.is_mute = True
        intent = await lose_create(floor)
        floor.venue.acts.append(Act.DUPLICATE)
        await prove_absent(floor)
        await floor.until_status(intent, "NEW")
        assert floor.venue.journal == [("submit", await floor.coid(intent))]


async def test_a_create_that_arrives_before_its_repetition_is_not_sent_again(urls: Urls) -> None:
    """As a worker leaves it that was paused between its mark and its call."""
    async with open_floor(urls) as floor:
        async with executing(floor):
            intent = await lose_create(floor)
        coid = await floor.coid(intent)
        owner = floor.office.owner
        await owner.execute("UPDATE commands SET sent_at = NULL, unclear_at = NULL")
        await owner.execute("UPDATE orders SET lookup_due_at = NULL, lookups = 0, absent_at = NULL")
        await owner.execute(
            "UPDATE outbox SET status = 'pending', finished_at = NULL, due_at = clock_timestamp() + interval '5 s',"
            """ payload = payload || '{"resend": true}'"""
        )
        async with executing(floor):
            await floor.until_true(lambda: bool(floor.venue.links))
            floor.venue.take(floor.account, "submit", floor.venue.lost[coid])
            await floor.until_status(intent, "NEW")
            await hurry_rows(floor)
            await floor.until_rows_are("completed")
            await floor.until_true(lambda: floor.venue.lookups.count(coid) > 1)
        assert (floor.venue.journal, floor.venue.duplicates) == ([("submit", coid)], [])


class HeldVenue(FakeVenue):
    """Answers look-ups only when told to, with what it knew when it was asked."""

    def __init__(self) -> None:
        super().__init__("paper")
        self.notify_committed = asyncio.Event()
        self.notify_committed.set()

    def connect(self, context: IntegrationContext) -> VenueLink:
        self.contexts.append(context)
        return HeldLink(self, context.account.id)


class HeldLink(VenueLink):
    async def lookup(self, client_order_id: str, broker_order_id: str | None, deadline: float) -> Lookup:
        found = await super().lookup(client_order_id, broker_order_id, deadline)
        assert isinstance(self._venue, HeldVenue)
        await self._venue.notify_committed.wait()
        return found


async def test_a_look_up_from_before_another_one_proves_nothing(urls: Urls) -> None:
    """As of a worker that was paused while the order was sent again by another."""
    venue = HeldVenue()
    async with open_floor(urls, venue=venue) as floor, executing(floor) as execution:
        intent = await lose_create(floor)
        before = len(venue.lookups)
        venue.notify_committed.clear()
        await prove_absent(floor)
        await floor.until_true(lambda: len(venue.lookups) > before)
        await floor.office.owner.execute("UPDATE orders SET lookup_due_at = clock_timestamp() + interval '1 h'")
        venue.notify_committed.set()
        await floor.until_true(lambda: not execution._reconciler._looking)
        assert (await floor.order(intent))["order_status"] == "UNKNOWN"
        assert [row["status"] for row in await floor.rows(intent)] == ["completed"], "not queued again"
        assert await floor.office.owner.fetchval("SELECT sent_at FROM commands") is not None


async def test_a_lost_cancel_is_sent_again_under_another_id(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.acts += [Act.LOSE, Act.FAIL, Act.LOSE]
        await floor.cancel(intent)
        await floor.until_status(intent, "CANCELLED")
        await floor.until_rows_are("completed")
        cancels = [*floor.venue.lost, *floor.venue.arrived("cancel")]
        assert len(set(cancels)) == len(cancels) == 3
        assert cancels[0] == await floor.coid(intent, "CANCEL")
        known = await floor.office.owner.fetch("SELECT client_order_id FROM commands WHERE action_type = 'CANCEL'")
        assert {row["client_order_id"] for row in known} == set(cancels)


async def test_a_cancel_whose_worker_died_after_its_mark_is_sent_again(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        async with executing(floor):
            intent = await floor.create()
            await floor.until_status(intent, "NEW")
        await floor.cancel(intent)
        await floor.office.owner.execute(
            """
            INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq, action_type, sent_at)
            SELECT account_id, $2, organization_id, intent_id, seq, 'CANCEL', clock_timestamp() FROM actions
            WHERE intent_id = $1 AND action_type = 'CANCEL'
            """,
            intent,
            await floor.coid(intent, "CANCEL"),
        )
        async with executing(floor):
            await floor.until_status(intent, "CANCELLED")
            await floor.until_rows_are("completed")
        (sent,) = floor.venue.arrived("cancel")
        assert sent != await floor.coid(intent, "CANCEL")
        assert [row["attempts"] for row in await floor.rows(intent)][1] >= 2


async def test_a_lost_cancel_is_sent_again_by_the_next_worker(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        async with executing(floor):
            intent = await floor.create()
            await floor.until_status(intent, "NEW")
            floor.venue.acts += [Act.LOSE] * 2
            await floor.cancel(intent)
            await floor.until_true(lambda: not floor.venue.acts)
        async with executing(floor):
            await floor.until_status(intent, "CANCELLED")
        assert len({*floor.venue.lost, *floor.venue.arrived("cancel")}) == 3


async def test_a_cancel_whose_answer_was_lost_is_settled_by_a_look_up(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.is_mute = True
        floor.venue.acts.append(Act.DROP)
        await floor.cancel(intent)
        await floor.until_status(intent, "CANCELLED")
        await floor.until_rows_are("completed")
        assert len(floor.venue.arrived("cancel")) == 1


async def test_a_cancel_that_ten_attempts_could_not_deliver_is_told(urls: Urls) -> None:
    metrics = Metrics()
    async with open_floor(urls) as floor, executing(floor, metrics=metrics):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.acts += [Act.LOSE] * ATTEMPTS
        await floor.cancel(intent)

        async def is_used_up() -> bool:
            await hurry_rows(floor)
            return [row["status"] for row in await floor.rows(intent)] == ["completed", "failed"]

        await floor.until(is_used_up)
        assert (len(floor.venue.lost), alerts(metrics, "cancel_not_delivered")) == (ATTEMPTS, 0)
        await until_missed(floor)
        assert (await floor.order(intent))["order_status"] == "PENDING_CANCEL"
        await prove_absent(floor)
        order = await floor.until_status(intent, "NEW")
        assert order["reason"] == "cancel_not_delivered"
        await floor.until_true(lambda: alerts(metrics, "cancel_not_delivered") == 1)
        await floor.cancel(intent)
        await floor.until_status(intent, "CANCELLED")


async def test_a_refused_cancel_is_not_sent_again(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.acts += [Act.LOSE, Act.REFUSE]
        await floor.cancel(intent)
        order = await floor.until_status(intent, "NEW", PROOF_SECONDS - 2)  # by the refusal, not by a look-up
        assert order["reason"] == "cancel_not_delivered"
        await floor.until_rows_are("completed")
        assert len(floor.venue.arrived("cancel")) == 1


async def test_a_broker_that_fails_holds_no_repeated_cancel(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor) as execution:
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.venue.fails_snapshots = True
        floor.venue.acts += [Act.FAIL] * 5
        others = [await floor.create() for _ in range(5)]
        await floor.until_true(lambda: execution.leases.links[floor.account].breaker.is_open)
        floor.venue.acts.append(Act.LOSE)
        await floor.cancel(intent)
        await floor.until_status(intent, "CANCELLED")
        assert len(floor.venue.arrived("submit")) == 1
        assert {(await floor.order(other))["order_status"] for other in others} == {"PENDING_NEW"}
