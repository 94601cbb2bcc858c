"""Orders that Alpaca links: an entry with its exits (bracket, oto), a limit with a stop beside it
(oco). As its documents say; what they do not say is as users report it."""

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.brokers.alpaca.order import ZERO, Order, Refused, make_order, plain, stamp

if TYPE_CHECKING:
    from tests.brokers.alpaca.book import Account

NEEDS = {"bracket": {2}, "oto": {1}, "oco": {2}}
OTHER_SIDE = {"buy": "sell", "sell": "buy"}
GROUP_FIELDS = ("order_class", "group_id", "group_role")


def check(account: "Account", body: dict[str, Any]) -> list[str]:
    """Gives the roles of the exits in the body, or refuses it. An oco takes its limit from its take
    profit."""
    kind = body.get("order_class") or "simple"
    if kind == "simple":
        return []
    roles = [role for role in ("take_profit", "stop_loss") if body.get(role)]
    if kind not in NEEDS or len(roles) not in NEEDS[kind]:
        missing = next(
            (role for role in ("take_profit", "stop_loss") if role not in roles), "order_class"
        )
        raise Refused(422, 40010001, f"{kind} orders require {missing}")
    if "/" in body["symbol"] or Decimal(str(body["qty"])) % 1:
        raise Refused(422, 42210000, f"{kind} orders are for whole shares")
    if body["time_in_force"] not in ("day", "gtc") or body.get("extended_hours"):
        raise Refused(422, 42210000, f"{kind} orders must be DAY or GTC, in regular hours")
    held = account.positions.get(body["symbol"], (ZERO, ZERO))[0]
    if kind == "oco":
        if body["type"] != "limit":
            raise Refused(422, 42210000, "oco orders must be limit orders")
        if held == 0 or (held > 0) == (body["side"] == "buy"):
            raise Refused(422, 42210000, "oco orders must be exit orders")
        body["limit_price"] = body["take_profit"]["limit_price"]
        _check_prices(body, closing_side=body["side"])
        return ["stop_loss"]
    if held and (held > 0) != (body["side"] == "buy"):
        raise Refused(422, 42210000, f"{kind} orders must be entry orders")
    _check_prices(body, closing_side=OTHER_SIDE[body["side"]])
    return roles


def _check_prices(body: dict[str, Any], closing_side: str) -> None:
    """The stop is at least a cent below (to buy: above) the take profit and the limit."""
    stop = (body.get("stop_loss") or {}).get("stop_price")
    for base in ((body.get("take_profit") or {}).get("limit_price"), body.get("limit_price")):
        if stop is not None and base is not None:
            below = Decimal(str(base)) - Decimal(str(stop))
            if (below if closing_side == "sell" else -below) < Decimal("0.01"):
                raise Refused(
                    422, 42210000, "stop price must be on the other side of the base price"
                )


def make_legs(order: Order, body: dict[str, Any], roles: Sequence[str]) -> list[Order]:
    """The legs of an order that was taken; client order ids for them are ignored."""
    if not roles:
        return []
    is_pair = body["order_class"] == "oco"
    group_id = str(uuid4())
    top_role = "take_profit" if is_pair else "entry"
    order.json |= dict(zip(GROUP_FIELDS, (body["order_class"], group_id, top_role), strict=True))
    legs = []
    for role in roles:
        side = body["side"] if is_pair else OTHER_SIDE[body["side"]]
        prices = {
            name: body[role][name]
            for name in ("limit_price", "stop_price")
            if body[role].get(name) is not None
        }
        kind = (
            "limit"
            if role == "take_profit"
            else "stop_limit"
            if "limit_price" in prices
            else "stop"
        )
        terms = {name: body[name] for name in ("symbol", "qty", "time_in_force")}
        leg = make_order(
            terms | prices | {"side": side, "type": kind, "position_intent": f"{side}_to_close"}
        )
        leg.json |= dict(zip(GROUP_FIELDS, (body["order_class"], group_id, role), strict=True))
        leg.json |= {"status": "held", "submitted_at": order.json["submitted_at"]}
        legs.append(leg)
    return legs


def check_replace(order: Order, body: dict[str, Any]) -> None:
    """The documents say that prices of linked orders can be replaced, and that those of an oto
    cannot."""
    if "group_id" in order.json and (
        order.json["order_class"] == "oto" or {"qty", "time_in_force"} & set(body)
    ):
        raise Refused(422, 42210000, "only the prices of bracket and oco orders can be replaced")


def keep(old: Order, new: Order) -> None:
    new.json |= {name: old.json[name] for name in GROUP_FIELDS if name in old.json}


def is_leg(order: Order) -> bool:
    return order.json.get("group_role") == "stop_loss" or (
        order.json.get("group_role") == "take_profit" and order.json["order_class"] != "oco"
    )


def order_json(account: "Account", order: Order) -> dict[str, Any]:
    """The order without its legs, as the stream has it too."""
    hidden = () if account.names_groups else ("group_id", "group_role")
    return {name: value for name, value in order.json.items() if name not in hidden}


def nested(account: "Account", order: Order) -> dict[str, Any]:
    """The order with its legs, all their versions."""
    others = [] if is_leg(order) or order.json["replaced_by"] else _others(account, order)
    return order_json(account, order) | {
        "legs": [order_json(account, leg) for leg in others if is_leg(leg)] or None
    }


def _others(account: "Account", order: Order) -> list[Order]:
    if "group_id" not in order.json:
        return []
    found = [
        each
        for each in account.orders.values()
        if each.json.get("group_id") == order.json["group_id"]
    ]
    return [each for each in found if each is not order]


def on_fill(account: "Account", order: Order) -> None:
    """Starts the exits of an entry that is filled whole. A limit that is filled ends the held stop,
    which is not streamed; one that is filled in part leaves the stop the rest."""
    for other in _others(account, order):
        role = other.json["group_role"]
        if (
            order.json["group_role"] == "entry"
            and not order.is_open
            and other.json["status"] == "held"
        ):
            if role == "take_profit" or other.json["order_class"] == "oto":
                account.set_status(other, "new", execution_id=str(uuid4()))
        elif (
            order.json["group_role"] == "take_profit"
            and role == "stop_loss"
            and other.json["status"] == "held"
        ):
            if order.is_open:
                other.qty = order.leaves
                other.json["qty"] = plain(order.leaves)
            else:
                account.end(other, "canceled", publish=False)


def on_end(account: "Account", order: Order) -> None:
    """Cancels the rest of the group when one of it is cancelled; the end of a held order is not
    streamed."""
    for other in _others(account, order):
        if other.is_open:
            account.end(other, "canceled", publish=other.json["status"] != "held")


def trigger(account: "Account", stop: Order, price: Decimal) -> None:
    """Puts a held stop to the market instead of the limit beside it, once its price is reached."""
    at = stop.price("stop_price")
    is_buy = stop.json["side"] == "buy"
    limits = [
        each
        for each in _others(account, stop)
        if each.json["group_role"] == "take_profit" and each.is_open
    ]
    if at is None or not limits or (price < at if is_buy else price > at):
        return
    (limit,) = limits
    if limit.json["status"] == "held":  # the entry is not filled
        return
    if account.stop_replaces:
        limit.json |= {"replaced_by": stop.json["id"], "replaced_at": stamp()}
        stop.json["replaces"] = limit.json["id"]
        account.set_status(limit, "replaced")
    else:
        limit.json["canceled_at"] = stamp()
        account.set_status(limit, "canceled")
    account.set_status(stop, "new", execution_id=str(uuid4()))
