"""What a batch locks, reads and appends, as statements for a pipeline. Arguments are texts: see `column`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trading_intents.intents.store import Place
from trading_intents.storage.database import column
from trading_intents.storage.pipeline import Statement

LOCK_WAIT = "1s"
SCENE_STATEMENTS = 4


def begin(organization_ids: Iterable[str]) -> list[Statement]:
    seen = f"{{{','.join(organization_ids)}}}"
    return [_BEGIN, Statement("SELECT set_config('trading_intents.organizations', $1, true)", (seen,))]


_BEGIN = Statement("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
COMMIT = Statement("COMMIT")
ROLLBACK = Statement("ROLLBACK")


def lock_heads(account_ids: Sequence[str], wait: bool) -> list[Statement]:
    """In id order, as everyone locks. Without `wait`, those that another process holds are left out."""
    asked = (f"{{{','.join(account_ids)}}}",)
    if wait:
        return [Statement(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'"), Statement(_LOCK_HEADS, asked)]
    return [Statement(f"{_LOCK_HEADS} SKIP LOCKED", asked)]


_LOCK_HEADS = """
    SELECT account_id, seq, hash FROM account_heads
    WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE
"""


def read_scene(
    organization_ids: Iterable[str], account_ids: Iterable[str], key_ids: Iterable[str], symbols: Iterable[str]
) -> list[Statement]:
    """The clock and the transaction's id; accounts; keys; controls.

    Each by its key, for all at once. Read after the heads are locked: what was answered before holds.
    """
    organizations, accounts, keys = (f"{{{','.join(ids)}}}" for ids in (organization_ids, account_ids, key_ids))
    return [
        Statement("SELECT clock_timestamp(), pg_current_xact_id()"),
        Statement(
            """
            SELECT id, organization_id, environment, broker, disabled, closed_at IS NOT NULL, has_credential
            FROM accounts WHERE id = ANY ($1::uuid[])
            """,
            (accounts,),
        ),
        Statement(
            """
            SELECT k.id, k.organization_id, k.environment, k.permissions, g.entitlements, k.disabled OR g.disabled
            FROM api_keys k JOIN organizations g ON g.id = k.organization_id WHERE k.id = ANY ($1::uuid[])
            """,
            (keys,),
        ),
        Statement(_READ_CONTROLS, (organizations, accounts, column(list(symbols)))),
    ]


# Of each: whose it is, a symbol or none, whether it is a window; then the switch, then the window. A switch that is not
# set refuses nothing, and is not sent.
_READ_CONTROLS = """
    SELECT organization_id, '', false, manually_disabled, manual_reason,
           NULL::time, NULL::time, NULL::bigint, NULL::text
    FROM organization_controls WHERE organization_id = ANY ($1::uuid[]) AND manually_disabled
    UNION ALL
    SELECT account_id, '', false, manually_disabled, manual_reason, NULL, NULL, NULL, NULL
    FROM account_controls WHERE account_id = ANY ($2::uuid[]) AND manually_disabled
    UNION ALL
    SELECT account_id, symbol, false, manually_disabled, manual_reason, NULL, NULL, NULL, NULL
    FROM symbol_controls
    WHERE account_id = ANY ($2::uuid[]) AND symbol = ANY (from_column($3)) AND manually_disabled
    UNION ALL
    SELECT account_id, symbol, true, NULL, NULL, trading_start, trading_end, stale_order_millis, timezone
    FROM symbol_times WHERE account_id = ANY ($2::uuid[]) AND symbol = ANY (from_column($3))
"""


def read_earlier(asked: Sequence[tuple[str, str]]) -> Statement:
    return Statement(
        """
        SELECT a.account_id, a.idempotency_key, encode(a.body_digest, 'hex'), a.intent_id, a.seq
        FROM unnest(from_column($1)::uuid[], from_column($2)) AS wanted (account_id, idempotency_key)
        JOIN actions a ON a.account_id = wanted.account_id AND a.idempotency_key = wanted.idempotency_key
        """,
        tuple(map(column, zip(*asked, strict=True))),
    )


class OrderRow(NamedTuple):
    """As texts; amounts as PostgreSQL writes them."""

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


_ORDER_COLUMNS = ", ".join(OrderRow._fields).replace("flags", "array_to_string(flags, ',')")


def lock_orders(order_ids: Sequence[str]) -> Statement:
    return Statement(
        f"""
        SELECT {_ORDER_COLUMNS} FROM orders
        WHERE order_id = ANY ($1::uuid[]) ORDER BY order_id FOR UPDATE
        """,  # noqa: S608 - our own constants
        (f"{{{','.join(order_ids)}}}",),
    )


class NewAction(NamedTuple):
    """A row for `actions`, its outbox row and, for a CREATE, its order."""

    account_id: str
    seq: str
    intent_id: str
    organization_id: str
    action_type: str
    idempotency_key: str | None
    body_digest: str | None
    record: str
    hash: str
    environment: str
    broker: str
    symbol: str
    order_type: str
    order_side: str
    time_in_force: str
    route_strategy: str
    quantity: str
    limit_price: str | None
    stop_price: str | None
    client_reference_id: str | None


class OrderChange(NamedTuple):
    status: str
    pending_replace_seq: str | None
    cancel_requested: bool
    version: int


@dataclass(slots=True)
class Batch:
    """What one transaction appends and changes."""

    actions: list[NewAction] = field(default_factory=list)
    heads: dict[str, tuple[int, str]] = field(default_factory=dict)
    changed_orders: dict[str, OrderChange] = field(default_factory=dict)
    cancelled_intents: list[str] = field(default_factory=list)

    def last(self) -> Place | None:
        """One of the actions, which proves that the commit happened."""
        return next((Place(account_id, *head) for account_id, head in self.heads.items()), None)


class _Append:
    """A statement that reads FROM {rows}. One row goes as plain values, which takes the server half as long."""

    def __init__(self, sql: str, *types: str) -> None:
        places = list(enumerate(types, 1))
        one = ", ".join(f"${place}::{kind}" for place, kind in places)
        many = ", ".join(f"from_column(${place})::{kind}[]" for place, kind in places)
        self._one, self._many = sql.format(rows=f"(VALUES ({one}))"), sql.format(rows=f"unnest({many})")

    def of(self, values: Sequence[str | None], are_columns: bool) -> Statement:
        return Statement(self._many if are_columns else self._one, tuple(values))


_ACTIONS = _Append(
    """
    INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type, idempotency_key, body_digest,
                         record, hash, created_at, action_id)
    SELECT account_id, seq, intent_id, organization_id, action_type, idempotency_key, decode(body_digest, 'hex'),
           record, hash, $10::timestamptz, CASE action_type WHEN 'CREATE' THEN intent_id ELSE gen_random_uuid() END
    FROM {rows} AS new (account_id, seq, intent_id, organization_id, action_type, idempotency_key, body_digest, record,
                        hash)
    """,
    *("uuid", "bigint", "uuid", "uuid", "text", "text", "text", "text", "text"),
)
_HEADS = _Append(
    """
    UPDATE account_heads h SET seq = moved.seq, hash = moved.hash
    FROM {rows} AS moved (account_id, seq, hash) WHERE h.account_id = moved.account_id
    """,
    *("uuid", "bigint", "text"),
)
_OUTBOX = _Append(
    """
    INSERT INTO outbox (queue, event_type, organization_id, order_key, lane, payload)
    SELECT 'intents', 'intent.' || lower(action_type), organization_id, intent_id, account_id,
           jsonb_build_object('seq', seq)
    FROM {rows} AS new (account_id, seq, intent_id, organization_id, action_type)
    """,
    *("uuid", "bigint", "uuid", "uuid", "text"),
)
_ORDERS = _Append(
    """
    INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq, command_seq,
                        symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
                        stop_price, client_reference_id, received_at, created_at, updated_at)
    SELECT intent_id, account_id, organization_id, environment, broker, seq, seq,
           symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
           stop_price, client_reference_id, $16::timestamptz, $16::timestamptz, $16::timestamptz
    FROM {rows} AS new (
        account_id, seq, intent_id, organization_id, environment, broker, symbol, order_type, order_side,
        time_in_force, route_strategy, quantity, limit_price, stop_price, client_reference_id
    )
    """,
    *("uuid", "bigint", "uuid", "uuid", "text", "text", "text", "text", "text", "text", "text"),
    *("numeric", "numeric", "numeric", "text"),
)


def append(batch: Batch, now: str) -> list[Statement]:
    """Actions, the heads, their outbox rows and their PENDING_NEW orders."""
    values, are_columns = _values(batch.actions)
    heads, are_head_columns = _values(
        [(account_id, str(seq), digest) for account_id, (seq, digest) in batch.heads.items()]
    )
    statements = [
        _ACTIONS.of((*values[:9], now), are_columns),
        _HEADS.of(heads, are_head_columns),
        _OUTBOX.of(values[:5], are_columns),
    ]
    creates = [action for action in batch.actions if action.action_type == "CREATE"]
    if creates:
        if len(creates) < len(batch.actions):
            values, are_columns = _values(creates)
        statements.append(_ORDERS.of((*values[:4], *values[9:], now), are_columns))
    return statements


def _values(rows: Sequence[Sequence[str | None]]) -> tuple[Sequence[str | None], bool]:
    """The row if there is one; else the columns, and that they are columns."""
    return (rows[0], False) if len(rows) == 1 else (tuple(map(column, zip(*rows, strict=True))), True)


def mark_orders(batch: Batch, now: str) -> Statement:
    """The pending command of the orders that REPLACEs and CANCELs name."""
    changes = batch.changed_orders.values()
    return Statement(
        """
        UPDATE orders o
        SET order_status = c.order_status, pending_replace_seq = c.pending_replace_seq,
            cancel_requested = c.cancel_requested, version = c.version, updated_at = $6::timestamptz
        FROM unnest(
            from_column($1)::uuid[], from_column($2), from_column($3)::bigint[], from_column($4)::boolean[],
            from_column($5)::bigint[]
        ) AS c (order_id, order_status, pending_replace_seq, cancel_requested, version)
        WHERE o.order_id = c.order_id
        """,
        (
            column(list(batch.changed_orders)),
            column([change.status for change in changes]),
            column([change.pending_replace_seq for change in changes]),
            column([str(change.cancel_requested) for change in changes]),
            column([str(change.version) for change in changes]),
            now,
        ),
    )


def hurry(intent_ids: Sequence[str]) -> Statement:
    """A cancelled intent's waiting rows are due now: its unsent CREATE is to be settled, not waited for."""
    return Statement(
        """
        UPDATE outbox SET due_at = clock_timestamp()
        WHERE queue = 'intents' AND order_key = ANY ($1::uuid[]) AND status = 'pending'
          AND due_at > (SELECT clock_timestamp())
        """,
        (f"{{{','.join(intent_ids)}}}",),
    )


def insert_refusals(rows: Sequence[tuple[str, ...]], now: str) -> Statement:
    """Each: id, organization, account, action type, symbol, reasons (comma separated), principal."""
    return Statement(
        """
        INSERT INTO refusals (id, organization_id, account_id, action_type, symbol, reasons, principal_id, created_at)
        SELECT id, organization_id, account_id, action_type, symbol, string_to_array(reasons, ','), principal_id,
               $8::timestamptz
        FROM unnest(
            from_column($1)::uuid[], from_column($2)::uuid[], from_column($3)::uuid[], from_column($4), from_column($5),
            from_column($6), from_column($7)
        ) AS new (id, organization_id, account_id, action_type, symbol, reasons, principal_id)
        """,
        (*map(column, zip(*rows, strict=True)), now),
    )
