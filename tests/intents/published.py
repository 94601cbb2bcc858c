"""Events as they are published for an action."""

from datetime import UTC
from typing import Any

from tests.intents.http_client import Body, enum_name, given, limit, market, stop, stop_limit

KINDS = {"MARKET": market(), "LIMIT": limit(), "STOP": stop(), "STOP_LIMIT": stop_limit()}
ACTION_FIELDS = {
    "intent_id",
    "seq",
    "account_id",
    "organization_id",
    "environment",
    "action_type",
    "symbol",
    "order_side",
    "order_type",
    "quantity",
    "limit_price",
    "stop_price",
    "time_in_force",
    "route_strategy",
    "client_reference_id",
    "principal_type",
    "principal_id",
    "created_at",
    "hash_version",
    "hash",
}


def moment(stamp: Any) -> str:
    return str(stamp.ToDatetime(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def published_action(event: Any) -> Body:
    """An INTENT_ACTION as the record that it is about, less what is not in it."""
    assert event.WhichOneof("event") == "intent_action"
    said = event.intent_action
    plain = ("intent_id", "organization_id", "account_id", "seq", "symbol", "quantity")
    enums = ("action_type", "order_side", "order_type", "time_in_force", "principal_type")
    answered = {name: getattr(said, name) for name in plain} | {
        name: enum_name(said, name) for name in enums
    }
    answered |= given(said, ("limit_price", "stop_price", "client_reference_id"))
    assert said.received_at == said.created_at
    return answered | {
        "route_strategy": enum_name(said, "order_venue"),
        "created_at": moment(said.created_at),
    }


def published_order(event: Any) -> Body:
    assert event.WhichOneof("event") == "broker_order"
    said = event.broker_order
    plain = (
        "order_id",
        "intent_id",
        "command_seq",
        "account_id",
        "broker",
        "symbol",
        "quantity",
        "filled_quantity",
    )
    answered = {name: getattr(said, name) for name in (*plain, "organization_id", "version")}
    enums = ("order_state", "order_status", "order_type", "order_side", "time_in_force")
    answered |= {name: enum_name(said, name) for name in enums}
    optional = (
        "external_order_id",
        "limit_price",
        "stop_price",
        "average_price",
        "client_reference_id",
        "reason",
    )
    answered |= given(said, optional)
    assert not said.HasField("broker_sent_at")
    assert list(said.flags) == []
    return answered | {
        "route_strategy": enum_name(said, "order_venue"),
        "received_at": moment(said.received_at),
    }
