"""The canonical text of an action, by a second hand."""

from typing import Any

ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def canonical(value: Any) -> str:
    """RFC 8785 by its text, and by nothing that the platform uses."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        points = map(ord, value)
        return (
            '"'
            + "".join(ESCAPES.get(p) or (f"\\u{p:04x}" if p < 32 else chr(p)) for p in points)
            + '"'
        )
    assert isinstance(value, dict)
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(f"{canonical(name)}:{canonical(value[name])}" for name in names) + "}"
