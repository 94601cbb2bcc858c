"""Alerts for operators: rules, dashboard and log events name what exists, and each says what to
do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tests.documents import rows, section
from tests.sources import PACKAGE, SERVER_SOURCES, calls_of, functions_of, text_of, tree_of
from tests.watched import alert_rules
from trading_intents.telemetry import Log, Metrics, TrafficLog

RUNBOOKS = "docs/operating/alerts.md"
LOG = "docs/operating/log.md"
MAX_RULES = 11
LEVELS = ("warning", "error", "critical")


def test_rules_are_few_and_each_has_a_runbook() -> None:
    found = alert_rules()
    assert len(found) <= MAX_RULES
    titles = re.findall(r"^### (\w+)$", section(RUNBOOKS, "Alerts"), re.MULTILINE)
    assert sorted(titles) == sorted(rule["alert"] for rule in found)
    for rule in found:
        assert rule["annotations"]["runbook"] == f"{RUNBOOKS}#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_line_of_a_minute_has_rates_and_times() -> None:
    metrics = Metrics()
    log = Recorded()
    metrics.requests.count("/v1/accounts", 200, 1.0)
    traffic = TrafficLog(metrics, cast(Log, log))
    for millis in (3, 3, 3, 3000):
        metrics.requests.count("/v1/accounts/{account_id}/intents", 201, millis / 1000)
    for _ in range(100):
        metrics.requests.count("/readyz", 200, 9.0)
    metrics.orders.labels("paper", "paper").inc(120)
    metrics.fills.labels("paper", "paper").inc(60)
    metrics.fills.labels("acme", "live").inc(60)
    metrics.execution_call_seconds.labels("submit").observe(99.0)
    traffic.write()
    traffic.write()
    (event, first), (_, second) = log.lines
    assert event == "traffic"
    assert first == {
        "requests": 0.07,
        "orders": 2.0,
        "fills": 2.0,
        "rejects": 0.0,
        "deliveries": 0.0,
        "request_p50_ms": 5.0,
        "request_p99_ms": 5000.0,
        "commit_p50_ms": None,
        "commit_p99_ms": None,
        "broker_p50_ms": None,
        "broker_p99_ms": None,
    }
    assert set(second.values()) == {0.0, None}


class Recorded:
    """A log of what was said at level info."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))


def test_every_warning_of_the_source_is_documented_and_no_other() -> None:
    documented = [row[0].strip("`") for row in rows(section(LOG, "Log events"), r"`.*`")]
    assert len(documented) == len(set(documented))
    assert sorted(documented) == sorted(
        {"library message", *(event for path in SERVER_SOURCES for event in events(path))}
    )


def events(path: Path) -> Iterator[str]:
    """The file's log events of level warning or worse. A function may be handed the text: then its
    callers have it."""
    constants = {
        target.id: node.value
        for node in tree_of(path).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    calls = log_calls(path)
    said = [call.args[0] for call in calls]
    passing: dict[str, int] = {}  # functions that log their argument, and its position in a call
    for function in functions_of(path) if any(isinstance(text, ast.Name) for text in said) else ():
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        inner = {id(node) for node in ast.walk(function)}
        for text in said:
            if isinstance(text, ast.Name) and text.id in names and id(text) in inner:
                passing[function.name] = names.index(text.id)
    for name, call in calls_of(path) if passing else ():
        if (index := passing.get(name.rpartition(".")[2])) is not None:
            said.append(call.args[index])
    said += [call.args[1] for name, call in calls_of(path) if name == "log_failures"]
    for text in said:
        parts = [
            constants.get(part.id, part) if isinstance(part, ast.Name) else part
            for part in ast.walk(text)
        ]
        mapped = [value for part in parts if isinstance(part, ast.Dict) for value in part.values]
        found = [
            part.value
            for part in [*parts, *mapped]
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        assert found or isinstance(text, ast.Name), (
            f"{path.relative_to(PACKAGE)}, line {text.lineno}: says no event"
        )
        yield from found


def log_calls(path: Path) -> list[ast.Call]:
    if not any(f".{level}(" in text_of(path) for level in LEVELS):
        return []  # looking at every call of every file takes seconds
    ends = tuple(f"log.{level}" for level in LEVELS)
    return [
        call
        for name, call in calls_of(path)
        if (name.endswith(ends) or name == "log") and call.args
    ]
