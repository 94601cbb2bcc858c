"""The limits that keep the code readable, checked so that no review has to: sizes, names, state, sleeps, locks."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trading_intents"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_pb2" not in path.name)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCHES = sorted((ROOT / "bench").glob("*.py"))
EVERYTHING = [*SOURCES, *TESTS, *BENCHES]

MOST_LINES = 400
MOST_FUNCTION_LINES = 70
MOST_MODULES = 9
# The package's own folder holds the ground, a file for each job, and the composition root: no name would fit a folder.
MOST_TOP_MODULES = 12
MOST_DOCSTRING_LINES = 3
LEAST_WORDS = 3
BANNED = {"util", "utils", "common", "helper", "helpers", "manager", "base", "misc"}
# errors.py draws the whole tree of errors.
LONG_DOCSTRINGS = {"errors.py"}
MUTABLE_MAKERS = {"list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict", "bytearray"}

every_file = pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
every_test = pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def calls_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the name it is written by, such as `time.sleep`."""
    return ((ast.unparse(node.func), node) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


@every_file
def test_files_and_functions_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES
    lengths = {node.name: own_lines(node) for node in functions_of(path)}
    assert {name: length for name, length in lengths.items() if length > MOST_FUNCTION_LINES} == {}


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without the functions in it, which are measured by themselves."""
    inner = [node for node in function.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return span(function) - sum(map(span, inner))


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_folders_hold_few_modules() -> None:
    counts = Counter(path.parent for path in SOURCES if path.name not in ("__init__.py", "__main__.py"))
    assert counts.pop(PACKAGE) <= MOST_TOP_MODULES
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


@every_source
def test_a_module_says_its_job_in_a_line_or_two(path: Path) -> None:
    said = ast.get_docstring(tree_of(path))
    assert said
    if path.name not in LONG_DOCSTRINGS:
        assert len(said.splitlines()) <= MOST_DOCSTRING_LINES


@every_file
def test_names_say_what_a_thing_is(path: Path) -> None:
    classes = [node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    for name in (path.stem, path.parent.name, *classes):
        assert not words_of(name) & BANNED, name


@every_source
def test_no_amount_becomes_a_float(path: Path) -> None:
    if path.name != "telemetry.py":
        assert [node.lineno for name, node in calls_of(path) if name == "float"] == []


@every_file
def test_a_silenced_rule_says_why(path: Path) -> None:
    silent = re.compile(r"#\s*(?:type:\s*ignore(?:\[[^\]]*\])?|noqa(?::\s*[A-Z0-9, ]+?)?)\s*\Z")
    comments = [
        t for t in tokenize.generate_tokens(io.StringIO(path.read_text()).readline) if t.type == tokenize.COMMENT
    ]
    assert [(t.start[0], t.string) for t in comments if silent.search(t.string)] == []


@every_source
def test_no_module_keeps_state(path: Path) -> None:
    tree = tree_of(path)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_mutable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            assert [name for name in names if not name.isupper() and not name.startswith("__")] == []


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_MAKERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


@every_test
def test_tests_wait_for_something_and_never_just_sleep(path: Path) -> None:
    for name, node in calls_of(path):
        if name.rpartition(".")[2] == "sleep" and node.args and isinstance(node.args[0], ast.Constant):
            assert node.args[0].value == 0, f"line {node.lineno}"


@every_test
def test_a_skipped_test_says_why(path: Path) -> None:
    for name, node in calls_of(path):
        if name == "pytest.skip":
            assert node.args or node.keywords, f"line {node.lineno}"
        if name in ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"):
            assert "reason" in {keyword.arg for keyword in node.keywords}, f"line {node.lineno}"
    tree = tree_of(path)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    bare = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in called]
    assert [node.lineno for node in bare if ast.unparse(node) in ("pytest.mark.skip", "pytest.mark.xfail")] == []


@every_test
def test_the_names_of_tests_are_sentences(path: Path) -> None:
    names = [node.name for node in functions_of(path) if node.name.startswith("test_")]
    assert [name for name in names if len(name.split("_")) - 1 < LEAST_WORDS] == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_by_hash_and_name_no_place(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert len(requirements) > 10
    for requirement in requirements:
        assert re.match(r"[a-zA-Z0-9._-]+==[^\s;]+(?: ; [^\\]+)? \\\n {4}--hash=sha256:[0-9a-f]{64}", requirement), (
            requirement
        )


def test_there_is_one_kind_of_lock() -> None:
    assert "uv.lock" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_make_target_has_its_line_of_help() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z]+):", text, re.MULTILINE)
    explained = re.findall(r"^([a-z]+):.*## \S", text, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    assert targets == explained
    assert set(targets) == set(phony[1].split())
