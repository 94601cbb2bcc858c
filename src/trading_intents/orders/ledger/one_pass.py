"""Advances common orders in one pass: head and news give the next head, exactly as the function of
all facts does, to which everything is left that a head does not show. Pure: no I/O, no clock."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from msgspec.structs import replace

from trading_intents.orders.executions import Fill, TradeView, rank, with_sums
from trading_intents.orders.facts import Fact, FactKind, client_order_id, latest
from trading_intents.orders.ledger.booking import (
    BROKER_KINDS,
    Arrivals,
    DerivedOrder,
    TradeChange,
    count_changes,
    lone_sums,
    trade_row,
)
from trading_intents.orders.model import FINAL_STATUSES, OrderStatus, average
from trading_intents.orders.store import OrderHead, OrderRow, TradeRow
from trading_intents.trading import ZERO, normalized

_ACKNOWLEDGED = (OrderStatus.NEW, OrderStatus.PARTIALLY_FILLED)
_SHOWING = (FactKind.ACCEPTED, FactKind.TRIGGERED)
_KINDS = (*_SHOWING, FactKind.FILL, FactKind.STATUS)


def advance(head: OrderHead, facts: Sequence[Fact], arrivals: Arrivals) -> DerivedOrder | None:
    """The order after these new facts; None: they, or it, are not common."""
    row = head.row
    now = arrivals.now
    name = client_order_id(UUID(row.order_id))
    fills = _new_fills(head, name, facts)
    if fills is None or not (_is_common(row) and _are_common(facts, row, name)):
        return None
    trades = with_sums(fills, row.filled_quantity, lambda fill, filled: row.quantity)
    after = _next_row(head, facts, trades)
    if after is None:
        return None
    visible = after != row
    if visible:
        after = _stamped(row, after, facts, now)
    numbers = {fact.exec_id: arrivals.numbers.get((row.order_id, fact.key), 0) for fact in facts}
    changes = []
    for trade in trades:
        booked = trade_row(after, row.create_seq, trade, None, now)
        changes.append(TradeChange(None, booked, numbers[trade.exec_id]))
    is_first = row.order_status is OrderStatus.PENDING_NEW and is_shown(after)
    return DerivedOrder(
        row=after,
        written=visible,
        visible=visible,
        trades=tuple(changes),
        counts=count_changes(row, after, changes, head.commands if is_first else (), now),
        opened=lone_sums(after).plus(lone_sums(row), -1),
    )


def _stamped(row: OrderRow, after: OrderRow, facts: Sequence[Fact], now: datetime) -> OrderRow:
    is_reported = any(fact.kind in BROKER_KINDS for fact in facts)
    return replace(
        after,
        received_at=now if is_reported else row.received_at,
        updated_at=now,
        version=row.version + 1,
        finished_at=now if after.order_status in FINAL_STATUSES else None,
    )


def _is_common(row: OrderRow) -> bool:
    """Whether only its CREATE, and what that was answered, made the order what it is. A reason of
    an open one says that a command was refused, or that the broker changed the terms."""
    commanded = (row.linked, row.cancel_requested, row.pending_replace_seq)
    is_explained = row.finished_at is None and (row.reason or row.detail)
    is_doubted = row.order_status is OrderStatus.UNKNOWN
    if any(commanded) or row.command_seq != row.create_seq:
        return False
    return not (row.flags or row.is_trailing or is_explained or is_doubted)


def _are_common(facts: Sequence[Fact], row: OrderRow, name: str) -> bool:
    ids = {fact.broker_order_id for fact in facts} - {None, row.external_order_id}
    is_named = row.external_order_id or row.order_status is not OrderStatus.PENDING_NEW
    if len(ids) > 1 or (ids and is_named):
        return False
    return all(
        fact.kind in _KINDS and fact.client_order_id in (None, name) and fact.replaces is None
        for fact in facts
    )


def _new_fills(head: OrderHead, name: str, facts: Sequence[Fact]) -> list[Fill] | None:
    """Those that are not booked, in their order; None: one belongs before a booked trade, or was
    reported with other numbers."""
    booked = {trade.exec_id: _as_fill(trade, trade.broker_sent_at, name) for trade in head.trades}
    fills: dict[str, Fill] = {}
    for fact in facts:
        if fact.kind is not FactKind.FILL:
            continue
        fill = _as_fill(fact, fact.venue_time, name)
        is_other = fact.broker_order_id != head.row.external_order_id
        if fill.exec_id not in booked and fill.exec_id not in fills:
            fills[fill.exec_id] = fill
        elif is_other or booked.get(fill.exec_id) != fill:
            return None
    ranked = sorted(fills.values(), key=rank)
    is_late = ranked and any(rank(each) > rank(ranked[0]) for each in booked.values())
    return None if is_late or any(trade.flags for trade in head.trades) else ranked


def _as_fill(each: Fact | TradeRow, venue_time: datetime | None, name: str) -> Fill:
    return Fill(
        exec_id=each.exec_id or "",
        client_order_id=name,
        quantity=each.quantity or ZERO,
        price=each.price or ZERO,
        fee=each.fee,
        venue_time=venue_time,
        cum_quantity=each.cum_quantity,
    )


def _next_row(
    head: OrderHead, facts: Sequence[Fact], trades: Sequence[TradeView]
) -> OrderRow | None:
    """None: the broker counts more than was seen, or less than it filled, or ended it before."""
    row = head.row
    filled = trades[-1].cumulative_quantity if trades else row.filled_quantity
    counted = [fact.cum_quantity for fact in facts if fact.cum_quantity]
    if max(counted, default=ZERO) > filled or filled > row.quantity:
        return None
    if row.finished_at:
        return None if trades or (is_shown(row, facts) and not filled) else row
    booked: list[TradeRow | TradeView] = [*head.trades, *trades]
    ids = [row.external_order_id, *[fact.broker_order_id for fact in facts]]
    return replace(
        row,
        order_status=_status(row, facts, filled),
        filled_quantity=normalized(filled),
        average_price=average((each.quantity * each.price for each in booked), filled),
        external_order_id=next(filter(None, ids), None),
        broker_sent_at=latest([row.broker_sent_at, *[fact.venue_time for fact in facts]]),
    )


def _status(row: OrderRow, facts: Sequence[Fact], filled: Decimal) -> OrderStatus:
    if filled:
        is_filled = filled == row.quantity
        return OrderStatus.FILLED if is_filled else OrderStatus.PARTIALLY_FILLED
    return OrderStatus.NEW if is_shown(row, facts) else OrderStatus.PENDING_NEW


def is_shown(row: OrderRow, facts: Sequence[Fact] = ()) -> bool:
    """Whether the broker has shown that it has the order."""
    is_known = bool(row.filled_quantity) or row.order_status in _ACKNOWLEDGED
    return is_known or any(fact.kind in _SHOWING for fact in facts)
