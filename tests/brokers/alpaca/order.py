"""An order as Alpaca has it in JSON, and what it refuses as none. Written from its documents; knows
nothing of our adapter."""

from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

ZERO = Decimal(0)
FINAL = {"filled", "canceled", "expired", "rejected", "replaced"}
FIELDS_BY_TYPE: dict[str, tuple[str, ...]] = {
    "market": (),
    "limit": ("limit_price",),
    "stop": ("stop_price",),
    "stop_limit": ("limit_price", "stop_price"),
    "trailing_stop": (),
}
TIMES_IN_FORCE = {"day", "gtc", "opg", "cls", "ioc", "fok"}


class Refused(Exception):
    def __init__(self, status: int, code: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message} | ({"code": code} if code else {})


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

    @property
    def is_listed_open(self) -> bool:
        return self.is_open and self.json["status"] != "held"

    def price(self, name: str) -> Decimal | None:
        return Decimal(self.json[name]) if self.json[name] is not None else None


def make_order(
    body: dict[str, Any], used_ids: Container[str] = (), replaces: str | None = None
) -> Order:
    """Refuses what is no order."""
    for name in (
        "symbol",
        "side",
        "type",
        "time_in_force",
        "qty",
        *FIELDS_BY_TYPE.get(body.get("type", ""), ()),
    ):
        if name not in body:
            raise Refused(422, 40010001, f"{name} is required")
    if body["type"] not in FIELDS_BY_TYPE or body["time_in_force"] not in TIMES_IN_FORCE:
        raise Refused(422, 40010001, "invalid order type or time_in_force")
    trails = [name for name in ("trail_price", "trail_percent") if body.get(name) is not None]
    if len(trails) != (body["type"] == "trailing_stop"):
        raise Refused(
            422, 40010001, "trailing stop orders must specify one of trail_price or trail_percent"
        )
    if trails and body["time_in_force"] not in ("day", "gtc"):
        raise Refused(422, 40010001, "trailing stop orders must be DAY or GTC")
    if body["side"] not in ("buy", "sell"):
        raise Refused(422, 40010001, "invalid side")
    qty = Decimal(str(body["qty"]))
    client_id = body.get("client_order_id") or str(uuid4())
    if qty <= 0 or qty.as_tuple().exponent < -9:  # type: ignore[operator] # it is finite
        raise Refused(422, 40010001, "qty must be > 0, with 9 decimals at most")
    if len(client_id) > 128:
        raise Refused(422, 40010001, "client_order_id must be no more than 128 characters")
    if client_id in used_ids:
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
        **dict.fromkeys(
            ("filled_at", "expired_at", "cancel_requested_at", "canceled_at", "failed_at")
        ),
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
