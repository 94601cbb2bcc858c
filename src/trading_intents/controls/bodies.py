"""The JSON of controls, in requests and answers. Never evaluates, never reads the database."""

from collections.abc import Set as AbstractSet
from datetime import time
from importlib.resources import files
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from trading_intents.controls import model
from trading_intents.errors import ValidationFailed, either
from trading_intents.ids import OrganizationId
from trading_intents.trading import Symbol
from trading_intents.web.body import LINE
from trading_intents.web.request import show_as

MAX_REASON_CHARACTERS = 500
NO_ZONES = {"Factory"}  # a placeholder for "not set up yet", at UTC
MAX_STALE_ORDER_MILLIS = 7 * 24 * 60 * 60 * 1000
_TIME_CHARACTERS = len("HH:MM:SS")
_TIME_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]$"

ReasonText = Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS, pattern=LINE)]
# The length is checked because Python's $ also matches before a last line break.
TimeOfDay = Annotated[str, msgspec.Meta(pattern=_TIME_PATTERN, max_length=_TIME_CHARACTERS)]
Millis = Annotated[int, msgspec.Meta(ge=1, le=MAX_STALE_ORDER_MILLIS)]
# Checked by hand: msgspec does not say which item of a list is wrong.
Names = Annotated[
    list[Any],
    msgspec.Meta(extra_json_schema={"items": {"enum": list(model.TimeField)}, "uniqueItems": True}),
]


def read_zones() -> frozenset[str]:
    """The IANA names in the pinned tzdata, the same on every machine. A name that is not among them
    is never used as a path."""
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split()) - NO_ZONES


class ManualSwitch(msgspec.Struct, forbid_unknown_fields=True):
    """A manual_reason that is left out, null or empty is cleared."""

    manually_disabled: bool
    manual_reason: ReasonText | None = None


class ChangedTime(msgspec.Struct, forbid_unknown_fields=True):
    """Null or left out leaves a field as it is; `clear` names those to remove."""

    trading_start: TimeOfDay | None = None
    trading_end: TimeOfDay | None = None
    stale_order_millis: Millis | None = None
    timezone: str | None = None
    clear: Names | None = None


class ManualRecord(msgspec.Struct, kw_only=True):
    """The fields that the records of all switches have, after the ids of their own."""

    manually_disabled: bool
    manual_reason: str | UnsetType = UNSET
    created_at: str
    updated_at: str
    version: int


Manual = TypeVar("Manual", bound=ManualRecord)
Shown = TypeVar("Shown", bound="SymbolControls")


class OrganizationControl(ManualRecord, kw_only=True):
    organization_id: str


class AccountControl(ManualRecord, kw_only=True):
    account_id: str
    organization_id: str


class SymbolManualControl(AccountControl, kw_only=True):
    symbol: str


class SymbolTimeControl(msgspec.Struct, kw_only=True):
    account_id: str
    organization_id: str
    symbol: str
    trading_start: str | UnsetType = UNSET
    trading_end: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    stale_order_millis: int | None
    created_at: str
    updated_at: str
    version: int


class SymbolControls(msgspec.Struct, kw_only=True):
    manual: SymbolManualControl | None
    time: SymbolTimeControl | None


class ListedSymbol(SymbolControls):
    symbol: str


class Evaluation(msgspec.Struct):
    allowed: bool
    triggered: list[model.Triggered]


def read_time_change(body: ChangedTime, zones: AbstractSet[str]) -> model.TimeChange:
    if body.timezone is not None and body.timezone not in zones:
        raise ValidationFailed.at(
            "/timezone", "must be an IANA time zone, such as America/New_York"
        )
    rule = model.TimeRule(
        None if body.trading_start is None else time.fromisoformat(body.trading_start),
        None if body.trading_end is None else time.fromisoformat(body.trading_end),
        body.stale_order_millis,
        body.timezone,
    )
    return model.TimeChange(rule, _read_clear(body.clear or [], rule))


def _read_clear(names: list[Any], rule: model.TimeRule) -> frozenset[model.TimeField]:
    found: set[model.TimeField] = set()
    for index, name in enumerate(names):
        pointer = f"/clear/{index}"
        if name not in list(model.TimeField):
            raise ValidationFailed.at(pointer, f"unknown name; use {either(model.TimeField)}")
        if name in found:
            raise ValidationFailed.at(pointer, "must name each field once")
        if getattr(rule, name) is not None:
            raise ValidationFailed.at(pointer, f"{name} is both set and cleared")
        found.add(model.TimeField(name))
    return frozenset(found)


class Owner(NamedTuple):
    organization_id: OrganizationId
    account_id: str


def show_switch(
    kind: type[Manual], owner: Owner, control: model.ManualControl, symbol: Symbol | None = None
) -> Manual:
    reason = _set(control.manual_reason)
    return show_as(kind, control, **owner._asdict(), symbol=symbol, manual_reason=reason)


def show_time(owner: Owner, symbol: Symbol, control: model.TimeControl) -> SymbolTimeControl:
    return show_as(
        SymbolTimeControl,
        control,
        **owner._asdict(),
        symbol=symbol,
        trading_start=_set(control.trading_start),
        trading_end=_set(control.trading_end),
        timezone=_set(control.timezone),
    )


def show_symbol(kind: type[Shown], owner: Owner, control: model.SymbolControl) -> Shown:
    manual = None
    time_control = None
    if control.manual:
        manual = show_switch(SymbolManualControl, owner, control.manual, control.symbol)
    if control.time:
        time_control = show_time(owner, control.symbol, control.time)
    return show_as(kind, control, manual=manual, time=time_control)


def _set(value: object) -> object:
    """Leaves a field out of the answer when it is None."""
    return UNSET if value is None else value
