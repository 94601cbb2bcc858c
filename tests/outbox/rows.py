"""Rows to put, and a look behind the platform's back: what is in the table, and times moved without
waiting."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from trading_intents.ids import OrganizationId
from trading_intents.outbox.intents_queue import (
    CLAIMED_IDS,
    FIRST_LANE,
    claim_by_lane,
    marking,
    parse_seen,
)
from trading_intents.outbox.lanes import LaneRequest, SeenRow
from trading_intents.outbox.model import ClaimedRow, NewRow, OutboxEventType, Queue
from trading_intents.outbox.queue import claim, put
from trading_intents.storage.database import Pool
from trading_intents.storage.pipeline import Reply, Statement

LIMIT = 10
TYPES = list(OutboxEventType)


def new_row(
    event_type: str = OutboxEventType.ACCOUNT_CREATED,
    queue: Queue = Queue.ACCOUNTS,
    order_key: UUID | None = None,
    organization_id: UUID | None = None,
) -> NewRow:
    organization = OrganizationId(organization_id or uuid.uuid4())
    return NewRow(
        queue=queue,
        event_type=event_type,
        organization_id=organization,
        order_key=order_key or uuid.uuid4(),
        payload={"version": 1},
    )


async def put_rows(pool: Pool, *rows: NewRow) -> None:
    async with pool.transaction([row.organization_id for row in rows]) as tx:
        await put(tx, rows)


async def claim_rows(
    pool: Pool,
    limit: int = 100,
    queue: Queue = Queue.ACCOUNTS,
    types: list[str] | None = None,
    attempt_limit: int = LIMIT,
) -> list[ClaimedRow]:
    async with pool.transaction(plans="fresh") as tx:
        return await claim(tx, queue, types or [*TYPES, "user.deleted"], limit, attempt_limit)


async def put_command(
    connection: asyncpg.Connection,
    account: UUID,
    order: UUID | None = None,
    action_type: str = "CREATE",
) -> int:
    """As the API does, which makes urgent what a CANCEL cancels."""
    order = order or uuid.uuid4()
    if action_type == "CANCEL":
        await connection.execute(
            "UPDATE commands SET due_at = least(due_at, clock_timestamp()), urgent = true"
            " WHERE order_id = $1 AND sent_at IS NULL AND failed_at IS NULL",
            order,
        )
    row_id: int = await connection.fetchval(
        "INSERT INTO commands (organization_id, account_id, order_id, seq, action_type, urgent)"
        " VALUES ($1, $1, $2, 1, $3::text, $3 = 'CANCEL') RETURNING id",
        account,
        order,
        action_type,
    )
    return row_id


async def claim_commands(
    pool: Pool, free_slots: Mapping[UUID, int], limit: int = 100, after_lane: UUID | None = None
) -> list[tuple[UUID, int]]:
    """The accounts and ids of the commands that are claimed and marked, in the order of the ids;
    lanes are read as a whole."""
    requests = [LaneRequest(lane=str(lane), slots=free) for lane, free in free_slots.items()]
    after = FIRST_LANE if after_lane is None else str(after_lane)
    seen = await claim_lanes(pool, requests, limit, after_lane=after)
    claimed = [(UUID(row.lane), row.id) for row in seen if row.is_claimed]
    return sorted(claimed, key=lambda each: each[1])


async def claim_lanes(
    pool: Pool, requests: Sequence[LaneRequest], limit: int, **known: Any
) -> list[SeenRow]:
    """The rows that a claim has seen. It marks those that it takes."""
    claiming = claim_by_lane(requests, limit, **known)
    async with pool.transaction(plans="by_key") as tx:
        rows = await tx.fetch(claiming.sql, *values_of(claiming))
        seen = parse_seen(Reply("", [tuple(row.values()) for row in rows]))
        claimed = await tx.fetchval(f"SELECT {CLAIMED_IDS}")
        await tx.execute(marking(()).sql, claimed or [])
    return seen


def values_of(claiming: Statement) -> list[Any]:
    """Its arguments, of which a pipeline sends texts."""
    return [_value_of(str(argument)) for argument in claiming.arguments]


def _value_of(text: str) -> Any:
    if text.startswith("{"):
        return [_value_of(each) for each in text[1:-1].split(",") if each]
    if "." in text:
        return float(text)
    return int(text) if text.isdigit() else UUID(text)


class Table:
    """The outbox as a superuser sees it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def rows(self) -> list[dict[str, Any]]:
        """By id."""
        return [
            dict(row) for row in await self.connection.fetch("SELECT * FROM outbox ORDER BY id")
        ]

    async def row(self, row_id: int) -> dict[str, Any]:
        return dict(await self.connection.fetchrow("SELECT * FROM outbox WHERE id = $1", row_id))

    async def statuses(self) -> list[str]:
        return [row["status"] for row in await self.rows()]

    async def count(self, status: str) -> int:
        found: int = await self.connection.fetchval(
            "SELECT count(*) FROM outbox WHERE status = $1", status
        )
        return found

    async def age_claims(self, seconds: float) -> None:
        await self.connection.execute(
            """
                UPDATE outbox SET claimed_at = clock_timestamp() - make_interval(secs => $1)
                WHERE status = 'processing'
            """,
            seconds,
        )

    async def make_due(self) -> None:
        """Makes the rows due that wait for their next attempt."""
        await self.connection.execute(
            "UPDATE outbox SET due_at = clock_timestamp() WHERE status = 'pending' AND attempts > 0"
        )

    async def set(self, row_id: int, assignments: str) -> None:
        await self.connection.execute(f"UPDATE outbox SET {assignments} WHERE id = $1", row_id)
