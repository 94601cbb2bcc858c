"""The tables of balances and of equity over time. Never decides what is recorded."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from msgspec.structs import asdict, astuple

from trading_intents.balances.model import (
    AccountBalance,
    DueSpan,
    EquityPoint,
    EquityValues,
    LastEquity,
    Resolution,
)
from trading_intents.brokers.port import BrokerBalance
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import RowParameters, Statement, column_types, json_text

RECORDING_LOCK = 7469013  # one process records equity
PRUNE_ROWS = 5_000
_ROWS = RowParameters(
    {"account_id": "uuid", "organization_id": "uuid"} | column_types(BrokerBalance)
)
_WRITE = f"""
    INSERT INTO balances AS b ({_ROWS.columns}) SELECT {_ROWS.columns} FROM {_ROWS.rows} AS n
    ORDER BY ordinality
    ON CONFLICT (account_id) DO UPDATE
    SET currency = excluded.currency, cash = excluded.cash, buying_power = excluded.buying_power,
        equity = excluded.equity, as_of = excluded.as_of
    WHERE excluded.as_of >= b.as_of
"""  # noqa: S608 - our own constants


def write_balances(balances: Sequence[AccountBalance]) -> Statement:
    """One of each account, which are locked by id. An older one never replaces a newer one."""
    rows = [
        (str(each.account_id), str(each.organization_id), *astuple(each.balance))
        for each in balances
    ]
    return Statement(_WRITE, _ROWS.pack(sorted(rows, key=lambda row: row[0])))


async def find_balance(tx: Tx, account_id: UUID) -> BrokerBalance | None:
    query = "SELECT currency, cash, buying_power, equity, as_of FROM balances WHERE account_id = $1"
    row = await tx.fetchrow(query, account_id)
    return BrokerBalance(**row) if row else None


async def find_due_span(tx: Tx) -> DueSpan:
    """The begin of the last whole minute, None if its equity is recorded, or by another process at
    this moment; and the seconds until the next."""
    query = """
        WITH span AS (
            SELECT date_trunc('minute', now) - interval '1 minute' AS at,
                extract(second FROM now) AS second
            FROM (SELECT clock_timestamp() AS now) AS read
        )
        SELECT
            CASE WHEN pg_try_advisory_xact_lock($1) AND NOT EXISTS (
                SELECT FROM equity_points p WHERE p.resolution = '1m' AND p.at >= span.at
            ) THEN at END AS at,
            (60 - second)::float8 AS left_seconds
        FROM span
    """
    [row] = await tx.fetch(query, RECORDING_LOCK)
    return DueSpan(**row)


async def page_equity(tx: Tx, after: UUID, limit: int) -> list[LastEquity]:
    """Accounts that ever held something, each with its balance and its last point, by id."""
    query = """
        SELECT a.id, a.organization_id, b.cash, b.equity, last_equity, last_cash,
            last_realized_pnl, last_unrealized_pnl
        FROM (
            SELECT id, organization_id FROM accounts
            WHERE id > $1 AND closed_at IS NULL
                AND EXISTS (
                    SELECT FROM holdings h
                    WHERE h.organization_id = accounts.organization_id
                        AND h.account_id = accounts.id AND h.received_at IS NOT NULL
                )
            ORDER BY id LIMIT $2
        ) AS a
        LEFT JOIN LATERAL (SELECT cash, equity FROM balances WHERE account_id = a.id LIMIT 1) AS b
            ON true
        LEFT JOIN LATERAL (
            SELECT equity AS last_equity, cash AS last_cash, realized_pnl AS last_realized_pnl,
                   unrealized_pnl AS last_unrealized_pnl
            FROM equity_points WHERE account_id = a.id AND resolution = '1d'
            ORDER BY resolution, at DESC LIMIT 1
        ) AS last ON true
        ORDER BY a.id
    """
    return [LastEquity(**row) for row in await tx.fetch(query, after, limit)]


async def write_points(
    tx: Tx, at: datetime, values: Mapping[tuple[UUID, OrganizationId], EquityValues]
) -> None:
    """By account and organization: the last values so far of the minute, hour and day of that
    time."""
    rows = []
    for (account_id, organization_id), each in values.items():
        ids = {"account_id": account_id, "organization_id": organization_id}
        rows.append(ids | asdict(each))
    query = """
        INSERT INTO equity_points (
            account_id, organization_id, resolution, at, equity, cash, realized_pnl, unrealized_pnl
        )
        SELECT account_id, organization_id, span.resolution, date_trunc(span.unit, $2, 'UTC'),
            equity, cash,
               realized_pnl, unrealized_pnl
        FROM json_populate_recordset(NULL::equity_points, $1::text::json)
        CROSS JOIN (VALUES ('1m', 'minute'), ('1h', 'hour'), ('1d', 'day')) AS span (resolution,
            unit)
        ON CONFLICT (account_id, resolution, at) DO UPDATE
        SET equity = excluded.equity, cash = excluded.cash, realized_pnl = excluded.realized_pnl,
            unrealized_pnl = excluded.unrealized_pnl
    """
    await tx.execute(query, json_text(rows), at)


async def list_points(
    tx: Tx, account_id: UUID, resolution: Resolution, start: datetime, end: datetime
) -> list[EquityPoint]:
    query = """
        SELECT equity, cash, realized_pnl, unrealized_pnl, at FROM equity_points
        WHERE account_id = $1 AND resolution = $2 AND at >= $3 AND at < $4 ORDER BY at
    """
    rows = await tx.fetch(query, account_id, resolution, start, end)
    return [EquityPoint(**row) for row in rows]


async def prune_points(tx: Tx, keep_days: int) -> bool:
    """Removes old minutes, PRUNE_ROWS at most. True: there may be more."""
    query = """
        DELETE FROM equity_points WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM equity_points
            WHERE resolution = '1m' AND at < clock_timestamp() - make_interval(days => $1)
            ORDER BY at LIMIT $2
        )) RETURNING at
    """
    removed = await tx.fetch(query, keep_days, PRUNE_ROWS)
    return len(removed) == PRUNE_ROWS
