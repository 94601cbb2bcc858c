"""The table of decisions, made of their files: `python -m tests.decision_index` writes it."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
DECISIONS = sorted(
    [*FOLDER.glob("[0-9]*.md"), *FOLDER.glob("replaced/*.md")], key=lambda path: path.name
)
HEAD = """# Decisions

Why the platform is built as it is. `tests/decision_index.py` makes this table of the files.

| Number | Decision | State | Rules |
|---|---|---|---|
"""


def index() -> str:
    return HEAD + "".join(f"| {' | '.join(cells_of(path))} |\n" for path in DECISIONS)


def cells_of(path: Path) -> Iterator[str]:
    text = path.read_text()
    title = re.match(r"# (\d{4}): (.*)\n", text)
    assert title, f"{path.name} begins without its number and title"
    yield f"[{title[1]}]({path.relative_to(FOLDER)})"
    yield title[2]
    successor = replaced_by(text)
    yield f"replaced by {successor}" if successor else "holds"
    file = file_ruled(text)
    yield f"[`{file}`](../../{file})" if file else ""


def replaced_by(text: str) -> str | None:
    """The number of the decision that holds in its stead."""
    found = re.search(r"^Replaced by \[(\d{4})\]\(\.\./\1-[a-z-]+\.md\)\.$", text, re.MULTILINE)
    return found[1] if found else None


def file_ruled(text: str) -> str | None:
    found = re.search(r"^Rules `(.*)`\.$", text, re.MULTILINE)
    return found[1] if found else None


if __name__ == "__main__":
    INDEX.write_text(index())
