"""An event that is to be logged, as the bytes that subscribers get. Pure: no I/O, no clock."""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from trading_intents.stream import trading_pb2
from trading_intents.trading import FrozenStruct

CHANNEL = "stream"  # the channel that is notified when the log has grown


class EventType(IntEnum):
    """The kinds of events in the log, numbered as in the proto."""

    BROKER_ORDER = 1
    BROKER_POSITION = 2
    BROKER_TRADE = 3
    INTENT_ACTION = 4
    BALANCE = 5
    HALT = 6


class Event(FrozenStruct, kw_only=True):
    """`payload` is a serialized TradingEvent without its cursor, which only the log can give.

    An event of the organization itself has the organization's id in place of an account's: every
    scope gets it, in both environments. `symbol` is empty where the event has none. `facts` and
    `counts` are those of the report that the event begins, as JSON.
    """

    organization_id: str
    account_id: str
    environment: str
    symbol: str
    payload: bytes
    order_id: str | None = None
    facts: str | None = None
    counts: str | None = None


# A message of no kind, which nobody is sent: it has a seq, so that facts without another message
# leave no hole in the stream.
SILENT = trading_pb2.TradingEvent(heartbeat=trading_pb2.Heartbeat()).SerializeToString()


def _numbers(enum: Any) -> Mapping[str | None, int | None]:
    """The values of an enum by their names in REST; None leaves a field out."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix): value.number for value in enum.values} | {None: None}


# The name of the kind's field in TradingEvent, and which fields of its message are enums, and which
# are times.
_NAMES = {kind: kind.name.lower() for kind in EventType}


def _fields_of(kind: EventType) -> Any:
    event: Any = trading_pb2.TradingEvent.DESCRIPTOR
    return event.fields_by_name[_NAMES[kind]].message_type.fields


def _enums_of(kind: EventType) -> list[tuple[str, Mapping[str | None, int | None]]]:
    return [(each.name, _numbers(each.enum_type)) for each in _fields_of(kind) if each.enum_type]


def _times_of(kind: EventType) -> list[str]:
    return [each.name for each in _fields_of(kind) if each.message_type is Timestamp.DESCRIPTOR]


_ENUMS = {kind: _enums_of(kind) for kind in EventType}
_TIMES = {kind: _times_of(kind) for kind in EventType}


@lru_cache(maxsize=64)  # a pure function: the messages of a batch share their timestamps
def _moment(at: datetime) -> Timestamp:
    moment = Timestamp()
    moment.FromDatetime(at)
    return moment


def make_payload(kind: EventType, **fields: Any) -> bytes:
    """Fields are named as in the message; enums have their names in REST, times are datetimes, and
    None leaves a field out."""
    for name, numbers in _ENUMS[kind]:
        fields[name] = numbers[fields.get(name)]
    for name in _TIMES[kind]:
        if at := fields.get(name):
            fields[name] = _moment(at)
    event: dict[str, Any] = {_NAMES[kind]: fields}
    return trading_pb2.TradingEvent(**event).SerializeToString()


def _kinds() -> Mapping[int, EventType]:
    fields: Any = trading_pb2.TradingEvent.DESCRIPTOR.fields_by_name
    return {fields[name].number: kind for kind, name in _NAMES.items()}


_KINDS = _kinds()
_MORE = 128  # the bit of a byte behind which the number goes on


def split_payloads(joined: bytes) -> Iterator[tuple[int, bytes]]:
    """Payloads that were put one after the other, each with its kind; 0: one of a later version. A
    payload is a field of TradingEvent, hence begins with its number and its length. Ends where one
    is damaged."""
    start = 0
    with contextlib.suppress(IndexError):
        while start < len(joined):
            size = shift = 0
            body = start + 1
            while joined[body] & _MORE:
                size |= (joined[body] ^ _MORE) << shift
                shift += 7
                body += 1
            end = body + 1 + (size | joined[body] << shift)
            if end > len(joined):
                return
            yield _KINDS.get(joined[start] >> 3, 0), joined[start:end]
            start = end


def cursor_field(cursor: str) -> bytes:
    """The cursor as a field of TradingEvent: appended to a payload it makes the whole message."""
    return trading_pb2.TradingEvent(cursor=cursor).SerializeToString()
