"""An event as the text of a text/event-stream: JSON by protobuf's own rules, with the field names
of the proto."""

from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.timestamp_pb2 import Timestamp

from trading_intents.clock import rfc3339
from trading_intents.stream.trading_pb2 import TradingEvent

HEARTBEAT = b": heartbeat\n\n"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """A TradingEvent as bytes and as text, each made once for all subscribers."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def text(self) -> bytes:
        return event_text(self.data)


def event_text(message: bytes) -> bytes:
    """Encodes a heartbeat as a comment; every other event with its kind and, if it is from the log,
    its cursor as id."""
    event = TradingEvent.FromString(message)
    kind = event.WhichOneof("event")
    if kind == "heartbeat":
        return HEARTBEAT
    id_line = b"id: %s\n" % event.cursor.encode() if event.cursor else b""
    # JSON has no raw line breaks, so the data are one line.
    data = msgspec.json.encode(_fields(event))
    return b"event: %s\n%sdata: %s\n\n" % (str(kind).encode(), id_line, data)


def _fields(message: ProtobufMessage) -> dict[str, Any]:
    """Leaves absent fields out: absent means unknown."""
    shown = {}
    for field, value in message.ListFields():
        if field.is_repeated:
            shown[field.name] = [_value(field, item) for item in value]
        else:
            shown[field.name] = _value(field, value)
    return shown


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return rfc3339(_EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000))
    if isinstance(value, ProtobufMessage):
        return _fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named else value
    # A JSON number is a double in many clients, which loses digits of 64 bits.
    if field.type == FieldDescriptor.TYPE_INT64:
        return str(value)
    return value
