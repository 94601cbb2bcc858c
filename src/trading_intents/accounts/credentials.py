"""Use cases of broker credentials: their secrets go to the vault, and never to an answer, a log or
an event."""

import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from trading_intents import errors
from trading_intents.accounts import store
from trading_intents.accounts.model import (
    Account,
    ChangedCredential,
    CredentialRecord,
    NewCredential,
)
from trading_intents.accounts.service import (
    AccountTarget,
    check_no_open_orders,
    check_open,
    lock_target,
    put_event,
)
from trading_intents.accounts.vault import SecretRef, Vault
from trading_intents.brokers.registry import Registry
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.outbox.model import OutboxEventType, Queue, channel
from trading_intents.secret import Secret
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.signals import Signals
from trading_intents.web.request import Expected, check_version

FINGERPRINT_CHARACTERS = 16
MAX_SECRET_BYTES = 8 * 1024

Secrets = Mapping[str, Secret]


class Credentials:
    def __init__(
        self, pool: Pool, make_id: IdMaker, brokers: Registry, signals: Signals, vault: Vault
    ) -> None:
        self._pool = pool
        self._make_id = make_id
        self._brokers = brokers
        self._signals = signals
        self._vault = vault

    async def create(self, account: Account, new: NewCredential) -> CredentialRecord:
        given = _read_secrets(new.secrets)
        fields = self._check_fields(account, given)
        _check_free(account)
        ref = SecretRef(account.organization_id, account.id, self._make_id())

        async def write(tx: Tx, sealed: bytes) -> CredentialRecord:
            current = await lock_target(
                tx, AccountTarget(account.organization_id, account.id, _check_free)
            )
            fingerprint = await _fingerprint(tx, account.organization_id, given)
            made = await store.insert_credential(
                tx,
                credential_id=ref.credential_id,
                account=current,
                label=new.label or None,
                fields=fields,
                fingerprint=fingerprint,
            )
            await store.insert_sealed(tx, self._make_id(), made, sealed)
            await store.note_credential(tx, current.id, has_credential=True)
            await _put_event(tx, OutboxEventType.CREDENTIAL_CREATED, made)
            return made

        return await self._seal_and(ref, given, write)

    async def list(self, account: Account) -> list[CredentialRecord]:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            return await store.list_credentials(tx, account.id)

    async def change(
        self,
        account: Account,
        credential_id: UUID | None,
        read_change: Callable[[], ChangedCredential],
        expected: Expected,
    ) -> CredentialRecord:
        if credential_id is None or all(c.id != credential_id for c in await self.list(account)):
            raise errors.NotFound("no such credential")
        change = read_change()
        given = None if change.secrets is None else _read_secrets(change.secrets)
        label = change.label
        fields = None if given is None else self._check_fields(account, given)
        ref = SecretRef(account.organization_id, account.id, credential_id)

        async def write(tx: Tx, sealed: bytes | None) -> CredentialRecord:
            old = await _lock_credential(
                tx, account.organization_id, account.id, credential_id, expected
            )
            new_label = old.label if label is None else label or None
            if sealed is None and new_label == old.label:
                return old
            fingerprint = (
                await _fingerprint(tx, account.organization_id, given) if given else old.fingerprint
            )
            made = await store.update_credential(
                tx, old.id, new_label, fields or old.fields, fingerprint
            )
            if sealed is not None:
                await store.discard_sealed(tx, made.id)
                await store.insert_sealed(tx, self._make_id(), made, sealed)
            await _put_event(tx, OutboxEventType.CREDENTIAL_UPDATED, made)
            return made

        if given is not None:
            return await self._seal_and(ref, given, write)
        async with self._pool.transaction([account.organization_id]) as tx:
            made = await write(tx, None)
        self._signals.notify(channel(Queue.ACCOUNTS))
        return made

    async def remove(
        self, account: Account, credential_id: UUID | None, expected: Expected
    ) -> None:
        async with self._pool.transaction([account.organization_id]) as tx:
            old = await _lock_credential(
                tx, account.organization_id, account.id, credential_id, expected
            )
            await check_no_open_orders(tx, account)
            await store.discard_sealed(tx, old.id)
            await store.delete_credential(tx, old.id)
            await store.note_credential(tx, old.account_id, has_credential=False)
            await _put_event(tx, OutboxEventType.CREDENTIAL_DELETED, old)
        self._signals.notify(channel(Queue.ACCOUNTS))

    async def _seal_and(
        self,
        ref: SecretRef,
        given: Secrets,
        write: Callable[[Tx, bytes], Awaitable[CredentialRecord]],
    ) -> CredentialRecord:
        """Seals in the vault first, then writes the row: no network call inside a transaction, and
        no row without its secret."""
        sealed = await self._vault.seal(ref, given)
        try:
            async with self._pool.transaction([ref.organization_id]) as tx:
                made = await write(tx, sealed)
        except errors.OutcomeUnknown:
            raise  # the secret may be in use
        except errors.PlatformError:
            with contextlib.suppress(errors.PlatformError):  # the first error is raised
                await self._vault.forget(ref, sealed)
            raise
        self._signals.notify(channel(Queue.ACCOUNTS))
        return made

    def _check_fields(self, account: Account, given: Secrets) -> tuple[str, ...]:
        broker = self._brokers.find(account.broker)
        wanted = broker.credential_fields if broker else ()
        if not wanted:
            raise errors.ValidationFailed.at(
                "/secrets", f"the broker {account.broker} takes no credential"
            )
        for name in given:
            if name not in wanted:
                raise errors.ValidationFailed.at(
                    errors.json_pointer("secrets", name),
                    f"the broker {account.broker} has no such field; use {errors.either(wanted)}",
                )
        for name in wanted:
            if name not in given:
                raise errors.ValidationFailed.at(f"/secrets/{name}", "is required")
        return wanted


def _read_secrets(given: Mapping[str, Any]) -> Secrets:
    for name, text in given.items():
        if (
            not isinstance(text, str)
            or not 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_SECRET_BYTES
        ):
            raise errors.ValidationFailed.at(
                errors.json_pointer("secrets", name),
                f"must be a string of 1 to {MAX_SECRET_BYTES} bytes",
            )
    return {name: Secret(text) for name, text in given.items()}


def _check_free(account: Account) -> None:
    check_open(account)
    if account.has_credential:
        raise errors.LimitReached(
            "the account has a credential already; replace its secrets with PATCH"
        )


async def _lock_credential(
    tx: Tx,
    organization_id: OrganizationId,
    account_id: UUID,
    credential_id: UUID | None,
    expected: Expected,
) -> CredentialRecord:
    account = await lock_target(
        tx, AccountTarget(organization_id, account_id, lambda account: None)
    )
    credential = credential_id and await store.lock_credential(tx, account.id, credential_id)
    if not credential:
        raise errors.NotFound("no such credential")
    check_open(account)
    check_version(credential.version, expected)
    return credential


async def _fingerprint(tx: Tx, organization_id: OrganizationId, given: Secrets) -> str:
    """Equal for equal secrets of one organization; keyed, so that a reader cannot test guesses."""
    key = await store.fingerprint_key(tx, organization_id)
    revealed = {name: given[name].reveal() for name in sorted(given)}
    text = msgspec.json.encode(revealed)
    return hmac.new(key.bytes, text, hashlib.sha256).hexdigest()[:FINGERPRINT_CHARACTERS]


async def _put_event(tx: Tx, event: OutboxEventType, credential: CredentialRecord) -> None:
    payload = {
        "account_id": str(credential.account_id),
        "credential_id": str(credential.id),
        "version": credential.version,
    }
    await put_event(tx, event, credential.organization_id, credential.account_id, payload)
