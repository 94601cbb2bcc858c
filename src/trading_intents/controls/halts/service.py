"""Use cases of halts. A halt is committed before it is answered: nothing is sent from then on that
it refuses."""

from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from trading_intents.accounts.model import Account
from trading_intents.accounts.service import AccountTarget, check_open, find_target
from trading_intents.controls.halts import model, store
from trading_intents.errors import NotFound, NotHalted, PlatformError
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.signals import Signals
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log
from trading_intents.trading import Environment

CHANNEL = "halts"  # the signal that says: a halt began, or has more to do

HaltTarget = AccountTarget | model.HaltScope  # an account, or the scope of the organization
ReadTerms = Callable[[], model.HaltTerms]


async def start_halt(
    tx: Tx,
    halt_id: UUID,
    scope: model.HaltScope,
    terms: model.HaltTerms,
    principal: model.HaltPrincipal,
) -> tuple[model.Halt, bool]:
    """The halt that stands from the commit on, and whether it is a new one. One that stands already
    stays, and does what these terms add to its work.

    Runs as the last statements of a transaction: it locks the halts of the organization, then its
    stream. After the commit the channels CHANNEL and `stream` are to be notified.
    """
    await store.lock_halts(tx, scope.organization_id)
    present = await store.find_standing(tx, scope)
    if present is None:
        halt = await store.insert_halt(
            tx,
            halt_id=halt_id,
            scope=scope,
            terms=terms,
            state=model.first_state(terms),
            principal=principal,
        )
        await stream_log.append(tx, [model.halt_event(halt)])
        return halt, True
    wanted = model.extended(present, terms)
    if wanted is not present:
        wanted = await store.extend_halt(tx, wanted)
        await stream_log.append(tx, [model.halt_event(wanted)])
    return wanted, False


async def end_halt(tx: Tx, scope: model.HaltScope, principal: model.HaltPrincipal) -> model.Halt:
    """Nothing is appended for the halt, and none of its orders is sent, from the commit on."""
    await store.lock_halts(tx, scope.organization_id)
    halt = await store.find_standing(tx, scope)
    if halt is None:
        raise NotHalted("no halt stands here")
    halt = await store.resume_halt(tx, halt.id, principal)
    await stream_log.append(tx, [model.halt_event(halt)])
    return halt


class Halts:
    def __init__(self, pool: Pool, make_id: IdMaker, signals: Signals, log: Log) -> None:
        self._pool = pool
        self._make_id = make_id
        self._signals = signals
        self._log = log

    async def start(
        self, target: HaltTarget, read: ReadTerms, principal: model.HaltPrincipal
    ) -> tuple[model.Halt, bool]:
        # An account is read and not locked: a transaction that holds its row must not delay a halt.
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await _find_account(tx, target)
            terms = read()
            halt, is_new = await start_halt(
                tx, self._make_id(), _open_scope(target, account), terms, principal
            )
        self._signals.notify(CHANNEL)
        self._signals.notify(STREAM)
        self._log.warning(
            "trading halted" if is_new else "trading halted already",
            **_log_fields(halt, halt.principal),
        )
        if halt.terms.cancel_orders:
            halt = replace(await self._count(halt), state=halt.state)
        return halt, is_new

    async def _count(self, halt: model.Halt) -> model.Halt:
        """The halt with what it has found by now. It stands, whether or not that can be read."""
        try:
            async with self._pool.transaction([halt.scope.organization_id], read_only=True) as tx:
                return await store.count_work(tx, halt)
        except PlatformError:
            return halt

    async def resume(self, target: HaltTarget, principal: model.HaltPrincipal) -> model.Halt:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await _find_account(tx, target)
            halt = await end_halt(tx, _open_scope(target, account), principal)
        self._signals.notify(STREAM)
        self._log.warning("trading resumed", **_log_fields(halt, principal))
        return halt

    async def find_account(self, target: AccountTarget) -> model.Halt:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return _there(
                await store.find_last(tx, model.HaltScope(target.organization_id, account.id))
            )

    async def find_organization(
        self, organization_id: OrganizationId, environment: Environment | None
    ) -> model.Halt:
        """`environment`: what it waits for is shown of that one's accounts only."""
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            halt = _there(await store.find_last(tx, model.HaltScope(organization_id)))
            if environment is None:
                return halt
            named = {UUID(each.account_id) for each in halt.waiting}
            shown = await store.of_environment(tx, organization_id, named, environment)
        waiting = tuple(each for each in halt.waiting if each.account_id in shown)
        return replace(halt, waiting=waiting)


async def _find_account(tx: Tx, target: HaltTarget) -> Account | None:
    return await find_target(tx, target) if isinstance(target, AccountTarget) else None


def _open_scope(target: HaltTarget, account: Account | None) -> model.HaltScope:
    if account is None:
        return model.HaltScope(target.organization_id)
    check_open(account)
    return model.HaltScope(target.organization_id, account.id)


def _there(halt: model.Halt | None) -> model.Halt:
    if halt is None:
        raise NotFound("there was no halt here")
    return halt


def _log_fields(halt: model.Halt, principal: model.HaltPrincipal) -> dict[str, str | None]:
    return {
        "halt": str(halt.id),
        "organization": str(halt.scope.organization_id),
        "account": str(halt.scope.account_id) if halt.scope.account_id else None,
        "reason": halt.terms.reason,
        "by": f"{principal.type} {principal.id}",
    }
