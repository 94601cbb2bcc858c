"""Halts in the database, one function per statement. Never decides."""

from collections.abc import Collection
from uuid import UUID

import msgspec
from msgspec.structs import asdict, astuple, replace

from trading_intents.controls.halts.model import (
    Halt,
    HaltPrincipal,
    HaltScope,
    HaltState,
    HaltTerms,
)
from trading_intents.controls.store import HALT_LOCK
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Row, Tx
from trading_intents.trading import Environment, FrozenStruct

# Of a row of `halts` as `h`: a Halt as JSON.
HALT_COLUMNS = """
    (to_jsonb(h) || jsonb_build_object(
        'scope', jsonb_build_object(
            'organization_id', h.organization_id, 'account_id', h.account_id
        ),
        'environment', (SELECT environment FROM accounts a WHERE a.id = h.account_id),
        'terms', jsonb_build_object(
            'reason', h.reason, 'cancel_orders', h.cancel_orders,
            'close_positions', h.close_positions
        ),
        'principal', jsonb_build_object('type', h.principal_type, 'id', h.principal_id)
    ))::text
"""


async def lock_halts(tx: Tx, organization_id: OrganizationId) -> None:
    """Waits until no transaction marks sends of the organization. Those that follow see what this
    one commits."""
    await tx.execute(
        "SELECT pg_advisory_xact_lock($1, hashtext($2))", HALT_LOCK, str(organization_id)
    )


async def find_standing(tx: Tx, scope: HaltScope) -> Halt | None:
    query = f"""
        SELECT {HALT_COLUMNS} FROM halts h
        WHERE organization_id = $1 AND scope_id = $2 AND resumed_at IS NULL
    """  # noqa: S608 - our own constants
    row = await tx.fetchrow(query, scope.organization_id, scope.account_id or scope.organization_id)
    return halt_of(row) if row else None


async def find_last(tx: Tx, scope: HaltScope) -> Halt | None:
    if standing := await find_standing(tx, scope):
        return standing
    query = f"""
        SELECT {HALT_COLUMNS} FROM halts h
        WHERE organization_id = $1 AND scope_id = $2 AND resumed_at IS NOT NULL
        ORDER BY resumed_at DESC LIMIT 1
    """  # noqa: S608 - our own constants
    row = await tx.fetchrow(query, scope.organization_id, scope.account_id or scope.organization_id)
    return halt_of(row) if row else None


async def insert_halt(
    tx: Tx,
    halt_id: UUID,
    scope: HaltScope,
    terms: HaltTerms,
    state: HaltState,
    principal: HaltPrincipal,
) -> Halt:
    query = f"""
        INSERT INTO halts AS h (
            id, organization_id, account_id, reason, cancel_orders, close_positions, state,
                principal_type,
            principal_id, created_at, updated_at
        )
        SELECT $1::uuid, $2::uuid, $3::uuid, $4, $5::boolean, $6::boolean, $7, $8, $9, now, now
        FROM clock_timestamp() AS now RETURNING {HALT_COLUMNS}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(
        query, halt_id, *astuple(scope), *astuple(terms), state, *astuple(principal)
    )
    return halt_of(row)


async def extend_halt(tx: Tx, halt: Halt) -> Halt:
    query = f"""
        UPDATE halts h SET cancel_orders = $2, close_positions = $3, state = $4,
            updated_at = clock_timestamp()
        WHERE id = $1 RETURNING {HALT_COLUMNS}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(
        query, halt.id, halt.terms.cancel_orders, halt.terms.close_positions, halt.state
    )
    return halt_of(row)


async def resume_halt(tx: Tx, halt_id: UUID, principal: HaltPrincipal) -> Halt:
    query = f"""
        UPDATE halts h SET state = 'resumed', waiting = '[]', resumed_at = clock_timestamp(),
            updated_at = clock_timestamp(), resumed_principal_type = $2, resumed_principal_id = $3
        WHERE id = $1 RETURNING {HALT_COLUMNS}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(query, halt_id, principal.type, principal.id)
    await tx.execute("DELETE FROM halt_closings WHERE halt_id = $1", halt_id)
    return halt_of(row)


# An order `o` that was made to close a position after the halt began: it may work.
IS_LEFT = "o.closes AND o.created_at > {since}"
# Positions `p` of an account of which we hold something, or the broker last said that it does.
HELD = """
    holdings p
    WHERE p.organization_id = {organization} AND p.account_id = {account}
        AND (p.quantity <> 0 OR coalesce(p.broker_quantity, 0) <> 0)
"""
HELD_BY_ACCOUNT = HELD.format(organization="a.organization_id", account="a.id")  # `a`
# What they say; NULL: nothing is held.
HELD_TEXT = """
    string_agg(concat_ws(' ', p.symbol, p.quantity, p.broker_quantity), ',' ORDER BY p.symbol)
"""


class HaltCounts(FrozenStruct, kw_only=True):
    state: HaltState
    orders: int
    orders_done: int
    positions: int
    positions_done: int


async def count_work(tx: Tx, halt: Halt) -> Halt:
    """The halt with its state, the orders that were open when it began or since, and the positions
    that it closes, as they are now. A closed account, on which nobody can trade, keeps no halt from
    being done."""
    is_left = IS_LEFT.format(since="$3")
    query = f"""
        SELECT CASE WHEN bool_or(is_open AND closed_at IS NULL) THEN '{HaltState.CANCELLING}'
                WHEN bool_or(is_held AND closed_at IS NULL) THEN '{HaltState.CLOSING}'
                ELSE '{HaltState.DONE}' END AS state,
            coalesce(sum(open + ended), 0)::bigint AS orders,
            coalesce(sum(ended), 0)::bigint AS orders_done,
            coalesce(sum(positions), 0)::bigint AS positions,
            coalesce(sum(CASE WHEN is_held THEN flat ELSE positions END), 0)::bigint
                AS positions_done
        FROM (
            SELECT a.closed_at, working.open, ended.count AS ended,
                working.open > 0 OR working.spared > 0 AND NOT $2 AS is_open,
                $2 AND (working.spared > 0 OR held.text IS DISTINCT FROM c.flat) AS is_held,
                coalesce(cardinality(c.symbols), held.count) AS positions,
                coalesce(c.positions_done, 0) AS flat
            FROM accounts a LEFT JOIN halt_closings c ON c.halt_id = $1 AND c.account_id = a.id
            CROSS JOIN LATERAL (
                SELECT count(*) FILTER (WHERE NOT ({is_left})) AS open,
                    count(*) FILTER (WHERE {is_left}) AS spared
                FROM orders o WHERE o.account_id = a.id AND o.finished_at IS NULL
            ) AS working
            CROSS JOIN LATERAL (
                SELECT count(*) FILTER (WHERE NOT ({is_left})) FROM (
                    SELECT closes, created_at FROM orders
                    WHERE account_id = a.id AND finished_at >= $3 ORDER BY finished_at OFFSET 0
                ) AS o
            ) AS ended
            CROSS JOIN LATERAL (
                SELECT count(*), {HELD_TEXT} AS text FROM {HELD_BY_ACCOUNT} AND $2
            ) AS held
            WHERE {in_scope(halt.scope)}
        ) AS counted
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(
        query, halt.id, halt.terms.close_positions, halt.created_at, *astuple(halt.scope)
    )
    return replace(halt, **asdict(msgspec.convert(dict(row), HaltCounts)))


def in_scope(scope: HaltScope) -> str:
    """SQL about an account `a`; its organization is $4, its own id $5."""
    own = "$5::uuid IS NULL" if scope.account_id is None else "a.id = $5"
    return f"a.organization_id = $4 AND {own}"


async def of_environment(
    tx: Tx, organization_id: OrganizationId, account_ids: Collection[UUID], environment: Environment
) -> set[str]:
    query = """
        SELECT ARRAY(SELECT id::text FROM accounts WHERE organization_id = $1
            AND id = ANY ($2::uuid[]) AND environment = $3)
    """
    return set(await tx.fetchval(query, organization_id, list(account_ids), environment))


def halt_of(row: Row) -> Halt:
    (text,) = row.values()
    return msgspec.json.decode(text, type=Halt)
