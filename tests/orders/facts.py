"""Short names for the facts of one order, o1, whose CREATE is C and whose REPLACEs are R and R2."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations

from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.orders.facts import Fact, FactKind, event_fact, own_fact
from trading_intents.orders.model import (
    OrderTerms,
    OrderVersion,
    OrderView,
    PendingCommands,
    derive,
)

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
D = Decimal


def moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else NOON + timedelta(seconds=seconds)


def reported(
    kind: EventKind,
    *,
    key: str | None = None,
    coid: str | None = "C",
    at: int | None = None,
    cum: str | None = None,
    average: str | None = None,
    replaces: str | None = None,
    broker: str | None = None,
    reason: str | None = None,
    quantity: str | None = None,
    price: str | None = None,
) -> Fact:
    event = BrokerEvent(
        kind=kind,
        quantity=None if quantity is None else D(quantity),
        price=None if price is None else D(price),
        dedupe_key=key or f"{kind}/{coid}/{cum}/{at}",
        client_order_id=coid,
        broker_order_id=broker,
        replaces=replaces,
        cum_quantity=None if cum is None else D(cum),
        average_price=None if average is None else D(average),
        venue_time=moment(at),
        reason=reason,
    )
    return event_fact(event)


def fill(
    exec_id: str,
    quantity: str,
    price: str = "10",
    *,
    cum: str | None = None,
    coid: str = "C",
    at: int | None = None,
    fee: str | None = None,
    average: str | None = None,
) -> Fact:
    event = BrokerEvent(
        kind=EventKind.FILL,
        dedupe_key=f"fill/{exec_id}",
        client_order_id=coid,
        exec_id=exec_id,
        quantity=D(quantity),
        price=D(price),
        fee=None if fee is None else D(fee),
        cum_quantity=None if cum is None else D(cum),
        average_price=None if average is None else D(average),
        venue_time=moment(at),
    )
    return event_fact(event)


def bust(exec_id: str, *, at: int | None = None, cum: str | None = None) -> Fact:
    event = BrokerEvent(
        kind=EventKind.FILL_BUST,
        dedupe_key=f"bust/{exec_id}",
        client_order_id="C",
        replaces=exec_id,
        cum_quantity=None if cum is None else D(cum),
        venue_time=moment(at),
    )
    return event_fact(event)


def correct(exec_id: str, of: str, quantity: str, price: str, *, at: int | None = None) -> Fact:
    event = BrokerEvent(
        kind=EventKind.FILL_CORRECT,
        dedupe_key=f"correct/{exec_id}",
        client_order_id="C",
        exec_id=exec_id,
        replaces=of,
        quantity=D(quantity),
        price=D(price),
        venue_time=moment(at),
    )
    return event_fact(event)


def ours(kind: FactKind, coid: str = "C", reason: str | None = None) -> Fact:
    return own_fact(kind, coid, reason)


def terms(quantity: str = "100", *replaced: str, limit: str | None = None) -> OrderTerms:
    ids = ["C", "R", "R2"]
    price = None if limit is None else D(limit)
    amounts = [quantity, *replaced]
    return OrderTerms(
        order_id="o1",
        versions=tuple(
            OrderVersion(
                seq=index + 1, client_order_id=ids[index], quantity=D(amount), limit_price=price
            )
            for index, amount in enumerate(amounts)
        ),
    )


CREATE_ONLY = terms()


def view(
    *facts: Fact, terms: OrderTerms = CREATE_ONLY, pending: PendingCommands | None = None
) -> OrderView:
    """The order after these facts, which come in every order, each also twice: all must agree."""
    pending = pending or PendingCommands()
    expected = derive(terms, facts, pending)
    for order in permutations(facts) if len(facts) <= 4 else [facts, facts[::-1]]:
        assert derive(terms, [*order, *facts], pending) == expected
    return expected
