"""The time of this process. Where processes must agree, they use the database's clock instead."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

RFC3339_RULE = "must be an RFC 3339 time with its offset, such as 2026-01-05T15:00:00Z"
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall clock, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, for ages and limits."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def rfc3339(moment: datetime) -> str:
    """The form of every timestamp that the platform sends: UTC, microseconds, Z."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_rfc3339(text: str) -> datetime | None:
    """In UTC; None if it is no RFC 3339 time with an offset. What is finer than a microsecond is
    rounded up, so that comparing with our own times, which are not finer, gives the same."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    day, hours, fraction, offset = match.groups()
    nanos = int((fraction or "0").ljust(9, "0"))
    try:
        moment = datetime.fromisoformat(f"{day}T{hours}{offset.upper()}") + timedelta(
            microseconds=-(-nanos // 1000)
        )
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class TimeRange(NamedTuple):
    """From `start` on, and before `end`; None: without that bound."""

    start: datetime | None = None
    end: datetime | None = None
