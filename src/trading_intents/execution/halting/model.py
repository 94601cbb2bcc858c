"""The next step of a halt for a symbol of one account. Pure: no I/O, no clock."""

from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from trading_intents.controls.model import TimeRule, closed_at
from trading_intents.trading import ZERO, FrozenStruct

CONFIRM_SECONDS = 5.0  # between two snapshots that must say the same where ours differs
MAX_SHOWN = 20  # of what an account waits for


class WaitReason(StrEnum):
    CANCEL_PENDING = "cancel_pending"  # the broker has not answered it
    CANCEL_REFUSED = "cancel_refused"  # another one follows
    CLOSING = "closing"  # an order that closes a position works
    BROKER_DISCONNECTED = "broker_disconnected"
    OUTSIDE_TRADING_WINDOW = "outside_trading_window"
    # The broker's differs from ours; it is asked once more.
    POSITION_UNCONFIRMED = "position_unconfirmed"
    NOT_FILLED = "not_filled"  # the last closing order ended unfilled; another one follows


class ClosingProgress(FrozenStruct, kw_only=True):
    """An account's positions in a halt, as they are kept."""

    symbols: tuple[str, ...] = ()
    positions_done: int = 0
    waiting: tuple[dict[str, str], ...] = ()
    flat: str | None = None  # what the positions said when the broker was found to hold nothing


def close_wait(
    symbol: str,
    open_symbols: Collection[str],
    is_too_soon: bool,
    window: TimeRule | None,
    now: datetime,
) -> WaitReason | None:
    """The reason why no closing order of the symbol may be made now, whatever the broker holds;
    None: one may. `is_too_soon`: after one that ended unfilled."""
    if symbol in open_symbols:
        return WaitReason.CLOSING
    if window and closed_at(window, now):
        return WaitReason.OUTSIDE_TRADING_WINDOW
    return WaitReason.NOT_FILLED if is_too_soon else None


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


def with_symbols(
    progress: ClosingProgress,
    account_id: str,
    left: Collection[str],
    waits: Mapping[str, str | None],
) -> ClosingProgress:
    """`left` are the symbols in which something is still to be closed."""
    symbols = tuple(sorted({*progress.symbols, *left}))
    waiting: list[dict[str, str]] = []
    for symbol in sorted(left):
        if reason := waits.get(symbol):
            waiting.append({"account_id": account_id, "symbol": symbol, "reason": reason})
    done = len(symbols) - len(left)
    return replace(
        progress, symbols=symbols, positions_done=done, waiting=tuple(waiting[:MAX_SHOWN])
    )
