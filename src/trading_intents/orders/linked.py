"""The orders that a broker links: an entry and its exits, or a limit and the stop beside it. Each
is derived from the facts of all of them. Pure: no I/O, no clock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace

from trading_intents.orders.facts import EXECUTIONS, Fact, FactKind, latest
from trading_intents.orders.model import (
    VENUE_ENDS,
    OrderFlag,
    OrderState,
    OrderStatus,
    OrderTerms,
    OrderView,
    PendingCommands,
    derive,
    with_flag,
)
from trading_intents.orders.positions import OpenSums
from trading_intents.trading import EXITS, ZERO, Leg, OrderSide, exact, total

# Kinds that show that a leg was filled, or ended by itself.
_OWN_LIFE = EXECUTIONS | VENUE_ENDS
ENTRY_ENDED = "entry_ended"
ENTRY_REJECTED = "entry_rejected"
UNCOVERED_TIME = timedelta(seconds=5)  # after which an entry without enough exits is unprotected


class OrderInputs(NamedTuple):
    """All that an order is derived from."""

    terms: OrderTerms
    facts: Sequence[Fact]
    pending: PendingCommands


def derive_group(orders: Sequence[OrderInputs]) -> list[OrderView]:
    """The first is the entry, or the only one; the others are its legs."""
    first, *legs = orders
    entry = derive(replace(first.terms, is_linked=bool(legs)), first.facts, first.pending)
    views = [entry]
    for leg in legs:
        views.append(_derive_leg(leg, entry, first.facts))
    return _with_overfill(views, first.terms.versions[0].quantity) if legs else views


def _derive_leg(inputs: OrderInputs, entry: OrderView, entry_facts: Sequence[Fact]) -> OrderView:
    terms, facts, pending = inputs
    is_exit = terms.leg in EXITS
    may_grow = is_exit and entry.state is OrderState.OPEN
    inherited = _inherited_end(terms.leg, facts, entry, entry_facts)
    terms = replace(terms, is_linked=True, may_grow=may_grow)
    view = derive(terms, [*facts, *inherited], pending)
    active = not is_exit or entry.filled_quantity > 0
    return replace(view, leg=terms.leg, active=active, may_grow=may_grow)


def _inherited_end(
    leg: Leg | None, facts: Sequence[Fact], entry: OrderView, entry_facts: Sequence[Fact]
) -> tuple[Fact, ...]:
    """The end of an entry without a fill is also that of its legs: refused, or never there, or
    over. As a fact it holds as long as the entry's own end does, and is refuted as that is."""
    if (
        entry.state is OrderState.OPEN
        or entry.filled_quantity
        or entry.status is OrderStatus.FILLED
    ):
        return ()
    kinds = {fact.kind for fact in entry_facts}
    if entry.status is OrderStatus.REJECTED and FactKind.REJECTED in kinds:
        return (_end(FactKind.REJECTED, ENTRY_REJECTED, _refused_at(entry_facts)),)
    if entry.status is OrderStatus.REJECTED or not kinds & VENUE_ENDS:
        return (_end(FactKind.REFUSED, ENTRY_REJECTED),)
    # What the end of one does to the other is the broker's rule; a leg with a fill has an entry
    # with one.
    is_of_its_own = any(fact.cum_quantity or fact.kind in _OWN_LIFE for fact in facts)
    if leg not in EXITS or is_of_its_own:
        return ()
    return (_end(FactKind.CANCELLED, ENTRY_ENDED),)


def _refused_at(facts: Sequence[Fact]) -> datetime | None:
    """The last time of a refusal; None where one does not say when."""
    refused = [fact for fact in facts if fact.kind is FactKind.REJECTED]
    times = [fact.venue_time for fact in refused]
    return None if None in times else latest(times)


def _end(kind: FactKind, reason: str, venue_time: datetime | None = None) -> Fact:
    return Fact(key=f"entry:{kind}", kind=kind, reason=reason, venue_time=venue_time)


def _with_overfill(views: list[OrderView], quantity: Decimal) -> list[OrderView]:
    """Flags what was filled of a pair, if that is more together than one of them should have
    filled. The quantity that the broker last gave one of them says less: of its reports some may
    come later."""
    entry, *legs = views
    if legs[0].leg is Leg.ONE_CANCELS_OTHER:
        pair = views
        most = quantity
    else:
        pair = legs
        most = entry.quantity if entry.state is OrderState.OPEN else entry.filled_quantity
    is_too_much = total(each.filled_quantity for each in pair) > most
    flagged = []
    for each in pair:
        is_over = is_too_much and each.filled_quantity > 0
        flagged.append(with_flag(each, OrderFlag.OVERFILL, is_over))
    return flagged if pair is views else [entry, *flagged]


def is_left_open(entry: OrderSide, quantity: Decimal, working: OpenSums) -> bool:
    """Whether a position that an entry of that side opened is more than what works to close it."""
    if entry is OrderSide.BUY:
        return quantity > working.sell
    return quantity.copy_negate() > working.buy


def uncovered(views: Sequence[OrderView]) -> Decimal:
    """The part of a final entry's fills that its exits have neither closed nor work to close."""
    entry, *legs = views
    exits = [each for each in legs if each.leg in EXITS]
    if not exits or entry.state is OrderState.OPEN:
        return ZERO
    working = ZERO
    left = entry.filled_quantity
    with exact():
        for each in exits:
            left -= each.filled_quantity
            if each.acknowledged:
                working = max(working, each.leaves_quantity)
        return max(left - working, ZERO)
