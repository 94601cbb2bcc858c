"""The tables of counts: the buckets, to which a worker adds what the journal counts and the entries
of what is refused, each exactly once."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.stats.model import (
    KEEP_SECONDS,
    OPEN,
    ORIGIN,
    WIDTHS_SECONDS,
    WINDOWS_SECONDS,
    Counted,
    Stats,
    Window,
    begin,
    cover,
    summarize,
)
from trading_intents.storage.database import Tx
from trading_intents.trading import ZERO, FrozenStruct

TAIL_PAGE_SEQS = 20_000
PRUNE_ROWS = 5_000
BEHIND_SEQS = 200  # a read counts so few itself; rolling them up at once would cost more
ROUND_ORGANIZATIONS = 20
ROUND_SEQS_EACH = 20_000  # the more at once, the fewer buckets change for each
ROUND_ENTRIES = 20_000
ROUND_LIMIT_SECONDS = 30.0
INSERTING_LOCK = 7469014  # an advisory lock


class _Head(FrozenStruct):
    """The journal of the account's organization: how far it is counted, and how far it goes."""

    organization_id: UUID
    rolled_seq: int
    seq: int
    now: datetime


# What the journal counts of a `span` of an organization's seqs, which are dense: a range is a page,
# and no plan can read more. Of one account, if it has one.
_COUNTED = """
    SELECT a.account_id, a.organization_id, a.created_at AS at, counted.measure, counted.key,
        1::numeric AS amount
    FROM actions a CROSS JOIN LATERAL (VALUES ('action', a.action_type),
        ('symbol', a.record::json ->> 'symbol')) AS counted (measure, key)
    WHERE a.organization_id = span.organization_id
        AND a.stream_seq > span.after AND a.stream_seq <= span.until
        AND (span.account_id IS NULL OR a.account_id = span.account_id)
    UNION ALL
    SELECT r.account_id, r.organization_id, coalesce((counted ->> 3)::timestamptz, r.at),
        counted ->> 0, counted ->> 1, (counted ->> 2)::numeric
    FROM reports r CROSS JOIN json_array_elements(r.counts) AS counted
    WHERE r.organization_id = span.organization_id AND r.seq > span.after AND r.seq <= span.until
        AND r.counts IS NOT NULL
        AND (span.account_id IS NULL OR r.account_id = span.account_id)
"""


async def read(tx: Tx, account_id: UUID, window: Window) -> Stats:
    """Reads in one snapshot (REPEATABLE READ): the buckets, and the part of the journal that they
    do not count yet."""
    row = await tx.fetchrow(
        # The clock is read after the snapshot is taken: nothing in it is later.
        """
        SELECT organization_id, coalesce(rolled_seq, 0) AS rolled_seq, coalesce(seq, 0) AS seq,
            clock_timestamp() AS now
        FROM accounts LEFT JOIN stream_heads USING (organization_id)
            LEFT JOIN stats_heads USING (organization_id)
        WHERE id = $1
        """,
        account_id,
    )
    assert row is not None
    head = _Head(**row)
    start = begin(window, head.now)
    _, unit_seconds = WINDOWS_SECONDS[window]
    counted = await _read_buckets(tx, account_id, cover(start, unit_seconds))
    counted += await _read_tail(tx, account_id, head, start)
    counted += await _read_entries(tx, account_id, start)
    counted += await _read_open(tx, account_id, start)
    totals: dict[tuple[str, str], Decimal] = {}
    for each in counted:
        name = (each.measure, each.key)
        totals[name] = totals.get(name, ZERO) + each.amount
    return summarize(window, start, head.now, totals)


async def _fetch_counted(tx: Tx, query: str, *arguments: object) -> list[Counted]:
    return [Counted(**row) for row in await tx.fetch(query, *arguments)]


async def _read_buckets(
    tx: Tx, account_id: UUID, ranges: Sequence[tuple[int, datetime, datetime]]
) -> list[Counted]:
    # OFFSET 0 keeps the ranges apart, each read by the key: joined plainly, the planner may prefer
    # the whole table.
    query = """
        SELECT b.measure, b.key, sum(b.amount) AS amount
        FROM unnest($2::bigint[], $3::timestamptz[], $4::timestamptz[]) AS r (width_seconds, first,
            past)
        CROSS JOIN LATERAL (
            SELECT measure, key, amount FROM stats_buckets
            WHERE account_id = $1 AND width_seconds = r.width_seconds AND start >= r.first
                AND start < r.past
            OFFSET 0
        ) AS b
        GROUP BY b.measure, b.key
    """
    return await _fetch_counted(tx, query, account_id, *zip(*ranges, strict=True))


async def _read_tail(tx: Tx, account_id: UUID, head: _Head, start: datetime) -> list[Counted]:
    """Reads page by page, usually one, so that no statement runs for very long when no worker
    ran."""
    query = f"""
        SELECT measure, key, sum(amount) AS amount
        FROM (SELECT $1::uuid AS account_id, $2::uuid AS organization_id, $3::bigint AS after,
            $4::bigint AS until OFFSET 0) AS span
        CROSS JOIN LATERAL ({_COUNTED}) AS entry
        WHERE at >= $5 GROUP BY measure, key
    """  # noqa: S608 - our own constants
    counted = []
    for after in range(head.rolled_seq, head.seq, TAIL_PAGE_SEQS):
        until = after + TAIL_PAGE_SEQS
        rows = await tx.fetch(query, account_id, head.organization_id, after, until, start)
        counted += [Counted(**row) for row in rows]
    return counted


async def _read_open(tx: Tx, account_id: UUID, start: datetime) -> list[Counted]:
    query = """
        SELECT $3::text AS measure, order_status AS key, count(*)::numeric AS amount FROM orders
        WHERE account_id = $1 AND created_at >= $2 AND finished_at IS NULL
        GROUP BY order_status
    """
    return await _fetch_counted(tx, query, account_id, start, OPEN)


async def _read_entries(tx: Tx, account_id: UUID, start: datetime) -> list[Counted]:
    query = """
        SELECT measure, key, sum(amount) AS amount FROM stats_entries
        WHERE account_id = $1 AND at >= $2
        GROUP BY measure, key
    """
    return await _fetch_counted(tx, query, account_id, start)


# Adds `counted` to the buckets of each width.
_ADD_TO_BUCKETS = """
    INSERT INTO stats_buckets AS b (account_id, width_seconds, start, measure, key, organization_id,
        amount)
    SELECT account_id, width, date_bin(make_interval(secs => width), at, $2) AS start, measure, key,
        organization_id,
           sum(amount)
    FROM counted CROSS JOIN unnest($1::bigint[]) AS width
    GROUP BY account_id, width, start, measure, key, organization_id
    ORDER BY account_id, width, start, measure, key
    ON CONFLICT (account_id, width_seconds, start, measure, key) DO UPDATE
    SET amount = b.amount + excluded.amount
"""


async def add_entries(tx: Tx) -> bool:
    """Moves entries into the buckets, at most ROUND_ENTRIES. True: there may be more."""
    query = f"""
        WITH counted AS MATERIALIZED (
            DELETE FROM stats_entries
            WHERE ctid = ANY (ARRAY (SELECT ctid FROM stats_entries LIMIT $3
                FOR UPDATE SKIP LOCKED))
            RETURNING *
        ), added AS ({_ADD_TO_BUCKETS})
        SELECT count(*) FROM counted
    """  # noqa: S608 - our own constants
    moved: int = await tx.fetchval(
        query, WIDTHS_SECONDS, ORIGIN, ROUND_ENTRIES, timeout=ROUND_LIMIT_SECONDS
    )
    return moved == ROUND_ENTRIES


async def roll_up(tx: Tx) -> bool:
    """Counts what is new, up to ROUND_SEQS_EACH of the journals of ROUND_ORGANIZATIONS. True: there
    may be more.

    The heads move in the same transaction, under their locks: everything is counted exactly once,
    whoever dies when. What another process is counting is left to it.
    """
    # Of organizations without one, unless another process inserts: its rows are locked until it has
    # counted.
    insert_heads = """
        INSERT INTO stats_heads (organization_id)
        SELECT organization_id FROM stream_heads h
        WHERE seq >= $1
          AND NOT EXISTS (SELECT FROM stats_heads s WHERE s.organization_id = h.organization_id)
          AND (SELECT pg_try_advisory_xact_lock($2))
        ON CONFLICT DO NOTHING
    """
    await tx.execute(insert_heads, BEHIND_SEQS, INSERTING_LOCK)
    count_journals = f"""
        WITH span AS MATERIALIZED (
            SELECT s.organization_id, NULL::uuid AS account_id, s.rolled_seq AS after,
                least(h.seq, s.rolled_seq + $5) AS until
            FROM stats_heads s JOIN stream_heads h USING (organization_id)
            WHERE h.seq - s.rolled_seq >= $4 ORDER BY h.seq - s.rolled_seq DESC LIMIT $3
            FOR UPDATE OF s SKIP LOCKED
        ), counted AS MATERIALIZED (
            SELECT entry.* FROM span CROSS JOIN LATERAL ({_COUNTED}) AS entry
        ), added AS ({_ADD_TO_BUCKETS}), rolled AS (
            UPDATE stats_heads s SET rolled_seq = until FROM span
            WHERE s.organization_id = span.organization_id
            RETURNING until - after AS amount
        )
        SELECT ARRAY (SELECT amount FROM rolled)
    """  # noqa: S608 - our own constants
    counted: list[int] = await tx.fetchval(
        count_journals,
        WIDTHS_SECONDS,
        ORIGIN,
        ROUND_ORGANIZATIONS,
        BEHIND_SEQS,
        ROUND_SEQS_EACH,
        timeout=ROUND_LIMIT_SECONDS,
    )
    return len(counted) == ROUND_ORGANIZATIONS or ROUND_SEQS_EACH in counted


async def prune(tx: Tx) -> bool:
    """Removes buckets that no window reaches any more, PRUNE_ROWS at most of each width. True:
    there may be more."""
    query = """
        WITH old AS MATERIALIZED (
            SELECT b.ctid AS tuple_id, b.width_seconds
            FROM unnest($1::bigint[], $2::bigint[]) AS kept (width_seconds, seconds)
            CROSS JOIN LATERAL (
                SELECT ctid, width_seconds FROM stats_buckets
                WHERE width_seconds = kept.width_seconds
                  AND start < (SELECT clock_timestamp()) - make_interval(secs => kept.seconds)
                ORDER BY start LIMIT $3
            ) AS b
        ), removed AS (
            DELETE FROM stats_buckets USING old WHERE stats_buckets.ctid = old.tuple_id
            RETURNING old.width_seconds
        )
        SELECT coalesce(max(count), 0)
        FROM (SELECT count(*) FROM removed GROUP BY width_seconds) AS counts (count)
    """
    removed: int = await tx.fetchval(
        query, list(KEEP_SECONDS), list(KEEP_SECONDS.values()), PRUNE_ROWS
    )
    return removed == PRUNE_ROWS
