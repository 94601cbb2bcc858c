"""Halts at work in the database, one function per statement. Never decides. Times are the
database's."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from trading_intents.controls.halts.model import Halt, HaltState
from trading_intents.controls.halts.store import HALT_COLUMNS, halt_of
from trading_intents.execution.halting.model import ClosingAttempts, OpenOrder, PartProgress
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import json_text
from trading_intents.trading import FrozenStruct

MAX_WAITING = 500  # entries of a halt


class HaltedAccount(FrozenStruct):
    halt_id: UUID
    organization_id: UUID
    account_id: UUID
    close_positions: bool
    created_at: datetime  # of the halt


async def unfinished_parts(
    tx: Tx, account_ids: Sequence[UUID], is_sweep: bool
) -> list[HaltedAccount]:
    """The halts that have work to do, with each of these accounts in which they have. A sweep finds
    accounts too that were done, and have an open order again."""
    query = """
        SELECT h.id AS halt_id, h.organization_id, h.account_id, h.close_positions, h.created_at
        FROM (
            SELECT id, organization_id, account_id, close_positions, created_at FROM halts
            WHERE resumed_at IS NULL AND cancel_orders AND (state <> 'done' OR $2)
                AND account_id = ANY ($1::uuid[])
            UNION ALL
            SELECT h.id, h.organization_id, a.id, h.close_positions, h.created_at
            FROM halts h JOIN accounts a ON a.organization_id = h.organization_id
            WHERE h.resumed_at IS NULL AND h.cancel_orders AND (h.state <> 'done' OR $2)
                AND h.account_id IS NULL
              AND a.id = ANY ($1::uuid[])
        ) AS h
        LEFT JOIN halt_parts p ON p.halt_id = h.id AND p.account_id = h.account_id
        WHERE p.state IS DISTINCT FROM 'done'
           OR $2 AND EXISTS (SELECT FROM orders o
               WHERE o.account_id = h.account_id AND o.finished_at IS NULL)
    """
    rows = await tx.fetch(query, account_ids, is_sweep)
    return [HaltedAccount(**row) for row in rows]


async def unfinished_halts(tx: Tx, after: UUID, limit: int) -> list[UUID]:
    query = """
        SELECT ARRAY (
            SELECT id FROM halts WHERE resumed_at IS NULL AND state <> 'done' AND id > $1
            ORDER BY id LIMIT $2
        )
    """
    return list(await tx.fetchval(query, after, limit))


async def read_progress(tx: Tx, halt_id: UUID, account_id: UUID) -> PartProgress | None:
    query = """
        SELECT state, base_seq, seen_seq, orders, orders_done, symbols, positions_done
        FROM halt_parts WHERE halt_id = $1 AND account_id = $2
    """
    row = await tx.fetchrow(query, halt_id, account_id)
    return msgspec.convert({**row, "waiting": ()}, PartProgress) if row else None


class OrderCounts(FrozenStruct):
    seq: int  # the account's last
    orders: int
    open: int
    left: int


async def count_orders(tx: Tx, account_id: UUID, halt_at: object) -> OrderCounts:
    """The account's last seq; its orders that were open when the halt began or since, and those of
    them that are; and its open orders that the halt leaves alone."""
    query = """
        SELECT coalesce((SELECT seq FROM account_heads WHERE account_id = $1), 0) AS seq,
            count(*) FILTER (WHERE NOT is_left) AS orders,
            count(*) FILTER (WHERE NOT is_left AND is_open) AS open,
            count(*) FILTER (WHERE is_left AND is_open) AS left
        FROM (
            SELECT true AS is_open, closes AND created_at > $2 AS is_left
            FROM orders WHERE account_id = $1 AND finished_at IS NULL
            UNION ALL
            (SELECT false, closes AND created_at > $2 FROM orders
             WHERE account_id = $1 AND finished_at >= $2 ORDER BY finished_at OFFSET 0)
        ) AS concerned
    """
    [row] = await tx.fetch(query, account_id, halt_at)
    return OrderCounts(**row)


async def open_orders(tx: Tx, account_id: UUID, halt_at: object, limit: int) -> list[OpenOrder]:
    """Those without an unanswered CANCEL first, so many at most."""
    query = """
        SELECT o.order_id, o.symbol, o.cancel_requested AS is_cancelled,
            o.closes AND o.created_at > $2 AS is_left, cancels.count AS cancels,
            coalesce(cancels.seconds, 0)::float8 AS cancelled_seconds
        FROM orders o CROSS JOIN LATERAL (
            SELECT count(*) AS count,
                extract(epoch FROM clock_timestamp() - max(a.created_at)) AS seconds
            FROM actions a
            WHERE a.intent_id = o.order_id AND a.action_type = 'CANCEL' AND a.created_at >= $2
              AND NOT o.cancel_requested
        ) AS cancels
        WHERE o.account_id = $1 AND o.finished_at IS NULL
        ORDER BY o.cancel_requested, o.create_seq LIMIT $3
    """
    rows = await tx.fetch(query, account_id, halt_at, limit)
    return [OpenOrder(**row) for row in rows]


async def open_symbols(tx: Tx, account_id: UUID) -> set[str]:
    query = """
        SELECT ARRAY (SELECT symbol FROM orders WHERE account_id = $1 AND finished_at IS NULL)
    """
    return set(await tx.fetchval(query, account_id))


async def closing_attempts(tx: Tx, account_id: UUID, base_seq: int) -> dict[str, ClosingAttempts]:
    """By symbol: orders after this seq that were to close a position and ended with something
    unfilled. While a halt stands no other orders are made, so these are few."""
    query = """
        SELECT coalesce(json_object_agg(symbol, attempts), '{}')::text FROM (
            SELECT symbol, json_build_object(
                'count', count(*),
                'ended_seconds', extract(epoch FROM clock_timestamp() - max(finished_at))
            ) AS attempts
            FROM (SELECT * FROM orders WHERE account_id = $1 AND create_seq > $2
                ORDER BY create_seq) AS made
            WHERE closes AND finished_at IS NOT NULL AND order_status <> 'FILLED'
            GROUP BY symbol
        ) AS ended
    """
    ended = await tx.fetchval(query, account_id, base_seq)
    return msgspec.json.decode(ended, type=dict[str, ClosingAttempts])


async def write_progress(
    tx: Tx,
    halt_id: UUID,
    account_id: UUID,
    organization_id: UUID,
    closes: bool,
    progress: PartProgress,
) -> None:
    """Unless the halt is over, or has got more to do since `closes` was read. The lock on its row
    keeps a second call from adding to it in between."""
    query = """
        INSERT INTO halt_parts AS p (
            halt_id, account_id, organization_id, state, base_seq, seen_seq, orders, orders_done,
                symbols,
            positions_done, waiting
        )
        SELECT h.id, $2, $3, $5, $6, $7, $8, $9, $10, $11, $12::jsonb
        FROM (
            SELECT id FROM halts WHERE id = $1 AND resumed_at IS NULL AND close_positions = $4
            FOR SHARE
        ) AS h
        ON CONFLICT (halt_id, account_id) DO UPDATE
        SET state = excluded.state, seen_seq = excluded.seen_seq, orders = excluded.orders,
            orders_done = excluded.orders_done, symbols = excluded.symbols,
            positions_done = excluded.positions_done, waiting = excluded.waiting
    """
    waiting = [each.entry(account_id) for each in progress.waiting]
    await tx.execute(
        query,
        halt_id,
        account_id,
        organization_id,
        closes,
        progress.state,
        progress.base_seq,
        progress.seen_seq,
        progress.orders,
        progress.orders_done,
        list(progress.symbols),
        progress.positions_done,
        json_text(waiting),
    )


async def lock_halt(tx: Tx, halt_id: UUID) -> Halt | None:
    """None: it has ended, or another process adds it up now."""
    query = f"""
        SELECT {HALT_COLUMNS} FROM halts h
        WHERE id = $1 AND resumed_at IS NULL FOR UPDATE SKIP LOCKED
    """  # noqa: S608 - our own constants
    row = await tx.fetchrow(query, halt_id)
    return halt_of(row) if row else None


class HaltTotals(FrozenStruct, kw_only=True):
    cancelling: int  # parts in this state
    closing: int
    orders: int
    orders_done: int
    positions: int
    positions_done: int
    waiting: str


async def add_up(tx: Tx, halt: Halt) -> HaltTotals:
    """Totals of the halt's parts. A closed account, which nobody can trade on, needs no part."""
    scope = "$3::uuid IS NULL" if halt.scope.account_id is None else "a.id = $3"
    query = f"""
        SELECT count(*) FILTER (WHERE a.closed_at IS NULL
            AND coalesce(p.state, 'cancelling') = 'cancelling')
                AS cancelling,
            count(*) FILTER (WHERE a.closed_at IS NULL AND p.state = 'closing') AS closing,
            coalesce(sum(p.orders), 0)::bigint AS orders,
                coalesce(sum(p.orders_done), 0)::bigint AS orders_done,
            coalesce(sum(cardinality(p.symbols)), 0)::bigint AS positions,
            coalesce(sum(p.positions_done), 0)::bigint AS positions_done,
            coalesce((
                SELECT jsonb_agg(entry) FROM (
                    SELECT jsonb_array_elements(waiting) AS entry FROM halt_parts
                    WHERE halt_id = $1 AND state <> 'done' ORDER BY account_id LIMIT $4
                ) AS shown
            ), '[]') AS waiting
        FROM accounts a LEFT JOIN halt_parts p ON p.halt_id = $1 AND p.account_id = a.id
        WHERE a.organization_id = $2 AND {scope}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(
        query, halt.id, halt.scope.organization_id, halt.scope.account_id, MAX_WAITING
    )
    return HaltTotals(**row)


async def update_halt(tx: Tx, halt_id: UUID, state: HaltState, totals: HaltTotals) -> Halt | None:
    """None: nothing changed."""
    query = f"""
        UPDATE halts h SET state = $2, orders = $3, orders_done = $4, positions = $5,
            positions_done = $6,
            waiting = $7::jsonb, updated_at = clock_timestamp()
        WHERE id = $1
          AND (state, orders, orders_done, positions, positions_done, waiting)
              IS DISTINCT FROM ($2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::jsonb)
        RETURNING {HALT_COLUMNS}
    """  # noqa: S608 - our own constants
    row = await tx.fetchrow(
        query,
        halt_id,
        state,
        totals.orders,
        totals.orders_done,
        totals.positions,
        totals.positions_done,
        totals.waiting,
    )
    return halt_of(row) if row else None
