"""Statements of controls, one a function. Never decides."""

from collections.abc import Mapping, Sequence
from datetime import time
from uuid import UUID

from msgspec import structs

from trading_intents.accounts.model import AccountId
from trading_intents.controls import model
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pages import PageRequest, beyond_cursor, direction_of
from trading_intents.trading import Symbol

# An advisory lock with the hash of an organization's id: shared by those who mark sends or append
# what a halt asks for, exclusive for who starts or ends a halt. Nobody waits for anything but the
# stream's head while holding it alone.
HALT_LOCK = 7469030

# For a statement that has `asked (account_id, symbol)`: the columns that `controls_from_texts`
# takes, and their tables. LATERAL with LIMIT allows only look-ups by key: joined plainly, the
# planner trusts the row-level policies to leave few rows and reads whole tables for them.
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
    LEFT JOIN LATERAL (SELECT * FROM account_controls WHERE account_id = asked.account_id LIMIT 1) c
        ON true
    LEFT JOIN LATERAL (
        SELECT * FROM symbol_controls WHERE account_id = asked.account_id AND symbol = asked.symbol
        LIMIT 1
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT * FROM symbol_times WHERE account_id = asked.account_id AND symbol = asked.symbol
        LIMIT 1
    ) t ON true
    LEFT JOIN LATERAL (
        SELECT * FROM halts WHERE scope_id = a.organization_id AND resumed_at IS NULL LIMIT 1
    ) oh ON true
    LEFT JOIN LATERAL (
        SELECT * FROM halts WHERE scope_id = asked.account_id AND resumed_at IS NULL LIMIT 1
    ) ah ON true
"""


def was_halted(order: str, since: str) -> str:
    """SQL: whether a halt of the order stands, or has ended since. Each half goes by its own
    index."""
    halts = f"SELECT FROM halts h WHERE h.scope_id IN ({order}.organization_id, {order}.account_id)"
    return f"""
        (EXISTS ({halts} AND h.resumed_at IS NULL OFFSET 0) OR EXISTS ({halts} AND h.resumed_at >= {since} OFFSET 0))
    """


# The inner SELECTs hide how many are asked for: seeing it, the server would plan anew each time,
# which takes longer than the reading.
READ_MANY = f"""
    SELECT {COLUMNS}
    FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[])) WITH ORDINALITY AS asked (account_id,
        symbol, number) {JOINS}
    ORDER BY asked.number
"""  # noqa: S608 - our own constants


async def read_many(
    tx: Tx, account_ids: Sequence[UUID], symbols: Sequence[str]
) -> list[model.Controls]:
    """Reads the controls of each pair, in their order. The transaction must see the accounts."""
    rows = await tx.fetch(READ_MANY, account_ids, symbols)
    return [
        controls_from_texts([None if each is None else str(each) for each in row.values()])
        for row in rows
    ]


async def read_one(tx: Tx, account_id: UUID, symbol: Symbol | None) -> model.Controls:
    """Like `read_many`, for one; without a symbol those of the organization and the account."""
    return (await read_many(tx, [account_id], [symbol or ""]))[0]


async def find_switch(tx: Tx, scope: model.ControlScope) -> model.ManualControl | None:
    row = await _find(tx, _switch_table(scope), scope)
    return _manual(row) if row else None


async def put_switch(
    tx: Tx, scope: model.ControlScope, switch: model.Switch
) -> model.ManualControl:
    values = {"manually_disabled": switch.disabled, "manual_reason": switch.reason}
    return _manual(await _put(tx, _switch_table(scope), scope, values))


async def find_time(tx: Tx, scope: model.ControlScope) -> model.TimeControl | None:
    row = await _find(tx, "symbol_times", scope)
    return _time(row) if row else None


async def put_time(tx: Tx, scope: model.ControlScope, rule: model.TimeRule) -> model.TimeControl:
    return _time(await _put(tx, "symbol_times", scope, structs.asdict(rule)))


def _switch_table(scope: model.ControlScope) -> str:
    if scope.account_id is None:
        return "organization_controls"
    return "account_controls" if scope.symbol is None else "symbol_controls"


def _key(scope: model.ControlScope) -> dict[str, object]:
    """The columns of the primary key of the scope's rows."""
    if scope.account_id is None:
        return {"organization_id": scope.organization_id}
    return {"account_id": scope.account_id} | (
        {} if scope.symbol is None else {"symbol": scope.symbol}
    )


async def _find(tx: Tx, table: str, scope: model.ControlScope) -> Row | None:
    key = _key(scope)
    condition = " AND ".join(f"{column} = ${number}" for number, column in enumerate(key, 1))
    query = f"SELECT * FROM {table} WHERE {condition}"  # noqa: S608 - our own constants
    return await tx.fetchrow(query, *key.values())


async def _put(tx: Tx, table: str, scope: model.ControlScope, values: Mapping[str, object]) -> Row:
    """Inserts a control, or gives the present one these values and the next version."""
    key = _key(scope)
    columns = {"organization_id": scope.organization_id, **key, **values}
    parameters = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    changes = ", ".join(f"{column} = excluded.{column}" for column in values)
    query = f"""
        INSERT INTO {table} AS c ({", ".join(columns)}) VALUES ({parameters})
        ON CONFLICT ({", ".join(key)}) DO UPDATE
        SET {changes}, version = c.version + 1, updated_at = clock_timestamp()
        RETURNING *
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(query, *columns.values())
    return row


async def delete_symbol_control(tx: Tx, scope: model.ControlScope) -> None:
    query = """
        WITH manual AS (DELETE FROM symbol_controls WHERE account_id = $1 AND symbol = $2)
        DELETE FROM symbol_times WHERE account_id = $1 AND symbol = $2
    """
    await tx.execute(query, scope.account_id, scope.symbol)


async def count_other_symbols(tx: Tx, scope: model.ControlScope) -> int:
    query = """
        SELECT count(*) FROM (
            SELECT symbol FROM symbol_controls WHERE account_id = $1
            UNION SELECT symbol FROM symbol_times WHERE account_id = $1
        ) AS controlled WHERE symbol <> $2
    """
    return int(await tx.fetchval(query, scope.account_id, scope.symbol))


# The first rows of both together are among the first rows of each.
_LIST_SYMBOLS = """
        SELECT coalesce(c.symbol, t.symbol) AS symbol, t.trading_start, t.trading_end,
            t.stale_order_millis, t.timezone,
            t.created_at AS time_created_at, t.updated_at AS time_updated_at,
                t.version AS time_version,
            c.manually_disabled, c.manual_reason, c.created_at, c.updated_at, c.version
        FROM (
            SELECT * FROM symbol_controls WHERE account_id = $1 {beyond} ORDER BY symbol {direction}
            LIMIT $2
        ) c FULL JOIN (
            SELECT * FROM symbol_times WHERE account_id = $1 {beyond} ORDER BY symbol {direction}
            LIMIT $2
        ) t ON t.symbol = c.symbol
        ORDER BY 1 {direction} LIMIT $2
"""


async def list_symbol_controls(
    tx: Tx, account_id: AccountId, page: PageRequest
) -> list[model.SymbolControl]:
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
    (
        organization_id,
        account_id,
        off_1,
        why_1,
        off_2,
        why_2,
        off_3,
        why_3,
        version,
        start,
        end,
        stale,
        zone,
        organization_halt_id,
        organization_reason,
        account_halt_id,
        account_reason,
    ) = texts
    assert organization_id is not None, "an account that the transaction cannot see"
    assert account_id is not None
    rule = None
    if version is not None:
        rule = model.TimeRule(_time_of(start), _time_of(end), int(stale) if stale else None, zone)
    return model.Controls(
        organization_id=organization_id,
        account_id=account_id,
        organization=_switch(off_1, why_1),
        account=_switch(off_2, why_2),
        symbol=_switch(off_3, why_3),
        time=rule,
        organization_halt=_standing(organization_halt_id, organization_reason),
        account_halt=_standing(account_halt_id, account_reason),
    )


def _switch(is_off: str | None, reason: str | None) -> model.Switch | None:
    return None if is_off is None else model.Switch(is_off == "true", reason)


def _standing(halt_id: str | None, reason: str | None) -> model.StandingHalt | None:
    return None if halt_id is None else model.StandingHalt(halt_id, reason or "")


def _time_of(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


def _manual(row: Row) -> model.ManualControl:
    switch = model.Switch(row["manually_disabled"], row["manual_reason"])
    return model.ManualControl(switch, row["created_at"], row["updated_at"], row["version"])


def _time(row: Row, prefix: str = "") -> model.TimeControl:
    rule = model.TimeRule(
        row["trading_start"], row["trading_end"], row["stale_order_millis"], row["timezone"]
    )
    return model.TimeControl(
        rule, row[f"{prefix}created_at"], row[f"{prefix}updated_at"], row[f"{prefix}version"]
    )
