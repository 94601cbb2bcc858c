"""Reads the sources, for tests of their form."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trading_intents"
CLIENT = ROOT / "sdk" / "src" / "trading_intents_client"
SERVER_SOURCES = sorted(PACKAGE.rglob("*.py"))
CLIENT_SOURCES = sorted(CLIENT.rglob("*.py"))
SOURCES = [*SERVER_SOURCES, *CLIENT_SOURCES]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCHES = sorted([*(ROOT / "bench").glob("*.py"), *(ROOT / "sdk").glob("*.py")])
DESCRIPTIONS = sorted((ROOT / "descriptions").glob("*.py"))
# Distributions of their own, each with its tests.
BROKER_PACKAGES = sorted((ROOT / "brokers").rglob("*.py"))
EVERYTHING = [*SOURCES, *TESTS, *BENCHES, *DESCRIPTIONS, *BROKER_PACKAGES]
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE}
LAYOUT |= {tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Complaints = dict[str, object]


def complaints(paths: list[Path], look: Callable[[Path], object]) -> Complaints:
    """The findings of `look`, by file; files without one are left out."""
    return {str(path.relative_to(ROOT)): found for path in paths if (found := look(path))}


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@functools.cache
def statements_of(path: Path) -> list[ast.AST]:
    """Every statement, and none of their expressions: a sixth of all nodes."""
    found: list[ast.AST] = [tree_of(path)]
    for node in found:  # grows meanwhile
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, part, None)
            if isinstance(inner, list):
                found += inner
    return found


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node
        for node in statements_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def classes_of(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in statements_of(path) if isinstance(node, ast.ClassDef))


def tokens_of(path: Path) -> Iterator[tokenize.TokenInfo]:
    """Takes seconds for everything: look first whether the text can hold what is looked for."""
    return tokenize.generate_tokens(io.StringIO(text_of(path)).readline)


@functools.cache
def calls_of(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call with the name it is written by, such as `time.sleep`."""
    return [(ast.unparse(node.func), node) for node in nodes_of(path) if isinstance(node, ast.Call)]


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def count_tokens(path: Path) -> int:
    return len(code_tokens_of(path))


@functools.cache
def code_tokens_of(path: Path) -> list[tokenize.TokenInfo]:
    """Tokens of code: neither docstrings nor comments count, nor where lines end."""
    documented = [*functions_of(path), *classes_of(path), tree_of(path)]
    texts = [node.body[0] for node in documented if ast.get_docstring(node)]
    docstrings = {(text.lineno, text.col_offset) for text in texts}
    tokens = tokens_of(path)
    return [token for token in tokens if token.type not in LAYOUT and token.start not in docstrings]
