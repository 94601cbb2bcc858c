"""Explains msgspec's errors about a body in plain words: where, what was found, and what is
allowed."""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import inspect

from trading_intents.errors import FieldProblem, ValidationFailed, either, json_pointer

MAX_FOUND_CHARACTERS = 40
MAX_MESSAGE_CHARACTERS = 512
MAX_SUGGESTED_CHARACTERS = 64  # longer names get no suggestion: comparing them takes long

_AT_PATH = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>[^\[\]]*)\]")
_NAMED = re.compile(
    r"Object (?P<how>contains unknown|missing required) field `(?P<field>.*)`\Z", re.DOTALL
)
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<found>.*)\Z", re.DOTALL)
_KIND = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<found>[^`]*)`\Z")
_LENGTH = re.compile(
    r"Expected `(?P<kind>str|array|object)` of length (?P<sign><=|>=) (?P<limit>\d+)\Z"
)
_BOUND = re.compile(r"Expected `\w+` (?P<sign><=|>=) (?P<limit>-?\d+)\Z")
_PATTERN = re.compile(r"Expected `str` matching regex (?P<pattern>.*)\Z", re.DOTALL)

_NOUNS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_FOUND = _NOUNS | {"int": "a number", "bool": "a boolean"}
FOUND_A_NUMBER = "found a number"
_PARTS = {"str": "characters", "array": "entries", "object": "fields"}
_AT = {"<=": "at most", ">=": "at least"}


def explain(message: str, tree: Any, kind: Any) -> ValidationFailed:
    """`message` is msgspec's error when it converted the tree to `kind`."""
    found = _AT_PATH.match(_cut(message))
    assert found
    what = found["what"]
    path = found["path"] or ""
    steps = [step["key"] or step["index"] for step in _STEP.finditer(path)]
    near = ""
    if named := _NAMED.match(what):
        if named["how"] == "missing required":
            detail = "is required"
        else:
            known = _fields(_types_at(kind, tree, steps))
            near, detail = _unknown_field(named["field"], known)
        steps.append(named["field"])
    elif value := _VALUE.match(what):
        types = _types_at(kind, tree, steps)
        allowed = _values(types, _types_at(kind, tree, steps[:-1]), steps[-1:])
        detail = f"found {_short(value['found'])}; use {either(allowed)}"
    else:
        detail = _rule(what)
    return ValidationFailed.listing([FieldProblem(json_pointer(*steps), detail, near)])


def unknown_parameters(given: Iterable[str], known: Sequence[str]) -> ValidationFailed | None:
    """Says which parameters of a query the route does not have: a mistyped filter is never
    ignored."""
    found: list[FieldProblem] = []
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"use {either(known)}" if known else "this path takes none"
            if near:
                hint = f"did you mean {near}?"
            found.append(FieldProblem(f"?{name}", f"unknown query parameter; {hint}", near))
    return ValidationFailed.listing(found) if found else None


def nearest(name: str, known: Iterable[str]) -> str:
    if len(name) > MAX_SUGGESTED_CHARACTERS:
        return ""
    return _nearest(name, tuple(known))


@functools.lru_cache  # a program repeats its mistake
def _nearest(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else ""


def _unknown_field(name: str, known: Sequence[str]) -> tuple[str, str]:
    near = nearest(name, known)
    if near:
        return near, f"unknown field; did you mean {near}?"
    if known:
        return "", f"unknown field; use {either(known)}"
    return "", "unknown field"


def _rule(what: str) -> str:
    if found := _KIND.match(what):
        kinds = found["wanted"].split(" | ")
        wanted = either(_NOUNS.get(kind, kind) for kind in kinds)
        given = found["found"]
        return f"must be {wanted}, found {_FOUND.get(given, given)}"
    if what == "Expected `str` of length >= 1":
        return "must not be empty"
    if found := _LENGTH.match(what):
        return f"must have {_AT[found['sign']]} {found['limit']} {_PARTS[found['kind']]}"
    if found := _BOUND.match(what):
        return f"must be {_AT[found['sign']]} {found['limit']}"
    if found := _PATTERN.match(what):
        if found["pattern"].startswith("'^[^"):
            return "must have no control characters and no invisible ones"
        return f"must match {found['pattern']}"
    return what


def _cut(message: str) -> str:
    """A field's name or a value may fill the whole body; the path, which comes last, is kept."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return f"{message[: MAX_MESSAGE_CHARACTERS // 2]}…{message[-MAX_MESSAGE_CHARACTERS // 2 :]}"


def _short(text: str) -> str:
    if len(text) <= MAX_FOUND_CHARACTERS:
        return text
    return f"{text[:MAX_FOUND_CHARACTERS]}…"


@functools.lru_cache
def _type_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _types_at(kind: Any, tree: Any, steps: Sequence[str]) -> list[inspect.Type]:
    """The types that a value at this path may have. For a tagged union, those with the tree's
    tag."""
    found = _alternatives(_type_of(kind), tree)
    for step in steps:
        tree = tree.get(step) if isinstance(tree, dict) else None
        parents = found
        found = []
        for parent in parents:
            for child in _children(parent, step):
                found += _alternatives(child, tree)
    return found


def _alternatives(kind: inspect.Type, tree: Any) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type, tree)
    if not isinstance(kind, inspect.UnionType):
        return [kind]
    choices = list[inspect.Type]()
    for each in kind.types:
        choices += _alternatives(each, tree)
    return [each for each in choices if _has_tag(each, tree)] or choices


def _has_tag(kind: inspect.Type, tree: Any) -> bool:
    if not isinstance(kind, inspect.StructType) or not isinstance(tree, dict):
        return False
    return kind.tag_field in tree and kind.tag == tree[kind.tag_field]


def _children(parent: inspect.Type, step: str) -> list[inspect.Type]:
    match parent:
        case inspect.StructType(fields=fields):
            return [field.type for field in fields if field.encode_name == step]
        case inspect.ListType(item_type=item):
            return [item]
        case inspect.DictType(value_type=value):
            return [value]
        case _:
            return []


def _fields(types: Sequence[inspect.Type]) -> list[str]:
    names = list[str]()
    for each in types:
        if isinstance(each, inspect.StructType):
            names += [field.encode_name for field in each.fields]
    return names


def _values(
    types: Sequence[inspect.Type], parents: Sequence[inspect.Type], step: Sequence[str]
) -> list[str]:
    members = list[str]()
    for each in types:
        if isinstance(each, inspect.EnumType):
            members += [str(member.value) for member in each.cls]
    tags = list[str]()
    for parent in parents:
        if isinstance(parent, inspect.StructType) and [parent.tag_field] == list(step):
            tags.append(str(parent.tag))
    return members or tags or ["another value"]
