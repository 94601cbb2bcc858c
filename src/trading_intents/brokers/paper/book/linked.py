"""The orders of a book that are linked (P18): an entry and its exits, and the two of a pair, of
which one ends the other. An order that is not among the given ones has ended."""

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal

from msgspec.structs import replace

from trading_intents.brokers.paper.model import PaperOrder, PaperOrderStatus
from trading_intents.brokers.port import EventKind
from trading_intents.trading import Leg

ENTRY_ENDED = "entry_ended"
PAIR_FILLED = "pair_filled"
PAIR_CANCELLED = "pair_cancelled"

# An order as it is after another one was filled or ended, the event that reports it, if any does,
# and its reason.
Change = tuple[PaperOrder, EventKind | None, str | None]


def after_fill(
    orders: Mapping[int, PaperOrder], order: PaperOrder, quantity: Decimal
) -> Iterator[Change]:
    """Exits work what their entry has filled; what one of a pair fills, the other no longer
    works."""
    for leg in exits_of(orders, order):
        total = quantity if leg.is_held else leg.quantity + quantity
        grown = replace(leg, is_held=False, quantity=total)
        yield grown, EventKind.REPLACED if total != leg.quantity else None, None
    other = pair_of(orders, order)
    if other is None:
        return
    lowered = replace(other, quantity=other.quantity - quantity)
    if lowered.leaves or may_grow(orders, other):
        yield lowered, EventKind.REPLACED, None
    else:
        yield _ended(other, PaperOrderStatus.CANCELLED, PAIR_FILLED)


def after_end(
    orders: Mapping[int, PaperOrder], order: PaperOrder, reason: str | None = None
) -> Iterator[Change]:
    """An end reaches the exits of an entry that have nothing to close, and the other one of a
    pair."""
    for leg in exits_of(orders, order):
        if leg.is_held:
            yield _ended(leg, PaperOrderStatus.CANCELLED, ENTRY_ENDED)
        elif not leg.leaves and leg.filled:
            yield replace(leg, status=PaperOrderStatus.FILLED), None, None
        elif not leg.leaves:
            yield _ended(leg, PaperOrderStatus.CANCELLED, PAIR_FILLED)
    other = pair_of(orders, order)
    if other and order.status is PaperOrderStatus.EXPIRED:
        yield _ended(other, order.status, reason)
    elif other:
        was_filled = order.status is PaperOrderStatus.FILLED
        reason = PAIR_FILLED if was_filled else PAIR_CANCELLED
        yield _ended(other, PaperOrderStatus.CANCELLED, reason)


def _ended(order: PaperOrder, status: PaperOrderStatus, reason: str | None) -> Change:
    return replace(order, status=status), EventKind(status.value), reason


def exits_of(orders: Mapping[int, PaperOrder], entry: PaperOrder) -> list[PaperOrder]:
    legs = [each for each in orders.values() if each.parent == entry.number]
    return [leg for leg in legs if leg.is_exit and leg.is_working]


def pair_of(orders: Mapping[int, PaperOrder], order: PaperOrder) -> PaperOrder | None:
    """The working order of which a fill lowers this one."""
    for each in orders.values():
        if each.is_working and are_pair(each, order):
            return each
    return None


def are_pair(one: PaperOrder, other: PaperOrder) -> bool:
    if one.is_exit or other.is_exit:
        return one.number != other.number and one.is_exit and one.parent == other.parent
    return Leg.ONE_CANCELS_OTHER in (one.leg, other.leg) and (
        one.parent == other.number or other.parent == one.number
    )


def may_grow(orders: Mapping[int, PaperOrder], order: PaperOrder) -> bool:
    """Whether it is an exit whose entry may still fill."""
    entry = _entry_of(orders, order)
    return entry is not None and entry.is_working


def _entry_of(orders: Mapping[int, PaperOrder], order: PaperOrder) -> PaperOrder | None:
    return orders.get(order.parent) if order.is_exit and order.parent else None


def matching_rank(orders: Mapping[int, PaperOrder], order: PaperOrder) -> tuple[int, int]:
    """Orders are matched in order of acceptance, an exit never before its entry, which a REPLACE
    may have moved."""
    entry = _entry_of(orders, order)
    return max(order.rank, entry.rank if entry else 0), order.rank


def counted(orders: Collection[PaperOrder], order: PaperOrder) -> list[PaperOrder]:
    """Those that fill beside the order: of a pair one counts, and what is paired with the order
    itself does not."""
    alone = [each for each in orders if not are_pair(each, order)]
    found = list[PaperOrder]()
    for number, each in enumerate(alone):
        if not any(are_pair(each, earlier) for earlier in alone[:number]):
            found.append(each)
    return found
