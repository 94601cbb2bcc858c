"""Strict JSON: a body that cannot be read is 400, one that breaks a rule is 422 and names its
field. Never guesses."""

import functools
import re
from collections.abc import Collection
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec

from trading_intents import trading
from trading_intents.errors import InvalidJson, ValidationFailed, either
from trading_intents.web.validation import FOUND_A_NUMBER, MAX_FOUND_CHARACTERS, explain

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_PARTS = 4_096  # lists and objects: making 30,000 takes the loop 5 ms
# In lists and objects: reading 16,000 numbers and writing them again takes the loop as long.
MAX_VALUES = 10_000
# Of a number: the time that Python takes for one grows with the square of its length.
MAX_DIGITS = 64
MAX_TEXT_CHARACTERS = 128
MAX_REFERENCE_CHARACTERS = 64

# In no text of a client: control characters, which PostgreSQL (NUL) or a terminal would take for
# commands, and those that are invisible or change the direction of text, which make a text look
# like another one.
_REFUSED = (
    r"\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb"
)
# Python's $ alone would let a last line break pass.
LINE = rf"^[^{_REFUSED}]*$(?!\n)"
_LINE = re.compile(LINE)
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT_CHARACTERS, pattern=LINE)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS, pattern=LINE)]
Amount = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": trading.AMOUNT_PATTERN})]


# Pairs of brackets, at most MAX_DEPTH within each other. Nothing is tried twice (the + after *).
_NESTED = re.compile(
    functools.reduce(lambda inner, _: rb"(?:\[" + inner + rb"\])*+", range(MAX_DEPTH), b"")
)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)


def read_json(data: bytes) -> Any:
    """Reads the document as plain Python values; refuses repeated keys, deep nesting and long
    numbers, which msgspec accepts, and too many parts. Each step is a few passes in C, so that no
    shape of 64 KiB takes long."""
    # Strings have brackets, commas and digits too: a document with few needs no closer look.
    is_plain = (
        data.count(b"[") + data.count(b"{") <= MAX_DEPTH
        and data.count(b",") < MAX_VALUES
        and _LONG_NUMBER not in data.translate(_DIGITS)
    )
    structure = b"" if is_plain else _without_strings(data)
    if structure.count(b"[") + structure.count(b"{") > MAX_PARTS:
        raise InvalidJson(f"the body has more than {MAX_PARTS} lists and objects")
    if structure.count(b",") >= MAX_VALUES:
        raise InvalidJson(f"the body has more than {MAX_VALUES} values")
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidJson(f"the body is not JSON: {error}") from None
    if _LONG_NUMBER in structure.translate(_DIGITS):
        raise InvalidJson(f"a number has more than {MAX_DIGITS} digits")
    if structure and not _NESTED.fullmatch(structure.translate(_BRACKETS, _NO_BRACKETS)):
        raise InvalidJson(f"the body is nested deeper than {MAX_DEPTH} levels")
    # The tree, written again, has as many colons, within strings and after keys, unless a key was
    # repeated.
    if _count_colons(data) != msgspec.json.encode(tree).count(b":"):
        raise InvalidJson("a key is repeated within one object")
    return tree


def convert(tree: Any, kind: type[T], amounts: Collection[str] = ()) -> T:
    """Converts the document to `kind`, or raises ValidationFailed with a JSON pointer. A caller
    that sent a JSON number in a field of `amounts` is refused with the reason why amounts are
    strings."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        explained = explain(str(error), tree, kind)
    pointer = explained.errors[0].pointer
    detail = explained.errors[0].detail
    if pointer.rpartition("/")[2] in amounts and detail.endswith(FOUND_A_NUMBER):
        raise ValidationFailed.at(pointer, trading.NUMBER_FOR_AMOUNT)
    raise explained


def read_symbol(pointer: str, text: str) -> trading.Symbol:
    symbol = trading.parse_symbol(text)
    if symbol is None:
        raise ValidationFailed.at(pointer, trading.SYMBOL_RULE)
    return symbol


def read_reference(pointer: str, text: str) -> str:
    """Without control characters the plain encoding of a record with the reference is its canonical
    one."""
    if len(text) > MAX_REFERENCE_CHARACTERS or not _LINE.match(text):
        raise ValidationFailed.at(
            pointer,
            f"must be up to {MAX_REFERENCE_CHARACTERS} characters, none of them a control "
            "character or invisible",
        )
    return text


def read_choice(pointer: str, text: str, kind: type[E]) -> E:
    if text not in set(kind):
        raise ValidationFailed.at(
            pointer, f"found {text[:MAX_FOUND_CHARACTERS]!r}; use {either(kind)}"
        )
    return kind(text)


def named_environment(given: object) -> trading.Environment | None:
    """The environment that a body names: a caller without rights in it gets 403 before the rest of
    the body is judged."""
    named = given.get("environment") if isinstance(given, dict) else None
    return next((each for each in trading.Environment if each == named), None)


def read_amount(pointer: str, text: str) -> Decimal:
    amount = trading.parse_amount(text)
    if amount is None:
        raise ValidationFailed.at(pointer, trading.AMOUNT_RULE)
    return amount


def _without_strings(document: bytes) -> bytes:
    """The rest of a JSON document when its strings are taken away."""
    unescaped = document.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(unescaped.split(b'"')[::2])


def _count_colons(document: bytes) -> int:
    """Those that are written as an escape too."""
    colons = document.count(b":")
    if b"\\" in document:
        colons += document.replace(rb"\\", b"").lower().count(rb"\u003a")
    return colons
