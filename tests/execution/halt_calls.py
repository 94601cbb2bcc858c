"""Halts in the tests' own process: started, ended, and what they made and wait for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.execution.in_process_execution import InProcessExecution
from trading_intents.controls.halts import service
from trading_intents.controls.halts.model import (
    Halt,
    HaltPrincipal,
    HaltPrincipalType,
    HaltScope,
    HaltTerms,
)
from trading_intents.ids import OrganizationId
from trading_intents.intents.writing.system import PlatformActions

ADMIN = HaltPrincipal(HaltPrincipalType.USER, "admin")


@contextlib.asynccontextmanager
async def held_head(in_process: InProcessExecution, account: UUID) -> AsyncIterator[None]:
    """Another transaction that holds the account's head."""
    owner = in_process.in_process_writer.owner
    async with owner.transaction():
        await owner.execute("SELECT FROM account_heads WHERE account_id = $1 FOR UPDATE", account)
        yield


async def halt(in_process: InProcessExecution, whole: bool = False, **terms: Any) -> Halt:
    writer = in_process.in_process_writer
    organization_id = OrganizationId(writer.organization)
    scope = HaltScope(organization_id, None if whole else in_process.account)
    async with writer.pool.transaction([organization_id]) as tx:
        found, _ = await service.start_halt(tx, uuid4(), scope, HaltTerms("stop", **terms), ADMIN)
    return found


async def resume(in_process: InProcessExecution, found: Halt) -> None:
    async with in_process.in_process_writer.pool.transaction([found.scope.organization_id]) as tx:
        await service.end_halt(tx, found.scope, ADMIN)


async def shown(in_process: InProcessExecution, found: Halt) -> Any:
    row = await in_process.in_process_writer.owner.fetchrow(
        "SELECT * FROM halts WHERE id = $1", found.id
    )
    return dict(row) | {"waiting": msgspec.json.decode(row["waiting"])}


async def until(
    in_process: InProcessExecution, found: Halt, limit_seconds: float = 30.0, **wanted: Any
) -> Any:
    last: Any = None

    async def reached() -> bool:
        nonlocal last
        last = await shown(in_process, found)
        return all(last[name] == value for name, value in wanted.items())

    try:
        await in_process.until(reached, limit_seconds)
    except AssertionError:
        raise AssertionError(f"{wanted} not within {limit_seconds} s: {last}") from None
    return last


async def until_waiting(
    in_process: InProcessExecution, found: Halt, reason: str
) -> list[dict[str, str]]:
    async def waits() -> bool:
        return reason in {each["reason"] for each in (await shown(in_process, found))["waiting"]}

    await in_process.until(waits)
    waiting: list[dict[str, str]] = (await shown(in_process, found))["waiting"]
    return waiting


async def actions(in_process: InProcessExecution, found: Halt, action_type: str) -> list[Any]:
    """The records that the halt appended."""
    rows = await in_process.in_process_writer.owner.fetch(
        "SELECT intent_id, created_at, record::jsonb ->> 'quantity' AS quantity,"
        " record::jsonb ->> 'order_side' AS side, record::jsonb ->> 'symbol' AS symbol FROM actions"
        " WHERE action_type = $1 AND record::jsonb ->> 'principal_type' = 'SYSTEM'"
        " AND record::jsonb ->> 'principal_id' = $2 ORDER BY seq",
        action_type,
        str(found.id),
    )
    return list(rows)


async def working(in_process: InProcessExecution, count: int = 1, **order: Any) -> list[UUID]:
    intents = [await in_process.create(**order) for _ in range(count)]
    for intent in intents:
        await in_process.until_status(intent, "NEW")
    return intents


async def hold(in_process: InProcessExecution, symbol: str = "AAPL", quantity: str = "10") -> None:
    """A position, bought."""
    (intent,) = await working(in_process, quantity=quantity, symbol=symbol)
    in_process.fill(await in_process.coid(intent), quantity)
    await in_process.until_status(intent, "FILLED")


async def closing_orders(in_process: InProcessExecution, found: Halt, count: int = 1) -> list[UUID]:
    """The intents of the halt's closing orders, once there are so many and all of them are at the
    venue."""

    async def made() -> list[UUID]:
        return [row["intent_id"] for row in await actions(in_process, found, "CREATE")]

    async def are_at_the_venue() -> bool:
        orders = [await in_process.order(intent) for intent in await made()]
        return len(orders) == count and all(order["external_order_id"] for order in orders)

    await in_process.until(are_at_the_venue)
    return await made()


def stay_after_appending(patched: pytest.MonkeyPatch) -> None:
    """A step of a halt that has appended its commands does nothing more, until its worker ends."""
    append = PlatformActions.append

    async def append_and_stay(self: PlatformActions, *given: Any) -> None:
        await append(self, *given)
        await asyncio.Event().wait()

    patched.setattr(PlatformActions, "append", append_and_stay)
