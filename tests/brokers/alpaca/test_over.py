"""An order that Alpaca calls over ends here, whatever shows it."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from trading_intents.brokers.alpaca import wire
from trading_intents.brokers.alpaca.order import AlpacaOrder
from trading_intents.brokers.port import EventKind

E = EventKind
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def order(status: str, filled: str = "4") -> AlpacaOrder:
    return AlpacaOrder(
        id="v1",
        client_order_id="c1",
        status=status,
        time_in_force="day",
        submitted_at=NOON,
        symbol="ACME",
        side="buy",
        qty=Decimal(10),
        filled_qty=Decimal(filled),
    )


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        ("partially_filled", [E.FILL]),
        ("filled", [E.FILL]),
        ("canceled", [E.FILL, E.CANCELLED]),
        ("expired", [E.FILL, E.EXPIRED]),
        ("done_for_day", [E.FILL, E.EXPIRED]),
    ],
)
def test_an_execution_shows_the_end_of_its_order(status: str, kinds: list[EventKind]) -> None:
    update = wire.TradeUpdate(
        event="partial_fill",
        order=order(status),
        execution_id="e1",
        price=Decimal(100),
        qty=Decimal(4),
    )
    events = wire.update_events(update)
    assert [event.kind for event in events] == kinds
    ends = [each.dedupe_key for each in wire.order_events(order(status)) if each.kind in kinds[1:]]
    assert [each.dedupe_key for each in events[1:]] == ends, "the stream reports it under that key"


@pytest.mark.parametrize(
    ("status", "quantity", "is_working"),
    [
        ("filled", 4, False),
        ("partially_filled", 10, True),
        ("canceled", 10, False),
        ("calculated", 10, True),
    ],
)
def test_a_filled_order_works_no_more_than_it_filled(
    status: str, quantity: int, is_working: bool
) -> None:
    found = wire.chain_snapshot([order(status)], [])
    assert (found.quantity, found.is_working) == (Decimal(quantity), is_working)
