"""The statements by which a batch locks, reads and appends, for a pipeline. Arguments are texts: see `pack_array`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from trading_intents.intents.store import ActionPlace
from trading_intents.intents.writing.record import OrderTexts, Record
from trading_intents.storage.database import pack_array
from trading_intents.storage.pipeline import Statement, array_text

_BEGIN = Statement("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
COMMIT = Statement("COMMIT")
ROLLBACK = Statement("ROLLBACK")

LOCK_LIMIT_SECONDS = 0.02  # on the writer's own connection, where every other command waits meanwhile


class Locking(NamedTuple):
    """What is done about account heads that another transaction has locked, how long to wait for any lock, and whether
    reads may take long: those of a log of which nothing is known."""

    clause: str
    timeout: str = ""  # empty: the session's
    may_take_long: bool = False


SKIP = Locking("SKIP LOCKED")  # the batch leaves their accounts out
SKIP_AT_ONCE = Locking("SKIP LOCKED", "1ms")
WAIT = Locking("", "100ms", may_take_long=True)


def begin(organization_ids: Iterable[str], locking: Locking) -> list[Statement]:
    seen = array_text(organization_ids)
    timeout = [Statement(f"SET LOCAL lock_timeout = '{locking.timeout}'")] if locking.timeout else ()
    return [_BEGIN, Statement("SELECT set_config('trading_intents.organizations', $1, true)", (seen,)), *timeout]


def lock_heads(account_ids: Sequence[str], locking: Locking) -> Statement:
    """Locks the heads in the order of their ids, as every transaction does."""
    if len(account_ids) == 1:
        return Statement(f"{_LOCK_HEAD} {locking.clause}", tuple(account_ids))
    return Statement(f"{_LOCK_HEADS} {locking.clause}", (array_text(account_ids),))


_LOCK_HEAD = "SELECT account_id, seq, hash FROM account_heads WHERE account_id = $1::uuid FOR UPDATE"
_LOCK_HEADS = """
    SELECT account_id, seq, hash FROM account_heads
    WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE
"""


class Kind(StrEnum):
    """What a row of `read_versions` or `read_rules` is about."""

    CLOCK = "clock"
    RULES = "rules"
    ACCOUNT = "account"
    KEY = "key"
    SWITCH = "switch"
    WINDOW = "window"
    HALT = "halt"
    LIMIT = "limit"


def read_rules(
    organization_ids: Iterable[str], account_ids: Iterable[str], key_ids: Iterable[str], symbols: Iterable[str]
) -> Statement:
    """Reads accounts, keys, controls and limits, with the version that they have, as rows of texts: a `Kind`, then its
    columns."""
    values = list(map(list, (organization_ids, account_ids, key_ids, symbols)))
    if all(len(each) == 1 for each in values):
        return Statement(_READ_ONE_RULES, tuple(value for (value,) in values))
    *ids, names = values
    return Statement(_READ_RULES, (*map(array_text, ids), pack_array(names)))


def read_versions(organization_ids: Iterable[str]) -> Statement:
    """Reads the clock, the transaction's id, and the versions of the organizations' rules. It runs after the heads are
    locked, so a change that was answered before is seen."""
    return Statement(_READ_VERSIONS, (array_text(organization_ids),))


_READ_VERSIONS = """
    SELECT 'clock', clock_timestamp()::text, pg_current_xact_id()::text
    UNION ALL
    SELECT 'rules', organization_id::text, version::text FROM rule_versions WHERE organization_id = ANY ($1::uuid[])
"""
# A control's row has its organization or account, and a symbol or an empty text. Switches that are off are not sent.
_RULES = """
    SELECT 'rules', organization_id::text, version::text, NULL, NULL, NULL, NULL, NULL
    FROM rule_versions WHERE organization_id {organization}
    UNION ALL
    SELECT 'account', id::text, organization_id::text, environment, broker, disabled::text,
           (closed_at IS NOT NULL)::text, has_credential::text
    FROM accounts WHERE id {account}
    UNION ALL
    SELECT 'key', k.id::text, k.organization_id::text, k.environment, k.permissions::text, g.entitlements::text,
           (k.disabled OR g.disabled)::text, k.expires_at::text
    FROM api_keys k JOIN organizations g ON g.id = k.organization_id WHERE k.id {key}
    UNION ALL
    SELECT 'switch', organization_id::text, '', manual_reason, NULL, NULL, NULL, NULL
    FROM organization_controls WHERE organization_id {organization} AND manually_disabled
    UNION ALL
    SELECT 'switch', account_id::text, '', manual_reason, NULL, NULL, NULL, NULL
    FROM account_controls WHERE account_id {account} AND manually_disabled
    UNION ALL
    SELECT 'switch', account_id::text, symbol, manual_reason, NULL, NULL, NULL, NULL
    FROM symbol_controls
    WHERE account_id {account} AND symbol {symbol} AND manually_disabled
    UNION ALL
    SELECT 'window', account_id::text, symbol, trading_start::text, trading_end::text, stale_order_millis::text,
           timezone, NULL
    FROM symbol_times WHERE account_id {account} AND symbol {symbol}
    UNION ALL
    SELECT 'halt', organization_id::text, id::text, reason, NULL, NULL, NULL, NULL
    FROM halts
    WHERE scope_id {organization} AND resumed_at IS NULL
    UNION ALL
    SELECT 'halt', account_id::text, id::text, reason, NULL, NULL, NULL, NULL
    FROM halts
    WHERE scope_id {account} AND resumed_at IS NULL
    UNION ALL
    SELECT 'limit', owner_id::text, symbol, rules::text, NULL, NULL, NULL, NULL
    FROM trading_limits WHERE owner_id {organization} AND symbol = ''
    UNION ALL
    SELECT 'limit', owner_id::text, symbol, rules::text, NULL, NULL, NULL, NULL
    FROM trading_limits WHERE owner_id {account} AND symbol {symbol_or_none}
"""
_READ_RULES = _RULES.format(
    organization="= ANY ($1::uuid[])",
    account="= ANY ($2::uuid[])",
    key="= ANY ($3::uuid[])",
    symbol="= ANY (from_column($4))",
    symbol_or_none="= ANY (array_prepend('', from_column($4)))",
)
_READ_ONE_RULES = _RULES.format(
    organization="= $1::uuid",
    account="= $2::uuid",
    key="= $3::uuid",
    symbol="= $4::text",
    symbol_or_none="IN ('', $4::text)",
)


def read_earlier(keyed: Sequence[tuple[str, str]]) -> Statement:
    return Statement(
        """
        SELECT a.account_id, a.idempotency_key, encode(a.body_digest, 'hex'), a.intent_id, a.seq
        FROM unnest(from_column($1)::uuid[], from_column($2)) AS wanted (account_id, key)
        CROSS JOIN LATERAL (
            SELECT * FROM actions WHERE account_id = wanted.account_id
              AND idempotency_key BETWEEN wanted.key AND wanted.key ORDER BY idempotency_key LIMIT 1
        ) AS a
        """,
        tuple(map(pack_array, zip(*keyed, strict=True))),
    )


_ORDER_COLUMNS = ", ".join(OrderTexts._fields).replace("flags", "array_to_string(flags, ',')")


def lock_orders(order_ids: Sequence[str]) -> Statement:
    return Statement(
        f"""
        SELECT {_ORDER_COLUMNS} FROM orders
        WHERE order_id = ANY ($1::uuid[]) ORDER BY order_id FOR UPDATE
        """,  # noqa: S608 - our own constants
        (array_text(order_ids),),
    )


class NewAction(NamedTuple):
    """An action's record, and what its rows have beside it: in `actions`, in the outbox and, of a CREATE, in orders."""

    record: Record
    seq: str
    text: str  # of the record, which is hashed
    hash: str
    broker: str
    idempotency_key: str | None
    body_digest: str | None
    closes: str
    opens: str  # the quantity by which it changes what is open


class OrderChange(NamedTuple):
    status: str
    pending_replace_seq: str | None
    cancel_requested: bool
    version: int


@dataclass(slots=True)
class BatchWrites:
    """What one transaction appends and changes."""

    actions: list[NewAction] = field(default_factory=list)
    changed_orders: dict[str, OrderChange] = field(default_factory=dict)
    cancelled_intents: list[str] = field(default_factory=list)

    def last(self) -> ActionPlace | None:
        """One of the actions, whose row proves that the commit happened."""
        if not self.actions:
            return None
        record, digest = self.actions[-1].record, self.actions[-1].hash
        return ActionPlace(record.account_id, record.seq, digest)


# The columns of the statement that appends: the type of each, and where an action has it.
_COLUMNS = {
    "account_id": ("uuid", "record.account_id"),
    "seq": ("bigint", "seq"),
    "intent_id": ("uuid", "record.intent_id"),
    "organization_id": ("uuid", "record.organization_id"),
    "action_type": ("text", "record.action_type"),
    "idempotency_key": ("text", "idempotency_key"),
    "body_digest": ("text", "body_digest"),
    "record": ("text", "text"),
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
    "client_reference_id": ("text", "record.client_reference_id"),
    "closes": ("boolean", "closes"),
    "opens": ("numeric", "opens"),
}
_values = attrgetter(*(path for _, path in _COLUMNS.values()))
# In one statement, so that each value is sent and parsed once. A head moves to its account's last row. Sums of open
# orders change in the order in which recorders lock them too.
_APPEND = """
    WITH new ({columns}) AS {kept} (SELECT * FROM {rows}),
    recorded AS (
        INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type, idempotency_key, body_digest,
                             record, hash, created_at, action_id)
        SELECT account_id, seq, intent_id, organization_id, action_type, idempotency_key, decode(body_digest, 'hex'),
               record, hash, $1::timestamptz,
               CASE action_type WHEN 'CREATE' THEN intent_id ELSE gen_random_uuid() END
        FROM new
    ),
    ordered AS (
        INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq, command_seq,
                            symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
                            stop_price, client_reference_id, received_at, created_at, updated_at, closes)
        SELECT intent_id, account_id, organization_id, environment, broker, seq, seq,
               symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
               stop_price, client_reference_id, $1::timestamptz, $1::timestamptz, $1::timestamptz, closes
        FROM new WHERE action_type = 'CREATE'
    ),
    exposed AS (
        INSERT INTO exposures AS e (account_id, symbol, organization_id, open_orders, open_buy, open_sell)
        SELECT account_id, symbol, organization_id, count(*) FILTER (WHERE action_type = 'CREATE'),
               coalesce(sum(opens) FILTER (WHERE order_side = 'BUY'), 0),
               coalesce(sum(opens) FILTER (WHERE order_side <> 'BUY'), 0)
        FROM new WHERE opens <> 0 GROUP BY account_id, symbol, organization_id ORDER BY account_id, symbol COLLATE "C"
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET open_orders = e.open_orders + excluded.open_orders, open_buy = e.open_buy + excluded.open_buy,
            open_sell = e.open_sell + excluded.open_sell
    ),
    moved AS (
        UPDATE account_heads h SET seq = last.seq, hash = last.hash
        FROM {last} AS last
        WHERE h.account_id = last.account_id AND h.account_id = ANY (ARRAY (SELECT account_id FROM new))
    )
    INSERT INTO outbox (queue, event_type, organization_id, order_key, lane, payload, urgent)
    SELECT 'intents', 'intent.' || lower(action_type), organization_id, intent_id, account_id,
           jsonb_build_object('seq', seq), action_type = 'CANCEL'
    FROM new
"""


_PLACES = [(f"${number}", kind) for number, (kind, _) in enumerate(_COLUMNS.values(), 2)]
# A single row is sent as plain values, which takes the server half the time.
_APPEND_ONE = _APPEND.format(
    columns=", ".join(_COLUMNS),
    kept="NOT MATERIALIZED",
    rows=f"(VALUES ({', '.join(f'{place}::{kind}' for place, kind in _PLACES)})) AS one",
    last="new",
)
_APPEND_MANY = _APPEND.format(
    columns=", ".join(_COLUMNS),
    kept="MATERIALIZED",
    rows=f"unnest({', '.join(f'from_column({place})::{kind}[]' for place, kind in _PLACES)})",
    last="(SELECT DISTINCT ON (account_id) account_id, seq, hash FROM new ORDER BY account_id, seq DESC)",
)


def append(batch: BatchWrites, now: str) -> Statement:
    """Inserts actions, their PENDING_NEW orders and their outbox rows, counts what is open, and moves the heads."""
    if len(batch.actions) == 1:
        return Statement(_APPEND_ONE, (now, *_values(batch.actions[0])))
    return Statement(_APPEND_MANY, (now, *map(pack_array, zip(*map(_values, batch.actions), strict=True))))


def mark_orders(batch: BatchWrites, now: str) -> Statement:
    """Marks the orders that REPLACEs and CANCELs name as pending."""
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
        WHERE o.order_id = c.order_id AND o.order_id = ANY (from_column($1)::uuid[])
        """,
        (
            pack_array(list(batch.changed_orders)),
            pack_array([change.status for change in changes]),
            pack_array([change.pending_replace_seq for change in changes]),
            pack_array([str(change.cancel_requested) for change in changes]),
            pack_array([str(change.version) for change in changes]),
            now,
        ),
    )


def make_due_now(intent_ids: Sequence[str]) -> Statement:
    """Makes the waiting rows of cancelled intents due now, before others: an unsent CREATE is settled without delay."""
    return Statement(
        """
        UPDATE outbox SET due_at = least(due_at, clock_timestamp()), urgent = true
        WHERE queue = 'intents' AND order_key = ANY ($1::uuid[]) AND finished_at IS NULL AND status = 'pending'
        """,
        (array_text(intent_ids),),
    )


def insert_refusals(rows: Sequence[tuple[str, ...]], now: str) -> Statement:
    """A row has an id, organization, account, action type, symbol, reasons (separated by commas) and principal."""
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
        (*map(pack_array, zip(*rows, strict=True)), now),
    )
