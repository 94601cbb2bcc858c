"""Computes how new facts change an order, its trades, and the positions of these. Pure: no I/O, no
clock."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.ids import IdText, id_text, named_id
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.facts import Fact, client_order_id, is_conflict
from trading_intents.orders.linked import OrderInputs, derive_group, uncovered
from trading_intents.orders.model import (
    OrderFlag,
    OrderState,
    OrderTerms,
    OrderVersion,
    OrderView,
    PendingCommands,
    ShownOrder,
    carry_flags,
    is_acknowledged,
    state_of,
    with_flag,
)
from trading_intents.orders.positions import (
    Booking,
    PositionRow,
    SummedOrder,
    from_trades,
    open_quantity,
    open_sums,
    take_fee,
)
from trading_intents.orders.store import OrderHistory, OrderRow, TradeRow
from trading_intents.stats.model import Measure, StatsEntry, ack_key
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
UNCOVERED_TIME = timedelta(seconds=5)  # after which a final entry without enough exits is flagged


class TradeChange(FrozenStruct, frozen=True):
    order: OrderRow  # as it is now
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
        with exact():
            quantity = self.after.quantity
            value = self.after.quantity * self.after.price
            if self.before:
                quantity -= self.before.quantity
                value -= self.before.quantity * self.before.price
            return quantity, value


def _executed(trade: TradeRow) -> tuple[object, ...]:
    return trade.quantity, trade.price, trade.fee, trade.flags


def _booking_numbers(trade: TradeRow) -> tuple[object, ...]:
    return trade.quantity, trade.price, trade.fee, trade.broker_sent_at


class ExposureChange(FrozenStruct, frozen=True, kw_only=True):
    """The change that a group of linked orders, or one order, makes to the sums of a symbol's open
    orders."""

    account_id: IdText
    symbol: str
    organization_id: IdText
    open_orders: int
    open_buy: Decimal
    open_sell: Decimal


class SettledOrder(FrozenStruct, frozen=True, kw_only=True):
    """An order after its new facts."""

    row: OrderRow
    view: OrderView
    written: bool  # whether the row must be
    visible: bool  # whether a reader sees a change of it
    resurrected: bool  # it is open, newly, though it had ended
    trades: tuple[TradeChange, ...]
    entries: tuple[StatsEntry, ...]
    conflicts: tuple[Fact, ...]  # executions that came again under another key, with other numbers
    is_newly_unprotected: bool
    exposure: ExposureChange | None = None  # of its group, with the group's first


def history_of(history: OrderHistory, bust_reopens: bool = True) -> OrderInputs:
    """The commands that were asked of the broker, and the facts that answer them; any attempt's
    answers a CANCEL."""
    ids = {action.seq: client_order_id(action.action_id) for action in history.actions}
    versions = tuple(
        OrderVersion(seq=action.seq, client_order_id=ids[action.seq], **terms_of(action.record))
        for action in history.actions
        if action.action_type is not ActionType.CANCEL
    )
    cancels = tuple(
        ids[action.seq] for action in history.actions if action.action_type is ActionType.CANCEL
    )
    replacing = versions[-1].client_order_id if len(versions) > 1 else None
    attempts = {each.client_order_id: ids[each.seq] for each in history.commands} if cancels else {}
    facts = [
        replace(fact, client_order_id=attempts[fact.client_order_id])
        if fact.client_order_id in attempts
        else fact
        for fact in history.facts
    ]
    terms = OrderTerms(
        order_id=history.row.order_id,
        versions=versions,
        bust_reopens=bust_reopens,
        leg=history.row.leg,
    )
    return OrderInputs(terms, facts, PendingCommands(cancels, replacing))


def settle(
    group: Sequence[OrderHistory],
    new: Collection[str],
    numbers: Mapping[str, int],
    now: datetime,
    bust_reopens: bool,
) -> list[SettledOrder]:
    """Settles an order, or an entry and then its legs. `new` are the keys of new facts; `numbers`
    gives each event's number in the batch."""
    inputs = [history_of(history, bust_reopens) for history in group]
    views = [
        carry_flags(_shown(each.row), view)
        for each, view in zip(group, derive_group(inputs), strict=True)
    ]
    uncovered_since = group[0].row.uncovered_since or now if uncovered(views) else None
    if uncovered_since and now - uncovered_since >= UNCOVERED_TIME:
        views[0] = with_flag(views[0], OrderFlag.UNPROTECTED)
    if OrderFlag.UNPROTECTED in views[0].flags:
        uncovered_since = None
    settled = []
    for history, (terms, _, _), view in zip(group, inputs, views, strict=True):
        row = history.row
        after, visible = _row_after(
            history=history,
            terms=terms,
            view=view,
            new=new,
            now=now,
            uncovered_since=uncovered_since if row.leg is None else None,
        )
        changes = _trade_changes(
            history=history, terms=terms, view=view, order=after, numbers=numbers, now=now
        )
        was_open = row.finished_at is None and OrderFlag.RESURRECTED in row.flags
        resurrected = (
            OrderFlag.RESURRECTED in view.flags and view.state is OrderState.OPEN and not was_open
        )
        conflicts = tuple(
            fact for fact in history.facts if fact.key in new and is_conflict(fact, history.facts)
        )
        entries = _entries(history, view, changes, new, now)
        unprotected = OrderFlag.UNPROTECTED in set(view.flags) - set(row.flags)
        settled.append(
            SettledOrder(
                row=after,
                view=view,
                written=after != row,
                visible=visible,
                resurrected=resurrected,
                trades=changes,
                entries=entries,
                conflicts=conflicts,
                is_newly_unprotected=unprotected,
            )
        )
    settled[0] = replace(settled[0], exposure=_exposure_change(group, settled))
    return settled


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
    new: Collection[str],
    now: datetime,
    uncovered_since: datetime | None,
) -> tuple[OrderRow, bool]:
    """The order's row, and whether a reader sees a change."""
    row = history.row
    confirmed = view.confirmed
    if state_of(row.order_status) is not OrderState.OPEN and not view.flags:
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
            broker_sent_at=max(
                (fact.venue_time for fact in history.facts if fact.venue_time), default=None
            ),
        )
    seqs = {version.client_order_id: version.seq for version in terms.versions}
    after = replace(
        shown,
        pending_replace_seq=seqs[view.pending.replace] if view.pending.replace else None,
        cancel_requested=bool(view.pending.cancels),
        finished_at=None if view.state is OrderState.OPEN else row.finished_at or now,
        uncovered_since=uncovered_since,
    )
    if after == row:
        return row, False
    visible = shown != row
    is_broker_news = any(fact.kind in BROKER_KINDS for fact in history.facts if fact.key in new)
    return replace(
        after,
        received_at=now if is_broker_news else row.received_at,
        updated_at=now if visible else row.updated_at,
        version=row.version + visible,
    ), visible


def _trade_changes(
    history: OrderHistory,
    terms: OrderTerms,
    view: OrderView,
    order: OrderRow,
    numbers: Mapping[str, int],
    now: datetime,
) -> tuple[TradeChange, ...]:
    known = {trade.exec_id: trade for trade in history.trades}
    seqs = {version.client_order_id: version.seq for version in terms.versions}
    arrived = {fact.exec_id: numbers[fact.key] for fact in history.facts if fact.key in numbers}
    first = min(arrived.values(), default=0)
    changes = []
    for trade in view.trades:
        before = known.pop(trade.exec_id, None)
        after = TradeRow(
            trade_id=before.trade_id
            if before
            else id_text(named_id(now, f"{terms.order_id}/{trade.exec_id}")),
            booking=before.booking if before else 0,
            seq=before.seq if before else 0,
            account_id=order.account_id,
            organization_id=order.organization_id,
            order_id=order.order_id,
            symbol=order.symbol,
            side=order.order_side,
            client_reference_id=order.client_reference_id,
            exec_id=trade.exec_id,
            quantity=trade.quantity,
            price=trade.price,
            fee=trade.fee,
            cumulative_quantity=trade.cumulative_quantity,
            leaves_quantity=trade.leaves_quantity,
            client_order_id=trade.client_order_id or terms.versions[0].client_order_id,
            command_seq=seqs.get(trade.client_order_id or "", terms.versions[0].seq),
            flags=tuple(flag.value for flag in trade.flags),
            broker_sent_at=trade.venue_time,
            received_at=before.received_at if before else now,
        )
        if after != before:
            changes.append(TradeChange(order, before, after, arrived.get(trade.exec_id, first)))
    for removed in known.values():
        if removed.quantity:
            flag = TradeFlag.REPLACED if TradeFlag.GAP in removed.flags else TradeFlag.BUSTED
            after = replace(removed, quantity=ZERO, flags=(*removed.flags, flag.value))
            changes.append(TradeChange(order, removed, after, first))
    return tuple(changes)


def _entries(
    history: OrderHistory,
    view: OrderView,
    changes: Sequence[TradeChange],
    new: Collection[str],
    now: datetime,
) -> tuple[StatsEntry, ...]:
    row = history.row
    of_account = partial(StatsEntry, account_id=row.account_id, organization_id=row.organization_id)
    entries = []
    if row.order_status is not view.status:
        moves = ((row.order_status, Decimal(-1)), (view.status, Decimal(1)))
        finished = (
            (status, amount) for status, amount in moves if state_of(status) is not OrderState.OPEN
        )
        for status, amount in finished:
            entries.append(
                of_account(at=row.created_at, measure=Measure.FINISHED, key=status, amount=amount)
            )
    for change in changes:
        quantity, value = change.growth()
        if quantity or value:
            filled = partial(of_account, at=now, key=row.symbol)
            entries.append(filled(measure=Measure.FILLED_QUANTITY, amount=quantity))
            entries.append(filled(measure=Measure.FILLED_NOTIONAL, amount=value))
    sent_at = next(
        (each.sent_at for each in history.commands if each.action_type is ActionType.CREATE), None
    )
    known = (fact for fact in history.facts if fact.key not in new)
    if sent_at and view.acknowledged and not is_acknowledged(known):
        millis = max(int((now - sent_at).total_seconds() * 1000), 0)
        entries.append(of_account(at=now, measure=Measure.ACK_MILLIS, key=ack_key(millis)))
    return tuple(entries)


def _exposure_change(
    group: Sequence[OrderHistory], settled: Sequence[SettledOrder]
) -> ExposureChange | None:
    quantities = [
        {action.seq: action.record.quantity for action in history.actions} for history in group
    ]
    before = open_sums(_summed([history.row for history in group], quantities))
    after = open_sums(_summed([each.row for each in settled], quantities))
    if before == after:
        return None
    row = group[0].row
    return ExposureChange(
        account_id=row.account_id,
        symbol=row.symbol,
        organization_id=row.organization_id,
        open_orders=after.orders - before.orders,
        open_buy=EXACT.subtract(after.buy, before.buy),
        open_sell=EXACT.subtract(after.sell, before.sell),
    )


def _summed(
    rows: Sequence[OrderRow], quantities: Sequence[Mapping[int, Decimal]]
) -> Iterator[SummedOrder]:
    """The open ones of a group. `quantities` are those of each one's commands, by seq."""
    for row, asked in zip(rows, quantities, strict=True):
        if row.finished_at is None:
            unfilled = open_quantity(
                row.quantity, asked.get(row.pending_replace_seq or 0), row.filled_quantity
            )
            yield SummedOrder(rows[0].order_id, row.order_side, unfilled, row.active)


class PositionChange(FrozenStruct, frozen=True):
    row: PositionRow  # as it is now
    is_new: bool
    visible: bool  # whether a reader sees it changed
    is_new_difference: bool  # the broker newly reports a quantity that is not ours


def position_change(
    before: PositionRow, after: PositionRow, is_new: bool, now: datetime
) -> PositionChange:
    report = {
        name: getattr(after, name)
        for name in ("broker_quantity", "broker_key", "broker_sent_at", "differs")
    }
    visible = after != replace(before, **report)
    is_reported = (before.broker_quantity, before.differs) != (after.broker_quantity, after.differs)
    row = replace(after, received_at=now) if visible or is_reported else after
    return PositionChange(row, is_new, visible, after.differs and is_reported)


def book_trades(row: PositionRow, bookings: Iterable[Booking]) -> PositionRow:
    return with_difference(from_trades(bookings, row))


def with_difference(row: PositionRow) -> PositionRow:
    """Updates the difference: a fill that the broker's report counted already ends it, a later fill
    makes none."""
    return (
        replace(row, differs=False) if row.differs and row.quantity == row.broker_quantity else row
    )


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
