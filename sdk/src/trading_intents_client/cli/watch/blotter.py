"""The state of a live blotter: orders, fills, positions, money, events, what is selected. Threads
may change it while another draws."""

import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from msgspec import Struct

from trading_intents_client import (
    FINAL_STATUSES,
    Balances,
    Event,
    GapEvent,
    Halt,
    HaltEvent,
    HaltState,
    OrderEvent,
    OrderFlag,
    OrderRecord,
    Position,
    PositionEvent,
    PrimedEvent,
    Trade,
    TradeEvent,
    TradingAccount,
)
from trading_intents_client.cli.lines import event_line, event_time
from trading_intents_client.cli.reasons import order_reason
from trading_intents_client.cli.tables import SIDES, amount
from trading_intents_client.cli.today import DayResult
from trading_intents_client.stream.events import (
    StreamedHalt,
    StreamedOrder,
    StreamedPosition,
    StreamedTrade,
)

MAX_ORDERS = 1000
MAX_EVENTS = 200
MAX_FILLS = 200


class BlotterOrder(Struct, frozen=True, kw_only=True):
    order_id: str
    version: int
    at: datetime | None
    symbol: str
    side: str
    order_type: str
    quantity: Decimal
    filled: Decimal
    limit_price: Decimal | None
    stop_price: Decimal | None
    average_price: Decimal | None
    status: str
    reason: str | None
    is_unprotected: bool

    @property
    def is_open(self) -> bool:
        return self.status not in FINAL_STATUSES

    @property
    def is_over(self) -> bool:
        """Whether it no longer matters for what is held."""
        return not (self.is_open or self.is_unprotected)

    def __str__(self) -> str:
        return f"{self.side} {amount(self.quantity)} {self.symbol}"


class BlotterFill(Struct, frozen=True, kw_only=True):
    trade_id: str
    at: datetime | None
    symbol: str
    side: str
    quantity: Decimal
    price: Decimal


class BlotterPosition(Struct, frozen=True, kw_only=True):
    symbol: str
    at: datetime | None
    quantity: Decimal
    average_cost: Decimal | None
    market_price: Decimal | None
    unrealized_pnl: Decimal | None


class Blotter:
    def __init__(self, account: TradingAccount, url: str) -> None:
        self.account = account
        self.url = url
        self.failure: Exception | None = None
        self.trouble: str | None = None
        self.balances: Balances | None = None
        self.today: DayResult | None = None
        self.connected_at = time.monotonic()
        self._lock = threading.Lock()
        self._orders: dict[str, BlotterOrder] = {}
        self._positions: dict[str, BlotterPosition] = {}
        self._fills: dict[str, BlotterFill] = {}
        # That stand, of the account or its organization.
        self._halts: dict[str, Halt | StreamedHalt] = {}
        self.selected: str | None = None  # an order's id
        self.confirming: BlotterOrder | None = None  # whether it is to be cancelled
        self.notice: str | None = None
        self._events: deque[tuple[datetime, str]] = deque(maxlen=MAX_EVENTS)

    def note_connected(self) -> None:
        """The stream is served now, also when nothing happens."""
        self.connected_at = time.monotonic()

    def apply(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, OrderEvent):
                before = self._orders.get(event.order.order_id)
                self._put(_order_row(event.order, before.at if before else event.order.received_at))
            elif isinstance(event, TradeEvent):
                self._put_fill(event.trade)
            elif isinstance(event, HaltEvent):
                self._put_halt(event.halt)
            elif isinstance(event, PositionEvent):
                self._apply_position(event)
            elif isinstance(event, GapEvent):
                # Those that are still so are read again.
                self._orders = {key: row for key, row in self._orders.items() if row.is_over}
                for record in event.orders:
                    self._put(_order_row(record, record.created_at))
                self._positions = _position_rows(event.positions)
                self._halts.clear()  # the account's is read again
            if event.cursor is not None and not isinstance(event, PrimedEvent):
                self._events.append((event_time(event), event_line(event)))

    def set_orders(self, orders: Iterable[OrderRecord]) -> None:
        # Read before the lock is taken.
        found = [_order_row(order, order.created_at) for order in orders]
        with self._lock:
            for row in found:
                self._put(row)

    def set_halt(self, halt: Halt) -> None:
        with self._lock:
            self._put_halt(halt)

    def set_fills(self, trades: Iterable[Trade]) -> None:
        """Takes the oldest first."""
        with self._lock:
            for trade in trades:
                self._put_fill(trade)

    def set_positions(self, positions: Iterable[Position]) -> None:
        found = _position_rows(positions)
        with self._lock:
            # The stream may have had a fill while they were read.
            for symbol, row in self._positions.items():
                if _is_newer(row, found.get(symbol)):
                    found[symbol] = row
            self._positions = found
            self.trouble = None

    def orders(self) -> list[BlotterOrder]:
        """Open ones first, and the newest of each first."""
        with self._lock:
            rows = sorted(self._orders.values(), key=lambda row: row.order_id, reverse=True)
        return sorted(rows, key=lambda row: not row.is_open)

    def fills(self) -> list[BlotterFill]:
        """The newest first."""
        with self._lock:
            return list(self._fills.values())[::-1]

    def halt(self) -> Halt | StreamedHalt | None:
        """The first of those that stand."""
        with self._lock:
            return next(iter(self._halts.values()), None)

    def move(self, steps: int) -> None:
        """Selects another order; the first, if none was."""
        orders = [row.order_id for row in self.orders()]
        if self.selected in orders:
            index = orders.index(self.selected) + steps
            self.selected = orders[min(max(index, 0), len(orders) - 1)]
        else:
            self.selected = orders[0] if orders else None

    def ask_to_cancel(self) -> None:
        order = next((row for row in self.orders() if row.order_id == self.selected), None)
        if order is None:
            self.notice = "select an order first, with the arrow keys"
        elif not order.is_open:
            self.notice = f"{order} is {order.status}"
        else:
            self.confirming = order
            self.notice = None

    def positions(self) -> list[BlotterPosition]:
        with self._lock:
            return sorted(
                (row for row in self._positions.values() if row.quantity),
                key=lambda row: row.symbol,
            )

    def unprotected(self) -> list[str]:
        """The symbols with an unprotected entry."""
        with self._lock:
            return sorted({row.symbol for row in self._orders.values() if row.is_unprotected})

    def events(self) -> list[tuple[datetime, str]]:
        """The newest last."""
        with self._lock:
            return list(self._events)

    def _put(self, row: BlotterOrder) -> None:
        known = self._orders.get(row.order_id)
        if known is not None and known.version > row.version:
            return
        self._orders[row.order_id] = row
        if len(self._orders) > MAX_ORDERS:
            finished = [key for key, found in self._orders.items() if found.is_over]
            del self._orders[min(finished or self._orders)]

    def _put_halt(self, halt: Halt | StreamedHalt) -> None:
        if halt.state == HaltState.RESUMED:
            self._halts.pop(halt.id, None)
        else:
            self._halts[halt.id] = halt

    def _put_fill(self, trade: Trade | StreamedTrade) -> None:
        self._fills[trade.trade_id] = BlotterFill(
            trade_id=trade.trade_id,
            at=trade.received_at,
            symbol=trade.symbol,
            side=_side(trade.side),
            quantity=trade.quantity,
            price=trade.price,
        )
        if len(self._fills) > MAX_FILLS:
            del self._fills[next(iter(self._fills))]

    def _apply_position(self, event: PositionEvent) -> None:
        position = event.position
        known = self._positions.get(event.position.symbol)
        price = known.market_price if known else None
        unrealized = None
        if price is not None and position.average_cost is not None:
            unrealized = (price - position.average_cost) * position.quantity
        self._positions[position.symbol] = _position_row(position, price, unrealized)


def _order_row(order: OrderRecord | StreamedOrder, at: datetime | None) -> BlotterOrder:
    return BlotterOrder(
        order_id=order.order_id,
        version=order.version,
        at=at,
        symbol=order.symbol,
        side=_side(order.order_side),
        order_type=str(order.order_type or "-"),
        quantity=order.quantity,
        filled=order.filled_quantity,
        limit_price=order.limit_price,
        stop_price=order.stop_price,
        average_price=order.average_price,
        status=str(order.order_status),
        reason=order_reason(order),
        is_unprotected=OrderFlag.UNPROTECTED in order.flags,
    )


def _side(side: str | None) -> str:
    return SIDES.get(side or "", side or "-")


def _is_newer(known: BlotterPosition, read: BlotterPosition | None) -> bool:
    return read is None or (known.at is not None and read.at is not None and known.at > read.at)


def _position_rows(positions: Iterable[Position]) -> dict[str, BlotterPosition]:
    rows = {}
    for each in positions:
        rows[each.symbol] = _position_row(each, each.market_price, each.unrealized_pnl)
    return rows


def _position_row(
    position: Position | StreamedPosition,
    market_price: Decimal | None,
    unrealized_pnl: Decimal | None,
) -> BlotterPosition:
    return BlotterPosition(
        symbol=position.symbol,
        at=position.received_at,
        quantity=position.quantity,
        average_cost=position.average_cost,
        market_price=market_price,
        unrealized_pnl=unrealized_pnl,
    )
