"""Venues as data: a file for each, on top of a profile that comes with the platform. Each is a broker of its own."""

import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from trading_intents.brokers.fix.messages import Fields
from trading_intents.brokers.port import Capabilities, LookupKind
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce

PROFILES = Path(__file__).parent / "profiles"
Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


class Venue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str
    port: int
    begin_string: str
    environments: tuple[Environment, ...]
    times_in_force: dict[OrderKind, tuple[TimeInForce, ...]]
    native_replace: bool
    recovery: Literal["resend", "none"]  # none: every logon begins at 1; else each sends again what the other missed
    lookup: Literal["none", "status"]  # by OrderStatusRequest (H)
    extends: str = ""
    tls: bool = True
    tls_ca_file: str = ""
    tls_cert_file: str = ""  # of our own, where the venue wants to see one
    tls_key_file: str = ""
    heartbeat_seconds: int = 30
    max_skew_seconds: float = 120.0
    reset: Literal["never", "daily", "weekly"] = "never"
    reset_time: str = "00:00"
    reset_day: Day = "sunday"
    has_reset_flag: bool = True
    time_zone: str = "UTC"
    has_password: bool = False
    refused_logon: tuple[str, ...] = ()  # parts of a Logout's text that mean that the credential is wrong
    unique_order_ids: bool = False
    quantity_step: Decimal | None = None
    requests_per_minute: int | None = None
    calls_at_once: int = 10
    fields: dict[str, dict[int, str]] = {}  # by message type and tag: further ones, or "" for one to be left out

    def __post_init__(self) -> None:
        time.fromisoformat(self.reset_time)
        ZoneInfo(self.time_zone)
        if self.heartbeat_seconds < 1:
            raise ValueError("heartbeat_seconds is at least 1")
        if self.begin_string not in ("FIX.4.2", "FIX.4.4"):
            raise ValueError(f"begin_string {self.begin_string!r} is neither FIX.4.2 nor FIX.4.4")

    def complete(self, msg_type: str, fields: Fields) -> Fields:
        """A message's fields as this venue wants them."""
        changed = dict(fields) | self.fields.get(msg_type, {})
        return [(tag, value) for tag, value in changed.items() if value]

    def capabilities(self, name: str) -> Capabilities:
        return Capabilities(
            name=name,
            environments=self.environments,
            times_in_force=self.times_in_force,
            routes=(RouteStrategy.SMART,),
            native_replace=self.native_replace,
            credential_fields=("sender_comp_id", "target_comp_id", *(("username", "password") * self.has_password)),
            quantity_step=self.quantity_step,
            lookup=LookupKind.NONE if self.lookup == "none" else LookupKind.OPEN_ONLY,
            unique_order_ids=self.unique_order_ids,
            requests_per_minute=self.requests_per_minute,
            calls_at_once=self.calls_at_once,
        )

    def last_reset(self, now: datetime) -> datetime | None:
        """When the numbers last began at 1, by the venue's schedule."""
        if self.reset == "never":
            return None
        zone = ZoneInfo(self.time_zone)
        for days in range(8):
            day = (now.astimezone(zone) - timedelta(days=days)).date()
            at = datetime.combine(day, time.fromisoformat(self.reset_time), zone).astimezone(UTC)
            if at <= now and (self.reset == "daily" or day.weekday() == get_args(Day).index(self.reset_day)):
                return at
        return None


def read_venue(path: Path) -> Venue:
    """ValueError says what is wrong with the file."""
    try:
        own = tomllib.loads(path.read_text())
        base = own.get("extends")
        known = {each.stem for each in PROFILES.glob("*.toml")}
        if base is not None and base not in known:
            raise ValueError(f"extends {base!r}, which is none of {', '.join(sorted(known))}")
        inherited = tomllib.loads((PROFILES / f"{base}.toml").read_text()) if base else {}
        return msgspec.convert(_merged(inherited, own), Venue, str_keys=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    tables = {name: _merged(base[name], each) for name, each in own.items() if isinstance(each, dict) and name in base}
    return {**base, **own, **tables}
