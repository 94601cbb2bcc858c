"""An order that its FIX venue calls over ends here, whichever message shows it."""

from decimal import Decimal
from itertools import permutations

import pytest

from tests.orders.facts import terms, view
from trading_intents.brokers.fix import wire
from trading_intents.brokers.fix.messages import ReceivedMessage, encode, parse
from trading_intents.orders.facts import Fact, event_fact
from trading_intents.orders.model import OrderStatus, OrderView

ORDER = {35: "8", 37: "V1", 11: "C", 55: "ACME", 54: "1", 38: "10", 6: "100"}
NEW = {150: "0", 39: "0", 17: "E1", 151: "10", 14: "0"}
CUT = {150: "D", 378: "5", 39: "0", 17: "E2", 38: "6", 151: "6", 14: "0"}
PART = {150: "F", 39: "1", 17: "E3", 151: "6", 14: "4", 32: "4", 31: "100"}
WHOLE = {150: "F", 39: "2", 17: "E4", 38: "6", 151: "0", 14: "6", 32: "2", 31: "100"}
TOO_LATE = {35: "9", 11: "X", 41: "C", 434: "1", 102: "0"}
STATUS = {150: "I", 17: "0"}


def facts_of(*messages: dict[int, str]) -> list[Fact]:
    facts = dict[str, Fact]()
    for number, fields in enumerate(messages):
        raw = encode("FIX.4.4", list((ORDER | fields).items()))
        for event in wire.events_of(ReceivedMessage(1, number, parse(raw))):
            fact = event_fact(event)
            facts.setdefault(fact.key, fact)
    return list(facts.values())


def order_after(*messages: dict[int, str]) -> OrderView:
    return view(*facts_of(*messages), terms=terms("10"))


def test_an_order_that_the_venue_cuts_is_filled_by_less() -> None:
    order = order_after(NEW, CUT, PART, WHOLE)
    assert (order.status, order.quantity) == (OrderStatus.FILLED, Decimal(6))
    assert order.filled_quantity == 6
    assert order.flags == ()
    assert order_after(NEW, CUT).reason == "replaced_by_broker"
    statuses = {
        view(*shuffled, terms=terms("10")).status
        for shuffled in permutations(facts_of(NEW, CUT, PART, WHOLE))
    }
    assert statuses == {"FILLED"}


def test_a_restatement_of_an_orders_own_terms_says_nothing_of_it() -> None:
    order = order_after(NEW, CUT | {378: "1", 38: "10"})
    assert (order.status, order.quantity) == (OrderStatus.NEW, Decimal(10))
    assert order.reason is None


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (PART | {39: "4", 151: "0"}, "CANCELLED"),
        (PART | {39: "C", 151: "0"}, "EXPIRED"),
        (PART | {39: "3", 151: "0"}, "EXPIRED"),
        (PART | {39: "2", 151: "0"}, "FILLED"),
        (PART | {39: "8", 151: "0"}, "CANCELLED"),
        (STATUS | {39: "4", 14: "4", 151: "0"}, "CANCELLED"),
        (STATUS | {39: "2", 14: "4", 151: "0"}, "FILLED"),
        (STATUS | {39: "3", 14: "4", 151: "0"}, "EXPIRED"),
        (TOO_LATE | {39: "4"}, "CANCELLED"),
        (TOO_LATE | {39: "C", 434: "2"}, "EXPIRED"),
        (PART, "PARTIALLY_FILLED"),
        (PART | {39: "3", 59: "1"}, "PARTIALLY_FILLED"),
        (TOO_LATE | {39: "1"}, "PARTIALLY_FILLED"),
    ],
)
def test_what_the_venue_calls_over_is_over(last: dict[int, str], status: str) -> None:
    order = order_after(NEW, PART, last)
    assert (order.status, order.filled_quantity) == (status, Decimal(4))
    assert "resurrected" not in [flag.value for flag in order.flags]
    whole = order_after(NEW, PART, last, last)
    assert whole == order, "the venue may say it again"
