"""The outbox table: one function per statement, times by the database's clock. Each write after a
claim names the claim's token, and does nothing if it is not the row's."""

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from trading_intents.outbox.model import (
    CLAIM_SECONDS,
    ClaimedRow,
    NewRow,
    Queue,
    Status,
    backoff_seconds,
    scrub,
)
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import json_text
from trading_intents.trading import FrozenStruct

SWEEP_ROWS = 1_000
PRUNE_ROWS = 1_000
MAX_LISTED = 1_000

# For a transaction with fresh plans, as all that works on many rows: the table can grow a
# thousandfold in a minute. Nor may stale statistics spoil it. Without MATERIALIZED the CTE may run
# once for every row it is joined with, and over-claim; without OFFSET 0 every row may be compared
# with every other. The clock in a sub-select is one value for the statement, which an index can
# use.
CLAIM = """
    WITH candidates AS MATERIALIZED (
        SELECT id FROM outbox AS candidate
        WHERE queue = $1
          AND event_type = ANY ($2)
          AND attempts < $3
          AND finished_at IS NULL
          AND (
            (status = 'pending' AND due_at <= (SELECT clock_timestamp()))
            OR (status = 'processing'
                AND claimed_at < (SELECT clock_timestamp()) - make_interval(secs => $4))
          )
          AND NOT EXISTS (
            SELECT FROM outbox AS earlier
            WHERE earlier.order_key = candidate.order_key
              AND earlier.queue = $1
              AND earlier.id < candidate.id
              AND earlier.finished_at IS NULL
            OFFSET 0
          )
        ORDER BY id
        LIMIT $5
        FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE outbox
        SET status = 'processing', attempts = attempts + 1,
            claimed_at = clock_timestamp(), claim_token = gen_random_uuid()
        WHERE id = ANY (ARRAY (SELECT id FROM candidates))
        RETURNING id, queue, event_type, organization_id, order_key, payload, attempts,
            claim_token AS token
    )
    SELECT coalesce(json_agg(claimed ORDER BY id), '[]')::text FROM claimed
"""


class FailedAttempt(FrozenStruct):
    """A failed attempt, and why. `row.attempts` are those that count."""

    row: ClaimedRow
    reason: str


async def put(tx: Tx, rows: Sequence[NewRow]) -> None:
    """Puts rows in the transaction of the change, in this order; notify the workers once it has
    committed."""
    query = """
        INSERT INTO outbox (queue, event_type, organization_id, order_key, payload)
        SELECT queue, event_type, organization_id, order_key, payload
        FROM ROWS FROM (json_to_recordset($1::json) AS (
            queue text, event_type text, organization_id uuid, order_key uuid, payload jsonb
        )) WITH ORDINALITY AS new (queue, event_type, organization_id, order_key, payload, position)
        ORDER BY position
    """
    await tx.execute(query, json_text(rows))


async def claim(
    tx: Tx,
    queue: Queue,
    event_types: Collection[str],
    limit: int,
    attempt_limit: int,
) -> list[ClaimedRow]:
    """Claims at most `limit` rows, the oldest first."""
    claimed = await tx.fetchval(
        CLAIM, queue, list(event_types), attempt_limit, CLAIM_SECONDS, limit
    )
    return msgspec.json.decode(claimed, type=list[ClaimedRow])


_BY_CLAIM = "outbox.id = held.id AND claim_token = held.token AND outbox.id = ANY ($1::bigint[])"
_COMPLETE = f"""
    UPDATE outbox
    SET status = 'completed', finished_at = clock_timestamp(), claimed_at = NULL,
        claim_token = NULL, last_error = NULL
    FROM unnest($1::bigint[], $2::uuid[]) AS held (id, token) WHERE {_BY_CLAIM}
    RETURNING held.token, outbox.status
"""  # noqa: S608 - our own constants
_RETRY = f"""
    UPDATE outbox
    SET status = CASE WHEN counted < $3::bigint THEN 'pending'
        ELSE 'failed' END, attempts = counted,
        due_at = clock_timestamp() + make_interval(secs => delay),
        finished_at = CASE WHEN counted < $3::bigint THEN NULL ELSE clock_timestamp() END,
        claimed_at = NULL, claim_token = NULL, last_error = reason
    FROM unnest($1::bigint[], $2::uuid[], $4::bigint[], $5::float8[], $6::text[])
        AS held (id, token, counted, delay, reason)
    WHERE {_BY_CLAIM}
    RETURNING held.token, outbox.status
"""  # noqa: S608 - our own constants
_RELEASE = f"""
    UPDATE outbox
    SET status = 'pending', attempts = attempts - 1, claimed_at = NULL, claim_token = NULL,
        due_at = clock_timestamp()
    FROM unnest($1::bigint[], $2::uuid[]) AS held (id, token) WHERE {_BY_CLAIM}
    RETURNING held.token, outbox.status
"""  # noqa: S608 - our own constants


class _EndedRow(FrozenStruct):
    token: UUID
    status: str


async def complete(tx: Tx, claims: Sequence[ClaimedRow]) -> set[UUID]:
    """Gives the tokens that still held; of a row that is not among them, the caller rolls back what
    it wrote."""
    return set(await _end(tx, _COMPLETE, claims))


async def release(tx: Tx, claims: Sequence[ClaimedRow]) -> set[UUID]:
    """Releases claims that were not started: pending again, the attempt given back. Gives the
    tokens that still held."""
    return set(await _end(tx, _RELEASE, claims))


async def retry(
    tx: Tx, failed_attempts: Sequence[FailedAttempt], attempt_limit: int
) -> dict[UUID, Status]:
    """Makes rows pending again, or failed at the attempt limit; gives the tokens that still held,
    and each row's new status."""
    claims = [each.row for each in failed_attempts]
    counted = [row.attempts for row in claims]
    delays = list(map(backoff_seconds, counted))
    reasons = [scrub(each.reason) for each in failed_attempts]
    return await _end(tx, _RETRY, claims, (attempt_limit, counted, delays, reasons))


async def _end(
    tx: Tx, query: str, claims: Sequence[ClaimedRow], arguments: Sequence[object] = ()
) -> dict[UUID, Status]:
    tokens = [row.token for row in claims]
    rows = await tx.fetch(query, [row.id for row in claims], tokens, *arguments)
    ended = [_EndedRow(**row) for row in rows]
    return {each.token: Status(each.status) for each in ended}


_SWEEP = """
    WITH used_up AS MATERIALIZED (
        SELECT id FROM outbox
        WHERE queue = $1 AND finished_at IS NULL AND attempts >= $2
          AND (status = 'pending'
              OR claimed_at < (SELECT clock_timestamp()) - make_interval(secs => $3))
        ORDER BY id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ), failed AS (
        UPDATE outbox
        SET status = 'failed', finished_at = clock_timestamp(), claimed_at = NULL,
            claim_token = NULL,
            last_error = coalesce(last_error, 'the worker of the last attempt went away')
        WHERE id = ANY (ARRAY (SELECT id FROM used_up))
        RETURNING event_type
    )
    SELECT ARRAY (SELECT event_type FROM failed)
"""


async def sweep(tx: Tx, queue: Queue, attempt_limit: int) -> list[str]:
    """Fails rows at the attempt limit that wait, or whose worker has ended. Gives their event
    types."""
    return list(await tx.fetchval(_SWEEP, queue, attempt_limit, CLAIM_SECONDS, SWEEP_ROWS))


async def prune(tx: Tx, queue: Queue, keep_seconds: float) -> int:
    """Removes rows completed longer ago than that, at most PRUNE_ROWS; gives how many."""
    query = """
        WITH old AS MATERIALIZED (
            SELECT id FROM outbox
            WHERE queue = $1 AND status = 'completed' AND last_error IS NULL
              AND finished_at < (SELECT clock_timestamp()) - make_interval(secs => $2)
            ORDER BY finished_at
            LIMIT $3
        ), removed AS (
            DELETE FROM outbox WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
        )
        SELECT count(*) FROM removed
    """
    return int(await tx.fetchval(query, queue, keep_seconds, PRUNE_ROWS))


class Backlog(FrozenStruct):
    pending: int
    processing: int
    failed: int
    oldest_pending_seconds: float
    oldest_claim_seconds: float


async def measure(tx: Tx, queue: Queue) -> Backlog:
    """Counts rows that are not completed, of which there can be millions, and gives the ages of the
    oldest; 0 when there is none."""
    query = """
        SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
            count(*) FILTER (WHERE status = 'processing') AS processing,
            (SELECT count(*) FROM queue_rows
             WHERE queue = $1 AND status = 'failed' AND finished_at IS NOT NULL
                 AND last_error IS NOT NULL) AS failed,
            greatest(0, extract(
                epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE status = 'pending')
            ))::float8 AS oldest_pending_seconds,
            greatest(0, extract(epoch
                FROM clock_timestamp() - min(claimed_at)))::float8 AS oldest_claim_seconds
        FROM queue_rows WHERE queue = $1 AND finished_at IS NULL
    """
    [row] = await tx.fetch(query, queue)
    return Backlog(**row)


class HealthRow(FrozenStruct, kw_only=True):
    status: str
    event_type: str
    count: int
    oldest_created_at: datetime
    max_attempts: int
    oldest_claimed_at: datetime | None


async def read_health(tx: Tx) -> list[HealthRow]:
    query = """
        SELECT status, event_type, count, oldest_created_at, max_attempts, oldest_claimed_at
        FROM accounts_outbox_health()
    """
    return [HealthRow(**row) for row in await tx.fetch(query)]


class ListedRow(FrozenStruct, kw_only=True):
    id: int
    queue: str
    status: str
    event_type: str
    attempts: int
    created_at: datetime
    organization_id: UUID
    last_error: str | None


async def list_rows(
    tx: Tx, queues: Sequence[Queue], statuses: Sequence[Status], limit: int
) -> list[ListedRow]:
    """The oldest first."""
    query = """
        SELECT id, queue, status, event_type, attempts, created_at, organization_id, last_error
        FROM queue_rows WHERE queue = ANY ($1) AND status = ANY ($2) ORDER BY id LIMIT $3
    """
    rows = await tx.fetch(query, list(queues), list(statuses), limit)
    return [ListedRow(**row) for row in rows]


async def final_order_status(tx: Tx, row_id: int) -> str | None:
    """Gives the final status of a command's order, if it is finished: nothing more may be sent for
    it."""
    query = """
        SELECT o.order_status FROM commands c JOIN orders o USING (order_id)
        WHERE c.id = $1 AND o.finished_at IS NOT NULL
        FOR UPDATE OF o
    """
    status: str | None = await tx.fetchval(query, row_id)
    return status


class ArchivedRow(FrozenStruct):
    queue: str
    retried_as: int | None  # the id of the new row


async def archive_failed(
    tx: Tx, row_id: int, who: str, reason: str, is_retried: bool
) -> ArchivedRow | None:
    """Archives a failed row, and adds a new one if it is retried. None: there is no such row."""
    query = """
        WITH gone AS (
            DELETE FROM outbox WHERE id = $1 AND status = 'failed' RETURNING *
        ), gone_command AS (
            DELETE FROM commands WHERE id = $1 AND failed_at IS NOT NULL RETURNING *
        ), fresh AS (
            INSERT INTO outbox (queue, event_type, organization_id, order_key, payload)
            SELECT queue, event_type, organization_id, order_key, payload FROM gone WHERE $4
            RETURNING id
        ), fresh_command AS (
            INSERT INTO commands (organization_id, account_id, order_id, seq, action_type,
                is_resend)
            SELECT organization_id, account_id, order_id, seq, action_type, is_resend
            FROM gone_command WHERE $4
            RETURNING id
        )
        INSERT INTO outbox_archive (id, queue, event_type, organization_id, order_key, lane,
            payload, attempts, created_at, failed_at, last_error, action, retried_as, archived_by,
            reason)
        SELECT id, queue, event_type, organization_id, order_key, lane, payload, attempts,
            created_at, finished_at, last_error, CASE WHEN $4 THEN 'retried' ELSE 'dropped' END,
            (SELECT id FROM fresh UNION ALL SELECT id FROM fresh_command), $2, $3
        FROM queue_rows
        WHERE id IN (SELECT id FROM gone UNION ALL SELECT id FROM gone_command)
        RETURNING queue, retried_as
    """
    row = await tx.fetchrow(query, row_id, who, reason, is_retried)
    return ArchivedRow(**row) if row else None
