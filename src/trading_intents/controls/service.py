"""Use cases of controls. A change is committed before it is answered, so it holds for every later
command."""

from collections.abc import Callable

from trading_intents.accounts.model import Account
from trading_intents.accounts.service import AccountTarget, check_open, find_target, lock_target
from trading_intents.controls import model, store
from trading_intents.errors import LimitReached, NotFound, VersionConflict
from trading_intents.identity.store import lock_organization
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.pages import PageRequest
from trading_intents.trading import Symbol
from trading_intents.web.request import Expected, check_version

MAX_SYMBOLS_PER_ACCOUNT = 10_000

# Callbacks, since what they refuse (422) is refused only once the account is known to be the
# caller's (404, 403).
ReadPage = Callable[[], PageRequest]
ReadSymbol = Callable[[], Symbol]
ReadSwitch = Callable[[], tuple[Symbol | None, model.Switch]]  # without a symbol, the account's
ReadTimeChange = Callable[[], tuple[Symbol, model.TimeChange]]


class ControlsService:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_organization(self, organization_id: OrganizationId) -> model.ManualControl:
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            return _there(await store.find_switch(tx, model.ControlScope(organization_id)))

    async def put_organization(
        self, organization_id: OrganizationId, switch: model.Switch, expected: Expected
    ) -> model.ManualControl:
        async with self._pool.transaction([organization_id]) as tx:
            await lock_organization(tx, organization_id)
            return await _put_switch(tx, model.ControlScope(organization_id), switch, expected)

    async def find_account(self, target: AccountTarget) -> model.ManualControl:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return _there(await store.find_switch(tx, _scope(account)))

    async def put(
        self, target: AccountTarget, read: ReadSwitch, expected: Expected
    ) -> model.ManualControl:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            symbol, switch = read()
            check_open(account)
            return await _put_switch(tx, _scope(account, symbol), switch, expected)

    async def list_symbols(
        self, target: AccountTarget, read: ReadPage
    ) -> list[model.SymbolControl]:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return await store.list_symbol_controls(tx, account.id, read())

    async def find_symbol(self, target: AccountTarget, read: ReadSymbol) -> model.SymbolControl:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return await _find_symbol(tx, account, read())

    async def change_time(
        self, target: AccountTarget, read: ReadTimeChange, expected: Expected
    ) -> model.TimeControl:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            symbol, change = read()
            scope = _scope(account, symbol)
            present = await store.find_time(tx, scope)
            rule = model.changed(present.rule if present else model.TimeRule(), change)
            check_open(account)
            _check_version(present, expected)
            if present and present.rule == rule:
                return present
            if present is None:
                await _check_room(tx, scope)
            return await store.put_time(tx, scope, rule)

    async def remove_symbol(
        self, target: AccountTarget, read: ReadSymbol, expected: Expected
    ) -> None:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            control = await _find_symbol(tx, account, read())
            check_open(account)
            check_version(control.version, expected)
            await store.delete_symbol_control(tx, _scope(account, control.symbol))


def _scope(account: Account, symbol: Symbol | None = None) -> model.ControlScope:
    return model.ControlScope(account.organization_id, account.id, symbol)


def _there(control: model.ManualControl | None) -> model.ManualControl:
    if control is None:
        raise NotFound("no control is set here")
    return control


async def _find_symbol(tx: Tx, account: Account, symbol: Symbol) -> model.SymbolControl:
    scope = _scope(account, symbol)
    control = model.SymbolControl(
        symbol, await store.find_switch(tx, scope), await store.find_time(tx, scope)
    )
    if not (control.manual or control.time):
        raise NotFound("no control is set here")
    return control


async def _put_switch(
    tx: Tx, scope: model.ControlScope, switch: model.Switch, expected: Expected
) -> model.ManualControl:
    present = await store.find_switch(tx, scope)
    _check_version(present, expected)
    if present and present.switch == switch:
        return present
    if present is None and scope.symbol is not None:
        await _check_room(tx, scope)
    return await store.put_switch(tx, scope, switch)


def _check_version(
    control: model.ManualControl | model.TimeControl | None, expected: Expected
) -> None:
    if control:
        check_version(control.version, expected)
    elif expected is not None:
        raise VersionConflict("no control is set yet; send it without If-Match")


async def _check_room(tx: Tx, scope: model.ControlScope) -> None:
    """Counts under the account's lock, so that two requests at once cannot both be the last that is
    allowed."""
    if await store.count_other_symbols(tx, scope) >= MAX_SYMBOLS_PER_ACCOUNT:
        raise LimitReached(
            f"the account has {MAX_SYMBOLS_PER_ACCOUNT} symbols with controls, which is the limit"
        )
