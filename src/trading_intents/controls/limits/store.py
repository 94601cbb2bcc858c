"""Limits in the database, one function per statement. Never decides."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from uuid import UUID

import msgspec

from trading_intents.controls.limits.model import (
    LossLimit,
    StoredLimits,
    TradingLimits,
)
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Tx
from trading_intents.trading import AccountSymbol, FrozenStruct

JUDGING_LOCK = 7469011
CHECKING_LOCK = 7469012  # advisory locks

# Of a row of `trading_limits` as `l`: StoredLimits as JSON.
_STORED = """
    json_build_object('limits', l.rules, 'created_at', l.created_at, 'updated_at', l.updated_at,
        'version', l.version)::text
"""


async def find_limits(tx: Tx, owner_id: UUID, symbol: str) -> StoredLimits | None:
    query = f"""
        SELECT {_STORED} FROM trading_limits l WHERE owner_id = $1 AND symbol = $2
    """  # noqa: S608 - our own constants
    text = await tx.fetchval(query, owner_id, symbol)
    return msgspec.json.decode(text, type=StoredLimits) if text else None


async def put_limits(
    tx: Tx, organization_id: OrganizationId, owner_id: UUID, symbol: str, limits: TradingLimits
) -> StoredLimits:
    query = f"""
        INSERT INTO trading_limits AS l (organization_id, owner_id, symbol, rules)
        VALUES ($1, $2, $3, $4::text::jsonb)
        ON CONFLICT (owner_id, symbol) DO UPDATE
        SET rules = excluded.rules, version = l.version + 1, updated_at = clock_timestamp()
        RETURNING {_STORED}
    """  # noqa: S608 - our own constants
    rules = msgspec.json.encode(limits).decode()
    text = await tx.fetchval(query, organization_id, owner_id, symbol, rules)
    return msgspec.json.decode(text, type=StoredLimits)


async def delete_limits(tx: Tx, owner_id: UUID, symbol: str) -> None:
    await tx.execute(
        "DELETE FROM trading_limits WHERE owner_id = $1 AND symbol = $2", owner_id, symbol
    )


async def make_budget(tx: Tx, organization_id: OrganizationId, key_id: UUID) -> None:
    """The key is locked. Its day's sum begins with what its actions of today have added, under the
    locks of all heads: what is being accepted is in it or sees the new row. From then on the sum
    runs in the row, over changes of the limits."""
    if await find_use(tx, key_id):
        return
    await tx.execute(_LOCK_HEADS, organization_id)
    await tx.execute(_MAKE_BUDGET, key_id, organization_id)


_LOCK_HEADS = """
    SELECT FROM account_heads
    WHERE account_id = ANY (ARRAY (SELECT id FROM accounts WHERE organization_id = $1))
    ORDER BY account_id FOR SHARE
"""
# Probes at doubling distances from the stream's end find how far back the day began. Actions have
# the time when their batch began, and a batch does not take a minute.
_MAKE_BUDGET = """
    WITH today AS MATERIALIZED (
        SELECT date_trunc('day', clock_timestamp(), 'UTC') AS begin
    ), known AS MATERIALIZED (
        SELECT coalesce(max(earlier.stream_seq), 0) AS seq
        FROM today, stream_heads AS head, generate_series(0, 40) AS doubling
        CROSS JOIN LATERAL (
            SELECT stream_seq, created_at FROM actions
            WHERE organization_id = $2 AND stream_seq <= head.seq - (1::bigint << doubling)
            ORDER BY stream_seq DESC LIMIT 1
        ) AS earlier
        WHERE head.organization_id = $2
          AND earlier.created_at < today.begin - interval '1 minute'
    )
    INSERT INTO key_budgets (key_id, organization_id, day, daily_notional)
    SELECT $1::uuid, $2, (begin AT TIME ZONE 'UTC')::date, coalesce((
        SELECT sum(added_notional) FROM actions
        WHERE organization_id = $2 AND stream_seq > known.seq AND created_at >= begin
          AND strpos(record, '"principal_id":"' || $1::uuid || '"') > 0
    ), 0)
    FROM today, known
"""


async def find_use(tx: Tx, key_id: UUID) -> str | None:
    """The row for `parse_use`. None: the key never had limits, or there is no such key."""
    found: str | None = await tx.fetchval(
        "SELECT row_to_json(b)::text FROM key_budgets b WHERE key_id = $1", key_id
    )
    return found


async def count_symbols(tx: Tx, account_id: UUID) -> int:
    return int(
        await tx.fetchval(
            "SELECT count(*) FROM trading_limits WHERE owner_id = $1 AND symbol <> ''", account_id
        )
    )


# The columns of a LossLimit.
_LOSS_LIMIT = """
    owner_id AS account_id, organization_id,
    (rules ->> 'max_daily_loss')::numeric AS max_daily_loss, rules ->> 'timezone' AS timezone
"""


async def page_loss_limits(tx: Tx, after: UUID, limit: int) -> list[LossLimit]:
    query = f"""
        SELECT {_LOSS_LIMIT} FROM trading_limits
        WHERE rules ? 'max_daily_loss' AND owner_id > $1 ORDER BY owner_id LIMIT $2
    """  # noqa: S608 - our own constants
    return [LossLimit(**row) for row in await tx.fetch(query, after, limit)]


async def find_loss_limits(tx: Tx, account_ids: Sequence[UUID]) -> list[LossLimit]:
    query = f"""
        SELECT {_LOSS_LIMIT} FROM trading_limits
        WHERE owner_id = ANY ($1::uuid[]) AND rules ? 'max_daily_loss'
    """  # noqa: S608 - our own constants
    return [LossLimit(**row) for row in await tx.fetch(query, account_ids)]


async def try_judging(tx: Tx) -> bool:
    """False: another process judges all daily losses at this moment."""
    return bool(await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", JUDGING_LOCK))


async def record_halted(tx: Tx, limit: LossLimit, day: date, timezone: str) -> bool:
    """False: it was halted for this limit on that day, or the limit or the day is another by
    now."""
    query = """
        UPDATE daily_baselines SET halted = true
        WHERE account_id = $1 AND (day, timezone) = ($3, $4) AND NOT halted AND EXISTS (
            SELECT FROM trading_limits
            WHERE owner_id = $1 AND symbol = '' AND (rules ->> 'max_daily_loss')::numeric = $2
        )
    """
    tag = await tx.execute(query, limit.account_id, limit.max_daily_loss, day, timezone)
    return tag == "UPDATE 1"


async def change_loss_limit(tx: Tx, account_id: UUID, timezone: str | None) -> None:
    """A new version may be reached anew; without a limit, or in another time zone, the day begins
    anew."""
    query = "DELETE FROM daily_baselines WHERE account_id = $1 AND timezone IS DISTINCT FROM $2"
    await tx.execute(query, account_id, timezone)
    await tx.execute("UPDATE daily_baselines SET halted = false WHERE account_id = $1", account_id)


async def add_to_baseline(tx: Tx, begun: Sequence[str], added: Decimal) -> None:
    """Adds to the baseline, if it is of the day that is `begun`, else begins it: a row as
    `baseline_rows` has them."""
    query = """
        INSERT INTO daily_baselines AS b (account_id, organization_id, day, timezone, result,
            unpriced)
        VALUES ($1::text::uuid, $2::text::uuid, $3::text::date, $4, $5::text::numeric,
            $6::text::jsonb)
        ON CONFLICT (account_id) DO UPDATE
        SET day = CASE WHEN b.timezone = excluded.timezone
                THEN greatest(b.day, excluded.day) ELSE excluded.day END,
            timezone = excluded.timezone,
            unpriced = excluded.unpriced, recorded_at = clock_timestamp(),
            halted = b.halted AND b.timezone = excluded.timezone AND b.day >= excluded.day,
            result = CASE WHEN b.timezone = excluded.timezone AND b.day >= excluded.day
                THEN b.result + $7 ELSE excluded.result END
    """
    await tx.execute(query, *begun, added)


async def page_accounts(tx: Tx, after: UUID, limit: int) -> list[UUID]:
    """Accounts by their ids; none while another process walks through them."""
    query = """
        SELECT ARRAY(SELECT account_id FROM account_heads
            WHERE account_id > $1 AND (SELECT pg_try_advisory_xact_lock($3))
            ORDER BY account_id LIMIT $2)
    """
    found: list[UUID] = await tx.fetchval(query, after, limit, CHECKING_LOCK)
    return found


async def prune_holdings(tx: Tx, account_ids: Sequence[UUID]) -> None:
    """Removes those without an open order and a position: an account's are summed up."""
    query = """
        DELETE FROM holdings WHERE (organization_id, account_id, symbol) IN (
            SELECT organization_id, account_id, symbol FROM holdings
            WHERE organization_id = ANY (ARRAY (
                SELECT organization_id FROM account_heads WHERE account_id = ANY ($1::uuid[])
            )) AND account_id = ANY ($1::uuid[]) AND received_at IS NULL
                AND (open_orders, open_buy, open_sell) = (0, 0, 0)
            FOR UPDATE SKIP LOCKED
        )
    """
    await tx.execute(query, account_ids)


_DIFFERENCES = """
    SELECT account_id, symbol, coalesce(counted, '{0,0,0}') AS counted,
        coalesce(actual, '{0,0,0}') AS actual
    FROM (
        SELECT account_id, symbol, ARRAY[open_orders, open_buy, open_sell] AS counted
        FROM holdings
        WHERE organization_id = ANY (ARRAY (
            SELECT organization_id FROM account_heads WHERE account_id = ANY ($1::uuid[])
        )) AND account_id = ANY ($1::uuid[])
    ) AS kept
    FULL JOIN (
        SELECT account_id, symbol, ARRAY[
            sum(orders), coalesce(sum(unfilled) FILTER (WHERE is_buy), 0),
            coalesce(sum(unfilled) FILTER (WHERE NOT is_buy), 0)
        ] AS actual
        FROM (
            SELECT o.account_id, o.symbol, o.order_side = 'BUY' AS is_buy, count(*) AS orders,
                   max(CASE WHEN o.active THEN greatest(0, greatest(o.quantity, (
                       SELECT (a.record::json ->> 'quantity')::numeric FROM actions a
                       WHERE a.account_id = o.account_id AND a.seq = o.pending_replace_seq
                   )) - o.filled_quantity) ELSE 0 END) AS unfilled
            FROM orders o WHERE o.account_id = ANY ($1::uuid[]) AND o.finished_at IS NULL
            GROUP BY o.account_id, o.symbol, coalesce(o.parent_order_id, o.order_id), is_buy
        ) AS linked
        GROUP BY account_id, symbol
    ) AS summed USING (account_id, symbol)
    WHERE coalesce(counted, '{0,0,0}') <> coalesce(actual, '{0,0,0}')
"""


class ExposureDifference(FrozenStruct):
    """A symbol's open orders, and what is open to buy and to sell: as counted, and as summed up."""

    account_id: UUID
    symbol: str
    counted: list[Decimal]
    actual: list[Decimal]


async def find_differences(tx: Tx, account_ids: Sequence[UUID]) -> list[ExposureDifference]:
    """Holdings whose sums are not what their open orders add up to, by the rule of `open_sums`. One
    statement sees both as of one moment."""
    return [ExposureDifference(**row) for row in await tx.fetch(_DIFFERENCES, account_ids)]


async def lock_holdings(tx: Tx, keys: Sequence[AccountSymbol[UUID]]) -> None:
    """Locks these in the order in which everybody does. Who changes an order has to change its
    holding before the commit: what is read after this has all that is counted, and nothing that is
    not."""
    query = """
        INSERT INTO holdings AS h (organization_id, account_id, symbol)
        SELECT organization_id, account_id, symbol
        FROM unnest($1::uuid[], $2::text[]) AS wrong (account_id, symbol)
        JOIN account_heads USING (account_id)
        ORDER BY account_id, symbol COLLATE "C"
        ON CONFLICT (organization_id, account_id, symbol) DO UPDATE SET open_orders = h.open_orders
    """
    await tx.execute(query, *map(list, zip(*keys, strict=True)))


async def set_sums(tx: Tx, wrong: ExposureDifference) -> None:
    query = """
        UPDATE holdings SET open_orders = $3, open_buy = $4, open_sell = $5
        WHERE organization_id = (SELECT organization_id FROM account_heads WHERE account_id = $1)
            AND account_id = $1 AND symbol = $2
    """
    await tx.execute(query, wrong.account_id, wrong.symbol, *wrong.actual)
