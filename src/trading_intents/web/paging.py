"""Lists: limit, opaque cursor, and the answer's envelope. A cursor belongs to one list and only moves within it."""

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from trading_intents.errors import InvalidCursor, InvalidRequest
from trading_intents.web.request import Request
from trading_intents.web.routing import Parameter

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_LIMIT = 50
MAX_LIMIT = 100
MAX_CURSOR_CHARACTERS = 256
_TAG_BYTES = 8


@dataclass(frozen=True, slots=True)
class Page:
    list_name: str  # names the list and its owner, so that a cursor fits no other
    limit: int
    after: str | None  # the position of the last row that the caller has

    @property
    def after_seq(self) -> int:
        """The position in a list that is ordered by a seq; 0 at its beginning."""
        if self.after is None:
            return 0
        if not (self.after.isascii() and self.after.isdigit() and len(self.after) <= 18):
            raise InvalidCursor
        return int(self.after)

    def answer(self, rows: Sequence[R], position: Callable[[R], str], show: Callable[[R], T]) -> "Listing[T]":
        """Rows read with `limit + 1` become one page; the extra one only says that there is more."""
        shown = rows[: self.limit]
        more = len(rows) > self.limit
        return Listing([show(row) for row in shown], make_cursor(self.list_name, position(shown[-1])) if more else None)


class Listing(msgspec.Struct, Generic[T]):
    data: list[T]
    next_cursor: str | None


def read_page(request: Request, list_name: str) -> Page:
    cursor = request.query.get("next_cursor")
    return Page(list_name, read_limit(request.query.get("limit")), cursor and open_cursor(list_name, cursor))


def make_cursor(list_name: str, position: str) -> str:
    return base64.urlsafe_b64encode(_tag(list_name, position) + position.encode()).decode().rstrip("=")


def open_cursor(list_name: str, cursor: str) -> str:
    position = read_cursor(cursor)
    # The tag needs no key: whoever forges one still only moves within a list that they may read.
    if make_cursor(list_name, position) != cursor:
        raise InvalidCursor
    return position


def read_cursor(cursor: str) -> str:
    """The position that it names; whether it is of the right list, `open_cursor` tells."""
    if len(cursor) > MAX_CURSOR_CHARACTERS:
        raise InvalidCursor
    try:
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
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
        raise InvalidRequest("limit must be a whole number, zero or more; 1 to 100 rows are answered")
    return MAX_LIMIT if len(text) > 9 else max(1, min(MAX_LIMIT, int(text)))


def _tag(list_name: str, position: str) -> bytes:
    return hashlib.blake2b(f"{list_name}\n{position}".encode(), digest_size=_TAG_BYTES).digest()


PAGE_PARAMETERS = (
    Parameter(
        "limit",
        "Rows a page, 1 to 100; default 50.",
        {"type": "integer", "minimum": 0, "default": 50},
        check=read_limit,
    ),
    Parameter("next_cursor", "Where the last page ended.", {"type": "string"}, check=read_cursor),
)
