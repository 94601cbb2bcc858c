"""What open orders add up to, for accounts with limits that need it. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from trading_intents.amounts import ZERO, exact, normalized
from trading_intents.trading import FrozenStruct, OrderSide

WHOLE_ACCOUNT = ""  # in place of a symbol: the row with the account's number of open orders


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
    """One for each symbol and account that changes, in the order in which their rows are locked."""
    sums: dict[tuple[str, str, str], list[Any]] = {}
    with exact():
        for each in changes:
            for symbol, buy, sell in ((each.symbol, each.open_buy, each.open_sell), (WHOLE_ACCOUNT, ZERO, ZERO)):
                summed = sums.setdefault((each.account_id, symbol, each.organization_id), [0, ZERO, ZERO])
                summed[0] += each.open_orders
                summed[1] += buy
                summed[2] += sell
    return [
        ExposureChange(*place, orders, normalized(buy), normalized(sell))
        for place, (orders, buy, sell) in sorted(sums.items())
        if orders or buy or sell
    ]
