"""Orders that a broker has though they were shown as ended: open again, counted as such, and
cancelled."""

from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import Urls
from tests.execution.arranged import alerts, prove_absent, until_missed
from tests.execution.halt_calls import actions, halt, until
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act, FakeVenue, VenueSession
from trading_intents.brokers.port import CommandResult, OrderTicket, Outcome
from trading_intents.errors import IntentClosed
from trading_intents.execution.sessions import session
from trading_intents.intents.model import Cancel
from trading_intents.telemetry import Metrics
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce


def arrive(it: InProcessExecution, ticket: OrderTicket, filled: str = "0") -> None:
    """The order is taken after all, and its events come together."""
    it.venue.is_mute = True
    it.venue.take(it.account, "submit", ticket)
    if filled != "0":
        it.fill(ticket.client_order_id, filled)
    it.venue.is_mute = False
    for event in it.venue.orders[ticket.client_order_id].events:
        it.venue.sessions[0].received.put_nowait(event)


@pytest.fixture
def refused_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every CREATE is refused by its answer, and works all the same."""
    submit = VenueSession.submit

    async def refuse(self: VenueSession, ticket: OrderTicket, deadline: float) -> CommandResult:
        await submit(self, ticket, deadline)
        return CommandResult(
            outcome=Outcome.REJECTED, code="40310000", message="insufficient buying power"
        )

    monkeypatch.setattr(VenueSession, "submit", refuse)


@pytest.fixture
def waiting_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that the venue leaves unanswered stays so for the test: the platform's own CANCEL
    would follow it."""
    monkeypatch.setattr(session, "LOOKUP_SECONDS", 600.0)


async def until_open(it: InProcessExecution, intent: Any) -> Any:
    async def is_open() -> bool:
        order = await it.order(intent)
        return bool(order["flags"] and order["finished_at"] is None)

    await it.until(is_open)
    return await it.order(intent)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("filled", ["0", "3"])
async def test_an_order_that_was_given_up_and_arrives_late_is_cancelled(
    urls: Urls, filled: str
) -> None:
    metrics = Metrics()
    venue = FakeVenue("paper", unique_order_ids=False)
    async with open_in_process(urls, venue=venue) as it, executing(it, metrics=metrics):
        it.venue.acts.append(Act.LOSE)
        intent = await it.create()
        await until_missed(it)
        await prove_absent(it)
        assert (await it.until_status(intent, "REJECTED"))["reason"] == "not_delivered"
        it.venue.acts.append(Act.LOSE)  # the first CANCEL: it is repeated under an id of its own
        arrive(it, it.venue.lost[await it.coid(intent)], filled)
        order = await it.until_status(intent, "CANCELLED")
        assert order["filled_quantity"] == Decimal(filled)
        assert order["flags"] == (
            ["late_fill", "resurrected"] if filled != "0" else ["resurrected"]
        )
        assert [command for command, _ in it.venue.journal] == ["submit", "cancel"]
        assert len({*it.venue.lost, *it.venue.arrived("cancel")}) == 3, (
            "each CANCEL has an id of its own"
        )
        assert alerts(metrics, "resurrected") == 1


@pytest.mark.usefixtures("refused_and_taken")
async def test_an_order_that_was_refused_and_works_is_cancelled(urls: Urls) -> None:
    metrics = Metrics()
    async with open_in_process(urls) as it, executing(it, metrics=metrics):
        intent = await it.create()
        order = await it.until_status(intent, "CANCELLED")
        assert (order["flags"], alerts(metrics, "resurrected")) == (["resurrected"], 1)
        assert len(it.venue.arrived("cancel")) == 1


@pytest.mark.usefixtures("refused_and_taken", "waiting_lookups")
async def test_a_caller_may_cancel_an_order_that_was_refused_and_works(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        it.venue.answers_lookups.clear()
        intent = await it.create()
        assert (await until_open(it, intent))["order_status"] == "NEW"
        await it.cancel(intent)
        await it.until_status(intent, "CANCELLED")
        assert it.system_cancels == []


@pytest.mark.usefixtures("refused_and_taken", "waiting_lookups")
async def test_a_halt_cancels_an_order_that_was_refused_and_works(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        it.venue.answers_lookups.clear()
        intent = await it.create()
        await until_open(it, intent)
        found = await halt(it)
        await until(it, found, state="done", orders=1, orders_done=1)
        assert [row["intent_id"] for row in await actions(it, found, "CANCEL")] == [intent]
        assert it.venue.orders[await it.coid(intent)].over


async def test_an_order_that_was_cancelled_unsent_and_arrives_is_cancelled_at_the_broker(
    urls: Urls,
) -> None:
    async with open_in_process(urls) as it, executing(it):
        it.venue.acts += [Act.FAIL] * 3
        intent = await it.create()
        await it.put_off(intent)
        await it.cancel(intent)
        assert (await it.until_status(intent, "CANCELLED"))["reason"] == "before_send"
        await it.until_rows_are("completed")
        ticket = OrderTicket(
            client_order_id=await it.coid(intent),
            symbol=Symbol("AAPL"),
            side=OrderSide.BUY,
            kind=OrderKind.LIMIT,
            quantity=Decimal(10),
            limit_price=Decimal(100),
            time_in_force=TimeInForce.DAY,
        )
        arrive(it, ticket)
        await it.until_true(lambda: len(it.venue.arrived("cancel")) == 1)
        await it.until_status(intent, "CANCELLED")


@pytest.mark.usefixtures("refused_and_taken", "soon")
async def test_a_refused_cancel_of_an_unwanted_order_is_followed_by_another(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        it.venue.acts += [Act.ANSWER, Act.REFUSE]
        intent = await it.create()
        await it.until_true(lambda: len(it.venue.arrived("cancel")) == 1)

        async def is_cancelled() -> bool:
            """As if the seconds until the next CANCEL had passed."""
            await it.in_process_writer.owner.execute(
                "UPDATE commands SET sent_at = sent_at - interval '10 s'"
            )
            await it.in_process_writer.owner.execute(
                "UPDATE orders SET lookup_due_at = clock_timestamp() WHERE lookups > 0"
            )
            return bool((await it.order(intent))["order_status"] == "CANCELLED")

        await it.until(is_cancelled)
        assert len(it.venue.arrived("cancel")) == 2


@pytest.mark.parametrize("bust_reopens", [True, False], ids=["works again", "stays final"])
async def test_a_bust_of_a_filled_order_follows_its_broker(urls: Urls, bust_reopens: bool) -> None:
    venue = FakeVenue("paper", bust_reopens=bust_reopens)
    async with open_in_process(urls, venue=venue) as it, executing(it):
        intent = await it.create()
        await it.until_status(intent, "NEW")
        it.fill(await it.coid(intent))
        await it.until_status(intent, "FILLED")
        venue.bust(await it.coid(intent))

        async def is_flat() -> bool:
            return bool(
                await it.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 0
            )

        await it.until(is_flat)
        order = await it.order(intent)
        assert (order["filled_quantity"], order["flags"]) == (0, ["conflicting_execution"])
        answer = await it.in_process_writer.submit(
            it.in_process_writer.command(it.account, Cancel(str(intent)))
        )
        if bust_reopens:
            await it.until_status(intent, "CANCELLED")
        else:
            assert order["order_status"] == "FILLED"
            assert isinstance(answer, IntentClosed)
            assert venue.arrived("cancel") == []
