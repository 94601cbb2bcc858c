"""The tables of counts: entries, written where something happens, and the buckets, to which a
worker adds them and the actions of the log, each exactly once."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from msgspec.structs import astuple

from trading_intents.stats.model import (
    KEEP_SECONDS,
    OPEN,
    ORIGIN,
    WIDTHS_SECONDS,
    WINDOWS_SECONDS,
    Counted,
    Measure,
    Stats,
    StatsEntry,
    Window,
    begin,
    cover,
    sum_up,
    summarize,
)
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import RowParameters, Statement, column_types
from trading_intents.trading import ZERO, FrozenStruct

TAIL_PAGE_ACTIONS = 10_000
PRUNE_ROWS = 5_000
BEHIND_ACTIONS = 100  # a read counts so few actions itself; rolling them up at once would cost more
ROUND_ACCOUNTS = 20
ROUND_ACTIONS_EACH = 1_000
ROUND_ENTRIES = 20_000  # the more at once, the fewer buckets change for each
ROUND_LIMIT_SECONDS = 30.0
INSERTING_LOCK = 7469014  # an advisory lock


class _Head(FrozenStruct):
    rolled_seq: int
    now: datetime


class _CountedActions(FrozenStruct):
    """Of one type and symbol in a page of the log; `last_seq` is None on the last page."""

    action_type: str
    symbol: str
    amount: Decimal
    last_seq: int | None


async def read(tx: Tx, account_id: UUID, window: Window) -> Stats:
    """Reads in one snapshot (REPEATABLE READ): the buckets, and the part of the log that they do
    not count yet."""
    row = await tx.fetchrow(
        # The clock is read after the snapshot is taken: nothing in it is later.
        """
        SELECT coalesce((SELECT rolled_seq FROM stats_heads WHERE account_id = $1),
            0) AS rolled_seq,
               clock_timestamp() AS now
        """,
        account_id,
    )
    assert row is not None
    head = _Head(**row)
    start = begin(window, head.now)
    _, unit_seconds = WINDOWS_SECONDS[window]
    counted = await _read_buckets(tx, account_id, cover(start, unit_seconds))
    counted += await _read_tail(tx, account_id, head.rolled_seq, start)
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


async def _read_tail(tx: Tx, account_id: UUID, rolled_seq: int, start: datetime) -> list[Counted]:
    """Reads page by page, usually one, so that no statement runs for very long when no worker
    ran."""
    counted = []
    last_seq: int | None = rolled_seq
    while last_seq is not None:
        query = """
            WITH page AS MATERIALIZED (
                SELECT seq, action_type, record, created_at FROM actions
                WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
            )
            SELECT action_type, record::json ->> 'symbol' AS symbol,
                   (count(*) FILTER (WHERE created_at >= $4))::numeric AS amount,
                   (SELECT max(seq) FROM page HAVING count(*) = $3) AS last_seq
            FROM page GROUP BY action_type, symbol
        """
        rows = await tx.fetch(query, account_id, last_seq, TAIL_PAGE_ACTIONS, start)
        last_seq = None
        for row in rows:
            each = _CountedActions(**row)
            counted.append(Counted(Measure.ACTION, each.action_type, each.amount))
            counted.append(Counted(Measure.SYMBOL, each.symbol, each.amount))
            last_seq = each.last_seq
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


_ENTRIES = RowParameters(column_types(StatsEntry))
_INSERT_ENTRIES = f"""
    INSERT INTO stats_entries ({_ENTRIES.columns}) SELECT {_ENTRIES.columns}
    FROM {_ENTRIES.rows} AS n
"""  # noqa: S608 - our own constants


def insert_entries(entries: Sequence[StatsEntry]) -> Statement:
    """Inserts without waiting for a lock. Runs in a pipeline and in a pool's transaction alike."""
    return Statement(_INSERT_ENTRIES, _ENTRIES.pack(map(astuple, sum_up(entries))))


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
    """Counts what is new, up to ROUND_ACTIONS_EACH actions of ROUND_ACCOUNTS accounts. True: there
    may be more.

    The heads move in the same transaction, under their locks: every action is counted exactly once,
    whoever dies when. What another process is counting is left to it.
    """
    # Of accounts without one, unless another process inserts: its rows are locked until it has
    # counted.
    insert_heads = """
        INSERT INTO stats_heads (account_id, organization_id)
        SELECT account_id, organization_id FROM account_heads h
        WHERE seq >= $1 AND NOT EXISTS (SELECT FROM stats_heads s WHERE s.account_id = h.account_id)
          AND (SELECT pg_try_advisory_xact_lock($2))
        ON CONFLICT DO NOTHING
    """
    await tx.execute(insert_heads, BEHIND_ACTIONS, INSERTING_LOCK)
    count_actions = f"""
        WITH behind AS MATERIALIZED (
            SELECT s.account_id, s.rolled_seq FROM stats_heads s
            JOIN account_heads h USING (account_id)
            WHERE h.seq - s.rolled_seq >= $4 ORDER BY h.seq - s.rolled_seq DESC LIMIT $3
            FOR UPDATE OF s SKIP LOCKED
        ), fresh AS MATERIALIZED (
            SELECT a.account_id, a.organization_id, a.seq, a.action_type,
                a.record::json ->> 'symbol' AS symbol,
                   date_bin('1 minute', a.created_at, $2) AS at
            FROM behind CROSS JOIN LATERAL (
                SELECT * FROM actions
                WHERE account_id = behind.account_id AND seq > behind.rolled_seq ORDER BY seq
                LIMIT $5
            ) AS a
        ), counted AS (
            SELECT account_id, organization_id, at, measure, key, count(*) AS amount
            FROM fresh CROSS JOIN LATERAL (VALUES ('action', action_type),
                ('symbol', symbol)) AS what (measure, key)
            GROUP BY account_id, organization_id, at, measure, key
        ), added AS ({_ADD_TO_BUCKETS}), rolled AS (
            UPDATE stats_heads s SET rolled_seq = done.seq
            FROM (SELECT account_id, max(seq) AS seq, count(*) AS amount FROM fresh
                GROUP BY account_id) AS done
            WHERE s.account_id = done.account_id
            RETURNING done.amount
        )
        SELECT ARRAY (SELECT amount FROM rolled)
    """  # noqa: S608 - our own constants
    counted: list[int] = await tx.fetchval(
        count_actions,
        WIDTHS_SECONDS,
        ORIGIN,
        ROUND_ACCOUNTS,
        BEHIND_ACTIONS,
        ROUND_ACTIONS_EACH,
        timeout=ROUND_LIMIT_SECONDS,
    )
    return len(counted) == ROUND_ACCOUNTS or ROUND_ACTIONS_EACH in counted


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
