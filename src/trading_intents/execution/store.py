"""Commands and look-ups in the database, one function per statement. Never decides. Times are the database's."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from trading_intents.controls.limits import store as limits
from trading_intents.controls.store import COLUMNS, HALT_LOCK, JOINS, was_halted
from trading_intents.orders.model import ALIVE
from trading_intents.outbox.intents_queue import CLAIMED_IDS
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pipeline import Reply, Statement, array_text

SWEEP_ROWS = 100
ACTION_TYPES = {"intent.create": "CREATE", "intent.replace": "REPLACE", "intent.cancel": "CANCEL"}
_ALIVE = ", ".join(f"'{kind}'" for kind in sorted(ALIVE))


async def lock_orders(tx: Tx, order_ids: Collection[UUID]) -> list[Row]:
    return await tx.fetch(
        "SELECT * FROM orders WHERE order_id = ANY ($1::uuid[]) ORDER BY order_id FOR UPDATE", sorted(order_ids)
    )


# Locks the orders of the rows that this transaction has claimed, without those that another transaction holds: a
# transaction that holds an order and waits for a row must not wait for us.
LOCK_CLAIMED_ORDERS = Statement(
    f"""
    SELECT order_id FROM orders
    WHERE order_id = ANY (ARRAY (SELECT order_key FROM outbox WHERE id = ANY ({CLAIMED_IDS})))
    ORDER BY order_id FOR UPDATE SKIP LOCKED
    """  # noqa: S608 - our own constants
)
# Gives the organizations of the claimed rows in which no halt begins or ends before this transaction's end.
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
    """A claimed row, its order, and all that decides whether it is sent, as PostgreSQL's texts. `claim_millis` is None
    when the account's lease is not ours any more."""

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
    SELECT asked.row_id, asked.event_type, asked.attempts, asked.organization_id, asked.account_id, asked.order_id,
        asked.seq, act.action_id, confirmed.action_id, act.record, asked.order_status, asked.external_order_id,
        asked.cancel_requested, asked.lookups, clock_timestamp(),
        (extract(epoch FROM clock_timestamp() - act.created_at) * 1000)::bigint,
        CASE WHEN lease.is_ours THEN (extract(epoch FROM clock_timestamp() - asked.claimed_at) * 1000)::bigint END,
        marked.sends, marked.is_open, asked.is_resend,
        EXISTS (SELECT FROM facts f WHERE f.order_id = asked.order_id AND f.kind IN ({_ALIVE}) OFFSET 0),
        asked.closes,
        EXISTS (
            SELECT FROM halts h
            WHERE h.scope_id IN (asked.organization_id, asked.account_id) AND h.resumed_at >= act.created_at OFFSET 0
        ),
        CASE WHEN asked.closes AND act.record::json ->> 'principal_type' = 'SYSTEM' THEN EXISTS (
            SELECT FROM halts h
            WHERE h.id = (act.record::json ->> 'principal_id')::uuid AND h.resumed_at IS NULL OFFSET 0
        ) END,
        asked.last_error, a.disabled, {COLUMNS}, {limits.COLUMNS}
    FROM (
        SELECT r.id AS row_id, r.event_type, r.attempts, r.organization_id, r.lane AS account_id,
            r.order_key AS order_id, (r.payload ->> 'seq')::bigint AS seq, r.payload ? 'resend' AS is_resend,
            r.claimed_at, r.last_error, ord.symbol, ord.order_status, ord.external_order_id, ord.cancel_requested,
            ord.lookups, ord.command_seq, ord.closes AND r.event_type = 'intent.create' AS closes
        FROM outbox r CROSS JOIN LATERAL (SELECT * FROM orders WHERE order_id = r.order_key LIMIT 1) ord
        WHERE r.id = ANY ({CLAIMED_IDS})
    ) AS asked
    {JOINS} {limits.JOINS}
    CROSS JOIN LATERAL (
        SELECT action_id, record, created_at FROM actions
        WHERE account_id = asked.account_id AND seq = asked.seq LIMIT 1
    ) act
    CROSS JOIN LATERAL (
        SELECT action_id FROM actions WHERE account_id = asked.account_id AND seq = asked.command_seq LIMIT 1
    ) confirmed
    CROSS JOIN LATERAL (
        SELECT count(*) AS sends,
            coalesce((array_agg(c.unclear_at IS NULL ORDER BY c.sent_at DESC))[1], false) AS is_open
        FROM commands c WHERE c.order_id = asked.order_id AND c.seq = asked.seq AND c.sent_at IS NOT NULL
    ) marked
    LEFT JOIN LATERAL (
        SELECT true AS is_ours FROM leases l JOIN workers w ON w.id = l.worker_id
        WHERE l.account_id = asked.account_id AND w.id = $1::uuid AND w.expires_at > clock_timestamp()
          AND l.token = ($3::bigint[])[array_position($2::uuid[], asked.account_id)]
        LIMIT 1
    ) lease ON true
    ORDER BY asked.row_id
"""  # noqa: S608 - our own constants


def read_claimed(worker_id: UUID, lease_tokens: Mapping[str, int]) -> Statement:
    """Reads the commands that this transaction has claimed, under the locks of their orders."""
    return Statement(
        _READ_CLAIMED, (str(worker_id), array_text(lease_tokens), array_text(map(str, lease_tokens.values())))
    )


def parse_claimed(reply: Reply) -> list[ClaimedCommand]:
    columns = len(ClaimedCommand._fields) - 1
    rows: list[list[Any]] = [[None if value is None else value.decode() for value in row] for row in reply.rows]
    return [ClaimedCommand._make((*row[:columns], tuple(row[columns:]))) for row in rows]


def mark_sent(commands: Sequence[tuple[ClaimedCommand, str]]) -> Statement:
    """Marks commands, each with its client order id: once this has committed, they may have been sent."""
    values = [
        (c.account_id, client_order_id, c.organization_id, c.order_id, c.seq, ACTION_TYPES[c.event_type])
        for c, client_order_id in commands
    ]
    return Statement(
        """
        INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq, action_type, sent_at)
        SELECT account_id, client_order_id, organization_id, order_id, seq, action_type, clock_timestamp()
        FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::bigint[], $6::text[])
             AS new (account_id, client_order_id, organization_id, order_id, seq, action_type)
        ON CONFLICT (account_id, client_order_id) DO UPDATE SET sent_at = excluded.sent_at, unclear_at = NULL
        """,
        tuple(array_text(column) for column in zip(*values, strict=True)),
    )


def unmarking_sent(commands: Sequence[tuple[UUID, str]]) -> Statement:
    """Takes marks back, by account and client order id: the broker provably received nothing."""
    return Statement(
        f"UPDATE commands c SET sent_at = NULL, unclear_at = NULL {_BY_NAME}",  # noqa: S608 - our own
        _names(commands),
    )


def marking_unclear(commands: Sequence[tuple[UUID, str]]) -> Statement:
    """Marks commands whose answer was lost, by account and client order id."""
    return Statement(
        f"""
        UPDATE commands c SET unclear_at = clock_timestamp(), sent_at = coalesce(sent_at, clock_timestamp())
        {_BY_NAME} AND unclear_at IS NULL
        """,  # noqa: S608 - our own
        _names(commands),
    )


_BY_NAME = """
    FROM unnest($1::text::uuid[], $2::text::text[]) AS n (account_id, name)
    WHERE c.account_id = n.account_id AND c.client_order_id = n.name
      AND c.account_id = ANY ($1::text::uuid[]) AND c.client_order_id = ANY ($2::text::text[])
"""


def _names(commands: Sequence[tuple[UUID, str]]) -> tuple[str, str]:
    return array_text(str(account_id) for account_id, _ in commands), array_text(name for _, name in commands)


def looking_up(order_ids: Collection[UUID], seconds: float) -> Statement:
    """Starts look-ups of these orders, or starts them again."""
    return Statement(
        """
        UPDATE orders
        SET lookup_due_at = clock_timestamp() + make_interval(secs => $2::text::float8), lookups = 0, absent_at = NULL
        WHERE order_id = ANY ($1::text::uuid[])
        """,
        (array_text(map(str, order_ids)), str(seconds)),
    )


async def look_up_unanswered(tx: Tx, account_ids: Sequence[UUID], seconds: float) -> bool:
    """Open orders with a command that the broker took so long ago, and that has not happened, are looked up. Whether
    there is any."""
    tag = await tx.execute(
        """
        UPDATE orders SET lookup_due_at = clock_timestamp(), lookups = 0, absent_at = NULL
        WHERE order_id = ANY (ARRAY (
            SELECT order_id FROM orders o
            WHERE account_id = ANY ($1::uuid[]) AND (cancel_requested OR pending_replace_seq IS NOT NULL)
              AND lookup_due_at IS NULL AND EXISTS (
                SELECT FROM commands c
                WHERE c.order_id = o.order_id AND c.sent_at < clock_timestamp() - make_interval(secs => $2)
                  AND (c.seq = o.pending_replace_seq OR c.action_type = 'CANCEL' AND o.cancel_requested)
                OFFSET 0
              )
            ORDER BY order_id FOR UPDATE SKIP LOCKED
        ))
        """,
        account_ids,
        seconds,
    )
    return tag != "UPDATE 0"


_UNRESOLVED = f"""
    SELECT o.order_id, o.account_id, o.organization_id, o.external_order_id, o.lookups, o.lookup_due_at, o.create_seq,
        o.pending_replace_seq,
        extract(epoch FROM clock_timestamp() - o.absent_at)::float8 AS absent_seconds,
        created.action_id AS create_action_id, confirmed.action_id AS confirmed_action_id,
        EXISTS (
            SELECT FROM commands c
            WHERE c.order_id = o.order_id AND c.seq = o.create_seq AND c.sent_at IS NOT NULL OFFSET 0
        ) AS is_sent,
        ARRAY (
            SELECT seq FROM commands c WHERE c.order_id = o.order_id AND c.restored_at IS NOT NULL
        ) AS restored_seqs,
        EXISTS (SELECT FROM actions WHERE intent_id = o.order_id AND action_type = 'CANCEL' OFFSET 0) AS was_cancelled,
        NOT o.closes AND {was_halted("o", "created.created_at")} AS was_halted,
        (
            SELECT client_order_id FROM commands c
            WHERE c.order_id = o.order_id AND c.seq = o.pending_replace_seq AND c.unclear_at IS NOT NULL
        ) AS replace_id,
        (
            SELECT client_order_id FROM commands c
            WHERE c.order_id = o.order_id AND c.action_type = 'CANCEL' AND c.unclear_at IS NOT NULL
              AND o.cancel_requested AND NOT queued.is_cancel  -- while a row is left the CANCEL is sent again
            ORDER BY c.seq LIMIT 1
        ) AS cancel_id,
        queued.is_cancel OR EXISTS (
            SELECT FROM commands c
            WHERE c.order_id = o.order_id AND c.action_type = 'CANCEL' AND c.unclear_at IS NULL
              AND c.sent_at > clock_timestamp() - interval '10 s'
            OFFSET 0
        ) AS is_cancelling,
        o.cancel_requested OR o.pending_replace_seq IS NOT NULL AS is_pending
    FROM orders o
    CROSS JOIN LATERAL (
        SELECT action_id, created_at FROM actions WHERE account_id = o.account_id AND seq = o.create_seq LIMIT 1
    ) AS created
    CROSS JOIN LATERAL (
        SELECT action_id FROM actions WHERE account_id = o.account_id AND seq = o.command_seq LIMIT 1
    ) AS confirmed
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS is_cancel FROM outbox r
        WHERE r.order_key = o.order_id AND r.queue = 'intents' AND r.event_type = 'intent.cancel'
          AND r.finished_at IS NULL
    ) AS queued
"""  # noqa: S608 - our own constants


async def due_lookups(tx: Tx, account_ids: Sequence[UUID], limit: int) -> list[Row]:
    """The orders of each account that are due first, so many at most."""
    return await tx.fetch(
        f"""
        {_UNRESOLVED} WHERE o.order_id = ANY (ARRAY (
            SELECT due.order_id FROM unnest($1::uuid[]) AS asked (account_id) CROSS JOIN LATERAL (
                SELECT order_id FROM orders
                WHERE account_id = asked.account_id AND lookup_due_at <= (SELECT clock_timestamp())
                ORDER BY lookup_due_at LIMIT $2
            ) AS due
        ))
        ORDER BY o.lookup_due_at
        """,  # noqa: S608 - our own constants
        account_ids,
        limit,
    )


async def read_unresolved(tx: Tx, order_id: UUID) -> Row:
    [row] = await tx.fetch(f"{_UNRESOLVED} WHERE o.order_id = $1", order_id)
    return row


async def plan_lookup(tx: Tx, order_id: UUID, after_seconds: float | None, is_absent: bool) -> None:
    """Sets the next look-up (None: none), and whether this one found that the unresolved command never arrived."""
    await tx.execute(
        """
        UPDATE orders
        SET lookup_due_at = clock_timestamp() + make_interval(secs => $2),
            lookups = CASE WHEN $2::float8 IS NULL THEN 0 ELSE lookups + 1 END,
            absent_at = CASE WHEN $3 THEN coalesce(absent_at, clock_timestamp()) END
        WHERE order_id = $1
        """,
        order_id,
        after_seconds,
        is_absent,
    )


async def clear_unclear(tx: Tx, account_id: UUID, client_order_id: str) -> None:
    await tx.execute(
        """
        UPDATE commands SET unclear_at = NULL
        WHERE (order_id, seq) = (SELECT order_id, seq FROM commands WHERE account_id = $1 AND client_order_id = $2)
        """,
        account_id,
        client_order_id,
    )


async def queue_behind(tx: Tx, order_id: UUID) -> None:
    """Moves the order's other waiting rows behind its CREATE, which was just queued again."""
    await tx.execute(
        """
        UPDATE outbox SET id = DEFAULT
        WHERE queue = 'intents' AND order_key = $1 AND finished_at IS NULL AND event_type <> 'intent.create'
        """,
        order_id,
    )


async def stale_orders(tx: Tx, account_ids: Sequence[UUID], again_seconds: float, limit: int) -> list[Row]:
    """Orders that worked longer than their symbol allows since the action they reflect, without a recent CANCEL."""
    return await tx.fetch(
        """
        SELECT o.order_id, o.account_id, o.organization_id
        FROM symbol_times t
        CROSS JOIN LATERAL (
            SELECT * FROM orders
            WHERE account_id = t.account_id AND symbol = t.symbol AND finished_at IS NULL AND NOT cancel_requested
              AND order_status IN ('NEW', 'PARTIALLY_FILLED', 'PENDING_REPLACE')
            OFFSET 0
        ) AS o
        CROSS JOIN LATERAL (
            SELECT created_at FROM actions WHERE account_id = o.account_id AND seq = o.command_seq LIMIT 1
        ) AS a
        WHERE t.stale_order_millis IS NOT NULL AND t.account_id = ANY ($1::uuid[])
          AND a.created_at < clock_timestamp() - make_interval(secs => t.stale_order_millis / 1000.0)
          AND NOT EXISTS (
            SELECT FROM actions c
            WHERE c.intent_id = o.order_id AND c.action_type = 'CANCEL'
              AND c.created_at > clock_timestamp() - make_interval(secs => $2)
            OFFSET 0
          )
        ORDER BY array_position($1::uuid[], o.account_id), o.order_id LIMIT $3
        """,
        account_ids,
        again_seconds,
        limit,
    )


async def used_up(tx: Tx, lanes: Sequence[UUID], attempt_limit: int, claim_seconds: float) -> list[Row]:
    """Rows that are to fail: no attempt is left, and no worker runs the last one."""
    return await tx.fetch(
        """
        WITH ended AS MATERIALIZED (
            SELECT * FROM outbox
            WHERE lane = ANY ($1::uuid[]) AND finished_at IS NULL AND attempts >= $2
              AND (status = 'pending' OR claimed_at < (SELECT clock_timestamp()) - make_interval(secs => $3))
        )
        SELECT r.id, r.order_key, r.lane, r.event_type, r.last_error, a.action_id,
               EXISTS (
                   SELECT FROM commands c
                   WHERE c.order_id = r.order_key AND c.seq = a.seq AND c.sent_at IS NOT NULL OFFSET 0
               ) AS is_sent
        FROM ended r CROSS JOIN LATERAL (
            SELECT action_id, seq FROM actions
            WHERE account_id = r.lane AND seq = (r.payload ->> 'seq')::bigint LIMIT 1
        ) AS a
        ORDER BY r.id LIMIT $4
        """,
        lanes,
        attempt_limit,
        claim_seconds,
        SWEEP_ROWS,
    )
