"""The action record: its canonical JSON, its place in the hash chain, and the messages that tell of it. Pure."""

import hashlib
from datetime import datetime
from decimal import Decimal

import msgspec

from trading_intents.storage.database import Row
from trading_intents.stream.model import broker_order_payload, intent_action_payload
from trading_intents.trading import amount_text

HASH_VERSION = 1
FIRST_HASH = "0" * 64


class Record(msgspec.Struct):
    """Version 1, in the order of the names: so its encoding is RFC 8785, as no text in it has control characters."""

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
    """SHA-256 of the previous hash, a newline, and the record as it is answered but for `hash`."""
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


def new_order_payload(record: Record, broker: str, now: datetime) -> bytes:
    return broker_order_payload(
        order_id=record.intent_id,
        intent_id=record.intent_id,
        command_seq=record.seq,
        external_order_id=None,
        account_id=record.account_id,
        broker=broker,
        symbol=record.symbol,
        order_state="OPEN",
        order_status="PENDING_NEW",
        order_type=record.order_type,
        order_side=record.order_side,
        limit_price=record.limit_price,
        stop_price=record.stop_price,
        average_price=None,
        order_venue=record.route_strategy,
        quantity=record.quantity,
        filled_quantity="0",
        time_in_force=record.time_in_force,
        received_at=now,
        organization_id=record.organization_id,
        client_reference_id=record.client_reference_id,
        broker_sent_at=None,
        reason=None,
        flags=(),
        version=1,
    )


def marked_order_payload(row: Row, status: str, version: int) -> bytes:
    return broker_order_payload(
        order_id=str(row["order_id"]),
        intent_id=str(row["order_id"]),
        command_seq=row["command_seq"],
        external_order_id=row["external_order_id"],
        account_id=str(row["account_id"]),
        broker=row["broker"],
        symbol=row["symbol"],
        order_state="OPEN",
        order_status=status,
        order_type=row["order_type"],
        order_side=row["order_side"],
        limit_price=maybe_text(row["limit_price"]),
        stop_price=maybe_text(row["stop_price"]),
        average_price=maybe_text(row["average_price"]),
        order_venue=row["route_strategy"],
        quantity=amount_text(row["quantity"]),
        filled_quantity=amount_text(row["filled_quantity"]),
        time_in_force=row["time_in_force"],
        received_at=row["received_at"],
        organization_id=str(row["organization_id"]),
        client_reference_id=row["client_reference_id"],
        broker_sent_at=row["broker_sent_at"],
        reason=row["reason"],
        flags=row["flags"],
        version=version,
    )


def maybe_text(amount: Decimal | None) -> str | None:
    return None if amount is None else amount_text(amount)
