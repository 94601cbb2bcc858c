"""The role of the request path writes what a request may write, of the tenant that its transaction
names."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from tests.conftest import Urls
from tests.platform import environment, run_command
from trading_intents.identity import store
from trading_intents.identity.keys import digest
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Database

OURS = UUID("01a1f504-c0a8-7322-8af0-435d69f77491")
THEIRS = UUID("01a1f504-c0a8-7322-8af0-435d69f77492")
ENTITLEMENTS = ["controls_premium", "trading_live"]
ADD_ORGANIZATION = """
    INSERT INTO organizations (id, provider, external_id, name) VALUES ($1, 'local', $2, $2)
"""
ADD_KEY = """
    INSERT INTO api_keys (id, organization_id, name, environment, permissions, digest, hint)
    VALUES ($1, $1, 'key', 'paper', '{intent:read}', $2, 'hint')
"""


@pytest.fixture
async def owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """Of two tenants with a key each, whose id is the tenant's."""
    connection = await asyncpg.connect(urls.owner.reveal())
    for name, tenant in (("ours", OURS), ("theirs", THEIRS)):
        await connection.execute(ADD_ORGANIZATION, tenant, name)
        await connection.execute(ADD_KEY, tenant, digest(name))
    yield connection
    await connection.close()


@pytest.mark.usefixtures("owner")
async def test_keys_of_another_tenant_are_neither_seen_nor_written(database: Database) -> None:
    async with database.service.transaction([OURS]) as tx:
        assert await tx.fetchval("SELECT array_agg(id) FROM api_keys") == [OURS]
        for change in ("permissions = '{intent:edit}'", "disabled = true", "expires_at = now()"):
            assert (
                await tx.execute(f"UPDATE api_keys SET {change} WHERE id = $1", OURS) == "UPDATE 1"
            )
            assert await tx.execute(f"UPDATE api_keys SET {change}") == "UPDATE 1"
        assert await tx.execute("DELETE FROM api_keys WHERE id = $1", THEIRS) == "DELETE 0"
    async with database.service.transaction() as tx:
        assert await tx.fetchval("SELECT count(*) FROM api_keys") == 0
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([OURS]) as tx:
            await tx.execute(ADD_KEY, THEIRS, digest("another"))


async def test_a_caller_is_found_by_the_digest_of_the_whole_key(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with database.service.transaction(read_only=True) as tx:
        found = await store.find_key(tx, digest("theirs"))
        assert found is not None
        assert found.key.organization_id == THEIRS
        assert await store.find_key(tx, digest("nobody's")) is None
    at = datetime(2026, 1, 5, tzinfo=UTC)
    for used_at in (at, at.replace(year=2025)):
        async with database.service.transaction() as tx:
            await store.touch_keys(tx, [found.key.id], [used_at])
        query = "SELECT last_used_at FROM api_keys WHERE id = $1"
        assert await owner.fetchval(query, THEIRS) == at, "only forward"


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE api_keys SET organization_id = organization_id",
        "UPDATE api_keys SET digest = digest",
        "UPDATE api_keys SET environment = 'live'",
        "UPDATE organizations SET entitlements = entitlements",
        "UPDATE organizations SET member_trading = true",
        "INSERT INTO organizations SELECT * FROM organizations LIMIT 0",
        "DELETE FROM organizations WHERE false",
        "SELECT FROM organizations FOR NO KEY UPDATE",
        "INSERT INTO memberships SELECT * FROM memberships",
        "UPDATE memberships SET role = 'admin'",
        "DELETE FROM memberships",
        "UPDATE users SET tokens_after = NULL",
        "UPDATE users SET external_id = external_id",
        "UPDATE service_accounts SET scopes = scopes",
        "INSERT INTO service_accounts SELECT * FROM service_accounts",
        "SET ROLE ti_admin",
        "SET ROLE ti_owner",
    ],
)
async def test_a_request_may_not_write_what_only_an_operator_sets(
    database: Database, statement: str
) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.service.transaction([OURS]) as tx:
            await tx.execute(statement)


async def test_an_organization_is_locked_for_its_own_request_alone(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with database.service.transaction([OURS]) as tx:
        await store.lock_organization(tx, OrganizationId(OURS))
        await store.lock_organization(tx, OrganizationId(THEIRS))
        async with owner.transaction():
            query = "SELECT id FROM organizations FOR NO KEY UPDATE SKIP LOCKED"
            assert [row["id"] for row in await owner.fetch(query)] == [THEIRS]


def test_provisioning_takes_the_owners_login(urls: Urls, tmp_path: Path) -> None:
    document = json.dumps({"organizations": [{"external_id": "o", "entitlements": ENTITLEMENTS}]})
    service = {"DATABASE_URL": urls.login.reveal()}
    as_service = environment(tmp_path / "data", service)
    done = run_command(as_service, "admin", "apply", "-", stdin=document)
    assert done.returncode == 1
    assert "and _OWNER_URL, migrate" in done.stderr
    as_owner = environment(tmp_path / "data", service | {"DATABASE_OWNER_URL": urls.owner.reveal()})
    done = run_command(as_owner, "admin", "apply", "-", stdin=document)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["organizations"][0]["entitlements"] == ENTITLEMENTS
