"""Orders, single or linked: the bodies that Alpaca is sent, the JSON that it answers with, and the
names under which the session reports them. Pure: no I/O, no clock."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from msgspec.structs import replace

from trading_intents.brokers.port import LegTicket, OrderTicket
from trading_intents.brokers.rest_client import BrokerRow, Moment, is_uuid
from trading_intents.trading import Leg, OrderKind, OrderSide, Symbol, TimeInForce
from trading_intents.trading import amount_text as text

TIMES = dict(zip(TimeInForce, ("day", "gtc", "ioc", "fok", "opg", "cls", "day"), strict=True))
FINAL = frozenset({"filled", "canceled", "expired", "rejected"})
OVER = FINAL | {"replaced"}
# Not at the market yet: a version in one of these has not replaced the one before. One that is held
# has: it is a leg's, and neither of the two was at the market.
WAITING = frozenset({"accepted", "pending_new", "accepted_for_bidding"})
GROUPS = frozenset({"bracket", "oto", "oco"})
TAKE_PROFIT = "take_profit"
STOP_LOSS = "stop_loss"


class Name(NamedTuple):
    """The ids that an order is reported under, and its role in its group."""

    client_order_id: str
    role: str | None
    parent: str | None = None
    leg: Leg | None = None


class Group(NamedTuple):
    """Orders that Alpaca links: Alpaca's id and the client order id of the order that they were
    sent with."""

    first_id: str
    parent: str


class AlpacaOrder(BrokerRow, kw_only=True):
    id: str
    client_order_id: str
    status: str
    time_in_force: str
    submitted_at: Moment
    symbol: str | None = None  # None or empty: an order of several legs
    side: str | None = None
    qty: Decimal | None = None  # None: it was ordered by its value, and not by us
    filled_qty: Decimal = Decimal(0)
    filled_avg_price: Decimal | None = None
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    updated_at: Moment | None = None
    replaced_by: str | None = None
    replaces: str | None = None
    trail_price: Decimal | None = None
    trail_percent: Decimal | None = None
    position_intent: str | None = None
    order_class: str | None = None
    # Of all orders of a group, their versions too; not every host has it.
    group_id: str | None = None
    group_role: str | None = None
    legs: "tuple[AlpacaOrder, ...] | None" = None
    # Not in Alpaca's JSON: the quantity of all versions together, of one that Alpaca itself made; a
    # leg's parent and kind. A leg's client order id is of Alpaca's making too, and left empty.
    total: Decimal | None = None
    parent: str | None = None
    leg: Leg | None = None

    @property
    def is_linked(self) -> bool:
        return self.order_class in GROUPS

    @property
    def role(self) -> str | None:
        """Its role in its group. Without `group_role`, an entry cannot be distinguished from a take
        profit."""
        known = self.group_role or (STOP_LOSS if self.stop_price is not None else TAKE_PROFIT)
        return known if self.is_linked else None

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its group: the entry, or the limit of one cancels other."""
        first = TAKE_PROFIT if self.order_class == "oco" else "entry"
        return self.is_linked and (bool(self.legs) or self.group_role == first)

    @property
    def parts(self) -> "tuple[AlpacaOrder, ...]":
        return (self, *(self.legs or ()))

    @property
    def names(self) -> dict[str, Any]:
        """Ids and symbol, as events have them."""
        return {
            "client_order_id": self.client_order_id or None,
            "parent": self.parent,
            "leg": self.leg,
            "broker_order_id": self.id,
            "symbol": Symbol(self.symbol or ""),
        }

    @property
    def price(self) -> Decimal | None:
        return self.limit_price or self.stop_price

    @property
    def trail(self) -> Decimal | None:
        return self.trail_price if self.trail_percent is None else self.trail_percent

    @property
    def order_side(self) -> OrderSide:
        if self.side == "buy":
            return OrderSide.BUY
        return OrderSide.SELL_SHORT if self.position_intent == "sell_to_open" else OrderSide.SELL


def parts_of(orders: Iterable[AlpacaOrder]) -> list[AlpacaOrder]:
    """Gives orders, each with its legs."""
    parts = list[AlpacaOrder]()
    for order in orders:
        parts += order.parts
    return parts


def total_filled(orders: Iterable[AlpacaOrder]) -> Decimal:
    return sum((order.filled_qty for order in orders), Decimal(0))


def is_made(order: AlpacaOrder) -> bool:
    """Whether Alpaca itself made it to replace another: its client order id is a UUID then, which
    ours never are."""
    return order.replaces is not None and is_uuid(order.client_order_id)


def name_of(order: AlpacaOrder, group: Group | None) -> Name:
    """Names a leg by the order that it was sent with, if known: its own client order id is of
    Alpaca's making."""
    if not order.is_linked or order.is_first or not is_uuid(order.client_order_id):
        return Name(order.client_order_id, order.role)
    if group is None or order.role not in (TAKE_PROFIT, STOP_LOSS):
        return Name("", order.role)
    leg = Leg.ONE_CANCELS_OTHER if order.order_class == "oco" else Leg(order.role)
    return Name("", order.role, group.parent, leg)


def is_pair(role: str | None, successor: str | None) -> bool:
    """Whether the order that replaced another is the stop beside it: users report that a stop that
    is reached replaces the take profit, which is over then."""
    return role == TAKE_PROFIT and successor == STOP_LOSS


def end_pairs(orders: Sequence[AlpacaOrder]) -> list[AlpacaOrder]:
    """Gives the orders; a take profit that the stop beside it replaced is cancelled."""
    roles = {order.id: order.role for order in orders}
    over = {each.id for each in orders if is_pair(each.role, roles.get(each.replaced_by or ""))}
    return [
        replace(each, status="canceled", replaced_by=None) if each.id in over else each
        for each in orders
    ]


def order_body(ticket: OrderTicket) -> dict[str, object]:
    body: dict[str, object] = {
        "symbol": ticket.symbol,
        "qty": text(ticket.quantity),
        "side": "buy" if ticket.side is OrderSide.BUY else "sell",
        "type": ticket.kind.name.lower(),
        "time_in_force": TIMES[ticket.time_in_force],
        "client_order_id": ticket.client_order_id,
        **_prices(ticket),
        **_linked_legs(ticket),
    }
    if ticket.trail_amount is not None:
        body["trail_price"] = text(ticket.trail_amount)
    if ticket.trail_bps is not None:
        body["trail_percent"] = text(Decimal(ticket.trail_bps) / 100)
    if ticket.extended_hours:
        body["extended_hours"] = True
    # A plain sell of what is not held would open a short. Crypto has no shorts, and no intent.
    if ticket.side is not OrderSide.BUY and "/" not in ticket.symbol:
        is_short = ticket.side is OrderSide.SELL_SHORT
        body["position_intent"] = "sell_to_open" if is_short else "sell_to_close"
    if body.get("order_class") == "oco":  # it closes a position
        del body["limit_price"]  # that of the take profit is it
        body["position_intent"] = f"{body['side']}_to_close"
    return body


def _linked_legs(ticket: OrderTicket) -> dict[str, object]:
    """The legs, without client order ids: Alpaca takes none. Of one cancels other the order itself
    is a leg."""
    legs = {leg.leg: _prices(leg) for leg in ticket.legs}
    if not legs:
        return {}
    if stop := legs.get(Leg.ONE_CANCELS_OTHER):
        return {"order_class": "oco", "take_profit": _prices(ticket), "stop_loss": stop}
    return {
        "order_class": "bracket" if len(legs) == 2 else "oto",
        **{leg.value: legs[leg] for leg in legs},
    }


def replace_body(ticket: OrderTicket, order: AlpacaOrder, left: Decimal) -> dict[str, object]:
    """`left` of the new total is not filled yet. The body has it only if it differs: Alpaca changes
    whole shares only, and nothing but prices of linked orders."""
    body: dict[str, object] = {"client_order_id": ticket.client_order_id, **_prices(ticket)}
    if ticket.kind is OrderKind.TRAILING_STOP:
        trail = ticket.trail_amount
        if ticket.trail_bps is not None:
            trail = Decimal(ticket.trail_bps) / 100
        if trail is not None and trail != order.trail:
            body["trail"] = text(trail)
    if order.is_linked:
        return body
    if left != order.qty:
        body["qty"] = text(left)
    if TIMES[ticket.time_in_force] != order.time_in_force:
        body["time_in_force"] = TIMES[ticket.time_in_force]
    return body


def _prices(ticket: OrderTicket | LegTicket) -> dict[str, str]:
    prices = {"limit_price": ticket.limit_price, "stop_price": ticket.stop_price}
    return {name: text(price) for name, price in prices.items() if price is not None}
