"""Follows the log and the entries of counts: adds both to the buckets, each exactly once. Changes no action."""

from collections.abc import Mapping
from uuid import UUID

from trading_intents.stats.model import ORIGIN, WIDTHS_SECONDS
from trading_intents.storage.database import Tx

BEHIND_ACTIONS = 100  # a tail as short as this costs a read next to nothing, and counting it at once costs more
ROUND_ACCOUNTS = 20
ROUND_ACTIONS_EACH = 1_000
ROUND_ENTRIES = 5_000
ROUND_LIMIT_SECONDS = 30.0


async def add_entries(tx: Tx) -> bool:
    """Moves what was counted into the buckets, ROUND_ENTRIES at most. True: there may be more."""
    moved: int = await tx.fetchval(
        """
        WITH taken AS MATERIALIZED (
            DELETE FROM stats_entries
            WHERE ctid = ANY (ARRAY (SELECT ctid FROM stats_entries LIMIT $1 FOR UPDATE SKIP LOCKED))
            RETURNING *
        ), added AS (
            INSERT INTO stats_buckets AS b (account_id, width_seconds, start, measure, key, organization_id, amount)
            SELECT account_id, width, date_bin(make_interval(secs => width), at, $3) AS start, measure, key,
                   organization_id, sum(amount)
            FROM taken CROSS JOIN unnest($2::bigint[]) AS width
            GROUP BY account_id, width, start, measure, key, organization_id
            ORDER BY account_id, width, start, measure, key
            ON CONFLICT (account_id, width_seconds, start, measure, key)
            DO UPDATE SET amount = b.amount + excluded.amount
        )
        SELECT count(*) FROM taken
        """,
        ROUND_ENTRIES,
        WIDTHS_SECONDS,
        ORIGIN,
        timeout=ROUND_LIMIT_SECONDS,
    )
    return moved == ROUND_ENTRIES


async def roll_up(tx: Tx) -> bool:
    """Counts what is new, up to ROUND_ACTIONS_EACH actions of ROUND_ACCOUNTS accounts. True: there may be more.

    The heads move in the same transaction, under their locks: every action is counted exactly once, whoever dies when.
    What another process is counting is left to it.
    """
    heads = await _lock_heads(tx)
    most = await _count_actions(tx, heads) if heads else 0
    return most == ROUND_ACTIONS_EACH or len(heads) == ROUND_ACCOUNTS


async def _lock_heads(tx: Tx) -> Mapping[UUID, int]:
    """Of the accounts that are most behind."""
    behind = await tx.fetch(
        """
        SELECT account_id, h.organization_id
        FROM account_heads h LEFT JOIN stats_heads s USING (account_id)
        WHERE h.seq - coalesce(s.rolled_seq, 0) >= $2
        ORDER BY h.seq - coalesce(s.rolled_seq, 0) DESC LIMIT $1
        """,
        ROUND_ACCOUNTS,
        BEHIND_ACTIONS,
    )
    if not behind:
        return {}
    account_ids = [row["account_id"] for row in behind]
    await tx.execute(
        """
        INSERT INTO stats_heads (account_id, organization_id)
        SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS new (account_id, organization_id) ORDER BY account_id
        ON CONFLICT DO NOTHING
        """,
        account_ids,
        [row["organization_id"] for row in behind],
    )
    rows = await tx.fetch(
        """
        SELECT account_id, rolled_seq FROM stats_heads
        WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE SKIP LOCKED
        """,
        account_ids,
    )
    return {row["account_id"]: row["rolled_seq"] for row in rows}


async def _count_actions(tx: Tx, heads: Mapping[UUID, int]) -> int:
    """Gives the most that one account had."""
    rows = await tx.fetch(
        """
        WITH fresh AS MATERIALIZED (
            SELECT a.account_id, a.organization_id, a.seq, a.action_type, a.record::json ->> 'symbol' AS symbol,
                   date_bin('1 minute', a.created_at, $5) AS minute
            FROM unnest($1::uuid[], $2::bigint[]) AS head (account_id, rolled_seq)
            CROSS JOIN LATERAL (
                SELECT * FROM actions
                WHERE account_id = head.account_id AND seq > head.rolled_seq ORDER BY seq LIMIT $3
            ) AS a
        ), counted AS (
            INSERT INTO stats_buckets AS b (account_id, width_seconds, start, measure, key, organization_id, amount)
            SELECT account_id, width, date_bin(make_interval(secs => width), minute, $5) AS start, measure, key,
                   organization_id, sum(amount)
            FROM (
                SELECT account_id, organization_id, minute, action_type, symbol, count(*) AS amount
                FROM fresh GROUP BY account_id, organization_id, minute, action_type, symbol
            ) AS new
            CROSS JOIN LATERAL (VALUES ('action', action_type), ('symbol', symbol)) AS what (measure, key)
            CROSS JOIN unnest($4::bigint[]) AS width
            GROUP BY account_id, width, start, measure, key, organization_id
            ORDER BY account_id, width, start, measure, key
            ON CONFLICT (account_id, width_seconds, start, measure, key)
            DO UPDATE SET amount = b.amount + excluded.amount
        )
        UPDATE stats_heads s SET rolled_seq = done.seq
        FROM (SELECT account_id, max(seq) AS seq, count(*) AS amount FROM fresh GROUP BY account_id) AS done
        WHERE s.account_id = done.account_id
        RETURNING done.amount
        """,
        list(heads),
        list(heads.values()),
        ROUND_ACTIONS_EACH,
        WIDTHS_SECONDS,
        ORIGIN,
        timeout=ROUND_LIMIT_SECONDS,
    )
    return max((row["amount"] for row in rows), default=0)
