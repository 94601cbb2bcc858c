"""Alpaca's books as a test needs them: accounts, orders, a market that the test makes, trades, busts and corrections.
Stands for Alpaca only as far as the witnesses accept it. Written from its documents; knows nothing of our adapter."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

ZERO = Decimal(0)
CASH = Decimal(1_000_000)
FINAL = {"filled", "canceled", "expired", "rejected", "replaced"}
REPLACEABLE = {"new", "partially_filled"}
ULID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
FIELDS_BY_TYPE: dict[str, tuple[str, ...]] = {
    "market": (),
    "limit": ("limit_price",),
    "stop": ("stop_price",),
    "stop_limit": ("limit_price", "stop_price"),
    "trailing_stop": (),
}
NO_PUNCTUATION = str.maketrans("", "", "-:.T")
TIMES_IN_FORCE = {"day", "gtc", "opg", "cls", "ioc", "fok"}


class Refused(Exception):
    def __init__(self, status: int, code: int | None, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, {"message": message} | ({"code": code} if code else {})


def stamp(moment: datetime | None = None) -> str:
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(amount: Decimal) -> str:
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass
class Order:
    """An order as its JSON, with the numbers that matching needs."""

    json: dict[str, Any]
    qty: Decimal
    filled: Decimal = ZERO
    paid: Decimal = ZERO
    is_triggered: bool = False

    @property
    def leaves(self) -> Decimal:
        return self.qty - self.filled

    @property
    def is_open(self) -> bool:
        return self.json["status"] not in FINAL

    def price(self, name: str) -> Decimal | None:
        return Decimal(self.json[name]) if self.json[name] is not None else None


@dataclass
class Quote:
    bid: Decimal
    ask: Decimal
    bid_size: Decimal
    ask_size: Decimal


@dataclass
class Account:
    key: str
    secret: str
    id: str = field(default_factory=lambda: str(uuid4()))
    number: str = field(default_factory=lambda: f"PA{uuid4().hex[:10].upper()}")
    cash: Decimal = CASH
    blocks: dict[str, Any] = field(default_factory=dict)  # overrides of /v2/account
    orders: dict[str, Order] = field(default_factory=dict)
    by_client: dict[str, Order] = field(default_factory=dict)
    positions: dict[str, tuple[Decimal, Decimal]] = field(default_factory=dict)  # quantity, average price
    more_positions: list[Any] = field(default_factory=list)  # as JSON
    activities: list[dict[str, Any]] = field(default_factory=list)
    fills: list[dict[str, Any]] = field(default_factory=list)  # as the older list of activities has them
    fees: list[dict[str, Any]] = field(default_factory=list)  # likewise
    arrived: list[str] = field(default_factory=list)  # client order ids of all orders that were ever taken
    streams: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    quotes: dict[str, Quote] = field(default_factory=dict)
    holds_replaces: bool = False  # a PATCH is taken, and not carried out until `settle`
    holds_cancels: bool = False
    is_garbling: bool = False  # the next execution is told in a way that nobody can read
    tells_versions: bool = True  # those that replace others, as new
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    # What callers ask for.

    def submit(self, body: dict[str, Any]) -> Order:
        order = self._checked(body, replaces=None)
        symbol, signed = body["symbol"], order.qty if body["side"] == "buy" else -order.qty
        held = self.positions.get(symbol, (ZERO, ZERO))[0]
        quote = self.quotes.get(symbol)
        price = order.price("limit_price") or order.price("stop_price") or (quote.ask if quote else ZERO)
        if signed > 0 and order.qty * price > self.cash:
            raise Refused(403, 40310000, "insufficient buying power")
        if body.get("position_intent") == "sell_to_close" and held <= 0:
            raise Refused(422, 42210000, "position intent mismatch, inferred: sell_to_open, specified: sell_to_close")
        if signed < 0 < held and -signed > held:
            text = f"insufficient qty available for order (requested: {plain(-signed)}, available: {plain(held)})"
            raise Refused(403, 40310000, text)
        self._take(order)
        self._set(order, "pending_new")
        self._begin(order)
        return order

    def replace(self, order_id: str, body: dict[str, Any]) -> Order:
        old = self.find(order_id)
        if old.json["status"] not in REPLACEABLE:
            raise Refused(422, 42210000, f"cannot replace order in {old.json['status']} status")
        terms = {name: old.json[name] for name in ("symbol", "side", "type", "time_in_force", "position_intent")}
        terms |= {name: old.json[name] for name in ("qty", "limit_price", "stop_price", "extended_hours")} | body
        trail_by = "trail_price" if old.json["trail_price"] else "trail_percent"
        terms |= {trail_by: terms.pop("trail", old.json[trail_by]), "hwm": old.json["hwm"]}
        terms.setdefault("client_order_id", str(uuid4()))
        if "qty" in body and (Decimal(body["qty"]) % 1 or old.qty % 1):
            raise Refused(422, 42210000, "fractional orders cannot change their quantity")
        new = self._checked({k: v for k, v in terms.items() if v is not None}, replaces=old.json["id"])
        self._take(new)
        self._set(new, "pending_new", tell=False)
        self._set(old, "pending_replace")
        if not self.holds_replaces:
            self._carry_out(old, new)
        return new

    def cancel(self, order_id: str) -> None:
        order = self.find(order_id)
        if not order.is_open or order.json["status"] in ("pending_replace", "pending_cancel"):
            raise Refused(422, 42210000, f'order is already in "{order.json["status"]}" state')
        self._set(order, "pending_cancel")
        if not self.holds_cancels:
            self.end(order, "canceled")

    def find(self, order_id: str) -> Order:
        if order_id not in self.orders:
            raise Refused(404, 40410000, f"order not found for {order_id}")
        return self.orders[order_id]

    def find_by_client_id(self, client_order_id: str) -> Order:
        if client_order_id not in self.by_client:
            raise Refused(404, 40410000, f"order not found for {client_order_id}")
        return self.by_client[client_order_id]

    # What the test makes happen.

    def quote(self, symbol: str, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.quotes[symbol] = Quote(bid, ask, size, size)
        for order in list(self.orders.values()):
            if order.json["symbol"] == symbol:
                self._match(order)

    def settle(self) -> None:
        """Carries out what is held."""
        self.holds_replaces = self.holds_cancels = False
        for order in list(self.orders.values()):
            if order.json["status"] == "pending_cancel":
                self.end(order, "canceled")
            follower = next((o for o in self.orders.values() if o.json["replaces"] == order.json["id"]), None)
            if order.json["status"] == "pending_replace" and follower:
                self._carry_out(order, follower)

    def reject_replace(self, order_id: str) -> None:
        """A PATCH that was taken is refused by the market: the version before it works on."""
        old = self.find(order_id)
        new = next(o for o in self.orders.values() if o.json["replaces"] == order_id and o.is_open)
        self._set(new, "rejected")
        self._set(old, "partially_filled" if old.filled else "new", tell=False)
        self._tell("order_replace_rejected", old)

    def end(self, order: Order, status: str) -> None:
        order.json[{"canceled": "canceled_at", "expired": "expired_at"}[status]] = stamp()
        self._set(order, status)

    def fill(self, order: Order, quantity: Decimal, price: Decimal) -> str:
        execution_id, signed = str(uuid4()), quantity if order.json["side"] == "buy" else -quantity
        order.filled += quantity
        order.paid += quantity * price
        self._move(order.json["symbol"], signed, price)
        is_whole = order.leaves <= 0
        order.json["filled_at"] = stamp() if is_whole else None
        self._count(order)
        if is_whole or order.json["status"] in ("new", "partially_filled", "pending_new"):
            order.json["status"] = "filled" if is_whole else "partially_filled"
        position = plain(self.positions[order.json["symbol"]][0])
        traded = {"price": plain(price), "qty": plain(quantity), "position_qty": position}
        traded |= {"swap_rate": "1", "settle_date": stamp()[:10]}
        self._log("fill", execution_id, order, quantity, price)
        self._list_fill(order, quantity, price)
        if self.is_garbling:
            self.is_garbling = False
            for row in (traded, self.activities[-1], self.fills[-1]):
                row["qty"] = "?"
        self._tell("fill" if is_whole else "partial_fill", order, execution_id=execution_id, **traded)
        return execution_id

    def take_fee(self, symbol: str, quantity: Decimal) -> None:
        """Takes a fee from the coin. It is listed by `list_fee`, as Alpaca does at the end of the day."""
        held, average = self.positions[symbol]
        self.positions[symbol] = held - quantity, average

    def list_fee(self, symbol: str, quantity: Decimal, status: str = "executed") -> dict[str, Any]:
        now = stamp()
        fee = {"id": f"{now[:10].translate(NO_PUNCTUATION)}000000000::{uuid4()}", "activity_type": "CFEE"}
        fee |= {"date": now[:10], "created_at": now, "net_amount": "0", "symbol": symbol.replace("/", "")}
        self.fees.append(fee | {"qty": plain(-quantity), "price": "100", "status": status, "currency": "USD"})
        return self.fees[-1]

    def bust(self, execution_id: str, dated: datetime | None = None) -> None:
        """`dated`: at this time, which it is told long after."""
        self._amend(execution_id, ZERO, ZERO)
        if dated:
            self.activities[-1] |= {"at": stamp(dated), "executed_at": stamp(dated)}

    def correct(self, execution_id: str, quantity: Decimal, price: Decimal) -> None:
        self._amend(execution_id, quantity, price)

    def _amend(self, execution_id: str, quantity: Decimal, price: Decimal) -> None:
        was = next(a for a in self.activities if a["ref_id"] == execution_id)
        order, sign = self.orders[was["details"]["order_id"]], 1 if was["details"]["side"] == "buy" else -1
        old_quantity, old_price = Decimal(was["qty"]), Decimal(was["price"])
        order.filled += quantity - old_quantity
        order.paid += quantity * price - old_quantity * old_price
        self._move(order.json["symbol"], -sign * old_quantity, old_price)
        if quantity:
            self._move(order.json["symbol"], sign * quantity, price)
        self._count(order)
        event, new_id = "trade_correct" if quantity else "trade_bust", str(uuid4())
        self._log(event, new_id, order, quantity or old_quantity, price or old_price, execution_id)
        traded = {"price": plain(price or old_price), "qty": plain(quantity or old_quantity)}
        self._tell(event, order, execution_id=new_id, previous_execution_id=execution_id, **traded)

    # How it happens.

    def _checked(self, body: dict[str, Any], replaces: str | None) -> Order:
        for name in ("symbol", "side", "type", "time_in_force", "qty", *FIELDS_BY_TYPE.get(body.get("type", ""), ())):
            if name not in body:
                raise Refused(422, 40010001, f"{name} is required")
        if body["type"] not in FIELDS_BY_TYPE or body["time_in_force"] not in TIMES_IN_FORCE:
            raise Refused(422, 40010001, "invalid order type or time_in_force")
        trails = [name for name in ("trail_price", "trail_percent") if body.get(name) is not None]
        if len(trails) != (body["type"] == "trailing_stop"):
            raise Refused(422, 40010001, "trailing stop orders must specify one of trail_price or trail_percent")
        if trails and body["time_in_force"] not in ("day", "gtc"):
            raise Refused(422, 40010001, "trailing stop orders must be DAY or GTC")
        if body["side"] not in ("buy", "sell"):
            raise Refused(422, 40010001, "invalid side")
        qty, client_id = Decimal(str(body["qty"])), body.get("client_order_id") or str(uuid4())
        if qty <= 0 or qty.as_tuple().exponent < -9:  # type: ignore[operator] # it is finite
            raise Refused(422, 40010001, "qty must be > 0, with 9 decimals at most")
        if len(client_id) > 128:
            raise Refused(422, 40010001, "client_order_id must be no more than 128 characters")
        if client_id in self.by_client:
            raise Refused(422, 40010001, "client_order_id must be unique")
        if qty % 1 and "/" not in body["symbol"] and body["time_in_force"] != "day":
            raise Refused(422, 42210000, "fractional orders must be DAY orders")
        now = stamp()
        kept = {name: body.get(name) for name in ("symbol", "side", "type", "time_in_force")}
        json: dict[str, Any] = kept | {
            "id": str(uuid4()),
            "client_order_id": client_id,
            "created_at": now,
            "updated_at": now,
            "submitted_at": now,
            **dict.fromkeys(("filled_at", "expired_at", "cancel_requested_at", "canceled_at", "failed_at")),
            **dict.fromkeys(("replaced_at", "replaced_by")),
            "replaces": replaces,
            "asset_id": str(uuid4()),
            "asset_class": "crypto" if "/" in body["symbol"] else "us_equity",
            "notional": None,
            "qty": plain(qty),
            "filled_qty": "0",
            "filled_avg_price": None,
            "order_class": "",
            "order_type": body["type"],
            "position_intent": body.get("position_intent") or f"{body['side']}_to_open",
            "limit_price": None if body.get("limit_price") is None else str(body["limit_price"]),
            "stop_price": None if body.get("stop_price") is None else str(body["stop_price"]),
            "status": "accepted",
            "extended_hours": bool(body.get("extended_hours")),
            "legs": None,
            **{name: body.get(name) for name in ("trail_percent", "trail_price", "hwm")},
            "expires_at": now,
        }
        return Order(json, qty)

    def _take(self, order: Order) -> None:
        self.orders[order.json["id"]] = self.by_client[order.json["client_order_id"]] = order
        self.arrived.append(order.json["client_order_id"])

    def _begin(self, order: Order) -> None:
        is_told = self.tells_versions or not order.json["replaces"]
        self._set(order, "new", is_told, execution_id=str(uuid4()))
        self._match(order)
        if order.json["time_in_force"] in ("ioc", "fok") and order.is_open:
            self.end(order, "canceled")

    def _carry_out(self, old: Order, new: Order) -> None:
        old.json |= {"replaced_by": new.json["id"], "replaced_at": stamp()}
        self._set(old, "replaced")
        self._begin(new)

    def _match(self, order: Order) -> None:
        quote = self.quotes.get(order.json["symbol"])
        if quote is None or order.json["status"] not in ("new", "partially_filled"):
            return
        is_buy, limit, stop = order.json["side"] == "buy", order.price("limit_price"), order.price("stop_price")
        price, size = (quote.ask, quote.ask_size) if is_buy else (quote.bid, quote.bid_size)
        if order.json["type"] == "trailing_stop" and not order.is_triggered:
            stop = self._trail(order, price, is_buy)
        order.is_triggered |= stop is None or (price >= stop if is_buy else price <= stop)
        if not order.is_triggered or (limit is not None and (price > limit if is_buy else price < limit)):
            return
        quantity = min(order.leaves, size)
        if quantity <= 0 or (order.json["time_in_force"] == "fok" and quantity < order.leaves):
            return
        if is_buy:
            quote.ask_size -= quantity
        else:
            quote.bid_size -= quantity
        self.fill(order, quantity, price)

    def _trail(self, order: Order, price: Decimal, is_buy: bool) -> Decimal:
        """Where the stop is, after the market was at this price."""
        known = order.price("hwm")
        mark = price if known is None else (min if is_buy else max)(known, price)
        percent = order.price("trail_percent")
        trail = order.price("trail_price") if percent is None else mark * percent / 100
        assert trail is not None
        stop = mark + trail if is_buy else mark - trail
        order.json |= {"hwm": plain(mark), "stop_price": plain(stop)}
        return stop

    def _move(self, symbol: str, signed: Decimal, price: Decimal) -> None:
        held, average = self.positions.get(symbol, (ZERO, ZERO))
        self.cash -= signed * price
        if held * signed >= 0:
            average = (held * average + signed * price) / (held + signed) if held + signed else ZERO
        self.positions[symbol] = held + signed, average if held + signed else ZERO

    def _count(self, order: Order) -> None:
        order.json["filled_qty"] = plain(order.filled)
        order.json["filled_avg_price"] = plain(order.paid / order.filled) if order.filled else None
        order.json["updated_at"] = stamp()

    def _set(self, order: Order, status: str, tell: bool = True, **more: Any) -> None:
        order.json |= {"status": status, "updated_at": stamp()}
        if tell:
            self._tell(status, order, **more)

    def _tell(self, event: str, order: Order, **more: Any) -> None:
        data = {"at": stamp(), "event_id": self._ulid(), "event": event, "timestamp": stamp(), "order": {**order.json}}
        for send in list(self.streams):
            send({"stream": "trade_updates", "data": data | more})

    def _log(
        self, kind: str, ref_id: str, order: Order, quantity: Decimal, price: Decimal, previous: str | None = None
    ) -> None:
        details = {name: order.json[name] for name in ("client_order_id", "side", "symbol", "asset_id")}
        details |= {"order_id": order.json["id"], "order_status": order.json["status"], "execution_type": kind}
        details |= {"cum_qty": plain(order.filled), "leaves_qty": plain(order.leaves)}
        activity: dict[str, Any] = {
            "event_id": self._ulid(),
            "at": stamp(),
            "executed_at": stamp(),
            "activity_type": "FILL",
        }
        activity |= {"status": "executed", "settle_date": stamp()[:10], "currency": "USD", "ref_id": ref_id}
        activity |= {"qty": plain(quantity), "price": plain(price), "details": details}
        self.activities.append(activity | ({"previous_id": previous} if previous else {}))

    def _list_fill(self, order: Order, quantity: Decimal, price: Decimal) -> None:
        now = stamp()
        fill = {name: order.json[name] for name in ("symbol", "side")} | {"order_id": order.json["id"]}
        fill |= {"id": f"{now[:23].translate(NO_PUNCTUATION)}::{uuid4()}", "activity_type": "FILL"}
        fill |= {"transaction_time": now, "type": "partial_fill" if order.leaves > 0 else "fill"}
        fill |= {"order_status": order.json["status"], "qty": plain(quantity), "price": plain(price)}
        self.fills.append(fill | {"cum_qty": plain(order.filled), "leaves_qty": plain(order.leaves)})

    def _ulid(self) -> str:
        number = (int(datetime.now(UTC).timestamp() * 1000) << 80) + next(self._numbers)
        return "".join(ULID_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))
