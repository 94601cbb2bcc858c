"""Statements of accounts, credentials and discarded secrets, one a function. Never decides."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from trading_intents.accounts.model import (
    Account,
    AccountId,
    CredentialId,
    CredentialRecord,
    InspectedAccount,
    NewAccount,
    SealedSecret,
)
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pages import PageRequest, fetch_page
from trading_intents.trading import Environment

_CREDENTIAL = ", ".join(CredentialRecord.__struct_fields__)
_SEALED = ", ".join(SealedSecret.__struct_fields__)
_ACCOUNT = ", ".join(Account.__struct_fields__)
# The state that a dead worker wrote holds only while a worker has leased the account.
_SHOWN = """
    a.id, a.organization_id, a.name, a.broker, a.environment, a.external_account_id, a.disabled,
    a.has_credential, a.created_at, a.updated_at, a.closed_at, a.version,
    CASE WHEN a.connection IN ('connected', 'connecting') AND NOT EXISTS (
        SELECT FROM leases l JOIN workers w ON w.id = l.worker_id
        WHERE l.account_id = a.id AND w.expires_at > clock_timestamp()
    ) THEN 'disconnected' ELSE a.connection END AS connection
"""
_READ = f"SELECT {_SHOWN} FROM accounts a"  # noqa: S608 - our own constant


async def fingerprint_key(tx: Tx, organization_id: OrganizationId) -> UUID:
    query = "SELECT fingerprint_key FROM organizations WHERE id = $1"
    key: UUID = await tx.fetchval(query, organization_id)
    return key


async def count_accounts(tx: Tx, organization_id: OrganizationId) -> int:
    return int(
        await tx.fetchval(
            "SELECT count(*) FROM accounts WHERE organization_id = $1", organization_id
        )
    )


async def insert_account(
    tx: Tx, account_id: UUID, organization_id: OrganizationId, given: NewAccount
) -> Account:
    query = f"""
        WITH account AS (
            INSERT INTO accounts (id, organization_id, name, broker, environment,
                external_account_id)
            VALUES ($1, $2, $3, $4, $5, nullif($6, '')) RETURNING {_ACCOUNT}
        ), head AS (
            INSERT INTO account_heads (account_id, organization_id) SELECT id, organization_id
            FROM account
        )
        SELECT {_ACCOUNT} FROM account
    """  # noqa: S608 - our own constant
    [row] = await tx.fetch(
        query,
        account_id,
        organization_id,
        given.name,
        given.broker,
        given.environment,
        given.external_account_id,
    )
    return _account(row)


async def find_account(tx: Tx, organization_id: OrganizationId, account_id: UUID) -> Account | None:
    row = await tx.fetchrow(
        f"{_READ} WHERE organization_id = $1 AND id = $2", organization_id, account_id
    )
    return _account(row) if row else None


async def lock_account(tx: Tx, organization_id: OrganizationId, account_id: UUID) -> Account | None:
    query = f"""
        SELECT {_ACCOUNT} FROM accounts WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE
    """  # noqa: S608 - our own constant
    row = await tx.fetchrow(query, organization_id, account_id)
    return _account(row) if row else None


async def find_account_by_name(
    tx: Tx, organization_id: OrganizationId, name: str, broker: str, environment: Environment
) -> Account | None:
    query = f"""
        SELECT {_ACCOUNT} FROM accounts
        WHERE organization_id = $1 AND name = $2 AND broker = $3 AND environment = $4
            AND closed_at IS NULL
        ORDER BY id LIMIT 1 FOR NO KEY UPDATE
    """  # noqa: S608 - our own constant
    row = await tx.fetchrow(query, organization_id, name, broker, environment)
    return _account(row) if row else None


async def list_accounts(
    tx: Tx, organization_id: OrganizationId, environment: Environment | None, page: PageRequest
) -> list[Account]:
    query = f"{_READ} WHERE organization_id = $1 AND ($2::text IS NULL OR environment = $2)"
    rows = await fetch_page(tx, query, page, organization_id, environment)
    return [_account(row) for row in rows]


async def update_account(
    tx: Tx, account_id: AccountId, name: str, external_account_id: str | None, disabled: bool
) -> Account:
    query = f"""
        UPDATE accounts SET name = $2, external_account_id = $3, disabled = $4,
            version = version + 1, updated_at = clock_timestamp()
        WHERE id = $1 RETURNING {_ACCOUNT}
    """  # noqa: S608 - our own constant
    [row] = await tx.fetch(query, account_id, name, external_account_id, disabled)
    return _account(row)


async def has_open_orders(tx: Tx, account_id: AccountId) -> bool:
    """Read under the head's lock, which every new order takes, so that none can follow unseen."""
    await tx.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", account_id)
    query = "SELECT EXISTS (SELECT FROM orders WHERE account_id = $1 AND finished_at IS NULL)"
    return bool(await tx.fetchval(query, account_id))


async def close_account(tx: Tx, account_id: AccountId) -> Account:
    query = f"""
        UPDATE accounts SET closed_at = clock_timestamp(), version = version + 1,
            updated_at = clock_timestamp()
        WHERE id = $1 RETURNING {_ACCOUNT}
    """  # noqa: S608 - our own constant
    [row] = await tx.fetch(query, account_id)
    return _account(row)


async def want_session(tx: Tx, account_id: UUID, needing_credential: Sequence[str]) -> None:
    """Asks the workers to open, refresh or close the account's session, from the account as it is
    now."""
    query = """
        UPDATE accounts
        SET link_generation = link_generation + 1,
            link_wanted = closed_at IS NULL AND (has_credential OR broker <> ALL ($2::text[]))
        WHERE id = $1
    """
    await tx.execute(query, account_id, needing_credential)


async def note_credential(tx: Tx, account_id: AccountId, has_credential: bool) -> None:
    """In the account, which every submit reads."""
    await tx.execute(
        "UPDATE accounts SET has_credential = $2 WHERE id = $1", account_id, has_credential
    )


async def insert_credential(
    tx: Tx,
    credential_id: UUID,
    account: Account,
    label: str | None,
    fields: Sequence[str],
    fingerprint: str,
) -> CredentialRecord:
    query = f"""
        INSERT INTO credentials (id, organization_id, account_id, broker, label, fields,
            fingerprint)
        VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING {_CREDENTIAL}
    """  # noqa: S608 - our own constant
    [row] = await tx.fetch(
        query,
        credential_id,
        account.organization_id,
        account.id,
        account.broker,
        label,
        fields,
        fingerprint,
    )
    return _credential(row)


async def list_credentials(tx: Tx, account_id: AccountId) -> list[CredentialRecord]:
    query = f"""
        SELECT {_CREDENTIAL} FROM credentials WHERE account_id = $1 ORDER BY id
    """  # noqa: S608 - ours
    return [_credential(row) for row in await tx.fetch(query, account_id)]


async def lock_credential(
    tx: Tx, account_id: AccountId, credential_id: UUID
) -> CredentialRecord | None:
    query = f"""
        SELECT {_CREDENTIAL} FROM credentials WHERE account_id = $1 AND id = $2 FOR UPDATE
    """  # noqa: S608 - our own constant
    row = await tx.fetchrow(query, account_id, credential_id)
    return _credential(row) if row else None


async def update_credential(
    tx: Tx, credential_id: CredentialId, label: str | None, fields: Sequence[str], fingerprint: str
) -> CredentialRecord:
    query = f"""
        UPDATE credentials SET label = $2, fields = $3, fingerprint = $4,
            version = version + 1, updated_at = clock_timestamp()
        WHERE id = $1 RETURNING {_CREDENTIAL}
    """  # noqa: S608 - our own constant
    [row] = await tx.fetch(query, credential_id, label, fields, fingerprint)
    return _credential(row)


async def delete_credential(tx: Tx, credential_id: CredentialId) -> None:
    await tx.execute("DELETE FROM credentials WHERE id = $1", credential_id)


async def insert_sealed(
    tx: Tx, sealed_id: UUID, credential: CredentialRecord, sealed: bytes
) -> None:
    query = """
        INSERT INTO sealed_secrets (id, organization_id, account_id, credential_id, sealed)
        VALUES ($1, $2, $3, $4, $5)
    """
    await tx.execute(
        query, sealed_id, credential.organization_id, credential.account_id, credential.id, sealed
    )


async def discard_sealed(tx: Tx, credential_id: CredentialId) -> None:
    query = "UPDATE sealed_secrets SET discarded = true WHERE credential_id = $1 AND NOT discarded"
    await tx.execute(query, credential_id)


async def list_discarded(tx: Tx, account_id: UUID) -> list[SealedSecret]:
    query = f"""
        SELECT {_SEALED} FROM sealed_secrets WHERE account_id = $1 AND discarded
    """  # noqa: S608 - ours
    return [SealedSecret(**row) for row in await tx.fetch(query, account_id)]


async def delete_discarded(tx: Tx, sealed_ids: Sequence[UUID]) -> None:
    await tx.execute(
        "DELETE FROM sealed_secrets WHERE id = ANY ($1::uuid[]) AND discarded", sealed_ids
    )


async def lock_sealed(tx: Tx, after: UUID | None, limit: int) -> list[SealedSecret]:
    query = f"""
        SELECT {_SEALED} FROM sealed_secrets
        WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2 FOR UPDATE
    """  # noqa: S608 - our own constant
    return [SealedSecret(**row) for row in await tx.fetch(query, after, limit)]


async def newest_sealed(tx: Tx, limit: int) -> list[SealedSecret]:
    query = f"""
        SELECT {_SEALED} FROM sealed_secrets WHERE NOT discarded ORDER BY id DESC LIMIT $1
    """  # noqa: S608 - our own constant
    return [SealedSecret(**row) for row in await tx.fetch(query, limit)]


async def inspect_account(tx: Tx, account_id: UUID) -> InspectedAccount | None:
    """An account of whatever organization, with what the organization has bought and the secret in
    use, if any."""
    query = f"""
        SELECT {_SHOWN}, o.entitlements, o.disabled AS is_organization_disabled, s.credential_id,
            s.sealed
        FROM accounts a
        JOIN organizations o ON o.id = a.organization_id
        LEFT JOIN credentials c ON c.account_id = a.id
        LEFT JOIN sealed_secrets s ON s.credential_id = c.id AND NOT s.discarded
        WHERE a.id = $1
    """  # noqa: S608 - our own constant
    row = await tx.fetchrow(query, account_id)
    return msgspec.convert(dict(row), InspectedAccount) if row else None


async def rewrap_sealed(tx: Tx, sealed_id: UUID, sealed: bytes) -> None:
    await tx.execute("UPDATE sealed_secrets SET sealed = $2 WHERE id = $1", sealed_id, sealed)


def _account(row: Row) -> Account:
    return msgspec.convert(dict(row), Account)


def _credential(row: Row) -> CredentialRecord:
    return msgspec.convert(dict(row), CredentialRecord)
