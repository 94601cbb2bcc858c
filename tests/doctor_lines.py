"""Reads what `doctor` prints."""

import re


def lines_of(text: str) -> dict[str, str]:
    """The lines of `doctor` by subject, the state first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        state, subject, rest = re.split(r" +", line, maxsplit=2)
        found[subject] = f"{found.get(subject, '')}{state}: {rest}\n"
    return found
