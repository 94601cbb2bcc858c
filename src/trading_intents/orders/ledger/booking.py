"""Computes how new facts change an order, its trades, and the positions of these. Pure: no I/O, no clock."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from trading_intents.amounts import ZERO, exact
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.ids import named_id
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.facts import Fact, client_order_id, is_conflict
from trading_intents.orders.ledger.exposures import ExposureChange, exposure_change
from trading_intents.orders.ledger.store import BookedTrade
from trading_intents.orders.model import (
    OrderFlag,
    OrderState,
    OrderStatus,
    OrderTerms,
    OrderVersion,
    OrderView,
    PendingCommands,
    ShownOrder,
    carry_flags,
    derive,
    is_acknowledged,
    state_of,
)
from trading_intents.orders.positions import Booking, NetPosition, from_trades, position_from_row, take_fee
from trading_intents.orders.store import OrderHistory, TradeRow
from trading_intents.stats.model import Measure, StatsEntry, ack_key
from trading_intents.storage.database import Row
from trading_intents.trading import ActionType, FrozenStruct, OrderSide

BROKER_KINDS = frozenset(kind.value for kind in EventKind)  # kinds of facts that brokers report


class TradeChange(FrozenStruct, frozen=True):
    order: Row  # as it is now
    before: TradeRow | None
    after: TradeRow
    place: int  # of the event that brought it, among those that came together

    @property
    def is_published(self) -> bool:
        """Whether the execution itself changed. Changed running sums of later trades are not published again."""
        return self.before is None or _executed(self.before) != _executed(self.after)

    @property
    def is_rebooked(self) -> bool:
        """Whether the symbol's position must be summed up again: averages do not run backwards."""
        return self.before is not None and _booking_numbers(self.before) != _booking_numbers(self.after)

    @property
    def booking(self) -> Booking:
        trade = self.after
        at = _booked_at(trade.broker_sent_at, trade.received_at)
        return Booking(OrderSide(self.order["order_side"]), trade.quantity, trade.price, trade.fee, at)

    def growth(self) -> tuple[Decimal, Decimal]:
        """The increase of the quantity, and its value."""
        with exact():
            quantity, value = self.after.quantity, self.after.quantity * self.after.price
            if self.before:
                quantity -= self.before.quantity
                value -= self.before.quantity * self.before.price
            return quantity, value


def _executed(trade: TradeRow) -> tuple[object, ...]:
    return trade.quantity, trade.price, trade.fee, trade.flags


def _booking_numbers(trade: TradeRow) -> tuple[object, ...]:
    return trade.quantity, trade.price, trade.fee, trade.broker_sent_at


def booking_of(trade: BookedTrade) -> Booking:
    at = _booked_at(trade.broker_sent_at, trade.received_at)
    return Booking(trade.side, trade.quantity, trade.price, trade.fee, at)


def _booked_at(broker_sent_at: datetime | None, received_at: datetime) -> datetime:
    """The trade's time, but never in our future: a venue's fast clock must not move a result to the next day."""
    return received_at if broker_sent_at is None else min(broker_sent_at, received_at)


class SettledOrder(FrozenStruct, frozen=True):
    """An order after its new facts."""

    row: Row
    view: OrderView
    written: bool  # whether the row must be
    visible: bool  # whether a reader sees a change of it
    resurrected: bool  # it is open, newly, though it had ended
    trades: tuple[TradeChange, ...]
    entries: tuple[StatsEntry, ...]
    conflicts: tuple[Fact, ...]  # executions that came again under another key, with other numbers
    exposure: ExposureChange


def history_of(history: OrderHistory, bust_reopens: bool = True) -> tuple[OrderTerms, Sequence[Fact], PendingCommands]:
    """The commands that were asked of the broker, and the facts that answer them; any attempt's answers a CANCEL."""
    ids = {action.seq: client_order_id(action.action_id) for action in history.actions}
    versions = [
        OrderVersion(
            seq=action.seq,
            client_order_id=ids[action.seq],
            quantity=action.record.quantity,
            limit_price=action.record.limit_price,
            stop_price=action.record.stop_price,
            time_in_force=action.record.time_in_force,
        )
        for action in history.actions
        if action.action_type != ActionType.CANCEL
    ]
    cancels = tuple(ids[action.seq] for action in history.actions if action.action_type == ActionType.CANCEL)
    replacing = versions[-1].client_order_id if len(versions) > 1 else None
    attempts = {sent_id: ids[action.seq] for action in history.actions for sent_id in action.cancel_ids or ()}
    facts = [
        replace(fact, client_order_id=attempts[fact.client_order_id]) if fact.client_order_id in attempts else fact
        for fact in history.facts
    ]
    terms = OrderTerms(str(history.row["order_id"]), tuple(versions), bust_reopens)
    return terms, facts, PendingCommands(cancels, replacing)


def settle(history: OrderHistory, new: Collection[str], places: Mapping[str, int], bust_reopens: bool) -> SettledOrder:
    """`new` are the keys of new facts; `places` gives each event's place in the batch."""
    row = history.row
    terms, facts, pending = history_of(history, bust_reopens)
    shown = ShownOrder(
        status=OrderStatus(row["order_status"]),
        filled_quantity=row["filled_quantity"],
        average_price=row["average_price"],
        flags=tuple(map(OrderFlag, row["flags"])),
    )
    view = carry_flags(shown, derive(terms, facts, pending))
    after, written, visible = _row_after(history, terms, view, new)
    changes = _trade_changes(history, terms, view, after, places)
    was_open = row["finished_at"] is None and OrderFlag.RESURRECTED in shown.flags
    resurrected = OrderFlag.RESURRECTED in view.flags and view.state is OrderState.OPEN and not was_open
    conflicts = tuple(fact for fact in history.facts if fact.key in new and is_conflict(fact, history.facts))
    entries = _entries(history, view, changes, new)
    exposure = exposure_change(row, after, {action.seq: action.record.quantity for action in history.actions})
    return SettledOrder(after, view, written, visible, resurrected, changes, entries, conflicts, exposure)


def _row_after(
    history: OrderHistory, terms: OrderTerms, view: OrderView, new: Collection[str]
) -> tuple[Row, bool, bool]:
    row, now, confirmed = history.row, history.now, view.confirmed
    shown = {
        "order_status": view.status.value,
        "command_seq": confirmed.seq,
        "quantity": view.quantity,
        "limit_price": confirmed.limit_price,
        "stop_price": confirmed.stop_price,
        "time_in_force": confirmed.time_in_force.value,
        "filled_quantity": view.filled_quantity,
        "average_price": view.average_price,
        "external_order_id": view.broker_order_id,
        "reason": view.reason,
        "flags": [flag.value for flag in view.flags],
        "broker_sent_at": max((fact.venue_time for fact in history.facts if fact.venue_time), default=None),
    }
    if state_of(OrderStatus(row["order_status"])) is not OrderState.OPEN and not view.flags:
        # Final, and without a flag: only the broker's id may still become known.
        shown = {name: row[name] for name in shown} | {
            "external_order_id": row["external_order_id"] or view.broker_order_id
        }
    seqs = {version.client_order_id: version.seq for version in terms.versions}
    hidden = {
        "pending_replace_seq": seqs[view.pending.replace] if view.pending.replace else None,
        "cancel_requested": bool(view.pending.cancels),
        "finished_at": None if view.state is OrderState.OPEN else row["finished_at"] or now,
    }
    visible = any(row[name] != value for name, value in shown.items())
    written = visible or any(row[name] != value for name, value in hidden.items())
    is_broker_news = any(fact.kind in BROKER_KINDS for fact in history.facts if fact.key in new)
    moved = {
        "received_at": now if written and is_broker_news else row["received_at"],
        "updated_at": now if visible else row["updated_at"],
        "version": row["version"] + visible,
    }
    return {**row, **shown, **hidden, **moved}, written, visible


def _trade_changes(
    history: OrderHistory, terms: OrderTerms, view: OrderView, order: Row, places: Mapping[str, int]
) -> tuple[TradeChange, ...]:
    known = {trade.exec_id: trade for trade in history.trades}
    seqs = {version.client_order_id: version.seq for version in terms.versions}
    arrived = {fact.exec_id: places[fact.key] for fact in history.facts if fact.key in places}
    first = min(arrived.values(), default=0)
    changes = []
    for trade in view.trades:
        before = known.pop(trade.exec_id, None)
        after = TradeRow(
            trade_id=before.trade_id if before else named_id(history.now, f"{terms.order_id}/{trade.exec_id}"),
            seq=before.seq if before else 0,
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
            received_at=before.received_at if before else history.now,
        )
        if after != before:
            changes.append(TradeChange(order, before, after, arrived.get(trade.exec_id, first)))
    for removed in known.values():
        if removed.quantity:
            flag = TradeFlag.REPLACED if TradeFlag.GAP in removed.flags else TradeFlag.BUSTED
            after = msgspec.structs.replace(removed, quantity=ZERO, flags=(*removed.flags, flag.value))
            changes.append(TradeChange(order, removed, after, first))
    return tuple(changes)


def _entries(
    history: OrderHistory, view: OrderView, changes: Sequence[TradeChange], new: Collection[str]
) -> tuple[StatsEntry, ...]:
    row, now = history.row, history.now
    ids = row["account_id"], row["organization_id"]
    entries = []
    was, now_is = OrderStatus(row["order_status"]), view.status
    if was is not now_is:
        moves = ((was, Decimal(-1)), (now_is, Decimal(1)))
        finished = ((status, amount) for status, amount in moves if state_of(status) is not OrderState.OPEN)
        entries += [
            StatsEntry(*ids, row["created_at"], Measure.FINISHED, status, amount) for status, amount in finished
        ]
    for change in changes:
        quantity, value = change.growth()
        if quantity or value:
            entries.append(StatsEntry(*ids, now, Measure.FILLED_QUANTITY, row["symbol"], quantity))
            entries.append(StatsEntry(*ids, now, Measure.FILLED_NOTIONAL, row["symbol"], value))
    known = (fact for fact in history.facts if fact.key not in new)
    if history.sent_at and view.acknowledged and not is_acknowledged(known):
        millis = max(int((now - history.sent_at).total_seconds() * 1000), 0)
        entries.append(StatsEntry(*ids, now, Measure.ACK_MILLIS, ack_key(millis)))
    return tuple(entries)


class HeldPosition(FrozenStruct, frozen=True):
    """A position, and what the broker last reported of it."""

    position: NetPosition
    broker_quantity: Decimal | None = None
    broker_key: str | None = None
    broker_sent_at: datetime | None = None
    differs: bool = False  # the report does not agree with our quantity, and no fill booked since explains it


def read_holding(row: Row) -> HeldPosition:
    counts = (row[name] for name in ("broker_quantity", "broker_key", "broker_sent_at", "differs"))
    return HeldPosition(position_from_row(row), *counts)


def book_trade(holding: HeldPosition, change: TradeChange) -> HeldPosition:
    """Adds a new trade to the position. For a rebooked trade the caller sums the position up again."""
    position = from_trades((change.booking,), holding.position) if change.before is None else holding.position
    return with_position(holding, position)


def with_position(holding: HeldPosition, position: NetPosition) -> HeldPosition:
    """Updates the difference: a fill that the broker's report counted already ends it, a later fill makes none."""
    return replace(holding, position=position, differs=holding.differs and position.quantity != holding.broker_quantity)


def book_event(holding: HeldPosition, event: BrokerEvent, now: datetime) -> HeldPosition:
    """Books a fee, or the broker's report; a report that is known, or older than the last one, changes nothing."""
    assert event.quantity is not None
    if event.kind is EventKind.FEE:
        at = _booked_at(event.venue_time, now)
        return with_position(holding, take_fee(holding.position, event.quantity, at))
    old = event.venue_time and holding.broker_sent_at and event.venue_time < holding.broker_sent_at
    if old or event.dedupe_key == holding.broker_key:
        return holding
    differs = event.quantity != holding.position.quantity
    return HeldPosition(holding.position, event.quantity, event.dedupe_key, event.venue_time, differs)


def was_held(quantity: Decimal | None, held: Decimal, recent: Iterable[Booking]) -> bool:
    """Whether the position had that quantity before some of the recent trades, which are newest first."""
    with exact():
        for booking in recent:
            held -= booking.quantity if booking.side is OrderSide.BUY else -booking.quantity
            if held == quantity:
                return True
    return False
