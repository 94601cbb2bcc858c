"""JSON Schemas of the stream's messages, from the descriptor by which they are encoded: as they are
on the wire, and as the TypeScript client shows them."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from trading_intents.stream.trading_pb2 import DESCRIPTOR, TradingEvent

Schema = dict[str, Any]

TIMESTAMP = "google.protobuf.Timestamp"
TIME: Schema = {"type": "string", "format": "date-time"}
NUMBERS = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32)
# Texts that the platform leaves out although the proto does not call them optional.
MAY_BE_ABSENT = {"average_cost"}


def event_kinds() -> dict[str, Descriptor]:
    """The kinds of events with their messages, in the order of the proto."""
    kinds = {}
    for field in TradingEvent.DESCRIPTOR.oneofs_by_name["event"].fields:
        assert isinstance(field.message_type, Descriptor)
        kinds[field.name] = field.message_type
    return kinds


def wire_schemas() -> dict[str, Schema]:
    """Protobuf's JSON: enums by their full names, 64-bit numbers as texts, absent fields left
    out."""
    return {name: _wire_message(message) for name, message in _messages()}


def client_schemas() -> dict[str, Schema]:
    """Enums without their type's prefix, all numbers as numbers, and always there where the proto
    does not distinguish absent from zero."""
    return {name: _client_message(message) for name, message in _messages()}


def field_table() -> dict[str, dict[str, str]]:
    """By kind of event the fields that the client reads otherwise than as they are: `number`,
    `list`, or the prefix of an enum."""
    table = {}
    for kind, message in event_kinds().items():
        treated = {}
        for field in message.fields:
            if field.is_repeated:
                treated[field.name] = "list"
            elif field.enum_type is not None:
                treated[field.name] = enum_prefix(field.enum_type)
            elif field.type in NUMBERS:
                treated[field.name] = "number?" if field.has_presence else "number"
        table[kind] = treated
    return table


def enum_prefix(enum: EnumDescriptor) -> str:
    """`ORDER_SIDE_` of OrderSide: each name begins so."""
    return str(enum.values[0].name).removesuffix("UNSPECIFIED")


def _messages() -> Iterator[tuple[str, Descriptor]]:
    yield from DESCRIPTOR.message_types_by_name.items()


def _wire_message(message: Descriptor) -> Schema:
    properties = {field.name: _wire_field(field) for field in message.fields}
    return {"title": message.name, "type": "object", "properties": properties}


def _wire_field(field: FieldDescriptor) -> Schema:
    if field.message_type is not None:
        schema = _message_schema(field.message_type)
    elif field.enum_type is not None:
        schema = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    elif field.type == FieldDescriptor.TYPE_INT64:
        schema = {"type": "string", "format": "int64"}
    else:
        schema = _plain_field(field)
    return {"type": "array", "items": schema} if field.is_repeated else schema


def _client_message(message: Descriptor) -> Schema:
    properties = {field.name: _client_field(field) for field in message.fields}
    required = [field.name for field in message.fields if _is_always_there(field)]
    return {"type": "object", "properties": properties, "required": required}


def _client_field(field: FieldDescriptor) -> Schema:
    if field.enum_type is not None and not field.is_repeated:
        prefix = enum_prefix(field.enum_type)
        named = [value.name.removeprefix(prefix) for value in field.enum_type.values[1:]]
        return {"type": "string", "enum": named}
    if field.type in NUMBERS:
        return {"type": "integer"}
    return _wire_field(field)


def _is_always_there(field: FieldDescriptor) -> bool:
    if field.is_repeated:
        return True
    return not field.has_presence and field.name not in MAY_BE_ABSENT


def _message_schema(message: Descriptor) -> Schema:
    if message.full_name == TIMESTAMP:
        return dict(TIME)
    return {"$ref": f"#/components/schemas/{message.name}"}


def _plain_field(field: FieldDescriptor) -> Schema:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"type": "boolean"}
    return {"type": "integer" if field.type in NUMBERS else "string"}
