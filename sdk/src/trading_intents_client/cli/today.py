"""Today's result of an account as its daily-loss limit counts it, from positions and the recorded
equity."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

from msgspec import Struct

from trading_intents_client import Account, EquityPoint, Forbidden, NotFound, Position
from trading_intents_client.cli.tables import amount, rounded

ZERO = Decimal(0)
# The last values before a day are searched in these spans, one after the other.
BEFORE = {"1m": timedelta(hours=1), "1h": timedelta(days=1), "1d": timedelta(days=1500)}


class DayResult(Struct, frozen=True):
    """The result, realized and unrealized, since 00:00 in a time zone."""

    result: Decimal
    zone: str

    def __str__(self) -> str:
        return f"today {amount(rounded(self.result))} since 00:00 {self.zone}"


def read_today(account: Account, positions: Iterable[Position]) -> DayResult | None:
    """Gives None if the caller may not read the account's equity."""
    zone = None
    with suppress(NotFound, Forbidden):  # there are no limits, or the caller may not read them
        zone = account.controls.limits().timezone
    begin = begin_day(datetime.now(UTC), zone)
    held = list(positions)
    made = sum((each.realized_pnl + (each.unrealized_pnl or ZERO) for each in held), ZERO)
    try:
        last = _last_before(account, begin)
        if last is None and any(each.opening_quantity for each in held):
            # A result from before the account came here does not count for today.
            last = next(iter(account.equity(resolution="1m", start=begin).data), None)
    except Forbidden:
        return None
    return DayResult(
        made - (last.realized_pnl + last.unrealized_pnl if last else ZERO), zone or "UTC"
    )


def begin_day(now: datetime, zone: str | None) -> datetime:
    """The time at which the calendar day began in the zone. A zone that is not known here counts as
    UTC."""
    known: tzinfo = UTC
    with suppress(LookupError, ValueError, OSError):
        known = ZoneInfo(zone or "UTC")
    return datetime.combine(now.astimezone(known).date(), time.min, known).astimezone(UTC)


def _last_before(account: Account, begin: datetime) -> EquityPoint | None:
    for resolution, length in BEFORE.items():
        if spans := account.equity(resolution=resolution, start=begin - length, end=begin).data:
            return spans[-1]
    return None
