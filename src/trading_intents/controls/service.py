"""Use cases of controls. A change is committed before it is answered, so it holds for every later command."""

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

# Callbacks, since what they refuse (422) is refused only once the account is known to be the caller's (404, 403).
ReadPage = Callable[[], PageRequest]
ReadSymbol = Callable[[], Symbol]
ReadSwitch = Callable[[], model.Switch]
ReadSymbolSwitch = Callable[[], tuple[Symbol, model.Switch]]
ReadTimeChange = Callable[[], tuple[Symbol, model.TimeChange]]


class ControlsService:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_organization(self, organization_id: OrganizationId) -> model.ManualControl:
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            control = await store.find_organization_control(tx, organization_id)
        return _there(control)

    async def put_organization(
        self, organization_id: OrganizationId, switch: model.Switch, expected: Expected
    ) -> model.ManualControl:
        async with self._pool.transaction([organization_id]) as tx:
            await lock_organization(tx, organization_id)
            control = await store.find_organization_control(tx, organization_id)
            _check_version(control, expected)
            if control and control.switch == switch:
                return control
            return await store.put_organization_control(tx, organization_id, switch)

    async def find_account(self, target: AccountTarget) -> model.ManualControl:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return _there(await store.find_account_control(tx, account.id))

    async def put_account(self, target: AccountTarget, read: ReadSwitch, expected: Expected) -> model.ManualControl:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            switch = read()
            check_open(account)
            control = await store.find_account_control(tx, account.id)
            _check_version(control, expected)
            if control and control.switch == switch:
                return control
            return await store.put_account_control(tx, account.organization_id, account.id, switch)

    async def list_symbols(self, target: AccountTarget, read: ReadPage) -> list[model.SymbolControl]:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return await store.list_symbol_controls(tx, account.id, read())

    async def find_symbol(self, target: AccountTarget, read: ReadSymbol) -> model.SymbolControl:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return _either(await store.find_symbol_control(tx, account.id, read()))

    async def put_symbol(
        self, target: AccountTarget, read: ReadSymbolSwitch, expected: Expected
    ) -> model.ManualControl:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            symbol, switch = read()
            check_open(account)
            present = await store.find_symbol_control(tx, account.id, symbol)
            _check_version(present.manual, expected)
            if present.manual and present.manual.switch == switch:
                return present.manual
            await _check_room(tx, present, account)
            return await store.put_symbol_manual(tx, account.organization_id, account.id, symbol, switch)

    async def change_time(self, target: AccountTarget, read: ReadTimeChange, expected: Expected) -> model.TimeControl:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            symbol, change = read()
            present = await store.find_symbol_control(tx, account.id, symbol)
            rule = model.changed(present.time.rule if present.time else model.TimeRule(), change)
            check_open(account)
            _check_version(present.time, expected)
            if present.time and present.time.rule == rule:
                return present.time
            await _check_room(tx, present, account)
            return await store.put_symbol_time(tx, account.organization_id, account.id, symbol, rule)

    async def remove_symbol(self, target: AccountTarget, read: ReadSymbol, expected: Expected) -> None:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            control = _either(await store.find_symbol_control(tx, account.id, read()))
            check_open(account)
            check_version(control.version, expected)
            await store.delete_symbol_control(tx, account.id, control.symbol)


def _there(control: model.ManualControl | None) -> model.ManualControl:
    if control is None:
        raise NotFound("no control is set here")
    return control


def _either(control: model.SymbolControl) -> model.SymbolControl:
    if not (control.manual or control.time):
        raise NotFound("no control is set here")
    return control


def _check_version(control: model.ManualControl | model.TimeControl | None, expected: Expected) -> None:
    if control:
        check_version(control.version, expected)
    elif expected is not None:
        raise VersionConflict("no control is set yet; send it without If-Match")


async def _check_room(tx: Tx, present: model.SymbolControl, account: Account) -> None:
    """Counts under the account's lock, so that two requests at once cannot both be the last that is allowed."""
    if present.manual or present.time:
        return
    if await store.count_symbols(tx, account.id) >= MAX_SYMBOLS_PER_ACCOUNT:
        raise LimitReached(f"the account has {MAX_SYMBOLS_PER_ACCOUNT} symbols with controls, which is the limit")
