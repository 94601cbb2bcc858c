"""Statements of controls, one a function. Never decides."""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import structs

from trading_intents.accounts.model import AccountId
from trading_intents.controls import model
from trading_intents.storage.database import Tx
from trading_intents.storage.pages import PageRequest, beyond_cursor, direction_of
from trading_intents.trading import Symbol

# An advisory lock with the hash of an organization's id: shared by those who mark sends or append
# what a halt asks for, exclusive for who starts or ends a halt. Nobody waits for anything but the
# stream's head while holding it alone.
HALT_LOCK = 7469030

# For a statement that has `asked (account_id, symbol)`: `Controls` as JSON, NULL of an account that
# cannot be seen, and its table. Look-ups with LIMIT allow only those by key: joined plainly, the
# planner trusts the row-level policies to leave few rows and reads whole tables for them.
CONTROLS = """
    CASE WHEN a.id IS NOT NULL THEN json_build_object(
        'organization_id', a.organization_id, 'account_id', a.id,
        'organization', (
            SELECT json_build_object('disabled', manually_disabled, 'reason', manual_reason)
            FROM organization_controls WHERE organization_id = a.organization_id LIMIT 1
        ),
        'account', (
            SELECT json_build_object('disabled', manually_disabled, 'reason', manual_reason)
            FROM account_controls WHERE account_id = asked.account_id LIMIT 1
        ),
        'symbol', (
            SELECT json_build_object('disabled', manually_disabled, 'reason', manual_reason)
            FROM symbol_controls WHERE account_id = asked.account_id AND symbol = asked.symbol
            LIMIT 1
        ),
        'time', (
            SELECT json_build_object(
                'trading_start', trading_start, 'trading_end', trading_end,
                'stale_order_millis', stale_order_millis, 'timezone', timezone
            )
            FROM symbol_times WHERE account_id = asked.account_id AND symbol = asked.symbol LIMIT 1
        ),
        'organization_halt', (
            SELECT json_build_object('id', id, 'reason', reason)
            FROM halts WHERE scope_id = a.organization_id AND resumed_at IS NULL LIMIT 1
        ),
        'account_halt', (
            SELECT json_build_object('id', id, 'reason', reason)
            FROM halts WHERE scope_id = asked.account_id AND resumed_at IS NULL LIMIT 1
        )
    ) END
"""
JOINS = """
    LEFT JOIN LATERAL (SELECT * FROM accounts WHERE id = asked.account_id LIMIT 1) a ON true
"""
Control = TypeVar("Control", model.ManualControl, model.TimeControl)  # fields: the columns


def was_halted(order: str, since: str) -> str:
    """SQL: whether a halt of the order stands, or has ended since. Each half goes by its own
    index."""
    halts = f"SELECT FROM halts h WHERE h.scope_id IN ({order}.organization_id, {order}.account_id)"
    return f"""
        (EXISTS ({halts} AND h.resumed_at IS NULL OFFSET 0)
            OR EXISTS ({halts} AND h.resumed_at >= {since} OFFSET 0))
    """


# The inner SELECTs hide how many are asked for: seeing it, the server would plan anew each time,
# which takes longer than the reading.
READ_MANY = f"""
    SELECT ({CONTROLS})::text
    FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[])) WITH ORDINALITY AS asked (account_id,
        symbol, number) {JOINS}
    ORDER BY asked.number
"""  # noqa: S608 - our own constants


async def read_many(
    tx: Tx, account_ids: Sequence[UUID], symbols: Sequence[str]
) -> list[model.Controls]:
    """Reads the controls of each pair, in their order. The transaction must see the accounts."""
    rows = await tx.fetch(READ_MANY, account_ids, symbols)
    return [parse_controls(*row.values()) for row in rows]


async def read_one(tx: Tx, account_id: UUID, symbol: Symbol | None) -> model.Controls:
    """Like `read_many`, for one; without a symbol those of the organization and the account."""
    return (await read_many(tx, [account_id], [symbol or ""]))[0]


async def find_switch(tx: Tx, scope: model.ControlScope) -> model.ManualControl | None:
    return await _find(tx, _switch_table(scope), scope, model.ManualControl)


async def put_switch(
    tx: Tx, scope: model.ControlScope, switch: model.Switch
) -> model.ManualControl:
    values = {"manually_disabled": switch.disabled, "manual_reason": switch.reason}
    return await _put(tx, _switch_table(scope), scope, values, model.ManualControl)


async def find_time(tx: Tx, scope: model.ControlScope) -> model.TimeControl | None:
    return await _find(tx, "symbol_times", scope, model.TimeControl)


async def put_time(tx: Tx, scope: model.ControlScope, rule: model.TimeRule) -> model.TimeControl:
    return await _put(tx, "symbol_times", scope, structs.asdict(rule), model.TimeControl)


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


async def _find(
    tx: Tx, table: str, scope: model.ControlScope, kind: type[Control]
) -> Control | None:
    key = _key(scope)
    condition = " AND ".join(f"{column} = ${number}" for number, column in enumerate(key, 1))
    columns = ", ".join(kind.__struct_fields__)
    query = f"SELECT {columns} FROM {table} WHERE {condition}"  # noqa: S608 - our own constants
    row = await tx.fetchrow(query, *key.values())
    return kind(**row) if row else None


async def _put(
    tx: Tx,
    table: str,
    scope: model.ControlScope,
    values: Mapping[str, object],
    kind: type[Control],
) -> Control:
    """Inserts a control, or gives the present one these values and the next version."""
    key = _key(scope)
    given = {"organization_id": scope.organization_id, **key, **values}
    parameters = ", ".join(f"${number}" for number in range(1, len(given) + 1))
    changes = ", ".join(f"{column} = excluded.{column}" for column in values)
    query = f"""
        INSERT INTO {table} AS c ({", ".join(given)}) VALUES ({parameters})
        ON CONFLICT ({", ".join(key)}) DO UPDATE
        SET {changes}, version = c.version + 1, updated_at = clock_timestamp()
        RETURNING {", ".join(kind.__struct_fields__)}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(query, *given.values())
    return kind(**row)


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
    SELECT coalesce(json_agg(listed), '[]')::text FROM (
        SELECT coalesce(c.symbol, t.symbol) AS symbol, to_json(c) AS manual, to_json(t) AS time
        FROM (
            SELECT * FROM symbol_controls WHERE account_id = $1 {beyond} ORDER BY symbol {direction}
            LIMIT $2
        ) c FULL JOIN (
            SELECT * FROM symbol_times WHERE account_id = $1 {beyond} ORDER BY symbol {direction}
            LIMIT $2
        ) t ON t.symbol = c.symbol
        ORDER BY 1 {direction} LIMIT $2
    ) AS listed
"""


async def list_symbol_controls(
    tx: Tx, account_id: AccountId, page: PageRequest
) -> list[model.SymbolControl]:
    beyond, after = beyond_cursor(page, "symbol", 3)
    query = _LIST_SYMBOLS.format(beyond=beyond, direction=direction_of(page))
    text = await tx.fetchval(query, account_id, page.limit + 1, *after)
    return msgspec.json.decode(text, type=list[model.SymbolControl])


def parse_controls(text: str | None) -> model.Controls:
    assert text is not None, "an account that the transaction cannot see"
    return msgspec.json.decode(text, type=model.Controls)
