"""An event's bytes say what the values say that REST shows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from trading_intents.stream import trading_pb2
from trading_intents.stream.model import (
    EventType,
    cursor_field,
    make_payload,
    split_payloads,
)

ids = st.uuids().map(str)
amounts = st.decimals(0, 10**18, places=18).map("{:f}".format) | st.integers(0, 10**18).map(str)
symbols = st.text("ABCZ0189./:_-", min_size=1, max_size=32)
texts = st.text(max_size=500)
numbers = st.integers(1, 2**63 - 1)
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is beside it


def names(enum: Any) -> st.SearchStrategy[str]:
    prefix = enum.DESCRIPTOR.values[0].name.removesuffix("UNSPECIFIED")
    return st.sampled_from(
        [value.name.removeprefix(prefix) for value in enum.DESCRIPTOR.values[1:]]
    )


sides = names(trading_pb2.OrderSide)
kinds = names(trading_pb2.OrderType)
venues = names(trading_pb2.OrderVenue)
times_in_force = names(trading_pb2.TimeInForce)
ENUMS = {
    "action_type": trading_pb2.IntentActionType,
    "order_side": trading_pb2.OrderSide,
    "order_type": trading_pb2.OrderType,
    "order_venue": trading_pb2.OrderVenue,
    "time_in_force": trading_pb2.TimeInForce,
    "principal_type": trading_pb2.IntentPrincipalType,
    "order_state": trading_pb2.OrderState,
    "order_status": trading_pb2.OrderStatus,
}
actions = st.fixed_dictionaries(
    {
        "intent_id": ids,
        "organization_id": ids,
        "account_id": ids,
        "seq": numbers,
        "action_type": names(trading_pb2.IntentActionType),
        "symbol": symbols,
        "order_side": sides,
        "order_type": kinds,
        "limit_price": st.none() | amounts,
        "stop_price": st.none() | amounts,
        "order_venue": venues,
        "time_in_force": st.none() | times_in_force,
        "quantity": amounts,
        "client_reference_id": st.none() | texts,
        "principal_type": names(trading_pb2.IntentPrincipalType),
        "received_at": moments,
        "created_at": moments,
    }
)
orders = st.fixed_dictionaries(
    {
        "order_id": ids,
        "intent_id": ids,
        "command_seq": numbers,
        "external_order_id": st.none() | texts,
        "account_id": ids,
        "broker": st.sampled_from(["paper", "remote"]),
        "symbol": symbols,
        "order_state": names(trading_pb2.OrderState),
        "order_status": names(trading_pb2.OrderStatus),
        "order_type": kinds,
        "order_side": sides,
        "limit_price": st.none() | amounts,
        "stop_price": st.none() | amounts,
        "average_price": st.none() | amounts,
        "order_venue": venues,
        "quantity": amounts,
        "filled_quantity": amounts,
        "time_in_force": times_in_force,
        "received_at": moments,
        "organization_id": ids,
        "client_reference_id": st.none() | texts,
        "broker_sent_at": st.none() | moments,
        "reason": st.none() | texts,
        "flags": st.lists(texts, max_size=4),
        "version": numbers,
    }
)


ID = "01890a5d-ac96-774b-bcce-b302099a8057"
AT = datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
ORDER: dict[str, Any] = {
    "order_id": ID,
    "intent_id": ID,
    "command_seq": 12_345,
    "external_order_id": "x-1",
    "account_id": ID,
    "broker": "paper",
    "symbol": "AAPL",
    "order_state": "OPEN",
    "order_status": "PARTIALLY_FILLED",
    "order_type": "STOP_LIMIT",
    "order_side": "SELL_SHORT",
    "limit_price": "187.5",
    "stop_price": "187",
    "average_price": "187.25",
    "order_venue": "NYSE",
    "quantity": "10",
    "filled_quantity": "0.5",
    "time_in_force": "GOOD_TILL_CANCEL",
    "received_at": AT,
    "organization_id": ID,
    "client_reference_id": "my-17",
    "broker_sent_at": AT,
    "reason": "späte Füllung",
    "flags": ["late_fill", "overfill"],
    "version": 300,
}


def generated(values: dict[str, Any]) -> dict[str, Any]:
    """The same values as the generated classes take them."""
    return {
        name: generated_value(name, value) for name, value in values.items() if value is not None
    }


def generated_value(name: str, value: Any) -> Any:
    if name in ENUMS:
        prefix = ENUMS[name].DESCRIPTOR.values[0].name.removesuffix("UNSPECIFIED")
        return ENUMS[name].Value(prefix + value)
    if isinstance(value, datetime):
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return Timestamp(seconds=since // timedelta(seconds=1), nanos=since.microseconds * 1000)
    return value


@given(actions)
def test_an_action_is_what_the_generated_class_reads(values: dict[str, Any]) -> None:
    wanted = trading_pb2.TradingEvent(intent_action=trading_pb2.IntentAction(**generated(values)))
    assert (
        trading_pb2.TradingEvent.FromString(make_payload(EventType.INTENT_ACTION, **values))
        == wanted
    )


@given(orders)
def test_an_order_is_what_the_generated_class_reads(values: dict[str, Any]) -> None:
    wanted = trading_pb2.TradingEvent(broker_order=trading_pb2.BrokerOrder(**generated(values)))
    assert (
        trading_pb2.TradingEvent.FromString(make_payload(EventType.BROKER_ORDER, **values))
        == wanted
    )


@given(st.text(min_size=1, max_size=200))
def test_a_cursor_can_be_appended_to_a_payload(cursor: str) -> None:
    payload = make_payload(EventType.BROKER_ORDER, **ORDER)
    wanted = trading_pb2.TradingEvent.FromString(payload)
    wanted.cursor = cursor
    assert trading_pb2.TradingEvent.FromString(payload + cursor_field(cursor)) == wanted


def test_kinds_are_numbered_as_on_the_wire() -> None:
    wire = {f"EVENT_TYPE_{kind.name}": kind.value for kind in EventType}
    assert wire | {"EVENT_TYPE_UNSPECIFIED": 0} == dict(trading_pb2.EventType.items())


def test_a_balance_leaves_out_what_the_broker_did_not_report() -> None:
    payload = make_payload(
        EventType.BALANCE,
        account_id=ID,
        organization_id=ID,
        broker="paper",
        currency="USD",
        cash="-1.5",
        equity=None,
        as_of=AT,
    )
    balance = trading_pb2.TradingEvent.FromString(payload).balance
    assert (balance.currency, balance.cash) == ("USD", "-1.5")
    assert not balance.HasField("buying_power")
    assert not balance.HasField("equity")
    assert balance.as_of == generated_value("as_of", AT)


@pytest.mark.parametrize("account_id", [None, ID])
def test_a_halt_without_an_account_is_the_organizations(account_id: str | None) -> None:
    fields: dict[str, Any] = {
        "id": ID,
        "organization_id": ID,
        "state": "cancelling",
        "reason": "news",
        "orders": 3,
        "orders_done": 1,
        "positions": 2,
        "positions_done": 0,
        "principal_type": "USER",
        "principal_id": "someone",
        "created_at": AT,
        "updated_at": AT,
    }
    halt = trading_pb2.TradingEvent.FromString(
        make_payload(EventType.HALT, **fields, account_id=account_id)
    ).halt
    assert halt.HasField("account_id") is (account_id is not None)
    assert halt == trading_pb2.Halt(**generated(fields | {"account_id": account_id}))


payload_lists = st.lists(
    actions.map(lambda values: make_payload(EventType.INTENT_ACTION, **values))
    | orders.map(lambda values: make_payload(EventType.BROKER_ORDER, **values))
    | st.just(b"\x5a\x00")  # of a later version
)


@given(payload_lists, st.integers(1, 300))
def test_joined_payloads_are_split_again_up_to_where_they_are_damaged(
    payloads: list[bytes], cut: int
) -> None:
    joined = b"".join(payloads)
    split = list(split_payloads(joined))
    assert [payload for _, payload in split] == payloads
    for kind, payload in split:
        field = trading_pb2.TradingEvent.FromString(payload).WhichOneof("event")
        assert (EventType(kind).name.lower() if kind else None) == field
    whole = [payload for _, payload in split_payloads(joined[:-cut])]
    assert whole == payloads[: len(whole)]
    assert len(whole) < len(payloads) or not payloads
