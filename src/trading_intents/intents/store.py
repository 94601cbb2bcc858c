"""The intents' tables: what a batch locks, reads and appends, and the reads of the log. Never decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from trading_intents.controls.store import COLUMNS, JOINS
from trading_intents.storage.database import Row, Tx, column

LOCK_WAIT = "1s"
PRUNE_ROWS = 5_000


async def lock_heads(tx: Tx, account_ids: Sequence[UUID], wait: bool) -> list[Row]:
    """In id order, as everyone locks. Without `wait`, those that another process holds are left out."""
    if wait:
        await tx.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        return await tx.fetch(
            """
            SELECT account_id, seq, hash FROM account_heads
            WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE
            """,
            account_ids,
        )
    return await tx.fetch(
        """
        SELECT account_id, seq, hash FROM account_heads
        WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE SKIP LOCKED
        """,
        account_ids,
    )


# Also the time, read under the heads' locks, and the transaction's id, which settles a lost commit.
READ_SCENE = f"""
    SELECT {COLUMNS}, asked.account_id, asked.key_id, asked.symbol,
        a.environment, a.broker, a.disabled, a.closed_at IS NOT NULL, a.has_credential,
        k.organization_id, k.environment, k.permissions, k.entitlements, k.disabled,
        (SELECT clock_timestamp()), (SELECT pg_current_xact_id()::text)
    FROM unnest((SELECT $1::uuid[]), (SELECT $2::uuid[]), (SELECT $3::text[])) AS asked (account_id, key_id, symbol)
    {JOINS}
    LEFT JOIN LATERAL (
        SELECT k.organization_id, k.environment, k.permissions, g.entitlements, k.disabled OR g.disabled AS disabled
        FROM api_keys k JOIN organizations g ON g.id = k.organization_id
        WHERE k.id = asked.key_id LIMIT 1
    ) k ON true
"""  # noqa: S608 - our own constants


async def read_scene(tx: Tx, account_ids: Sequence[UUID], key_ids: Sequence[UUID], symbols: Sequence[str]) -> list[Row]:
    """Account, key, organization and controls of each triple, as they are now."""
    return await tx.fetch(READ_SCENE, account_ids, key_ids, symbols)


async def read_earlier(tx: Tx, account_ids: Sequence[UUID], keys: Sequence[str]) -> list[Row]:
    return await tx.fetch(
        """
        SELECT a.account_id, a.idempotency_key, a.body_digest, a.intent_id, a.seq
        FROM unnest($1::uuid[], $2::text[]) AS wanted (account_id, idempotency_key)
        JOIN actions a ON a.account_id = wanted.account_id AND a.idempotency_key = wanted.idempotency_key
        """,
        account_ids,
        keys,
    )


async def lock_orders(tx: Tx, order_ids: Sequence[UUID]) -> list[Row]:
    return await tx.fetch(
        "SELECT * FROM orders WHERE order_id = ANY ($1::uuid[]) ORDER BY order_id FOR UPDATE", order_ids
    )


class Place(NamedTuple):
    """Where an action stands in its account's log. No two have the same hash."""

    account_id: UUID
    seq: int
    hash: str


@dataclass(slots=True)
class Batch:
    """Columns of what one transaction appends, filled row by row."""

    rows: list[tuple[str | None, ...]] = field(
        default_factory=list
    )  # one an action, in the order of APPEND's parameters
    heads: dict[UUID, tuple[int, str]] = field(default_factory=dict)
    changed_orders: dict[UUID, tuple[str, int | None, bool, int]] = field(default_factory=dict)
    cancelled_intents: list[UUID] = field(default_factory=list)

    def last(self) -> Place | None:
        """One of the actions, which proves that the commit happened."""
        return next((Place(account_id, *head) for account_id, head in self.heads.items()), None)


APPEND = """
    WITH new AS MATERIALIZED (
        SELECT * FROM unnest(
            from_column($1)::uuid[], from_column($2)::bigint[], from_column($3)::uuid[], from_column($4)::uuid[],
            from_column($5), from_column($6), from_column($7), from_column($8), from_column($9), from_column($10),
            from_column($11), from_column($12), from_column($13), from_column($14), from_column($15), from_column($16),
            from_column($17)::numeric[], from_column($18)::numeric[], from_column($19)::numeric[], from_column($20)
        ) WITH ORDINALITY AS new (
            account_id, seq, intent_id, organization_id, action_type, idempotency_key, body_digest, record, hash,
            environment, broker, symbol, order_type, order_side, time_in_force, route_strategy,
            quantity, limit_price, stop_price, client_reference_id, position
        )
    ), appended AS (
        INSERT INTO actions (account_id, seq, intent_id, organization_id, action_type,
                             idempotency_key, body_digest, created_at, record, hash)
        SELECT account_id, seq, intent_id, organization_id, action_type,
               idempotency_key, decode(body_digest, 'hex'), $21, record, hash
        FROM new
    ), queued AS (
        INSERT INTO outbox (queue, event_type, organization_id, order_key, lane, payload)
        SELECT 'intents', 'intent.' || lower(action_type), organization_id, intent_id, account_id,
               jsonb_build_object('seq', seq)
        FROM new ORDER BY position
    ), ordered AS (
        INSERT INTO orders (order_id, account_id, organization_id, environment, broker, create_seq, command_seq,
                            symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
                            stop_price, client_reference_id, received_at, created_at, updated_at)
        SELECT intent_id, account_id, organization_id, environment, broker, seq, seq,
               symbol, order_type, order_side, time_in_force, route_strategy, quantity, limit_price,
               stop_price, client_reference_id, $21, $21, $21
        FROM new WHERE action_type = 'CREATE'
    )
    UPDATE account_heads h SET seq = moved.seq, hash = moved.hash
    FROM unnest($22::uuid[], $23::bigint[], $24::text[]) AS moved (account_id, seq, hash)
    WHERE h.account_id = moved.account_id
"""


async def append(tx: Tx, batch: Batch, now: datetime) -> None:
    """Actions, their PENDING_NEW orders, their outbox rows and the heads, as one statement."""
    heads = batch.heads
    await tx.execute(
        APPEND,
        *map(column, zip(*batch.rows, strict=True)),
        now,
        list(heads),
        [seq for seq, _ in heads.values()],
        [digest for _, digest in heads.values()],
    )


async def mark_orders(tx: Tx, batch: Batch, now: datetime) -> None:
    """The pending command of the orders that REPLACEs and CANCELs name."""
    changed = batch.changed_orders
    await tx.execute(
        """
        UPDATE orders o
        SET order_status = c.order_status, pending_replace_seq = c.pending_replace_seq,
            cancel_requested = c.cancel_requested, version = c.version, updated_at = $6
        FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::boolean[], $5::bigint[])
             AS c (order_id, order_status, pending_replace_seq, cancel_requested, version)
        WHERE o.order_id = c.order_id
        """,
        list(changed),
        [change[0] for change in changed.values()],
        [change[1] for change in changed.values()],
        [change[2] for change in changed.values()],
        [change[3] for change in changed.values()],
        now,
    )


async def hurry(tx: Tx, intent_ids: Sequence[UUID]) -> None:
    """A cancelled intent's waiting rows are due now: its unsent CREATE is to be settled, not waited for."""
    await tx.execute(
        """
        UPDATE outbox SET due_at = clock_timestamp()
        WHERE queue = 'intents' AND order_key = ANY ($1::uuid[]) AND status = 'pending'
          AND due_at > (SELECT clock_timestamp())
        """,
        intent_ids,
    )


async def insert_refusals(tx: Tx, rows: Sequence[tuple[object, ...]], now: datetime) -> None:
    """Each: id, organization, account, action type, symbol, reasons (comma separated), principal."""
    columns = list(zip(*rows, strict=True))
    await tx.execute(
        """
        INSERT INTO refusals (id, organization_id, account_id, action_type, symbol, reasons, principal_id, created_at)
        SELECT id, organization_id, account_id, action_type, symbol, string_to_array(reasons, ','), principal_id, $8
        FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[])
             AS new (id, organization_id, account_id, action_type, symbol, reasons, principal_id)
        """,
        *columns,
        now,
    )


async def transaction_status(tx: Tx, transaction_id: str) -> str | None:
    """committed, aborted, in progress; None when it is too long ago to know."""
    status: str | None = await tx.fetchval("SELECT pg_xact_status($1::text::xid8)", transaction_id)
    return status


async def is_recorded(tx: Tx, place: Place) -> bool:
    return bool(
        await tx.fetchval(
            "SELECT EXISTS (SELECT FROM actions WHERE account_id = $1 AND seq = $2 AND hash = $3)", *place
        )
    )


async def list_actions(tx: Tx, account_id: UUID, after: int, limit: int) -> list[Row]:
    return await tx.fetch(
        "SELECT seq, record, hash FROM actions WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        account_id,
        after,
        limit,
    )


async def list_actions_of_intent(tx: Tx, account_id: UUID, intent_id: UUID, after: int, limit: int) -> list[Row]:
    return await tx.fetch(
        """
        SELECT seq, record, hash FROM actions
        WHERE intent_id = $2 AND account_id = $1 AND seq > $3 ORDER BY seq LIMIT $4
        """,
        account_id,
        intent_id,
        after,
        limit,
    )


async def latest_action(tx: Tx, account_id: UUID, intent_id: UUID) -> Row | None:
    return await tx.fetchrow(
        """
        SELECT seq, record, hash FROM actions
        WHERE intent_id = $2 AND account_id = $1 ORDER BY seq DESC LIMIT 1
        """,
        account_id,
        intent_id,
    )


async def prune_refusals(tx: Tx, keep_days: int) -> bool:
    """Removes the oldest, PRUNE_ROWS at most. True: there may be more."""
    removed: int = await tx.fetchval(
        """
        WITH old AS MATERIALIZED (
            SELECT id FROM refusals WHERE created_at < (SELECT clock_timestamp()) - make_interval(days => $1)
            ORDER BY created_at LIMIT $2
        ), removed AS (
            DELETE FROM refusals USING old WHERE refusals.id = old.id RETURNING refusals.id
        )
        SELECT count(*) FROM removed
        """,
        keep_days,
        PRUNE_ROWS,
    )
    return removed == PRUNE_ROWS
