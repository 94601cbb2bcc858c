"""A venue's book as a test needs it: orders, a market that the test makes, and the reports that it
sends. Written from the FIX standard; knows nothing of the adapter, and of no transport."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

ZERO = Decimal(0)
CASH = Decimal(1_000_000)
FEE = Decimal("0.01")  # of each execution
NEW = "0"
PARTLY = "1"
FILLED = "2"
CANCELLED = "4"
REPLACED = "5"
REJECTED = "8"
OVER = {FILLED, CANCELLED, REJECTED}

Report = tuple[str, list[tuple[int, str]]]  # message type and fields


def plain(amount: Decimal) -> str:
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(kw_only=True)
class Order:
    id: str
    client_id: str
    fields: dict[int, str]
    status: str = NEW
    filled: Decimal = ZERO
    paid: Decimal = ZERO
    is_triggered: bool = False
    names: list[str] = field(default_factory=list)  # every client order id that it had
    fills: list[tuple[Decimal, Decimal]] = field(default_factory=list)  # quantity, price

    @property
    def quantity(self) -> Decimal:
        return Decimal(self.fields[38])

    @property
    def leaves(self) -> Decimal:
        return ZERO if self.status in OVER else self.quantity - self.filled


@dataclass(kw_only=True)
class Book:
    send: Callable[[str, list[tuple[int, str]]], None]
    is_old: bool = False  # FIX 4.2
    is_garbling: bool = False  # the next execution is reported by what is no number
    orders: dict[str, Order] = field(default_factory=dict)
    quotes: dict[str, tuple[Decimal, Decimal]] = field(default_factory=dict)
    sizes: dict[tuple[str, bool], Decimal] = field(default_factory=dict)
    held: dict[str, Decimal] = field(default_factory=dict)
    arrived: list[str] = field(default_factory=list)  # the client order ids of new orders
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def receive(self, msg_type: str, fields: Mapping[int, str]) -> None:
        take = {
            "D": self._submit,
            "F": self._cancel,
            "G": self._replace,
            "H": self._report_status,
        }.get(msg_type)
        if take is None:
            self.send(
                "j",
                [
                    (45, fields.get(34, "0")),
                    (372, msg_type),
                    (380, "3"),
                    (58, "Unsupported Message Type"),
                ],
            )
        else:
            take(dict(fields))

    def quote(self, symbol: str, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.quotes[symbol] = (bid, ask)
        self.sizes[symbol, True] = self.sizes[symbol, False] = size
        for order in list(self.orders.values()):
            if order.fields[55] == symbol and order.status not in OVER:
                self._match(order)

    def find(self, client_id: str) -> Order | None:
        return next((each for each in self.orders.values() if client_id in each.names), None)

    def _submit(self, fields: dict[int, str]) -> None:
        self.arrived.append(fields[11])
        order = Order(
            id=f"V{next(self._numbers)}", client_id=fields[11], fields=fields, names=[fields[11]]
        )
        reason, text = self._why_not(order)
        if reason:
            order.status = REJECTED
            self._report(order, "8", order_id="NONE", more=[(103, reason), (58, text)])
            return
        self.orders[order.id] = order
        self._report(order, "0")
        self._match(order)
        is_now = fields.get(59) in ("3", "4")
        if is_now and order.status not in OVER:
            order.status = CANCELLED
            self._report(order, "4")

    def _why_not(self, order: Order) -> tuple[str, str]:
        if self.find(order.client_id):
            return "6", "duplicate ClOrdID"
        _, ask = self.quotes.get(order.fields[55], (ZERO, ZERO))
        price = Decimal(order.fields.get(44) or ask or 1)
        if order.fields[54] == "1" and price * order.quantity > CASH:
            return "3", "order exceeds limit"
        if order.fields[54] == "2" and order.quantity > self.held.get(order.fields[55], ZERO):
            return "0", "no position to sell"
        return "", ""

    def _cancel(self, fields: dict[int, str]) -> None:
        order = self.find(fields[41])
        if order is None or order.status in OVER:
            self._refuse(order, fields, "1")
            return
        order.status = CANCELLED
        self._report(order, "4", client_id=fields[11], more=[(41, fields[41])])

    def _replace(self, fields: dict[int, str]) -> None:
        order = self.find(fields[41])
        if order is None or order.status in OVER or Decimal(fields[38]) <= order.filled:
            self._refuse(order, fields, "2")
            return
        old = order.client_id
        order.client_id = fields[11]
        order.fields = {**order.fields, **fields}
        order.names.append(fields[11])
        self._report(order, "5", more=[(41, old)])
        self._match(order)

    def _refuse(self, order: Order | None, fields: dict[int, str], by: str) -> None:
        reason = "0" if order else "1"
        status = order.status if order else REJECTED
        order_id = order.id if order else "NONE"
        about = [(37, order_id), (11, fields[11]), (41, fields[41]), (39, status)]
        self.send(
            "9", [*about, (434, by), (102, reason), (58, "too late" if order else "unknown order")]
        )

    def _report_status(self, fields: dict[int, str]) -> None:
        order = self.find(fields[11])
        if order is None:
            unknown = Order(
                id="NONE",
                client_id=fields[11],
                fields={55: fields.get(55, ""), 54: fields.get(54, "1"), 38: "0"},
                status=REJECTED,
            )
            self._report(unknown, "I", more=[(103, "5"), (58, "unknown order")])
        else:
            self._report(order, "I")

    def _match(self, order: Order) -> None:
        symbol = order.fields[55]
        is_buy = order.fields[54] == "1"
        if symbol not in self.quotes:
            return
        bid, ask = self.quotes[symbol]
        price = ask if is_buy else bid
        stop = Decimal(order.fields[99]) if 99 in order.fields else None
        if stop is not None and not order.is_triggered:
            if price < stop if is_buy else price > stop:
                return
            order.is_triggered = True
        limit = Decimal(order.fields[44]) if 44 in order.fields else None
        if limit is not None and (price > limit if is_buy else price < limit):
            return
        size = min(order.leaves, self.sizes[symbol, is_buy])
        if order.fields.get(59) == "4" and size < order.leaves:
            return
        if size > 0:
            self.sizes[symbol, is_buy] -= size
            self.fill(order, size, price)

    def fill(self, order: Order, quantity: Decimal, price: Decimal) -> str:
        order.filled += quantity
        order.paid += quantity * price
        order.fills.append((quantity, price))
        order.status = FILLED if order.filled >= order.quantity else PARTLY
        signed = quantity if order.fields[54] == "1" else -quantity
        self.held[order.fields[55]] = self.held.get(order.fields[55], ZERO) + signed
        kind = {FILLED: "2", PARTLY: "1"}[order.status] if self.is_old else "F"
        shown = "many" if self.is_garbling else plain(quantity)
        self.is_garbling = False
        fee = [(12, plain(FEE)), (13, "3")]
        return self._report(order, kind, more=[(32, shown), (31, plain(price)), *fee])

    def amend(self, order: Order, exec_id: str, quantity: Decimal, price: Decimal) -> None:
        """Busts an execution, if the quantity is 0, or corrects it. `order.filled` and `paid` are
        the test's to set."""
        kind = ("1" if not quantity else "2") if self.is_old else ("H" if not quantity else "G")
        more = [(19, exec_id), (32, plain(quantity)), (31, plain(price))]
        if self.is_old:
            self._report(order, order.status, more=more, transaction=kind)
        else:
            self._report(order, kind, more=more)

    def _report(
        self,
        order: Order,
        kind: str,
        client_id: str = "",
        order_id: str = "",
        more: Sequence[tuple[int, str]] = (),
        transaction: str = "",
    ) -> str:
        exec_id = f"E{next(self._numbers)}"
        average = order.paid / order.filled if order.filled else ZERO
        old = [(20, transaction or ("3" if kind == "I" else "0"))] if self.is_old else []
        shown = order.status if self.is_old and kind == "I" else kind
        self.send(
            "8",
            [
                (37, order_id or order.id),
                (11, client_id or order.client_id),
                (17, exec_id),
                *old,
                (150, shown),
                (39, order.status),
                (55, order.fields[55]),
                (54, order.fields[54]),
                (38, order.fields[38]),
                (151, plain(order.leaves)),
                (14, plain(order.filled)),
                (6, plain(average)),
                *more,
            ],
        )
        return exec_id
