"""The order: one pure function of the set of facts seen, however often and in whatever order they
came. No I/O, no clock, no memory of an earlier answer."""

from collections.abc import Collection, Iterable, Sequence, Set
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import partial

from msgspec.structs import replace

from trading_intents.brokers.port import REPLACED_BY_BROKER
from trading_intents.orders.executions import Fill, TradeView, trades
from trading_intents.orders.facts import EXECUTIONS, LONG_AGO, OUR_ENDS, Fact, FactKind, distinct
from trading_intents.trading import (
    EXITS,
    ZERO,
    FrozenStruct,
    Leg,
    VersionTerms,
    exact,
    normalized,
    quotient,
    total,
)


# Each with its sentence, which tests/order_states.py writes into docs/states.md.
class OrderStatus(StrEnum):
    # nothing is known yet
    PENDING_NEW = "PENDING_NEW"
    # the broker has confirmed that it has the order
    NEW = "NEW"
    # something is filled
    PARTIALLY_FILLED = "PARTIALLY_FILLED"
    # a REPLACE is committed and not answered; the terms are those of the last confirmed version
    PENDING_REPLACE = "PENDING_REPLACE"
    # a CANCEL is committed and not answered
    PENDING_CANCEL = "PENDING_CANCEL"
    # sent, and the answer was lost: it is looked up, and sent again only after proof that it never
    # arrived
    UNKNOWN = "UNKNOWN"
    # as much is filled as the confirmed version asks for, or more; or was, at a broker where a bust
    # does not open an order again (`bust_reopens`)
    FILLED = "FILLED"
    # the broker cancelled it; or it was cancelled before it was sent, or proved never to have
    # arrived: reason `before_send`; or a halt came before it was sent: `halted`; or its halt ended
    # before: `resumed`
    CANCELLED = "CANCELLED"
    # the broker let it expire; or it waited too long to be sent: reason `stale`
    EXPIRED = "EXPIRED"
    # the broker refused it; or a control did before it was sent: the control's reason; or it never
    # arrived: `not_delivered`
    REJECTED = "REJECTED"


class OrderState(StrEnum):
    OPEN = "OPEN"
    CLOSED = "CLOSED"
    REJECTED = "REJECTED"


class OrderFlag(StrEnum):
    """The reasons why a final order may have changed."""

    LATE_FILL = "late_fill"
    OVERFILL = "overfill"
    # Came again with other numbers, or was busted or corrected.
    CONFLICTING_EXECUTION = "conflicting_execution"
    RESURRECTED = "resurrected"  # the broker has it though it had ended
    UNPROTECTED = "unprotected"  # never stored: it is derived from what covers the position


class OrderVersion(VersionTerms, kw_only=True):
    seq: int  # of the action
    client_order_id: str


class OrderTerms(FrozenStruct, kw_only=True):
    """The CREATE, then the REPLACEs as they were committed; one that was given up does no harm."""

    order_id: str
    versions: tuple[OrderVersion, ...]
    bust_reopens: bool = True  # at its broker
    leg: Leg | None = None
    is_linked: bool = False  # an entry, or a leg: how much it works is the broker's business
    may_grow: bool = False  # an exit whose entry may still fill


class PendingCommands(FrozenStruct):
    """Client order ids of committed commands; those that facts already answer do no harm."""

    cancels: tuple[str, ...] = ()
    replace: str | None = None


class ShownOrder(FrozenStruct, kw_only=True):
    """The columns of an order's row that decide which flags stay."""

    status: OrderStatus
    filled_quantity: Decimal
    average_price: Decimal | None
    flags: tuple[OrderFlag, ...]


class OrderView(ShownOrder, kw_only=True):
    state: OrderState
    confirmed: OrderVersion  # the last one that the broker confirmed; the CREATE's until then
    # The confirmed one's, or what was filled where a REPLACE asked for less than that.
    quantity: Decimal
    leaves_quantity: Decimal
    broker_order_id: str | None
    reason: str | None
    detail: str | None
    pending: PendingCommands  # commands without an answer; empty once the order is final
    acknowledged: bool  # the broker has shown that it has the order: a CANCEL need not be held
    # The broker may work it though it was shown as ended: open until the venue ends it.
    is_unwanted: bool
    trades: tuple[TradeView, ...]
    leg: Leg | None = None
    active: bool = True  # False: an exit whose entry has no fill
    may_grow: bool = False  # an exit whose entry may still fill: open, also with nothing to work


_FINAL = {
    OrderStatus.FILLED: OrderState.CLOSED,
    OrderStatus.CANCELLED: OrderState.CLOSED,
    OrderStatus.EXPIRED: OrderState.CLOSED,
    OrderStatus.REJECTED: OrderState.REJECTED,
}
FINAL_STATUSES = frozenset(status.value for status in _FINAL)
_F = FactKind
# Kinds that show that the broker has the order.
ALIVE = (
    frozenset({_F.ACCEPTED, _F.TRIGGERED, _F.REPLACED, _F.PENDING_CANCEL, _F.PENDING_REPLACE})
    | EXECUTIONS
)
VENUE_ENDS = frozenset({_F.CANCELLED, _F.EXPIRED})
_CANCELLED = frozenset({_F.CANCELLED, _F.CANCELLED_BEFORE_SEND, _F.HALTED})
_EXPIRED = frozenset({_F.EXPIRED, _F.STALE})
_REJECTED = frozenset({_F.REJECTED, _F.REFUSED, _F.NOT_DELIVERED})
_ENDED = {
    OrderStatus.CANCELLED: _CANCELLED,
    OrderStatus.EXPIRED: _EXPIRED,
    OrderStatus.REJECTED: _REJECTED,
}
# Kinds that show that the broker has or had the order.
_SHOWING = ALIVE | VENUE_ENDS
_UNTIMED = datetime.max.replace(tzinfo=UTC)
# Ends that do not hold once the broker shows that it has the order.
_REFUTABLE = OUR_ENDS | {_F.REJECTED}
# Kinds about one command: they concern the order only when that command made it.
_OF_COMMAND = frozenset({_F.SENT, _F.UNCERTAIN, _F.REJECTED}) | OUR_ENDS
# Kinds that a broker reports under a REPLACE's own id only once that REPLACE was carried out.
_CONFIRMING = frozenset(
    {_F.REPLACED, _F.ACCEPTED, _F.TRIGGERED, _F.FILL, _F.FILL_CORRECT, _F.CANCELLED, _F.EXPIRED}
)
_REPLACE_REFUSED = frozenset({_F.REPLACE_REJECTED, _F.REPLACE_DROPPED, _F.REJECTED})
_CONFLICTING = frozenset({_F.CONFLICT, _F.FILL_BUST, _F.FILL_CORRECT})
_CANCEL_REFUSED = frozenset({_F.CANCEL_REJECTED, _F.CANCEL_DROPPED, _F.REJECTED})


def derive(terms: OrderTerms, facts: Iterable[Fact], pending: PendingCommands) -> OrderView:
    seen, conflict = distinct(facts)
    versions = _confirmed_versions(terms, seen)
    replacements = [fact for fact in seen if fact.kind is FactKind.REPLACED]
    worked = partial(_worked_quantity, tuple(versions), replacements, terms.is_linked)
    confirmed, changed = _as_changed(versions[-1], seen, terms.is_linked)
    versions[-1] = confirmed
    own = _of_order(seen, {None, versions[0].client_order_id, confirmed.client_order_id})
    booked = trades(terms.order_id, own, worked, confirmed.limit_price or confirmed.stop_price)
    filled = normalized(booked[-1].cumulative_quantity) if booked else ZERO
    quantity = _shown_quantity(versions, seen, filled)
    is_refuted = _is_refuted(own, filled)
    status = _status(
        kinds={fact.kind for fact in own},
        is_filled=_is_filled(terms, confirmed, own, quantity, filled),
        has_fills=bool(filled),
        is_refuted=is_refuted,
    )
    is_final = status in _FINAL
    unanswered = PendingCommands() if is_final else _unanswered(pending, terms, confirmed, seen)
    why = _ends(status, own)
    if not why and not is_final:
        why = _refused_command(terms, confirmed, seen, unanswered)
    reason, detail = _explain(why or changed)
    return OrderView(
        status=_with_pending(status, unanswered),
        state=state_of(status),
        confirmed=confirmed,
        quantity=quantity,
        filled_quantity=filled,
        leaves_quantity=ZERO if is_final else _difference(quantity, filled),
        average_price=_average(booked, filled),
        broker_order_id=_broker_order_id(versions, seen),
        reason=reason,
        detail=detail,
        flags=_flags(
            facts=own,
            booked=booked,
            filled=filled,
            quantity=quantity,
            conflict=conflict,
            is_refuted=is_refuted,
        ),
        pending=unanswered,
        acknowledged=bool(filled) or is_acknowledged(own),
        # A leg's end is its entry's.
        is_unwanted=is_refuted and not is_final and terms.leg is None,
        trades=booked,
    )


def carry_flags(before: ShownOrder, after: OrderView) -> OrderView:
    """`after` with the flags that stay. A final order changes only with a flag that says why."""
    flags = {*before.flags, *after.flags}
    fills = (before.filled_quantity, before.average_price) != (
        after.filled_quantity,
        after.average_price,
    )
    if before.status in _FINAL and not flags - set(before.flags):
        if fills:
            less = after.filled_quantity < before.filled_quantity
            flags.add(OrderFlag.CONFLICTING_EXECUTION if less else OrderFlag.LATE_FILL)
        elif after.state is OrderState.OPEN or (
            before.status is OrderStatus.FILLED and after.status != before.status
        ):
            # A REPLACE to more than was filled is confirmed late, and perhaps ended.
            flags.add(OrderFlag.RESURRECTED)
        elif not flags:
            after = replace(after, status=before.status, state=state_of(before.status))
    return replace(after, flags=_in_order(flags))


def with_flag(view: OrderView, changed: OrderFlag, is_set: bool = True) -> OrderView:
    flags = {*view.flags, changed} if is_set else {*view.flags} - {changed}
    return replace(view, flags=_in_order(flags))


def _in_order(flags: Set[OrderFlag]) -> tuple[OrderFlag, ...]:
    return tuple(flag for flag in OrderFlag if flag in flags)


def state_of(status: OrderStatus) -> OrderState:
    return _FINAL.get(status, OrderState.OPEN)


def is_acknowledged(facts: Iterable[Fact]) -> bool:
    """Whether the broker has shown that it has the order."""
    return any(fact.kind in ALIVE for fact in facts)


def _ids(facts: Iterable[Fact], kinds: Set[FactKind]) -> set[str | None]:
    return {fact.client_order_id for fact in facts if fact.kind in kinds}


def _confirmed_versions(terms: OrderTerms, facts: Sequence[Fact]) -> list[OrderVersion]:
    """The version of the CREATE, then each that the broker confirmed in place of the one before."""
    ids = _ids(facts, _CONFIRMING)
    create, *others = sorted(terms.versions, key=lambda version: version.seq)
    return [create] + [version for version in others if version.client_order_id in ids]


def _as_changed(
    version: OrderVersion, facts: Sequence[Fact], is_linked: bool
) -> tuple[OrderVersion, Sequence[Fact]]:
    """The version with the terms that the broker itself gave it last, as at a split, and the fact
    of that. A linked order keeps through a REPLACE the quantity that the broker gave it."""
    last = None
    for fact in facts:
        if not _is_brokers_change(fact):
            continue
        if is_linked:
            version = replace(version, quantity=fact.quantity)
        if fact.client_order_id == version.client_order_id:
            last = fact
    if last is None:
        return version, ()
    priced = "stop_price" if version.limit_price is None else "limit_price"
    price = getattr(version, priced) if last.price is None else last.price
    changed = replace(version, **{"quantity": last.quantity, priced: price})
    # The stop of the one moves all the time, the quantity of the other with every fill of the
    # group.
    is_usual = is_linked or version.trail_amount is not None or version.trail_bps is not None
    return changed, () if is_usual else (last,)


def _is_brokers_change(fact: Fact) -> bool:
    is_change = fact.kind is FactKind.REPLACED and fact.reason == REPLACED_BY_BROKER
    return is_change and fact.quantity is not None


def _worked_quantity(
    versions: Sequence[OrderVersion],
    replacements: Sequence[Fact],
    is_linked: bool,
    fill: Fill,
    filled: Decimal,
) -> Decimal:
    """The quantity that the broker worked at a fill, before which so much was filled: that of the
    version then, or what the broker itself had made of it."""
    earlier = [fact for fact in replacements if _is_before(fact, fill, filled)]
    names = {fill.client_order_id} | {fact.client_order_id for fact in earlier}
    worked = versions[0]
    for version in versions:
        if version.client_order_id in names:
            worked = version
    quantity = worked.quantity
    for fact in earlier:
        is_own = is_linked or fact.client_order_id == worked.client_order_id
        if is_own and _is_brokers_change(fact):
            quantity = fact.quantity or ZERO
    return quantity


def _is_before(fact: Fact, fill: Fill, filled: Decimal) -> bool:
    """Whether the broker had replaced the order before a fill, by what it counted then, else by its
    time."""
    if fact.cum_quantity is not None:
        return fact.cum_quantity <= filled
    if fact.venue_time is None or fill.venue_time is None:
        return False
    return fact.venue_time < fill.venue_time


def _of_order(facts: Sequence[Fact], ids: Collection[str | None]) -> tuple[Fact, ...]:
    return tuple(
        fact for fact in facts if fact.kind not in _OF_COMMAND or fact.client_order_id in ids
    )


def _shown_quantity(
    versions: Sequence[OrderVersion], facts: Sequence[Fact], filled: Decimal
) -> Decimal:
    """A REPLACE to no more than what is filled ends the order at what is filled. A later fill is an
    overfill."""
    confirmed = versions[-1]
    most = ZERO
    for fact in facts:
        is_own = fact.client_order_id == confirmed.client_order_id
        if is_own and fact.kind is FactKind.REPLACED and fact.cum_quantity:
            most = max(most, fact.cum_quantity)
    if not most:
        most = max(version.quantity for version in versions)
    return max(confirmed.quantity, min(filled, most))


def _is_filled(
    terms: OrderTerms,
    confirmed: OrderVersion,
    facts: Sequence[Fact],
    quantity: Decimal,
    filled: Decimal,
) -> bool:
    if terms.may_grow:
        return False
    # An exit that has sold all that was bought so far may still be cancelled.
    if terms.leg in EXITS and _ids(facts, VENUE_ENDS):
        return False
    if filled >= quantity > 0:
        return True
    if terms.bust_reopens:
        return False
    # Else what the broker has counted once stays, also if it took something back since.
    ids = {None, confirmed.client_order_id}
    counts = [fact.cum_quantity or ZERO for fact in facts if fact.client_order_id in ids]
    return max(counts, default=ZERO) >= quantity > 0


def _is_refuted(facts: Sequence[Fact], filled: Decimal) -> bool:
    """Whether the order was ended by us, or refused by the broker, which has it all the same:
    something is filled, or a report, later than the broker's own REJECTED, shows the order."""
    ends = [fact for fact in facts if fact.kind in _REFUTABLE]
    if not ends or filled:
        return bool(ends)
    refused = [fact.venue_time or _UNTIMED for fact in ends if fact.kind is FactKind.REJECTED]
    shown = [fact.venue_time or LONG_AGO for fact in facts if fact.kind in _SHOWING]
    return bool(shown) and (not refused or max(shown) > max(refused))


def _status(
    kinds: Set[FactKind], is_filled: bool, has_fills: bool, is_refuted: bool
) -> OrderStatus:
    """The status of the first rule that matches."""
    if is_filled:
        return OrderStatus.FILLED
    standing = kinds - _REFUTABLE if is_refuted else kinds
    for status, ends in _ENDED.items():
        if standing & ends:
            return status
    if has_fills:
        return OrderStatus.PARTIALLY_FILLED
    if kinds & ALIVE:
        return OrderStatus.NEW
    return OrderStatus.UNKNOWN if FactKind.UNCERTAIN in kinds else OrderStatus.PENDING_NEW


def _with_pending(status: OrderStatus, pending: PendingCommands) -> OrderStatus:
    if pending.cancels:
        return OrderStatus.PENDING_CANCEL
    return OrderStatus.PENDING_REPLACE if pending.replace else status


def _unanswered(
    pending: PendingCommands, terms: OrderTerms, confirmed: OrderVersion, facts: Sequence[Fact]
) -> PendingCommands:
    refused = _ids(facts, _CANCEL_REFUSED)
    answered = _ids(facts, _REPLACE_REFUSED)
    for version in terms.versions:
        if version.seq <= confirmed.seq:
            answered.add(version.client_order_id)
    return PendingCommands(
        cancels=tuple(each for each in pending.cancels if each not in refused),
        replace=None if pending.replace in answered else pending.replace,
    )


def _ends(status: OrderStatus, facts: Sequence[Fact]) -> Sequence[Fact]:
    """The facts that explain an order's end, or why it is unknown."""
    kinds = _ENDED.get(status) or ({FactKind.UNCERTAIN} if status is OrderStatus.UNKNOWN else ())
    return [fact for fact in facts if fact.kind in kinds and (fact.reason or fact.detail)]


def _refused_command(
    terms: OrderTerms, confirmed: OrderVersion, facts: Sequence[Fact], pending: PendingCommands
) -> Sequence[Fact]:
    """The reason why a command was not carried out: the CANCEL that was refused, else the REPLACE
    that was. `facts` are by moment."""
    if pending.cancels:
        return ()
    seqs = {version.client_order_id: version.seq for version in terms.versions}
    refused_cancel = None
    refused_replace = None
    last_seq = confirmed.seq + 1
    for fact in facts:
        if not fact.reason:
            continue
        seq = seqs.get(fact.client_order_id or "")
        if seq is None:
            if fact.kind in _CANCEL_REFUSED:
                refused_cancel = fact
        elif fact.kind in _REPLACE_REFUSED and seq >= last_seq:
            refused_replace = fact
            last_seq = seq
    found = refused_cancel or refused_replace
    return (found,) if found else ()


def _explain(why: Sequence[Fact]) -> tuple[str | None, str | None]:
    """The first reason and the first detail."""
    reason = None
    detail = None
    for fact in why:
        reason = reason or fact.reason
        detail = detail or fact.detail
    return reason, detail


def _flags(
    facts: Sequence[Fact],
    booked: Sequence[TradeView],
    filled: Decimal,
    quantity: Decimal,
    conflict: bool,
    is_refuted: bool,
) -> tuple[OrderFlag, ...]:
    flags = set()
    if any(_is_late(fact, booked, filled) for fact in facts):
        flags.add(OrderFlag.LATE_FILL)
    if filled > quantity:
        flags.add(OrderFlag.OVERFILL)
    if conflict or _ids(facts, _CONFLICTING):
        flags.add(OrderFlag.CONFLICTING_EXECUTION)
    if is_refuted:
        flags.add(OrderFlag.RESURRECTED)
    return _in_order(flags)


def _is_late(final: Fact, booked: Sequence[TradeView], filled: Decimal) -> bool:
    """Whether something was filled that this final report does not count."""
    is_end = final.kind in _CANCELLED | _EXPIRED
    if final.kind in _REFUTABLE or (is_end and final.cum_quantity is not None):
        return filled > (final.cum_quantity or ZERO)
    if not is_end or final.venue_time is None:
        return False
    return any(trade.venue_time and trade.venue_time > final.venue_time for trade in booked)


def _broker_order_id(versions: Sequence[OrderVersion], facts: Sequence[Fact]) -> str | None:
    """The broker's own id of the last version that has one."""
    ids = {fact.client_order_id: fact.broker_order_id for fact in facts if fact.broker_order_id}
    for version in reversed(versions):
        if version.client_order_id in ids:
            return ids[version.client_order_id]
    return ids.get(None)


def _difference(quantity: Decimal, filled: Decimal) -> Decimal:
    with exact():
        return normalized(max(quantity - filled, ZERO))


def _average(booked: Sequence[TradeView], filled: Decimal) -> Decimal | None:
    if not filled:
        return None
    with exact():
        return quotient(total(trade.quantity * trade.price for trade in booked), filled)
