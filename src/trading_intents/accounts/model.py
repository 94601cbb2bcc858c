"""Trading accounts and broker credentials: frozen values and the rules that need nothing else. No I/O, no clock."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

from trading_intents.brokers.registry import Manifest
from trading_intents.ids import OrganizationId
from trading_intents.trading import Environment

AccountId = NewType("AccountId", UUID)
CredentialId = NewType("CredentialId", UUID)


class ConnectionState(StrEnum):
    CONNECTED = "connected"
    CONNECTING = "connecting"
    DISCONNECTED = "disconnected"
    CREDENTIAL_MISSING = "credential_missing"
    CREDENTIAL_REJECTED = "credential_rejected"


@dataclass(frozen=True, slots=True)
class Account:
    id: AccountId
    organization_id: OrganizationId
    name: str
    broker: str
    environment: Environment
    external_account_id: str | None
    disabled: bool
    connection: ConnectionState  # as a worker last wrote it
    has_credential: bool
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None
    version: int


@dataclass(frozen=True, slots=True)
class AccountDetails:
    """What is given of a new account."""

    name: str
    broker: str
    environment: Environment
    external_account_id: str | None


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """Everything but the secrets: those are in the vault and nowhere else."""

    id: CredentialId
    account_id: AccountId
    organization_id: OrganizationId
    broker: str
    label: str | None
    fields: tuple[str, ...]
    fingerprint: str
    created_at: datetime
    updated_at: datetime
    version: int


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The fields that a PATCH names; None leaves a field as it is."""

    name: str | None = None
    external_account_id: str | None = None  # an empty text removes it
    disabled: bool | None = None


def changed(account: Account, change: AccountChange) -> tuple[str, str | None, bool]:
    """Gives name, external id and disabled flag after the change."""
    external = account.external_account_id if change.external_account_id is None else change.external_account_id
    return (
        account.name if change.name is None else change.name,
        external or None,
        account.disabled if change.disabled is None else change.disabled,
    )


def shown_connection(account: Account, manifest: Manifest | None) -> ConnectionState:
    if account.closed_at is not None:
        return ConnectionState.DISCONNECTED
    if manifest and manifest.credential_fields and not account.has_credential:
        return ConnectionState.CREDENTIAL_MISSING
    if account.connection is ConnectionState.CREDENTIAL_MISSING:
        return ConnectionState.CONNECTING  # there is a credential now, which the session has not read yet
    return account.connection
