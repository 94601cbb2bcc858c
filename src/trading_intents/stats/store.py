"""The tables of counts: entries, written where something happens, and the buckets that a worker adds them to. Never
decides."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.stats.model import (
    KEEP_SECONDS,
    OPEN,
    ORIGIN,
    WIDTHS_SECONDS,
    WINDOWS_SECONDS,
    Measure,
    Stats,
    StatsEntry,
    Window,
    begin,
    cover,
    summarize,
)
from trading_intents.storage.database import Tx, pack_array
from trading_intents.storage.pipeline import Statement

TAIL_PAGE_ACTIONS = 10_000
PRUNE_ROWS = 5_000
ROUND_LIMIT_SECONDS = 30.0

Counted = Sequence[tuple[str, str, Decimal]]  # measure, key, amount


async def read(tx: Tx, account_id: UUID, window: Window) -> Stats:
    """Reads in one snapshot (REPEATABLE READ): the buckets, and the part of the log that they do not count yet."""
    row = await tx.fetchrow(
        # The clock is read after the snapshot is taken: nothing in it is later.
        """
        SELECT coalesce((SELECT rolled_seq FROM stats_heads WHERE account_id = $1), 0) AS rolled_seq,
               clock_timestamp() AS now
        """,
        account_id,
    )
    assert row is not None
    start = begin(window, row["now"])
    totals: dict[tuple[str, str], Decimal] = {}
    for counted in (
        await _read_buckets(tx, account_id, cover(start, WINDOWS_SECONDS[window][1])),
        await _read_tail(tx, account_id, row["rolled_seq"], start),
        await _read_entries(tx, account_id, start),
        await _read_open(tx, account_id, start),
    ):
        for measure, key, amount in counted:
            totals[measure, key] = totals.get((measure, key), Decimal()) + amount
    return summarize(window, start, row["now"], totals)


async def _read_buckets(tx: Tx, account_id: UUID, ranges: Sequence[tuple[int, datetime, datetime]]) -> Counted:
    widths, firsts, ends = zip(*ranges, strict=True)
    # OFFSET 0 keeps the ranges apart, each read by the key: joined plainly, the planner may prefer the whole table.
    rows = await tx.fetch(
        """
        SELECT b.measure, b.key, sum(b.amount)
        FROM unnest($2::bigint[], $3::timestamptz[], $4::timestamptz[]) AS r (width_seconds, first, past)
        CROSS JOIN LATERAL (
            SELECT measure, key, amount FROM stats_buckets
            WHERE account_id = $1 AND width_seconds = r.width_seconds AND start >= r.first AND start < r.past
            OFFSET 0
        ) AS b
        GROUP BY b.measure, b.key
        """,
        account_id,
        widths,
        firsts,
        ends,
    )
    return [tuple(row.values()) for row in rows]


async def _read_tail(tx: Tx, account_id: UUID, rolled_seq: int, start: datetime) -> Counted:
    """Reads page by page, usually one, so that no statement runs for very long when no worker ran."""
    counted: list[tuple[str, str, Decimal]] = []
    last_seq: int | None = rolled_seq
    while last_seq is not None:
        rows = await tx.fetch(
            """
            WITH page AS MATERIALIZED (
                SELECT seq, action_type, record, created_at FROM actions
                WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
            )
            SELECT action_type, record::json ->> 'symbol' AS symbol, count(*) FILTER (WHERE created_at >= $4) AS amount,
                   (SELECT max(seq) FROM page HAVING count(*) = $3) AS last_seq
            FROM page GROUP BY action_type, symbol
            """,
            account_id,
            last_seq,
            TAIL_PAGE_ACTIONS,
            start,
        )
        for row in rows:
            amount = Decimal(row["amount"])
            counted += [(Measure.ACTION, row["action_type"], amount), (Measure.SYMBOL, row["symbol"], amount)]
        last_seq = rows[0]["last_seq"] if rows else None
    return counted


async def _read_open(tx: Tx, account_id: UUID, start: datetime) -> Counted:
    rows = await tx.fetch(
        """
        SELECT order_status, count(*) AS amount FROM orders
        WHERE account_id = $1 AND created_at >= $2 AND finished_at IS NULL
        GROUP BY order_status
        """,
        account_id,
        start,
    )
    return [(OPEN, row["order_status"], Decimal(row["amount"])) for row in rows]


async def _read_entries(tx: Tx, account_id: UUID, start: datetime) -> Counted:
    """Reads the entries that are not in the buckets yet."""
    rows = await tx.fetch(
        "SELECT measure, key, sum(amount) FROM stats_entries WHERE account_id = $1 AND at >= $2 GROUP BY measure, key",
        account_id,
        start,
    )
    return [tuple(row.values()) for row in rows]


def insert_entries(entries: Sequence[StatsEntry]) -> Statement:
    """Inserts without waiting for a lock. Runs in a pipeline and in a pool's transaction alike."""
    return Statement(
        """
        INSERT INTO stats_entries (account_id, organization_id, at, measure, key, amount)
        SELECT * FROM unnest(
            from_column($1)::uuid[], from_column($2)::uuid[], from_column($3)::timestamptz[], from_column($4),
            from_column($5), from_column($6)::numeric[]
        )
        """,
        (
            pack_array([str(entry.account_id) for entry in entries]),
            pack_array([str(entry.organization_id) for entry in entries]),
            pack_array([entry.at.isoformat() for entry in entries]),
            pack_array([entry.measure for entry in entries]),
            pack_array([entry.key for entry in entries]),
            pack_array([str(entry.amount) for entry in entries]),
        ),
    )


async def move_entries(tx: Tx, limit: int) -> int:
    """Moves entries into the buckets, `limit` at most; gives how many."""
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
        limit,
        WIDTHS_SECONDS,
        ORIGIN,
        timeout=ROUND_LIMIT_SECONDS,
    )
    return moved


async def list_behind(tx: Tx, limit: int, min_actions: int) -> dict[UUID, UUID]:
    """The accounts, with their organizations, whose log has the most actions that are not in the buckets yet."""
    rows = await tx.fetch(
        """
        SELECT account_id, h.organization_id
        FROM account_heads h LEFT JOIN stats_heads s USING (account_id)
        WHERE h.seq - coalesce(s.rolled_seq, 0) >= $2
        ORDER BY h.seq - coalesce(s.rolled_seq, 0) DESC LIMIT $1
        """,
        limit,
        min_actions,
    )
    return {row["account_id"]: row["organization_id"] for row in rows}


async def insert_heads(tx: Tx, organizations: Mapping[UUID, UUID]) -> None:
    """Inserts heads by account; existing ones stay as they are."""
    await tx.execute(
        """
        INSERT INTO stats_heads (account_id, organization_id)
        SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS new (account_id, organization_id) ORDER BY account_id
        ON CONFLICT DO NOTHING
        """,
        list(organizations),
        list(organizations.values()),
    )


async def lock_heads(tx: Tx, account_ids: Iterable[UUID]) -> dict[UUID, int]:
    """Gives each account's seq up to which its log is counted. Heads that another transaction holds are left out."""
    rows = await tx.fetch(
        """
        SELECT account_id, rolled_seq FROM stats_heads
        WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE SKIP LOCKED
        """,
        list(account_ids),
    )
    return {row["account_id"]: row["rolled_seq"] for row in rows}


async def count_actions(tx: Tx, heads: Mapping[UUID, int], limit_each: int) -> int:
    """Adds each account's next actions to the buckets and moves its head. Gives the most that one account had."""
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
        limit_each,
        WIDTHS_SECONDS,
        ORIGIN,
        timeout=ROUND_LIMIT_SECONDS,
    )
    return max((row["amount"] for row in rows), default=0)


async def prune(tx: Tx) -> bool:
    """Removes buckets that no window reaches any more, PRUNE_ROWS at most of each width. True: there may be more."""
    removed: int = await tx.fetchval(
        """
        WITH old AS MATERIALIZED (
            SELECT b.ctid AS place, b.width_seconds
            FROM unnest($1::bigint[], $2::bigint[]) AS kept (width_seconds, seconds)
            CROSS JOIN LATERAL (
                SELECT ctid, width_seconds FROM stats_buckets
                WHERE width_seconds = kept.width_seconds
                  AND start < (SELECT clock_timestamp()) - make_interval(secs => kept.seconds)
                ORDER BY start LIMIT $3
            ) AS b
        ), removed AS (
            DELETE FROM stats_buckets USING old WHERE stats_buckets.ctid = old.place RETURNING old.width_seconds
        )
        SELECT coalesce(max(count), 0) FROM (SELECT count(*) FROM removed GROUP BY width_seconds) AS counts (count)
        """,
        list(KEEP_SECONDS),
        list(KEEP_SECONDS.values()),
        PRUNE_ROWS,
    )
    return removed == PRUNE_ROWS
