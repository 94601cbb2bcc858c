"""Statements about the server itself: its version, settings, clock, roles and advisory locks. They
read no table of a feature."""

import asyncio
from datetime import datetime
from typing import Any

from trading_intents.errors import StartupRefused
from trading_intents.storage.database import Tx
from trading_intents.trading import FrozenStruct

RELOAD_LIMIT_SECONDS = 10.0
RELOAD_POLL_SECONDS = 0.02


class Server(FrozenStruct):
    version: str
    fsync: str
    synchronous_commit: str
    clock_seconds: float  # since 1970


async def read_server(connection: Any) -> Server:
    row = await connection.fetchrow(
        """
        SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,
               current_setting('synchronous_commit') AS synchronous_commit,
               extract(epoch FROM clock_timestamp())::float8 AS clock_seconds
        """
    )
    return Server(**row)


async def read_clock(tx: Tx) -> datetime:
    now: datetime = await tx.fetchval("SELECT clock_timestamp()")
    return now


async def may_become(connection: Any, role: str) -> bool:
    """Whether the connection's login is a member of the role; False when there is no such role."""
    query = "SELECT pg_has_role(session_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = $1"
    found: bool | None = await connection.fetchval(query, role)
    return bool(found)


async def summarize_wal(connection: Any) -> None:
    """Has the server record which pages change, as incremental backups need it; in effect once
    settings are reloaded."""
    if await connection.fetchval("SELECT current_setting('summarize_wal')") == "off":
        await connection.execute("ALTER SYSTEM SET summarize_wal = on")


async def reload_settings(connection: Any) -> None:
    """Reloads the settings, and returns once they are in effect."""
    before = await connection.fetchval("SELECT pg_conf_load_time() FROM pg_reload_conf()")
    loaded_at = "SELECT pg_conf_load_time()"
    async with asyncio.timeout(RELOAD_LIMIT_SECONDS):
        while await connection.fetchval(loaded_at) == before:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(RELOAD_POLL_SECONDS)


async def lock_advisory(tx: Tx, number: int) -> None:
    """Waits for the lock and holds it until the transaction ends."""
    await tx.execute("SELECT pg_advisory_xact_lock($1)", number)


async def read_login(connection: Any, setting: str) -> str:
    """Gives the login's name. A superuser is refused: it could leave its role, and row-level
    security ignores it."""
    query = "SELECT rolname::text, rolsuper FROM pg_roles WHERE rolname = session_user"
    name: str
    name, is_superuser = await connection.fetchrow(query)
    if is_superuser:
        raise StartupRefused(
            f"the login {name} of TRADING_INTENTS_{setting} is a superuser, who sees every "
            "organization's rows: make a login of its own (CREATE ROLE trading_intents LOGIN "
            f"PASSWORD '...') for it, and name {name} in TRADING_INTENTS_DATABASE_OWNER_URL alone"
        )
    return name
