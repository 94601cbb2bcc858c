"""Somebody else's PostgreSQL, of the oldest version we promise: migrate it, use it, keep tenants apart."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.storage.conftest import query
from tests.waiting import eventually
from trading_intents.secret import Secret
from trading_intents.storage.database import open_database
from trading_intents.storage.migrate import migrate, pending
from trading_intents.telemetry import Metrics, make_log

BINARIES = Path("/usr/lib/postgresql/15/bin")
LOG = make_log("warning")


@pytest.fixture
def external() -> Iterator[str]:
    """A superuser's URL of a server that another user runs."""
    if not BINARIES.exists():
        pytest.skip("needs PostgreSQL 15: apt-get install postgresql-15")
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, user.pw_uid, user.pw_gid)
    initdb = [f"{BINARIES}/initdb", "-D", f"{folder}/data", "-U", "postgres", "--auth=trust", "--no-sync"]
    subprocess.run(initdb, check=True, user=user.pw_uid, group=user.pw_gid, cwd=folder, stdout=subprocess.DEVNULL)
    command = [f"{BINARIES}/postgres", "-D", f"{folder}/data", "-k", str(folder), "-h", ""]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, user=user.pw_uid, group=user.pw_gid, cwd=folder, stderr=log) as server,
    ):
        eventually(lambda: "ready to accept" in (folder / "log").read_text(), 10)
        yield f"postgresql://postgres@/postgres?host={folder}"
        server.terminate()
    shutil.rmtree(folder)


async def test_postgres_15_can_be_migrated_and_used(external: str) -> None:
    # A managed service's kind of administrator: it may make roles and databases, and is no superuser.
    await query(external, "CREATE ROLE admin LOGIN CREATEROLE")
    await query(external, "CREATE ROLE app LOGIN")
    await query(external, "CREATE DATABASE platform OWNER admin")
    owner, login = (Secret(external.replace("postgres@/postgres", f"{name}@/platform")) for name in ("admin", "app"))
    assert (await migrate(owner, login, LOG))[0] == "0001_foundation.sql"
    assert await pending(login) == []
    async with open_database(login, 2, LOG, Metrics()) as database:
        async with database.service.transaction([UUID(int=7)]) as tx:
            assert await tx.fetchval("SELECT current_organizations()") == [UUID(int=7)]
            assert await tx.fetchval("SELECT current_user::text") == "ti_service"
        assert await database.worker.healthy()
