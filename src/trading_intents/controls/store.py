"""Statements of controls, one a function. Never decides."""

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec
from msgspec import structs

from trading_intents.accounts.model import AccountId
from trading_intents.controls import model
from trading_intents.controls.model import Subject
from trading_intents.storage.database import Tx, pack_array
from trading_intents.storage.pages import PageRequest, beyond_cursor, direction_of
from trading_intents.storage.pipeline import Statement

# An advisory lock with the hash of an organization's id: shared by those who mark sends or append
# what a halt asks for, exclusive for who starts or ends a halt. Nobody waits for anything but the
# stream's head while holding it alone.
HALT_LOCK = 7469030

Control = TypeVar("Control", model.ManualControl, model.TimeControl)  # fields: the columns


def was_halted(order: str, since: str) -> str:
    """SQL: whether a halt of the order stands, or has ended since. Each half goes by its own
    index."""
    halts = f"SELECT FROM halts h WHERE h.scope_id IN ({order}.organization_id, {order}.account_id)"
    return f"""
        (EXISTS ({halts} AND h.resumed_at IS NULL OFFSET 0)
            OR EXISTS ({halts} AND h.resumed_at >= {since} OFFSET 0))
    """


# The rules of subjects, in their order: `RulesRow` as JSON. Look-ups with LIMIT allow only those by
# key: joined plainly, the planner trusts the row-level policies to leave few rows and reads whole
# tables for them. A key that ever had limits may get others during the day.
_READ_RULES = """
    SELECT json_build_object(
        'version', (
            SELECT version::text FROM rule_versions
            WHERE organization_id = asked.organization_id LIMIT 1
        ),
        'account', (
            SELECT json_build_object(
                'organization_id', organization_id, 'environment', environment, 'broker', broker,
                'disabled', disabled, 'closed', closed_at IS NOT NULL,
                'has_credential', has_credential
            )
            FROM accounts WHERE id = asked.account_id LIMIT 1
        ),
        'key', (
            SELECT json_build_object(
                'organization_id', k.organization_id, 'environment', k.environment,
                'permissions', k.permissions, 'entitlements', g.entitlements,
                'disabled', k.disabled OR g.disabled, 'expires_at', k.expires_at
            )
            FROM (
                SELECT organization_id, environment, permissions, disabled, expires_at
                FROM api_keys WHERE id = asked.key_id LIMIT 1
            ) AS k
            CROSS JOIN LATERAL (
                SELECT entitlements, disabled FROM organizations
                WHERE id = k.organization_id LIMIT 1
            ) AS g
        ),
        'controls', json_build_object(
            'organization_id', asked.organization_id, 'account_id', asked.account_id,
            'organization', (
                SELECT json_build_object('disabled', manually_disabled, 'reason', manual_reason)
                FROM organization_controls WHERE organization_id = asked.organization_id LIMIT 1
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
                FROM symbol_times WHERE account_id = asked.account_id AND symbol = asked.symbol
                LIMIT 1
            ),
            'organization_halt', (
                SELECT json_build_object('id', id, 'reason', reason) FROM halts
                WHERE scope_id = asked.organization_id AND resumed_at IS NULL LIMIT 1
            ),
            'account_halt', (
                SELECT json_build_object('id', id, 'reason', reason) FROM halts
                WHERE scope_id = asked.account_id AND resumed_at IS NULL LIMIT 1
            )
        ),
        'limits', json_build_object(
            'organization', (
                SELECT rules FROM trading_limits
                WHERE owner_id = asked.organization_id AND symbol = '' LIMIT 1
            ),
            'account', (
                SELECT rules FROM trading_limits
                WHERE owner_id = asked.account_id AND symbol = '' LIMIT 1
            ),
            'symbol', (
                SELECT rules FROM trading_limits
                WHERE owner_id = asked.account_id AND symbol = nullif(asked.symbol, '') LIMIT 1
            ),
            'key', (
                SELECT coalesce((
                    SELECT rules FROM trading_limits
                    WHERE owner_id = asked.key_id AND symbol = '' LIMIT 1
                ), '{}')
                FROM key_budgets WHERE key_id = asked.key_id LIMIT 1
            )
        )
    )::text
    FROM unnest(
        from_column($1)::uuid[], from_column($2)::uuid[], from_column($3)::uuid[], from_column($4)
    ) WITH ORDINALITY AS asked (organization_id, account_id, key_id, symbol, number)
    ORDER BY asked.number
"""


def read_rules(subjects: Collection[Subject]) -> Statement:
    """Reads what users and operators have set for each: at accepting, at sending and at evaluating
    there is no other read of it."""
    rows = [(each.organization_id, each.account_id, each.key_id, each.symbol) for each in subjects]
    return Statement(_READ_RULES, tuple(map(pack_array, zip(*rows, strict=True))))


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
