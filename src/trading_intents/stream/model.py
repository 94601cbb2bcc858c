"""An event that is to be logged, as the bytes that subscribers get. Pure: no I/O, no clock."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

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


class Event(FrozenStruct, frozen=True):
    """`payload` is a serialized TradingEvent without its cursor, which only the log can give.

    An event of the organization itself has the organization's id in place of an account's: every scope gets it, in both
    environments. `symbol` is empty where the event has none.
    """

    organization_id: UUID | str
    account_id: UUID | str
    environment: str
    kind: EventType
    symbol: str
    payload: bytes


# Every intent makes two messages, so these two are encoded by hand: 10 µs where the generated classes take 23 (a
# property test compares the bytes). A message is put together as text, one character a byte, which is fastest in
# Python. A field is its tag (number << 3 | 2 if it has a length, number << 3 for a number), then its value.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT = 128
_ID_LENGTH = 36  # "$" as a byte


def _number(value: int) -> str:
    """A varint: seven bits a byte, the lowest first, the top bit set in all but the last."""
    text = ""
    while value > 127:
        text += chr(value & 127 | 128)
        value >>= 7
    return text + chr(value)


_LENGTH = tuple(_number(length) for length in range(_SHORT))


def _text(value: str) -> str:
    if not value.isascii():
        value = value.encode().decode("latin-1")
    length = len(value)
    return _LENGTH[length] + value if length < _SHORT else _number(length) + value


@lru_cache(maxsize=64)  # a pure function: the messages of a batch share their timestamps
def _moment(at: datetime) -> str:
    since = at - _EPOCH
    fields = f"\x08{_number(since.days * 86_400 + since.seconds)}\x10{_number(since.microseconds * 1000)}"
    return _LENGTH[len(fields)] + fields


def _event(tag: str, body: str) -> bytes:
    return f"{tag}{_number(len(body))}{body}".encode("latin-1")


def _names(number: int, enum: Any) -> Mapping[str, str]:
    """The encoded field for each value of an enum, by its name in REST."""
    values = enum.DESCRIPTOR.values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix): _number(number << 3) + _number(value.number) for value in values}


_ACTION_TYPE = _names(5, trading_pb2.IntentActionType)
_ACTION_SIDE = _names(7, trading_pb2.OrderSide)
_ACTION_ORDER_TYPE = _names(8, trading_pb2.OrderType)
_ACTION_VENUE = _names(11, trading_pb2.OrderVenue)
_ACTION_TIME_IN_FORCE = _names(12, trading_pb2.TimeInForce)
_ACTION_PRINCIPAL = _names(15, trading_pb2.IntentPrincipalType)


def intent_action_payload(
    *,
    intent_id: str,
    organization_id: str,
    account_id: str,
    seq: int,
    action_type: str,
    symbol: str,
    order_side: str,
    order_type: str,
    limit_price: str | None,
    stop_price: str | None,
    order_venue: str,
    time_in_force: str | None,
    quantity: str,
    client_reference_id: str | None,
    principal_type: str,
    received_at: datetime,
    created_at: datetime,
) -> bytes:
    assert len(intent_id) == len(organization_id) == len(account_id) == _ID_LENGTH
    assert f"{symbol}{quantity}".isascii()
    return _event(
        "\x3a",
        f"\x0a${intent_id}"
        f"\x12${organization_id}"
        f"\x1a${account_id}"
        f"\x20{_number(seq)}"
        f"{_ACTION_TYPE[action_type]}"
        f"\x32{_LENGTH[len(symbol)]}{symbol}"
        f"{_ACTION_SIDE[order_side]}"
        f"{_ACTION_ORDER_TYPE[order_type]}"
        f"{'' if limit_price is None else chr(0x4A) + _text(limit_price)}"
        f"{'' if stop_price is None else chr(0x52) + _text(stop_price)}"
        f"{_ACTION_VENUE[order_venue]}"
        f"{'' if time_in_force is None else _ACTION_TIME_IN_FORCE[time_in_force]}"
        f"\x6a{_LENGTH[len(quantity)]}{quantity}"
        f"{'' if client_reference_id is None else chr(0x72) + _text(client_reference_id)}"
        f"{_ACTION_PRINCIPAL[principal_type]}"
        f"\x82\x01{_moment(received_at)}"
        f"\x8a\x01{_moment(created_at)}",
    )


_ORDER_STATE = _names(8, trading_pb2.OrderState)
_ORDER_STATUS = _names(9, trading_pb2.OrderStatus)
_ORDER_TYPE = _names(10, trading_pb2.OrderType)
_ORDER_SIDE = _names(11, trading_pb2.OrderSide)
_ORDER_VENUE = _names(15, trading_pb2.OrderVenue)
_ORDER_TIME_IN_FORCE = _names(18, trading_pb2.TimeInForce)


def broker_order_payload(
    *,
    order_id: str,
    intent_id: str,
    command_seq: int,
    external_order_id: str | None,
    account_id: str,
    broker: str,
    symbol: str,
    order_state: str,
    order_status: str,
    order_type: str,
    order_side: str,
    limit_price: str | None,
    stop_price: str | None,
    average_price: str | None,
    order_venue: str,
    quantity: str,
    filled_quantity: str,
    time_in_force: str,
    received_at: datetime,
    organization_id: str,
    client_reference_id: str | None,
    broker_sent_at: datetime | None,
    reason: str | None,
    flags: Sequence[str],
    version: int,
) -> bytes:
    assert len(order_id) == len(intent_id) == len(organization_id) == len(account_id) == _ID_LENGTH
    assert f"{symbol}{quantity}{filled_quantity}{broker}".isascii()
    return _event(
        "\x22",
        f"\x0a${order_id}"
        f"\x12${intent_id}"
        f"\x18{_number(command_seq)}"
        f"{'' if external_order_id is None else chr(0x22) + _text(external_order_id)}"
        f"\x2a${account_id}"
        f"\x32{_LENGTH[len(broker)]}{broker}"
        f"\x3a{_LENGTH[len(symbol)]}{symbol}"
        f"{_ORDER_STATE[order_state]}"
        f"{_ORDER_STATUS[order_status]}"
        f"{_ORDER_TYPE[order_type]}"
        f"{_ORDER_SIDE[order_side]}"
        f"{'' if limit_price is None else chr(0x62) + _text(limit_price)}"
        f"{'' if stop_price is None else chr(0x6A) + _text(stop_price)}"
        f"{'' if average_price is None else chr(0x72) + _text(average_price)}"
        f"{_ORDER_VENUE[order_venue]}"
        f"\x82\x01{_LENGTH[len(quantity)]}{quantity}"
        f"\x8a\x01{_LENGTH[len(filled_quantity)]}{filled_quantity}"
        f"{_ORDER_TIME_IN_FORCE[time_in_force]}"
        f"\x9a\x01{_moment(received_at)}"
        f"\xa2\x01${organization_id}"
        f"{'' if client_reference_id is None else chr(0xAA) + chr(1) + _text(client_reference_id)}"
        f"{'' if broker_sent_at is None else chr(0xB2) + chr(1) + _moment(broker_sent_at)}"
        f"{'' if reason is None else chr(0xC2) + chr(1) + _text(reason)}"
        f"{''.join(chr(0xCA) + chr(1) + _text(flag) for flag in flags) if flags else ''}"
        f"\xd0\x01{_number(version)}",
    )


def broker_trade_payload(*, side: str, **fields: str | int | datetime | None) -> bytes:
    """`fields` are named as in the message; None leaves a field out."""
    message = trading_pb2.BrokerTrade(side=f"ORDER_SIDE_{side}", **_given(fields))
    return trading_pb2.TradingEvent(broker_trade=message).SerializeToString()


def broker_position_payload(**fields: str | datetime | None) -> bytes:
    """`fields` as for a trade."""
    message = trading_pb2.BrokerPosition(**_given(fields))
    return trading_pb2.TradingEvent(broker_position=message).SerializeToString()


def balance_payload(**fields: str | datetime | None) -> bytes:
    """`fields` as for a trade."""
    return trading_pb2.TradingEvent(balance=trading_pb2.Balance(**_given(fields))).SerializeToString()


def halt_payload(*, principal_type: str, **fields: str | int | datetime | None) -> bytes:
    """`fields` as for a trade; without an `account_id` it is the organization's."""
    message = trading_pb2.Halt(principal_type=f"INTENT_PRINCIPAL_TYPE_{principal_type}", **_given(fields))
    return trading_pb2.TradingEvent(halt=message).SerializeToString()


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def new_order_payloads(
    *,
    intent_id: str,
    organization_id: str,
    account_id: str,
    seq: int,
    symbol: str,
    order_side: str,
    order_type: str,
    limit_price: str | None,
    stop_price: str | None,
    order_venue: str,
    time_in_force: str,
    quantity: str,
    client_reference_id: str | None,
    principal_type: str,
    broker: str,
    now: datetime,
) -> tuple[bytes, bytes]:
    """The action and the PENDING_NEW order of a CREATE together: they share most fields, so this takes half the
    time."""
    assert len(intent_id) == len(organization_id) == len(account_id) == _ID_LENGTH
    assert f"{symbol}{quantity}{broker}".isascii()
    number, moment = _number(seq), _moment(now)
    symbol, quantity = f"{_LENGTH[len(symbol)]}{symbol}", f"{_LENGTH[len(quantity)]}{quantity}"
    limit = None if limit_price is None else _text(limit_price)
    stop = None if stop_price is None else _text(stop_price)
    reference = None if client_reference_id is None else _text(client_reference_id)
    action = (
        f"\x0a${intent_id}\x12${organization_id}\x1a${account_id}\x20{number}{_CREATE}\x32{symbol}"
        f"{_ACTION_SIDE[order_side]}{_ACTION_ORDER_TYPE[order_type]}"
        f"{'' if limit is None else chr(0x4A) + limit}"
        f"{'' if stop is None else chr(0x52) + stop}"
        f"{_ACTION_VENUE[order_venue]}{_ACTION_TIME_IN_FORCE[time_in_force]}\x6a{quantity}"
        f"{'' if reference is None else chr(0x72) + reference}"
        f"{_ACTION_PRINCIPAL[principal_type]}\x82\x01{moment}\x8a\x01{moment}"
    )
    order = (
        f"\x0a${intent_id}\x12${intent_id}\x18{number}\x2a${account_id}\x32{_LENGTH[len(broker)]}{broker}\x3a{symbol}"
        f"{_PENDING_NEW}{_ORDER_TYPE[order_type]}{_ORDER_SIDE[order_side]}"
        f"{'' if limit is None else chr(0x62) + limit}"
        f"{'' if stop is None else chr(0x6A) + stop}"
        f"{_ORDER_VENUE[order_venue]}\x82\x01{quantity}\x8a\x01\x010{_ORDER_TIME_IN_FORCE[time_in_force]}"
        f"\x9a\x01{moment}\xa2\x01${organization_id}"
        f"{'' if reference is None else chr(0xAA) + chr(1) + reference}\xd0\x01\x01"
    )
    return _event("\x3a", action), _event("\x22", order)


_CREATE = _ACTION_TYPE["CREATE"]
_PENDING_NEW = _ORDER_STATE["OPEN"] + _ORDER_STATUS["PENDING_NEW"]


def cursor_field(cursor: str) -> bytes:
    """The cursor as a field of TradingEvent: appended to a payload it makes the whole message."""
    return f"\x7a{_text(cursor)}".encode("latin-1")
