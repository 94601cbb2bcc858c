"""Entries and legs, recorded in whatever order answer, stream, look-up and snapshot come."""

from collections.abc import AsyncIterator
from itertools import permutations
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.conftest import Urls
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.linked_orders import group_orders
from tests.execution.recorded_orders import Books, Sent, fill, open_books, ours, reported
from tests.journal import FACTS
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.orders.facts import FactKind
from trading_intents.orders.ledger.recording import RecordedAccount
from trading_intents.storage.database import Database
from trading_intents.trading import EXITS, Leg

E = EventKind
F = FactKind


@pytest.fixture
async def books(urls: Urls, database: Database) -> AsyncIterator[Books]:
    async with open_books(urls, database) as opened:
        yield opened
        await assert_true_books(database)


async def group(books: Books, *legs: Leg) -> list[Sent]:
    """An entry and its legs of 100, as they are accepted and sent."""
    entry = await books.create("100", limit="10")
    made = {
        leg: await books.create("100", limit="20", side="SELL" if leg in EXITS else "BUY")
        for leg in legs
    }
    await group_orders(
        books.owner, entry.order_id, {leg: sent.order_id for leg, sent in made.items()}
    )
    return [entry, *made.values()]


async def shown(books: Books, orders: list[Sent]) -> list[str]:
    rows = [await books.order(order) for order in orders]
    unprotected = await books.unprotected()
    texts = []
    for row in rows:
        derived = ["unprotected"] if str(row["order_id"]) in unprotected else []
        parts = [row["order_status"], row["reason"], *row["flags"], *derived]
        texts.append(" ".join(filter(None, parts)))
    return texts


def named(
    leg: Leg, kind: EventKind, broker_order_id: str, parent: Sent | None = None, **more: Any
) -> BrokerEvent:
    """A report on a leg that the venue has named itself; answers, look-ups and snapshots have its
    `parent`."""
    key = str(more.pop("key", f"{kind}/{broker_order_id}"))
    known: dict[str, Any] = {"parent": parent.client_order_id, "leg": leg} if parent else {}
    return reported(kind, None, key, broker_order_id=broker_order_id, **known, **more)


async def test_legs_are_booked_with_their_entry(books: Books) -> None:
    entry, profit, loss = orders = await group(books, *EXITS)
    await books.record(
        *(reported(E.ACCEPTED, order, broker_order_id=f"b{n}") for n, order in enumerate(orders))
    )
    assert await shown(books, orders) == ["NEW", "NEW", "NEW"]
    assert [(await books.order(order))["active"] for order in orders] == [True, False, False]
    await books.record(fill(entry, "e1", "40"))
    assert [(await books.order(order))["active"] for order in orders] == [True, True, True]
    assert [event.order_id for event in (await books.events())[-3:-1]] == [
        str(leg.order_id) for leg in (profit, loss)
    ]
    await books.record(
        *(
            reported(E.REPLACED, leg, quantity="40", reason="replaced_by_broker")
            for leg in (profit, loss)
        )
    )
    assert [(await books.order(leg))["quantity"] for leg in (profit, loss)] == [40, 40]
    await books.record(fill(profit, "e2", "40", "20"))
    assert await shown(books, orders) == ["PARTIALLY_FILLED", "PARTIALLY_FILLED", "NEW"]
    await books.record(
        reported(E.CANCELLED, entry, cum_quantity="40"),
        reported(E.CANCELLED, loss, reason="pair_filled"),
    )
    assert await shown(books, orders) == ["CANCELLED", "FILLED", "CANCELLED pair_filled"]
    assert (await books.position())["quantity"] == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (F.REFUSED, "REJECTED"),
        (F.STALE, "EXPIRED stale"),
        (F.NOT_DELIVERED, "REJECTED not_delivered"),
        (F.CANCELLED_BEFORE_SEND, "CANCELLED before_send"),
    ],
)
async def test_an_entry_that_never_arrived_ends_its_legs(
    books: Books, kind: FactKind, expected: str
) -> None:
    orders = await group(books, *EXITS)
    await books.record(own=(ours(orders[0], kind),))
    assert await shown(books, orders) == [expected, *["REJECTED entry_rejected"] * 2]
    # It is there all the same: all are open again, and the entry alone is cancelled.
    recorded = await books.record(reported(E.ACCEPTED, orders[1], at=5))
    # Both are looked up.
    assert set(recorded.resurrected) == {orders[0].order_id, orders[1].order_id}
    recorded = await books.record(
        reported(E.ACCEPTED, orders[0], at=4), reported(E.ACCEPTED, orders[2], at=5)
    )
    assert await shown(books, orders) == ["NEW resurrected"] * 3
    views = [recorded.view_of(UUID(order_id)) for order_id in recorded.orders]
    assert [view.is_unwanted for view in views] == [True, False, False]


async def test_an_entry_that_ends_unfilled_ends_its_legs_until_a_late_fill(books: Books) -> None:
    entry, *_ = orders = await group(books, *EXITS)
    await books.record(
        *(reported(E.ACCEPTED, order) for order in orders), reported(E.CANCELLED, entry, at=1)
    )
    assert await shown(books, orders) == ["CANCELLED", *["CANCELLED entry_ended"] * 2]
    await books.record(fill(entry, "e1", "40", at=2))
    assert await shown(books, orders) == [
        "CANCELLED late_fill",
        "NEW resurrected",
        "NEW resurrected",
    ]


async def test_legs_that_the_venue_names_are_found_in_whatever_order_it_reports(
    books: Books,
) -> None:
    for order in permutations(range(4)):
        entry, profit, _ = orders = await group(books, *EXITS)
        name = uuid4().hex
        events = [
            reported(E.ACCEPTED, entry, broker_order_id=f"{name}e"),
            # In the answer or a look-up.
            named(Leg.TAKE_PROFIT, E.ACCEPTED, f"{name}t", parent=entry),
            # Streamed.
            named(
                Leg.TAKE_PROFIT, E.FILL, f"{name}t", exec_id=f"{name}f", quantity="100", price="20"
            ),
            fill(entry, f"{name}b", "100", broker_order_id=f"{name}e"),
        ]
        for number in order:
            await books.record(events[number])
        assert await shown(books, orders) == ["FILLED", "FILLED", "PENDING_NEW"], order
        assert (await books.order(profit))["external_order_id"] == f"{name}t"
        await books.record(
            named(Leg.STOP_LOSS, E.CANCELLED, f"{name}s", parent=entry, reason="pair_filled")
        )
        assert await shown(books, orders) == ["FILLED", "FILLED", "CANCELLED pair_filled"], order


async def test_the_same_report_of_a_leg_names_it_when_it_comes_again(books: Books) -> None:
    entry, *_ = orders = await group(books, *EXITS)
    await books.record(named(Leg.TAKE_PROFIT, E.ACCEPTED, "t1"))
    await books.record(named(Leg.TAKE_PROFIT, E.TRIGGERED, "t1"))
    assert await shown(books, orders) == ["PENDING_NEW"] * 3
    await books.record(named(Leg.TAKE_PROFIT, E.ACCEPTED, "t1", parent=entry))
    assert await shown(books, orders) == ["PENDING_NEW", "NEW", "PENDING_NEW"]
    await books.record(named(Leg.TAKE_PROFIT, E.EXPIRED, "t1"))
    assert await shown(books, orders) == ["PENDING_NEW", "EXPIRED", "PENDING_NEW"]
    keys = f"SELECT array_agg(DISTINCT key ORDER BY key) FROM {FACTS} WHERE order_id IS {{}} NULL"
    astray, owned = [await books.owner.fetchval(keys.format(each)) for each in ("", "NOT")]
    assert set(astray) < set(owned)


async def test_exits_that_both_fill_are_booked_and_flagged(books: Books) -> None:
    entry, profit, loss = orders = await group(books, *EXITS)
    await books.record(fill(entry, "e1", "100"), fill(profit, "e2", "100"), fill(loss, "e3", "30"))
    assert await shown(books, orders) == ["FILLED", "FILLED overfill", "PARTIALLY_FILLED overfill"]
    assert (await books.position())["quantity"] == -30


async def test_one_cancels_other_counts_once_and_is_never_unprotected(books: Books) -> None:
    limit, stop = orders = await group(books, Leg.ONE_CANCELS_OTHER)
    await books.record(reported(E.ACCEPTED, limit), reported(E.ACCEPTED, stop))
    assert [(await books.order(order))["active"] for order in orders] == [True, True]
    await books.record(
        fill(limit, "e1", "40"),
        reported(E.REPLACED, stop, quantity="60", reason="replaced_by_broker"),
    )
    await books.record(reported(E.CANCELLED, limit))
    assert await shown(books, orders) == ["CANCELLED", "NEW"]
    assert (await books.order(limit))["uncovered_since"] is None
    await books.record(reported(E.CANCELLED, stop))


async def derive_later(books: Books, entry: Sent) -> RecordedAccount:
    """Derives such orders again, as the worker does after five seconds."""
    await books.wait_until_uncovered()
    return await books.record(reported(E.STATUS, entry, key=uuid4().hex))


async def test_an_entry_whose_exits_end_early_is_flagged_after_five_seconds(books: Books) -> None:
    entry, profit, loss = orders = await group(books, *EXITS)
    await books.record(*(reported(E.ACCEPTED, order) for order in orders), fill(entry, "e1", "100"))
    await books.record(reported(E.CANCELLED, profit))
    recorded = await derive_later(books, entry)
    assert (await books.order(entry))["uncovered_since"] is None
    await books.record(reported(E.CANCELLED, loss, reason="pair_cancelled"))
    assert (await books.order(entry))["uncovered_since"] is not None
    assert await shown(books, orders) == ["FILLED", "CANCELLED", "CANCELLED pair_cancelled"]
    recorded = await derive_later(books, entry)
    assert [order.is_newly_unprotected for order in recorded.orders.values()] == [
        True,
        False,
        False,
    ]
    assert await shown(books, orders) == [
        "FILLED unprotected",
        "CANCELLED",
        "CANCELLED pair_cancelled",
    ]
    recorded = await derive_later(books, entry)
    assert not any(order.is_newly_unprotected for order in recorded.orders.values())
    assert (await shown(books, orders))[0] == "FILLED unprotected"
