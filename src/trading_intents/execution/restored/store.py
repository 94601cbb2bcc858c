"""Statements on a restored database, over all tenants' orders and commands, and on who
works on it. Never decides."""

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import astuple

from trading_intents.execution.claims import SENT, SentCommand
from trading_intents.ids import OrganizationId, id_text
from trading_intents.orders.facts import client_order_id
from trading_intents.storage.database import Tx
from trading_intents.trading import FrozenStruct

STATEMENT_LIMIT_SECONDS = 300.0


async def is_any_worker_running(tx: Tx) -> bool:
    query = "SELECT EXISTS (SELECT FROM workers WHERE expires_at > clock_timestamp())"
    return bool(await tx.fetchval(query))


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
    return list(await tx.fetchval("SELECT ARRAY (SELECT id FROM organizations ORDER BY id)"))


async def list_restored(tx: Tx, reason: str, organization: str | None) -> list[OrganizationId]:
    """Organizations in which the halt of a restore stands."""
    query = """
        SELECT ARRAY (
            SELECT g.id FROM organizations g CROSS JOIN LATERAL (
                SELECT * FROM halts WHERE scope_id = g.id AND resumed_at IS NULL LIMIT 1
            ) AS h
            WHERE h.reason = $1 AND h.principal_type = 'SYSTEM'
                AND ($2::text IS NULL OR $2 IN (g.id::text, g.external_id))
            ORDER BY g.id
        )
    """
    return list(await tx.fetchval(query, reason, organization))


async def forget_absences(tx: Tx) -> None:
    """Clears earlier proofs of absence: an order may have been sent since, so two new look-ups are
    needed."""
    query = """
        UPDATE orders SET absent_at = NULL, lookups = 0
        WHERE finished_at IS NULL AND absent_at IS NOT NULL
    """
    await tx.execute(query, timeout=STATEMENT_LIMIT_SECONDS)


async def restore_sent_commands(tx: Tx) -> None:
    """CREATEs and REPLACEs that were sent before the backup: one that never arrived is not sent
    again."""
    query = """
        UPDATE sent_commands c SET restored_at = clock_timestamp()
        FROM orders o WHERE o.order_id = c.order_id AND o.finished_at IS NULL
            AND c.action_type <> 'CANCEL'
    """
    await tx.execute(query, timeout=STATEMENT_LIMIT_SECONDS)


class QueuedCommand(FrozenStruct, kw_only=True):
    account_id: UUID
    organization_id: UUID
    order_id: UUID
    action_type: str
    seq: int
    action_id: UUID

    def as_sent(self) -> SentCommand:
        return SentCommand(
            account_id=id_text(self.account_id),
            client_order_id=client_order_id(self.action_id),
            organization_id=id_text(self.organization_id),
            order_id=id_text(self.order_id),
            seq=self.seq,
            action_type=self.action_type,
        )


async def list_queued_commands(tx: Tx) -> list[QueuedCommand]:
    """With the CREATEs of the legs that are sent with them."""
    query = """
        WITH queued AS MATERIALIZED (
            SELECT account_id, organization_id, order_id, action_type, seq
            FROM commands WHERE failed_at IS NULL AND action_type <> 'CANCEL'
        )
        SELECT q.account_id, q.organization_id, q.order_id, q.action_type, q.seq, a.action_id
        FROM (
            SELECT * FROM queued
            UNION ALL
            SELECT o.account_id, o.organization_id, o.order_id, q.action_type, o.create_seq
            FROM queued q JOIN orders o ON o.account_id = q.account_id
                AND o.parent_order_id = q.order_id
            WHERE q.action_type = 'CREATE'
        ) AS q
        JOIN actions a ON a.account_id = q.account_id AND a.seq = q.seq
    """
    rows = await tx.fetch(query, timeout=STATEMENT_LIMIT_SECONDS)
    return [QueuedCommand(**row) for row in rows]


async def restore_queued_commands(tx: Tx, queued: Sequence[QueuedCommand]) -> None:
    """Queued commands become sent ones whose answer was lost; what the broker reports of them from
    now on is known by their client order ids."""
    query = f"""
        INSERT INTO sent_commands AS c ({SENT.columns}, sent_at, restored_at)
        SELECT {SENT.columns}, clock_timestamp(), clock_timestamp() FROM {SENT.rows} AS n
        ON CONFLICT (account_id, client_order_id) DO UPDATE
        SET sent_at = coalesce(c.sent_at, excluded.sent_at), restored_at = excluded.restored_at
    """  # noqa: S608 - our own constants
    sent = [each.as_sent() for each in queued]
    await tx.execute(query, *SENT.pack(map(astuple, sent)), timeout=STATEMENT_LIMIT_SECONDS)
    query = """
        UPDATE commands SET sent_at = clock_timestamp()
        WHERE failed_at IS NULL AND sent_at IS NULL AND action_type <> 'CANCEL'
    """
    await tx.execute(query, timeout=STATEMENT_LIMIT_SECONDS)
