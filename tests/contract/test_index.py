"""The index of promises: numbered without a gap, each with its proof, and every proof a test that
exists and runs."""

import ast
import tomllib
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INDEX = Path(__file__).with_name("index.toml")
# What the sections say today. A sentence that is dropped takes its promise with it: do not lower
# these lightly.
MIN_SENTENCES = {4: 62, 5: 20, 7: 15, 8: 19, 9: 24, 10: 7, 11: 20, 12: 40, 13: 28}


def sentences() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(INDEX.read_text())["sentence"]
    return found


@lru_cache
def proofs_in(path: Path) -> frozenset[str]:
    """The tests that a module has and that run by default."""
    functions = [
        n
        for n in ast.parse(path.read_text()).body
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    idle = ("pytest.mark.skip", "pytest.mark.xfail", "pytest.mark.chaos")
    return frozenset(
        f.name
        for f in functions
        if f.name.startswith("test_")
        and not any(ast.unparse(d).startswith(idle) for d in f.decorator_list)
    )


def missing(node: str) -> bool:
    path, separator, name = node.partition("::")
    file = ROOT / path
    return not (separator and file.is_file() and name in proofs_in(file))


def test_every_sentence_has_a_test_that_exists() -> None:
    assert [s["number"] for s in sentences() if not s["tests"]] == []
    gone = [(s["number"], node) for s in sentences() for node in s["tests"] if missing(node)]
    assert gone == []


def test_sentences_are_numbered_without_a_gap_and_say_something() -> None:
    numbers = [tuple(map(int, s["number"].split("."))) for s in sentences()]
    counts = {
        section: [n for _, n in group]
        for section, group in groupby(numbers, key=lambda number: number[0])
    }
    assert counts == {section: list(range(1, len(found) + 1)) for section, found in counts.items()}
    assert counts.keys() == MIN_SENTENCES.keys()
    assert [
        section for section, found in counts.items() if len(found) < MIN_SENTENCES[section]
    ] == []
    assert len({s["text"] for s in sentences()}) == len(numbers)
    assert all(s["text"].endswith(".") for s in sentences())


def test_a_test_that_does_not_exist_is_found() -> None:
    here = "tests/contract/test_index.py"
    assert not missing(f"{here}::test_a_test_that_does_not_exist_is_found")
    for node in (
        f"{here}::test_nothing_of_the_kind",
        "tests/contract/test_no.py::test_x",
        here,
        "",
        f"{here}::missing",
    ):
        assert missing(node)
