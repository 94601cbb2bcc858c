"""The next step of a halt for an order and for a symbol of one account. Pure: no I/O, no clock."""

from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from trading_intents.controls.halts.model import HaltState
from trading_intents.controls.model import TimeRule, closed_at
from trading_intents.trading import ZERO, FrozenStruct

MAX_RETRY_SECONDS = 60.0
CONFIRM_SECONDS = 5.0  # between two snapshots that must say the same where ours differs
MAX_SHOWN = 20  # of what a part waits for


class WaitReason(StrEnum):
    CANCEL_PENDING = "cancel_pending"  # the broker has not answered it
    CANCEL_REFUSED = "cancel_refused"  # another one follows
    CLOSING = "closing"  # an order that closes a position works
    BROKER_DISCONNECTED = "broker_disconnected"
    OUTSIDE_TRADING_WINDOW = "outside_trading_window"
    # The broker's differs from ours; it is asked once more.
    POSITION_UNCONFIRMED = "position_unconfirmed"
    NOT_FILLED = "not_filled"  # the last closing order ended unfilled; another one follows


class Waiting(NamedTuple):
    """The thing that a part waits for: an order, a symbol, or without either all that the broker
    may hold; and why."""

    reason: str
    order_id: UUID | None = None
    symbol: str | None = None

    def entry(self, account_id: UUID) -> dict[str, str]:
        order = {"order_id": str(self.order_id)} if self.order_id else {}
        symbol = {"symbol": self.symbol} if self.symbol else {}
        return {"account_id": str(account_id), **order, **symbol, "reason": self.reason}


class OpenOrder(FrozenStruct, kw_only=True):
    order_id: UUID
    symbol: str
    is_cancelled: bool  # a CANCEL is not answered
    is_left: bool  # made to close a position after the halt began: it may work
    cancels: int  # since the halt began
    cancelled_seconds: float  # since the last of them


class ClosingAttempts(FrozenStruct):
    """Orders that were made since the halt began to close a symbol's position, and ended
    unfilled."""

    count: int
    ended_seconds: float  # since the last of them


NO_ATTEMPTS = ClosingAttempts(0, 0.0)


class PartProgress(FrozenStruct, kw_only=True):
    """A part as it is kept."""

    state: HaltState
    base_seq: int
    seen_seq: int
    orders: int
    orders_done: int
    symbols: tuple[str, ...]
    positions_done: int
    waiting: tuple[Waiting, ...]


def retry_seconds(attempts: int) -> float:
    """1, 2, 4 … 60 s between a CANCEL or closing order that came to nothing and the next."""
    return min(2.0 ** (attempts - 1), MAX_RETRY_SECONDS) if attempts else 0.0


def cancel_wait(order: OpenOrder, is_connected: bool) -> WaitReason | None:
    """The reason why an open order gets no CANCEL now; None: it gets one."""
    if order.is_left:
        return WaitReason.CLOSING
    if order.is_cancelled:
        return WaitReason.CANCEL_PENDING if is_connected else WaitReason.BROKER_DISCONNECTED
    if order.cancelled_seconds < retry_seconds(order.cancels):
        return WaitReason.CANCEL_REFUSED
    return None


def close_wait(
    symbol: str,
    open_symbols: Collection[str],
    attempts: ClosingAttempts,
    window: TimeRule | None,
    now: datetime,
) -> WaitReason | None:
    """The reason why no closing order of the symbol may be made now, whatever the broker holds;
    None: one may."""
    if symbol in open_symbols:
        return WaitReason.CLOSING
    if window and closed_at(window, now):
        return WaitReason.OUTSIDE_TRADING_WINDOW
    if attempts.count and attempts.ended_seconds < retry_seconds(attempts.count):
        return WaitReason.NOT_FILLED
    return None


class ReportedQuantity(NamedTuple):
    """A quantity that the broker reported and that is not ours, and when it was first asked for."""

    quantity: Decimal
    since_seconds: float

    def is_confirmed(self, now_seconds: float) -> bool:
        return now_seconds - self.since_seconds >= CONFIRM_SECONDS


def differing(
    reported: Mapping[str, Decimal],
    ours: Mapping[str, Decimal],
    before: Mapping[str, ReportedQuantity],
    asked_seconds: float,
) -> dict[str, ReportedQuantity]:
    """The symbols in which a snapshot differs from ours, since when it says so. A symbol that it
    leaves out is 0."""
    found = dict[str, ReportedQuantity]()
    for symbol in {*reported, *ours}:
        quantity = reported.get(symbol, ZERO)
        if quantity == ours.get(symbol, ZERO):
            continue
        found[symbol] = ReportedQuantity(quantity, asked_seconds)
        first = before.get(symbol)
        if first and first.quantity == quantity:
            found[symbol] = first
    return found


def with_orders(progress: PartProgress, waits: Mapping[UUID, str | None]) -> PartProgress:
    waiting = [Waiting(reason, order_id=order_id) for order_id, reason in waits.items() if reason]
    return replace(progress, waiting=tuple(waiting[:MAX_SHOWN]))


def with_symbols(
    progress: PartProgress, left: Collection[str], waits: Mapping[str, str | None]
) -> PartProgress:
    """`left` are the symbols in which something is still to be closed."""
    symbols = tuple(sorted({*progress.symbols, *left}))
    waiting = [
        Waiting(reason, symbol=symbol) for symbol in sorted(left) if (reason := waits.get(symbol))
    ]
    done = len(symbols) - len(left)
    return replace(
        progress, symbols=symbols, positions_done=done, waiting=tuple(waiting[:MAX_SHOWN])
    )
