"""Identifiers: UUIDv7, lower case with dashes, made here and nowhere else."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NewType
from uuid import UUID

from asyncpg.pgproto import pgproto

from trading_intents.clock import Clock

OrganizationId = NewType("OrganizationId", UUID)
# The text of an id, in rows that are read, compared and written many times: a UUID takes ten times
# as long.
IdText = NewType("IdText", str)

IdMaker = Callable[[], UUID]
IdTextMaker = Callable[[datetime], str]
CHUNKS_AT_ONCE = 100

ID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
ID_RULE = "must be an id: a UUID in lower case with dashes"
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_ID = re.compile(ID_PATTERN.replace("$", r"\Z"))


def id_maker(clock: Clock) -> IdMaker:
    """Makes UUIDv7s: 48 bits of milliseconds, then 74 random ones."""
    make_text = id_text_maker()
    return lambda: _uuid(make_text(clock.now()))


def id_text_maker() -> IdTextMaker:
    """Like `id_maker`, but makes texts, and is fast for many of one moment."""
    chances = _random_chunks()
    last: datetime | None = None
    head = ""

    def make(at: datetime) -> str:
        nonlocal last, head
        if at is not last:
            last = at
            head = _head(at)
        return _format(head, next(chances))

    return make


def named_id(at: datetime, name: str) -> UUID:
    """A UUIDv7 made from a time and a name that nothing else has."""
    tail = hashlib.blake2b(name.encode(), digest_size=10).digest()
    return _uuid(_format(_head(at), tail))


def id_text(made: UUID) -> IdText:
    return IdText(str(made))


def _random_chunks() -> Iterator[bytes]:
    """Gives ten random bytes at a time, read from the kernel for many ids at once."""
    while True:
        many = os.urandom(10 * CHUNKS_AT_ONCE)
        for start in range(0, len(many), 10):
            yield many[start : start + 10]


def parse_id(text: str) -> UUID | None:
    """Accepts one spelling, else None: Python's UUID() takes braces, URNs and upper case too."""
    return _uuid(text) if _ID.match(text) else None


def _head(at: datetime) -> str:
    """The milliseconds and the version."""
    millis = f"{int(at.timestamp() * 1000):012x}"
    return f"{millis[:8]}-{millis[8:]}-7"


def _format(head: str, chance_bytes: bytes) -> str:
    chance = chance_bytes.hex()
    return f"{head}{chance[:3]}-{_VARIANT[chance[4]]}{chance[5:8]}-{chance[8:]}"


def _uuid(value: str) -> UUID:
    """Makes the database driver's own UUID: equal to Python's, and five times as fast."""
    made: UUID = pgproto.UUID(value)
    return made
