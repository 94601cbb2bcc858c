"""What an operator does: list rows, put failed ones in again, drop them. Never touches a row that has not failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from trading_intents.errors import IntentClosed, InvalidRequest, NotFound
from trading_intents.outbox.model import Queue, Status, scrub
from trading_intents.storage.database import Pool, Tx

T = TypeVar("T")
MAX_LISTED = 1_000


@dataclass(frozen=True, slots=True)
class Listed:
    id: int
    queue: Queue
    event_type: str
    organization_id: UUID
    status: Status
    attempts: int
    created_at: datetime
    last_error: str | None


async def list_rows(tx: Tx, queues: Sequence[Queue], statuses: Sequence[Status], limit: int) -> list[Listed]:
    """The oldest first."""
    rows = await tx.fetch(
        """
        SELECT id, queue, event_type, organization_id, status, attempts, created_at, last_error
        FROM outbox WHERE queue = ANY ($1) AND status = ANY ($2) ORDER BY id LIMIT $3
        """,
        list(queues),
        list(statuses),
        min(limit, MAX_LISTED),
    )
    return [
        Listed(
            row["id"],
            Queue(row["queue"]),
            row["event_type"],
            row["organization_id"],
            Status(row["status"]),
            row["attempts"],
            row["created_at"],
            row["last_error"],
        )
        for row in rows
    ]


async def retry(pool: Pool, ids: Sequence[int], who: str, reason: str) -> dict[int, tuple[Queue, int]]:
    """All or none. Gives each old id's queue and new id."""
    why = _checked(reason)
    async with pool.transaction() as tx:
        for row_id in ids:
            if status := await _final_order_status(tx, row_id):
                raise IntentClosed(f"row {row_id} is of an order that is {status}; nothing was changed")
        return {row_id: _found(await _retry_failed(tx, row_id, who, why), row_id) for row_id in ids}


async def drop(pool: Pool, ids: Sequence[int], who: str, reason: str) -> None:
    """All or none."""
    why = _checked(reason)
    async with pool.transaction() as tx:
        for row_id in ids:
            _found(await _drop_failed(tx, row_id, who, why) or None, row_id)


def _checked(reason: str) -> str:
    if not (reason := scrub(reason.strip())):
        raise InvalidRequest("say why: the reason is kept with the row")
    return reason


def _found(value: T | None, row_id: int) -> T:
    if value is None:
        raise NotFound(f"there is no failed row {row_id}; nothing was changed")
    return value


async def _final_order_status(tx: Tx, row_id: int) -> str | None:
    """Of the order that an intents row speaks of, if it is finished: nothing more may be sent for it."""
    status: str | None = await tx.fetchval(
        """
        SELECT o.order_status FROM outbox r JOIN orders o ON o.order_id = r.order_key
        WHERE r.id = $1 AND r.queue = 'intents' AND o.finished_at IS NOT NULL
        FOR UPDATE OF o
        """,
        row_id,
    )
    return status


async def _retry_failed(tx: Tx, row_id: int, who: str, reason: str) -> tuple[Queue, int] | None:
    """Put a new row in and archive the failed one. Gives its queue and the new id; None when there is no such row."""
    row = await tx.fetchrow(
        """
        WITH gone AS (
            DELETE FROM outbox WHERE id = $1 AND status = 'failed' RETURNING *
        ), fresh AS (
            INSERT INTO outbox (queue, event_type, organization_id, order_key, lane, payload)
            SELECT queue, event_type, organization_id, order_key, lane, payload FROM gone
            RETURNING id
        )
        INSERT INTO outbox_archive (
            id, queue, event_type, organization_id, order_key, lane, payload, attempts, created_at, failed_at,
            last_error, action, retried_as, archived_by, reason
        )
        SELECT gone.id, queue, event_type, organization_id, order_key, lane, payload, attempts, created_at, finished_at,
               last_error, 'retried', fresh.id, $2, $3
        FROM gone CROSS JOIN fresh
        RETURNING queue, retried_as
        """,
        row_id,
        who,
        reason,
    )
    return (Queue(row["queue"]), row["retried_as"]) if row else None


async def _drop_failed(tx: Tx, row_id: int, who: str, reason: str) -> bool:
    """Archive the failed row; False when there is no such row."""
    tag = await tx.execute(
        """
        WITH gone AS (
            DELETE FROM outbox WHERE id = $1 AND status = 'failed' RETURNING *
        )
        INSERT INTO outbox_archive (
            id, queue, event_type, organization_id, order_key, lane, payload, attempts, created_at, failed_at,
            last_error, action, archived_by, reason
        )
        SELECT id, queue, event_type, organization_id, order_key, lane, payload, attempts, created_at, finished_at,
               last_error, 'dropped', $2, $3
        FROM gone
        """,
        row_id,
        who,
        reason,
    )
    return tag == "INSERT 0 1"
