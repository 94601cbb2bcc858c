"""Trading accounts and broker credentials: frozen values and the rules that need nothing else. No
I/O, no clock."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, NewType
from uuid import UUID

import msgspec

from trading_intents.brokers.port import Capabilities
from trading_intents.ids import OrganizationId
from trading_intents.trading import Environment, FrozenStruct
from trading_intents.web.body import Name, Text

AccountId = NewType("AccountId", UUID)
CredentialId = NewType("CredentialId", UUID)


class ConnectionState(StrEnum):
    CONNECTED = "connected"
    CONNECTING = "connecting"
    DISCONNECTED = "disconnected"
    CREDENTIAL_MISSING = "credential_missing"
    CREDENTIAL_REJECTED = "credential_rejected"


class Account(FrozenStruct, kw_only=True):
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


class InspectedAccount(Account, kw_only=True):
    """With what else decides whether it can trade."""

    entitlements: frozenset[str]
    is_organization_disabled: bool
    credential_id: UUID | None
    sealed: bytes | None


class NewAccount(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    broker: Name
    environment: Environment
    external_account_id: Text | None = None


class CredentialRecord(FrozenStruct, kw_only=True):
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


class ChangedAccount(msgspec.Struct, forbid_unknown_fields=True):
    """An empty external_account_id removes it; null or left out leaves a field as it is."""

    name: Name | None = None
    external_account_id: Text | None = None
    disabled: bool | None = None


class SecretRef(FrozenStruct):
    organization_id: UUID
    account_id: UUID
    credential_id: UUID


class SealedSecret(SecretRef):
    id: UUID
    sealed: bytes


# The values are checked by hand: msgspec does not say which value of an object is wrong.
SecretTexts = Annotated[
    dict[str, Any],
    msgspec.Meta(extra_json_schema={"additionalProperties": {"type": "string", "minLength": 1}}),
]


class NewCredential(msgspec.Struct, forbid_unknown_fields=True):
    """`secrets` holds exactly the fields that the broker's capabilities list."""

    secrets: SecretTexts
    label: Text | None = None


class ChangedCredential(msgspec.Struct, forbid_unknown_fields=True):
    """New secrets rotate the credential; an empty label removes it."""

    secrets: SecretTexts | None = None
    label: Text | None = None


def changed(account: Account, change: ChangedAccount) -> tuple[str, str | None, bool]:
    external = (
        account.external_account_id
        if change.external_account_id is None
        else change.external_account_id
    )
    return (
        account.name if change.name is None else change.name,
        external or None,
        account.disabled if change.disabled is None else change.disabled,
    )


def shown_connection(account: Account, broker: Capabilities | None) -> ConnectionState:
    if account.closed_at is not None:
        return ConnectionState.DISCONNECTED
    if broker and broker.credential_fields and not account.has_credential:
        return ConnectionState.CREDENTIAL_MISSING
    if account.connection is ConnectionState.CREDENTIAL_MISSING:
        # There is a credential now, which the session has not read yet.
        return ConnectionState.CONNECTING
    return account.connection
