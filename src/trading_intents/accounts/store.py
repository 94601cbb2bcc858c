"""Statements of accounts, credentials and discarded secrets, one a function. Never decides."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from trading_intents.accounts.model import (
    Account,
    AccountId,
    ConnectionState,
    CredentialId,
    CredentialRecord,
    NewAccount,
)
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pages import PageRequest, fetch_page
from trading_intents.trading import Environment


async def fingerprint_key(tx: Tx, organization_id: OrganizationId) -> UUID:
    return UUID(
        str(
            await tx.fetchval(
                "SELECT fingerprint_key FROM organizations WHERE id = $1", organization_id
            )
        )
    )


async def count_accounts(tx: Tx, organization_id: OrganizationId) -> int:
    return int(
        await tx.fetchval(
            "SELECT count(*) FROM accounts WHERE organization_id = $1", organization_id
        )
    )


async def insert_account(
    tx: Tx, account_id: UUID, organization_id: OrganizationId, given: NewAccount
) -> Account:
    query = """
        WITH account AS (
            INSERT INTO accounts (id, organization_id, name, broker, environment,
                external_account_id)
            VALUES ($1, $2, $3, $4, $5, nullif($6, '')) RETURNING *
        ), head AS (
            INSERT INTO account_heads (account_id, organization_id) SELECT id, organization_id
            FROM account
        )
        SELECT * FROM account
    """
    [row] = await tx.fetch(query, account_id, organization_id, *astuple(given))
    return _account(row)


# With whether a worker has leased the account: the state that a dead worker wrote no longer holds.
_WORKED = """EXISTS (
    SELECT FROM leases l JOIN workers w ON w.id = l.worker_id
    WHERE l.account_id = a.id AND w.expires_at > clock_timestamp()
) AS worked"""
_READ = f"SELECT a.*, {_WORKED} FROM accounts a"  # noqa: S608 - our own constants


async def find_account(tx: Tx, organization_id: OrganizationId, account_id: UUID) -> Account | None:
    row = await tx.fetchrow(
        f"{_READ} WHERE organization_id = $1 AND id = $2", organization_id, account_id
    )
    return _account(row) if row else None


async def lock_account(tx: Tx, organization_id: OrganizationId, account_id: UUID) -> Account | None:
    query = "SELECT * FROM accounts WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE"
    row = await tx.fetchrow(query, organization_id, account_id)
    return _account(row) if row else None


async def find_account_by_name(
    tx: Tx, organization_id: OrganizationId, name: str, broker: str, environment: Environment
) -> Account | None:
    query = """
        SELECT * FROM accounts
        WHERE organization_id = $1 AND name = $2 AND broker = $3 AND environment = $4
            AND closed_at IS NULL
        ORDER BY id LIMIT 1 FOR NO KEY UPDATE
    """
    row = await tx.fetchrow(query, organization_id, name, broker, environment)
    return _account(row) if row else None


async def list_accounts(
    tx: Tx, organization_id: OrganizationId, environment: Environment | None, page: PageRequest
) -> list[Account]:
    query = f"{_READ} WHERE organization_id = $1 AND ($2::text IS NULL OR environment = $2)"
    rows = await fetch_page(tx, query, "id", page, organization_id, environment)
    return [_account(row) for row in rows]


async def update_account(
    tx: Tx, account_id: AccountId, name: str, external_account_id: str | None, disabled: bool
) -> Account:
    query = """
        UPDATE accounts SET name = $2, external_account_id = $3, disabled = $4,
            version = version + 1, updated_at = clock_timestamp()
        WHERE id = $1 RETURNING *
    """
    [row] = await tx.fetch(query, account_id, name, external_account_id, disabled)
    return _account(row)


async def has_open_orders(tx: Tx, account_id: AccountId) -> bool:
    """Read under the head's lock, which every new order takes, so that none can follow unseen."""
    await tx.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", account_id)
    query = "SELECT EXISTS (SELECT FROM orders WHERE account_id = $1 AND finished_at IS NULL)"
    return bool(await tx.fetchval(query, account_id))


async def close_account(tx: Tx, account_id: AccountId) -> Account:
    query = """
        UPDATE accounts SET closed_at = clock_timestamp(), version = version + 1,
            updated_at = clock_timestamp()
        WHERE id = $1 RETURNING *
    """
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


async def mark_credential(tx: Tx, account_id: AccountId, has_credential: bool) -> None:
    """Marks the account too, since every submit reads it."""
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
    query = """
        INSERT INTO credentials (id, organization_id, account_id, broker, label, fields,
            fingerprint)
        VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING *
    """
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
    rows = await tx.fetch("SELECT * FROM credentials WHERE account_id = $1 ORDER BY id", account_id)
    return [_credential(row) for row in rows]


async def lock_credential(
    tx: Tx, account_id: AccountId, credential_id: UUID
) -> CredentialRecord | None:
    query = "SELECT * FROM credentials WHERE account_id = $1 AND id = $2 FOR UPDATE"
    row = await tx.fetchrow(query, account_id, credential_id)
    return _credential(row) if row else None


async def update_credential(
    tx: Tx, credential_id: CredentialId, label: str | None, fields: Sequence[str], fingerprint: str
) -> CredentialRecord:
    query = """
        UPDATE credentials SET label = $2, fields = $3, fingerprint = $4,
            version = version + 1, updated_at = clock_timestamp()
        WHERE id = $1 RETURNING *
    """
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


async def list_discarded(tx: Tx, account_id: UUID) -> list[Row]:
    return await tx.fetch(
        "SELECT * FROM sealed_secrets WHERE account_id = $1 AND discarded", account_id
    )


async def delete_discarded(tx: Tx, sealed_ids: Sequence[UUID]) -> None:
    await tx.execute(
        "DELETE FROM sealed_secrets WHERE id = ANY ($1::uuid[]) AND discarded", sealed_ids
    )


async def lock_sealed(tx: Tx, after: UUID | None, limit: int) -> list[Row]:
    query = """
        SELECT * FROM sealed_secrets WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2
        FOR UPDATE
    """
    return await tx.fetch(query, after, limit)


async def newest_sealed(tx: Tx, limit: int) -> list[Row]:
    return await tx.fetch(
        "SELECT * FROM sealed_secrets WHERE NOT discarded ORDER BY id DESC LIMIT $1", limit
    )


async def inspect_account(tx: Tx, account_id: UUID) -> Row | None:
    """An account of whatever organization, with what the organization has bought and the secret in
    use, if any."""
    query = f"""
        SELECT a.*, {_WORKED}, o.entitlements, o.disabled AS organization_disabled, s.credential_id,
            s.sealed
        FROM accounts a
        JOIN organizations o ON o.id = a.organization_id
        LEFT JOIN credentials c ON c.account_id = a.id
        LEFT JOIN sealed_secrets s ON s.credential_id = c.id AND NOT s.discarded
        WHERE a.id = $1
    """  # noqa: S608 - our own constants
    row = await tx.fetchrow(query, account_id)
    return dict(row) | {"connection": _connection(row)} if row else None


async def rewrap_sealed(tx: Tx, sealed_id: UUID, sealed: bytes) -> None:
    await tx.execute("UPDATE sealed_secrets SET sealed = $2 WHERE id = $1", sealed_id, sealed)


def _account(row: Row) -> Account:
    return msgspec.convert(dict(row) | {"connection": _connection(row)}, Account)


def _connection(row: Row) -> ConnectionState:
    shown = ConnectionState(row["connection"])
    is_stale = not row.get("worked", True) and shown in (
        ConnectionState.CONNECTED,
        ConnectionState.CONNECTING,
    )
    return ConnectionState.DISCONNECTED if is_stale else shown


def _credential(row: Row) -> CredentialRecord:
    return msgspec.convert(dict(row), CredentialRecord)
