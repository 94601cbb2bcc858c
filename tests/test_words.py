"""Words that only we understood do not come back: in names, docstrings, comments, messages and
documents."""

import ast
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sources import (
    EVERYTHING,
    PACKAGE,
    ROOT,
    SERVER_SOURCES,
    complaints,
    functions_of,
    nodes_of,
    statements_of,
    text_of,
    tokens_of,
    words_of,
)

pytestmark = pytest.mark.sources

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("sdk*/*.md")])
DOCUMENTS += sorted((ROOT / "brokers").glob("*/*.md"))
SCRIPTS = sorted(
    [
        *(PACKAGE / "console" / "static").glob("*.*"),
        *(ROOT / "tests" / "console").glob("*.*ts"),
        *(ROOT / "sdk-ts" / "src").glob("*.ts"),
        *(ROOT / "tests" / "sdk_ts" / "programs").glob("*.*ts"),
    ]
)
FILES = [path for path in (*EVERYTHING, *EXAMPLES, *DOCUMENTS, *SCRIPTS) if path != Path(__file__)]
QUESTIONS = re.compile(r"(?:What|Who|Whom|Whose|Whoever|Whatever|Where|Which|When|Why|How)\b")


@dataclass(frozen=True)
class OldWord:
    """A word that is not used any more: as a name, as a part of one, or in a sentence."""

    pattern: str
    # Lines that may have it, because others read it by that name: columns, capabilities, log
    # events, metrics.
    allowed: str
    # Files where it means what it means elsewhere.
    ordinary: tuple[str, ...] = ()


OLD_WORDS = {
    # A broker reports, a command shows, the API answers, the stream delivers, a row records.
    "tell": OldWord(
        r"(?<![a-z])(?:[Tt]old|TOLD|[Rr]e(?:told|tells?)|RETOLD|[Tt]ells?|TELLS|[Tt]elling)(?![a-z])",
        r"is_retold|told_(?:stop|at)\b|tells_(?:positions|balances)|\btold=fact",
    ),
    # A session, a pipeline, a connection, a pgconn. Ordinary are hyperlinks and linked orders.
    "link": OldWord(
        r"(?<![a-z])(?:[Ll]inks?|LINKS?)(?![a-z])|[a-z]Links?\b",
        r"link_(?:generation|wanted)|execution_links|broker link "
        r"ended|break_link|BREAK_LINK|os\.link|[Hh]ard link|"
        r"response\.links|symlink|find-links|brokers? links?|not link\b|links it to|deciding\.links|Alpaca links|"
        r"links_(?:exits|pairs)|LINKS_(?:EXITS|PAIRS)|LINKED|console-links|\"link\", \"set\"|link (?:add|set) ",
        ordinary=(
            *(
                "README.md",
                "CHANGELOG.md",
                "docs/api/",
                "docs/console.md",
                "docs/decisions/0027",
                "docs/security.md",
            ),
            *(
                "docs/operating/README.md",
                "src/trading_intents/cli.py",
                "src/trading_intents/console/",
            ),
            *(
                "src/trading_intents/processes/command.py",
                "src/trading_intents/provision.py",
                "tests/console/",
            ),
            *(
                "src/trading_intents/web/",
                "tests/access/test_headers.py",
                "tests/execution/test_csv.py",
            ),
            *("tests/test_docs.py", "tests/web/"),
        ),
    ),
    # An account's symbol, an index, a rank, a seq, a pointer. Orders are placed, and decimals have
    # places.
    "place": OldWord(
        r"\b(?:[Aa]n?|[Tt]he|[Ii]ts|[Tt]heir|this|that|[Ee]ach|[Ee]very|[Nn]o|own|same|another|new|one|two|three|of) "
        r"places?\b|(?<![.\w])_?places?\b(?=[:,)\].=\[(]| in\b| for\b| [-+=%<>])|[a-z]Places?\b|\bPlaces?\b(?=[:,)\]])|"
        r"_places?\b|(?<![A-Z])PLACES?\b",
        # A function that places an order.
        r"places?: int|"
        r"def place\b|await place\(|\*place\(|[Dd]ecimals?\b|MIN_(?:PRICE_)?PLACES|places=9|places, replaces",
        ordinary=("sdk/src/trading_intents_client/cli/tables.py", "tests/web/"),
    ),
    # An account, callers at once, a fixture that opens a client.
    "desk": OldWord(
        r"(?<![a-z])(?:desks?|[Cc]rowds?|CROWD|[Oo]pener)(?![a-z])",
        r"[Oo]pener-[Pp]olicy|METAPHORS",
    ),
}


def lines_with(word: OldWord) -> Iterator[tuple[str, str]]:
    """The lines that have the old word, with their files."""
    pattern = re.compile(word.pattern)
    allowed = re.compile(word.allowed)
    for path in FILES:
        name = str(path.relative_to(ROOT))
        text = path.read_text()
        if name.startswith(word.ordinary) or not pattern.search(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line) and not allowed.search(line):
                yield name, f"{number}: {line.strip()}"


@pytest.mark.parametrize("word", OLD_WORDS.values(), ids=OLD_WORDS)
def test_an_old_word_does_not_come_back(word: OldWord) -> None:
    assert list(lines_with(word)) == []


def docstrings_of(path: Path) -> Iterator[str]:
    for node in statements_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_a_docstring_begins_with_a_subject_or_a_verb() -> None:
    found = [
        (str(path.relative_to(ROOT)), text) for path in EVERYTHING for text in docstrings_of(path)
    ]
    assert [(name, text) for name, text in found if QUESTIONS.match(text)] == []


@dataclass(frozen=True)
class Meaning:
    """A word that means one thing in names, and the files where something has that name."""

    forms: frozenset[str]
    files: tuple[str, ...] = ()


ONE_MEANING = {
    # To end an order's uncertainty by a look-up: so far nothing is named by it.
    "settle": Meaning(frozenset({"settle", "settles", "settled", "settler", "settling"})),
    # A worker's transaction: so far nothing is named by it. A tenant's share of a loop is its slot.
    "turn": Meaning(frozenset({"turn", "turns"})),
    # The durable `sent_at`; and `restore --mark`, an operator's word.
    "mark": Meaning(
        frozenset({"mark", "marks", "marked", "marking"}),
        ("execution/", "outbox/intents_queue.py", "recovery/commands.py"),
    ),
    # PostgreSQL's. `plans` says how a transaction's statements are planned.
    "plan": Meaning(frozenset({"plan", "planned"}), ("storage/",)),
}


@pytest.mark.parametrize("word", ONE_MEANING)
def test_a_word_has_one_meaning_in_names(word: str) -> None:
    meaning = ONE_MEANING[word]

    def others(path: Path) -> set[str]:
        if str(path.relative_to(PACKAGE)).startswith(meaning.files or ("nothing",)):
            return set()
        # Reading tokens takes seconds for everything: most files have no such word.
        if not re.search(
            rf"(?<![a-z])(?:{'|'.join(meaning.forms)})(?![a-z])", text_of(path), re.IGNORECASE
        ):
            return set()
        names = {token.string for token in tokens_of(path) if token.type == tokenize.NAME}
        return {name for name in names if words_of(name) & meaning.forms}

    assert complaints(SERVER_SOURCES, others) == {}


@pytest.mark.parametrize("name", ["decide", "render", "lock_orders", "keep_up"])
def test_a_function_name_has_one_meaning(name: str) -> None:
    found = [path for path in SERVER_SOURCES for each in functions_of(path) if each.name == name]
    assert len(found) <= 1, found


def test_a_row_is_read_by_its_fields() -> None:
    """A statement's columns are the fields of a struct: `Row(**record)`."""

    def by_key(path: Path) -> list[str]:
        subscripts = [node for node in nodes_of(path) if isinstance(node, ast.Subscript)]
        return [text for text in map(ast.unparse, subscripts) if re.match(r"row\['", text)]

    assert complaints(SERVER_SOURCES, by_key) == {}
