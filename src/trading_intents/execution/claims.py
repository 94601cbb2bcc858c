"""Claimed commands in the database: what they are decided by, and the marks of their sends. Never
decides. Times are the database's."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from trading_intents.controls.limits import store as limits
from trading_intents.controls.store import CONTROLS, HALT_LOCK, JOINS
from trading_intents.orders.model import ALIVE
from trading_intents.outbox.intents_queue import CLAIMED_IDS
from trading_intents.storage.pipeline import Reply, Statement, array_text

ACTION_TYPES = {"intent.create": "CREATE", "intent.replace": "REPLACE", "intent.cancel": "CANCEL"}
# Of facts by which an order is acknowledged.
SHOWN_KINDS = ", ".join(f"'{kind}'" for kind in sorted(ALIVE))
# Locks the orders of the rows that this transaction has claimed, without those that another
# transaction holds: a transaction that holds an order and waits for a row must not wait for us.
LOCK_CLAIMED_ORDERS = Statement(
    f"""
    SELECT order_id FROM orders
    WHERE order_id = ANY (ARRAY (SELECT order_key FROM outbox WHERE id = ANY ({CLAIMED_IDS})))
    ORDER BY order_id FOR UPDATE SKIP LOCKED
    """  # noqa: S608 - our own constants
)
# Gives the organizations of the claimed rows in which no halt begins or ends before this
# transaction's end.
SHARE_HALT_LOCKS = Statement(
    f"""
    SELECT organization_id FROM (
        SELECT DISTINCT organization_id FROM outbox WHERE id = ANY ({CLAIMED_IDS})
    ) AS claimed
    WHERE NOT EXISTS (SELECT FROM stream_epoch WHERE lost_tail IS NOT NULL)
      AND pg_try_advisory_xact_lock_shared({HALT_LOCK}, hashtext(organization_id::text))
    """  # noqa: S608 - our own constants
)


class ClaimedCommand(NamedTuple):
    """A claimed row, its order, and all that decides whether it is sent, as PostgreSQL's texts.
    `claim_millis` is None when the account's lease is not ours any more."""

    row_id: str
    event_type: str
    attempts: str
    organization_id: str
    account_id: str
    order_id: str
    seq: str
    action_id: str
    confirmed_action_id: str
    record: str
    leg: str | None
    legs: str | None  # of a CREATE: those that are sent with it, as JSON
    order_status: str
    external_order_id: str | None
    cancel_requested: str
    lookups: str
    now: str
    age_millis: str
    claim_millis: str | None
    sends: str  # attempts that are marked
    is_open: str  # whether the last attempt's outcome is not recorded
    is_resend: str
    acknowledged: str
    closes: str  # whether it is a CREATE that closes a position
    is_halted_since: str  # whether a halt has ended since it was accepted
    halt_stands: str | None  # of the halt that made it; None: no halt did
    last_error: str | None  # of its last attempt
    account_disabled: str
    controls: tuple[str | None, ...]  # and the limits of the three levels


# LATERAL with LIMIT allows only look-ups by key.
_READ_CLAIMED = f"""
    SELECT asked.row_id, asked.event_type, asked.attempts, asked.organization_id, asked.account_id,
        asked.order_id,
        asked.seq, act.action_id, confirmed.action_id, act.record, asked.leg, linked.legs,
            asked.order_status,
        asked.external_order_id,
        asked.cancel_requested, asked.lookups, clock_timestamp(),
        (extract(epoch FROM clock_timestamp() - act.created_at) * 1000)::bigint,
        CASE WHEN lease.is_ours
            THEN (extract(epoch FROM clock_timestamp() - asked.claimed_at) * 1000)::bigint END,
        marked.sends, marked.is_open, asked.is_resend,
        EXISTS (SELECT FROM facts f WHERE f.order_id = asked.order_id
            AND f.kind IN ({SHOWN_KINDS}) OFFSET 0),
        asked.closes,
        EXISTS (
            SELECT FROM halts h
            WHERE h.scope_id IN (asked.organization_id, asked.account_id)
                AND h.resumed_at >= act.created_at OFFSET 0
        ),
        CASE WHEN asked.closes AND act.record::json ->> 'principal_type' = 'SYSTEM' THEN EXISTS (
            SELECT FROM halts h
            WHERE h.id = (act.record::json ->> 'principal_id')::uuid
                AND h.resumed_at IS NULL OFFSET 0
        ) END,
        asked.last_error, a.disabled, ({CONTROLS})::text, {limits.COLUMNS}
    FROM (
        SELECT r.id AS row_id, r.event_type, r.attempts, r.organization_id, r.lane AS account_id,
            r.order_key AS order_id, (r.payload ->> 'seq')::bigint AS seq,
                r.payload ? 'resend' AS is_resend,
            r.claimed_at, r.last_error, ord.symbol, ord.order_status, ord.external_order_id,
                ord.cancel_requested,
            ord.lookups, ord.command_seq, ord.leg, ord.linked
                AND r.event_type = 'intent.create' AS has_legs,
            ord.closes AND r.event_type = 'intent.create' AS closes
        FROM outbox r CROSS JOIN LATERAL (SELECT * FROM orders WHERE order_id = r.order_key
            LIMIT 1) ord
        WHERE r.id = ANY ({CLAIMED_IDS})
    ) AS asked
    {JOINS} {limits.JOINS}
    CROSS JOIN LATERAL (
        SELECT action_id, record, created_at FROM actions
        WHERE account_id = asked.account_id AND seq = asked.seq LIMIT 1
    ) act
    CROSS JOIN LATERAL (
        SELECT action_id FROM actions WHERE account_id = asked.account_id
            AND seq = asked.command_seq LIMIT 1
    ) confirmed
    CROSS JOIN LATERAL (
        SELECT count(*) AS sends,
            coalesce((array_agg(c.unclear_at IS NULL ORDER BY c.sent_at DESC))[1], false) AS is_open
        FROM commands c WHERE c.order_id = asked.order_id AND c.seq = asked.seq
            AND c.sent_at IS NOT NULL
    ) marked
    CROSS JOIN LATERAL (
        SELECT json_agg(json_build_object(
            'order_id', o.order_id, 'seq', o.create_seq, 'leg', o.leg, 'action_id', made.action_id,
            'record', made.record::json
        )) AS legs
        FROM (
            SELECT order_id, create_seq, leg FROM orders
            WHERE asked.has_legs AND account_id = asked.account_id
              AND parent_order_id BETWEEN asked.order_id AND asked.order_id
            ORDER BY parent_order_id, create_seq
        ) AS o
        CROSS JOIN LATERAL (
            SELECT action_id, record FROM actions
            WHERE account_id = asked.account_id AND seq = o.create_seq LIMIT 1
        ) AS made
    ) AS linked
    LEFT JOIN LATERAL (
        SELECT true AS is_ours FROM leases l JOIN workers w ON w.id = l.worker_id
        WHERE l.account_id = asked.account_id AND w.id = $1::uuid
            AND w.expires_at > clock_timestamp()
          AND l.token = ($3::bigint[])[array_position($2::uuid[], asked.account_id)]
        LIMIT 1
    ) lease ON true
    ORDER BY asked.row_id
"""  # noqa: S608 - our own constants


def read_claimed(worker_id: UUID, lease_tokens: Mapping[str, int]) -> Statement:
    """Reads the commands that this transaction has claimed, under the locks of their orders."""
    return Statement(
        _READ_CLAIMED,
        (str(worker_id), array_text(lease_tokens), array_text(map(str, lease_tokens.values()))),
    )


def parse_claimed(reply: Reply) -> list[ClaimedCommand]:
    columns = len(ClaimedCommand._fields) - 1
    rows: list[list[Any]] = [
        [None if value is None else value.decode() for value in row] for row in reply.rows
    ]
    return [ClaimedCommand._make((*row[:columns], tuple(row[columns:]))) for row in rows]


class MarkedCommand(NamedTuple):
    account_id: str
    client_order_id: str
    organization_id: str
    order_id: str
    seq: str
    action_type: str


def mark_sent(commands: Sequence[MarkedCommand]) -> Statement:
    """Marks commands: once this has committed, they may have been sent."""
    sql = """
        INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq,
            action_type, sent_at)
        SELECT account_id, client_order_id, organization_id, order_id, seq, action_type,
            clock_timestamp()
        FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::bigint[], $6::text[])
             AS new (account_id, client_order_id, organization_id, order_id, seq, action_type)
        ON CONFLICT (account_id, client_order_id) DO UPDATE
        SET sent_at = excluded.sent_at, unclear_at = NULL
    """
    return Statement(sql, tuple(array_text(column) for column in zip(*commands, strict=True)))
