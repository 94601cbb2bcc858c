"""Brings a database up to the numbered SQL files: makes the roles, then applies each file once.
Never changes an applied one."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from trading_intents.errors import DatabaseMissing, StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.storage import database
from trading_intents.storage.administration import read_login
from trading_intents.storage.connections import CONNECTION_ERRORS
from trading_intents.telemetry import Log
from trading_intents.trading import FrozenStruct

FOLDER = Path(__file__).with_name("migrations")
CONNECT_LIMIT_SECONDS = 5.0
OTHERS_LIMIT_SECONDS = 300  # while another process migrates
OTHERS_PAUSE_SECONDS = 0.1
STATEMENT_LIMIT_SECONDS = 300
STEP_LIMIT_SECONDS = 86_400.0  # an index of a large table takes long, and locks nobody out
# Others wait behind who waits for a lock: it is asked for briefly, and often. An autovacuum may
# hold it for minutes.
LOCK_LIMIT_MILLIS = 500
LOCK_PAUSE_SECONDS = 1.0
LOCK_TRIES = 200
# Of a statement: longer than the server's own limits, if it does not answer at all.
ANSWER_LIMIT_SECONDS = 310.0
PREPARE_ATTEMPTS = 5
ADVISORY_LOCK = 7_469_001
TABLE = ("public", "schema_migrations")
BASELINE = 1
STEPS = "-- In steps"  # begins a file that is applied step by step

_CHANGED_ROWS = re.compile(r"(INSERT 0|UPDATE|DELETE) [1-9]")  # in the answer to a statement
_NO_STATEMENT = re.compile(r"--[^\n]*|'[^']*'|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_STEP = re.compile(r"^\w.*?;$", re.DOTALL | re.MULTILINE)
_MADE = re.compile(r"CREATE (?:TABLE|(?:UNIQUE )?INDEX CONCURRENTLY) (?:IF NOT EXISTS )?(\w+)")
# What statements lock of a table that is there before, the strongest first. Rows that are written
# are locked besides.
_LOCKS = {
    "ACCESS EXCLUSIVE": (
        r"(?:ALTER|DROP) TABLE (?:IF EXISTS |ONLY )*(\w+)\b(?! VALIDATE| SET \()",
        r"DROP INDEX (?!CONCURRENTLY)(\w+)",
        r"(?:CREATE|ALTER|DROP) POLICY \w+ ON (\w+)",
        r"DROP TRIGGER \w+ ON (\w+)",
        r"LOCK TABLE (\w+) IN ACCESS EXCLUSIVE",
    ),
    "SHARE ROW EXCLUSIVE": (
        r"CREATE (?:CONSTRAINT )?TRIGGER .*? ON (\w+)",
        r"REFERENCES (\w+)",
        r"LOCK TABLE (\w+)",
    ),
    "SHARE": (r"CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)",),
    "SHARE UPDATE EXCLUSIVE": (
        r"ALTER TABLE (\w+) (?:VALIDATE|SET \()",
        r"DROP INDEX CONCURRENTLY IF EXISTS (\w+)",
        r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY \w+ ON (\w+)",
    ),
    "ROW EXCLUSIVE": (
        r"(?:INSERT INTO|DELETE FROM) (?:ONLY )?(\w+)",
        r"UPDATE (?:ONLY )?(\w+) (?:(?:AS )?\w+ )?SET\b",
    ),
}


class AppliedMigration(FrozenStruct):
    version: int
    sha256: str


class Migration(FrozenStruct):
    version: int
    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def steps(self) -> list[str]:
        """Its statements, if each is to commit before the next begins, and an INSERT, UPDATE or
        DELETE to run until it changes nothing. Empty: one transaction has them all."""
        return _STEP.findall(self.text) if self.text.startswith(STEPS) else []

    def locks(self) -> dict[str, str]:
        """The strongest lock that it takes of each table, or of an index with its table, until it
        has committed; not of those that it makes itself."""
        statements = " ".join(_NO_STATEMENT.sub("''", self.text).split())
        made = set(_MADE.findall(statements))
        found = dict[str, str]()
        for mode, patterns in _LOCKS.items():
            for pattern in patterns:
                for table in re.findall(rf"\b{pattern}", statements):
                    if table not in made:
                        found.setdefault(table, mode)
        return found


async def migrate(
    owner_url: Secret,
    login_url: Secret,
    log: Log,
    folder: Path = FOLDER,
    *,
    worker_url: Secret | None = None,
    needs_worker: bool = True,
    may_create: bool = True,
) -> list[str]:
    """Makes the roles and applies what is missing; gives the names applied. Safe to run from many
    processes at once.

    Without `may_create` some migrations must have been applied before.
    """
    files = read_files(folder)
    applied: list[str] = []
    login = await _name_of(login_url, "DATABASE_URL")
    worker = None
    if needs_worker:
        worker = await _name_of(worker_url or login_url, "DATABASE_WORKER_URL")
    async with connected(owner_url) as owner:
        if not may_create and not await _applied(owner):
            raise DatabaseMissing(
                "the database has no tables of ours: `trading-intents migrate` makes them"
            )
        is_behind = bool(await _missing(owner, files))
        await _prepare(owner, login, worker, is_behind)
        while await _missing(owner, files):
            name = await _apply_next(owner, files)
            if name:
                applied.append(name)
                log.debug("migrated", migration=name)
        if applied:
            log.info("database migrated", migrations=len(applied))
        if len(await _applied(owner)) > len(files):
            # During a rolling deploy, newer code may have migrated already; its migrations keep
            # older code working.
            log.warning("database newer than this program")
    return applied


async def _name_of(url: Secret, setting: str) -> str:
    async with connected(url) as login:
        return await read_login(login, setting)


async def pending(url: Secret, folder: Path = FOLDER) -> list[str]:
    return [file.name for file in await list_missing(url, folder)]


async def list_missing(url: Secret, folder: Path = FOLDER) -> Sequence[Migration]:
    async with connected(url) as connection:
        return await _missing(connection, read_files(folder))


def read_files(folder: Path) -> list[Migration]:
    paths = sorted(folder.glob("*.sql"))
    files = [Migration(_version(path), path.name, path.read_text()) for path in paths]
    for number, file in enumerate(files, 1):
        if file.version != number:
            raise StartupRefused(
                f"migration {file.name} should have number {number:04}: there is a gap or a double"
            )
    return files


def _version(path: Path) -> int:
    match = re.match(r"(\d{4})_[a-z0-9_]+\.sql\Z", path.name)
    if match is None:
        raise StartupRefused(f"migration {path.name}: name it like 0001_baseline.sql")
    return int(match[1])


async def _missing(connection: Any, files: Sequence[Migration]) -> Sequence[Migration]:
    applied = await _applied(connection)
    for row, file in zip(applied, files, strict=False):
        if row.version != file.version:
            raise StartupRefused(
                f"the database lacks migration {file.name} but has later ones: restore it"
            )
        if row.sha256 != file.sha256:
            raise StartupRefused(_explain_change(file))
    return files[len(applied) :]


def _explain_change(file: Migration) -> str:
    if file.version == BASELINE:
        return (
            f"the database was made by a build with another {file.name}, and nothing brings it up "
            "to date: export what you need with that build, then drop the database (if it is "
            "embedded, remove the folder TRADING_INTENTS_DATA_DIR names) and start anew"
        )
    return f"migration {file.name} was changed after it was applied: put it back, add a new one"


async def _applied(connection: Any) -> list[AppliedMigration]:
    # Not to_regclass: it reads a cache, which waiting for the advisory lock does not refresh.
    if not await connection.fetchval(
        "SELECT count(*) FROM pg_tables WHERE (schemaname, tablename) = ($1, $2)", *TABLE
    ):
        return []
    rows = await connection.fetch(
        "SELECT version, sha256 FROM public.schema_migrations ORDER BY version"
    )
    return [AppliedMigration(**row) for row in rows]


async def _apply_next(owner: Any, files: Sequence[Migration]) -> str:
    """Applies one file. Gives an empty text when another process was faster."""
    await _take_lock(owner)
    missing = await _missing(owner, files)
    if missing:
        await _apply(owner, missing[0])
    await owner.execute(f"RESET ROLE; RESET ALL; SELECT pg_advisory_unlock({ADVISORY_LOCK})")
    return missing[0].name if missing else ""


async def _apply(owner: Any, file: Migration) -> None:
    await owner.execute(
        f"""
        SET ROLE {database.OWNER_ROLE};
        SET search_path = public;
        SET lock_timeout = {LOCK_LIMIT_MILLIS};
        SET statement_timeout = '{STATEMENT_LIMIT_SECONDS}s'
        """
    )
    if file.steps:  # rows that a policy hides would look like rows that are done
        await owner.execute("SET statement_timeout = 0; SET row_security = off")
    for step in file.steps:
        answer = "UPDATE 1"
        while _CHANGED_ROWS.match(answer):
            answer = await _patiently(owner.execute, step, timeout=STEP_LIMIT_SECONDS)
    await _patiently(_finish, owner, file)


async def _finish(owner: Any, file: Migration) -> None:
    async with owner.transaction():
        if not file.steps:
            # The server's limit is for each statement.
            limit_seconds = ANSWER_LIMIT_SECONDS * (1 + file.text.count(";"))
            await owner.execute(file.text, timeout=limit_seconds)
        await owner.execute(
            "INSERT INTO public.schema_migrations (version, name, sha256) VALUES ($1, $2, $3)",
            file.version,
            file.name,
            file.sha256,
        )


async def _patiently(work: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(asyncpg.LockNotAvailableError):
            return await work(*arguments, **named)
        await asyncio.sleep(LOCK_PAUSE_SECONDS)
    return await work(*arguments, **named)


async def _take_lock(owner: Any) -> None:
    """Asks again and again: who waits for the lock has a snapshot, and CREATE INDEX CONCURRENTLY
    would wait for that. The lock is given back with the connection, if not before."""
    query = f"SELECT pg_try_advisory_lock({ADVISORY_LOCK})"
    try:
        async with asyncio.timeout(OTHERS_LIMIT_SECONDS):
            while not await owner.fetchval(query):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(OTHERS_PAUSE_SECONDS)
    except TimeoutError:
        raise Unavailable(
            "another process has been migrating the database for minutes; start again later"
        ) from None


async def _prepare(owner: Any, login: str, worker: str | None, is_behind: bool) -> None:
    """Makes the roles. They belong to the whole server, so another database's migration may be
    making them at the same time."""
    for attempt in range(1, PREPARE_ATTEMPTS + 1):
        statements = await _unprepared(owner, login, worker, is_behind)
        try:
            for statement in statements:
                await owner.execute(statement)
            return
        except asyncpg.InsufficientPrivilegeError as error:
            # As the owner, the login of the request path could change its own rights.
            if is_behind and await owner.fetchval("SELECT session_user") in (login, worker):
                raise StartupRefused(_may_not(error)) from error
            sql = "\n".join(f"{statement};" for statement in statements)
            raise StartupRefused(
                f"{_may_not(error)}, or let an administrator run in this database\n{sql}"
            ) from error
        except (
            asyncpg.DuplicateObjectError,
            asyncpg.UniqueViolationError,
            asyncpg.InternalServerError,
        ):
            if attempt == PREPARE_ATTEMPTS:
                raise


async def _unprepared(owner: Any, login: str, worker: str | None, is_behind: bool) -> list[str]:
    """Gives the statements that are still needed, so that a login without rights can start when
    there are none."""
    query = """
        WITH roles (role, member) AS (
            VALUES ($1, session_user::text), ($2, $4), ($3, $6), ($7, session_user::text)
        ),
        statements (step, needed, statement) AS (
            SELECT 1, r.oid IS NULL, format('CREATE ROLE %I NOLOGIN', role)
            FROM roles LEFT JOIN pg_roles r ON r.rolname = role
            UNION ALL
            SELECT 2, member IS NOT NULL AND NOT coalesce(pg_has_role(m.oid, r.oid, kind), false)
                   AND (role NOT IN ($1, $7) OR $5),
                   format('GRANT %I TO %I', role, member)
            FROM (SELECT * FROM roles UNION ALL SELECT $2, $7) AS members
            LEFT JOIN pg_roles r ON r.rolname = role LEFT JOIN pg_roles m ON m.rolname = member
            CROSS JOIN (
                SELECT CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET'
                    ELSE 'MEMBER' END
            ) AS word (kind)
            UNION ALL
            SELECT 3, NOT coalesce(has_schema_privilege(r.oid, 'public', privilege), false),
                   format('GRANT %s ON SCHEMA public TO %I', privilege, role)
            FROM (SELECT role, 'USAGE' FROM roles UNION ALL
                SELECT $1, 'CREATE') AS rights (role, privilege)
            LEFT JOIN pg_roles r ON r.rolname = role
        )
        SELECT statement FROM statements WHERE needed ORDER BY step, statement
    """
    rows = await owner.fetch(
        query,
        database.OWNER_ROLE,
        database.SERVICE_ROLE,
        database.WORKER_ROLE,
        login,
        is_behind,
        worker,
        database.ADMIN_ROLE,
    )
    return [statement for (statement,) in rows]


@contextlib.asynccontextmanager
async def connected(url: Secret) -> AsyncIterator[Any]:
    """A connection of its own. Each failure becomes an error of ours, whose text has no part of the
    URL."""
    with database.explain_refusals("TRADING_INTENTS_DATABASE_URL"):
        connection = await asyncpg.connect(
            url.reveal(), timeout=CONNECT_LIMIT_SECONDS, command_timeout=ANSWER_LIMIT_SECONDS
        )
    try:
        await connection.execute(f"SET {database.NO_JIT}")
        yield connection
    except asyncpg.InsufficientPrivilegeError as error:
        raise StartupRefused(_may_not(error)) from error
    except database.LOST as error:
        raise Unavailable(
            "the connection to the database was lost; nothing was recorded"
        ) from error
    finally:
        with contextlib.suppress(*CONNECTION_ERRORS):  # an error from before is the one to raise
            await connection.close(timeout=CONNECT_LIMIT_SECONDS)


def _may_not(error: asyncpg.InsufficientPrivilegeError) -> str:
    return (
        f"this login may not do what is needed ({error}): "
        "run `trading-intents migrate` with TRADING_INTENTS_DATABASE_OWNER_URL set to one that may"
    )
