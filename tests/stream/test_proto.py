"""The messages are the contract's, number by number, and what is generated is that of the proto
file."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from trading_intents.stream import trading_pb2

ROOT = Path(__file__).parents[2]
FOLDER = Path("trading_intents/stream")
GENERATED = ("trading.desc", "trading_pb2.pyi")

# Number, name, type where it is neither a string nor known by its name, and ? where absence has a
# meaning.
MESSAGES = {
    "Subscribe": """
        1 trading_account_id, 2 subscriptions repeated EventType, 3 instrument_key,
        4 instrument_class, 5 order_delivery, 6 resume_after
    """,
    "Unsubscribe": "1 trading_account_id",
    "StreamEventsRequest": "1 subscribe Subscribe, 2 unsubscribe Unsubscribe",
    "TradingEvent": """
        1 heartbeat Heartbeat, 2 error Error, 3 status Status, 4 broker_order BrokerOrder,
        5 broker_position BrokerPosition, 6 broker_trade BrokerTrade,
        7 intent_action IntentAction, 8 primed Primed, 9 balance Balance, 10 halt Halt, 15 cursor
    """,
    "Heartbeat": "1 sent_at",
    "Error": "1 message",
    "Status": "1 message",
    "Primed": "1 event_type",
    "BrokerOrder": """
        1 order_id, 2 intent_id, 3 command_seq int64, 4 external_order_id?, 5 account_id,
        6 broker, 7 symbol, 8 order_state, 9 order_status, 10 order_type, 11 order_side,
        12 limit_price?, 13 stop_price?, 14 average_price?, 15 order_venue, 16 quantity,
        17 filled_quantity, 18 time_in_force, 19 received_at, 20 organization_id,
        21 client_reference_id?, 22 broker_sent_at?, 24 reason?, 25 flags repeated string,
        26 version int64, 27 detail?, 28 trail_amount?, 29 trail_bps? int32, 30 leg?,
        31 parent_intent_id?, 32 active? bool
    """,
    "BrokerPosition": """
        1 account_id, 2 symbol, 3 quantity, 4 average_cost, 5 received_at, 6 organization_id,
        7 broker, 8 broker_sent_at?, 10 realized_pnl?, 11 daily_pnl?, 12 value_bought?,
        13 value_sold?
    """,
    "BrokerTrade": """
        1 account_id, 2 order_id, 3 client_order_id, 4 symbol, 5 side OrderSide, 6 quantity,
        7 price, 8 received_at, 9 organization_id, 10 exec_id?, 11 cumulative_quantity?,
        12 order_quantity?, 13 leaves_quantity?, 14 broker_sent_at?, 16 command_seq? int64,
        17 client_reference_id?, 18 intent_id, 19 trade_id, 20 fee?
    """,
    "IntentAction": """
        1 intent_id, 2 organization_id, 3 account_id, 4 seq int64, 5 action_type IntentActionType,
        6 symbol, 7 order_side, 8 order_type, 9 limit_price?, 10 stop_price?, 11 order_venue,
        12 time_in_force?, 13 quantity, 14 client_reference_id?,
        15 principal_type IntentPrincipalType, 16 received_at, 17 created_at, 18 trail_amount?,
        19 trail_bps? int32, 20 leg?, 21 parent_intent_id?
    """,
    "Balance": """
        1 account_id, 2 organization_id, 3 broker, 4 currency?, 5 cash?, 6 buying_power?,
        7 equity?, 8 as_of Timestamp
    """,
    "Halt": """
        1 id, 2 organization_id, 3 account_id?, 4 state, 5 reason, 6 orders int64,
        7 orders_done int64, 8 positions int64, 9 positions_done int64,
        10 principal_type IntentPrincipalType, 11 principal_id, 12 created_at, 13 updated_at
    """,
}
ENUMS = """
    EventType UNSPECIFIED BROKER_ORDER BROKER_POSITION BROKER_TRADE INTENT_ACTION BALANCE HALT
    OrderDelivery UNSPECIFIED LIVE PRIMED
    OrderType UNSPECIFIED LIMIT MARKET FILL_OR_KILL LIMIT_ON_OPEN LIMIT_ON_CLOSE MARKET_ON_OPEN MARKET_ON_CLOSE STOP STOP_LIMIT TRAILING_STOP
    TimeInForce UNSPECIFIED DAY GOOD_TILL_CANCEL AT_OPEN IMMEDIATE_OR_CANCEL FILL_OR_KILL EXT AT_CLOSE
    OrderSide UNSPECIFIED BUY SELL SELL_SHORT
    OrderVenue UNSPECIFIED SMART AMEX ARCA BATS BATY EDGA EDGX NSDQ NYSE IEX MEMX
    OrderStatus UNSPECIFIED PENDING_NEW NEW PARTIALLY_FILLED FILLED PENDING_CANCEL CANCELLED PENDING_REPLACE REPLACED STOPPED REJECTED EXPIRED UNKNOWN
    OrderState UNSPECIFIED OPEN CLOSED REJECTED
    IntentActionType UNSPECIFIED CREATE REPLACE CANCEL
    IntentPrincipalType UNSPECIFIED API_KEY USER SERVICE SYSTEM
"""  # noqa: E501 - one enum a line
RESERVED = {"BrokerOrder": [23], "BrokerPosition": [9], "BrokerTrade": [15]}
SCALARS = {
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_BOOL: "bool",
}
ENUM_NAMES = [line.split()[0] for line in ENUMS.strip().splitlines()]


@pytest.fixture
def file() -> FileDescriptorProto:
    proto = FileDescriptorProto()
    trading_pb2.DESCRIPTOR.CopyToProto(proto)
    return proto


def expected(field: str) -> tuple[int, str, str, bool, bool]:
    number, name, *rest = field.split()
    optional = name.endswith("?")
    name = name.rstrip("?")
    camel = "".join(part.capitalize() for part in name.split("_"))
    received = "Timestamp" if name.endswith("_at") else camel if camel in ENUM_NAMES else "string"
    return int(number), name, rest[-1] if rest else received, optional, "repeated" in rest


def found(field: FieldDescriptorProto) -> tuple[int, str, str, bool, bool]:
    kind = SCALARS.get(field.type) or field.type_name.rpartition(".")[2]
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return field.number, field.name, kind, field.proto3_optional, repeated


def test_every_message_has_the_contracts_fields(file: FileDescriptorProto) -> None:
    wanted = {
        name: [expected(field) for field in text.split(",")] for name, text in MESSAGES.items()
    }
    assert {
        message.name: sorted(map(found, message.field)) for message in file.message_type
    } == wanted


def test_every_enum_counts_from_zero_in_the_contracts_order(file: FileDescriptorProto) -> None:
    wanted = {}
    for line in ENUMS.strip().splitlines():
        name, *values = line.split()
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        wanted[name] = [(number, f"{prefix}_{value}") for number, value in enumerate(values)]
    assert {
        enum.name: [(value.number, value.name) for value in enum.value] for enum in file.enum_type
    } == wanted


def test_the_numbers_of_an_instrument_are_reserved(file: FileDescriptorProto) -> None:
    assert {m.name: reserved(m) for m in file.message_type if m.reserved_range} == RESERVED


def reserved(message: DescriptorProto) -> list[int]:
    return [number for span in message.reserved_range for number in range(span.start, span.end)]


def test_one_event_and_one_request_at_a_time(file: FileDescriptorProto) -> None:
    exclusive = {
        (message.name, field.name)
        for message in file.message_type
        for field in message.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }
    names = {name: [expected(field)[1] for field in MESSAGES[name].split(",")] for name in MESSAGES}
    wanted = {("TradingEvent", name) for name in names["TradingEvent"] if name != "cursor"}
    assert exclusive == wanted | {
        ("StreamEventsRequest", name) for name in names["StreamEventsRequest"]
    }


def test_the_service_has_both_calls(file: FileDescriptorProto) -> None:
    assert (file.package, [service.name for service in file.service]) == (
        "trading",
        ["TradingService"],
    )
    calls = [
        (call.name, call.input_type, call.client_streaming, call.output_type, call.server_streaming)
        for call in file.service[0].method
    ]
    assert calls == [
        ("SubscribeEvents", ".trading.Subscribe", False, ".trading.TradingEvent", True),
        ("StreamEvents", ".trading.StreamEventsRequest", True, ".trading.TradingEvent", True),
    ]


def test_what_is_generated_is_that_of_the_proto_file(tmp_path: Path) -> None:
    """Made again as `make proto` makes it; if this fails, run that and commit."""
    command = re.search(r"-m (grpc_tools\.protoc .*)", (ROOT / "Makefile").read_text())
    assert command
    arguments = [
        argument.replace("_out=src", f"_out={tmp_path}") for argument in shlex.split(command[1])
    ]
    subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == sorted(GENERATED)
    for name in GENERATED:
        assert (tmp_path / FOLDER / name).read_bytes() == (
            ROOT / "src" / FOLDER / name
        ).read_bytes(), name
