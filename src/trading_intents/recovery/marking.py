"""Marks a restored database before any role starts on it: what it would send may have been sent after its backup was
made, so no CREATE or REPLACE in it is ever sent, only looked up."""

from trading_intents.errors import StartupRefused
from trading_intents.recovery import store
from trading_intents.storage.database import Pool
from trading_intents.stream import log as event_log


async def mark_restored(pool: Pool, who: str, reason: str) -> int:
    """Marks in one transaction, which renews the event log's epoch too. Gives how many commands are never sent because
    of it."""
    async with pool.transaction() as tx:
        await store.forget_absences(tx)
        await store.mark_sent_commands(tx)
        queued = await store.list_queued_commands(tx)
        await store.mark_queued_commands(tx, queued)
        await event_log.renew_epoch(tx, who, reason)
    return len(queued)


async def refuse_workers(pool: Pool) -> None:
    """Refuses while a worker may run on the database: it could send what is about to be marked."""
    async with pool.transaction(read_only=True) as tx:
        if await store.is_any_worker_running(tx):
            raise StartupRefused("a worker runs on this database: end every process with the role `worker` first")
