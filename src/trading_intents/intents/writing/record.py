"""The action record: its canonical JSON, its hash in the account's chain, and the stream's messages
about it. Pure."""

import hashlib
from datetime import datetime

import msgspec

from trading_intents.stream.model import EventType, make_payload
from trading_intents.trading import EXITS

HASH_VERSION = 1
LINKED_HASH_VERSION = 2
HASH_VERSIONS = (HASH_VERSION, LINKED_HASH_VERSION)
FIRST_HASH = "0" * 64


class Record(msgspec.Struct, kw_only=True):
    """Version 1. Its fields are sorted and its texts have no control characters, so its encoding is
    RFC 8785's."""

    account_id: str
    action_type: str
    client_reference_id: str | None
    created_at: str
    environment: str
    hash_version: int
    intent_id: str
    limit_price: str | None
    order_side: str
    order_type: str
    organization_id: str
    principal_id: str
    principal_type: str
    quantity: str
    route_strategy: str
    seq: int
    stop_price: str | None
    symbol: str
    time_in_force: str


class LinkedRecord(Record, kw_only=True):
    """Version 2, of the actions of linked and trailing orders alone: whoever verifies version 1
    goes on."""

    leg: str | None = None
    parent_intent_id: str | None = None
    trail_amount: str | None = None
    trail_bps: int | None = None


def canonical(record: Record) -> bytes:
    """The fields are sorted by their names, as they are in version 1."""
    return msgspec.json.encode(record, order="sorted" if isinstance(record, LinkedRecord) else None)


def chain(previous_hash: str, text: bytes) -> str:
    """SHA-256 of the previous hash, a newline, and the record as REST answers it, without
    `hash`."""
    return hashlib.sha256(previous_hash.encode() + b"\n" + text).hexdigest()


def with_hash(text: str, digest: str) -> str:
    """The record as REST answers it."""
    return f'{text[:-1]},"hash":"{digest}"}}'


def action_payload(record: Record, now: datetime) -> bytes:
    """The stream's message of an action."""
    return make_payload(
        EventType.INTENT_ACTION,
        seq=record.seq,
        action_type=record.action_type,
        principal_type=record.principal_type,
        created_at=now,
        **_shared_fields(record, now),
    )


def _order_payload(record: Record, broker: str, now: datetime) -> bytes:
    """Of the order that a CREATE makes."""
    shared = _shared_fields(record, now)
    return make_payload(
        EventType.BROKER_ORDER,
        order_id=record.intent_id,
        command_seq=record.seq,
        broker=broker,
        order_state="OPEN",
        order_status="PENDING_NEW",
        filled_quantity="0",
        flags=(),
        version=1,
        active=shared.get("leg") not in EXITS,
        **shared,
    )


def _shared_fields(record: Record, now: datetime) -> dict[str, object]:
    shared: dict[str, object] = {
        "intent_id": record.intent_id,
        "organization_id": record.organization_id,
        "account_id": record.account_id,
        "symbol": record.symbol,
        "order_side": record.order_side,
        "order_type": record.order_type,
        "limit_price": record.limit_price,
        "stop_price": record.stop_price,
        "order_venue": record.route_strategy,
        "time_in_force": record.time_in_force,
        "quantity": record.quantity,
        "client_reference_id": record.client_reference_id,
        "received_at": now,
    }
    if isinstance(record, LinkedRecord):
        shared |= {
            "trail_amount": record.trail_amount,
            "trail_bps": record.trail_bps,
            "leg": record.leg,
            "parent_intent_id": record.parent_intent_id,
        }
    return shared


def render_create(text: str, broker: str, created_at: datetime) -> bytes:
    """The messages of a CREATE in the stream: of the action and of its order. A damaged record has
    none, so that it is a hole in its organization's stream alone."""
    try:
        record = msgspec.json.decode(text, type=LinkedRecord)
    except msgspec.MsgspecError:
        return b""
    return action_payload(record, created_at) + _order_payload(record, broker, created_at)
