"""Finds the entries that are unprotected once orders and positions are booked. Pure: no I/O, no
clock."""

from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal

from msgspec.structs import replace

from trading_intents.ids import IdText
from trading_intents.orders.ledger.booking import DerivedOrder, PositionChange
from trading_intents.orders.ledger.matching import LedgerIndex
from trading_intents.orders.ledger.store import AccountName
from trading_intents.orders.linked import is_left_open
from trading_intents.orders.positions import open_sums
from trading_intents.trading import ZERO

_NONE_OPEN = open_sums(())


def with_protection(
    derived: Sequence[DerivedOrder], positions: Iterable[PositionChange], index: LedgerIndex
) -> list[DerivedOrder]:
    """The orders of an account; an entry that newly is unprotected, or no longer is, changes
    visibly."""
    booked = {change.row.symbol: change.row.quantity for change in positions}
    orders = [_with_since(order, booked, index) for order in derived]
    before = set[IdText]()
    after = set[IdText]()
    for name in {AccountName(order.row.account_id, order.row.symbol) for order in orders}:
        if cover := index.covers.get(name):
            rows = {row.order_id: row for row in cover.orders}
            rows |= {each.row.order_id: each.row for each in orders if each.row.symbol == name.name}
            quantity = booked.get(name.name, cover.quantity)
            before |= cover.unprotected()
            cover = replace(cover, quantity=quantity, orders=tuple(rows.values()))
            after |= cover.unprotected(index.now)
    return [_with_flag(order, before, after, index) for order in orders]


def _with_since(
    order: DerivedOrder, booked: Mapping[str, Decimal], index: LedgerIndex
) -> DerivedOrder:
    row = order.row
    since = None
    if order.is_uncovered:
        position = index.positions.get(AccountName(row.account_id, row.symbol))
        quantity = booked.get(row.symbol, position.quantity if position else ZERO)
        if is_left_open(row.order_side, quantity, _NONE_OPEN):
            since = row.uncovered_since or index.now
    if since == row.uncovered_since:
        return order
    return replace(order, row=replace(row, uncovered_since=since), written=True)


def _with_flag(
    order: DerivedOrder, before: Set[IdText], after: Set[IdText], index: LedgerIndex
) -> DerivedOrder:
    order_id = order.row.order_id
    if order_id not in before | after:
        return order
    is_changed = (order_id in before) != (order_id in after)
    row = order.row
    if is_changed and not order.visible:
        row = replace(row, updated_at=index.now, version=row.version + 1)
    return replace(
        order,
        row=row,
        written=order.written or is_changed,
        visible=order.visible or is_changed,
        is_unprotected=order_id in after,
        is_newly_unprotected=order_id not in before and order_id in after,
    )
