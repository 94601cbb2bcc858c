"""Migrations: applied once, in order, by whoever may; refused when history does not fit."""

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import asyncpg
import pytest

from tests.conftest import Urls
from tests.platform import environment, run_command
from tests.proxy import Verdict, proxied
from tests.storage.catalog import describe, unprotected_tables
from tests.storage.made_up import MADE_UP
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.errors import StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, open_database
from trading_intents.storage.migrate import FOLDER, Migration, migrate, pending, read_files
from trading_intents.telemetry import Metrics, make_log

LOG = make_log("error")
ANSWER_SECONDS = 10
SCHEMA = FOLDER.with_name("schema.sql")
BASELINE = FOLDER / "0001_baseline.sql"
# A caller is looked up here before the organization is known.
IDENTITY_TABLES = {"memberships"}


@pytest.fixture
async def empty(postgres: Urls) -> AsyncIterator[Urls]:
    """A database that nothing was done to."""
    name = f"t_{uuid.uuid4().hex}"
    server = await asyncpg.connect(postgres.owner.reveal())
    await server.execute(f"CREATE DATABASE {name}")
    yield postgres.of(name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


@pytest.fixture
async def weak(postgres: Urls) -> AsyncIterator[str]:
    """A login that owns nothing and may make nothing."""
    name = f"l_{uuid.uuid4().hex}"
    server = await asyncpg.connect(postgres.owner.reveal())
    await server.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    yield name
    await server.execute(f"DROP ROLE {name}")
    await server.close()


@pytest.fixture
async def owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(urls.owner.reveal())
    yield connection
    await connection.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two migrations of our own after the real first one."""
    shutil.copy(BASELINE, tmp_path)
    for version in (2, 3):
        (tmp_path / f"000{version}_step.sql").write_text(f"CREATE TABLE step{version} (n bigint);")
    return tmp_path


def as_login(url: Secret, name: str) -> Secret:
    return Secret(f"postgresql://{name}:x@/" + url.reveal().split("@/")[1])


async def test_the_migrations_add_up_to_the_schema(
    empty: Urls, owner: asyncpg.Connection, tmp_path: Path
) -> None:
    await migrate(empty.owner, empty.login, LOG, tmp_path)  # the roles only
    other = await asyncpg.connect(empty.owner.reveal())
    await other.execute(f"SET ROLE ti_owner; {SCHEMA.read_text()}; RESET ROLE")
    truth = await describe(other)
    await other.close()
    migrated = await describe(owner)
    assert sorted(truth - migrated) == []
    assert sorted(migrated - truth) == []


async def test_tenant_tables_force_row_level_security(owner: asyncpg.Connection) -> None:
    assert set(await unprotected_tables(owner)) <= IDENTITY_TABLES
    await owner.execute("CREATE TABLE forgotten (organization_id uuid)")
    assert "forgotten" in await unprotected_tables(owner)
    await owner.execute("ALTER TABLE forgotten ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    assert "forgotten" not in await unprotected_tables(owner)


async def test_nothing_is_public(owner: asyncpg.Connection) -> None:
    await owner.execute(
        "SET ROLE ti_owner; CREATE FUNCTION f() RETURNS int RETURN 1; CREATE TABLE t (n int)"
    )
    for privilege in (
        "has_function_privilege('ti_service', 'f()', 'EXECUTE')",
        "has_table_privilege('ti_service', 't', 'SELECT')",
    ):
        assert await owner.fetchval(f"SELECT {privilege}") is False


async def test_each_file_is_applied_once(empty: Urls, files: Path) -> None:
    assert await pending(empty.login, files) == [
        "0001_baseline.sql",
        "0002_step.sql",
        "0003_step.sql",
    ]
    assert await migrate(empty.owner, empty.login, LOG, files) == names_of(files)
    assert await migrate(empty.owner, empty.login, LOG, files) == []
    assert await pending(empty.login, files) == []
    (files / "0004_step.sql").write_text("CREATE TABLE step4 (n bigint);")
    assert await migrate(empty.owner, empty.login, LOG, files) == ["0004_step.sql"]


def names_of(files: Path) -> list[str]:
    return [file.name for file in read_files(files)]


async def test_many_processes_may_migrate_at_once(empty: Urls, files: Path) -> None:
    results = await asyncio.gather(
        *(migrate(empty.owner, empty.login, LOG, files) for _ in range(5))
    )
    assert sorted(name for result in results for name in result) == names_of(files)


IN_STEPS = """-- In steps: a comment; that ends nothing
CREATE TABLE IF NOT EXISTS old (n bigint);
CREATE TABLE IF NOT EXISTS taken (n bigint, at xid8 DEFAULT pg_current_xact_id());
WITH next AS (DELETE FROM old WHERE n IN (SELECT n FROM old ORDER BY n LIMIT 4) RETURNING n)
INSERT INTO taken SELECT n FROM next;
DROP INDEX CONCURRENTLY IF EXISTS taken_n;
CREATE UNIQUE INDEX CONCURRENTLY taken_n ON taken (n);
"""


async def test_a_file_in_steps_commits_each_and_changes_rows_in_batches(
    empty: Urls, files: Path
) -> None:
    await migrate(empty.owner, empty.login, LOG, files)
    owner = await asyncpg.connect(empty.owner.reveal())
    await owner.execute(
        "SET ROLE ti_owner; CREATE TABLE old AS SELECT n::bigint FROM generate_series(1, 10) AS n"
    )
    (files / "0004_steps.sql").write_text(IN_STEPS.replace("(n);\n", "(missing);\n"))
    with pytest.raises(asyncpg.UndefinedColumnError):
        await migrate(empty.owner, empty.login, LOG, files)
    batches = await owner.fetchval(
        "SELECT array_agg(rows) FROM (SELECT count(*) AS rows FROM taken GROUP BY at) AS b"
    )
    assert sorted(batches) == [2, 4, 4], "what came before the failure is committed"
    (files / "0004_steps.sql").write_text(IN_STEPS)
    assert await pending(empty.login, files) == ["0004_steps.sql"]
    applied = await asyncio.gather(
        *(migrate(empty.owner, empty.login, LOG, files) for _ in range(5))
    )
    assert sorted(applied) == [[], [], [], [], ["0004_steps.sql"]], (
        "processes that wait for their turn do not block the index"
    )
    assert await owner.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'taken_n'::regclass"
    )
    assert await owner.fetchval("SELECT count(*) FROM taken") == 10
    await owner.close()


async def test_nobody_waits_long_behind_a_migration_that_waits_for_a_lock(
    empty: Urls, files: Path
) -> None:
    await migrate(empty.owner, empty.login, LOG, files)
    (files / "0004_lock.sql").write_text("ALTER TABLE step3 ADD COLUMN m bigint;")
    reader, writer = [await asyncpg.connect(empty.owner.reveal()) for _ in range(2)]
    async with reader.transaction():
        await reader.execute("SELECT FROM step3")  # as a backup does for an hour
        async with asyncio.TaskGroup() as group:
            migrating = group.create_task(migrate(empty.owner, empty.login, LOG, files))

            async def is_blocked() -> bool:
                return bool(await writer.fetchval(COUNT_BLOCKED))

            await eventually_async(is_blocked, ANSWER_SECONDS)
            await writer.execute("INSERT INTO step3 VALUES (1)")
            assert not migrating.done()
            await eventually_async(is_blocked, ANSWER_SECONDS)  # it asks again
            await reader.execute("ROLLBACK AND CHAIN")
    assert migrating.result() == ["0004_lock.sql"]
    for connection in (reader, writer):
        await connection.close()


async def test_a_failing_file_leaves_nothing_of_itself(empty: Urls, files: Path) -> None:
    (files / "0003_step.sql").write_text("CREATE TABLE step3 (n bigint); SELECT nonsense;")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await migrate(empty.owner, empty.login, LOG, files)
    assert await pending(empty.login, files) == ["0003_step.sql"]
    (files / "0003_step.sql").write_text("CREATE TABLE step3 (n bigint);")
    assert await migrate(empty.owner, empty.login, LOG, files) == ["0003_step.sql"]


async def test_a_changed_file_is_refused_by_name(empty: Urls, files: Path) -> None:
    await migrate(empty.owner, empty.login, LOG, files)
    (files / "0002_step.sql").write_text("CREATE TABLE other (n bigint);")
    with pytest.raises(StartupRefused, match=r"0002_step\.sql was changed"):
        await migrate(empty.owner, empty.login, LOG, files)


@pytest.mark.parametrize("command", ["migrate", "serve"])
async def test_a_database_of_another_baseline_is_refused_with_what_to_do(
    empty: Urls, files: Path, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    """As one of a build from before the first release: its other migrations do not matter."""
    (files / BASELINE.name).write_text(BASELINE.read_text() + "-- of another build")
    await migrate(empty.owner, empty.login, LOG, files)
    settings = {
        "DATABASE_URL": empty.login.reveal(),
        "DATABASE_OWNER_URL": empty.owner.reveal(),
    }
    environ = environment(tmp_path_factory.mktemp("data"), settings)
    done = await asyncio.to_thread(run_command, environ, command)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "made by a build with another 0001_baseline.sql" in line
    assert "export what you need" in line
    assert "drop the database (if it is embedded, remove the folder" in line


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [("0005_late.sql", "gap"), ("0003_double.sql", "double"), ("4.sql", "name it")],
)
async def test_a_wrong_number_is_refused(files: Path, wrong: str, reason: str) -> None:
    (files / wrong).write_text("SELECT 1;")
    with pytest.raises(StartupRefused, match=reason):
        read_files(files)


async def test_a_gap_in_the_database_is_refused(empty: Urls, files: Path) -> None:
    await migrate(empty.owner, empty.login, LOG, files)
    connection = await asyncpg.connect(empty.owner.reveal())
    await connection.execute("DELETE FROM schema_migrations WHERE version = 2")
    await connection.close()
    with pytest.raises(StartupRefused, match=r"lacks migration 0002_step\.sql"):
        await migrate(empty.owner, empty.login, LOG, files)


async def test_a_newer_database_is_taken_with_a_warning(empty: Urls, files: Path) -> None:
    await migrate(empty.owner, empty.login, LOG, files)
    (files / "0003_step.sql").unlink()
    out = StringIO()
    assert await migrate(empty.owner, empty.login, make_log("warning", out), files) == []
    assert "database newer" in out.getvalue()


async def test_a_login_without_rights_starts_when_nothing_is_pending(
    urls: Urls, owner: asyncpg.Connection, weak: str
) -> None:
    await owner.execute(f"GRANT ti_service, ti_worker TO {weak}")
    login = as_login(urls.login, weak)
    assert await pending(login) == []
    assert await migrate(login, login, LOG) == []
    async with open_database(login, 1, LOG, Metrics()) as database:
        assert await database.worker.healthy()


async def test_a_login_without_rights_gets_the_sql_to_migrate(
    urls: Urls, weak: str, files: Path
) -> None:
    login = as_login(urls.login, weak)
    with pytest.raises(
        StartupRefused, match=r"`trading-intents migrate` with TRADING_INTENTS_DATABASE_OWNER_URL"
    ):
        await pending(login)
    with pytest.raises(StartupRefused, match=f"GRANT ti_service TO {weak};"):
        await migrate(urls.login, login, LOG)


async def test_pending_files_need_an_owner(empty: Urls, files: Path) -> None:
    """The login of the request path gets no SQL by which it owns what it must not change."""
    with pytest.raises(StartupRefused, match="OWNER_URL") as refused:
        await migrate(empty.login, empty.login, LOG, files)
    assert "GRANT" not in str(refused.value)


async def test_an_owner_without_rights_gets_the_sql_to_own(
    empty: Urls, weak: str, files: Path
) -> None:
    with pytest.raises(
        StartupRefused,
        match=rf"OWNER_URL.*\nGRANT ti_admin TO {weak};\nGRANT ti_owner TO {weak};\n",
    ):
        await migrate(as_login(empty.login, weak), empty.login, LOG, files)


async def test_a_login_that_may_make_roles_needs_no_superuser(empty: Urls, weak: str) -> None:
    name = empty.owner.reveal().split("@/")[1].split("?")[0]
    connection = await asyncpg.connect(empty.owner.reveal())
    await connection.execute(f"ALTER ROLE {weak} CREATEROLE; ALTER DATABASE {name} OWNER TO {weak}")
    await connection.execute(
        f"GRANT ti_admin, ti_owner, ti_service, ti_worker TO {weak} WITH ADMIN OPTION"
    )
    login = as_login(empty.login, weak)
    assert await migrate(login, login, LOG)
    await connection.execute(f"ALTER DATABASE {name} OWNER TO postgres; DROP OWNED BY {weak}")
    await connection.close()


async def test_an_absent_server_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        await pending(Secret(f"postgresql://a:b@/c?host={tmp_path}"))


async def test_a_server_that_answers_no_more_is_unavailable(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{migrate.__module__}.ANSWER_LIMIT_SECONDS", 0.5, raising=False)
    monkeypatch.setattr(f"{migrate.__module__}.CONNECT_LIMIT_SECONDS", 1.0)

    def hold(data: bytes) -> Verdict:
        return Verdict.HOLD if b"pg_roles" in data else Verdict.PASS

    with proxied(urls.login, hold) as (_, url):
        async with asyncio.timeout(ANSWER_SECONDS):
            with pytest.raises(Unavailable):
                await migrate(urls.owner, url, LOG)


async def test_a_table_that_gains_a_column_is_unavailable_once(
    database: Database, owner_url: Secret
) -> None:
    """As when a newer process migrates: the plan of a `SELECT *` that is kept does not fit any
    more."""

    async def read() -> int:
        async with database.service.transaction() as tx:
            return len(await tx.fetch("SELECT * FROM things"))

    owner = await asyncpg.connect(owner_url.reveal())
    await owner.execute(
        "SET ROLE ti_owner; CREATE TABLE things (n bigint); GRANT SELECT ON things TO ti_service"
    )
    assert await read() == 0
    await owner.execute("ALTER TABLE things ADD COLUMN detail text")
    await owner.close()
    with pytest.raises(Unavailable, match="schema"):
        await read()
    assert await read() == 0


LOCK_MODES = (
    "RowExclusive",
    "ShareUpdateExclusive",
    "Share",
    "ShareRowExclusive",
    "Exclusive",
    "AccessExclusive",
)
HELD_LOCKS = """
    SELECT c.relname AS table, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    WHERE l.pid = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND c.relnamespace = 'public'::regnamespace
"""


def ranked(modes: list[tuple[str, str]]) -> dict[str, int]:
    """The strongest mode of each table that keeps others from working."""
    found = dict[str, int]()
    for table, mode in modes:
        name = mode.replace(" ", "").removesuffix("Lock").lower()
        rank = next((rank for rank, each in enumerate(LOCK_MODES) if each.lower() == name), 0)
        found[table] = max(rank, found.get(table, 0))
    return {table: rank for table, rank in found.items() if rank}


async def locks_of(urls: Urls, owner: asyncpg.Connection, text: str) -> list[tuple[str, str]]:
    """Runs it."""
    await owner.execute("SET ROLE ti_owner; SET search_path = public")
    if " CONCURRENTLY " not in text:
        async with owner.transaction():
            await owner.execute(text)
            return [tuple(row) for row in await owner.fetch(HELD_LOCKS, owner.get_server_pid())]
    # It may be in no transaction, and waits for this writer of every table.
    writer = await asyncpg.connect(urls.owner.reveal())
    async with writer.transaction(), asyncio.TaskGroup() as group:
        for row in await writer.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ):
            await writer.execute(f"LOCK TABLE {row['tablename']} IN ROW EXCLUSIVE MODE")
        running = group.create_task(owner.execute(text))

        async def waits_or_ended() -> bool:
            return running.done() or bool(await writer.fetchval(COUNT_BLOCKED))

        await eventually_async(waits_or_ended, ANSWER_SECONDS)
        held = [tuple(row) for row in await writer.fetch(HELD_LOCKS, owner.get_server_pid())]
        await writer.execute("ROLLBACK AND CHAIN")
    await writer.close()
    return held


async def test_the_locks_that_a_migration_is_said_to_take_are_those_it_takes(
    empty: Urls, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of every migration, and of made-up ones, by what PostgreSQL itself says at the end of
    each."""
    roles_only = tmp_path_factory.mktemp("none")
    await migrate(empty.owner, empty.login, LOG, roles_only)
    made_up = tmp_path_factory.mktemp("made_up")
    shutil.copy(BASELINE, made_up)
    for name, text in MADE_UP.items():
        (made_up / name).write_text(text)
    owner = await asyncpg.connect(empty.owner.reveal())
    for file in [*read_files(FOLDER), *read_files(made_up)[1:]]:
        await check_locks(empty, owner, file)
    await owner.close()


async def check_locks(urls: Urls, owner: asyncpg.Connection, file: Migration) -> None:
    tables = await owner.fetch("SELECT tablename FROM pg_tables")
    known = {table for (table,) in tables}
    indexes = dict(await owner.fetch("SELECT indexname, tablename FROM pg_indexes"))
    held = list[tuple[str, str]]()
    for text in file.steps or [file.text]:
        taken = await locks_of(urls, owner, text)
        held += [each for each in taken if each[0] in known]
    named = [(indexes.get(name, name), mode) for name, mode in file.locks().items()]
    assert {name for name, _ in named} <= known, file.name
    assert ranked(named) == ranked(held), file.name
