"""Limits in the database, one function per statement. Never decides."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from uuid import UUID

import msgspec

from trading_intents.controls.limits.model import (
    AppliedLimits,
    LossLimit,
    StoredLimits,
    TradingLimits,
)
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Row, Tx

# For a statement that has `asked (account_id, symbol)` and the account as `a`: the columns that `applied_limits` takes,
# and where they come from. LATERAL with LIMIT allows only look-ups by key.
COLUMNS = "level_1.rules, level_2.rules, level_3.rules"
LIMIT_LEVELS = 3
JUDGING_LOCK = 7469011  # an advisory lock
JOINS = """
    LEFT JOIN LATERAL (
        SELECT rules::text FROM trading_limits WHERE owner_id = a.organization_id AND symbol = '' LIMIT 1
    ) level_1 ON true
    LEFT JOIN LATERAL (
        SELECT rules::text FROM trading_limits WHERE owner_id = asked.account_id AND symbol = '' LIMIT 1
    ) level_2 ON true
    LEFT JOIN LATERAL (
        SELECT rules::text FROM trading_limits WHERE owner_id = asked.account_id AND symbol = asked.symbol
          AND symbol <> '' LIMIT 1
    ) level_3 ON true
"""


@lru_cache(maxsize=10_000)
def parse_limits(text: str) -> TradingLimits:
    """A pure function of what PostgreSQL writes: the same rows come again and again."""
    return msgspec.json.decode(text, type=TradingLimits)


def applied_limits(organization: str | None, account: str | None, symbol: str | None) -> AppliedLimits:
    return AppliedLimits(*(None if text is None else parse_limits(text) for text in (organization, account, symbol)))


async def read_applied(tx: Tx, account_id: UUID, symbol: str) -> tuple[AppliedLimits, bool]:
    """What applies to a symbol on an account that the transaction can see, and whether the account is tracked."""
    row = await tx.fetchrow(
        f"""
        SELECT {COLUMNS}, a.tracked
        FROM (SELECT $1::uuid AS account_id, $2::text AS symbol) AS asked
        JOIN account_heads a ON a.account_id = asked.account_id
        {JOINS}
        """,  # noqa: S608 - our own constants
        account_id,
        symbol,
    )
    assert row is not None
    *rules, tracked = row.values()
    return applied_limits(*rules), tracked


async def find_limits(tx: Tx, owner_id: UUID, symbol: str) -> StoredLimits | None:
    row = await tx.fetchrow("SELECT * FROM trading_limits WHERE owner_id = $1 AND symbol = $2", owner_id, symbol)
    return _stored(row) if row else None


async def put_limits(
    tx: Tx, organization_id: OrganizationId, owner_id: UUID, symbol: str, limits: TradingLimits
) -> StoredLimits:
    row = await tx.fetchrow(
        """
        INSERT INTO trading_limits AS l (organization_id, owner_id, symbol, rules, needs_tracking)
        VALUES ($1, $2, $3, $4::text::jsonb, $5)
        ON CONFLICT (owner_id, symbol) DO UPDATE
        SET rules = excluded.rules, needs_tracking = excluded.needs_tracking, version = l.version + 1,
            updated_at = clock_timestamp()
        RETURNING *
        """,
        organization_id,
        owner_id,
        symbol,
        msgspec.json.encode(limits).decode(),
        limits.needs_tracking,
    )
    assert row is not None
    return _stored(row)


async def delete_limits(tx: Tx, owner_id: UUID, symbol: str) -> None:
    await tx.execute("DELETE FROM trading_limits WHERE owner_id = $1 AND symbol = $2", owner_id, symbol)


async def count_symbols(tx: Tx, account_id: UUID) -> int:
    return int(
        await tx.fetchval("SELECT count(*) FROM trading_limits WHERE owner_id = $1 AND symbol <> ''", account_id)
    )


async def list_untracking(tx: Tx, limit: int) -> list[UUID]:
    """Tracked accounts that no limit needs to be tracked any more."""
    rows = await tx.fetch(f"SELECT h.account_id FROM account_heads h WHERE {_NOT_NEEDED} LIMIT $1", limit)  # noqa: S608 - our own
    return [row["account_id"] for row in rows]


_NOT_NEEDED = """
    h.tracked AND NOT EXISTS (
        SELECT FROM trading_limits l WHERE l.owner_id IN (h.account_id, h.organization_id) AND l.needs_tracking
    )
"""


async def lock_untracking(tx: Tx, account_id: UUID) -> bool:
    """Whether that still holds, with the account's head locked; not when another transaction holds it."""
    return bool(
        await tx.fetch(
            f"SELECT FROM account_heads h WHERE account_id = $1 AND {_NOT_NEEDED} FOR UPDATE SKIP LOCKED",
            account_id,
        )
    )


async def stop_tracking(tx: Tx, account_id: UUID) -> None:
    """The account's head is held. Its orders are locked first: whoever records one must not be waited for halfway."""
    await tx.execute(
        "SELECT FROM orders WHERE account_id = $1 AND finished_at IS NULL ORDER BY order_id FOR UPDATE", account_id
    )
    await tx.execute(
        "UPDATE orders SET counted = false WHERE account_id = $1 AND finished_at IS NULL AND counted", account_id
    )
    await tx.execute("DELETE FROM exposures WHERE account_id = $1", account_id)
    await tx.execute("UPDATE account_heads SET tracked = false WHERE account_id = $1", account_id)


async def page_loss_limits(tx: Tx, after: UUID, limit: int) -> list[LossLimit]:
    """Accounts with a daily-loss limit, by their ids."""
    rows = await tx.fetch(
        """
        SELECT owner_id, organization_id, rules FROM trading_limits
        WHERE rules ? 'max_daily_loss' AND owner_id > $1 ORDER BY owner_id LIMIT $2
        """,
        after,
        limit,
    )
    return [_loss_limit(row) for row in rows]


async def find_loss_limits(tx: Tx, account_ids: Sequence[UUID]) -> list[LossLimit]:
    rows = await tx.fetch(
        """
        SELECT owner_id, organization_id, rules FROM trading_limits
        WHERE owner_id = ANY ($1::uuid[]) AND rules ? 'max_daily_loss'
        """,
        account_ids,
    )
    return [_loss_limit(row) for row in rows]


def _loss_limit(row: Row) -> LossLimit:
    limits = parse_limits(row["rules"])
    assert limits.max_daily_loss is not None
    return LossLimit(row["owner_id"], OrganizationId(row["organization_id"]), limits.max_daily_loss, limits.timezone)


async def try_judging(tx: Tx) -> bool:
    """False: another process judges all daily losses at this moment."""
    is_ours: bool = await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", JUDGING_LOCK)
    return is_ours


async def mark_halted(tx: Tx, limit: LossLimit) -> bool:
    """False: it was halted for this limit today, or the limit is another by now."""
    marked = await tx.execute(
        """
        UPDATE daily_baselines SET halted = true
        WHERE account_id = $1 AND NOT halted AND EXISTS (
            SELECT FROM trading_limits
            WHERE owner_id = $1 AND symbol = '' AND (rules ->> 'max_daily_loss')::numeric = $2
        )
        """,
        limit.account_id,
        limit.max_daily_loss,
    )
    return marked == "UPDATE 1"


async def change_loss_limit(tx: Tx, account_id: UUID, timezone: str | None) -> None:
    """A changed limit may be reached anew; without one, or in another time zone, the day begins anew."""
    await tx.execute(
        "DELETE FROM daily_baselines WHERE account_id = $1 AND timezone IS DISTINCT FROM $2", account_id, timezone
    )
    await tx.execute("UPDATE daily_baselines SET halted = false WHERE account_id = $1", account_id)


async def prune_exposures(tx: Tx, limit: int) -> bool:
    """Removes those of which nothing is open. True: there may be more."""
    pruned = await tx.execute(
        """
        DELETE FROM exposures WHERE (account_id, symbol) IN (
            SELECT account_id, symbol FROM exposures WHERE open_orders = 0 AND open_buy = 0 AND open_sell = 0 LIMIT $1
        ) AND open_orders = 0 AND open_buy = 0 AND open_sell = 0
        """,
        limit,
    )
    return pruned == f"DELETE {limit}"


def _stored(row: Row) -> StoredLimits:
    created_at: datetime = row["created_at"]
    return StoredLimits(parse_limits(row["rules"]), created_at, row["updated_at"], row["version"])
