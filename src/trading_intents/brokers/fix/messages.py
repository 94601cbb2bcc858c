"""FIX messages: as bytes, and as they are numbered and stored. Pure, and without a meaning of any
message."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

from trading_intents.trading import FrozenStruct

MAX_BODY_BYTES = 65_536
SOH = "\x01"
# The tags that count the characters of the field after them, which may hold the separator.
_LENGTH_TAGS = frozenset({90, 93, 95, 212, *range(348, 365, 2)})
_HEAD = re.compile(rb"8=FIX[^\x01]{1,8}\x019=(\d{1,9})\x01")  # the length may have leading zeros
_HEAD_BYTES = 27  # at most
_SECRET = re.compile(rb"(?<=\x01)(554|925|96|89|91)=[^\x01]*")
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d):(\d\d):([0-5]\d|60)(?:\.(\d{1,6})\d*)?", re.ASCII)

Fields = Sequence[tuple[int, str]]


class FixMessage:
    """A message's fields in their order, without those that frame it: the length and the
    checksum."""

    __slots__ = ("_first", "fields", "raw", "type")

    def __init__(self, fields: Fields, raw: bytes = b"") -> None:
        self.fields = fields
        self.raw = raw
        self._first = dict(reversed(fields))
        self.type = self.get(35)

    def get(self, tag: int) -> str:
        """The first field with this tag; empty if there is none."""
        return self._first.get(tag, "")

    def find(self, tag: int) -> str | None:
        """Likewise, but None if it is empty or missing."""
        return self._first.get(tag) or None

    def has(self, tag: int) -> bool:
        return tag in self._first

    def number(self, tag: int) -> int | None:
        """None: it is missing, or no number."""
        text = self.get(tag)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def encode(begin_string: str, fields: Iterable[tuple[int, str]]) -> bytes:
    """ValueError: a value holds the separator."""
    texts = [f"{tag}={value}{SOH}" for tag, value in fields]
    text = "".join(texts)
    if text.count(SOH) != len(texts):
        raise ValueError("a value holds the separator")
    data = text.encode("latin-1", "replace")
    framed = b"8=%b\x019=%d\x01%b" % (begin_string.encode(), len(data), data)
    return framed + _checksum(framed)


def _checksum(framed: bytes) -> bytes:
    return b"10=%03d\x01" % (sum(framed) % 256)


class Framer:
    """Cuts bytes into messages. Garbled bytes are left out, as the standard says: the sequence
    numbers show the gap."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[FixMessage | None]:
        """Yields None for what was garbled."""
        self._buffer += data
        while True:
            start = self._buffer.find(b"8=FIX")
            if start:
                # The last bytes may be the beginning of a message.
                skipped = start if start > 0 else max(0, len(self._buffer) - 4)
                del self._buffer[:skipped]
                if skipped:
                    yield None
                if start < 0:
                    return
            head = _HEAD.match(self._buffer)
            if head is None or int(head[1]) > MAX_BODY_BYTES:
                if head is None and len(self._buffer) < _HEAD_BYTES and self._buffer.count(1) < 2:
                    return
                del self._buffer[:5]
                yield None
                continue
            end = head.end() + int(head[1])
            if len(self._buffer) < end + 7:
                return
            yield self._cut(head.end(), end)

    def _cut(self, begin: int, end: int) -> FixMessage | None:
        """Takes the message whose body begins and ends there; None: it was garbled."""
        raw = bytes(self._buffer[: end + 7])
        is_sound = raw.startswith(b"35=", begin) and raw[end:] == _checksum(raw[:end])
        # A wrong length may reach into the next message.
        del self._buffer[: len(raw) if is_sound else end]
        fields = _split(raw[:end]) if is_sound else None
        return None if fields is None else FixMessage(fields, raw)


def _split(data: bytes) -> list[tuple[int, str]] | None:
    """The fields but for the length. None: one of them is none."""
    fields: list[tuple[int, str]] = []
    # No table can hold a text with a NUL.
    text = data.decode("latin-1").replace("\0", "?")
    parts = iter(text.removesuffix(SOH).split(SOH))
    counted: int | None = None
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name.isdecimal() or len(name) > 6:
            return None
        if counted is not None:
            pieces = [value]
            left = counted - len(value)
            while left > 0 and (more := next(parts, None)) is not None:
                pieces.append(more)
                left -= len(more) + len(SOH)
            if left:
                return None
            value = SOH.join(pieces)
        tag = int(name)
        counted = (
            int(value) if tag in _LENGTH_TAGS and value.isdecimal() and len(value) < 6 else None
        )
        if tag != 9:
            fields.append((tag, value))
    return fields


def parse(raw: bytes) -> FixMessage:
    """One whole message, as it was stored; without fields, if it was masked."""
    return next(Framer().feed(raw), None) or FixMessage(())


def masked(raw: bytes) -> bytes:
    """The message without its secrets. Its length and checksum are of the one that was sent."""
    return _SECRET.sub(rb"\1=***", raw)


def readable(raw: bytes) -> str:
    return "".join(
        each if each.isprintable() else "?" for each in raw.decode("latin-1").replace(SOH, "|")
    )


def time_text(at: datetime) -> str:
    return f"{at:%Y%m%d-%H:%M:%S}.{at.microsecond // 1000:03}"


def parse_time(text: str) -> datetime | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    micros = int((found[7] or "0").ljust(6, "0"))
    try:  # of a leap second, the one before
        at = datetime(year, month, day, hour, minute, tzinfo=UTC)
        return at.replace(second=min(second, 59), microsecond=micros)
    except ValueError:
        return None


class SessionEnded(Exception):
    """Says why a session is over, scrubbed. `logout`: the counterparty's own words, if it sent
    some."""

    def __init__(self, reason: str, logout: str = "") -> None:
        super().__init__(reason)
        self.logout = logout


class NotStored(Exception):
    """The message was not stored, and will never be sent."""


class SessionTaken(Exception):
    """Another session has changed the numbers, or another worker has the session; nothing was
    stored."""


class Numbers(FrozenStruct):
    """The numbers of the next message in each direction. `epoch` counts the resets."""

    epoch: int = 1
    next_in: int = 1
    next_out: int = 1


class SentMessage(FrozenStruct, kw_only=True):
    """`client_order_id`: it is a command, and sent again until it is answered; `not_after`: in
    monotonic seconds, it is not written then. Both None: it is never sent again."""

    epoch: int
    number: int
    type: str
    raw: bytes
    client_order_id: str | None = None
    not_after: float | None = None


class RefusedMessage(FrozenStruct):
    type: str
    client_order_id: str


class ReceivedMessage(FrozenStruct):
    """`refused`: the command that a reject names by its number."""

    epoch: int
    number: int
    message: FixMessage
    refused: RefusedMessage | None = None


class MessageStore(Protocol):
    async def write(
        self, numbers: Numbers, received: Sequence[ReceivedMessage], sent: Sequence[SentMessage]
    ) -> Sequence[ReceivedMessage]:
        """All in one transaction. Gives what was received, with the commands that it refuses.
        SessionTaken; OutcomeUnknown: perhaps."""

    async def take_resend(self, epoch: int, first: int, last: int) -> tuple[list[SentMessage], int]:
        """The commands among these numbers that have no answer, the first of them; and how many
        were too old just now, which are never sent from now on. SessionTaken."""


class SessionRules(FrozenStruct, kw_only=True):
    begin_string: str
    sender: str
    target: str
    is_initiator: bool
    heartbeat_seconds: int = 30
    resets: bool = False  # the logon begins a new epoch
    has_reset_flag: bool = True  # and says so (141)
    logon_fields: Fields = ()
    max_skew_seconds: float = 120.0

    def encode(
        self, msg_type: str, number: int, fields: Fields, now: datetime, orig_time: str = ""
    ) -> bytes:
        """`orig_time`: it is sent again."""
        header = [(35, msg_type), (34, str(number))]
        if orig_time:
            header.append((43, "Y"))
        header += [(49, self.sender), (52, time_text(now)), (56, self.target)]
        if orig_time:
            header.append((122, orig_time))
        return encode(self.begin_string, [*header, *fields])

    def encode_again(self, sent: SentMessage, now: datetime) -> bytes:
        message = parse(sent.raw)
        body = [each for each in message.fields if each[0] not in (8, 34, 35, 49, 52, 56)]
        return self.encode(sent.type, sent.number, body, now, message.get(52))


# SessionRejectReason, in the standard's words; those below 0 are ours: there is no answer to such a
# message.
REASONS = {
    -2: "MsgSeqNum is missing",
    -1: "Incorrect BeginString",
    1: "Required tag missing",
    4: "Tag specified without a value",
    5: "Value is incorrect (out of range) for this tag",
    9: "CompID problem",
    10: "SendingTime accuracy problem",
    11: "Invalid MsgType",
}
ENDING = frozenset({-2, -1, 9, 10})  # the session is over


MessageFault = tuple[int, int | None]  # a reason, and the tag


def find_fault(message: FixMessage, rules: SessionRules, now: datetime) -> MessageFault | None:
    """Says why a message cannot be taken. Looks at what every message must have, in the standard's
    order."""
    if message.get(8) != rules.begin_string:
        return -1, None
    if message.number(34) is None:
        return -2, None
    for tag in (49, 56, 52):
        if not message.get(tag):
            return (4 if message.has(tag) else 1), tag
    if message.get(49) != rules.target or message.get(56) != rules.sender:
        return 9, None
    if fault := _find_time_fault(message, rules.max_skew_seconds, now):
        return fault
    return None if message.type.isalnum() and len(message.type) < 4 else (11, None)


def _find_time_fault(
    message: FixMessage, max_skew_seconds: float, now: datetime
) -> MessageFault | None:
    at = parse_time(message.get(52))
    if at is None:
        return 10, None
    if max_skew_seconds and abs((now - at).total_seconds()) > max_skew_seconds:
        return 10, None
    if message.get(43) != "Y" or message.type == "4":
        return None
    if not message.get(122):
        return 1, 122
    first = parse_time(message.get(122))
    if first is None or first.replace(microsecond=0) > at:
        return 10, None
    return None
