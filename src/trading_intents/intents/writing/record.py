"""The action record: its canonical JSON, its hash in the account's chain, and the stream's messages about it. Pure."""

import hashlib
from datetime import datetime

import msgspec

from trading_intents.intents.writing.statements import OrderTexts
from trading_intents.stream.model import broker_order_payload, intent_action_payload, new_order_payloads

HASH_VERSION = 1
FIRST_HASH = "0" * 64


class Record(msgspec.Struct):
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


def canonical(record: Record) -> bytes:
    return msgspec.json.encode(record)


def chain(previous_hash: str, text: bytes) -> str:
    """SHA-256 of the previous hash, a newline, and the record as REST answers it, without `hash`."""
    return hashlib.sha256(previous_hash.encode() + b"\n" + text).hexdigest()


def with_hash(text: str, digest: str) -> str:
    """The record as REST answers it."""
    return f'{text[:-1]},"hash":"{digest}"}}'


def action_payload(record: Record, now: datetime) -> bytes:
    return intent_action_payload(
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


def new_payloads(record: Record, broker: str, now: datetime) -> tuple[bytes, bytes]:
    """The messages of a CREATE: its action and its order."""
    return new_order_payloads(
        intent_id=record.intent_id,
        organization_id=record.organization_id,
        account_id=record.account_id,
        seq=record.seq,
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
        broker=broker,
        now=now,
    )


def marked_order_payload(row: OrderTexts, status: str, version: int) -> bytes:
    return broker_order_payload(
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
