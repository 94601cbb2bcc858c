"""Refusals as agents read them: the code, and for each limit what it is, what was asked and what is
left."""

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from trading_intents_client.agents.arguments import OrderArguments, ToolArguments
from trading_intents_client.asynchronous.client import AsyncTradingClient
from trading_intents_client.errors import ControlRejected, NotFound, TradingError, ValidationFailed
from trading_intents_client.types.controls import Triggered

DAILY_NOTIONAL = "max_daily_notional"
# Limits of one order: the next one may ask for all of it. Of counts an order is one.
OF_ONE_ORDER = ("max_order_quantity", "max_order_notional")
OF_COUNTS = ("max_open_orders", "max_orders_per_minute")
OF_POSITIONS = ("max_position_quantity",)


async def read_budget(client: AsyncTradingClient) -> dict[str, Any] | None:
    """The limits of the calling key, with what is used of them today; None: it has none."""
    key_id = (await client.organization.caller()).principal_id
    try:
        found: dict[str, Any] = await client._transport.call(
            "GET", f"/v1/api-keys/{key_id}/limits", dict
        )
    except NotFound:
        return None
    return found


async def explain_triggered(
    client: AsyncTradingClient, triggered: Iterable[Triggered], asked: ToolArguments
) -> list[dict[str, Any]]:
    used = (
        await _used_today(client)
        if any(each.reason == DAILY_NOTIONAL for each in triggered)
        else None
    )
    quantity = _amount(asked.quantity) if isinstance(asked, OrderArguments) else None
    return [
        msgspec.to_builtins(each) | {"left": _text(left_of(each, quantity, used))}
        for each in triggered
    ]


async def _used_today(client: AsyncTradingClient) -> Decimal | None:
    try:
        budget = await read_budget(client)
    except TradingError:  # the refusal itself matters more
        return None
    return _amount((budget or {}).get("used", {}).get("daily_notional"))


def left_of(
    each: Triggered, quantity: Decimal | None, used_today: Decimal | None
) -> Decimal | None:
    """The amount that would pass now; None where that is no number, or not known from the
    refusal."""
    limit = _amount(each.limit)
    asked = _amount(each.asked)
    if limit is None:
        return None
    if each.reason in OF_ONE_ORDER:
        return limit
    if each.reason == DAILY_NOTIONAL:
        return None if used_today is None else max(limit - used_today, Decimal(0))
    own = (
        Decimal(1)
        if each.reason in OF_COUNTS
        else quantity
        if each.reason in OF_POSITIONS
        else None
    )
    if own is None or asked is None:
        return None
    return max(limit - (abs(asked) - own), Decimal(0))


async def explain_error(
    client: AsyncTradingClient, error: TradingError, asked: ToolArguments
) -> dict[str, Any]:
    refusal: dict[str, Any] = {
        "code": error.code,
        "detail": error.detail,
        "request_id": error.request_id,
    }
    if isinstance(error, ControlRejected):
        refusal["triggered"] = await explain_triggered(client, error.triggered, asked)
    if isinstance(error, ValidationFailed):
        refusal["errors"] = msgspec.to_builtins(error.errors)
    if error.retry_after is not None:
        refusal["retry_after"] = error.retry_after
    if error.may_be_recorded:
        refusal["may_be_recorded"] = True
        refusal["next"] = (
            "repeat the call with the same idempotency_key and arguments: it is carried out once"
            if hasattr(asked, "idempotency_key")
            else "the call may have been carried out: read before you repeat it"
        )
    return refusal


def _amount(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool | list):
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else format(amount, "f")
