"""ULIDs of venues: ids that begin with the time at which they were made. Pure: no I/O, no clock."""

import contextlib
from datetime import UTC, datetime, timedelta

LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lowest(moment: datetime) -> str:
    """No id of this millisecond or a later one is below it."""
    return _time_part(moment) + LETTERS[0] * 16


def highest(moment: datetime) -> str:
    return _time_part(moment) + LETTERS[-1] * 16


def not_before(name: str, dated: datetime | None) -> datetime | None:
    """The time of an event that may be dated back: not before its id was made."""
    if not name:
        return dated
    with contextlib.suppress(ValueError, OverflowError):
        millis = 0
        for letter in name[:10]:
            millis = millis << 5 | LETTERS.index(letter)
        made_at = EPOCH + timedelta(milliseconds=millis)
        return max(dated or made_at, made_at)
    return dated


def _time_part(moment: datetime) -> str:
    millis = (moment - EPOCH) // timedelta(milliseconds=1)
    return "".join(LETTERS[millis >> shift & 31] for shift in range(45, -1, -5))
