"""What of a position is left to close beside the open orders of its symbol. Pure: no I/O, no clock."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from trading_intents.amounts import ZERO, exact
from trading_intents.controls.limits.model import AskedOrder
from trading_intents.trading import FrozenStruct, OrderKind, OrderSide, Symbol


class Holding(FrozenStruct, frozen=True):
    """A symbol in an account. Of an order with a pending REPLACE the larger of its two versions counts."""

    quantity: Decimal  # ours; negative: short
    selling: Decimal  # unfilled, of open SELLs
    buying: Decimal
    open_orders: int
    is_newer: bool  # an order of the symbol came after the one that the asker knew as the last

    @property
    def left_to_close(self) -> Decimal:
        """The position less what open orders close already; it never changes its sign."""
        with exact():
            if self.quantity > 0:
                return max(self.quantity - self.selling, ZERO)
            return min(self.quantity + self.buying, ZERO)

    def with_order(self, side: OrderSide, quantity: Decimal) -> "Holding":
        """The holding once such an order, or such a version of one, is open as well."""
        with exact():
            return Holding(
                self.quantity,
                self.selling + (quantity if side is OrderSide.SELL else ZERO),
                self.buying + (quantity if side is OrderSide.BUY else ZERO),
                self.open_orders + 1,
                True,
            )


def closing_order(symbol: Symbol, quantity: Decimal) -> AskedOrder:
    """The order that closes so much of a position, as limits judge it."""
    side, size = (OrderSide.SELL if quantity > 0 else OrderSide.BUY), abs(quantity)
    return AskedOrder(is_create=True, symbol=symbol, side=side, kind=OrderKind.MARKET, quantity=size, open_after=size)


def parse_holdings(rows: Iterable[Sequence[str]]) -> dict[tuple[str, str], Holding]:
    """Of the texts that `read_holdings` gives, by account and symbol."""
    return {
        (account_id, symbol): Holding(Decimal(held), Decimal(selling), Decimal(buying), int(count), newer == "t")
        for account_id, symbol, held, selling, buying, count, newer in rows
    }


def note_order(
    holdings: dict[tuple[str, str], Holding], account_id: str, symbol: str, side: OrderSide, quantity: str
) -> None:
    """What was accepted before a Close of the same batch closes a position too."""
    if held := holdings.get((account_id, symbol)):
        holdings[account_id, symbol] = held.with_order(side, Decimal(quantity))
