"""The reads of each statement, as the server's auto_explain logs them: rows of every scan, and
blocks."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.intents.http_client import Tables

SETTINGS = {
    "session_preload_libraries": "'auto_explain'",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_parameter_max_length": "0",
}
ENTRY = re.compile(r"^\S.*? LOG:  duration: .* plan:\n((?:\t.*\n)+)", re.MULTILINE)


@dataclass
class StatementCost:
    """The most that one run of the statement read."""

    rows: float = 0
    blocks: int = 0
    plan: str = ""

    def add(self, reported: dict[str, Any]) -> None:
        plan = reported["Plan"]
        rows = _rows(plan)
        blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.blocks = max(self.blocks, blocks)
        if rows >= self.rows:
            self.rows = rows
            self.plan = "\n".join(_lines(plan))


def _rows(plan: dict[str, Any]) -> float:
    """Rows that its scans of tables and indexes read, those that filters removed among them."""
    rows = 0.0
    if "Relation Name" in plan or "Index Name" in plan:
        removed = plan.get("Rows Removed by Filter", 0) + plan.get(
            "Rows Removed by Index Recheck", 0
        )
        rows = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return rows + sum(map(_rows, plan.get("Plans", ())))


def _lines(plan: dict[str, Any], depth: int = 0) -> Iterator[str]:
    names = (plan.get(name) for name in ("Relation Name", "Index Name", "Index Cond", "Filter"))
    read = (
        f"{plan['Actual Rows']} x {plan['Actual Loops']}, removed "
        f"{plan.get('Rows Removed by Filter', 0)}"
    )
    yield " | ".join(["  " * depth + plan["Node Type"], *filter(None, names), read])
    for part in plan.get("Plans", ()):
        yield from _lines(part, depth + 1)


@dataclass
class ExplainedStatements:
    """The statements of one database, of all sessions that begin after `explain`."""

    tables: Tables
    _log: Path = field(init=False)
    _start: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._log = Path(self.tables.value("SHOW data_directory")).parent / "postgres.log"

    def explain(self) -> None:
        name = self.tables.value("SELECT current_database()")
        for setting, value in SETTINGS.items():
            self.tables.execute(f"ALTER DATABASE {name} SET {setting} = {value}")

    def begin(self) -> None:
        self._start = self._log.stat().st_size

    def end(self) -> dict[str, StatementCost]:
        """By its text, the cost of each statement since `begin`."""
        with self._log.open("rb") as file:
            file.seek(self._start)
            text = file.read().decode(errors="replace")
        costs: dict[str, StatementCost] = {}
        for entry in ENTRY.finditer(text):
            reported = json.loads(entry[1])
            costs.setdefault(" ".join(reported["Query Text"].split()), StatementCost()).add(
                reported
            )
        return costs
