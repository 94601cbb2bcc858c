"""Strict JSON: a body that cannot be read is 400, one that breaks a rule is 422 and names its field. Never guesses."""

import re
from typing import Annotated, Any, TypeVar

import msgspec

from trading_intents.errors import InvalidJson
from trading_intents.web.validation import explain

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_TEXT_CHARACTERS = 128

# Invisible characters and those that change the direction of text: they make a text look like another one.
INVISIBLE = r"\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
# One line: no control characters (PostgreSQL cannot hold NUL). Python's $ alone would let a last line break pass.
_LINE = rf"^[^\x00-\x1f\x7f-\x9f\u2028\u2029{INVISIBLE}]*$(?!\n)"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT_CHARACTERS, pattern=_LINE)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS, pattern=_LINE)]

# A string that does not end runs to the end of the text, and nothing is tried twice (the + after *): else a text of
# nothing but quotation marks takes half a minute.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_KEY = re.compile(rb'"([^"]*)"\s*:')


def read_json(data: bytes) -> Any:
    """Reads the document as plain Python values; refuses duplicate keys and deep nesting, which msgspec accepts."""
    if is_plain(data):
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidJson(f"the body is not JSON: {error}") from None
    without_strings = _STRING.sub(b"", data)
    _check_depth(without_strings)
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidJson(f"the body is not JSON: {error}") from None
    # Outside strings there is one colon for each key that was written.
    if without_strings.count(b":") != _count_keys(tree):
        raise InvalidJson("a key is repeated within one object")
    return tree


def convert(tree: Any, kind: type[T]) -> T:
    """Converts the document to `kind`, or raises ValidationFailed with a JSON pointer."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), tree, kind) from None


def is_plain(data: bytes) -> bool:
    """Few brackets, no escapes, and no key twice anywhere: then there is nothing more to look for.

    Without a backslash every key stands between quotes as it is, so none is missed; what looks like a key and is none
    only sends the document to the longer way.
    """
    if b"\\" in data or data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        return False
    keys = _KEY.findall(data)
    return len(keys) == len(set(keys))


def _check_depth(without_strings: bytes) -> None:
    if without_strings.count(b"{") + without_strings.count(b"[") <= MAX_DEPTH:
        return
    depth = 0
    for character in without_strings:
        if character in b"{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidJson(f"the body is nested deeper than {MAX_DEPTH} levels")
        elif character in b"}]":
            depth -= 1


def _count_keys(tree: Any) -> int:
    if isinstance(tree, dict):
        return len(tree) + sum(_count_keys(value) for value in tree.values() if isinstance(value, dict | list))
    if isinstance(tree, list):
        return sum(_count_keys(value) for value in tree if isinstance(value, dict | list))
    return 0
