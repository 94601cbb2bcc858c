"""Claimed commands in the database: what they are decided by, and the marks of their sends. Never
decides. Times are the database's."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from msgspec.structs import astuple

from trading_intents.controls.model import Subject
from trading_intents.controls.store import HALT_LOCK
from trading_intents.execution.model import CommandState
from trading_intents.ids import IdText
from trading_intents.orders.model import ALIVE
from trading_intents.outbox.intents_queue import CLAIMED_IDS
from trading_intents.storage.pipeline import (
    Reply,
    RowParameters,
    Statement,
    array_text,
    column_types,
)
from trading_intents.trading import (
    FrozenStruct,
    Leg,
    OrderSide,
    RouteStrategy,
    Symbol,
    VersionTerms,
)

ACTION_TYPES = {"intent.create": "CREATE", "intent.replace": "REPLACE", "intent.cancel": "CANCEL"}
# Of facts by which an order is acknowledged.
SHOWN_KINDS = ", ".join(f"'{kind}'" for kind in sorted(ALIVE))
# A command of the order `o` is claimed: a worker awaits its answer, or has ended, and then the
# next claim looks the order up.
IS_CLAIMED = """
    EXISTS (
        SELECT FROM outbox r
        WHERE r.order_key = o.order_id AND r.queue = 'intents' AND r.finished_at IS NULL
          AND r.status = 'processing' OFFSET 0
    )
"""
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


class TicketRecord(VersionTerms, kw_only=True):
    """The fields of an action's record that a ticket needs."""

    symbol: Symbol
    order_side: OrderSide
    order_type: str
    route_strategy: RouteStrategy


class ClaimedLeg(FrozenStruct):
    order_id: IdText
    seq: int
    leg: Leg
    action_id: UUID
    record: TicketRecord


class ClaimedCommand(CommandState, kw_only=True):
    """A claimed row, its order, and all that decides whether it is sent."""

    row_id: int
    event_type: str
    attempts: int
    organization_id: IdText
    account_id: IdText
    order_id: IdText
    seq: int
    action_id: UUID
    confirmed_action_id: UUID
    record: TicketRecord
    legs: tuple[ClaimedLeg, ...]  # of a CREATE: those that are sent with it
    external_order_id: str | None
    is_ours: bool  # the account's lease is
    sends: int  # attempts that are marked
    is_open: bool  # whether the last attempt's outcome is not recorded
    last_error: str | None  # of its last attempt
    closes: bool  # a CREATE that closes a position
    is_halted_since: bool  # a halt has ended since it was accepted
    rule_version: str | None  # of its organization

    @property
    def subject(self) -> Subject:
        """No key's limits are judged again."""
        return Subject(self.organization_id, self.account_id, None, self.record.symbol)


# LATERAL with LIMIT allows only look-ups by key.
_READ_CLAIMED = f"""
    SELECT row_to_json(claimed)::text FROM (
    SELECT asked.row_id, asked.event_type, asked.attempts, asked.organization_id, asked.account_id,
        asked.order_id, asked.seq, act.action_id, confirmed.action_id AS confirmed_action_id,
        act.record::json, asked.leg IS NOT NULL AS is_leg, linked.legs, asked.order_status,
        asked.external_order_id, asked.cancel_requested, asked.lookups, clock_timestamp() AS now,
        extract(epoch FROM clock_timestamp() - act.created_at) AS age_seconds,
        coalesce(lease.is_ours, false) AS is_ours, marked.sends, marked.is_open, asked.is_resend,
        EXISTS (
            SELECT FROM reports r CROSS JOIN json_array_elements(r.facts) AS fact
            WHERE r.order_id = asked.order_id AND r.facts IS NOT NULL
                AND fact ->> 'kind' IN ({SHOWN_KINDS}) OFFSET 0
        ) AS acknowledged,
        asked.closes,
        EXISTS (
            SELECT FROM halts h
            WHERE h.scope_id IN (asked.organization_id, asked.account_id)
                AND h.resumed_at >= act.created_at OFFSET 0
        ) AS is_halted_since,
        CASE WHEN asked.closes AND act.record::json ->> 'principal_type' = 'SYSTEM' THEN EXISTS (
            SELECT FROM halts h
            WHERE h.id = (act.record::json ->> 'principal_id')::uuid
                AND h.resumed_at IS NULL OFFSET 0
        ) END AS halt_stands,
        asked.last_error, (
            SELECT version::text FROM rule_versions
            WHERE organization_id = asked.organization_id LIMIT 1
        ) AS rule_version
    FROM (
        SELECT r.id AS row_id, r.event_type, r.attempts, r.organization_id, r.lane AS account_id,
            r.order_key AS order_id, (r.payload ->> 'seq')::bigint AS seq,
                r.payload ? 'resend' AS is_resend,
            r.last_error, ord.symbol, ord.order_status, ord.external_order_id,
                ord.cancel_requested,
            ord.lookups, ord.command_seq, ord.leg, ord.linked
                AND r.event_type = 'intent.create' AS has_legs,
            ord.closes AND r.event_type = 'intent.create' AS closes
        FROM outbox r CROSS JOIN LATERAL (SELECT * FROM orders WHERE order_id = r.order_key
            LIMIT 1) ord
        WHERE r.id = ANY ({CLAIMED_IDS})
    ) AS asked
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
        SELECT coalesce(json_agg(json_build_object(
            'order_id', o.order_id, 'seq', o.create_seq, 'leg', o.leg, 'action_id', made.action_id,
            'record', made.record::json
        )), '[]') AS legs
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
    ) AS claimed
    ORDER BY row_id
"""  # noqa: S608 - our own constants


def read_claimed(worker_id: UUID, lease_tokens: Mapping[str, int]) -> Statement:
    """Reads the commands that this transaction has claimed, under the locks of their orders."""
    return Statement(
        _READ_CLAIMED,
        (str(worker_id), array_text(lease_tokens), array_text(map(str, lease_tokens.values()))),
    )


def parse_claimed(reply: Reply) -> list[ClaimedCommand]:
    return reply.parse(ClaimedCommand)


class MarkedCommand(FrozenStruct, kw_only=True):
    account_id: IdText
    client_order_id: str
    organization_id: IdText
    order_id: IdText
    seq: int
    action_type: str


MARKED = RowParameters(column_types(MarkedCommand))
_MARK_SENT = f"""
    INSERT INTO commands ({MARKED.columns}, sent_at)
    SELECT {MARKED.columns}, clock_timestamp() FROM {MARKED.rows} AS n
    ON CONFLICT (account_id, client_order_id) DO UPDATE
    SET sent_at = excluded.sent_at, unclear_at = NULL
"""  # noqa: S608 - our own constants


def mark_sent(commands: Sequence[MarkedCommand]) -> Statement:
    """Marks commands: once this has committed, they may have been sent."""
    return Statement(_MARK_SENT, MARKED.pack(map(astuple, commands)))
