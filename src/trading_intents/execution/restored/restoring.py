"""Prepares a restored database before any role starts on it: what it would send may have been sent
after its backup was made, so no CREATE or REPLACE in it is ever sent, only looked up."""

from uuid import uuid4

from trading_intents.controls.halts.model import (
    Halt,
    HaltPrincipal,
    HaltPrincipalType,
    HaltScope,
    HaltTerms,
)
from trading_intents.controls.halts.service import end_halt, start_halt
from trading_intents.errors import NotHalted, StartupRefused
from trading_intents.execution.restored import store
from trading_intents.loops import repeat
from trading_intents.outbox.outcomes import log_failures
from trading_intents.storage.database import Pool, Tx
from trading_intents.stream import log as event_log
from trading_intents.telemetry import Log, Metrics

CHECK_SECONDS = 2.0
RESTORED = "restored"  # the reason of the halts
_TERMS = HaltTerms(RESTORED, cancel_orders=False)


async def restore_commands(pool: Pool, who: str, reason: str, *, halts: bool = True) -> int:
    """Makes commands restored ones in one transaction, which renews the event log's epoch too, and
    halts every organization: a halt may have begun after the backup was made. Gives how many
    commands are never sent because of it."""
    async with pool.transaction() as tx:
        return await _restore(tx, who, reason, halts)


async def _restore(tx: Tx, who: str, reason: str, halts: bool = True) -> int:
    await store.forget_absences(tx)
    count = await store.restore_commands(tx)
    await event_log.renew_epoch(tx, who, reason)
    for organization_id in await store.list_organizations(tx) if halts else ():
        principal = HaltPrincipal(HaltPrincipalType.SYSTEM, "restore")
        await start_halt(tx, uuid4(), HaltScope(organization_id), _TERMS, principal)
    return count


async def keep_restoring(pool: Pool, metrics: Metrics, log: Log) -> None:
    """Makes commands restored ones after a failover that lost a tail, which any process may have
    reported. Runs until cancelled."""

    async def restore() -> None:
        async with pool.transaction() as tx:
            if lost := await event_log.lock_lost_tail(tx):
                count = await _restore(tx, "failover", lost)
        if lost:
            metrics.alert("tail_lost")
            log.error("committed work lost", reason=lost, never_sent=count)

    await repeat(restore, CHECK_SECONDS, log_failures(log, "lost tail not looked for"))


async def resume_restored(pool: Pool, who: str, organization: str | None) -> list[Halt]:
    """Ends the halts that a restore began: of the organization with this id or external id, or of
    all."""
    async with pool.transaction() as tx:
        halted = await store.list_restored(tx, RESTORED, organization)
        if organization is not None and not halted:
            raise NotHalted("no halt of a restore stands there")
        principal = HaltPrincipal(HaltPrincipalType.SYSTEM, f"operator {who}")
        return [
            await end_halt(tx, HaltScope(organization_id), principal) for organization_id in halted
        ]


async def refuse_workers(pool: Pool) -> None:
    """Refuses while a worker may run on the database: it could send what is being restored."""
    async with pool.transaction(read_only=True) as tx:
        if await store.is_any_worker_running(tx):
            raise StartupRefused(
                "a worker runs on this database: end every process with the role `worker` first"
            )
