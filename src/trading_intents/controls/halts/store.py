"""Halts in the database, one function per statement. Never decides."""

from collections.abc import Collection
from uuid import UUID

import msgspec
from msgspec.structs import astuple

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
from trading_intents.trading import Environment

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
    """Its work begins anew in every account. Its row is locked first: a worker that writes a part
    locks it too."""
    query = f"""
        UPDATE halts h SET cancel_orders = $2, close_positions = $3, state = $4,
            updated_at = clock_timestamp()
        WHERE id = $1 RETURNING {HALT_COLUMNS}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(
        query, halt.id, halt.terms.cancel_orders, halt.terms.close_positions, halt.state
    )
    await tx.execute("UPDATE halt_parts SET state = 'cancelling' WHERE halt_id = $1", halt.id)
    return halt_of(row)


async def resume_halt(tx: Tx, halt_id: UUID, principal: HaltPrincipal) -> Halt:
    query = f"""
        UPDATE halts h SET state = 'resumed', waiting = '[]', resumed_at = clock_timestamp(),
            updated_at = clock_timestamp(), resumed_principal_type = $2, resumed_principal_id = $3
        WHERE id = $1 RETURNING {HALT_COLUMNS}
    """  # noqa: S608 - our own constants
    [row] = await tx.fetch(query, halt_id, principal.type, principal.id)
    await tx.execute("DELETE FROM halt_parts WHERE halt_id = $1", halt_id)
    return halt_of(row)


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
