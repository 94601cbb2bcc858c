"""Use cases of accounts. Each change and its event are one transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trading_intents import errors
from trading_intents.accounts import model, store
from trading_intents.brokers.registry import Registry
from trading_intents.identity.store import lock_organization
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.outbox.model import NewRow, OutboxEventType, Queue, channel
from trading_intents.outbox.queue import put
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.pages import PageRequest
from trading_intents.storage.signals import Signals
from trading_intents.trading import Environment
from trading_intents.web.request import Expected, check_version

MAX_ACCOUNTS_PER_ORGANIZATION = 10_000


@dataclass(frozen=True, slots=True)
class AccountTarget:
    """The account that a caller names, not yet known to be the organization's or of the caller's
    environment."""

    organization_id: OrganizationId
    account_id: UUID | None
    check: Callable[[model.Account], None]  # 403 for the environment, once the account is found


class Accounts:
    def __init__(self, pool: Pool, make_id: IdMaker, brokers: Registry, signals: Signals) -> None:
        self._pool = pool
        self._make_id = make_id
        self._brokers = brokers
        self._signals = signals

    async def create(
        self, organization_id: OrganizationId, given: model.NewAccount
    ) -> model.Account:
        check_broker(self._brokers, given.broker, given.environment)
        async with self._pool.transaction([organization_id]) as tx:
            account = await insert(tx, self._make_id(), organization_id, given)
        self._signals.notify(channel(Queue.ACCOUNTS))
        return account

    async def find(self, target: AccountTarget) -> model.Account:
        async with self._pool.transaction([target.organization_id], read_only=True) as tx:
            return await find_target(tx, target)

    async def list(
        self, organization_id: OrganizationId, environment: Environment | None, page: PageRequest
    ) -> list[model.Account]:
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            return await store.list_accounts(tx, organization_id, environment, page)

    async def change(
        self,
        target: AccountTarget,
        read_change: Callable[[], model.ChangedAccount],
        expected: Expected,
    ) -> model.Account:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            change = read_change()
            check_open(account)
            check_version(account.version, expected)
            account = await apply_change(tx, account, change)
        self._signals.notify(channel(Queue.ACCOUNTS))
        return account

    async def close(self, target: AccountTarget, expected: Expected) -> None:
        async with self._pool.transaction([target.organization_id]) as tx:
            account = await lock_target(tx, target)
            check_open(account)
            check_version(account.version, expected)
            await check_no_open_orders(tx, account)
            await queue_event(
                tx, OutboxEventType.ACCOUNT_DELETED, await store.close_account(tx, account.id)
            )
        self._signals.notify(channel(Queue.ACCOUNTS))

    def connection(self, account: model.Account) -> model.ConnectionState:
        return model.shown_connection(account, self._brokers.find(account.broker))


def check_broker(brokers: Registry, broker: str, environment: Environment) -> None:
    found = brokers.find(broker)
    if found is None:
        known = errors.either(each.name for each in brokers.all())
        raise errors.ValidationFailed.at("/broker", f"no such broker: {broker}; use {known}")
    if environment not in found.environments:
        allowed = errors.either(found.environments)
        raise errors.ValidationFailed.at(
            "/environment", f"the broker {broker} has no environment {environment}; use {allowed}"
        )


def check_open(account: model.Account) -> None:
    if account.closed_at is not None:
        raise errors.AccountClosed("the account is closed for good: it can be read, not changed")


async def check_no_open_orders(tx: Tx, account: model.Account) -> None:
    if await store.has_open_orders(tx, account.id):
        raise errors.OpenOrders("the account has open orders; cancel them first")


async def insert(
    tx: Tx, account_id: UUID, organization_id: OrganizationId, given: model.NewAccount
) -> model.Account:
    await lock_organization(tx, organization_id)
    if await store.count_accounts(tx, organization_id) >= MAX_ACCOUNTS_PER_ORGANIZATION:
        raise errors.LimitReached(
            f"the organization has {MAX_ACCOUNTS_PER_ORGANIZATION} accounts, which is the limit"
        )
    account = await store.insert_account(tx, account_id, organization_id, given)
    await queue_event(tx, OutboxEventType.ACCOUNT_CREATED, account)
    return account


async def find_target(tx: Tx, target: AccountTarget, is_locked: bool = False) -> model.Account:
    """The account: 404, then 403 for the environment."""
    find = store.lock_account if is_locked else store.find_account
    account = (
        await find(tx, target.organization_id, target.account_id) if target.account_id else None
    )
    if not account:
        raise errors.NotFound("no such account")
    target.check(account)
    return account


async def lock_target(tx: Tx, target: AccountTarget) -> model.Account:
    return await find_target(tx, target, is_locked=True)


async def apply_change(
    tx: Tx, account: model.Account, change: model.ChangedAccount
) -> model.Account:
    """Writes the changed account and its event; nothing if nothing changes."""
    name, external_account_id, disabled = model.changed(account, change)
    if (name, external_account_id, disabled) == (
        account.name,
        account.external_account_id,
        account.disabled,
    ):
        return account
    account = await store.update_account(tx, account.id, name, external_account_id, disabled)
    await queue_event(tx, OutboxEventType.ACCOUNT_UPDATED, account)
    return account


async def queue_event(tx: Tx, event: OutboxEventType, account: model.Account) -> None:
    payload = {"account_id": str(account.id), "version": account.version}
    await put_event(tx, event, account.organization_id, account.id, payload)


async def put_event(
    tx: Tx,
    event: OutboxEventType,
    organization_id: OrganizationId,
    account_id: model.AccountId,
    payload: dict[str, Any],
) -> None:
    row = NewRow(
        queue=Queue.ACCOUNTS,
        event_type=event,
        organization_id=organization_id,
        order_key=account_id,
        payload=payload,
    )
    await put(tx, [row])
