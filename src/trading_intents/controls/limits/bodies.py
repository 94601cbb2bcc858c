"""The JSON of limits, both ways. Never judges, never asks the database."""

from collections.abc import Set as AbstractSet
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from trading_intents.controls.bodies import Owner
from trading_intents.controls.limits import model
from trading_intents.controls.limits.state.budgets import KeyUse
from trading_intents.errors import ValidationFailed
from trading_intents.ids import OrganizationId
from trading_intents.trading import Symbol, amount_text
from trading_intents.web.body import Amount, read_amount, read_symbol
from trading_intents.web.request import show_as

BasisPoints = Annotated[int, msgspec.Meta(ge=1, le=model.MAX_COLLAR_BPS)]
OrderCount = Annotated[int, msgspec.Meta(ge=1, le=model.MAX_COUNT)]
WindowMillis = Annotated[int, msgspec.Meta(ge=1, le=model.MAX_WINDOW_MILLIS)]
SymbolList = Annotated[list[str], msgspec.Meta(max_length=model.MAX_SYMBOLS)]
AMOUNTS = frozenset(
    {
        "max_order_quantity",
        "max_order_notional",
        "max_position_quantity",
        "max_daily_loss",
        "max_daily_notional",
    }
)
_FIELDS = model.TradingLimits.__struct_fields__


class OrganizationLimits(msgspec.Struct, forbid_unknown_fields=True):
    """A field that is left out or null is cleared."""

    max_order_quantity: Amount | None = None
    max_order_notional: Amount | None = None
    price_collar_bps: BasisPoints | None = None
    allow_short: bool | None = None


class SymbolLimits(OrganizationLimits, forbid_unknown_fields=True, kw_only=True):
    """A field that is left out or null is cleared."""

    max_open_orders: OrderCount | None = None
    max_position_quantity: Amount | None = None


class AccountLimits(SymbolLimits, forbid_unknown_fields=True, kw_only=True):
    """A field that is left out or null is cleared."""

    max_orders_per_minute: OrderCount | None = None
    allowed_symbols: SymbolList | None = None
    duplicate_window_millis: WindowMillis | None = None
    max_daily_loss: Amount | None = None
    timezone: str | None = None


class KeyLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A field that is left out or null is cleared."""

    max_order_quantity: Amount | None = None
    max_order_notional: Amount | None = None
    max_orders_per_minute: OrderCount | None = None
    max_daily_notional: Amount | None = None
    allowed_symbols: SymbolList | None = None
    allow_short: bool | None = None


class OrganizationLimitsRecord(msgspec.Struct, kw_only=True):
    """Fields without a limit are left out."""

    organization_id: str
    max_order_quantity: str | UnsetType = UNSET
    max_order_notional: str | UnsetType = UNSET
    price_collar_bps: int | UnsetType = UNSET
    allow_short: bool | UnsetType = UNSET
    created_at: str
    updated_at: str
    version: int


Shown = TypeVar("Shown", bound=OrganizationLimitsRecord)


class AccountLimitsRecord(OrganizationLimitsRecord, kw_only=True):
    """Fields without a limit are left out."""

    account_id: str
    max_open_orders: int | UnsetType = UNSET
    max_position_quantity: str | UnsetType = UNSET
    max_orders_per_minute: int | UnsetType = UNSET
    allowed_symbols: list[str] | UnsetType = UNSET
    duplicate_window_millis: int | UnsetType = UNSET
    max_daily_loss: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET


class SymbolLimitsRecord(OrganizationLimitsRecord, kw_only=True):
    """Fields without a limit are left out."""

    account_id: str
    symbol: str
    max_open_orders: int | UnsetType = UNSET
    max_position_quantity: str | UnsetType = UNSET


class KeyUsed(msgspec.Struct):
    """Since 00:00 UTC, and in the last 60 seconds."""

    daily_notional: str
    orders_last_minute: int


class KeyLimitsRecord(msgspec.Struct, kw_only=True):
    """Fields without a limit are left out."""

    organization_id: str
    api_key_id: str
    max_order_quantity: str | UnsetType = UNSET
    max_order_notional: str | UnsetType = UNSET
    max_orders_per_minute: int | UnsetType = UNSET
    max_daily_notional: str | UnsetType = UNSET
    allowed_symbols: list[str] | UnsetType = UNSET
    allow_short: bool | UnsetType = UNSET
    used: KeyUsed
    created_at: str
    updated_at: str
    version: int


def read_limits(
    body: OrganizationLimits | KeyLimits, zones: AbstractSet[str] = frozenset()
) -> model.TradingLimits:
    given = {
        name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not None
    }
    zone = given.get("timezone")
    if zone is not None and zone not in zones:
        raise ValidationFailed.at(
            "/timezone", "must be an IANA time zone, such as America/New_York"
        )
    if zone is not None and "max_daily_loss" not in given:
        raise ValidationFailed.at("/timezone", "is of max_daily_loss, which is not given")
    return model.TradingLimits(**{name: _value(name, value) for name, value in given.items()})


def _value(name: str, value: Any) -> Any:
    if name in AMOUNTS:
        return read_amount(f"/{name}", value)
    if name == "allowed_symbols":
        return frozenset(read_symbol(f"/{name}/{index}", text) for index, text in enumerate(value))
    return value


def show_limits(
    kind: type[Shown], owner: Owner, stored: model.StoredLimits, symbol: Symbol | None = None
) -> Shown:
    return show_as(kind, stored, **owner._asdict(), symbol=symbol, **_shown(stored.limits))


def show_key_limits(
    organization_id: OrganizationId, stored: model.StoredLimits, use: KeyUse
) -> KeyLimitsRecord:
    used = KeyUsed(amount_text(use.daily_notional), use.orders_last_minute)
    ids = {"organization_id": organization_id, "api_key_id": use.key_id}
    return show_as(KeyLimitsRecord, stored, **ids, used=used, **_shown(stored.limits))


def _shown(limits: model.TradingLimits) -> dict[str, Any]:
    given = {name: getattr(limits, name) for name in _FIELDS}
    return {name: UNSET if value is None else _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value
