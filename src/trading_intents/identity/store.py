"""Statements of the identity tables, one a function. Never decides: the organization is always an
argument."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from trading_intents.config import LOCAL_PROVIDER
from trading_intents.identity import model
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pages import PageRequest, fetch_page
from trading_intents.trading import Environment, FrozenStruct

_ORGANIZATION = ", ".join(model.OrganizationRecord.__struct_fields__)
_KEY = ", ".join(model.ApiKeyRecord.__struct_fields__)
_JOINED_KEY = "k." + ", k.".join(model.ApiKeyRecord.__struct_fields__)
_SERVICE_ACCOUNT = ", ".join(model.ServiceAccount.__struct_fields__)
_JOINED_ORGANIZATION = """
    o.id AS o_id, o.provider AS o_provider, o.external_id AS o_external_id, o.name AS o_name,
    o.entitlements AS o_entitlements, o.disabled AS o_disabled, o.created_at AS o_created_at,
    o.member_trading AS o_member_trading
"""


class UnfinishedDeletion(FrozenStruct):
    user_id: UUID
    subject: str
    organization_id: OrganizationId


class Deletion(FrozenStruct):
    deleted_at: datetime
    organization_ids: list[UUID]


class _FoundKey(FrozenStruct):
    digest: bytes
    has_expired: bool


async def find_key(tx: Tx, digest: bytes) -> model.KeyRecord | None:
    query = f"""
        SELECT {_JOINED_KEY}, k.digest,
            coalesce(k.expires_at <= clock_timestamp(), false) AS has_expired,
            {_JOINED_ORGANIZATION}
        FROM find_api_key($1) k JOIN organizations o ON o.id = k.organization_id
    """  # noqa: S608 - our constants
    row = await tx.fetchrow(query, digest)
    if row is None:
        return None
    key = _key(row)
    found = msgspec.convert(dict(row), _FoundKey)
    organization = _joined_organization(row)
    assert organization is not None
    principal = model.ApiKeyPrincipal(key.id, key.organization_id, key.environment, key.permissions)
    caller = model.Caller(principal, organization, key.expires_at)
    of_session = key.user_subject and await find_user(
        tx, organization.provider, key.user_subject, organization.external_id
    )
    return model.KeyRecord(
        key=key,
        digest=found.digest,
        has_expired=found.has_expired,
        organization=organization,
        user=of_session or None,
        caller=caller,
    )


async def find_user(
    tx: Tx, provider: str, subject: str, organization: str | None
) -> model.UserRecord:
    query = f"""
        SELECT u.id IS NOT NULL AS known, u.deleting_at IS NOT NULL AS deleted, u.tokens_after,
            m.role, {_JOINED_ORGANIZATION}
        FROM (SELECT 1) AS one
        LEFT JOIN users u ON u.provider = $1 AND u.external_id = $2
        LEFT JOIN organizations o ON o.provider = $1 AND o.external_id = $3
        LEFT JOIN memberships m ON m.user_id = u.id AND m.organization_id = o.id
    """  # noqa: S608 - our constants
    [row] = await tx.fetch(query, provider, subject, organization)
    user = dict(row) | {"organization": _joined_organization(row)}
    return msgspec.convert(user, model.UserRecord)


async def find_service_account(tx: Tx, client_id: str) -> model.ServiceAccount | None:
    query = f"""
        SELECT {_SERVICE_ACCOUNT} FROM service_accounts WHERE client_id = $1
    """  # noqa: S608 - ours
    row = await tx.fetchrow(query, client_id)
    return msgspec.convert(dict(row), model.ServiceAccount) if row else None


async def find_organization(tx: Tx, organization_id: UUID) -> model.OrganizationRecord | None:
    query = f"SELECT {_ORGANIZATION} FROM organizations WHERE id = $1"  # noqa: S608 - our constants
    row = await tx.fetchrow(query, organization_id)
    return _organization(row) if row else None


async def find_organization_by_external_id(
    tx: Tx, provider: str, external_id: str
) -> model.OrganizationRecord | None:
    query = f"""
        SELECT {_ORGANIZATION} FROM organizations WHERE provider = $1 AND external_id = $2
    """  # noqa: S608 - our constants
    row = await tx.fetchrow(query, provider, external_id)
    return _organization(row) if row else None


async def find_own_organization(
    tx: Tx, provider: str, external_id: str, subject: str, active: UUID | None
) -> model.OrganizationRecord | None:
    """Reads a user's own organizations and the active one alone, so that it takes as long whether
    another one has that id or none."""
    query = f"""
        WITH own (id) AS (
            SELECT m.organization_id FROM users u JOIN memberships m ON m.user_id = u.id
            WHERE u.provider = $1 AND u.external_id = $3 AND u.deleting_at IS NULL
            UNION SELECT $4
        )
        SELECT o.* FROM own CROSS JOIN LATERAL (
            SELECT {_ORGANIZATION} FROM organizations WHERE id = own.id OFFSET 0
        ) AS o
        WHERE o.provider = $1 AND o.external_id = $2
    """  # noqa: S608 - our constants
    row = await tx.fetchrow(query, provider, external_id, subject, active)
    return _organization(row) if row else None


async def lock_organization(tx: Tx, organization_id: OrganizationId) -> datetime:
    """Locks an organization while what it has is counted and one is added. Gives the time."""
    now: datetime = await tx.fetchval("SELECT lock_organization($1)", organization_id)
    return now


async def count_keys(tx: Tx, organization_id: OrganizationId) -> int:
    """Session keys are not counted: their number is limited by user."""
    statement = "SELECT count(*) FROM api_keys WHERE organization_id = $1 AND user_subject IS NULL"
    return int(await tx.fetchval(statement, organization_id))


async def insert_key(
    tx: Tx, key_id: UUID, organization_id: OrganizationId, new: model.NewKey
) -> model.ApiKeyRecord:
    query = f"""
        INSERT INTO api_keys (
            id, organization_id, name, environment, permissions, digest, hint, expires_at,
                user_subject, token_digest
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING {_KEY}
    """  # noqa: S608 - our constants
    [row] = await tx.fetch(
        query,
        key_id,
        organization_id,
        new.name,
        new.environment,
        new.permissions,
        new.digest,
        new.hint,
        new.expires_at,
        new.user_subject,
        new.token_digest,
    )
    return _key(row)


_END_SESSIONS = """
    UPDATE api_keys SET expires_at = clock_timestamp(), version = version + 1,
        updated_at = clock_timestamp()
    WHERE expires_at > clock_timestamp() AND
"""


async def end_sessions_of_token(
    tx: Tx, organization_id: OrganizationId, token_digest: bytes
) -> None:
    await tx.execute(
        f"{_END_SESSIONS} organization_id = $1 AND token_digest = $2", organization_id, token_digest
    )


async def end_unheld_sessions(tx: Tx, organization_id: OrganizationId) -> None:
    """Ends the organization's session keys whose users may not have them any more: for good, also
    if they may again. Roles of an external provider are in tokens, with which keys end."""
    query = f"""
        {_END_SESSIONS} organization_id = $1 AND user_subject IS NOT NULL AND NOT EXISTS (
            SELECT FROM organizations o
            LEFT JOIN users u ON u.provider = o.provider AND u.external_id = user_subject
            LEFT JOIN memberships m ON m.user_id = u.id AND m.organization_id = o.id
            WHERE o.id = $1 AND CASE
                WHEN o.provider = $2 AND m.role = 'admin' THEN true
                WHEN 'control:edit' = ANY (permissions) THEN o.provider <> $2
                ELSE o.member_trading AND (o.provider <> $2 OR m.role = 'member')
            END
        )
    """
    await tx.execute(query, organization_id, LOCAL_PROVIDER)


async def end_oldest_sessions(
    tx: Tx, newest: model.ApiKeyRecord, most: int, kept_days: int
) -> None:
    """Ends all but the newest session keys of a user and environment, and deletes those that ended
    long ago."""
    query = f"""
        {_END_SESSIONS} id IN (
            SELECT id FROM api_keys
            WHERE organization_id = $1 AND user_subject = $2 AND environment = $3
                AND expires_at > clock_timestamp()
            ORDER BY created_at DESC, id DESC OFFSET $4
        )
    """  # noqa: S608 - our constants
    await tx.execute(query, newest.organization_id, newest.user_subject, newest.environment, most)
    query = """
        DELETE FROM api_keys
        WHERE organization_id = $1 AND user_subject IS NOT NULL
          AND expires_at < clock_timestamp() - make_interval(days => $2)
    """
    await tx.execute(query, newest.organization_id, kept_days)


async def list_keys(
    tx: Tx, organization_id: OrganizationId, page: PageRequest
) -> list[model.ApiKeyRecord]:
    query = f"SELECT {_KEY} FROM api_keys WHERE organization_id = $1"  # noqa: S608 - our constants
    rows = await fetch_page(tx, query, page, organization_id)
    return [_key(row) for row in rows]


async def lock_key(
    tx: Tx, organization_id: OrganizationId, key_id: UUID
) -> model.ApiKeyRecord | None:
    query = f"""
        SELECT {_KEY} FROM api_keys WHERE organization_id = $1 AND id = $2 FOR UPDATE
    """  # noqa: S608 - our constants
    row = await tx.fetchrow(query, organization_id, key_id)
    return _key(row) if row else None


async def find_key_by_name(
    tx: Tx, organization_id: OrganizationId, name: str, environment: Environment
) -> model.ApiKeyRecord | None:
    query = f"""
        SELECT {_KEY} FROM api_keys WHERE organization_id = $1 AND name = $2 AND environment = $3
        ORDER BY id LIMIT 1 FOR UPDATE
    """  # noqa: S608 - our constants
    row = await tx.fetchrow(query, organization_id, name, environment)
    return _key(row) if row else None


async def update_key(
    tx: Tx,
    key_id: model.KeyId,
    name: str,
    permissions: Iterable[model.Permission],
    disabled: bool,
    expires_at: datetime | None,
) -> model.ApiKeyRecord:
    query = f"""
        UPDATE api_keys
        SET name = $2, permissions = $3, disabled = $4, expires_at = $5, version = version + 1,
            updated_at = clock_timestamp()
        WHERE id = $1 RETURNING {_KEY}
    """  # noqa: S608 - our constants
    [row] = await tx.fetch(query, key_id, name, sorted(permissions), disabled, expires_at)
    return _key(row)


async def delete_key(tx: Tx, key_id: model.KeyId) -> None:
    await tx.execute("DELETE FROM trading_limits WHERE owner_id = $1", key_id)
    await tx.execute("DELETE FROM api_keys WHERE id = $1", key_id)


async def touch_keys(tx: Tx, key_ids: Sequence[model.KeyId], used_at: Sequence[datetime]) -> None:
    await tx.execute("SELECT touch_api_keys($1, $2)", key_ids, used_at)


async def no_organization_exists(tx: Tx) -> bool:
    return not await tx.fetchval("SELECT EXISTS (SELECT FROM organizations)")


async def put_organization(
    tx: Tx,
    organization_id: UUID,
    provider: str,
    external_id: str,
    name: str | None,
    entitlements: Iterable[model.Entitlement] | None,
    disabled: bool | None,
    member_trading: bool | None,
) -> model.OrganizationRecord:
    """Inserts an organization, or changes the fields that are not None."""
    query = f"""
        INSERT INTO organizations AS o (id, provider, external_id, name, entitlements, disabled,
            member_trading)
        VALUES ($1, $2, $3, coalesce($4, $3), coalesce($5::text[], '{{}}'), coalesce($6, false),
            coalesce($7, false))
        ON CONFLICT (provider, external_id) DO UPDATE
        SET name = coalesce($4, o.name), entitlements = coalesce($5::text[], o.entitlements),
            disabled = coalesce($6, o.disabled), member_trading = coalesce($7, o.member_trading)
        RETURNING {_ORGANIZATION}
    """  # noqa: S608 - our constants
    granted = None if entitlements is None else sorted(entitlements)
    [row] = await tx.fetch(
        query, organization_id, provider, external_id, name, granted, disabled, member_trading
    )
    return _organization(row)


async def put_user(tx: Tx, user_id: UUID, provider: str, external_id: str) -> UUID:
    """Inserts or finds a user; a deleted user is set up again, and old tokens stay refused."""
    query = """
        INSERT INTO users AS u (id, provider, external_id) VALUES ($1, $2, $3)
        ON CONFLICT (provider, external_id) DO UPDATE
        SET deleting_at = CASE WHEN u.deleted_at IS NULL THEN u.deleting_at END,
            tokens_after = CASE WHEN u.deleted_at IS NULL THEN u.tokens_after
                ELSE clock_timestamp() END,
            deleted_at = NULL
        RETURNING id
    """
    found: UUID = await tx.fetchval(query, user_id, provider, external_id)
    return found


async def put_membership(
    tx: Tx, user_id: UUID, organization_id: OrganizationId, role: model.Role | None
) -> model.Role:
    """Inserts or changes a membership. Without a role, a member keeps theirs and a new one is
    `member`."""
    query = """
            INSERT INTO memberships AS m (user_id, organization_id, role)
            VALUES ($1, $2, coalesce($3, 'member'))
            ON CONFLICT (user_id, organization_id) DO UPDATE
            SET role = coalesce($3, m.role), created_at = clock_timestamp()
            RETURNING role
    """
    return model.Role(await tx.fetchval(query, user_id, organization_id, role))


async def put_service_account(
    tx: Tx,
    client_id: str,
    digest: bytes,
    scopes: Iterable[model.Scope] | None,
    disabled: bool | None,
) -> model.ServiceAccount:
    """Inserts a service account with this digest, or changes it and keeps the old digest."""
    query = f"""
        INSERT INTO service_accounts AS s (client_id, digest, scopes, disabled)
        VALUES ($1, $2, coalesce($3::text[], '{{}}'), coalesce($4, false))
        ON CONFLICT (client_id) DO UPDATE
        SET scopes = coalesce($3::text[], s.scopes), disabled = coalesce($4, s.disabled)
        RETURNING {_SERVICE_ACCOUNT}
    """  # noqa: S608 - our constants
    [row] = await tx.fetch(
        query, client_id, digest, None if scopes is None else sorted(scopes), disabled
    )
    return msgspec.convert(dict(row), model.ServiceAccount)


async def record_deletion(
    tx: Tx, user_id: UUID, provider: str, external_id: str, organization_id: OrganizationId
) -> UUID:
    """Refuses the user's tokens from this commit on. A user whom only the provider knew gets a
    row."""
    query = """
        INSERT INTO users AS u (id, provider, external_id, deleting_at, deleting_organization_id)
        VALUES ($1, $2, $3, clock_timestamp(), $4)
        ON CONFLICT (provider, external_id) DO UPDATE
        SET deleting_at = coalesce(u.deleting_at, clock_timestamp()),
            deleting_organization_id = coalesce(u.deleting_organization_id, $4)
        RETURNING id
    """
    found: UUID = await tx.fetchval(query, user_id, provider, external_id, organization_id)
    return found


async def list_unfinished_deletions(tx: Tx, provider: str, limit: int) -> list[UnfinishedDeletion]:
    query = """
        SELECT id AS user_id, external_id AS subject, deleting_organization_id AS organization_id
        FROM users
        WHERE deleting_at < clock_timestamp() - interval '5 seconds' AND deleted_at IS NULL
            AND provider = $1
        ORDER BY deleting_at LIMIT $2
    """
    return [UnfinishedDeletion(**row) for row in await tx.fetch(query, provider, limit)]


async def complete_deletion(tx: Tx, user_id: UUID) -> Deletion | None:
    """None if it was complete before, so that its event is made once."""
    query = """
        UPDATE users u SET deleted_at = clock_timestamp()
        WHERE id = $1 AND deleting_at IS NOT NULL AND deleted_at IS NULL
        RETURNING deleted_at, array(
            SELECT organization_id FROM memberships m WHERE m.user_id = u.id
            UNION SELECT u.deleting_organization_id
            ORDER BY 1
        ) AS organization_ids
    """
    row = await tx.fetchrow(query, user_id)
    return Deletion(**row) if row else None


async def delete_memberships_of_deleted(tx: Tx, user_id: UUID) -> None:
    """Deletes memberships from before the deletion: a user who was set up again meanwhile keeps the
    new ones."""
    query = """
        DELETE FROM memberships m USING users u
        WHERE u.id = $1 AND m.user_id = u.id
          AND m.created_at < coalesce(u.tokens_after, u.deleted_at, '-infinity')
    """
    await tx.execute(query, user_id)


def _organization(row: Row) -> model.OrganizationRecord:
    return msgspec.convert(dict(row), model.OrganizationRecord)


def _joined_organization(row: Row) -> model.OrganizationRecord | None:
    own = {}
    for name, value in row.items():
        if name.startswith("o_"):
            own[name.removeprefix("o_")] = value
    return _organization(own) if own.get("id") else None


def _key(row: Row) -> model.ApiKeyRecord:
    return msgspec.convert(dict(row), model.ApiKeyRecord)
