"""Somebody else's PostgreSQL, of the oldest version we promise: migrate it, use it, keep tenants
apart."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.old_postgres import postgres_15
from tests.storage.conftest import query
from trading_intents.secret import Secret
from trading_intents.storage.database import open_database
from trading_intents.storage.migrate import migrate, pending
from trading_intents.telemetry import Metrics, make_log

pytestmark = pytest.mark.slow

LOG = make_log("warning")


@pytest.fixture
def external() -> Iterator[str]:
    with postgres_15() as url:
        yield url


async def test_postgres_15_can_be_migrated_and_used(external: str) -> None:
    # A managed service's kind of administrator: it may make roles and databases, and is no
    # superuser.
    await query(external, "CREATE ROLE admin LOGIN CREATEROLE")
    await query(external, "CREATE ROLE app LOGIN")
    await query(external, "CREATE DATABASE platform OWNER admin")
    owner, login = (
        Secret(external.replace("postgres@/postgres", f"{name}@/platform"))
        for name in ("admin", "app")
    )
    assert (await migrate(owner, login, LOG))[0] == "0001_baseline.sql"
    assert await pending(login) == []
    async with open_database(login, 2, LOG, Metrics()) as database:
        async with database.service.transaction([UUID(int=7)]) as tx:
            assert await tx.fetchval("SELECT current_organizations()") == [UUID(int=7)]
            assert await tx.fetchval("SELECT current_user::text") == "ti_service"
        assert await database.worker.healthy()
