"""The action record: its canonical JSON, its hash in the account's chain, and the stream's messages about it. Pure."""

import hashlib
from datetime import datetime
from typing import NamedTuple

import msgspec

from trading_intents.stream.model import EventType, make_payload

HASH_VERSION = 1
FIRST_HASH = "0" * 64


class Record(msgspec.Struct, kw_only=True):
    """Version 1. Its fields are sorted and its texts have no control characters, so its encoding is RFC 8785's."""

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


class OrderTexts(NamedTuple):
    """An order's row as texts; amounts as PostgreSQL writes them."""

    order_id: str
    account_id: str
    organization_id: str
    broker: str
    command_seq: str
    symbol: str
    order_status: str
    order_type: str
    order_side: str
    time_in_force: str
    route_strategy: str
    quantity: str
    limit_price: str | None
    stop_price: str | None
    filled_quantity: str
    average_price: str | None
    external_order_id: str | None
    client_reference_id: str | None
    reason: str | None
    flags: str
    pending_replace_seq: str | None
    cancel_requested: str
    broker_sent_at: str | None
    received_at: str
    version: str


def canonical(record: Record) -> bytes:
    return msgspec.json.encode(record)


def chain(previous_hash: str, text: bytes) -> str:
    """SHA-256 of the previous hash, a newline, and the record as REST answers it, without `hash`."""
    return hashlib.sha256(previous_hash.encode() + b"\n" + text).hexdigest()


def with_hash(text: str, digest: str) -> str:
    """The record as REST answers it."""
    return f'{text[:-1]},"hash":"{digest}"}}'


def action_payload(record: Record, now: datetime) -> bytes:
    return make_payload(
        EventType.INTENT_ACTION,
        intent_id=record.intent_id,
        organization_id=record.organization_id,
        account_id=record.account_id,
        seq=record.seq,
        action_type=record.action_type,
        symbol=record.symbol,
        order_side=record.order_side,
        order_type=record.order_type,
        limit_price=record.limit_price,
        stop_price=record.stop_price,
        order_venue=record.route_strategy,
        time_in_force=record.time_in_force,
        quantity=record.quantity,
        client_reference_id=record.client_reference_id,
        principal_type=record.principal_type,
        received_at=now,
        created_at=now,
    )


def new_order_payload(record: Record, broker: str, now: datetime) -> bytes:
    return make_payload(
        EventType.BROKER_ORDER,
        order_id=record.intent_id,
        intent_id=record.intent_id,
        command_seq=record.seq,
        account_id=record.account_id,
        broker=broker,
        symbol=record.symbol,
        order_state="OPEN",
        order_status="PENDING_NEW",
        order_type=record.order_type,
        order_side=record.order_side,
        limit_price=record.limit_price,
        stop_price=record.stop_price,
        order_venue=record.route_strategy,
        quantity=record.quantity,
        filled_quantity="0",
        time_in_force=record.time_in_force,
        received_at=now,
        organization_id=record.organization_id,
        client_reference_id=record.client_reference_id,
        broker_sent_at=None,
        flags=(),
        version=1,
    )


def marked_order_payload(row: OrderTexts, status: str, version: int) -> bytes:
    return make_payload(
        EventType.BROKER_ORDER,
        order_id=row.order_id,
        intent_id=row.order_id,
        command_seq=int(row.command_seq),
        external_order_id=row.external_order_id,
        account_id=row.account_id,
        broker=row.broker,
        symbol=row.symbol,
        order_state="OPEN",
        order_status=status,
        order_type=row.order_type,
        order_side=row.order_side,
        limit_price=row.limit_price and trimmed(row.limit_price),
        stop_price=row.stop_price and trimmed(row.stop_price),
        average_price=row.average_price and trimmed(row.average_price),
        order_venue=row.route_strategy,
        quantity=trimmed(row.quantity),
        filled_quantity=trimmed(row.filled_quantity),
        time_in_force=row.time_in_force,
        received_at=datetime.fromisoformat(row.received_at),
        organization_id=row.organization_id,
        client_reference_id=row.client_reference_id,
        broker_sent_at=datetime.fromisoformat(row.broker_sent_at) if row.broker_sent_at else None,
        reason=row.reason,
        flags=row.flags.split(",") if row.flags else (),
        version=version,
    )


def trimmed(amount: str) -> str:
    """An amount as PostgreSQL writes it, without trailing zeros."""
    return amount.rstrip("0").rstrip(".") if "." in amount else amount
