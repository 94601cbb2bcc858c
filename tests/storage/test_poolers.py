"""Behind a pooler that gives each transaction another session nothing starts, and no transaction
relies on the role of its session."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.accounts.provisioned import settings_of
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.platform import environment, run_command
from tests.storage.poolers import pgbouncer, pooled_by_transaction
from trading_intents.errors import StartupRefused
from trading_intents.secret import Secret
from trading_intents.storage.database import SERVICE_ROLE, WORKER_ROLE, Database, open_database
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.pipeline import Pipeline, Statement
from trading_intents.telemetry import Metrics, make_log

BY_SESSION = "have it pool by session"
ROLES = [(SERVICE_ROLE, WORKER_ROLE), (WORKER_ROLE, SERVICE_ROLE)]
READ_ROLE = "SELECT current_user::text"


@pytest.mark.parametrize(("role", "other"), ROLES)
async def test_a_transaction_has_its_role_whatever_the_session_has(
    database: Database, role: str, other: str
) -> None:
    pool = database.service if role == SERVICE_ROLE else database.worker
    async with pool.session() as connection:
        await connection.execute(f'SET ROLE "{other}"')
    async with pool.transaction() as tx:
        assert await tx.fetchval(READ_ROLE) == role
    async with pool.session() as connection:
        assert await connection.fetchval(READ_ROLE) == other, "the same session"
        await connection.execute(f'SET ROLE "{role}"')


@pytest.mark.parametrize(("role", "other"), ROLES)
async def test_a_transaction_of_a_pipeline_has_its_role_whatever_the_session_has(
    urls: Urls, role: str, other: str
) -> None:
    with contextlib.closing(Pipeline(urls.login, role)) as pipeline:
        connection = await pipeline.connect()
        await connection.run([Statement(f'SET ROLE "{other}"')])
        begin, read, setting, end = await connection.run(
            [
                Statement("BEGIN ISOLATION LEVEL READ COMMITTED"),
                Statement(READ_ROLE),
                Statement("SET LOCAL lock_timeout = '1s'"),
                Statement("ROLLBACK"),
            ]
        )
        assert (begin.tag, setting.tag, end.tag) == ("BEGIN", "SET", "ROLLBACK")
        assert read.texts() == [[role]]
        async with GroupTransactions(pipeline).transaction() as transaction:
            [[[found]]] = [reply.texts() for reply in await transaction.run([Statement(READ_ROLE)])]
            assert found == role


async def start(url: Secret, workers_url: Secret | None = None) -> None:
    opening = open_database(url, 2, make_log("critical"), Metrics(), workers_url)
    async with opening as database, database.service.transaction() as tx:
        assert await tx.fetchval(READ_ROLE) == SERVICE_ROLE


async def test_a_pooler_by_transaction_is_refused_at_start(urls: Urls) -> None:
    async with pooled_by_transaction(urls.login) as through:
        for logins in ((through, urls.login), (urls.login, through)):
            with pytest.raises(StartupRefused, match=BY_SESSION):
                await start(*logins)


@pytest.mark.parametrize("setting", ["DATABASE_URL", "DATABASE_WORKER_URL"])
async def test_serve_and_doctor_name_the_mode_that_a_pooler_needs(
    urls: Urls, tmp_path: Path, setting: str
) -> None:
    environ = environment(tmp_path / "data", settings_of(urls))
    assert (await asyncio.to_thread(run_command, environ, "migrate")).returncode == 0
    async with pooled_by_transaction(urls.login) as through:
        settings = settings_of(urls) | {setting: through.reveal()}
        environ = environment(tmp_path / "data", settings)
        refused = await asyncio.to_thread(run_command, environ, "serve")
        assert refused.returncode == 1
        lines = [line for line in refused.stderr.splitlines() if BY_SESSION in line]
        assert len(lines) == 1
        examined = await asyncio.to_thread(run_command, environ, "doctor")
    assert examined.returncode == 1
    subject = "database" if setting == "DATABASE_URL" else "logins"
    assert lines_of(examined.stdout)[subject].startswith("wrong: a pooler before the database")


async def test_pgbouncer_serves_by_session_and_is_refused_by_transaction(urls: Urls) -> None:
    with pgbouncer(urls.login, "session") as through:
        await start(through)
    with (
        pgbouncer(urls.login, "transaction") as through,
        pytest.raises(StartupRefused, match=BY_SESSION),
    ):
        await start(through)
