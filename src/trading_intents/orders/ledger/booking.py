"""Computes how new facts change an order, its trades, and the positions of these. Pure: no I/O, no
clock."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.ids import IdText, id_text, named_id
from trading_intents.orders.executions import TradeFlag, TradeView
from trading_intents.orders.facts import Fact, FactKind, client_order_id, is_conflict, latest
from trading_intents.orders.linked import OrderInputs, derive_group, uncovered
from trading_intents.orders.model import (
    FINAL_STATUSES,
    OrderFlag,
    OrderState,
    OrderTerms,
    OrderVersion,
    OrderView,
    PendingCommands,
    ShownOrder,
    carry_flags,
    is_acknowledged,
)
from trading_intents.orders.positions import (
    NOTHING_OPEN,
    Booking,
    OpenSums,
    PositionRow,
    SummedOrder,
    from_trades,
    open_quantity,
    open_sums,
    take_fee,
)
from trading_intents.orders.store import CommandRow, OrderHistory, OrderRow, TradeRow
from trading_intents.stats.model import Counted, Measure, ack_key
from trading_intents.trading import (
    EXACT,
    ZERO,
    ActionType,
    FrozenStruct,
    OrderSide,
    exact,
    terms_of,
)

BROKER_KINDS = frozenset(kind.value for kind in EventKind)  # kinds of facts that brokers report
REFUSED = frozenset({FactKind.CANCEL_REJECTED, FactKind.REPLACE_REJECTED, FactKind.REJECTED})


class Arrivals(FrozenStruct):
    """New facts of one recording: the numbers of the events among them, by their orders (None: of
    no order of ours) and keys."""

    numbers: Mapping[tuple[IdText | None, str], int]
    now: datetime


class TradeChange(FrozenStruct):
    before: TradeRow | None
    after: TradeRow
    event_number: int  # of the event that brought it, among those that came together

    @property
    def is_published(self) -> bool:
        """Whether the execution itself changed. Changed running sums of later trades are not
        published again."""
        return self.before is None or _executed(self.before) != _executed(self.after)

    @property
    def is_rebooked(self) -> bool:
        """Whether the symbol's position must be summed up again: averages do not run backwards."""
        return self.before is not None and _booking_numbers(self.before) != _booking_numbers(
            self.after
        )

    def growth(self) -> tuple[Decimal, Decimal]:
        """The increase of the quantity, and its value."""
        quantity = self.after.quantity
        value = EXACT.multiply(quantity, self.after.price)
        if self.before:
            earlier = EXACT.multiply(self.before.quantity, self.before.price)
            quantity = EXACT.subtract(quantity, self.before.quantity)
            value = EXACT.subtract(value, earlier)
        return quantity, value


def _executed(trade: TradeRow) -> tuple[object, ...]:
    return trade.quantity, trade.price, trade.fee, trade.flags


def _booking_numbers(trade: TradeRow) -> tuple[object, ...]:
    return trade.quantity, trade.price, trade.fee, trade.broker_sent_at


class DerivedOrder(FrozenStruct, kw_only=True):
    """An order after its new facts."""

    row: OrderRow
    view: OrderView | None = None  # None: it was advanced in one pass
    written: bool  # whether the row must be
    visible: bool  # whether a reader sees a change of it
    resurrected: bool = False  # it is open, newly, though it had ended
    # It is open, and its broker, which may know more of it, refused to change it.
    refused: bool = False
    trades: tuple[TradeChange, ...]
    counts: tuple[Counted, ...]
    # Executions that came again under another key, with other numbers.
    conflicts: tuple[Fact, ...] = ()
    is_uncovered: bool = False  # an entry whose exits fall short
    is_unprotected: bool = False
    is_newly_unprotected: bool = False
    # By which it, or its group with the group's first, changes what is open of the symbol.
    opened: OpenSums = NOTHING_OPEN


def history_of(history: OrderHistory, bust_reopens: bool = True) -> OrderInputs:
    """The commands that were asked of the broker, and the facts that answer them; any attempt's
    answers a CANCEL."""
    ids: dict[int, str] = {}
    versions = []
    cancels = []
    for action in history.actions:
        name = ids[action.seq] = client_order_id(action.action_id)
        if action.action_type is ActionType.CANCEL:
            cancels.append(name)
        else:
            terms = terms_of(action.record)
            versions.append(OrderVersion(seq=action.seq, client_order_id=name, **terms))
    replacing = versions[-1].client_order_id if len(versions) > 1 else None
    attempts = {each.client_order_id: ids[each.seq] for each in history.commands} if cancels else {}
    facts = []
    for fact in history.seen:
        command = attempts.get(fact.client_order_id or "", fact.client_order_id)
        is_same = command == fact.client_order_id
        facts.append(fact if is_same else replace(fact, client_order_id=command))
    order_terms = OrderTerms(
        order_id=history.row.order_id,
        versions=tuple(versions),
        bust_reopens=bust_reopens,
        leg=history.row.leg,
    )
    return OrderInputs(order_terms, facts, PendingCommands(tuple(cancels), replacing))


def derive_orders(
    group: Sequence[OrderHistory], arrivals: Arrivals, bust_reopens: bool
) -> list[DerivedOrder]:
    """An order, or an entry and then its legs."""
    inputs = [history_of(history, bust_reopens) for history in group]
    views = derive_group(inputs)
    for index, history in enumerate(group):
        views[index] = carry_flags(_shown(history.row), views[index])
    derived = []
    for history, each, view in zip(group, inputs, views, strict=True):
        derived.append(_derived_order(history, each.terms, view, arrivals))
    derived[0] = replace(
        derived[0],
        opened=_opened(group, derived),
        is_uncovered=uncovered(views) > 0,
    )
    return derived


def _derived_order(
    history: OrderHistory,
    terms: OrderTerms,
    view: OrderView,
    arrivals: Arrivals,
) -> DerivedOrder:
    row = history.row
    after, visible = _row_after(history, terms, view, arrivals)
    changes = _trade_changes(history, terms, view, after, arrivals)
    is_first = view.acknowledged and not is_acknowledged(history.facts)
    was_open = row.finished_at is None and OrderFlag.RESURRECTED in row.flags
    is_open = OrderFlag.RESURRECTED in view.flags and view.state is OrderState.OPEN
    return DerivedOrder(
        row=after,
        view=view,
        written=after != row,
        visible=visible,
        resurrected=is_open and not was_open,
        refused=after.finished_at is None and any(fact.kind in REFUSED for fact in history.news),
        trades=changes,
        counts=count_changes(
            row, after, changes, history.commands if is_first else (), arrivals.now
        ),
        conflicts=tuple(fact for fact in history.news if is_conflict(fact, history.seen)),
    )


def _shown(row: OrderRow) -> ShownOrder:
    return ShownOrder(
        status=row.order_status,
        filled_quantity=row.filled_quantity,
        average_price=row.average_price,
        flags=row.flags,
    )


def _row_after(
    history: OrderHistory,
    terms: OrderTerms,
    view: OrderView,
    arrivals: Arrivals,
) -> tuple[OrderRow, bool]:
    """The order's row, and whether a reader sees a change."""
    row = history.row
    now = arrivals.now
    confirmed = view.confirmed
    if row.order_status in FINAL_STATUSES and not view.flags:
        # Final, and without a flag: only the broker's id may still become known.
        shown = replace(row, external_order_id=row.external_order_id or view.broker_order_id)
    else:
        shown = replace(
            row,
            **terms_of(confirmed) | {"quantity": view.quantity},
            order_status=view.status,
            command_seq=confirmed.seq,
            filled_quantity=view.filled_quantity,
            average_price=view.average_price,
            external_order_id=view.broker_order_id,
            reason=view.reason,
            detail=view.detail,
            flags=view.flags,
            active=view.active,
            broker_sent_at=latest(fact.venue_time for fact in history.seen),
        )
    seqs = {version.client_order_id: version.seq for version in terms.versions}
    after = replace(
        shown,
        pending_replace_seq=seqs[view.pending.replace] if view.pending.replace else None,
        cancel_requested=bool(view.pending.cancels),
        finished_at=None if view.state is OrderState.OPEN else row.finished_at or now,
    )
    if after == row:
        return row, False
    visible = shown != row
    new_kinds = {fact.kind for fact in history.news}
    after = replace(
        after,
        received_at=row.received_at if new_kinds.isdisjoint(BROKER_KINDS) else now,
        updated_at=now if visible else row.updated_at,
        version=row.version + visible,
    )
    return after, visible


def _trade_changes(
    history: OrderHistory, terms: OrderTerms, view: OrderView, order: OrderRow, arrivals: Arrivals
) -> tuple[TradeChange, ...]:
    known = {trade.exec_id: trade for trade in history.trades}
    arrived: dict[str | None, int] = {}
    for fact in history.news:
        number = arrivals.numbers.get((order.order_id, fact.key))
        if number is not None:
            arrived[fact.exec_id] = number
    first = min(arrived.values(), default=0)
    versions = {version.client_order_id: version for version in terms.versions}
    changes = []
    for trade in view.trades:
        before = known.pop(trade.exec_id, None)
        version = versions.get(trade.client_order_id or "", terms.versions[0])
        named = replace(trade, client_order_id=trade.client_order_id or version.client_order_id)
        after = trade_row(order, version.seq, named, before, arrivals.now)
        if after != before:
            changes.append(TradeChange(before, after, arrived.get(trade.exec_id, first)))
    for removed in known.values():
        if removed.quantity:
            flag = TradeFlag.REPLACED if TradeFlag.GAP in removed.flags else TradeFlag.BUSTED
            after = replace(removed, quantity=ZERO, flags=(*removed.flags, flag.value))
            changes.append(TradeChange(removed, after, first))
    return tuple(changes)


def trade_row(
    order: OrderRow,
    seq: int,
    trade: TradeView,
    before: TradeRow | None,
    now: datetime,
) -> TradeRow:
    present: dict[str, Any] = {
        "quantity": trade.quantity,
        "price": trade.price,
        "fee": trade.fee,
        "cumulative_quantity": trade.cumulative_quantity,
        "leaves_quantity": trade.leaves_quantity,
        "client_order_id": trade.client_order_id,
        "command_seq": seq,
        "flags": tuple(flag.value for flag in trade.flags),
        "broker_sent_at": trade.venue_time,
        "cum_quantity": trade.cum_quantity,
    }
    if before:
        return replace(before, **present)
    return TradeRow(
        trade_id=id_text(named_id(now, f"{order.order_id}/{trade.exec_id}")),
        account_id=order.account_id,
        organization_id=order.organization_id,
        order_id=order.order_id,
        symbol=order.symbol,
        side=order.order_side,
        client_reference_id=order.client_reference_id,
        exec_id=trade.exec_id,
        received_at=now,
        **present,
    )


def count_changes(
    row: OrderRow,
    after: OrderRow,
    changes: Iterable[TradeChange],
    acknowledged: Iterable[CommandRow],
    now: datetime,
) -> tuple[Counted, ...]:
    """`acknowledged` are the order's commands if its broker first shows now that it has it."""
    counts = []
    if row.order_status is not after.order_status:
        for status, amount in ((row.order_status, Decimal(-1)), (after.order_status, Decimal(1))):
            if status in FINAL_STATUSES:
                counts.append(Counted(Measure.FINISHED, status, amount, row.created_at))
    quantity = ZERO
    value = ZERO
    for change in changes:
        more, more_value = change.growth()
        quantity = EXACT.add(quantity, more)
        value = EXACT.add(value, more_value)
    if quantity or value:
        counts.append(Counted(Measure.FILLED_QUANTITY, row.symbol, quantity))
        counts.append(Counted(Measure.FILLED_NOTIONAL, row.symbol, value))
    for command in acknowledged:
        if command.action_type is ActionType.CREATE and command.sent_at:
            millis = max(int((now - command.sent_at).total_seconds() * 1000), 0)
            counts.append(Counted(Measure.ACK_MILLIS, ack_key(millis)))
    return tuple(counts)


def _opened(group: Sequence[OrderHistory], derived: Sequence[DerivedOrder]) -> OpenSums:
    before = open_sums(_summed(group, [history.row for history in group]))
    return open_sums(_summed(group, [order.row for order in derived])).plus(before, -1)


def lone_sums(row: OrderRow) -> OpenSums:
    """Of an order that nothing is linked to."""
    if row.finished_at:
        return NOTHING_OPEN
    unfilled = EXACT.subtract(row.quantity, row.filled_quantity)
    is_buy = row.order_side is OrderSide.BUY
    return OpenSums(1, unfilled, ZERO) if is_buy else OpenSums(1, ZERO, unfilled)


def _summed(group: Sequence[OrderHistory], rows: Sequence[OrderRow]) -> Iterator[SummedOrder]:
    """The open ones of a group, as their rows say."""
    for history, row in zip(group, rows, strict=True):
        if row.finished_at is None:
            replacing = None
            for action in history.actions:
                if action.seq == row.pending_replace_seq:
                    replacing = action.record.quantity
            unfilled = open_quantity(row.quantity, replacing, row.filled_quantity)
            yield SummedOrder(rows[0].order_id, row.order_side, unfilled, row.active)


class PositionChange(FrozenStruct):
    row: PositionRow  # as it is now
    visible: bool  # whether a reader sees it changed
    is_new_difference: bool  # the broker newly reports a quantity that is not ours


def position_change(before: PositionRow, after: PositionRow, now: datetime) -> PositionChange:
    reported = replace(
        before,
        broker_quantity=after.broker_quantity,
        broker_key=after.broker_key,
        broker_sent_at=after.broker_sent_at,
        differs=after.differs,
    )
    visible = after != reported
    is_reported = (before.broker_quantity, before.differs) != (after.broker_quantity, after.differs)
    row = replace(
        after,
        received_at=now if visible or is_reported else before.received_at or now,
        revision=before.revision + 1,
    )
    return PositionChange(row, visible, bool(after.differs) and is_reported)


def book_trades(row: PositionRow, bookings: Iterable[Booking]) -> PositionRow:
    return with_difference(from_trades(bookings, row))


def with_difference(row: PositionRow) -> PositionRow:
    """Updates the difference: a fill that the broker's report counted already ends it, a later fill
    makes none."""
    if row.differs and row.quantity == row.broker_quantity:
        return replace(row, differs=False)
    return row


def book_event(row: PositionRow, event: BrokerEvent, now: datetime) -> PositionRow:
    """Books a fee, or the broker's report; a report that is known, or older than the last one,
    changes nothing."""
    assert event.quantity is not None
    if event.kind is EventKind.FEE:
        return with_difference(take_fee(row, event.quantity, min(event.venue_time or now, now)))
    old = event.venue_time and row.broker_sent_at and event.venue_time < row.broker_sent_at
    if old or event.dedupe_key == row.broker_key:
        return row
    return replace(
        row,
        broker_quantity=event.quantity,
        broker_key=event.dedupe_key,
        broker_sent_at=event.venue_time,
        differs=event.quantity != row.quantity,
    )


def was_held(quantity: Decimal | None, held: Decimal, recent: Iterable[Booking]) -> bool:
    """Whether the position had that quantity before some of the recent trades, which are newest
    first."""
    with exact():
        for booking in recent:
            held -= booking.quantity if booking.side is OrderSide.BUY else -booking.quantity
            if held == quantity:
                return True
    return False
