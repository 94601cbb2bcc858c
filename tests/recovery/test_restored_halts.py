"""Every organization of a restored database is halted until somebody resumes it; a halt that stood
stays."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.in_process_writer import furnish
from trading_intents.controls.halts.model import (
    HaltPrincipal,
    HaltPrincipalType,
    HaltScope,
    HaltTerms,
)
from trading_intents.controls.halts.service import start_halt
from trading_intents.errors import NotHalted
from trading_intents.execution.restored.restoring import restore_commands, resume_restored
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Database

STANDING = "SELECT organization_id, reason, cancel_orders FROM halts WHERE resumed_at IS NULL"


async def two_organizations(urls: Urls) -> tuple[asyncpg.Connection, UUID, UUID]:
    owner = await asyncpg.connect(urls.owner.reveal())
    one, _ = await furnish(owner)
    other, _ = await furnish(owner)
    return owner, one, other


async def standing(owner: asyncpg.Connection) -> dict[UUID, tuple[str, bool]]:
    return {
        row["organization_id"]: (row["reason"], row["cancel_orders"])
        for row in await owner.fetch(STANDING)
    }


async def test_a_halt_that_stood_stays_and_the_others_are_resumed(
    urls: Urls, database: Database
) -> None:
    owner, stopped, other = await two_organizations(urls)
    admin = HaltPrincipal(HaltPrincipalType.USER, "admin")
    scope = HaltScope(OrganizationId(stopped))
    async with database.worker.transaction() as tx:
        await start_halt(tx, uuid4(), scope, HaltTerms("model review"), admin)
    await restore_commands(database.worker, "op", "restored")
    assert await standing(owner) == {stopped: ("model review", True), other: ("restored", False)}
    with pytest.raises(NotHalted):
        await resume_restored(database.worker, "op", str(stopped))
    (ended,) = await resume_restored(database.worker, "op", str(other))
    assert ended.scope.organization_id == other
    assert await resume_restored(database.worker, "op", None) == []
    assert await standing(owner) == {stopped: ("model review", True)}
    who = (
        "SELECT resumed_principal_type, resumed_principal_id FROM halts WHERE organization_id = $1"
    )
    assert tuple(await owner.fetchrow(who, other)) == ("SYSTEM", "operator op")
    await owner.close()


async def test_a_restore_without_halts_leaves_trading_on(urls: Urls, database: Database) -> None:
    owner, *_ = await two_organizations(urls)
    await restore_commands(database.worker, "op", "restored", halts=False)
    assert await standing(owner) == {}
    await owner.close()
