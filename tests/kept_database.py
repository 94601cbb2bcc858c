"""A worker's database, which its tests take in turn: each finds it empty, and connections to it
still open.

A test that changes the schema, or leaves a program connected, spoils nothing: the next one is given
another database.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.kept_connections import IdleConnections, keeping
from tests.server_process import Urls

Databases = Callable[[], contextlib.AbstractContextManager[Urls]]

END_LIMIT_SECONDS = 2.0
POLL_SECONDS = 0.001
# Triggers are not for us: one forbids to delete.
PREPARE = "SET lock_timeout = '2s'; SET session_replication_role = replica"
DELETE = """
    SELECT string_agg('DELETE FROM ' || oid::regclass, ';') FROM pg_class
    WHERE relkind IN ('r', 'p')
    AND NOT relispartition AND relnamespace = 'public'::regnamespace
        AND relname <> 'schema_migrations'
"""
RESTART = """
    SELECT string_agg(format('PERFORM setval(%L, 1, false)', oid::regclass), ';') FROM pg_class
    WHERE relkind = 'S'
"""
SEED = "INSERT INTO stream_epoch DEFAULT VALUES"
# As a function, whose plans stay: in a third of the time.
MAKE_EMPTY = (
    "CREATE FUNCTION pg_temp.make_empty() RETURNS void LANGUAGE plpgsql AS $$BEGIN {}; END$$"
)
# How many of each there are, and which transaction was the last to change one.
CATALOGS = {
    "pg_class": "oid",
    "pg_attribute": "attrelid",
    "pg_type": "oid",
    "pg_trigger": "oid",
    "pg_proc": "oid",
}
SCHEMA = " UNION ALL ".join(
    f"SELECT count(*), max(xmin::text::bigint) FROM {catalog} WHERE {oid} >= 16384"
    for catalog, oid in CATALOGS.items()
)
OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    AND pid <> pg_backend_pid() AND pid <> ALL (%s)
"""


@dataclass
class MadeDatabase:
    urls: Urls
    idle: IdleConnections
    owner: psycopg.Connection[Any]
    schema: list[Any]
    stack: contextlib.AsyncExitStack


class KeptDatabase:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._made: MadeDatabase | None = None

    async def take(self) -> Urls:
        if self._made is None:
            self._made = await self._make()
        return self._made.urls

    async def give_back(self) -> None:
        assert self._made
        is_as_new = False
        with contextlib.suppress(psycopg.Error):  # a test may end all connections, or leave a lock
            is_as_new = await _is_left(self._made) and _is_emptied(self._made)
        if not is_as_new:
            await self.close()

    async def close(self) -> None:
        made = self._made
        self._made = None
        if made:
            await made.stack.aclose()

    async def _make(self) -> MadeDatabase:
        stack = contextlib.AsyncExitStack()
        urls = stack.enter_context(self._databases())
        idle = await stack.enter_async_context(keeping(urls.owner, urls.login))
        owner = stack.enter_context(psycopg.connect(urls.owner.reveal(), autocommit=True))
        owner.execute(PREPARE)
        statements = [owner.execute(query).fetchall()[0][0] for query in (DELETE, RESTART)]
        owner.execute(MAKE_EMPTY.format(";".join([*statements, SEED])))
        return MadeDatabase(urls, idle, owner, owner.execute(SCHEMA).fetchall(), stack)


async def _is_left(made: MadeDatabase) -> bool:
    """Whether nobody is connected but who is kept. A backend is there for a moment longer than its
    client."""
    limit = time.monotonic() + END_LIMIT_SECONDS
    while made.owner.execute(OTHERS, [made.idle.pids()]).fetchall() != [(0,)]:
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def _is_emptied(made: MadeDatabase) -> bool:
    if made.owner.execute(SCHEMA).fetchall() != made.schema:
        return False
    made.owner.execute("SELECT pg_temp.make_empty()")
    return True
