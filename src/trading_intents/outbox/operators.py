"""Use cases of operators: read the health of the accounts queue, retry failed rows, drop them.
Never changes a row that has not failed."""

import os
import pwd
from collections.abc import Sequence

from trading_intents.errors import IntentClosed, InvalidRequest, NotFound
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import Queue, scrub
from trading_intents.storage.database import Pool, Tx


def name_operator() -> str:
    """The user's name by the operating system, not by the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


async def read_health(pool: Pool) -> list[outbox.HealthRow]:
    """Counts and times only, across all organizations: a row for each status and event type, from
    one snapshot."""
    async with pool.transaction(read_only=True) as tx:
        return await outbox.read_health(tx)


async def retry(
    pool: Pool, ids: Sequence[int], who: str, reason: str
) -> dict[int, tuple[Queue, int]]:
    """Retries all of the rows or none, in the order in which they were queued. Gives each old id's
    queue and new id."""
    why = _checked(reason)
    ordered = sorted(set(ids))
    async with pool.transaction() as tx:
        for row_id in ordered:
            if status := await outbox.final_order_status(tx, row_id):
                raise IntentClosed(
                    f"row {row_id} is of an order that is {status}; nothing was changed"
                )
        made = {}
        for row_id in ordered:
            archived = await _archive(tx, row_id, who, why, is_retried=True)
            assert archived.retried_as is not None
            made[row_id] = Queue(archived.queue), archived.retried_as
    return made


async def drop(pool: Pool, ids: Sequence[int], who: str, reason: str) -> None:
    """Drops all of the rows or none."""
    why = _checked(reason)
    async with pool.transaction() as tx:
        for row_id in sorted(set(ids)):
            await _archive(tx, row_id, who, why, is_retried=False)


def _checked(reason: str) -> str:
    if not (reason := scrub(reason.strip())):
        raise InvalidRequest("say why: the reason is kept with the row")
    return reason


async def _archive(
    tx: Tx, row_id: int, who: str, reason: str, *, is_retried: bool
) -> outbox.ArchivedRow:
    archived = await outbox.archive_failed(tx, row_id, who, reason, is_retried)
    if archived is None:
        raise NotFound(f"there is no failed row {row_id}; nothing was changed")
    return archived
