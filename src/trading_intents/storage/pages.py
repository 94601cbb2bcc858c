"""Reads pages of lists in both orders: by any unique key, or by the seq of a log. Never decides
what is shown."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from trading_intents.clock import TimeRange
from trading_intents.storage.database import Row, Tx

FIRST_SEQ = 1
NO_END = 2**63 - 1
# Times of a log follow its seqs, but for a clock that was set back and for transactions that ran
# side by side: so much around a bound is read as well.
TIME_MARGIN = timedelta(seconds=5)
# PostgreSQL makes the texts of `amount_text` and `rfc3339` in a fraction of the event loop's time
# for them.
_TEXTS = {
    "uuid": "{0}::text AS {0}",
    "numeric": "trim_scale({0})::text AS {0}",
    "timestamptz": """to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS {0}""",
}


class PageRequest(Protocol):
    """Asks for a page of a list. A page reads one row more than its limit, which says that there is
    a next page."""

    @property
    def after(self) -> Any:
        """The key of the last row that the caller has; None at the beginning."""

    @property
    def limit(self) -> int: ...

    @property
    def is_descending(self) -> bool: ...


def shown_columns(types: Mapping[str, str]) -> str:
    """The columns of these names and types, with ids, amounts and times in the form in which the
    platform sends them."""
    return ", ".join(_TEXTS.get(kind, "{0}").format(name) for name, kind in types.items())


async def fetch_page(
    tx: Tx, query: str, page: PageRequest, *args: object, key: str = "id"
) -> list[Row]:
    """`query` ends with its conditions, which take `args`; `key` is unique among its rows, and
    leads to them by an index."""
    number = len(args) + 1
    beyond, after = beyond_cursor(page, key, number + 1)
    order = f"ORDER BY {key} {direction_of(page)} LIMIT ${number}"
    return await tx.fetch(f"{query} {beyond} {order}", *args, page.limit + 1, *after)


def direction_of(page: PageRequest) -> str:
    return "DESC" if page.is_descending else "ASC"


def beyond_cursor(page: PageRequest, key: str, number: int) -> tuple[str, tuple[Any, ...]]:
    """The condition that leaves out what the caller has, and its argument; nothing at the list's
    beginning."""
    if page.after is None:
        return "", ()
    return f"AND {key} {'<' if page.is_descending else '>'} ${number}", (page.after,)


class SeqLog(NamedTuple):
    """A table of accounts' rows with a seq, and a time that follows it but for rows that
    `condition` leaves out."""

    table: str
    seq: str
    time: str
    condition: str = "true"


class _FoundBound(NamedTuple):
    name: str  # start or end
    low: int  # the first seq at or after its time


class SeqRange(NamedTuple):
    """The seqs of a page: `first` and those above it, below `end`."""

    first: int
    end: int


async def find_range(
    tx: Tx, log: SeqLog, account_id: UUID, times: TimeRange, page: PageRequest
) -> SeqRange:
    """The seqs beyond the cursor that may be within these times, which the statement itself is to
    check."""
    first = FIRST_SEQ
    end = NO_END
    if times != TimeRange():
        rows = await tx.fetch(_FIND_SEQS.format(**log._asdict()), account_id, *times, TIME_MARGIN)
        for found in [_FoundBound(**row) for row in rows]:
            if found.name == "start":
                first = max(found.low, FIRST_SEQ)
            else:
                end = found.low
    if page.after is None:
        return SeqRange(first, end)
    return (
        SeqRange(first, min(end, page.after))
        if page.is_descending
        else SeqRange(max(first, page.after + 1), end)
    )


# By bisection: an index of times would cost every row that is appended. The server adds the margin,
# as its years go further than ours.
_FIND_SEQS = """
    WITH RECURSIVE search (name, time, low, high) AS (
        SELECT bounds.*, ends.* FROM (
            VALUES ('start', $2::timestamptz - $4::interval),
                ('end', $3::timestamptz + $4::interval)
        ) AS bounds (name, time) CROSS JOIN (
            SELECT min({seq}), max({seq}) + 1 FROM (
                (SELECT {seq} FROM {table} WHERE account_id = $1 ORDER BY {seq} LIMIT 1)
                UNION ALL
                (SELECT {seq} FROM {table} WHERE account_id = $1 ORDER BY {seq} DESC LIMIT 1)
            ) AS rows
        ) AS ends
        WHERE bounds.time IS NOT NULL
        UNION ALL
        SELECT search.name, search.time,
               CASE WHEN found.time < search.time THEN found.seq + 1 ELSE low END,
               CASE WHEN found.time < search.time THEN high ELSE middle END
        FROM search CROSS JOIN LATERAL (SELECT (low + high) / 2 AS middle) AS halved
        LEFT JOIN LATERAL (
            SELECT {seq} AS seq, {time} AS time FROM {table}
            WHERE account_id = $1 AND {seq} >= middle AND {seq} < high AND {condition}
            ORDER BY {seq} LIMIT 1
        ) AS found ON true
        WHERE low < high
    )
    SELECT name, low FROM search WHERE low >= high
"""
