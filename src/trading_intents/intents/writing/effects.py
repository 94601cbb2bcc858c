"""The effects of decided commands, and the statements and events that a batch of them becomes:
nowhere else is one written. Arguments are texts: see `pack_array`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple, TypeVar

from msgspec.structs import astuple

from trading_intents.ids import IdText
from trading_intents.intents.writing.record import Record, action_payload
from trading_intents.orders.events import order_event
from trading_intents.orders.store import OrderRow
from trading_intents.stats.model import EVERY_REASON, Measure
from trading_intents.storage.database import pack_array
from trading_intents.storage.pipeline import RowParameters, Statement, array_text, column_types
from trading_intents.trading import ActionType, FrozenStruct


class Append(FrozenStruct, kw_only=True):
    """An action's record, and what its rows have beside it: in `actions`, in the outbox and, of a
    CREATE, in orders."""

    record: Record
    seq: str
    text: str  # of the record, which is hashed
    hash: str
    broker: str
    idempotency_key: str | None
    body_digest: str | None
    trail_amount: str | None
    trail_bps: str | None
    leg: str | None
    group_id: str | None  # of linked orders: the id of the one that the others are legs of
    closes: str
    opens: str  # the quantity by which it changes what is open
    added: str  # to its key's sum of the day
    counted: str  # what the versions of the order added to days' sums, with it


class RefusedCommand(FrozenStruct, kw_only=True):
    id: IdText
    organization_id: IdText
    account_id: IdText
    action_type: ActionType
    symbol: str
    reasons: tuple[str, ...]
    principal_id: str


class Publish(NamedTuple):
    """An action, and its order as it is then; None: the new one that a CREATE makes."""

    action: Append
    order: OrderRow | None


# An OrderRow is an order that a REPLACE or CANCEL notes as pending; its other fields stay as last
# confirmed.
Effect = Append | OrderRow | RefusedCommand | Publish
Kind = TypeVar("Kind", bound=Effect)


def of_kind(effects: Iterable[Effect], kind: type[Kind]) -> list[Kind]:
    return [effect for effect in effects if type(effect) is kind]


def write_effects(effects: Sequence[Effect], now: str) -> list[Statement]:
    """The statements that write the batch, in the order of the locks; of several notes of an order
    the last."""
    refusals = of_kind(effects, RefusedCommand)
    noted = {order.order_id: order for order in of_kind(effects, OrderRow)}
    statements: list[Statement] = []
    if refusals:
        rows = _REFUSED_ROWS.pack(map(astuple, refusals))
        statements.append(Statement(_INSERT_REFUSALS, (now, *rows)))
    if noted:
        rows = _NOTED_ROWS.pack(map(_noted_values, noted.values()))
        statements.append(Statement(_NOTE_PENDING, (now, *rows)))
    actions = of_kind(effects, Append)
    if cancelled := [each.record.intent_id for each in actions if _is_cancel(each)]:
        statements.append(Statement(_MAKE_DUE_NOW, (array_text(cancelled),)))
    if actions:
        statements.append(_append(actions, now))
    return statements


def _is_cancel(action: Append) -> bool:
    return action.record.action_type == ActionType.CANCEL


def publish(effects: Sequence[Effect], now: datetime, now_text: str) -> list[Statement]:
    """The statement that appends the actions to the journal. It comes last, because it locks the
    organizations' stream heads."""
    rows = []
    for action, order in of_kind(effects, Publish):
        rows.append((*_recorded_values(action), _events_of(action.record, order, now)))
    return [Statement(_RECORD, (now_text, *_RECORDED_ROWS.pack(rows)))] if rows else []


def _events_of(record: Record, order: OrderRow | None, now: datetime) -> str | None:
    """The messages of a REPLACE or CANCEL, with the order as it is then. None: a CREATE, whose
    messages are rendered when they are read."""
    return (action_payload(record, now) + order_event(order).payload).hex() if order else None


def _append(actions: Sequence[Append], now: str) -> Statement:
    """Inserts the PENDING_NEW orders and the outbox rows of actions, counts what is open, and moves
    the heads."""
    if len(actions) == 1:
        return Statement(_APPEND_ONE, (now, *_values(actions[0])))
    columns = zip(*map(_values, actions), strict=True)
    return Statement(_APPEND_MANY, (now, *map(pack_array, columns)))


# The columns of the statement that appends: the type of each, and where an action has it.
_COLUMNS = {
    "account_id": ("uuid", "record.account_id"),
    "seq": ("bigint", "seq"),
    "intent_id": ("uuid", "record.intent_id"),
    "organization_id": ("uuid", "record.organization_id"),
    "action_type": ("text", "record.action_type"),
    "hash": ("text", "hash"),
    "environment": ("text", "record.environment"),
    "broker": ("text", "broker"),
    "symbol": ("text", "record.symbol"),
    "order_type": ("text", "record.order_type"),
    "order_side": ("text", "record.order_side"),
    "time_in_force": ("text", "record.time_in_force"),
    "route_strategy": ("text", "record.route_strategy"),
    "quantity": ("numeric", "record.quantity"),
    "limit_price": ("numeric", "record.limit_price"),
    "stop_price": ("numeric", "record.stop_price"),
    "trail_amount": ("numeric", "trail_amount"),
    "trail_bps": ("bigint", "trail_bps"),
    "leg": ("text", "leg"),
    "group_id": ("uuid", "group_id"),
    "client_reference_id": ("text", "record.client_reference_id"),
    "closes": ("boolean", "closes"),
    "opens": ("numeric", "opens"),
    "counted": ("numeric", "counted"),
}
_values = attrgetter(*(path for _, path in _COLUMNS.values()))
# In one statement, so that each value is sent and parsed once. A head moves to its account's last
# row. Sums of open orders change in the order in which recorders lock them too.
_APPEND = """
    WITH new ({columns}) AS {kept} (SELECT * FROM {rows}),
    ordered AS (
        INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq,
            command_seq,
                            symbol, order_type, order_side, time_in_force, route_strategy, quantity,
                                limit_price,
                            stop_price, trail_amount, trail_bps, leg, parent_order_id, active,
                                linked,
                            client_reference_id, received_at, created_at, updated_at, closes,
                            counted_notional)
        SELECT intent_id, account_id, organization_id, environment, broker, seq, seq,
               symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
               stop_price, trail_amount, trail_bps, leg, nullif(group_id, intent_id),
               coalesce(leg, 'one_cancels_other') = 'one_cancels_other', group_id IS NOT NULL,
               client_reference_id, $1::timestamptz, $1::timestamptz, $1::timestamptz, closes,
               counted
        FROM new WHERE action_type = 'CREATE'
    ),
    opened AS (
        INSERT INTO holdings AS h (account_id, symbol, organization_id, open_orders, open_buy,
            open_sell)
        SELECT account_id, symbol, organization_id, count(*) FILTER (WHERE action_type = 'CREATE'),
               coalesce(sum(opens) FILTER (WHERE order_side = 'BUY'), 0),
               coalesce(sum(opens) FILTER (WHERE order_side <> 'BUY'), 0)
        FROM new WHERE opens <> 0 OR action_type = 'CREATE'
        GROUP BY account_id, symbol, organization_id ORDER BY account_id, symbol COLLATE "C"
        ON CONFLICT (organization_id, account_id, symbol) DO UPDATE
        SET open_orders = h.open_orders + excluded.open_orders,
            open_buy = h.open_buy + excluded.open_buy,
            open_sell = h.open_sell + excluded.open_sell
    ),
    moved AS (
        UPDATE account_heads h SET seq = last.seq, hash = last.hash
        FROM {last} AS last
        WHERE h.account_id = last.account_id
            AND h.account_id = ANY (ARRAY (SELECT account_id FROM new))
    )
    INSERT INTO outbox (queue, event_type, organization_id, order_key, lane, payload, urgent)
    SELECT 'intents', 'intent.' || lower(action_type), organization_id, intent_id, account_id,
           jsonb_build_object('seq', seq), action_type = 'CANCEL'
    -- A leg's CREATE is sent with the order that it is linked to.
    FROM new WHERE leg IS NULL OR action_type <> 'CREATE'
"""
_PARAMETERS = [(f"${number}", kind) for number, (kind, _) in enumerate(_COLUMNS.values(), 2)]
_ONE_ROW = ", ".join(f"{parameter}::{kind}" for parameter, kind in _PARAMETERS)
_ARRAYS = ", ".join(f"from_column({parameter})::{kind}[]" for parameter, kind in _PARAMETERS)
# A single row is sent as plain values, which takes the server half the time.
_APPEND_ONE = _APPEND.format(
    columns=", ".join(_COLUMNS),
    kept="NOT MATERIALIZED",
    rows=f"(VALUES ({_ONE_ROW})) AS one",
    last="new",
)
_APPEND_MANY = _APPEND.format(
    columns=", ".join(_COLUMNS),
    kept="MATERIALIZED",
    rows=f"unnest({_ARRAYS})",
    last="(SELECT DISTINCT ON (account_id) account_id, seq, hash FROM new ORDER BY account_id, seq "
    "DESC)",
)


_RECORDED = {
    "account_id": ("uuid", "record.account_id"),
    "seq": ("bigint", "seq"),
    "intent_id": ("uuid", "record.intent_id"),
    "organization_id": ("uuid", "record.organization_id"),
    "action_type": ("text", "record.action_type"),
    "idempotency_key": ("text", "idempotency_key"),
    "body_digest": ("text", "body_digest"),
    "record": ("text", "text"),
    "hash": ("text", "hash"),
    "added": ("numeric", "added"),
}
_recorded_values = attrgetter(*(path for _, path in _RECORDED.values()))
_RECORDED_TYPES = {name: kind for name, (kind, _) in _RECORDED.items()}
_RECORDED_ROWS = RowParameters(_RECORDED_TYPES | {"events": "text"}, 2)
# The stream has two messages of each action.
_RECORD = f"""
    WITH new AS MATERIALIZED (SELECT * FROM {_RECORDED_ROWS.rows} AS sent),
    heads AS (
        INSERT INTO stream_heads AS head (organization_id, seq)
        SELECT organization_id, 2 * count(*) FROM new
        -- As everywhere, so that transactions never wait for each other.
        GROUP BY organization_id ORDER BY organization_id
        ON CONFLICT (organization_id) DO UPDATE SET seq = head.seq + excluded.seq
        RETURNING organization_id, seq AS head_seq
    )
    INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type, idempotency_key,
        body_digest, record, hash, added_notional, created_at, action_id, stream_seq, events)
    SELECT account_id, seq, intent_id, organization_id, action_type, idempotency_key,
        decode(body_digest, 'hex'), record, hash, added, $1::timestamptz,
        CASE action_type WHEN 'CREATE' THEN intent_id ELSE gen_random_uuid() END,
        head_seq + 2 - 2 * count(*) OVER (PARTITION BY organization_id ORDER BY ordinality DESC),
        decode(events, 'hex')
    FROM new JOIN heads USING (organization_id)
"""  # noqa: S608 - our own constants


_NOTED = {
    "order_id": "uuid",
    "order_status": "text",
    "pending_replace_seq": "bigint",
    "cancel_requested": "boolean",
    "counted_notional": "numeric",
    "version": "bigint",
}
_NOTED_ROWS = RowParameters(_NOTED, 2)
_noted_values = attrgetter(*_NOTED)
_NOTE_PENDING = f"""
    UPDATE orders o
    SET order_status = c.order_status, pending_replace_seq = c.pending_replace_seq,
        cancel_requested = c.cancel_requested, counted_notional = c.counted_notional,
        version = c.version, updated_at = $1::timestamptz
    FROM {_NOTED_ROWS.rows} AS c WHERE o.order_id = c.order_id
        AND {_NOTED_ROWS.any_of("o", "order_id")}
"""  # noqa: S608 - our own constants
# Makes the waiting rows of cancelled intents due now, before others: an unsent CREATE ends
# without delay.
_MAKE_DUE_NOW = """
    UPDATE outbox SET due_at = least(due_at, clock_timestamp()), urgent = true
    WHERE queue = 'intents' AND order_key = ANY ($1::uuid[]) AND finished_at IS NULL
        AND status = 'pending'
"""
_REFUSED_ROWS = RowParameters(column_types(RefusedCommand), 2)
_INSERT_REFUSALS = f"""
    WITH refused AS (
        INSERT INTO refusals ({_REFUSED_ROWS.columns}, created_at)
        SELECT {_REFUSED_ROWS.columns}, $1::timestamptz FROM {_REFUSED_ROWS.rows} AS new
        RETURNING account_id, organization_id, reasons
    )
    INSERT INTO stats_entries (account_id, organization_id, at, measure, key, amount)
    SELECT account_id, organization_id, $1::timestamptz, '{Measure.REFUSED}', reason, count(*)
    FROM refused CROSS JOIN LATERAL unnest(array_append(reasons, '{EVERY_REASON}')) AS reason
    GROUP BY account_id, organization_id, reason
"""  # noqa: S608 - our own constants
