"""The intents' tables: how a commit ended, and the reads of the log. Never decides."""

from typing import NamedTuple
from uuid import UUID

from trading_intents.storage.database import Row, Tx

PRUNE_ROWS = 5_000


class ActionPlace(NamedTuple):
    """Where an action stands in its account's log. No two have the same hash."""

    account_id: str
    seq: int
    hash: str


async def transaction_status(tx: Tx, transaction_id: str) -> str | None:
    """committed, aborted, in progress; None when it is too long ago to know."""
    status: str | None = await tx.fetchval("SELECT pg_xact_status($1::text::xid8)", transaction_id)
    return status


async def is_recorded(tx: Tx, place: ActionPlace) -> bool:
    return bool(
        await tx.fetchval(
            "SELECT EXISTS (SELECT FROM actions WHERE account_id = $1::text::uuid AND seq = $2 AND hash = $3)", *place
        )
    )


async def list_actions(tx: Tx, account_id: UUID, after: int, limit: int) -> list[Row]:
    return await tx.fetch(
        "SELECT seq, record, hash FROM actions WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        account_id,
        after,
        limit,
    )


async def list_actions_of_intent(tx: Tx, account_id: UUID, intent_id: UUID, after: int, limit: int) -> list[Row]:
    return await tx.fetch(
        """
        SELECT seq, record, hash FROM actions
        WHERE intent_id = $2 AND account_id = $1 AND seq > $3 ORDER BY seq LIMIT $4
        """,
        account_id,
        intent_id,
        after,
        limit,
    )


async def latest_action(tx: Tx, account_id: UUID, intent_id: UUID) -> Row | None:
    return await tx.fetchrow(
        """
        SELECT seq, record, hash FROM actions
        WHERE intent_id = $2 AND account_id = $1 ORDER BY seq DESC LIMIT 1
        """,
        account_id,
        intent_id,
    )


async def prune_refusals(tx: Tx, keep_days: int) -> bool:
    """Removes the oldest, PRUNE_ROWS at most. True: there may be more."""
    removed: int = await tx.fetchval(
        """
        WITH old AS MATERIALIZED (
            SELECT id FROM refusals WHERE created_at < (SELECT clock_timestamp()) - make_interval(days => $1)
            ORDER BY created_at LIMIT $2
        ), removed AS (
            DELETE FROM refusals USING old WHERE refusals.id = old.id RETURNING refusals.id
        )
        SELECT count(*) FROM removed
        """,
        keep_days,
        PRUNE_ROWS,
    )
    return removed == PRUNE_ROWS
