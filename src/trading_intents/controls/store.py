"""Statements of controls, one a function. Never decides."""

from collections.abc import Sequence
from datetime import time
from uuid import UUID

from trading_intents.accounts.model import AccountId
from trading_intents.controls import model
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pages import PageRequest, beyond_cursor, direction_of
from trading_intents.trading import Symbol

# An advisory lock with the hash of an organization's id: shared by those who mark sends or append what a halt asks for,
# exclusive for who starts or ends a halt. Nobody waits for anything but the stream's head while holding it alone.
HALT_LOCK = 7469030

# For a statement that has `asked (account_id, symbol)`: the columns that `controls_from_texts` takes, and their tables.
# LATERAL with LIMIT allows only look-ups by key: joined plainly, the planner trusts the row-level policies to leave
# few rows and reads whole tables for them.
COLUMNS = """
    a.organization_id, a.id, o.manually_disabled::text, o.manual_reason, c.manually_disabled::text, c.manual_reason,
    s.manually_disabled::text, s.manual_reason, t.version, t.trading_start, t.trading_end, t.stale_order_millis,
    t.timezone, oh.id, oh.reason, ah.id, ah.reason
"""
JOINS = """
    LEFT JOIN LATERAL (SELECT * FROM accounts WHERE id = asked.account_id LIMIT 1) a ON true
    LEFT JOIN LATERAL (
        SELECT * FROM organization_controls WHERE organization_id = a.organization_id LIMIT 1
    ) o ON true
    LEFT JOIN LATERAL (SELECT * FROM account_controls WHERE account_id = asked.account_id LIMIT 1) c ON true
    LEFT JOIN LATERAL (
        SELECT * FROM symbol_controls WHERE account_id = asked.account_id AND symbol = asked.symbol LIMIT 1
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT * FROM symbol_times WHERE account_id = asked.account_id AND symbol = asked.symbol LIMIT 1
    ) t ON true
    LEFT JOIN LATERAL (
        SELECT * FROM halts WHERE scope_id = a.organization_id AND resumed_at IS NULL LIMIT 1
    ) oh ON true
    LEFT JOIN LATERAL (
        SELECT * FROM halts WHERE scope_id = asked.account_id AND resumed_at IS NULL LIMIT 1
    ) ah ON true
"""


def was_halted(order: str, since: str) -> str:
    """SQL: whether a halt of the order stands, or has ended since. Each half goes by its own index."""
    halts = f"SELECT FROM halts h WHERE h.scope_id IN ({order}.organization_id, {order}.account_id)"
    return f"""
        (EXISTS ({halts} AND h.resumed_at IS NULL OFFSET 0) OR EXISTS ({halts} AND h.resumed_at >= {since} OFFSET 0))
    """


# The inner SELECTs hide how many are asked for: seeing it, the server would plan anew each time, which takes longer
# than the reading.
READ_MANY = f"""
    SELECT {COLUMNS}
    FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[])) WITH ORDINALITY AS asked (account_id, symbol, number) {JOINS}
    ORDER BY asked.number
"""  # noqa: S608 - our own constants


async def read_many(tx: Tx, account_ids: Sequence[UUID], symbols: Sequence[str]) -> list[model.Controls]:
    """Reads the controls of each pair, in their order. The transaction must see the accounts."""
    rows = await tx.fetch(READ_MANY, account_ids, symbols)
    return [controls_from_texts([None if each is None else str(each) for each in row.values()]) for row in rows]


async def read_one(tx: Tx, account_id: UUID, symbol: Symbol | None) -> model.Controls:
    """Like `read_many`, for one; without a symbol those of the organization and the account."""
    return (await read_many(tx, [account_id], [symbol or ""]))[0]


async def find_organization_control(tx: Tx, organization_id: OrganizationId) -> model.ManualControl | None:
    row = await tx.fetchrow("SELECT * FROM organization_controls WHERE organization_id = $1", organization_id)
    return _manual(row) if row else None


async def put_organization_control(
    tx: Tx, organization_id: OrganizationId, switch: model.Switch
) -> model.ManualControl:
    query = """
        INSERT INTO organization_controls AS c (organization_id, manually_disabled, manual_reason)
        VALUES ($1, $2, $3)
        ON CONFLICT (organization_id) DO UPDATE
        SET manually_disabled = $2, manual_reason = $3, version = c.version + 1, updated_at = clock_timestamp()
        RETURNING *
    """
    [row] = await tx.fetch(query, organization_id, switch.disabled, switch.reason)
    return _manual(row)


async def find_account_control(tx: Tx, account_id: AccountId) -> model.ManualControl | None:
    row = await tx.fetchrow("SELECT * FROM account_controls WHERE account_id = $1", account_id)
    return _manual(row) if row else None


async def put_account_control(
    tx: Tx, organization_id: OrganizationId, account_id: AccountId, switch: model.Switch
) -> model.ManualControl:
    query = """
        INSERT INTO account_controls AS c (organization_id, account_id, manually_disabled, manual_reason)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (account_id) DO UPDATE
        SET manually_disabled = $3, manual_reason = $4, version = c.version + 1, updated_at = clock_timestamp()
        RETURNING *
    """
    [row] = await tx.fetch(query, organization_id, account_id, switch.disabled, switch.reason)
    return _manual(row)


async def find_symbol_control(tx: Tx, account_id: AccountId, symbol: Symbol) -> model.SymbolControl:
    """Gives a control without records when nothing was set."""
    query = "SELECT * FROM symbol_controls WHERE account_id = $1 AND symbol = $2"
    manual = await tx.fetchrow(query, account_id, symbol)
    time = await tx.fetchrow("SELECT * FROM symbol_times WHERE account_id = $1 AND symbol = $2", account_id, symbol)
    return model.SymbolControl(symbol, _manual(manual) if manual else None, _time(time) if time else None)


async def put_symbol_manual(
    tx: Tx, organization_id: OrganizationId, account_id: AccountId, symbol: Symbol, switch: model.Switch
) -> model.ManualControl:
    query = """
        INSERT INTO symbol_controls AS c (organization_id, account_id, symbol, manually_disabled, manual_reason)
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET manually_disabled = $4, manual_reason = $5, version = c.version + 1, updated_at = clock_timestamp()
        RETURNING *
    """
    [row] = await tx.fetch(query, organization_id, account_id, symbol, switch.disabled, switch.reason)
    return _manual(row)


async def put_symbol_time(
    tx: Tx, organization_id: OrganizationId, account_id: AccountId, symbol: Symbol, rule: model.TimeRule
) -> model.TimeControl:
    query = """
        INSERT INTO symbol_times AS t (
            organization_id, account_id, symbol, trading_start, trading_end, stale_order_millis, timezone
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET trading_start = $4, trading_end = $5, stale_order_millis = $6, timezone = $7,
            version = t.version + 1, updated_at = clock_timestamp()
        RETURNING *
    """
    [row] = await tx.fetch(
        query,
        organization_id,
        account_id,
        symbol,
        rule.trading_start,
        rule.trading_end,
        rule.stale_order_millis,
        rule.timezone,
    )
    return _time(row)


async def delete_symbol_control(tx: Tx, account_id: AccountId, symbol: Symbol) -> None:
    query = """
        WITH manual AS (DELETE FROM symbol_controls WHERE account_id = $1 AND symbol = $2)
        DELETE FROM symbol_times WHERE account_id = $1 AND symbol = $2
    """
    await tx.execute(query, account_id, symbol)


async def count_symbols(tx: Tx, account_id: AccountId) -> int:
    query = """
        SELECT count(*) FROM (
            SELECT symbol FROM symbol_controls WHERE account_id = $1
            UNION SELECT symbol FROM symbol_times WHERE account_id = $1
        ) AS controlled
    """
    return int(await tx.fetchval(query, account_id))


# The first rows of both together are among the first rows of each.
_LIST_SYMBOLS = """
        SELECT coalesce(c.symbol, t.symbol) AS symbol, t.trading_start, t.trading_end, t.stale_order_millis, t.timezone,
            t.created_at AS time_created_at, t.updated_at AS time_updated_at, t.version AS time_version,
            c.manually_disabled, c.manual_reason, c.created_at, c.updated_at, c.version
        FROM (
            SELECT * FROM symbol_controls WHERE account_id = $1 {beyond} ORDER BY symbol {direction} LIMIT $2
        ) c FULL JOIN (
            SELECT * FROM symbol_times WHERE account_id = $1 {beyond} ORDER BY symbol {direction} LIMIT $2
        ) t ON t.symbol = c.symbol
        ORDER BY 1 {direction} LIMIT $2
"""


async def list_symbol_controls(tx: Tx, account_id: AccountId, page: PageRequest) -> list[model.SymbolControl]:
    beyond, after = beyond_cursor(page, "symbol", 3)
    query = _LIST_SYMBOLS.format(beyond=beyond, direction=direction_of(page))
    rows = await tx.fetch(query, account_id, page.limit + 1, *after)
    return [
        model.SymbolControl(
            Symbol(row["symbol"]),
            _manual(row) if row["version"] else None,
            _time(row, "time_") if row["time_version"] else None,
        )
        for row in rows
    ]


def controls_from_texts(texts: Sequence[str | None]) -> model.Controls:
    organization_id, account_id, off_1, why_1, off_2, why_2, off_3, why_3, version, start, end, stale, zone, *halts = (
        texts
    )
    assert organization_id is not None, "an account that the transaction cannot see"
    assert account_id is not None
    return model.Controls(
        organization_id,
        account_id,
        None if off_1 is None else model.Switch(off_1 == "true", why_1),
        None if off_2 is None else model.Switch(off_2 == "true", why_2),
        None if off_3 is None else model.Switch(off_3 == "true", why_3),
        None
        if version is None
        else model.TimeRule(_time_of(start), _time_of(end), int(stale) if stale else None, zone),
        *_standing(*halts),
    )


def _standing(
    organization_halt_id: str | None, reason_1: str | None, account_halt_id: str | None, reason_2: str | None
) -> tuple[model.StandingHalt | None, model.StandingHalt | None]:
    return (
        None if organization_halt_id is None else model.StandingHalt(organization_halt_id, reason_1 or ""),
        None if account_halt_id is None else model.StandingHalt(account_halt_id, reason_2 or ""),
    )


def _time_of(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


def _manual(row: Row) -> model.ManualControl:
    switch = model.Switch(row["manually_disabled"], row["manual_reason"])
    return model.ManualControl(switch, row["created_at"], row["updated_at"], row["version"])


def _time(row: Row, prefix: str = "") -> model.TimeControl:
    rule = model.TimeRule(row["trading_start"], row["trading_end"], row["stale_order_millis"], row["timezone"])
    return model.TimeControl(rule, row[f"{prefix}created_at"], row[f"{prefix}updated_at"], row[f"{prefix}version"])
