"""Locks and reads what a booking needs, over many accounts. Rows are passed as JSON in one parameter. Never decides."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from trading_intents.orders.facts import Fact
from trading_intents.orders.store import Action, OrderHistory, TradeRow
from trading_intents.storage.database import Row
from trading_intents.storage.pipeline import Reply, Statement, array_text
from trading_intents.trading import OrderSide

Parsed = TypeVar("Parsed")


class AccountName(NamedTuple):
    """A client order id, a broker's order id or a fact's key, in its account."""

    account_id: UUID
    name: str


class PositionKey(NamedTuple):
    """A symbol in an account."""

    account_id: UUID
    symbol: str


class ConcernedNames(NamedTuple):
    """The names in events and facts by which their orders are found."""

    order_ids: Iterable[UUID]
    client_order_ids: Iterable[AccountName]
    broker_order_ids: Iterable[AccountName]
    keys: Iterable[AccountName]


# LATERAL with OFFSET or ORDER BY allows only look-ups by key, and so does ANY beside a join (decision 0039). What was
# locked is kept for the statements that follow in the same transaction, which each see what was committed before them.
_LOCK_ORDERS = """
    SELECT set_config('trading_intents.locked_orders', coalesce(array_agg(order_id), '{}')::text, true)
    FROM (
        SELECT order_id FROM orders
        WHERE order_id = ANY (ARRAY (
            SELECT unnest($1::text::uuid[])
            UNION
            SELECT found.order_id FROM json_to_recordset($2::text::json) AS asked (account_id uuid, name text)
            CROSS JOIN LATERAL (
                SELECT order_id FROM commands
                WHERE account_id = asked.account_id AND client_order_id = asked.name OFFSET 0
            ) AS found
            UNION
            SELECT found.order_id FROM json_to_recordset($3::text::json) AS asked (account_id uuid, name text)
            CROSS JOIN LATERAL (
                SELECT order_id FROM commands
                WHERE account_id = asked.account_id AND broker_order_id BETWEEN asked.name AND asked.name
                ORDER BY broker_order_id
            ) AS found
            UNION
            SELECT found.order_id FROM json_to_recordset($4::text::json) AS asked (account_id uuid, name text)
            CROSS JOIN LATERAL (
                SELECT order_id FROM facts
                WHERE account_id = asked.account_id AND key = asked.name AND order_id IS NOT NULL OFFSET 0
            ) AS found
        ))
        ORDER BY order_id FOR UPDATE
    ) AS held
"""
_LOCKED = "current_setting('trading_intents.locked_orders')::uuid[]"
_FACT = """
    json_build_object('key', f.key, 'arrival', f.arrival, 'kind', f.kind, 'client_order_id', f.client_order_id,
        'broker_order_id', f.broker_order_id, 'replaces', f.replaces, 'exec_id', f.exec_id, 'quantity', f.quantity,
        'price', f.price, 'fee', f.fee, 'cum_quantity', f.cum_quantity, 'average_price', f.average_price,
        'venue_time', f.venue_time, 'reason', f.reason)
"""
_FIND = f"""
    SELECT json_build_object('what', 'client', 'account_id', asked.account_id, 'name', asked.name,
        'order_id', c.order_id, 'at', c.sent_at, 'broker_order_id', c.broker_order_id)::text
    FROM json_to_recordset($1::text::json) AS asked (account_id uuid, name text)
    CROSS JOIN LATERAL (
        SELECT * FROM commands WHERE account_id = asked.account_id AND client_order_id = asked.name OFFSET 0
    ) AS c
    UNION ALL
    SELECT json_build_object('what', 'broker', 'account_id', asked.account_id, 'name', asked.name,
        'order_id', c.order_id, 'at', c.sent_at)::text
    FROM json_to_recordset($2::text::json) AS asked (account_id uuid, name text)
    CROSS JOIN LATERAL (
        SELECT * FROM commands
        WHERE account_id = asked.account_id AND broker_order_id BETWEEN asked.name AND asked.name
        ORDER BY broker_order_id
    ) AS c
    UNION ALL
    SELECT json_build_object('what', 'unmatched', 'account_id', asked.account_id, 'name', asked.name,
        'at', f.recorded_at, 'fact', {_FACT})::text
    FROM json_to_recordset($2::text::json) AS asked (account_id uuid, name text)
    CROSS JOIN LATERAL (
        SELECT * FROM facts
        WHERE account_id = asked.account_id AND order_id IS NULL AND client_order_id IS NULL
          AND broker_order_id BETWEEN asked.name AND asked.name
        ORDER BY broker_order_id
    ) AS f
    UNION ALL
    SELECT json_build_object('what', 'fact', 'account_id', asked.account_id, 'name', asked.name,
        'order_id', f.order_id, 'fact', {_FACT})::text
    FROM json_to_recordset($3::text::json) AS asked (account_id uuid, name text)
    CROSS JOIN LATERAL (
        SELECT * FROM facts WHERE account_id = asked.account_id AND key = asked.name OFFSET 0
    ) AS f
"""  # noqa: S608 - our own constants
_READ_HISTORIES = f"""
    SELECT json_build_object('row', o, 'now', (SELECT clock_timestamp()),
        'facts', (SELECT json_agg({_FACT}) FROM facts f WHERE f.order_id = o.order_id),
        'actions', (SELECT json_agg(a ORDER BY a.seq) FROM (
            SELECT seq, action_id, action_type, record::json, CASE WHEN action_type = 'CANCEL' THEN (
                SELECT json_agg(client_order_id) FROM commands c WHERE c.order_id = o.order_id AND c.seq = sent.seq
            ) END AS cancel_ids
            FROM actions sent WHERE intent_id = o.order_id
        ) AS a),
        'trades', (SELECT json_agg(t ORDER BY t.booking) FROM trades t WHERE t.order_id = o.order_id),
        'sent_at', (SELECT sent_at FROM commands c WHERE c.order_id = o.order_id AND c.action_type = 'CREATE' LIMIT 1)
    )::text
    FROM orders o WHERE o.order_id = ANY ({_LOCKED}) ORDER BY o.order_id
"""  # noqa: S608 - our own constants
_LOCK_POSITIONS = f"""
    SELECT json_build_object('row', p, 'now', clock_timestamp())::text
    FROM (
        SELECT account_id, symbol FROM (
            SELECT account_id, symbol FROM orders WHERE order_id = ANY ({_LOCKED})
            UNION
            SELECT account_id, symbol FROM json_to_recordset($1::text::json) AS asked (account_id uuid, symbol text)
        ) AS asked
        ORDER BY account_id, symbol OFFSET 0  -- in this order they are locked
    ) AS asked
    CROSS JOIN LATERAL (
        SELECT * FROM positions WHERE account_id = asked.account_id AND symbol = asked.symbol FOR UPDATE
    ) AS p
"""  # noqa: S608 - our own constants


def read_ledger(names: ConcernedNames, places: Iterable[PositionKey]) -> list[Statement]:
    """Locks the orders by id and their positions by account and symbol; reads all that a booking needs."""
    clients, brokers, keys = (
        json_text([name._asdict() for name in each])
        for each in (names.client_order_ids, names.broker_order_ids, names.keys)
    )
    return [
        Statement(_LOCK_ORDERS, (array_text(map(str, names.order_ids)), clients, brokers, keys)),
        Statement(_FIND, (clients, brokers, keys)),
        Statement(_READ_HISTORIES),
        Statement(_LOCK_POSITIONS, (json_text([place._asdict() for place in places]),)),
        Statement("SELECT to_json(clock_timestamp())::text"),
    ]


class LedgerMatch(msgspec.Struct):
    """A command by its client order id or its broker's, or a fact by its key or, as long as nobody's, its broker's id.
    `at`: when the command was sent, or the fact recorded."""

    what: str
    account_id: UUID
    name: str
    order_id: UUID | None = None
    at: datetime | None = None
    broker_order_id: str | None = None
    fact: Fact | None = None


class _OrderColumns(msgspec.Struct):
    order_id: UUID
    account_id: UUID
    organization_id: UUID
    environment: str
    broker: str
    create_seq: int
    command_seq: int
    symbol: str
    order_status: str
    order_type: str
    order_side: str
    time_in_force: str
    route_strategy: str
    quantity: Decimal
    limit_price: Decimal | None
    stop_price: Decimal | None
    filled_quantity: Decimal
    average_price: Decimal | None
    external_order_id: str | None
    client_reference_id: str | None
    reason: str | None
    flags: list[str]
    pending_replace_seq: int | None
    cancel_requested: bool
    broker_sent_at: datetime | None
    received_at: datetime
    created_at: datetime
    updated_at: datetime
    version: int
    finished_at: datetime | None


class _HistoryRow(msgspec.Struct):
    row: _OrderColumns
    now: datetime
    facts: tuple[Fact, ...] | None
    actions: tuple[Action, ...] | None
    trades: tuple[TradeRow, ...] | None
    sent_at: datetime | None


class PositionColumns(msgspec.Struct):
    account_id: UUID
    symbol: str
    organization_id: UUID
    received_at: datetime
    quantity: Decimal = Decimal()
    open_cost: Decimal = Decimal()
    realized_pnl: Decimal = Decimal()
    value_bought: Decimal = Decimal()
    value_sold: Decimal = Decimal()
    fees: Decimal = Decimal()
    day: date | None = None
    day_pnl: Decimal = Decimal()
    broker_quantity: Decimal | None = None
    broker_key: str | None = None
    broker_sent_at: datetime | None = None
    opening_quantity: Decimal = Decimal()
    opening_price: Decimal | None = None
    opening_cost: Decimal = Decimal()
    uncosted_quantity: Decimal = Decimal()
    differs: bool = False
    fee_quantity: Decimal = Decimal()


class _PositionRow(msgspec.Struct):
    row: PositionColumns
    now: datetime


class Ledger(NamedTuple):
    """The rows that were locked and read."""

    found: list[LedgerMatch]
    histories: dict[UUID, OrderHistory]
    positions: dict[PositionKey, Row]
    now: datetime


def parse_ledger(replies: Sequence[Reply]) -> Ledger:
    _, found, histories, positions, clock = replies
    return Ledger(
        _decoded(found, LedgerMatch),
        {
            each.row.order_id: OrderHistory(
                msgspec.structs.asdict(each.row),
                each.facts or (),
                each.actions or (),
                each.trades or (),
                each.sent_at,
                each.now,
            )
            for each in _decoded(histories, _HistoryRow)
        },
        {
            PositionKey(each.row.account_id, each.row.symbol): msgspec.structs.asdict(each.row) | {"now": each.now}
            for each in _decoded(positions, _PositionRow)
        },
        _decoded(clock, datetime)[0],
    )


def new_position(place: PositionKey, organization_id: UUID, now: datetime) -> Row:
    return msgspec.structs.asdict(PositionColumns(*place, organization_id, now)) | {"now": now}


class BookedTrade(msgspec.Struct):
    """A trade as a position is summed up from it."""

    booking: int
    trade_id: UUID
    side: OrderSide
    quantity: Decimal
    price: Decimal
    fee: Decimal | None
    broker_sent_at: datetime | None
    received_at: datetime


_BOOKED = "json_build_object({})".format(", ".join(f"'{name}', {name}" for name in BookedTrade.__struct_fields__))


def read_bookings(place: PositionKey, after: int, limit: int) -> Statement:
    """The symbol's trades as they were booked, a page at a time."""
    return Statement(
        f"""
        SELECT {_BOOKED}::text FROM trades
        WHERE account_id = $1::text::uuid AND symbol = $2::text AND booking > $3::text::bigint
        ORDER BY booking LIMIT $4::text::bigint
        """,  # noqa: S608 - our own constants
        (str(place.account_id), place.symbol, str(after), str(limit)),
    )


def last_bookings(place: PositionKey, limit: int) -> Statement:
    """The symbol's trades as they were booked, newest first."""
    return Statement(
        f"""
        SELECT {_BOOKED}::text FROM trades
        WHERE account_id = $1::text::uuid AND symbol = $2::text ORDER BY booking DESC LIMIT $3::text::bigint
        """,  # noqa: S608 - our own constants
        (str(place.account_id), place.symbol, str(limit)),
    )


def parse_bookings(reply: Reply) -> list[BookedTrade]:
    return _decoded(reply, BookedTrade)


def _decoded(reply: Reply, kind: type[Parsed]) -> list[Parsed]:
    return [msgspec.json.decode(text, type=kind) for (text,) in reply.rows if text]


def json_text(rows: object) -> str:
    return msgspec.json.encode(rows).decode()
