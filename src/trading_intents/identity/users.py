"""A user's deletion: recorded, done at the provider, then told once. Every step can be repeated after a crash."""

import asyncio
from datetime import datetime
from typing import Protocol
from urllib.parse import quote
from uuid import UUID

import httpx

from trading_intents.clock import rfc3339
from trading_intents.errors import PlatformError, Unavailable
from trading_intents.identity.model import Caller, UserPrincipal
from trading_intents.identity.service import Callers
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.outbox.model import ClaimedRow, Done, Handler, NewRow, Queue, channel
from trading_intents.outbox.queue import put
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.signals import Signals
from trading_intents.telemetry import Log

USER_DELETED = "user.deleted"
PROVIDER_SECONDS = 3.0
RESUME_SECONDS = 5.0
MAX_RESUMED = 100


class UserDirectory(Protocol):
    async def delete(self, subject: str) -> None:
        """The user is gone when this returns; Unavailable when that is not known."""
        ...


class LocalDirectory:
    """The embedded provider's users are the database's: the recorded deletion is the deletion."""

    async def delete(self, subject: str) -> None: ...


class RemoteDirectory:
    """An external provider's: DELETE {IDENTITY_USERS_URL}/{subject}, where 404 means done."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url.rstrip("/")

    async def delete(self, subject: str) -> None:
        if not self._url:
            raise Unavailable("the identity provider cannot be told: TRADING_INTENTS_IDENTITY_USERS_URL is not set")
        try:
            async with asyncio.timeout(PROVIDER_SECONDS):
                answer = await self._client.delete(f"{self._url}/{quote(subject, safe='')}", follow_redirects=False)
        except (httpx.HTTPError, TimeoutError):
            raise Unavailable("the identity provider cannot be reached; the deletion is recorded and goes on") from None
        if not answer.is_success and answer.status_code not in (404, 410):
            raise Unavailable("the identity provider refuses the deletion; it is recorded and tried again")


class Users:
    def __init__(
        self, pool: Pool, provider: str, directory: UserDirectory, make_id: IdMaker, signals: Signals, callers: Callers
    ) -> None:
        self._pool, self._provider, self._directory = pool, provider, directory
        self._make_id, self._signals, self._callers = make_id, signals, callers

    async def delete_current(self, caller: Caller) -> None:
        assert isinstance(caller.principal, UserPrincipal)
        async with self._pool.transaction([caller.organization_id]) as tx:
            user_id = await _record_deletion(
                tx, self._make_id(), self._provider, caller.principal.subject, caller.organization_id
            )
        self._callers.forget()
        await finish(self._pool, self._directory, user_id, caller.principal.subject, caller.organization_id)
        self._signals.notify(channel(Queue.USERS))


async def finish(
    pool: Pool, directory: UserDirectory, user_id: UUID, subject: str, organization_id: OrganizationId
) -> None:
    """From the recorded deletion to its one event."""
    await directory.delete(subject)
    async with pool.transaction([organization_id]) as tx:
        told = await _mark_deleted(tx, user_id)
        if told is None:
            return  # another process was faster
        deleted_at, organization_ids = told
        payload = {
            "subject": subject,
            "organization_ids": [str(found) for found in organization_ids],
            "deleted_at": rfc3339(deleted_at),
        }
        await put(tx, [NewRow(Queue.USERS, USER_DELETED, organization_id, user_id, payload)])


async def keep_resuming(pool: Pool, directory: UserDirectory, provider: str, log: Log) -> None:
    """Deletions whose process died, or whose provider was away."""
    while True:
        await asyncio.sleep(RESUME_SECONDS)
        try:
            async with pool.transaction(read_only=True) as tx:
                found = await _list_unfinished_deletions(tx, provider, MAX_RESUMED)
            for user_id, subject, organization_id in found:
                await finish(pool, directory, user_id, subject, organization_id)
        except PlatformError as error:
            log.warning("user deletion not finished", reason=error.detail)


def user_handlers() -> dict[str, Handler]:
    async def forget_person(row: ClaimedRow) -> Done:
        async def write(tx: Tx) -> None:
            await _delete_memberships_of_deleted(tx, row.order_key)

        return Done(write)

    return {USER_DELETED: forget_person}


async def _record_deletion(
    tx: Tx, user_id: UUID, provider: str, external_id: str, organization_id: OrganizationId
) -> UUID:
    """From this commit on the user's tokens are refused. A user whom only the provider knew gets a row."""
    row = await tx.fetchrow(
        """
        INSERT INTO users AS u (id, provider, external_id, deleting_at, deleting_organization_id)
        VALUES ($1, $2, $3, clock_timestamp(), $4)
        ON CONFLICT (provider, external_id) DO UPDATE
        SET deleting_at = coalesce(u.deleting_at, clock_timestamp()),
            deleting_organization_id = coalesce(u.deleting_organization_id, $4)
        RETURNING id
        """,
        user_id,
        provider,
        external_id,
        organization_id,
    )
    assert row is not None
    return UUID(str(row["id"]))


async def _list_unfinished_deletions(tx: Tx, provider: str, limit: int) -> list[tuple[UUID, str, OrganizationId]]:
    rows = await tx.fetch(
        """
        SELECT id, external_id, deleting_organization_id FROM users
        WHERE deleting_at < clock_timestamp() - interval '5 seconds' AND deleted_at IS NULL AND provider = $1
        ORDER BY deleting_at LIMIT $2
        """,
        provider,
        limit,
    )
    return [(row["id"], row["external_id"], OrganizationId(row["deleting_organization_id"])) for row in rows]


async def _mark_deleted(tx: Tx, user_id: UUID) -> tuple[datetime, list[UUID]] | None:
    """When, and from which organizations; None if it was marked before. So the event is told once."""
    row = await tx.fetchrow(
        """
        UPDATE users u SET deleted_at = clock_timestamp()
        WHERE id = $1 AND deleting_at IS NOT NULL AND deleted_at IS NULL
        RETURNING deleted_at, array(
            SELECT organization_id FROM memberships m WHERE m.user_id = u.id
            UNION SELECT u.deleting_organization_id
            ORDER BY 1
        ) AS organization_ids
        """,
        user_id,
    )
    return (row["deleted_at"], row["organization_ids"]) if row else None


async def _delete_memberships_of_deleted(tx: Tx, user_id: UUID) -> None:
    """Those from before the deletion: a user who was set up again meanwhile keeps the new ones."""
    await tx.execute(
        """
        DELETE FROM memberships m USING users u
        WHERE u.id = $1 AND m.user_id = u.id
          AND m.created_at < coalesce(u.tokens_after, u.deleted_at, '-infinity')
        """,
        user_id,
    )
