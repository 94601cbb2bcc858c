"""A user's deletion: recorded, done at the provider, then reported by one event. Every step can be
repeated after a crash."""

import asyncio
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

import httpx

from trading_intents.clock import rfc3339
from trading_intents.errors import Unavailable
from trading_intents.identity import store
from trading_intents.identity.model import Caller, UserPrincipal
from trading_intents.identity.service import Callers
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.loops import repeat
from trading_intents.outbox.model import ClaimedRow, Done, NewRow, Queue, RowHandler, channel
from trading_intents.outbox.outcomes import reason_of
from trading_intents.outbox.queue import put
from trading_intents.storage.database import Pool
from trading_intents.storage.signals import Signals
from trading_intents.telemetry import Log

USER_DELETED = "user.deleted"
PROVIDER_SECONDS = 3.0
RESUME_SECONDS = 5.0
MAX_RESUMED = 100


class UserDirectory:
    """Users of an external provider: DELETE {IDENTITY_USERS_URL}/{subject}, where 404 means
    done."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    async def delete(self, subject: str) -> None:
        """The user is deleted when this returns; Unavailable when that is not known."""
        if not self._url:
            raise Unavailable(
                "the identity provider cannot be notified: TRADING_INTENTS_IDENTITY_USERS_URL "
                "is not set"
            )
        try:
            async with asyncio.timeout(PROVIDER_SECONDS):
                answer = await self._client.delete(
                    f"{self._url}/{quote(subject, safe='')}", follow_redirects=False
                )
        except (httpx.HTTPError, OSError):  # httpx lets errors of TLS out
            raise Unavailable(
                "the identity provider cannot be reached; the deletion is recorded and goes on"
            ) from None
        if not answer.is_success and answer.status_code not in (404, 410):
            raise Unavailable(
                "the identity provider refuses the deletion; it is recorded and tried again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    pool: Pool
    provider: str
    directory: UserDirectory | None  # None: the users are only in the database
    make_id: IdMaker
    signals: Signals
    callers: Callers

    async def delete_current(self, caller: Caller) -> None:
        assert isinstance(caller.principal, UserPrincipal)
        async with self.pool.transaction([caller.organization_id]) as tx:
            user_id = await store.record_deletion(
                tx, self.make_id(), self.provider, caller.principal.subject, caller.organization_id
            )
        self.callers.clear_cache()
        await finish(
            self.pool, self.directory, user_id, caller.principal.subject, caller.organization_id
        )
        self.signals.notify(channel(Queue.USERS))


async def finish(
    pool: Pool,
    directory: UserDirectory | None,
    user_id: UUID,
    subject: str,
    organization_id: OrganizationId,
) -> None:
    if directory:
        await directory.delete(subject)
    async with pool.transaction([organization_id]) as tx:
        deletion = await store.complete_deletion(tx, user_id)
        if deletion is None:
            return  # another process was faster
        payload = {
            "subject": subject,
            "organization_ids": [str(found) for found in deletion.organization_ids],
            "deleted_at": rfc3339(deletion.deleted_at),
        }
        row = NewRow(
            queue=Queue.USERS,
            event_type=USER_DELETED,
            organization_id=organization_id,
            order_key=user_id,
            payload=payload,
        )
        await put(tx, [row])


async def keep_resuming(
    pool: Pool, directory: UserDirectory | None, provider: str, log: Log
) -> None:
    """Finishes deletions whose process died or whose provider was unavailable."""

    async def resume() -> None:
        async with pool.transaction(read_only=True) as tx:
            unfinished = await store.list_unfinished_deletions(tx, provider, MAX_RESUMED)
        for each in unfinished:
            try:
                await finish(pool, directory, each.user_id, each.subject, each.organization_id)
            except Exception as error:  # the provider may refuse one user for ever
                on_error("", error)

    def on_error(_: str, error: Exception) -> None:
        log.warning("user deletion not finished", reason=reason_of(error))

    await repeat(resume, RESUME_SECONDS, on_error)


def user_handlers() -> dict[str, RowHandler]:
    async def forget_person(row: ClaimedRow) -> Done:
        return Done(lambda tx: store.delete_memberships_of_deleted(tx, row.order_key))

    return {USER_DELETED: forget_person}
