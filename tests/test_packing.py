"""The habits that keep a line plain: nothing is packed into it, and many values go by their names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import (
    EVERYTHING,
    SERVER_SOURCES,
    SOURCES,
    classes_of,
    code_tokens_of,
    complaints,
    functions_of,
    nodes_of,
)

pytestmark = pytest.mark.sources

MAX_POSITIONAL = 5
MAX_FIELDS_BY_ORDER = 5
MAX_COMPLEXITY = 15
MAX_TOKENS_A_LINE = 8.0
MAX_COMPREHENSIONS_A_LINE = 0.025
# The parameters of a statement are numbered: its verbs take them in order.
NUMBERED = {"execute", "fetch", "fetchrow", "fetchval"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_a_statement_assigns_one_value() -> None:
    """But for a swap, which needs both at once."""

    def packed(path: Path) -> list[int]:
        assigned = [node for node in nodes_of(path) if isinstance(node, ast.Assign)]
        return [node.lineno for node in assigned if is_packed(node)]

    assert complaints(EVERYTHING, packed) == {}


def is_packed(node: ast.Assign) -> bool:
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    return not names_in(target) <= names_in(node.value)


def test_nothing_is_packed_to_be_unpacked() -> None:
    """No `f(*a_tuple_made_here)`, no `{**{...}}`, no `(*(...), *(...))`."""
    assert complaints(SOURCES, lambda path: sorted(set(unpacked_at_once(path)))) == {}


def unpacked_at_once(path: Path) -> Iterator[int]:
    for function in functions_of(path):
        made = tuples_made_in(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Starred) and is_made_here(node, made):
                yield node.lineno
    for node in nodes_of(path):
        if isinstance(node, ast.Dict):
            values = zip(node.keys, node.values, strict=True)
            if any(key is None and isinstance(value, ast.Dict) for key, value in values):
                yield node.lineno
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
            yield node.lineno


def is_made_here(starred: ast.Starred, made: set[str]) -> bool:
    is_used = not isinstance(starred.ctx, ast.Store)
    return is_used and isinstance(starred.value, ast.Name) and starred.value.id in made


def tuples_made_in(function: ast.AST) -> set[str]:
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    made = [node for node in assigned if isinstance(node.value, ast.Tuple)]
    return {node.targets[0].id for node in made if isinstance(node.targets[0], ast.Name)}


def test_a_struct_of_many_fields_is_made_by_their_names() -> None:
    def by_order(path: Path) -> list[str]:
        return [each.name for each in classes_of(path) if has_many_fields_by_order(each)]

    assert complaints(SOURCES, by_order) == {}


def has_many_fields_by_order(each: ast.ClassDef) -> bool:
    written = [ast.unparse(node) for node in (*each.decorator_list, *each.bases, *each.keywords)]
    is_struct = any(
        "dataclass" in text or "Struct" in text or "NamedTuple" in text for text in written
    )
    fields = [part for part in each.body if isinstance(part, ast.AnnAssign)]
    return (
        is_struct and len(fields) > MAX_FIELDS_BY_ORDER and "kw_only=True" not in " ".join(written)
    )


def test_a_call_names_its_arguments_where_they_are_many() -> None:
    def many(path: Path) -> list[int]:
        calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
        return [node.lineno for node in calls if has_many_positional(node)]

    assert complaints(SOURCES, many) == {}


def has_many_positional(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in NUMBERED:
        return False
    return len([each for each in call.args if not isinstance(each, ast.Starred)]) > MAX_POSITIONAL


def test_a_comprehension_has_one_loop_and_holds_no_other() -> None:
    def woven(path: Path) -> list[int]:
        return [
            node.lineno
            for node in nodes_of(path)
            if isinstance(node, COMPREHENSIONS) and is_woven(node)
        ]

    assert complaints(SOURCES, woven) == {}


def is_woven(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
    inner = [each for each in ast.walk(node) if isinstance(each, COMPREHENSIONS)]
    return len(inner) > 1 or len(node.generators) > 1


def test_a_function_has_few_ways_through_it() -> None:
    def tangled(path: Path) -> dict[str, int]:
        ways = {
            f"{each.name}, line {each.lineno}": ways_through(each) for each in functions_of(path)
        }
        return {name: count for name, count in ways.items() if count > MAX_COMPLEXITY}

    assert complaints(SOURCES, tangled) == {}


def ways_through(function: ast.AST) -> int:
    """Cyclomatic complexity. A function within it has its own."""
    count = 1
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS):
            continue
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        waiting += ast.iter_child_nodes(node)
    return count


def test_a_line_says_one_thing() -> None:
    ours = [path for path in SERVER_SOURCES if not path.stem.endswith("_pb2")]
    tokens = [token for path in ours for token in code_tokens_of(path)]
    lines = sum(len(code_lines_of(path)) for path in ours)
    found = sum(isinstance(node, COMPREHENSIONS) for path in ours for node in nodes_of(path))
    assert len(tokens) / lines <= MAX_TOKENS_A_LINE
    assert found / lines <= MAX_COMPREHENSIONS_A_LINE


def code_lines_of(path: Path) -> set[int]:
    """The lines that begin a token: those within a statement's text are no code."""
    return {token.start[0] for token in code_tokens_of(path)}
