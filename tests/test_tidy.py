"""The limits that keep the code readable, checked so that no review has to: sizes, names, state,
sleeps, locks."""

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import (
    CLIENT_SOURCES,
    EVERYTHING,
    PACKAGE,
    ROOT,
    SERVER_SOURCES,
    SOURCES,
    TESTS,
    calls_of,
    classes_of,
    complaints,
    count_tokens,
    functions_of,
    nodes_of,
    text_of,
    tokens_of,
    tree_of,
    words_of,
)

pytestmark = pytest.mark.sources

# What has to go is code that does a thing twice, not the words of a clear line.
MAX_TOKENS = 287_500
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 100
MAX_MODULES = 9
MAX_INTEGRATION_MODULES = 4
MAX_INTEGRATION_TOKENS = 9_000  # with linked orders
MAX_FILES_OF_A_TERM = 18
# The package's own folder holds the ground, a file for each job, and the composition root: no name
# would fit a folder.
MAX_TOP_MODULES = 12
MAX_DOCSTRING_LINES = 2
MIN_WORDS = 3
BANNED = {"util", "utils", "common", "helper", "helpers", "manager", "base", "misc"}
# errors.py draws the whole tree of errors.
LONG_DOCSTRINGS = {"errors.py"}
MUTABLE_MAKERS = {
    "list",
    "dict",
    "set",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
    "bytearray",
}

NO_TYPES = ("Annotated", "TypeVar", "ParamSpec")

METAPHORS = {"desk", "shop", "house", "crew", "flight", "door", "audience", "knock", "stir"}
METAPHORS |= {"mighty", "bones", "scene"}
METAPHORS |= {"doors", "audiences", "stirred", "crowded"}
# Terms of the field that hold such a word: a token's audience (RFC 7519), what is in flight.
TERMS = {
    "audience",
    "_audience",
    "identity_audience",
    "in_flight",
    "_in_flight",
    "max_in_flight",
    "inflight",
}

# SQL is in a feature's store.py, in storage/, and in these: each is the store of one table or of
# one transaction.
STATEMENT_FILES = {
    "controls/limits/state/statements.py",
    "execution/claims.py",
    "intents/writing/effects.py",
    "intents/writing/statements.py",
    "orders/ledger/writes.py",
    "outbox/intents_queue.py",
    "outbox/queue.py",
    "stream/log.py",
}
# No HTTP method, and no command tag such as `UPDATE 0`.
SQL = re.compile(r"\s*(?:SELECT|INSERT(?! \d)|UPDATE(?! \d)|DELETE(?! \d)|WITH|LOCK)\s")


def test_the_package_stays_small() -> None:
    assert (
        sum(count_tokens(path) for path in SERVER_SOURCES if not path.stem.endswith("_pb2"))
        <= MAX_TOKENS
    )


def test_functions_stay_short() -> None:
    """A function that holds others is measured with them."""

    def long(path: Path) -> dict[str, int]:
        # By name and line: two classes of a file may each have a `create`.
        lengths = {f"{node.name}, line {node.lineno}": span(node) for node in functions_of(path)}
        return {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}

    assert complaints(EVERYTHING, long) == {}


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_lines_are_short() -> None:
    """ruff allows texts in tests 120 columns, as tables of cases are read in rows."""

    def wide(path: Path) -> list[int]:
        lines = text_of(path).splitlines()
        found = [number for number, line in enumerate(lines, start=1) if len(line) > MAX_COLUMNS]
        return [] if path.stem.endswith("_pb2") else found

    assert complaints(SOURCES, wide) == {}


def test_folders_hold_few_modules() -> None:
    counts = Counter(
        path.parent for path in SOURCES if path.name not in ("__init__.py", "__main__.py")
    )
    assert counts.pop(PACKAGE) <= MAX_TOP_MODULES
    assert {str(folder): count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_an_integration_stays_small() -> None:
    """Alpaca's is one that others are written after: four files, its package's own line aside."""
    modules = [
        path
        for path in SOURCES
        if path.parent == PACKAGE / "brokers" / "alpaca" and path.stem != "__init__"
    ]
    assert len(modules) <= MAX_INTEGRATION_MODULES
    assert sum(map(count_tokens, modules)) < MAX_INTEGRATION_TOKENS


def test_a_term_of_an_order_is_named_in_few_files() -> None:
    naming = [path for path in PACKAGE.rglob("*.py") if "stop_price" in path.read_text()]
    assert len(naming) <= MAX_FILES_OF_A_TERM, "a new term should need no more"


def test_a_module_says_its_job_in_a_line_or_two() -> None:
    def is_silent_or_long(path: Path) -> bool:
        said = ast.get_docstring(tree_of(path)) or ""
        return not said or (
            path.name not in LONG_DOCSTRINGS and len(said.splitlines()) > MAX_DOCSTRING_LINES
        )

    assert complaints(SOURCES, is_silent_or_long) == {}


@pytest.mark.parametrize("sources", [SERVER_SOURCES, CLIENT_SOURCES], ids=["server", "client"])
def test_the_name_of_a_type_has_one_meaning(sources: list[Path]) -> None:
    counts = Counter(node.name for path in sources for node in classes_of(path))
    counts += Counter(name for path in sources for name in aliases_of(path))
    assert {name: count for name, count in counts.items() if count > 1} == {}


def aliases_of(path: Path) -> Iterator[str]:
    """The types that a module names without a class, such as `Rows = list[Row]`. A parameter's
    constraints (`Annotated`) and a type's variable are none."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            value = ast.unparse(node.value)
            if re.fullmatch(r"[A-Z][a-z]\w*", name) and not value.startswith(NO_TYPES):
                yield name


def test_names_are_no_metaphors() -> None:
    """docs/glossary.md has the terms that are ours; these were pictures, not terms."""

    def pictures(path: Path) -> set[str]:
        text = text_of(path).lower()
        if not any(word in text for word in METAPHORS):
            return set()
        names = {token.string for token in tokens_of(path) if token.type == tokenize.NAME}
        is_test = {name for name in names if name.startswith("test_")}
        return {
            name
            for name in names - is_test
            if words_of(name) & METAPHORS and name.lower() not in TERMS
        }

    assert complaints(EVERYTHING, pictures) == {}


def test_a_limit_is_called_max_or_min() -> None:
    def others(path: Path) -> list[str]:
        return re.findall(r"\b(?:MOST|LARGEST|LONGEST|LEAST|SMALLEST)_[A-Z_]+", text_of(path))

    assert complaints([path for path in EVERYTHING if path != Path(__file__)], others) == {}


def test_names_say_what_a_thing_is() -> None:
    def empty(path: Path) -> list[str]:
        classes = [node.name for node in classes_of(path)]
        return [name for name in (path.stem, path.parent.name, *classes) if words_of(name) & BANNED]

    assert complaints(EVERYTHING, empty) == {}


def test_statements_are_in_stores() -> None:
    def statements(path: Path) -> list[str]:
        texts = [node.value for node in nodes_of(path) if isinstance(node, ast.Constant)]
        return [text for text in texts if isinstance(text, str) and SQL.match(text)]

    def may_have_sql(path: Path) -> bool:
        name = path.relative_to(PACKAGE)
        return path.name == "store.py" or name.parts[0] == "storage" or str(name) in STATEMENT_FILES

    assert all(statements(PACKAGE / name) for name in STATEMENT_FILES)
    assert complaints([path for path in SERVER_SOURCES if not may_have_sql(path)], statements) == {}


def test_no_amount_becomes_a_float() -> None:
    def floats(path: Path) -> list[int]:
        return [
            node.lineno
            for name, node in calls_of(path)
            if name == "float" and path.name != "telemetry.py"
        ]

    assert complaints(SOURCES, floats) == {}


def test_a_silenced_rule_says_why() -> None:
    # A comment is the end of its line; in a string such an end of a line is none.
    silent = re.compile(
        r"#\s*(?:type:\s*ignore(?:\[[^\]]*\])?|noqa(?::\s*[A-Z0-9, ]+?)?)\s*$", re.MULTILINE
    )

    def unexplained(path: Path) -> list[tuple[int, str]]:
        if not silent.search(text_of(path)):
            return []
        comments = (token for token in tokens_of(path) if token.type == tokenize.COMMENT)
        return [
            (comment.start[0], comment.string)
            for comment in comments
            if silent.search(comment.string)
        ]

    assert complaints(EVERYTHING, unexplained) == {}


def test_no_module_keeps_state() -> None:
    def state(path: Path) -> list[object]:
        tree = tree_of(path)
        found = list[object]()
        found += [node.lineno for node in nodes_of(path) if isinstance(node, ast.Global)]
        for node in tree.body:
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
                and is_mutable(node.value)
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [
                    name.id
                    for target in targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name)
                ]
                found += [
                    name for name in names if not name.isupper() and not name.startswith("__")
                ]
        return found

    assert complaints(SOURCES, state) == {}


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_MAKERS
    return isinstance(
        value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    )


def test_tests_wait_for_something_and_never_just_sleep() -> None:
    def sleeps(path: Path) -> list[int]:
        if "sleep" not in text_of(path):
            return []
        calls = [
            node
            for name, node in calls_of(path)
            if name.rpartition(".")[2] == "sleep" and node.args
        ]
        times = [(node.lineno, node.args[0]) for node in calls]
        return [
            line
            for line, seconds in times
            if isinstance(seconds, ast.Constant) and seconds.value != 0
        ]

    assert complaints(TESTS, sleeps) == {}


def test_a_file_of_tests_is_imported_by_nobody() -> None:
    """Helpers that others need are in modules without `test_` in their names."""

    def imported(path: Path) -> list[str]:
        modules = [node.module or "" for node in nodes_of(path) if isinstance(node, ast.ImportFrom)]
        return [module for module in modules if re.match(r"tests\b.*\btest_", module)]

    assert complaints(EVERYTHING, imported) == {}


def test_log_events_are_named_in_one_style() -> None:
    """A few words without an article, so that one can guess how to search for an event."""
    levels = {"debug", "info", "warning", "error", "critical"}
    style = re.compile(r"(?!(?:a|an|the) )[A-Za-z]+(?:[ '-][A-Za-z]+){0,6}")

    def odd(path: Path) -> list[str]:
        calls = [
            node
            for name, node in calls_of(path)
            if re.search(rf"log\.(?:{'|'.join(levels)})$", name)
        ]
        texts = [
            node.args[0].value
            for node in calls
            if node.args and isinstance(node.args[0], ast.Constant)
        ]
        return [str(text) for text in texts if not style.fullmatch(str(text))]

    assert complaints(SOURCES, odd) == {}


def test_a_skipped_test_says_why() -> None:
    def unexplained(path: Path) -> list[int]:
        if "skip" not in text_of(path) and "xfail" not in text_of(path):
            return []
        found = list[int]()
        nodes = nodes_of(path)
        for name, node in calls_of(path):
            if name == "pytest.skip" and not (node.args or node.keywords):
                found.append(node.lineno)
            is_mark = name in ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail")
            if is_mark and "reason" not in {keyword.arg for keyword in node.keywords}:
                found.append(node.lineno)
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        bare = [
            node for node in nodes if isinstance(node, ast.Attribute) and id(node) not in called
        ]
        marks = [node for node in bare if node.attr in ("skip", "xfail")]
        return found + [
            n.lineno for n in marks if ast.unparse(n) in ("pytest.mark.skip", "pytest.mark.xfail")
        ]

    assert complaints(TESTS, unexplained) == {}


def test_the_names_of_tests_are_sentences() -> None:
    def short(path: Path) -> list[str]:
        names = [node.name for node in functions_of(path) if node.name.startswith("test_")]
        return [name for name in names if len(name.split("_")) - 1 < MIN_WORDS]

    assert complaints(TESTS, short) == {}


@pytest.mark.parametrize("name", ["", "-dev", "-client", "-browser", "-witnesses"])
def test_locks_pin_by_hash_and_name_no_url(name: str) -> None:
    text = (ROOT / f"requirements{name}.lock").read_text()
    assert "://" not in text
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert len(requirements) > 1
    for requirement in requirements:
        assert re.match(
            r"[a-zA-Z0-9._-]+==[^\s;]+(?: ; [^\\]+)? \\\n {4}--hash=sha256:[0-9a-f]{64}",
            requirement,
        ), requirement


def test_a_struct_that_is_not_collected_holds_no_error_and_no_task() -> None:
    """Those have frames, and frames whatever led to them: a cycle that nobody would see, and that
    stays for good."""

    def holds_frames(path: Path) -> list[str]:
        uncollected = (
            each
            for each in classes_of(path)
            if re.search(r"\(FrozenStruct\b|gc=False", ast.unparse(each))
        )
        fields = (
            part for each in uncollected for part in each.body if isinstance(part, ast.AnnAssign)
        )
        return [
            text
            for text in map(ast.unparse, fields)
            if re.search(r"Error\b|Exception|\b(Task|Future)\b", text)
        ]

    assert complaints(SOURCES, holds_frames) == {}


def test_there_is_one_kind_of_lock() -> None:
    assert "uv.lock" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_make_target_has_its_line_of_help() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    assert targets == explained
    assert set(targets) == set(phony[1].split())
