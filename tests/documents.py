"""Reads sections and tables of the documents."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def section(document: str, title: str) -> str:
    text = (ROOT / document).read_text()
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no section {title}"
    return found[1]


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the tables' rows whose first cell matches."""
    cells = [
        [cell.strip() for cell in line[1:].split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in cells if re.fullmatch(first, row[0])]
