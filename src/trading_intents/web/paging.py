"""Lists: limit, order, times, opaque cursor, and the answer's envelope, or its rows as CSV. A
cursor belongs to one list, its filters and its order, and only moves within it."""

import base64
import binascii
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from trading_intents.clock import RFC3339_RULE, TimeRange, parse_rfc3339, rfc3339
from trading_intents.errors import InvalidCursor, InvalidRequest, ValidationFailed
from trading_intents.trading import FrozenStruct
from trading_intents.web.body import read_choice
from trading_intents.web.request import Answer, Headers, Request
from trading_intents.web.routes import Parameter

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_LIMIT = 50
MAX_LIMIT = 100
MAX_CURSOR_CHARACTERS = 256
_TAG_BYTES = 8
CSV = b"text/csv; charset=utf-8"
_QUALITY = re.compile(r"q=(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?\Z", re.ASCII)
_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes a cell for that begins so


class ListOrder(StrEnum):
    ASC = "asc"
    DESC = "desc"


class Page(FrozenStruct):
    list_name: str  # names the list, its owner, filters and order, so that a cursor fits no other
    limit: int
    after: Any  # the key of the last row that the caller has; None at the beginning
    is_descending: bool = False

    def select(self, rows: Iterable[R], key: Callable[[R], Any]) -> list[R]:
        """The page of a list that is in memory, for `answer`."""
        ordered = sorted(rows, key=key, reverse=self.is_descending)
        if self.after is not None:
            ordered = [row for row in ordered if self._is_next(key(row))]
        return ordered[: self.limit + 1]

    def _is_next(self, key: Any) -> bool:
        if key == self.after:
            return False
        is_before: bool = key < self.after
        return is_before == self.is_descending

    def answer(
        self, rows: Sequence[R], position: Callable[[R], str], show: Callable[[R], T]
    ) -> "Listing[T]":
        """Rows read with `limit + 1` become one page; the extra one only says that there is
        more."""
        shown = rows[: self.limit]
        next_cursor = None
        if len(rows) > self.limit:
            next_cursor = make_cursor(self.list_name, position(shown[-1]))
        return Listing([show(row) for row in shown], next_cursor)


class Listing(msgspec.Struct, Generic[T]):
    data: list[T]
    next_cursor: str | None


def read_page(request: Request, list_name: str, parse: Callable[[str], Any] = str) -> Page:
    """`list_name` names the list, its owner and its filters; `parse` makes a row's key of its
    text."""
    order = read_choice("?order", request.query.get("order", ListOrder.ASC), ListOrder)
    is_descending = order is ListOrder.DESC
    if is_descending:
        list_name += ":desc"
    cursor = request.query.get("next_cursor")
    after = None
    if cursor is not None:
        position = open_cursor(list_name, cursor)
        after = parse(position)
        if str(after) != position:
            raise InvalidCursor
    return Page(list_name, read_limit(request.query.get("limit")), after, is_descending)


def prefers_csv(request: Request) -> bool:
    """Whether `Accept` gives text/csv a higher quality than JSON."""
    qualities = _read_qualities(request.incoming.join_header(b"accept").decode("latin-1"))
    return _quality_of("text", "csv", qualities) > _quality_of("application", "json", qualities)


def _read_qualities(accept: str) -> dict[str, Decimal]:
    """The quality of each range of media types; one that cannot be read leaves its range out."""
    found = {}
    for part in accept.split(","):
        media, *parameters = [each.strip(" \t").lower() for each in part.split(";")]
        given = [each for each in parameters if each.startswith("q=")]
        if all(map(_QUALITY.match, given)):
            found[media] = Decimal(given[0][2:] if given else 1)
    return found


def _quality_of(kind: str, name: str, qualities: Mapping[str, Decimal]) -> Decimal:
    for media in (f"{kind}/{name}", f"{kind}/*", "*/*"):
        if media in qualities:
            return qualities[media]
    return Decimal(0)


def answer_csv(request: Request, answer: Answer, columns: Sequence[str]) -> Answer:
    listing = msgspec.json.decode(answer.body)
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(columns)
    for row in listing["data"]:
        table.writerow([_cell(row.get(name)) for name in columns])
    headers: Headers = []
    if listing["next_cursor"] is not None:
        query = urlencode(request.query | {"next_cursor": listing["next_cursor"]})
        headers.append((b"link", f'<?{query}>; rel="next"'.encode()))
    return Answer(
        body=text.getvalue().encode(),
        status=answer.status,
        content_type=CSV,
        headers=answer.headers + headers,
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join(value) if isinstance(value, list) else str(value)
    if text.startswith(_FORMULA) and not _NUMBER.match(text):
        return f"'{text}"
    return text


def parse_seq(text: str) -> int | None:
    is_seq = text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if is_seq else None


def read_times(request: Request) -> TimeRange:
    """The bounds by which a list of what happened is narrowed."""
    start = query_time(request, "created_after")
    end = query_time(request, "created_before")
    if start is not None and end is not None and start > end:
        raise ValidationFailed.at("?created_before", "must not be earlier than created_after")
    return TimeRange(start, end)


def name_times(times: TimeRange) -> str:
    """For the list's name: a cursor fits no other times."""
    if times == TimeRange():
        return ""
    bounds = ["" if time is None else rfc3339(time) for time in times]
    return ":" + "/".join(bounds)


def query_time(request: Request, name: str) -> datetime | None:
    text = request.query.get(name)
    if text is None:
        return None
    return read_time(f"?{name}", text)


def read_time(pointer: str, text: str) -> datetime:
    time = parse_rfc3339(text)
    if time is None:
        hint = "; write + as %2B" if " " in text else ""
        raise ValidationFailed.at(pointer, f"found {text[:40]!r}; {RFC3339_RULE}{hint}")
    return time


def make_cursor(list_name: str, position: str) -> str:
    raw = _tag(list_name, position) + position.encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def open_cursor(list_name: str, cursor: str) -> str:
    position = read_cursor(cursor)
    # The tag needs no key: whoever forges one still only moves within a list that they may read.
    if make_cursor(list_name, position) != cursor:
        raise InvalidCursor
    return position


def read_cursor(cursor: str) -> str:
    """The position that it names; `open_cursor` checks whether it is of the right list."""
    if len(cursor) > MAX_CURSOR_CHARACTERS:
        raise InvalidCursor
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        position = raw[_TAG_BYTES:].decode()
    except (binascii.Error, UnicodeError):
        raise InvalidCursor from None
    if "\x00" in position:  # no row is there: PostgreSQL's text holds no NUL
        raise InvalidCursor
    return position


def read_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(
            "limit must be a whole number, zero or more; 1 to 100 rows are answered"
        )
    digits = text.lstrip("0") or "0"
    if len(digits) > 9:
        return MAX_LIMIT
    return max(1, min(MAX_LIMIT, int(digits)))


def _tag(list_name: str, position: str) -> bytes:
    return hashlib.blake2b(f"{list_name}\n{position}".encode(), digest_size=_TAG_BYTES).digest()


PAGE_PARAMETERS = (
    Parameter(
        "limit",
        "Rows a page, 1 to 100; default 50.",
        {"type": "integer", "minimum": 0, "default": 50},
        check=read_limit,
    ),
    Parameter(
        "next_cursor",
        "Where the last page ended; with the same filters and order.",
        {"type": "string"},
        check=read_cursor,
    ),
    Parameter(
        "order",
        "Ascending or descending. Descending, the walk shows what its first page's moment held.",
        {"type": "string", "enum": list(ListOrder), "default": ListOrder.ASC},
    ),
)


def time_parameters(column: str) -> tuple[Parameter, ...]:
    """For lists of what happened, by the time in this field."""
    schema = {"type": "string", "format": "date-time"}
    return (
        Parameter(
            "created_after", f"Only rows with {column} at this time or later (RFC 3339).", schema
        ),
        Parameter(
            "created_before", f"Only rows with {column} before this time (RFC 3339).", schema
        ),
    )
