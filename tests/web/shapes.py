"""Texts and documents that are hard on parsers, as large as they are allowed to be."""

import json

TEXTS = {
    "brackets": "[",
    "pairs of brackets": "[]",
    "braces": "{",
    "quotes": '"',
    "quoted tags": '"1",',
    "backticks": "`",
    "commas": ",",
    "colons": ":",
    "dots": ".",
    "slashes": "/",
    "backslashes": "\\",
    "spaces": " ",
    "digits": "1",
    "letters": "a",
    "known names": "client_reference_id",
    "parameters": "a=1&",
    "percent signs": "%",
    "percent escapes": "%41",
    "escaped and raw": "%FFé",
    "places": " - at `$[",
}


def text(unit: str, size: int) -> str:
    """The unit, repeated, in at most so many bytes."""
    return unit * (size // len(unit.encode()))


def documents(size: int) -> dict[str, bytes]:
    """Bodies of at most that size: structures, and an object whose field or value is one of the
    texts."""

    def repeat(begin: bytes, unit: bytes, end: bytes) -> bytes:
        return begin + unit * ((size - len(begin + end)) // len(unit)) + end

    keys = b",".join(b'"%x":0' % number for number in range(size // 10))
    made = {
        "lists": repeat(b'{"a":1,"b":[', b"[],", b"[]]}"),
        "objects": repeat(b'{"a":[', b"{},", b"{}]}"),
        "objects with a key": repeat(b'{"a":[', b'{"":""},', b"{}]}"),
        "lists in lists": repeat(b'{"a":1,"b":[', b"[" * 14 + b"]" * 14 + b",", b"[]]}"),
        "too deep": b"[" * (size // 2) + b"]" * (size // 2),
        "without an end": b'{"a":' * (size // 5),
        "keys": b"{%s}" % keys[:size].rpartition(b",")[0],
        "strings": repeat(b'{"a":1,"b":[', b'"",', b'""]}'),
        "zeros": repeat(b'{"a":1,"b":[', b"0,", b"0]}"),
        "floats": repeat(b'{"a":1,"b":[', b"1e9,", b"0]}"),
        "longer floats": repeat(b'{"a":1,"b":[', b"1.25e9,", b"0]}"),  # fewer than are too many
        "numbers of 64 digits": repeat(b'{"a":1,"b":[', b"1" * 64 + b",", b"0]}"),
        "long numbers": repeat(b'{"a":1,"b":[', b"1" * 4300 + b",", b"0]}"),
        "one number": b"1" * size,
        "nothing but quotes": b'"' * size,
        "escapes": repeat(b'{"a":1,"b":"', rb"\u0041", b'"}'),
        "white space": repeat(b'{"a"', b" ", b":1}"),
    }
    for name, unit in TEXTS.items():
        written = json.dumps(unit, ensure_ascii=False).encode()[1:-1]
        made[f"a field of {name}"] = repeat(b'{"', written, b'":1}')
    made["a field at a path"] = repeat(b'{" - at `$', b"[", b'":1}')
    made["a value at a path"] = repeat(b'{"command":{"type":" - at `$', b"[", b'"}}')
    return made
