"""Alpaca's books as a test needs them: accounts, orders, a market that the test makes, trades,
busts and corrections. Stands for Alpaca only as far as the witnesses accept it. Written from its
documents; knows nothing of our adapter."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from tests.brokers.alpaca import groups
from tests.brokers.alpaca.order import ZERO, Order, Refused, make_order, plain, stamp

CASH = Decimal(1_000_000)
REPLACEABLE = {"new", "partially_filled", "held"}
ULID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
NO_PUNCTUATION = str.maketrans("", "", "-:.T")


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
    # Quantity, average price.
    positions: dict[str, tuple[Decimal, Decimal]] = field(default_factory=dict)
    more_positions: list[Any] = field(default_factory=list)  # as JSON
    activities: list[dict[str, Any]] = field(default_factory=list)
    # As the older list of activities has them.
    fills: list[dict[str, Any]] = field(default_factory=list)
    fees: list[dict[str, Any]] = field(default_factory=list)  # likewise
    # Client order ids of all orders that were ever taken.
    arrived: list[str] = field(default_factory=list)
    streams: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    quotes: dict[str, Quote] = field(default_factory=dict)
    holds_replaces: bool = False  # a PATCH is taken, and not carried out until `settle`
    holds_cancels: bool = False
    is_garbling: bool = False  # the next execution is reported in a way that nobody can read
    streams_versions: bool = True  # an order that replaces another is streamed as new
    names_groups: bool = True  # orders have `group_id` and `group_role`, as since October 2026
    # A stop that is reached replaces the limit beside it, as users report; else it cancels.
    stop_replaces: bool = False
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    # Requests.

    def submit(self, body: dict[str, Any]) -> Order:
        body = {**body}
        legs = groups.check(self, body)
        order = make_order(body, self.by_client)
        symbol = body["symbol"]
        signed = order.qty if body["side"] == "buy" else -order.qty
        held = self.positions.get(symbol, (ZERO, ZERO))[0]
        quote = self.quotes.get(symbol)
        price = (
            order.price("limit_price")
            or order.price("stop_price")
            or (quote.ask if quote else ZERO)
        )
        if signed > 0 and order.qty * price > self.cash:
            raise Refused(403, 40310000, "insufficient buying power")
        if body.get("position_intent") == "sell_to_close" and held <= 0:
            raise Refused(
                422,
                42210000,
                "position intent mismatch, inferred: sell_to_open, specified: sell_to_close",
            )
        if signed < 0 < held and -signed > held:
            text = (
                f"insufficient qty available for order (requested: {plain(-signed)}, available: "
                f"{plain(held)})"
            )
            raise Refused(403, 40310000, text)
        self._take(order)
        self.set_status(order, "pending_new")
        for leg in groups.make_legs(order, body, legs):
            self._take(leg)
        self._begin(order)
        return order

    def replace(self, order_id: str, body: dict[str, Any]) -> Order:
        old = self.find(order_id)
        if old.json["status"] not in REPLACEABLE:
            raise Refused(422, 42210000, f"cannot replace order in {old.json['status']} status")
        groups.check_replace(old, body)
        terms = {
            name: old.json[name]
            for name in ("symbol", "side", "type", "time_in_force", "position_intent")
        }
        terms |= {
            name: old.json[name] for name in ("qty", "limit_price", "stop_price", "extended_hours")
        } | body
        trail_by = "trail_price" if old.json["trail_price"] else "trail_percent"
        terms |= {trail_by: terms.pop("trail", old.json[trail_by]), "hwm": old.json["hwm"]}
        terms.setdefault("client_order_id", str(uuid4()))
        if "qty" in body and (Decimal(body["qty"]) % 1 or old.qty % 1):
            raise Refused(422, 42210000, "fractional orders cannot change their quantity")
        new = make_order(
            {k: v for k, v in terms.items() if v is not None},
            self.by_client,
            replaces=old.json["id"],
        )
        groups.keep(old, new)
        self._take(new)
        # Neither version was at the market, and nothing is streamed.
        if old.json["status"] == "held":
            self.set_status(new, "held", publish=False)
            old.json |= {"replaced_by": new.json["id"], "replaced_at": stamp()}
            self.set_status(old, "replaced", publish=False)
            return new
        self.set_status(new, "pending_new", publish=False)
        self.set_status(old, "pending_replace")
        if not self.holds_replaces:
            self._carry_out(old, new)
        return new

    def cancel(self, order_id: str) -> None:
        order = self.find(order_id)
        if not order.is_open or order.json["status"] in ("pending_replace", "pending_cancel"):
            raise Refused(422, 42210000, f'order is already in "{order.json["status"]}" state')
        self.set_status(order, "pending_cancel", order.json["status"] != "held")
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

    # Steps of a test.

    def quote(self, symbol: str, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.quotes[symbol] = Quote(bid, ask, size, size)
        for order in list(self.orders.values()):
            if order.json["symbol"] == symbol:
                self.match(order)

    def settle(self) -> None:
        """Carries out what is held."""
        self.holds_replaces = self.holds_cancels = False
        for order in list(self.orders.values()):
            if order.json["status"] == "pending_cancel":
                self.end(order, "canceled")
            follower = next(
                (o for o in self.orders.values() if o.json["replaces"] == order.json["id"]), None
            )
            if order.json["status"] == "pending_replace" and follower:
                self._carry_out(order, follower)

    def reject_replace(self, order_id: str) -> None:
        """A PATCH that was taken is refused by the market: the version before it works on."""
        old = self.find(order_id)
        new = next(o for o in self.orders.values() if o.json["replaces"] == order_id and o.is_open)
        self.set_status(new, "rejected")
        self.set_status(old, "partially_filled" if old.filled else "new", publish=False)
        self._publish("order_replace_rejected", old)

    def end(self, order: Order, status: str, publish: bool = True) -> None:
        order.json[{"canceled": "canceled_at", "expired": "expired_at"}[status]] = stamp()
        self.set_status(order, status, publish)
        groups.on_end(self, order)

    def fill(self, order: Order, quantity: Decimal, price: Decimal) -> str:
        execution_id = str(uuid4())
        signed = quantity if order.json["side"] == "buy" else -quantity
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
        self._publish(
            "fill" if is_whole else "partial_fill", order, execution_id=execution_id, **traded
        )
        groups.on_fill(self, order)
        return execution_id

    def take_fee(self, symbol: str, quantity: Decimal) -> None:
        """Takes a fee from the coin. It is listed by `list_fee`, as Alpaca does at the end of the
        day."""
        held, average = self.positions[symbol]
        self.positions[symbol] = held - quantity, average

    def list_fee(self, symbol: str, quantity: Decimal, status: str = "executed") -> dict[str, Any]:
        now = stamp()
        fee = {
            "id": f"{now[:10].translate(NO_PUNCTUATION)}000000000::{uuid4()}",
            "activity_type": "CFEE",
        }
        fee |= {
            "date": now[:10],
            "created_at": now,
            "net_amount": "0",
            "symbol": symbol.replace("/", ""),
        }
        self.fees.append(
            fee | {"qty": plain(-quantity), "price": "100", "status": status, "currency": "USD"}
        )
        return self.fees[-1]

    def bust(self, execution_id: str, dated: datetime | None = None) -> None:
        """`dated`: the time that the bust bears, long before it is published."""
        self._amend(execution_id, ZERO, ZERO)
        if dated:
            self.activities[-1] |= {"at": stamp(dated), "executed_at": stamp(dated)}

    def correct(self, execution_id: str, quantity: Decimal, price: Decimal) -> None:
        self._amend(execution_id, quantity, price)

    def _amend(self, execution_id: str, quantity: Decimal, price: Decimal) -> None:
        was = next(a for a in self.activities if a["ref_id"] == execution_id)
        order = self.orders[was["details"]["order_id"]]
        sign = 1 if was["details"]["side"] == "buy" else -1
        old_quantity = Decimal(was["qty"])
        old_price = Decimal(was["price"])
        order.filled += quantity - old_quantity
        order.paid += quantity * price - old_quantity * old_price
        self._move(order.json["symbol"], -sign * old_quantity, old_price)
        if quantity:
            self._move(order.json["symbol"], sign * quantity, price)
        self._count(order)
        event = "trade_correct" if quantity else "trade_bust"
        new_id = str(uuid4())
        self._log(event, new_id, order, quantity or old_quantity, price or old_price, execution_id)
        traded = {"price": plain(price or old_price), "qty": plain(quantity or old_quantity)}
        self._publish(
            event, order, execution_id=new_id, previous_execution_id=execution_id, **traded
        )

    # Inner workings.

    def _take(self, order: Order) -> None:
        self.orders[order.json["id"]] = self.by_client[order.json["client_order_id"]] = order
        self.arrived.append(order.json["client_order_id"])

    def _begin(self, order: Order) -> None:
        is_streamed = self.streams_versions or not order.json["replaces"]
        self.set_status(order, "new", is_streamed, execution_id=str(uuid4()))
        self.match(order)
        if order.json["time_in_force"] in ("ioc", "fok") and order.is_open:
            self.end(order, "canceled")

    def _carry_out(self, old: Order, new: Order) -> None:
        old.json |= {"replaced_by": new.json["id"], "replaced_at": stamp()}
        self.set_status(old, "replaced")
        self._begin(new)

    def match(self, order: Order) -> None:
        quote = self.quotes.get(order.json["symbol"])
        if quote and order.json["status"] == "held":
            groups.trigger(self, order, quote.ask if order.json["side"] == "buy" else quote.bid)
        if quote is None or order.json["status"] not in ("new", "partially_filled"):
            return
        is_buy = order.json["side"] == "buy"
        limit = order.price("limit_price")
        stop = order.price("stop_price")
        price, size = (quote.ask, quote.ask_size) if is_buy else (quote.bid, quote.bid_size)
        if order.json["type"] == "trailing_stop" and not order.is_triggered:
            stop = self._trail(order, price, is_buy)
        order.is_triggered |= stop is None or (price >= stop if is_buy else price <= stop)
        if not order.is_triggered or (
            limit is not None and (price > limit if is_buy else price < limit)
        ):
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
        """The stop price, after the market was at this price."""
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

    def set_status(self, order: Order, status: str, publish: bool = True, **more: Any) -> None:
        order.json |= {"status": status, "updated_at": stamp()}
        if publish:
            self._publish(status, order, **more)

    def _publish(self, event: str, order: Order, **more: Any) -> None:
        shown = groups.order_json(self, order)
        data = {
            "at": stamp(),
            "event_id": self._ulid(),
            "event": event,
            "timestamp": stamp(),
            "order": shown,
        }
        for send in list(self.streams):
            send({"stream": "trade_updates", "data": data | more})

    def _log(
        self,
        kind: str,
        ref_id: str,
        order: Order,
        quantity: Decimal,
        price: Decimal,
        previous: str | None = None,
    ) -> None:
        details = {
            name: order.json[name] for name in ("client_order_id", "side", "symbol", "asset_id")
        }
        details |= {
            "order_id": order.json["id"],
            "order_status": order.json["status"],
            "execution_type": kind,
        }
        details |= {"cum_qty": plain(order.filled), "leaves_qty": plain(order.leaves)}
        activity: dict[str, Any] = {
            "event_id": self._ulid(),
            "at": stamp(),
            "executed_at": stamp(),
            "activity_type": "FILL",
        }
        activity |= {
            "status": "executed",
            "settle_date": stamp()[:10],
            "currency": "USD",
            "ref_id": ref_id,
        }
        activity |= {"qty": plain(quantity), "price": plain(price), "details": details}
        self.activities.append(activity | ({"previous_id": previous} if previous else {}))

    def _list_fill(self, order: Order, quantity: Decimal, price: Decimal) -> None:
        now = stamp()
        fill = {name: order.json[name] for name in ("symbol", "side")} | {
            "order_id": order.json["id"]
        }
        fill |= {"id": f"{now[:23].translate(NO_PUNCTUATION)}::{uuid4()}", "activity_type": "FILL"}
        fill |= {"transaction_time": now, "type": "partial_fill" if order.leaves > 0 else "fill"}
        fill |= {
            "order_status": order.json["status"],
            "qty": plain(quantity),
            "price": plain(price),
        }
        self.fills.append(
            fill | {"cum_qty": plain(order.filled), "leaves_qty": plain(order.leaves)}
        )

    def _ulid(self) -> str:
        number = (int(datetime.now(UTC).timestamp() * 1000) << 80) + next(self._numbers)
        return "".join(ULID_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))
