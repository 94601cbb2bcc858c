"""Statements on a restored database, over all tenants' orders and commands, and on who
works on it. Never decides."""

from uuid import UUID

from msgspec.structs import astuple

from trading_intents.execution.claims import SENT, SentCommand
from trading_intents.ids import OrganizationId, id_text
from trading_intents.orders.facts import client_order_id
from trading_intents.storage.database import Tx
from trading_intents.trading import ActionType, FrozenStruct

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


async def restore_commands(tx: Tx) -> int:
    """CREATEs and REPLACEs of open orders may have been sent since the backup: those that are
    queued are marked, and one that never arrived is not sent again. Gives how many were queued,
    with the CREATEs of legs that are sent with them."""
    for query in (_RESTORE_CREATES, _RESTORE_REPLACES):
        await tx.execute(query, timeout=STATEMENT_LIMIT_SECONDS)
    rows = await tx.fetch(_LIST_REPLACES, timeout=STATEMENT_LIMIT_SECONDS)
    queued = [QueuedReplace(**row).as_sent() for row in rows]
    await tx.execute(
        _ADD_REPLACES, *SENT.pack(map(astuple, queued)), timeout=STATEMENT_LIMIT_SECONDS
    )
    return int(await tx.fetchval(_MARK, timeout=STATEMENT_LIMIT_SECONDS))


class QueuedReplace(FrozenStruct, kw_only=True):
    account_id: UUID
    organization_id: UUID
    order_id: UUID
    seq: int
    action_id: UUID

    def as_sent(self) -> SentCommand:
        return SentCommand(
            account_id=id_text(self.account_id),
            client_order_id=client_order_id(self.action_id),
            organization_id=id_text(self.organization_id),
            order_id=id_text(self.order_id),
            seq=self.seq,
            action_type=ActionType.REPLACE,
        )


_RESTORE_CREATES = "UPDATE orders SET is_restored = true WHERE finished_at IS NULL"
_RESTORE_REPLACES = """
    UPDATE sent_commands c SET restored_at = clock_timestamp()
    FROM orders o WHERE o.order_id = c.order_id AND o.finished_at IS NULL
        AND c.action_type = 'REPLACE'
"""
_LIST_REPLACES = """
    SELECT c.account_id, c.organization_id, c.order_id, c.seq, a.action_id
    FROM commands c JOIN actions a USING (account_id, seq)
    WHERE c.failed_at IS NULL AND c.action_type = 'REPLACE'
"""
# What the broker reports of them from now on is known by their client order ids.
_ADD_REPLACES = f"""
    INSERT INTO sent_commands AS c ({SENT.columns}, sent_at, restored_at)
    SELECT {SENT.columns}, clock_timestamp(), clock_timestamp() FROM {SENT.rows} AS n
    ON CONFLICT (account_id, client_order_id) DO UPDATE
    SET sent_at = coalesce(c.sent_at, excluded.sent_at), restored_at = excluded.restored_at
"""  # noqa: S608 - our own constants
_MARK = """
    WITH marked AS (
        UPDATE commands SET sent_at = coalesce(sent_at, clock_timestamp())
        WHERE failed_at IS NULL AND action_type <> 'CANCEL'
        RETURNING account_id, order_id, action_type
    )
    SELECT (SELECT count(*) FROM marked) + count(*)
    FROM marked m JOIN orders leg
        ON leg.account_id = m.account_id AND leg.parent_order_id = m.order_id
    WHERE m.action_type = 'CREATE'
"""
