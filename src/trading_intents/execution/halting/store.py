"""Halts at work in the database, one function per statement. Never decides. Times are the
database's."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from trading_intents.controls.halts.model import Halt
from trading_intents.controls.halts.store import (
    HALT_COLUMNS,
    HELD,
    HELD_BY_ACCOUNT,
    HELD_TEXT,
    IS_LEFT,
    halt_of,
    in_scope,
)
from trading_intents.execution.halting.model import MAX_SHOWN, ClosingProgress, WaitReason
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import json_text
from trading_intents.trading import FrozenStruct

MAX_WAITING = 500  # entries of a halt
# 1, 2, 4 … 60 s between a CANCEL or closing order that came to nothing and the next.
_RETRY_SECONDS = "least(2 ^ least({count} - 1, 6), 60)"
_IS_LEFT = IS_LEFT.format(since="h.created_at")
_OWN = HELD.format(organization="h.organization_id", account="h.account_id")
_HELD = f"(SELECT {HELD_TEXT} FROM {_OWN})"  # noqa: S608 - our own constants


class HaltedAccount(FrozenStruct, kw_only=True):
    """An account in which a halt has something to end."""

    halt_id: UUID
    organization_id: UUID
    account_id: UUID
    created_at: datetime  # of the halt
    may_close: bool  # positions are to be closed, and no order is to end before
    due: tuple[UUID, ...]  # orders that get a CANCEL now

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.halt_id, self.account_id


async def halted_accounts(
    tx: Tx, account_ids: Sequence[UUID], is_sweep: bool, limit: int
) -> list[HaltedAccount]:
    """Those of these accounts in which a halt has something to end, with so many orders each at
    most; a sweep looks for halts that are done too. By open orders and positions alone: what opens
    after the halt is found as well, and an account without any costs two looks into an index."""
    query = f"""
        SELECT h.id AS halt_id, h.organization_id, h.account_id, h.created_at,
            h.close_positions AND working.open = 0 AS may_close, due.order_ids AS due
        FROM (
            SELECT id, organization_id, account_id, close_positions, created_at FROM halts
            WHERE resumed_at IS NULL AND cancel_orders AND (state <> 'done' OR $2)
                AND account_id = ANY ($1::uuid[])
            UNION ALL
            SELECT h.id, h.organization_id, a.id, h.close_positions, h.created_at
            FROM halts h JOIN accounts a ON a.organization_id = h.organization_id
            WHERE h.resumed_at IS NULL AND h.cancel_orders AND (h.state <> 'done' OR $2)
                AND h.account_id IS NULL AND a.id = ANY ($1::uuid[])
        ) AS h
        LEFT JOIN halt_closings c ON c.halt_id = h.id AND c.account_id = h.account_id
        CROSS JOIN LATERAL (
            SELECT count(*) AS count, count(*) FILTER (WHERE NOT ({_IS_LEFT})) AS open
            FROM orders o WHERE o.account_id = h.account_id AND o.finished_at IS NULL
        ) AS working
        CROSS JOIN LATERAL (
            SELECT ARRAY (
                SELECT o.order_id FROM orders o CROSS JOIN LATERAL (
                    SELECT count(*) AS count,
                        extract(epoch FROM clock_timestamp() - max(created_at)) AS seconds
                    FROM actions
                    WHERE intent_id = o.order_id AND action_type = 'CANCEL'
                      AND created_at >= h.created_at
                ) AS cancels
                WHERE working.open > 0 AND o.account_id = h.account_id AND o.finished_at IS NULL
                  AND NOT o.cancel_requested AND NOT ({_IS_LEFT})
                  AND (cancels.count = 0
                      OR cancels.seconds >= {_RETRY_SECONDS.format(count="cancels.count")})
                LIMIT $3
            ) AS order_ids
        ) AS due
        WHERE working.count > 0 OR h.close_positions AND {_HELD} IS DISTINCT FROM c.flat
    """  # noqa: S608 - our own constants
    rows = await tx.fetch(query, account_ids, is_sweep, limit)
    return [msgspec.convert(dict(row), HaltedAccount) for row in rows]


async def unfinished_halts(tx: Tx, after: UUID, limit: int) -> list[UUID]:
    query = """
        SELECT ARRAY (
            SELECT id FROM halts WHERE resumed_at IS NULL AND state <> 'done' AND id > $1
            ORDER BY id LIMIT $2
        )
    """
    return list(await tx.fetchval(query, after, limit))


async def read_progress(tx: Tx, halt_id: UUID, account_id: UUID) -> ClosingProgress:
    query = """
        SELECT symbols, positions_done FROM halt_closings WHERE halt_id = $1 AND account_id = $2
    """
    row = await tx.fetchrow(query, halt_id, account_id)
    return msgspec.convert(dict(row), ClosingProgress) if row else ClosingProgress()


async def open_symbols(tx: Tx, account_id: UUID) -> set[str]:
    query = """
        SELECT ARRAY (SELECT symbol FROM orders WHERE account_id = $1 AND finished_at IS NULL)
    """
    return set(await tx.fetchval(query, account_id))


class HeldPositions(FrozenStruct):
    """Ours, of the symbols of which we hold something or the broker last said that it does; and
    what their rows say."""

    quantities: dict[str, Decimal]
    text: str | None


async def held_positions(tx: Tx, halted: HaltedAccount) -> HeldPositions:
    query = f"""
        SELECT json_build_object(
            'quantities', coalesce(json_object_agg(p.symbol, p.quantity::text), '{{}}'),
            'text', {HELD_TEXT}
        )::text
        FROM {HELD.format(organization="$1", account="$2")}
    """  # noqa: S608 - our own constants
    text = await tx.fetchval(query, halted.organization_id, halted.account_id)
    return msgspec.json.decode(text, type=HeldPositions)


async def unfilled_symbols(tx: Tx, account_id: UUID, halt_at: datetime) -> set[str]:
    """Symbols of which an order that was to close a position since the halt ended with something
    unfilled, too short a time ago for another one. While a halt stands no other orders are made, so
    these are few."""
    query = f"""
        SELECT ARRAY (
            SELECT symbol FROM (
                SELECT * FROM orders WHERE account_id = $1 AND finished_at >= $2
                ORDER BY finished_at OFFSET 0
            ) AS ended
            WHERE closes AND created_at >= $2 AND order_status <> 'FILLED'
            GROUP BY symbol
            HAVING clock_timestamp() < max(finished_at)
                + make_interval(secs => {_RETRY_SECONDS.format(count="count(*)")})
        )
    """  # noqa: S608 - our own constants
    return set(await tx.fetchval(query, account_id, halt_at))


async def write_progress(
    tx: Tx, halt_id: UUID, account_id: UUID, organization_id: UUID, progress: ClosingProgress
) -> None:
    """Unless the halt is over."""
    query = """
        INSERT INTO halt_closings AS c (
            halt_id, account_id, organization_id, symbols, positions_done, waiting, flat
        )
        SELECT h.id, $2, $3, $4, $5, $6::jsonb, $7
        FROM (
            SELECT id FROM halts WHERE id = $1 AND resumed_at IS NULL AND close_positions FOR SHARE
        ) AS h
        ON CONFLICT (halt_id, account_id) DO UPDATE
        SET symbols = excluded.symbols, positions_done = excluded.positions_done,
            waiting = excluded.waiting, flat = excluded.flat
        WHERE (c.symbols, c.positions_done, c.waiting, c.flat) IS DISTINCT FROM
            (excluded.symbols, excluded.positions_done, excluded.waiting, excluded.flat)
    """
    await tx.execute(
        query,
        halt_id,
        account_id,
        organization_id,
        list(progress.symbols),
        progress.positions_done,
        json_text(progress.waiting),
        progress.flat,
    )


async def lock_halt(tx: Tx, halt_id: UUID) -> Halt | None:
    """None: it has ended, or another process counts it now."""
    query = f"""
        SELECT {HALT_COLUMNS} FROM halts h
        WHERE id = $1 AND resumed_at IS NULL FOR UPDATE SKIP LOCKED
    """  # noqa: S608 - our own constants
    row = await tx.fetchrow(query, halt_id)
    return halt_of(row) if row else None


async def list_waiting(tx: Tx, halt: Halt) -> str:
    """Lists what the halt waits for, as JSON: orders that are to end, and what keeps positions from
    being closed."""
    is_left = IS_LEFT.format(since="$3")
    query = f"""
        SELECT coalesce(jsonb_agg(entry), '[]')::text FROM (
            SELECT waited.entry
            FROM accounts a LEFT JOIN halt_closings c ON c.halt_id = $1 AND c.account_id = a.id
            CROSS JOIN LATERAL (
                (SELECT jsonb_build_object('account_id', a.id, 'order_id', o.order_id, 'reason',
                    CASE WHEN {is_left} THEN '{WaitReason.CLOSING}'
                        WHEN a.connection <> 'connected' THEN '{WaitReason.BROKER_DISCONNECTED}'
                        WHEN NOT o.cancel_requested AND EXISTS (
                            SELECT FROM actions
                            WHERE intent_id = o.order_id AND action_type = 'CANCEL'
                              AND created_at >= $3 OFFSET 0
                        ) THEN '{WaitReason.CANCEL_REFUSED}'
                        ELSE '{WaitReason.CANCEL_PENDING}' END
                ) AS entry
                FROM (
                    SELECT * FROM orders WHERE account_id = a.id AND finished_at IS NULL OFFSET 0
                ) AS o
                WHERE NOT ($2 AND {is_left}) ORDER BY o.create_seq LIMIT {MAX_SHOWN})
                UNION ALL
                SELECT jsonb_array_elements(c.waiting) WHERE (
                    SELECT {HELD_TEXT} FROM {HELD_BY_ACCOUNT}
                ) IS DISTINCT FROM c.flat
                    OR EXISTS (SELECT FROM orders WHERE account_id = a.id AND finished_at IS NULL)
            ) AS waited
            WHERE {in_scope(halt.scope)} AND a.closed_at IS NULL
            ORDER BY a.id LIMIT {MAX_WAITING}
        ) AS shown
    """  # noqa: S608 - our own constants
    waiting: str = await tx.fetchval(
        query, halt.id, halt.terms.close_positions, halt.created_at, *astuple(halt.scope)
    )
    return waiting


async def update_halt(tx: Tx, halt: Halt, waiting: str) -> Halt | None:
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
        halt.id,
        halt.state,
        halt.orders,
        halt.orders_done,
        halt.positions,
        halt.positions_done,
        waiting,
    )
    return halt_of(row) if row else None
