"""Statements that mark a restored database, over all tenants' orders, commands and outbox rows, and
that say who works on it. Never decides."""

from collections.abc import Sequence
from uuid import UUID

from trading_intents.execution.claims import ACTION_TYPES
from trading_intents.ids import OrganizationId
from trading_intents.orders.facts import client_order_id
from trading_intents.storage.database import Row, Tx

STATEMENT_LIMIT_SECONDS = 300.0


async def is_any_worker_running(tx: Tx) -> bool:
    running: bool = await tx.fetchval(
        "SELECT EXISTS (SELECT FROM workers WHERE expires_at > clock_timestamp())"
    )
    return running


async def is_connected(tx: Tx, account_id: UUID) -> bool:
    """Whether a worker that is alive has a session with the account's broker."""
    query = """
        SELECT EXISTS (
            SELECT FROM accounts a JOIN leases l ON l.account_id = a.id
            JOIN workers w ON w.id = l.worker_id
            WHERE a.id = $1 AND a.connection = 'connected' AND w.expires_at > clock_timestamp()
        )
    """
    return bool(await tx.fetchval(query, account_id))


async def list_organizations(tx: Tx) -> list[OrganizationId]:
    return [
        OrganizationId(row["id"])
        for row in await tx.fetch("SELECT id FROM organizations ORDER BY id")
    ]


async def list_restored(tx: Tx, reason: str, organization: str | None) -> list[OrganizationId]:
    """Organizations in which the halt of a restore stands."""
    query = """
        SELECT g.id FROM organizations g CROSS JOIN LATERAL (
            SELECT * FROM halts WHERE scope_id = g.id AND resumed_at IS NULL LIMIT 1
        ) AS h
        WHERE h.reason = $1 AND h.principal_type = 'SYSTEM'
            AND ($2::text IS NULL OR $2 IN (g.id::text, g.external_id))
        ORDER BY g.id
    """
    rows = await tx.fetch(query, reason, organization)
    return [OrganizationId(row["id"]) for row in rows]


async def forget_absences(tx: Tx) -> None:
    """Clears earlier proofs of absence: an order may have been sent since, so two new look-ups are
    needed."""
    query = """
        UPDATE orders SET absent_at = NULL, lookups = 0
        WHERE finished_at IS NULL AND absent_at IS NOT NULL
    """
    await tx.execute(query, timeout=STATEMENT_LIMIT_SECONDS)


async def mark_sent_commands(tx: Tx) -> None:
    """Marks CREATEs and REPLACEs that were sent before the backup: one that never arrived is not
    sent again."""
    query = """
        UPDATE commands c SET restored_at = clock_timestamp()
        FROM orders o WHERE o.order_id = c.order_id AND o.finished_at IS NULL
            AND c.action_type <> 'CANCEL'
    """
    await tx.execute(query, timeout=STATEMENT_LIMIT_SECONDS)


async def list_queued_commands(tx: Tx) -> list[Row]:
    """With the CREATEs of the legs that are sent with them."""
    query = """
        WITH queued AS MATERIALIZED (
            SELECT lane AS account_id, organization_id, order_key AS order_id, event_type,
                (payload ->> 'seq')::bigint AS seq
            FROM outbox WHERE queue = 'intents' AND finished_at IS NULL
                AND event_type <> 'intent.cancel'
        )
        SELECT q.*, a.action_id
        FROM (
            SELECT * FROM queued
            UNION ALL
            SELECT o.account_id, o.organization_id, o.order_id, q.event_type, o.create_seq
            FROM queued q JOIN orders o ON o.account_id = q.account_id
                AND o.parent_order_id = q.order_id
            WHERE q.event_type = 'intent.create'
        ) AS q
        JOIN actions a ON a.account_id = q.account_id AND a.seq = q.seq
    """
    return await tx.fetch(query, timeout=STATEMENT_LIMIT_SECONDS)


async def mark_queued_commands(tx: Tx, rows: Sequence[Row]) -> None:
    """Queued commands become sent ones whose answer was lost; what the broker reports of them from
    now on is known by their client order ids."""
    query = """
        INSERT INTO commands AS c
            (account_id, client_order_id, organization_id, order_id, seq, action_type, sent_at,
                restored_at)
        SELECT *, clock_timestamp(), clock_timestamp()
        FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::bigint[], $6::text[])
        ON CONFLICT (account_id, client_order_id) DO UPDATE
        SET sent_at = coalesce(c.sent_at, excluded.sent_at), restored_at = excluded.restored_at
    """
    await tx.execute(
        query,
        [row["account_id"] for row in rows],
        [client_order_id(row["action_id"]) for row in rows],
        [row["organization_id"] for row in rows],
        [row["order_id"] for row in rows],
        [row["seq"] for row in rows],
        [ACTION_TYPES[row["event_type"]] for row in rows],
        timeout=STATEMENT_LIMIT_SECONDS,
    )
