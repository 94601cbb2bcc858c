"""The parts of requests: amounts, times, paths, query parameters and commands."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from trading_intents_client.types.enums import (
    OrderSideName,
    RouteStrategyName,
    TimeInForceName,
)

Amount = Decimal | int | str
# A stop price, or a stop price and the limit of the order that it makes.
StopPrices = Amount | tuple[Amount, Amount]
Command = Mapping[str, Any]
MAX_KEY_CHARACTERS = 128


def text_of(amount: Amount) -> str:
    """A plain decimal. A float is refused: 0.1 is none of the numbers that it can hold."""
    if isinstance(amount, bool) or not isinstance(amount, Decimal | int | str):
        raise TypeError(
            f"{amount!r} is a {type(amount).__name__}: give an amount as Decimal, int or str"
        )
    return amount if isinstance(amount, str) else format(Decimal(amount), "f")


def time_text(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: use datetime.now(UTC) or the like")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def segment(value: str) -> str:
    """A path's segment: a `/` in a symbol stays within it."""
    return quote(value, safe="")


def query(**given: str | datetime | Iterable[str] | None) -> dict[str, str]:
    """The parameters that are given. Several values are joined by commas."""
    return {name: _query_text(value) for name, value in given.items() if value is not None}


def _query_text(value: str | datetime | Iterable[str]) -> str:
    if isinstance(value, str):
        return str(value)
    return time_text(value) if isinstance(value, datetime) else ",".join(map(str, value))


def given_fields(**fields: Any) -> dict[str, Any]:
    """A body without what was not given."""
    return {name: value for name, value in fields.items() if value is not None}


def if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}


def make_key() -> str:
    """An Idempotency-Key that nobody else makes."""
    return str(uuid4())


def check_key(key: str) -> str:
    """An Idempotency-Key of the caller. An empty one is refused: a new key instead would place a
    second order."""
    if not (1 <= len(key) <= MAX_KEY_CHARACTERS and key.isascii() and key.isprintable()):
        raise ValueError(
            f"idempotency_key must be 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
        )
    return key


def order_spec(
    quantity: Amount,
    limit: Amount | None,
    stop: Amount | None,
    trail: Amount | None,
    trail_bps: int | None,
    time_in_force: str | None,
) -> dict[str, dict[str, str | int]]:
    """The kind of the order follows from its prices."""
    kind = "Limit" if stop is None else "StopLimit"
    if limit is None:
        kind = "Market" if stop is None else "Stop"
    if trail is not None or trail_bps is not None:
        if kind != "Market" or (trail is not None and trail_bps is not None):
            raise ValueError("a trailing stop has trail or trail_bps, and no other price")
        kind = "TrailingStop"
    fields: dict[str, str | int] = {"quantity": text_of(quantity)}
    prices = {"stop_price": stop, "limit_price": limit, "trail_amount": trail}
    for name, price in prices.items():
        if price is not None:
            fields[name] = text_of(price)
    if trail_bps is not None:
        fields["trail_bps"] = trail_bps
    if time_in_force is not None:
        fields["time_in_force"] = str(time_in_force)
    return {kind: fields}


def _stop_fields(given: StopPrices) -> dict[str, str]:
    prices = given if isinstance(given, tuple) else (given,)
    fields = {}
    for name, price in zip(("stop_price", "limit_price"), prices, strict=False):
        fields[name] = text_of(price)
    return fields


def create_command(
    symbol: str,
    side: OrderSideName,
    quantity: Amount,
    *,
    limit: Amount | None = None,
    stop: Amount | None = None,
    trail: Amount | None = None,
    trail_bps: int | None = None,
    take_profit: Amount | None = None,
    stop_loss: StopPrices | None = None,
    exits_time_in_force: TimeInForceName | None = None,
    one_cancels_other: StopPrices | None = None,
    time_in_force: TimeInForceName | None = None,
    route: RouteStrategyName | None = None,
) -> Command:
    """A CREATE, for `submit` and `evaluate`. Without prices it is a market order; with a `trail`,
    or `trail_bps` of the price, a stop that follows the market.

    `take_profit` and `stop_loss` are the exits of a BUY or SELL_SHORT, good till cancelled unless
    `exits_time_in_force` says otherwise; `one_cancels_other` is a stop beside a limit order. The
    broker links them.
    """
    payload: dict[str, Any] = {"symbol": symbol, "order_side": str(side)}
    payload["spec"] = order_spec(
        quantity=quantity,
        limit=limit,
        stop=stop,
        trail=trail,
        trail_bps=trail_bps,
        time_in_force=time_in_force,
    )
    exits: dict[str, Any] = {}
    if take_profit is not None:
        exits["take_profit"] = {"limit_price": text_of(take_profit)}
    if stop_loss is not None:
        exits["stop_loss"] = _stop_fields(stop_loss)
    if exits_time_in_force is not None:
        exits["time_in_force"] = str(exits_time_in_force)
    pair = None if one_cancels_other is None else _stop_fields(one_cancels_other)
    payload |= given_fields(route_strategy=route, exits=exits or None, one_cancels_other=pair)
    return {"type": "CREATE", "payload": payload}


def replace_command(
    intent_id: str,
    quantity: Amount,
    *,
    limit: Amount | None = None,
    stop: Amount | None = None,
    trail: Amount | None = None,
    trail_bps: int | None = None,
    time_in_force: TimeInForceName | None = None,
) -> Command:
    """A REPLACE: of the same kind as the order; `quantity` is the new total."""
    spec = order_spec(
        quantity=quantity,
        limit=limit,
        stop=stop,
        trail=trail,
        trail_bps=trail_bps,
        time_in_force=time_in_force,
    )
    return {"type": "REPLACE", "payload": {"ref_intent_id": intent_id, "spec": spec}}


def cancel_command(intent_id: str) -> Command:
    """A CANCEL, which is safe to repeat while the order is open."""
    return {"type": "CANCEL", "payload": {"ref_intent_id": intent_id}}
