"""Controls, limits and halts: what stops trading."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct

from trading_intents_client.types.enums import HaltState, PrincipalType


class Control(Struct, frozen=True, kw_only=True):
    """The manual switch of an organization, an account (`account_id`) or a symbol (`symbol`)."""

    organization_id: str
    account_id: str | None = None
    symbol: str | None = None
    manually_disabled: bool
    manual_reason: str | None = None
    created_at: datetime
    updated_at: datetime
    version: int


class TimeControl(Struct, frozen=True, kw_only=True):
    """A symbol's trading window and the age that its orders may reach."""

    account_id: str
    organization_id: str
    symbol: str
    trading_start: str | None = None
    trading_end: str | None = None
    timezone: str | None = None
    stale_order_millis: int | None
    created_at: datetime
    updated_at: datetime
    version: int


class SymbolControls(Struct, frozen=True, kw_only=True):
    """Both controls of a symbol. `symbol` is given in lists."""

    symbol: str | None = None
    manual: Control | None
    time: TimeControl | None


class Triggered(Struct, frozen=True, kw_only=True):
    """A control or limit that says no. `limit` and `asked` are of limits."""

    reason: str
    scope: dict[str, Any]
    detail: str
    limit: Any = None
    asked: Any = None


class Evaluation(Struct, frozen=True, kw_only=True):
    """The answer that controls and limits would give."""

    allowed: bool
    triggered: tuple[Triggered, ...]


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of an organization, an account or a symbol. None: there is no such limit."""

    max_order_quantity: Decimal | None = None
    max_order_notional: Decimal | None = None
    price_collar_bps: int | None = None
    max_open_orders: int | None = None
    max_position_quantity: Decimal | None = None
    max_orders_per_minute: int | None = None
    allow_short: bool | None = None
    allowed_symbols: Sequence[str] | None = None
    duplicate_window_millis: int | None = None
    max_daily_loss: Decimal | None = None
    timezone: str | None = None


class LimitsRecord(Limits, frozen=True, kw_only=True):
    """The limits in force, with whose they are."""

    organization_id: str
    account_id: str | None = None
    symbol: str | None = None
    created_at: datetime
    updated_at: datetime
    version: int


class KeyLimits(Struct, frozen=True, kw_only=True):
    """The budget of an API key. None: there is no such limit."""

    max_order_quantity: Decimal | None = None
    max_order_notional: Decimal | None = None
    max_orders_per_minute: int | None = None
    max_daily_notional: Decimal | None = None
    allowed_symbols: Sequence[str] | None = None
    allow_short: bool | None = None


class KeyUsed(Struct, frozen=True, kw_only=True):
    """The used part of a key's budget: since 00:00 UTC, and in the last 60 seconds."""

    daily_notional: Decimal
    orders_last_minute: int


class KeyLimitsRecord(KeyLimits, frozen=True, kw_only=True):
    """A key's limits in force, and what is used of them."""

    organization_id: str
    api_key_id: str
    used: KeyUsed
    created_at: datetime
    updated_at: datetime
    version: int


class HaltWaiting(Struct, frozen=True, kw_only=True):
    """An order or a position that a halt waits for."""

    account_id: str
    symbol: str | None = None
    order_id: str | None = None
    reason: str


class Halt(Struct, frozen=True, kw_only=True):
    """A halt of an account or an organization, and how far it is."""

    id: str
    scope: dict[str, Any]
    reason: str
    state: HaltState
    orders: int
    orders_done: int
    positions: int
    positions_done: int
    waiting: tuple[HaltWaiting, ...]
    cancel_orders: bool | None = None
    close_positions: bool | None = None
    principal_type: PrincipalType
    principal_id: str
    created_at: datetime
    updated_at: datetime
    resumed_at: datetime | None = None
