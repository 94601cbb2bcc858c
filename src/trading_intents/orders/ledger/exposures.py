"""What open orders add up to, for accounts with limits that need it. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from trading_intents.amounts import EXACT, ZERO, exact
from trading_intents.trading import FrozenStruct, OrderSide


class ExposureChange(FrozenStruct, frozen=True):
    """A difference of a symbol's sums. SELL and SELL_SHORT are one side."""

    account_id: str
    symbol: str
    organization_id: str
    open_orders: int = 0
    open_buy: Decimal = ZERO
    open_sell: Decimal = ZERO


def open_quantity(quantity: Decimal, replacing: Decimal | None, filled: Decimal) -> Decimal:
    """What is left unfilled of an open order; of two versions, the larger."""
    with exact():
        return max(max(quantity, replacing or ZERO) - filled, ZERO)


def counted_quantity(row: Mapping[str, Any], quantities: Mapping[int, Decimal]) -> Decimal | None:
    """What an order's row adds to its side; None: it is not counted. `quantities` are those of its commands, by seq."""
    if not row["counted"] or row["finished_at"] is not None:
        return None
    return open_quantity(row["quantity"], quantities.get(row["pending_replace_seq"]), row["filled_quantity"])


def exposure_change(row: Mapping[str, Any], before: Decimal | None, after: Decimal | None) -> ExposureChange:
    with exact():
        moved = (after or ZERO) - (before or ZERO)
    is_buy = row["order_side"] == OrderSide.BUY
    return ExposureChange(
        str(row["account_id"]),
        row["symbol"],
        str(row["organization_id"]),
        (after is not None) - (before is not None),
        moved if is_buy else ZERO,
        ZERO if is_buy else moved,
    )


def sum_changes(changes: Iterable[ExposureChange]) -> list[ExposureChange]:
    """One for each symbol that changes, in the order in which their rows are locked."""
    sums: dict[tuple[str, str], ExposureChange] = {}
    for each in changes:
        place = each.account_id, each.symbol
        before = sums.get(place)
        sums[place] = each if before is None else _sum(before, each)
    return [sums[place] for place in sorted(sums) if _is_change(sums[place])]


def _sum(one: ExposureChange, other: ExposureChange) -> ExposureChange:
    return ExposureChange(
        one.account_id,
        one.symbol,
        one.organization_id,
        one.open_orders + other.open_orders,
        EXACT.add(one.open_buy, other.open_buy),
        EXACT.add(one.open_sell, other.open_sell),
    )


def _is_change(change: ExposureChange) -> bool:
    return bool(change.open_orders or change.open_buy or change.open_sell)
