"""The books of a spot venue: coins, orders and executions of one account, matched against quotes that
a test sets. It knows no protocol, and nothing of an adapter."""

import itertools
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal

BASE = "BTC"
QUOTE = "USDT"
STEP = Decimal("0.00001")
TICK = Decimal("0.01")
MIN_QUANTITY = Decimal("0.00001")
MAX_QUANTITY = Decimal(9_000)
# Of what is received: the coin bought, or the money sold for, as venues take it.
FEE = Decimal("0.001")


@dataclass
class SpotTrade:
    id: int
    order: "SpotOrder"
    quantity: Decimal
    price: Decimal
    fee: Decimal
    fee_coin: str
    at_millis: int
    is_garbled: bool = False  # its rows cannot be read


@dataclass
class SpotOrder:
    id: int
    name: str  # the client order id
    is_buy: bool
    quantity: Decimal
    limit: Decimal | None  # None: a market order
    time: str  # GTC, IOC or FOK
    at_millis: int
    updated_millis: int = 0
    state: str = "open"  # filled, cancelled or expired
    trades: list[SpotTrade] = field(default_factory=list)

    @property
    def filled(self) -> Decimal:
        return sum((trade.quantity for trade in self.trades), Decimal(0))

    @property
    def cost(self) -> Decimal:
        return sum((trade.quantity * trade.price for trade in self.trades), Decimal(0))

    @property
    def leaves(self) -> Decimal:
        return self.quantity - self.filled


class SpotBook:
    def __init__(
        self, money: Decimal = Decimal(1_000_000), coins: Decimal = Decimal("0.5")
    ) -> None:
        self.lock = threading.RLock()
        self.held: dict[str, Decimal] = defaultdict(Decimal)
        self.held[QUOTE] = money
        self.held[BASE] = coins  # fees of coins are paid from it
        self.orders: list[SpotOrder] = []
        self.arrived: list[str] = []  # client order ids, of refused orders too
        self.is_garbling = False
        self.fee_coin = ""  # all fees are 0.01 of it; empty: FEE of what is received
        self.late_lists = 0  # so many lists have no execution yet
        self._bid = self._ask = Decimal(0)
        self._bid_size = self._ask_size = Decimal(0)
        self._ids = itertools.count(28)
        self._last_millis = 0

    def now_millis(self) -> int:
        """None is before another."""
        self._last_millis = max(self._last_millis, time.time_ns() // 1_000_000)
        return self._last_millis

    def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        with self.lock:
            self._bid = bid
            self._ask = ask
            self._bid_size = self._ask_size = size
            for order in self.open_orders():
                self._match(order)

    def open_orders(self) -> list[SpotOrder]:
        return [order for order in self.orders if order.state == "open"]

    def trades(self) -> list[SpotTrade]:
        """The oldest first."""
        if self.late_lists:
            self.late_lists -= 1
            return []
        found = [trade for order in self.orders for trade in order.trades]
        return sorted(found, key=lambda trade: trade.id)

    def find(self, name: str) -> SpotOrder | None:
        """The last one of this client order id."""
        return next((each for each in reversed(self.orders) if each.name == name), None)

    def find_id(self, order_id: int) -> SpotOrder | None:
        return next((each for each in self.orders if each.id == order_id), None)

    def lacks_funds(self, is_buy: bool, quantity: Decimal, limit: Decimal | None) -> bool:
        if is_buy:
            price = self._ask if limit is None else limit
            bound = [
                order.leaves * (order.limit or 0) for order in self.open_orders() if order.is_buy
            ]
            return quantity * price > self.held[QUOTE] - sum(bound)
        bound = [order.leaves for order in self.open_orders() if not order.is_buy]
        return quantity > self.held[BASE] - sum(bound)

    def submit(
        self, name: str, is_buy: bool, quantity: Decimal, limit: Decimal | None, time_in_force: str
    ) -> SpotOrder:
        now = self.now_millis()
        order = SpotOrder(next(self._ids), name, is_buy, quantity, limit, time_in_force, now, now)
        self.orders.append(order)
        if time_in_force != "FOK" or self._size(order) >= quantity:
            self._match(order)
        if order.state == "open" and (limit is None or time_in_force != "GTC"):
            order.state = "expired"
            order.updated_millis = self.now_millis()
        return order

    def cancel(self, order: SpotOrder) -> None:
        order.state = "cancelled"
        order.updated_millis = self.now_millis()

    def _size(self, order: SpotOrder) -> Decimal:
        """Gives the size that the market has for an order now."""
        price = self._ask if order.is_buy else self._bid
        limit = price if order.limit is None else order.limit
        is_met = limit >= price if order.is_buy else limit <= price
        size = self._ask_size if order.is_buy else self._bid_size
        return size if price and is_met else Decimal(0)

    def _match(self, order: SpotOrder) -> None:
        quantity = min(order.leaves, self._size(order))
        if quantity <= 0:
            return
        price = self._ask if order.is_buy else self._bid
        coins = quantity if order.is_buy else -quantity
        received = quantity if order.is_buy else quantity * price
        received_coin = BASE if order.is_buy else QUOTE
        fee_coin = self.fee_coin or received_coin
        fee = Decimal("0.01") if self.fee_coin else received * FEE
        self.held[BASE] += coins
        self.held[QUOTE] -= coins * price
        self.held[fee_coin] -= fee
        if order.is_buy:
            self._ask_size -= quantity
        else:
            self._bid_size -= quantity
        now = self.now_millis()
        trade = SpotTrade(
            next(self._ids), order, quantity, price, fee, fee_coin, now, self.is_garbling
        )
        self.is_garbling = False
        order.trades.append(trade)
        order.updated_millis = now
        if not order.leaves:
            order.state = "filled"
