"""Marks a restored database before any role starts on it: what it would send may have been sent after its backup was
made, so no CREATE or REPLACE in it is ever sent, only looked up."""

from trading_intents.errors import StartupRefused
from trading_intents.execution.store import ACTION_TYPES
from trading_intents.orders.facts import client_order_id
from trading_intents.storage.database import Pool, Tx
from trading_intents.stream import log as event_log

STATEMENT_LIMIT_SECONDS = 300.0


async def mark_restored(pool: Pool, who: str, reason: str) -> int:
    """In one transaction, which renews the event log's epoch too. Gives how many commands are never sent for it."""
    async with pool.transaction() as tx:
        await _forget_absences(tx)
        await _mark_sent_commands(tx)
        marked = await _mark_queued_commands(tx)
        await event_log.renew_epoch(tx, who, reason)
    return marked


async def refuse_workers(pool: Pool) -> None:
    """For a database that others may use: a worker that runs could send what is about to be marked."""
    async with pool.transaction(read_only=True) as tx:
        if await tx.fetchval("SELECT EXISTS (SELECT FROM workers WHERE expires_at > clock_timestamp())"):
            raise StartupRefused("a worker runs on this database: end every process with the role `worker` first")


async def _forget_absences(tx: Tx) -> None:
    """An order that was once found missing may have been sent after that: it takes two new look-ups to prove it."""
    await tx.execute(
        "UPDATE orders SET absent_at = NULL, lookups = 0 WHERE finished_at IS NULL AND absent_at IS NOT NULL",
        timeout=STATEMENT_LIMIT_SECONDS,
    )


async def _mark_sent_commands(tx: Tx) -> None:
    """Those that were sent before the backup: where one never arrived, it is not sent again."""
    await tx.execute(
        """
        UPDATE commands c SET restored_at = clock_timestamp()
        FROM orders o WHERE o.order_id = c.order_id AND o.finished_at IS NULL AND c.action_type <> 'CANCEL'
        """,
        timeout=STATEMENT_LIMIT_SECONDS,
    )


async def _mark_queued_commands(tx: Tx) -> int:
    """Those that wait in the outbox become sent ones whose answer was lost; what the broker tells of them from now on
    is known by their client order ids."""
    rows = await tx.fetch(
        """
        SELECT r.lane AS account_id, r.organization_id, r.order_key AS order_id, r.event_type, a.seq, a.action_id
        FROM outbox r JOIN actions a ON a.account_id = r.lane AND a.seq = (r.payload ->> 'seq')::bigint
        WHERE r.queue = 'intents' AND r.finished_at IS NULL AND r.event_type <> 'intent.cancel'
        """,
        timeout=STATEMENT_LIMIT_SECONDS,
    )
    await tx.execute(
        """
        INSERT INTO commands AS c
            (account_id, client_order_id, organization_id, order_id, seq, action_type, sent_at, restored_at)
        SELECT *, clock_timestamp(), clock_timestamp()
        FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::bigint[], $6::text[])
        ON CONFLICT (account_id, client_order_id) DO UPDATE
        SET sent_at = coalesce(c.sent_at, excluded.sent_at), restored_at = excluded.restored_at
        """,
        [row["account_id"] for row in rows],
        [client_order_id(row["action_id"]) for row in rows],
        [row["organization_id"] for row in rows],
        [row["order_id"] for row in rows],
        [row["seq"] for row in rows],
        [ACTION_TYPES[row["event_type"]] for row in rows],
        timeout=STATEMENT_LIMIT_SECONDS,
    )
    return len(rows)
