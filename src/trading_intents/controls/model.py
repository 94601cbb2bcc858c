"""Controls and the rule that evaluates them. No I/O, no clock; it refuses when in doubt, and never
raises."""

from collections.abc import Mapping
from datetime import datetime, time
from enum import StrEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import UNSET, UnsetType, structs

from trading_intents.accounts.model import AccountId
from trading_intents.errors import ValidationFailed
from trading_intents.ids import OrganizationId
from trading_intents.trading import FrozenStruct, Symbol

DEFAULT_TIMEZONE = "UTC"


class Reason(StrEnum):
    ORGANIZATION_HALTED = "organization_halted"
    ORGANIZATION_MANUALLY_DISABLED = "organization_manually_disabled"
    ACCOUNT_HALTED = "account_halted"
    ACCOUNT_MANUALLY_DISABLED = "account_manually_disabled"
    SYMBOL_MANUALLY_DISABLED = "symbol_manually_disabled"
    OUTSIDE_TRADING_WINDOW = "outside_trading_window"
    # Limits: each by its field's name.
    MAX_ORDER_QUANTITY = "max_order_quantity"
    MAX_ORDER_NOTIONAL = "max_order_notional"
    PRICE_COLLAR_BPS = "price_collar_bps"
    MAX_OPEN_ORDERS = "max_open_orders"
    MAX_POSITION_QUANTITY = "max_position_quantity"
    MAX_ORDERS_PER_MINUTE = "max_orders_per_minute"
    ALLOW_SHORT = "allow_short"
    ALLOWED_SYMBOLS = "allowed_symbols"
    DUPLICATE_WINDOW_MILLIS = "duplicate_window_millis"
    MAX_DAILY_LOSS = "max_daily_loss"
    MAX_DAILY_NOTIONAL = "max_daily_notional"
    NO_REFERENCE_PRICE = "no_reference_price"
    POSITION_UNKNOWN = "position_unknown"


class TimeField(StrEnum):
    """The fields of a time control, which `clear` may name."""

    TRADING_START = "trading_start"
    TRADING_END = "trading_end"
    STALE_ORDER_MILLIS = "stale_order_millis"
    TIMEZONE = "timezone"


class Switch(FrozenStruct):
    disabled: bool
    reason: str | None = None


class Subject(NamedTuple):
    """Names all that a command is judged by: its account, its caller's key, its symbol."""

    organization_id: str
    account_id: str
    key_id: str | None  # None: it is judged by no key's limits
    symbol: str  # empty: it names none that is known


class ControlScope(FrozenStruct):
    """An organization, one of its accounts, or a symbol on an account."""

    organization_id: OrganizationId
    account_id: AccountId | None = None
    symbol: Symbol | None = None


class TimeRule(FrozenStruct):
    trading_start: time | None = None
    trading_end: time | None = None
    stale_order_millis: int | None = None
    timezone: str | None = None


class StandingHalt(FrozenStruct):
    id: str
    reason: str


class Controls(FrozenStruct, kw_only=True):
    """The controls of one symbol on one account; None where nothing was ever set."""

    organization_id: str
    account_id: str
    organization: Switch | None = None
    account: Switch | None = None
    symbol: Switch | None = None
    time: TimeRule | None = None
    organization_halt: StandingHalt | None = None
    account_halt: StandingHalt | None = None
    halted_since: bool = False  # a halt has ended since the command was accepted

    @property
    def organization_scope(self) -> "ScopeAnswer":
        return {"Organization": self.organization_id}

    @property
    def account_scope(self) -> "ScopeAnswer":
        return {"Account": self.account_id}

    def scope_of(self, symbol: Symbol) -> "ScopeAnswer":
        return {"Symbol": {"account_id": self.account_id, "symbol": symbol}}

    def without_halts(self) -> "Controls":
        """The controls of an order that a caller makes to close a position."""
        return structs.replace(self, organization_halt=None, account_halt=None, halted_since=False)

    def window_only(self) -> "Controls":
        """The controls of an order that a halt makes to close a position."""
        return Controls(
            organization_id=self.organization_id, account_id=self.account_id, time=self.time
        )


ScopeAnswer = Mapping[str, str | Mapping[str, str]]  # one key, which names the level
LimitValue = str | int | bool | list[str]  # amounts and symbols are texts


class Triggered(FrozenStruct):
    reason: Reason
    scope: ScopeAnswer
    detail: str
    # Of limits only: the limit's value, and what the order asked for.
    limit: LimitValue | UnsetType = UNSET
    asked: str | int | UnsetType = UNSET


class ManualControl(FrozenStruct):
    manually_disabled: bool
    manual_reason: str | None
    created_at: datetime
    updated_at: datetime
    version: int

    @property
    def switch(self) -> Switch:
        return Switch(self.manually_disabled, self.manual_reason)


class TimeControl(FrozenStruct, kw_only=True):
    trading_start: time | None
    trading_end: time | None
    stale_order_millis: int | None
    timezone: str | None
    created_at: datetime
    updated_at: datetime
    version: int

    @property
    def rule(self) -> TimeRule:
        return TimeRule(
            self.trading_start, self.trading_end, self.stale_order_millis, self.timezone
        )


class SymbolControl(FrozenStruct):
    symbol: Symbol
    manual: ManualControl | None
    time: TimeControl | None

    @property
    def version(self) -> int:
        """The version of the pair, which grows by one whenever one of the two does."""
        return sum(record.version for record in (self.manual, self.time) if record)


class TimeChange(FrozenStruct):
    """The fields that a PATCH names: None leaves a field as it is, a cleared one is removed."""

    rule: TimeRule = TimeRule()
    clear: frozenset[TimeField] = frozenset()


def changed(rule: TimeRule, change: TimeChange) -> TimeRule:
    """Gives the rule after the change, or raises ValidationFailed if no window is left between its
    bounds."""
    changes: dict[str, Any] = {name.value: None for name in change.clear}
    for name, value in structs.asdict(change.rule).items():
        if value is not None:
            changes[name] = value
    made = structs.replace(rule, **changes)
    if made.trading_start is not None and made.trading_start == made.trading_end:
        name = TimeField.TRADING_START if change.rule.trading_end is None else TimeField.TRADING_END
        raise ValidationFailed.at(f"/{name}", "trading_start and trading_end must differ")
    return made


def evaluate(controls: Controls, symbol: Symbol | None, now: datetime) -> tuple[Triggered, ...]:
    """Gives every control that refuses, the widest first; without a symbol those of the
    organization and the account."""
    found: list[Triggered] = []
    if halt := controls.organization_halt:
        why = f"the organization is halted: {halt.reason}"
        found.append(Triggered(Reason.ORGANIZATION_HALTED, controls.organization_scope, why))
    if why := _disabled("organization", controls.organization):
        reason = Reason.ORGANIZATION_MANUALLY_DISABLED
        found.append(Triggered(reason, controls.organization_scope, why))
    if halt := controls.account_halt:
        why = f"the account is halted: {halt.reason}"
        found.append(Triggered(Reason.ACCOUNT_HALTED, controls.account_scope, why))
    elif controls.halted_since:
        why = "a halt has ended since the command was accepted"
        found.append(Triggered(Reason.ACCOUNT_HALTED, controls.account_scope, why))
    if why := _disabled("account", controls.account):
        found.append(Triggered(Reason.ACCOUNT_MANUALLY_DISABLED, controls.account_scope, why))
    if symbol is None:
        return tuple(found)
    if why := _disabled("symbol", controls.symbol):
        scope = controls.scope_of(symbol)
        found.append(Triggered(Reason.SYMBOL_MANUALLY_DISABLED, scope, why))
    if controls.time and (closed := closed_at(controls.time, now)):
        found.append(Triggered(Reason.OUTSIDE_TRADING_WINDOW, controls.scope_of(symbol), closed))
    return tuple(found)


def _disabled(what: str, switch: Switch | None) -> str:
    """Empty: it is not."""
    if switch is None or not switch.disabled:
        return ""
    return f"the {what} is disabled" + (f": {switch.reason}" if switch.reason else "")


def closed_at(rule: TimeRule, now: datetime) -> str | None:
    """Gives the reason why the window is closed at that moment; None while it is open."""
    start = rule.trading_start
    end = rule.trading_end
    if start is None and end is None:
        return None
    name = rule.timezone or DEFAULT_TIMEZONE
    try:
        clock = now.astimezone(ZoneInfo(name)).time()
    except (LookupError, ValueError, OSError):
        return f"the time zone {name} is not known here"
    if start is None or end is None or start < end:
        is_open = (start is None or start <= clock) and (end is None or clock < end)
    else:
        is_open = start <= clock or clock < end
    if is_open:
        return None
    bounds = f"{f' from {start}' if start else ''}{f' until {end}' if end else ''}"
    return f"trading is{bounds}, and it is {clock:%H:%M:%S} in {name}"
