"""Provisioning by an operator: the document of `admin apply`, a user's token, and the demo of an
empty platform."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from trading_intents.accounts.model import AccountId, ChangedAccount, NewAccount
from trading_intents.accounts.service import apply_change, check_broker, insert
from trading_intents.accounts.store import find_account_by_name
from trading_intents.app import Infrastructure, embedded_provider
from trading_intents.brokers.registry import BUILT_IN
from trading_intents.config import LOCAL_PROVIDER, PREFIX, Settings
from trading_intents.console.demo import DEMO, DEMO_FILE, is_loopback, make_code, read_demo_key
from trading_intents.controls.limits.bodies import KeyLimits, read_limits
from trading_intents.controls.limits.service import put_key_limits
from trading_intents.errors import DatabaseMissing, StartupRefused, ValidationFailed
from trading_intents.identity import store
from trading_intents.identity.keys import digest, hint, is_key, make_client_secret, make_key
from trading_intents.identity.model import (
    Entitlement,
    NewKey,
    OrganizationRecord,
    Permission,
    PermissionSet,
    Role,
    Scope,
)
from trading_intents.identity.service import TokenIssuer
from trading_intents.outbox.model import Queue, channel
from trading_intents.secret import Secret, make_file
from trading_intents.storage.administration import lock_advisory
from trading_intents.storage.database import ADMIN_ROLE, Tx, open_pool, show_organizations
from trading_intents.trading import Environment, FrozenStruct
from trading_intents.web.body import Name, convert, read_json
from trading_intents.web.paging import read_time
from trading_intents.web.request import show_as

# Beside the demo's key: where the platform listens, for the Python client.
DEMO_URL_FILE = "demo-url"
DEMO_ACCOUNT = ("sim", BUILT_IN, Environment.PAPER)  # name, broker, environment
ADVISORY_LOCK = 7_469_002  # one provisioning at a time, so that two cannot both make the same key


class WantedUser(msgspec.Struct, forbid_unknown_fields=True):
    external_id: Name
    role: Role | None = None


class WantedKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A key is found by its name and environment."""

    name: Name
    environment: Environment
    permissions: list[Permission] | None = None
    permission_set: PermissionSet | None = None
    disabled: bool | None = None
    expires_at: str | None = None  # may be past: the key is then refused from now on
    limits: KeyLimits | None = None


class WantedAccount(msgspec.Struct, forbid_unknown_fields=True):
    """An open account is found by its name, broker and environment."""

    name: Name
    broker: Name
    environment: Environment
    external_account_id: Name | None = None
    disabled: bool | None = None


class WantedOrganization(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    external_id: Name
    name: Name | None = None
    entitlements: list[Entitlement] | None = None
    disabled: bool | None = None
    member_trading: bool | None = None
    users: list[WantedUser] = []
    accounts: list[WantedAccount] = []
    api_keys: list[WantedKey] = []


class WantedServiceAccount(msgspec.Struct, forbid_unknown_fields=True):
    client_id: Name
    scopes: list[Scope] | None = None
    disabled: bool | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """Anything left out stays as it is."""

    organizations: list[WantedOrganization] = []
    service_accounts: list[WantedServiceAccount] = []


class ProvisionedUser(msgspec.Struct):
    id: str
    external_id: str
    role: Role


class ProvisionedKey(msgspec.Struct, omit_defaults=True, kw_only=True):
    id: str
    name: str
    environment: Environment
    permissions: list[Permission]
    disabled: bool
    expires_at: str | None = None
    api_key: str = ""


class ProvisionedAccount(msgspec.Struct, kw_only=True):
    id: UUID
    name: str
    broker: str
    environment: Environment
    external_account_id: str | None
    disabled: bool


class ProvisionedOrganization(msgspec.Struct, kw_only=True):
    id: str
    external_id: str
    name: str
    entitlements: list[Entitlement]
    disabled: bool
    member_trading: bool
    users: list[ProvisionedUser]
    accounts: list[ProvisionedAccount]
    api_keys: list[ProvisionedKey]


class ProvisionedServiceAccount(msgspec.Struct, omit_defaults=True):
    client_id: str
    scopes: list[Scope]
    disabled: bool
    client_secret: str = ""


class Provisioned(msgspec.Struct):
    organizations: list[ProvisionedOrganization]
    service_accounts: list[ProvisionedServiceAccount]


def read_document(data: bytes) -> Document:
    return convert(read_json(data), Document)


async def apply(
    parts: Infrastructure, wanted: Document, new_keys: dict[str, Secret] | None = None
) -> Provisioned:
    """Applies the document in one transaction, by the owner's login. `new_keys` are keys to use, by
    name, instead of new ones."""
    opening = open_pool(parts.owner_url, ADMIN_ROLE, 1, parts.metrics)
    async with opening as pool, pool.transaction() as tx:
        await lock_advisory(tx, ADVISORY_LOCK)
        organizations = []
        for number, item in enumerate(wanted.organizations):
            at = f"/organizations/{number}"
            organizations.append(await _organization(tx, parts, item, new_keys or {}, at))
        services = [await _service_account(tx, each) for each in wanted.service_accounts]
    parts.signals.notify(channel(Queue.ACCOUNTS))
    return Provisioned(organizations, services)


async def _organization(
    tx: Tx,
    parts: Infrastructure,
    item: WantedOrganization,
    new_keys: dict[str, Secret],
    at: str,
) -> ProvisionedOrganization:
    made = await store.put_organization(
        tx,
        organization_id=parts.make_id(),
        provider=parts.settings.identity_provider_name,
        external_id=item.external_id,
        name=item.name,
        entitlements=item.entitlements,
        disabled=item.disabled,
        member_trading=item.member_trading,
    )
    await show_organizations(tx, [made.id])
    users = [await _user(tx, parts, made, user) for user in item.users]
    await store.end_unheld_sessions(tx, made.id)
    accounts = []
    for number, account in enumerate(item.accounts):
        accounts.append(await _account(tx, parts, made, account, f"{at}/accounts/{number}"))
    keys = []
    for number, key in enumerate(item.api_keys):
        secret = new_keys.get(key.name)
        key_at = f"{at}/api_keys/{number}"
        keys.append(await _key(tx, parts, made, key, secret=secret, at=key_at))
    return show_as(
        ProvisionedOrganization,
        made,
        entitlements=sorted(made.entitlements),
        users=users,
        accounts=accounts,
        api_keys=keys,
    )


async def _user(
    tx: Tx, parts: Infrastructure, organization: OrganizationRecord, item: WantedUser
) -> ProvisionedUser:
    user_id = await store.put_user(tx, parts.make_id(), organization.provider, item.external_id)
    role = await store.put_membership(tx, user_id, organization.id, item.role)
    return ProvisionedUser(str(user_id), item.external_id, role)


@contextmanager
def _pointing_into(pointer: str) -> Iterator[None]:
    """Says where in the document a value breaks a rule."""
    try:
        yield
    except ValidationFailed as error:
        raise ValidationFailed.at(
            pointer + error.errors[0].pointer, error.errors[0].detail
        ) from None


async def _account(
    tx: Tx, parts: Infrastructure, organization: OrganizationRecord, item: WantedAccount, at: str
) -> ProvisionedAccount:
    account = await find_account_by_name(
        tx, organization.id, item.name, item.broker, item.environment
    )
    if account is None:
        with _pointing_into(at):
            check_broker(parts.brokers, item.broker, item.environment)
        given = NewAccount(item.name, item.broker, item.environment, item.external_account_id)
        account = await insert(tx, parts.make_id(), organization.id, given)
    account = await apply_change(
        tx, account, ChangedAccount(None, item.external_account_id, item.disabled)
    )
    return show_as(ProvisionedAccount, account)


async def _key(
    tx: Tx,
    parts: Infrastructure,
    organization: OrganizationRecord,
    item: WantedKey,
    secret: Secret | None,
    at: str,
) -> ProvisionedKey:
    shown = ""
    wanted = None if item.permissions is None else frozenset(item.permissions)
    if item.permission_set:
        if wanted is not None:
            raise ValidationFailed.at(f"{at}/permission_set", "give this or permissions, not both")
        wanted = item.permission_set.permissions
    expires_at = item.expires_at and read_time(f"{at}/expires_at", item.expires_at)
    key = await store.find_key_by_name(tx, organization.id, item.name, item.environment)
    if key is None:
        shown = (secret or make_key(item.environment)).reveal()
        new = NewKey(
            name=item.name,
            environment=item.environment,
            permissions=sorted(wanted or ()),
            digest=digest(shown),
            hint=hint(shown),
        )
        key = await store.insert_key(tx, parts.make_id(), organization.id, new)
    permissions = key.permissions if wanted is None else wanted
    disabled = key.disabled if item.disabled is None else item.disabled
    ends = expires_at or key.expires_at
    if (permissions, disabled, ends) != (key.permissions, key.disabled, key.expires_at):
        key = await store.update_key(
            tx,
            key_id=key.id,
            name=key.name,
            permissions=permissions,
            disabled=disabled,
            expires_at=ends,
        )
    if item.limits is not None:
        with _pointing_into(f"{at}/limits"):
            await put_key_limits(tx, organization.id, key.id, read_limits(item.limits))
    return show_as(ProvisionedKey, key, permissions=sorted(key.permissions), api_key=shown)


async def _service_account(tx: Tx, item: WantedServiceAccount) -> ProvisionedServiceAccount:
    secret = make_client_secret().reveal()
    account = await store.put_service_account(
        tx, item.client_id, digest(secret), item.scopes, item.disabled
    )
    # Else it keeps the secret that it had.
    shown = secret if account.digest == digest(secret) else ""
    return ProvisionedServiceAccount(
        account.client_id, sorted(account.scopes), account.disabled, shown
    )


async def user_token(parts: Infrastructure, user: str, organization: str | None) -> Secret:
    if parts.settings.identity_provider_name != LOCAL_PROVIDER:
        raise StartupRefused("tokens come from the configured identity provider, not from here")
    issuer = TokenIssuer(parts.database.service, embedded_provider(parts, may_create=False))
    return await issuer.issue_for_user(user, organization)


def make_console_link(settings: Settings, url: str) -> Secret:
    """A link into the demo's console: it holds once, for a minute, on this machine."""
    if settings.identity_provider_name != LOCAL_PROVIDER or settings.database_url:
        raise StartupRefused("links are for the demo of an embedded database; sign in at /console")
    if not (settings.data_dir / DEMO_FILE).exists():
        raise DatabaseMissing(
            f"no demo in {settings.data_dir.absolute()}: set {PREFIX}DATA_DIR to the data "
            "folder of the process that serves, or sign in at /console with an API key or a token"
        )
    if not url and (settings.http_port == 0 or not is_loopback(settings.http_host)):
        raise StartupRefused(
            "links are for a platform that serves this machine alone; say where with --url"
        )
    return Secret(
        f"{url or settings.http_url}/console#code={make_code(settings.data_dir).reveal()}"
    )


class Demo(FrozenStruct):
    account_id: AccountId | None  # None: it was closed


async def prepare_demo(parts: Infrastructure) -> Demo | None:
    """Gives the demo's account. The demo is made on an empty embedded database, never on an
    external one."""
    if parts.settings.database_url:
        return None
    async with parts.database.service.transaction(read_only=True) as tx:
        empty = await store.no_organization_exists(tx)
    key = _demo_key(parts.settings.data_dir, make=empty)
    if key is None:
        return None
    if empty:
        await apply(parts, _demo_document(), {DEMO: key})
    return Demo(await _demo_account(parts))


def keep_demo_url(data_dir: Path, url: str) -> None:
    path = data_dir / DEMO_URL_FILE
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(url)


async def _demo_account(parts: Infrastructure) -> AccountId | None:
    async with parts.database.service.transaction() as tx:
        provider = parts.settings.identity_provider_name
        organization = await store.find_organization_by_external_id(tx, provider, DEMO)
        if organization is None:
            return None
        await show_organizations(tx, [organization.id])
        account = await find_account_by_name(tx, organization.id, *DEMO_ACCOUNT)
    return account.id if account else None


def _demo_key(data_dir: Path, make: bool) -> Secret | None:
    """Reads or makes the demo's key. It is in a file, because the database has only its digest;
    written before it is used."""
    path = data_dir / DEMO_FILE
    if make and not path.exists():
        text = json.dumps({"api_key": make_key(Environment.PAPER).reveal()})
        make_file(path, text.encode())
    key = read_demo_key(data_dir)
    if key and not is_key(key.reveal()):
        raise StartupRefused(
            f"{path} holds no API key; remove it if nobody uses the demo, and start again"
        )
    return key


def _demo_document() -> Document:
    key = WantedKey(name=DEMO, environment=Environment.PAPER, permissions=list(Permission))
    users = [WantedUser(DEMO, Role.ADMIN)]
    accounts = [WantedAccount(*DEMO_ACCOUNT)]
    return Document(
        [
            WantedOrganization(
                external_id=DEMO,
                name="Demo",
                entitlements=list(Entitlement),
                disabled=None,
                member_trading=None,
                users=users,
                accounts=accounts,
                api_keys=[key],
            )
        ]
    )
