"""The documents name what exists, all of it and nothing else, and their links lead somewhere."""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from tests.decision_index import DECISIONS, INDEX, file_ruled, index, replaced_by
from tests.documents import ROOT, rows, section
from tests.order_states import BEFORE, STATES, derived, written
from tests.platform import Platform
from trading_intents import config
from trading_intents.brokers.port import ENTRY_POINT_GROUP
from trading_intents.cli import cli
from trading_intents.config import Rate
from trading_intents.errors import wire_errors
from trading_intents.orders.model import OrderStatus
from trading_intents.secret import Secret
from trading_intents.telemetry import AlertKind, Metrics
from trading_intents_client.cli import program

pytest_plugins = ("tests.started_dirs",)

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("sdk*/*.md")])
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
MAX_DECISION_LINES = 38  # behind its head
MAX_MAP_LINE = 140  # without the targets of its links


def named_items(text: str, name: str) -> set[str]:
    """The names with which the items of the lists begin."""
    return set(re.findall(rf"^- `({name})`", text, re.MULTILINE))


def test_every_setting_is_documented_with_its_default() -> None:
    found = rows(section("docs/operating/configure.md", "Settings"), r"`[A-Z_]+`")
    documented = {row[0].strip("`"): row[1].strip("`") for row in found}
    ours = {f.name.upper(): shown(f.default) for f in config.declared()}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        ours |= {each.name: each.default for each in point.load().settings}
    assert documented == ours
    assert len(found) == len(ours)


def shown(default: object) -> str:
    match default:
        case bool():
            return "on" if default else "off"
        case Rate(per_second, burst):
            return f"{per_second}/{burst}"
        case tuple():
            return ",".join(default)
        case Secret():
            return default.reveal()
        case _:
            return str(default)


def test_every_metric_is_documented() -> None:
    collected = {
        m.name + ("_total" if m.type == "counter" else "") for m in Metrics().registry.collect()
    }
    # As every program has them.
    collected = {name for name in collected if not name.startswith("process_")}
    assert named_items(section("docs/operating/watch.md", "Metrics"), r"ti_\w+") == collected


def test_every_kind_of_alert_is_documented() -> None:
    found = section("docs/operating/alerts.md", "When execution raises an alert")
    assert named_items(found, r"\w+") == set(get_args(AlertKind))


def test_every_command_is_documented() -> None:
    documents = ("docs/operating/README.md", "docs/trading.md")
    found = [
        row
        for document in documents
        for row in rows(section(document, "Commands"), r"`trading-intents .*`")
    ]
    known = [typer.main.get_command(one) for one in (program.cli, cli)]
    assert {row[0].strip("`") for row in found} == {
        name for one in known for name in commands_of(one, "trading-intents")
    }


def commands_of(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name
        return
    if command.name == "fix":  # an integration's: they are loaded when they are asked for
        command.list_commands(None)
        children = command.commands
    for child_name, child in children.items():
        yield from commands_of(child, f"{name} {child_name}")


def test_every_route_is_documented_with_an_example(platform: Platform) -> None:
    paths = platform.client.get("/openapi.json").json()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    documented = [entry for page in API_PAGES for entry in endpoints_of(page)]
    assert sorted(route for route, _ in documented) == sorted(served)
    for route, text in documented:
        path = route.split()[1].partition("{")[0]
        assert f"127.0.0.1:8080{path}" in text, f"{route} has no example"


def endpoints_of(page: Path) -> list[tuple[str, str]]:
    """The endpoints that a page describes, each with its text."""
    parts = re.split(r"^##+ `(.*)`$", page.read_text(), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_the_index_of_the_api_leads_to_every_endpoint() -> None:
    index = (ROOT / "docs/api/README.md").read_text()
    linked = re.findall(r"^\| \[`(.*)`\]\(([\w-]+\.md)#", index, re.MULTILINE)
    assert linked == [
        (route, page)
        for page in pages_of(index)
        for route, _ in endpoints_of(ROOT / "docs/api" / page)
    ]
    described = [page.name for page in API_PAGES if endpoints_of(page)]
    assert sorted(pages_of(index)) == described


def pages_of(index: str) -> list[str]:
    return re.findall(r"^### \[.*\]\((.*)\)$", index, re.MULTILINE)


def test_every_path_named_in_the_pages_of_the_api_is_served(platform: Platform) -> None:
    paths = platform.client.get("/openapi.json").json()["paths"]
    known = [re.compile(re.sub(r"{\w+}", r"[^/]+", path) + r"\Z") for path in paths]
    text = "".join(page.read_text() for page in API_PAGES)
    for named in re.findall(r"127\.0\.0\.1:8080(/[^\s?\"']*)", text):
        assert any(pattern.match(named) for pattern in known), named


def test_every_error_that_can_be_answered_is_documented() -> None:
    found = [
        (int(row[0]), row[1].strip("`"))
        for row in rows((ROOT / "docs/api/errors.md").read_text(), r"\d{3}")
    ]
    assert set(found) == {(error.status, error.code) for error in wire_errors()}
    assert [status for status, _ in found] == sorted(status for status, _ in found)


def test_every_part_of_the_package_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    parts = [
        path
        for path in (ROOT / "src" / "trading_intents").iterdir()
        if not path.name.startswith("_")
    ]
    names = [
        f"{path.name}/" if path.is_dir() else path.name for path in parts if path.suffix != ".typed"
    ]
    assert [name for name in names if f"`{name}" not in text] == []


def test_the_map_has_one_short_line_for_a_path() -> None:
    paths = rows(section("ARCHITECTURE.md", "Where things are"), r".*`.*")
    texts = [re.sub(r"\]\([^)]*\)", "]", "|".join(row)) for row in paths]
    assert [text for text in texts if len(text) > MAX_MAP_LINE] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles
            ], target


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_short_and_says_why(decision: Path) -> None:
    text = decision.read_text()
    assert (decision.parent.name == "replaced") == bool(replaced_by(text))
    if replaced_by(text):
        return
    file = file_ruled(text) or "nothing"
    assert (ROOT / file).is_file(), f"{decision.name} rules {file}, which is no file"
    assert len(text[text.index("## Context") :].splitlines()) <= MAX_DECISION_LINES
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_the_index_of_decisions_has_each_with_its_state_and_its_file() -> None:
    assert INDEX.read_text() == index(), "python -m tests.decision_index"


def test_the_life_of_an_order_is_shown_as_the_code_has_it() -> None:
    assert STATES.read_text() == written(), "python -m tests.order_states"


def test_an_order_comes_to_each_state_that_is_shown() -> None:
    for name, (facts, pending) in BEFORE.items():
        assert derived(facts, pending).status == name.split()[0]
    assert {name.split()[0] for name in BEFORE} == set(OrderStatus)


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [path.name[:5] for path in DECISIONS] == [
        f"{n:04}-" for n in range(1, len(DECISIONS) + 1)
    ]


def test_every_file_and_function_of_the_walk_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    walk = text[text.index("## The walk of one intent") : text.index("## Transactions and locks")]
    package = ROOT / "src" / "trading_intents"
    everything = {
        str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")
    }
    files = set(re.findall(r"`([\w/]+\.py)`", walk))
    assert len(files) > 20
    assert [
        name for name in files if not any(f"/{path}".endswith(f"/{name}") for path in everything)
    ] == []
    calls = re.findall(r"`(?:\w+\.)*(\w+)\(\)`", walk)
    methods = re.findall(r"`[A-Z]\w+\.(\w+)`", walk)
    functions = {*calls, *methods}
    assert functions >= {"decide", "identify"}
    assert [
        name
        for name in functions
        if not any(f"def {name}(" in source for source in everything.values())
    ] == []
