"""What open orders add up to. Pure: no I/O, no clock."""

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


def exposure_change(
    before: Mapping[str, Any], after: Mapping[str, Any], quantities: Mapping[int, Decimal]
) -> ExposureChange:
    """What an order's row changes. `quantities` are those of its commands, by seq."""
    moved = EXACT.subtract(_unfilled(after, quantities), _unfilled(before, quantities))
    is_buy = after["order_side"] == OrderSide.BUY
    return ExposureChange(
        str(after["account_id"]),
        after["symbol"],
        str(after["organization_id"]),
        (after["finished_at"] is None) - (before["finished_at"] is None),
        moved if is_buy else ZERO,
        ZERO if is_buy else moved,
    )


def _unfilled(row: Mapping[str, Any], quantities: Mapping[int, Decimal]) -> Decimal:
    if row["finished_at"] is not None:
        return ZERO
    return open_quantity(row["quantity"], quantities.get(row["pending_replace_seq"]), row["filled_quantity"])


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
