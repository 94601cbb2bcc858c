"""Use cases of limits. A change is committed before it is answered, so whatever arrives later is
judged by it."""

from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.accounts.service import AccountTarget, check_open, find_target, lock_target
from trading_intents.controls.limits import store
from trading_intents.controls.limits.model import (
    NO_LIMIT,
    StoredLimits,
    TradingLimits,
)
from trading_intents.controls.limits.state.budgets import KeyUse, parse_use
from trading_intents.controls.limits.state.losses import AccountResults, baseline_rows
from trading_intents.controls.limits.state.statements import read_results, record_baselines
from trading_intents.controls.model import DEFAULT_TIMEZONE
from trading_intents.controls.service import MAX_SYMBOLS_PER_ACCOUNT
from trading_intents.errors import LimitReached, NotFound, VersionConflict
from trading_intents.identity.store import lock_key, lock_organization
from trading_intents.ids import OrganizationId
from trading_intents.prices.model import PriceRules
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.web.request import Expected, check_version


async def count_opening(
    tx: Tx,
    account_id: UUID,
    organization_id: OrganizationId,
    made_before: Decimal,
    prices: PriceRules,
) -> None:
    """Keeps today's result as it was before the account's opening positions were written: what they
    `made_before` is of the baseline, which begins now if there is none of today. The account is
    locked."""
    for limit in await store.find_loss_limits(tx, [account_id]):
        (reply,) = await PoolTransaction(tx).run([read_results([str(account_id)])])
        begun = AccountResults(reply.texts(), prices).begin_day(
            str(account_id), limit.timezone, await read_clock(tx)
        )
        (row,) = baseline_rows({(str(account_id), str(organization_id)): begun})
        await store.add_to_baseline(tx, row, made_before)


async def put_key_limits(
    tx: Tx,
    organization_id: OrganizationId,
    key_id: UUID,
    limits: TradingLimits,
    expected: Expected = None,
) -> StoredLimits:
    """The key is locked."""
    await store.make_budget(tx, organization_id, key_id)
    present = await store.find_limits(tx, key_id, "")
    is_same = _is_same(present, limits, expected)
    return (
        present
        if present and is_same
        else await store.put_limits(tx, organization_id, key_id, "", limits)
    )


# Callbacks, since what they refuse (422) is refused only once the account is known to be the
# caller's (404, 403).
ReadLimitedSymbol = Callable[[], str]  # a symbol, or none: the account itself
ReadLimits = Callable[[], tuple[str, TradingLimits]]


class LimitsService:
    def __init__(self, pool: Pool, prices: PriceRules) -> None:
        self._pool = pool
        self._prices = prices

    async def find_organization(self, organization_id: OrganizationId) -> StoredLimits:
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            return _there(await store.find_limits(tx, organization_id, ""))

    async def put_organization(
        self, organization_id: OrganizationId, limits: TradingLimits, expected: Expected
    ) -> StoredLimits:
        async with self._pool.transaction([organization_id]) as tx:
            await lock_organization(tx, organization_id)
            return await self._put(
                tx,
                organization_id=organization_id,
                owner_id=organization_id,
                symbol="",
                limits=limits,
                expected=expected,
            )

    async def remove_organization(
        self, organization_id: OrganizationId, expected: Expected
    ) -> None:
        async with self._pool.transaction([organization_id]) as tx:
            await lock_organization(tx, organization_id)
            await self._remove(tx, organization_id, "", expected)

    async def find(self, target: AccountTarget, read: ReadLimitedSymbol) -> StoredLimits:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            account = await find_target(tx, target)
            return _there(await store.find_limits(tx, account.id, read()))

    async def put(
        self, target: AccountTarget, read: ReadLimits, expected: Expected
    ) -> StoredLimits:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            symbol, limits = read()
            check_open(account)
            return await self._put(
                tx,
                organization_id=account.organization_id,
                owner_id=account.id,
                symbol=symbol,
                limits=limits,
                expected=expected,
                account=account,
            )

    async def remove(
        self, target: AccountTarget, read: ReadLimitedSymbol, expected: Expected
    ) -> None:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            symbol = read()
            check_open(account)
            await self._remove(tx, account.id, symbol, expected, account)

    async def find_key(
        self, organization_id: OrganizationId, key_id: UUID | None
    ) -> tuple[StoredLimits, KeyUse]:
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            return await _key_limits(tx, key_id)

    async def put_key(
        self,
        organization_id: OrganizationId,
        key_id: UUID | None,
        read: Callable[[], TradingLimits],
        expected: Expected,
    ) -> tuple[StoredLimits, KeyUse]:
        async with self._pool.transaction([organization_id]) as tx:
            key = await _lock_key(tx, organization_id, key_id)
            await put_key_limits(tx, organization_id, key, read(), expected)
            return await _key_limits(tx, key)

    async def remove_key(
        self, organization_id: OrganizationId, key_id: UUID | None, expected: Expected
    ) -> None:
        async with self._pool.transaction([organization_id]) as tx:
            await self._remove(tx, await _lock_key(tx, organization_id, key_id), "", expected)

    async def _put(
        self,
        tx: Tx,
        organization_id: OrganizationId,
        owner_id: UUID,
        symbol: str,
        limits: TradingLimits,
        expected: Expected,
        account: Account | None = None,
    ) -> StoredLimits:
        present = await store.find_limits(tx, owner_id, symbol)
        if _is_same(present, limits, expected):
            assert present is not None
            return present
        # Counted under the account's lock, so that two at once cannot both be the last.
        if (
            not present
            and account
            and symbol
            and await store.count_symbols(tx, account.id) >= MAX_SYMBOLS_PER_ACCOUNT
        ):
            raise LimitReached(
                f"the account has {MAX_SYMBOLS_PER_ACCOUNT} symbols with limits, which is the most"
            )
        if account and not symbol:
            await self._follow_loss_limit(tx, account, limits)
        return await store.put_limits(tx, organization_id, owner_id, symbol, limits)

    async def _remove(
        self,
        tx: Tx,
        owner_id: UUID,
        symbol: str,
        expected: Expected,
        account: Account | None = None,
    ) -> None:
        present = _there(await store.find_limits(tx, owner_id, symbol))
        check_version(present.version, expected)
        if account and not symbol:
            await self._follow_loss_limit(tx, account, NO_LIMIT)
        await store.delete_limits(tx, owner_id, symbol)

    async def _follow_loss_limit(self, tx: Tx, account: Account, limits: TradingLimits) -> None:
        """Has the daily loss judged anew by a new version, and today's result counted from now if
        it was not before."""
        zone = None if limits.max_daily_loss is None else limits.timezone or DEFAULT_TIMEZONE
        await store.change_loss_limit(tx, account.id, zone)
        if zone is None:
            return
        runner = PoolTransaction(tx)
        account_id = str(account.id)
        (reply,) = await runner.run([read_results([account_id])])
        _, baseline = AccountResults(reply.texts(), self._prices).today(
            account_id, zone, await read_clock(tx)
        )
        if baseline:
            rows = baseline_rows({(account_id, str(account.organization_id)): baseline})
            await runner.run([record_baselines(rows)])


def _is_same(present: StoredLimits | None, limits: TradingLimits, expected: Expected) -> bool:
    if present is None and expected is not None:
        raise VersionConflict("no limits are set yet; send them without If-Match")
    if present:
        check_version(present.version, expected)
    return present is not None and present.limits == limits


async def _lock_key(tx: Tx, organization_id: OrganizationId, key_id: UUID | None) -> UUID:
    key = key_id and await lock_key(tx, organization_id, key_id)
    if not key:
        raise NotFound("no such API key")
    return key.id


async def _key_limits(tx: Tx, key_id: UUID | None) -> tuple[StoredLimits, KeyUse]:
    use = key_id and await store.find_use(tx, key_id)
    if not key_id or not use:
        raise NotFound("no limits are set here")
    return _there(await store.find_limits(tx, key_id, "")), parse_use(use, await read_clock(tx))


def _there(limits: StoredLimits | None) -> StoredLimits:
    if limits is None:
        raise NotFound("no limits are set here")
    return limits
