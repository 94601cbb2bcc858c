"""Scripted faults strike as often as they are scripted, and leave the broker's own book true."""

from decimal import Decimal
from uuid import uuid4

import pytest

from tests.brokers.paper.market import named, terms
from tests.brokers.paper.venue import Venue, assert_books_balance, deadline
from trading_intents.brokers.port import Absent, BrokerEvent, OrderSnapshot, Outcome
from trading_intents.clock import SystemClock


async def test_a_scripted_refusal_is_a_refusal(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await session.submit("zero", "buy 1 limit 1")
    await venue.fault(account, "reject", remaining=3)
    results = [
        await session.submit("one", "buy 1 market"),
        await session.replace("r", "zero", "buy 2 limit 1"),
    ]
    results.append(await session.cancel("x", "zero"))
    assert {(result.outcome, result.code) for result in results} == {
        (Outcome.REJECTED, "scripted_refusal")
    }
    assert (await session.submit("two", "buy 1 market")).outcome is Outcome.ACKED
    assert (await session.events(4))[1:] == [
        f"{kind} scripted_refusal" for kind in ("rejected", "replace_rejected", "cancel_rejected")
    ]


async def test_a_dropped_answer_leaves_an_order_that_works(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await venue.fault(account, "drop_answer", command="SUBMIT")
    result = await session.submit("one", "buy 1 limit 1")
    assert (result.outcome, result.updates, result.broker_order_id) == (Outcome.UNKNOWN, (), None)
    assert isinstance(await session.broker.lookup("one", None, deadline()), OrderSnapshot)
    assert (await session.cancel("x", "one")).outcome is Outcome.ACKED
    assert await session.events(2) == ["accepted", "cancelled"]


async def test_a_lost_command_never_arrived(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await venue.fault(account, "lose", remaining=1)
    assert (await session.submit("one", "buy 1 market")).outcome is Outcome.UNKNOWN
    assert await session.broker.lookup("one", None, deadline()) == Absent()
    assert await venue.journal(account) == []
    assert (await session.submit("one", "buy 1 market")).outcome is Outcome.ACKED


async def test_events_come_twice_or_last_first(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await venue.fault(account, "duplicate", remaining=1)
    await session.submit("one", "buy 1 market")
    assert await session.events(4) == ["accepted", "fill 1@101"] * 2
    await venue.fault(account, "reorder", remaining=1)
    await session.submit("two", "buy 1 market")
    assert await session.events(2) == ["fill 1@101", "accepted"]
    assert session.has_no_event()


async def test_a_delayed_answer_and_its_events_come_late(venue: Venue) -> None:
    account = uuid4()
    clock = SystemClock()
    session = await venue.open_session(account)
    await venue.fault(account, "delay", millis=300, remaining=1)
    start = clock.monotonic()
    assert (await session.submit("one", "buy 1 market")).outcome is Outcome.ACKED
    assert clock.monotonic() - start >= 0.3
    await venue.fault(account, "delay", millis=60_000, remaining=1)
    asked = await session.broker.submit(named(terms("buy 1 market"), "two"), deadline(2.0))
    assert asked.outcome is Outcome.UNKNOWN
    assert isinstance(await session.broker.lookup("two", None, deadline()), OrderSnapshot)


async def test_an_overfill_is_what_it_says(venue: Venue) -> None:
    account = uuid4()
    await venue.post("99x10 101x10")
    session = await venue.open_session(account)
    await venue.fault(account, "overfill", remaining=1)
    await session.submit("one", "buy 3 market")
    await session.submit("two", "buy 3 market")
    assert await session.events(4) == ["accepted", "fill 6@101", "accepted", "fill 3@101"]
    await assert_books_balance(venue.owner, account)


async def test_a_session_that_breaks_has_to_be_opened_again(venue: Venue) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await venue.fault(account, "disconnect", remaining=1)
    assert (await session.submit("one", "buy 1 market")).outcome is Outcome.UNKNOWN
    while isinstance(await session.event(), BrokerEvent):
        pass
    assert (await session.submit("two", "buy 1 market")).outcome is Outcome.NOT_SENT
    again = await venue.open_session(account)
    assert isinstance(await again.broker.lookup("one", None, deadline()), OrderSnapshot)
    assert (await again.submit("two", "buy 1 market")).outcome is Outcome.ACKED
    assert len(await again.events(2)) == 2
    assert again.has_no_event()


@pytest.mark.parametrize("fault", ["drop_answer", "lose"])
async def test_chances_are_kept(venue: Venue, fault: str) -> None:
    account = uuid4()
    session = await venue.open_session(account)
    await venue.fault(account, fault, chance=Decimal("0.3"))
    outcomes = [(await session.submit(f"c{n}", "buy 1 limit 1")).outcome for n in range(50)]
    assert 3 <= outcomes.count(Outcome.UNKNOWN) <= 30
    arrived = len(await venue.journal(account))
    assert arrived == (50 if fault == "drop_answer" else outcomes.count(Outcome.ACKED))
