"""Looks at a machine and its settings, and says what is wrong and what to do. Changes nothing that it finds."""

import contextlib
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg

from trading_intents.app import database_urls
from trading_intents.config import Settings
from trading_intents.errors import PlatformError
from trading_intents.storage.database import WORKER_ROLE
from trading_intents.storage.embedded.cluster import has_cluster
from trading_intents.storage.migrate import pending
from trading_intents.telemetry import Log, Metrics
from trading_intents.web.server.listener import bind

CONNECT_LIMIT_SECONDS = 5
CLOCK_LIMIT_SECONDS = 2.0
FREE_DISK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    state: Literal["ok", "warning", "wrong"]
    subject: str
    text: str


async def examine(settings: Settings, strangers: Mapping[str, str], log: Log) -> list[Finding]:
    return [
        *_settings(strangers),
        *_files(settings),
        _disk(settings),
        _port(settings.http_host, settings.http_port, "HTTP"),
        *([_port(settings.grpc_host, settings.grpc_port, "GRPC")] if "stream" in settings.roles else ()),
        *await _database(settings, log),
    ]


def _settings(strangers: Mapping[str, str]) -> list[Finding]:
    if not strangers:
        return [Finding("ok", "settings", "every TRADING_INTENTS_* variable is known")]
    return [
        Finding("warning", "settings", f"{name} means nothing" + (f"; did you mean {near}?" if near else ""))
        for name, near in strangers.items()
    ]


def _files(settings: Settings) -> list[Finding]:
    folder = settings.data_dir
    if not folder.exists():
        return [Finding("ok", "files", f"{folder} does not exist yet: `serve` makes it")]
    # The folder itself and what holds a secret; PostgreSQL checks its own folder.
    private = [folder, *(path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".log")]
    open_to_others = [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if not open_to_others:
        return [Finding("ok", "files", f"{folder} and its secrets are readable by you only")]
    return [Finding("wrong", "files", f"{path} can be read by others: chmod go-rwx {path}") for path in open_to_others]


def _disk(settings: Settings) -> Finding:
    folder = settings.data_dir if settings.data_dir.exists() else settings.data_dir.absolute().parent
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < FREE_DISK_BYTES:
            return Finding("warning", "disk", f"only {free >> 20} MiB are free for {settings.data_dir}")
    return Finding("ok", "disk", "there is room")


def _port(host: str, port: int, setting: str) -> Finding:
    try:
        bind(host, port, setting).close()
    except PlatformError as error:
        return Finding("warning", "port", f"{error.detail} (fine if it is this platform)")
    return Finding("ok", "port", f"{host} port {port} is free")


async def _database(settings: Settings, log: Log) -> list[Finding]:
    if not settings.database_url and not has_cluster(settings.data_dir):
        text = f"none in {settings.data_dir.absolute()}: the embedded PostgreSQL is made there at the first start"
        return [Finding("ok", "database", text)]
    try:
        async with database_urls(settings, log, Metrics()) as urls:
            missing = await pending(urls.login)
            connection = await asyncpg.connect(urls.login.reveal(), timeout=CONNECT_LIMIT_SECONDS)
            try:
                logins = [await _logins(connection)] if settings.database_url else []
                return [*await _server(connection), *logins, _schema(missing)]
            finally:
                await connection.close(timeout=CONNECT_LIMIT_SECONDS)
    except PlatformError as error:
        return [Finding("wrong", "database", error.detail)]


async def _server(connection: Any) -> list[Finding]:
    before = time.time()
    row = await connection.fetchrow(
        """
        SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,
               current_setting('synchronous_commit') AS synchronous_commit,
               extract(epoch FROM clock_timestamp())::float8 AS seconds
        """
    )
    findings = [Finding("ok", "database", f"PostgreSQL {row['version']} answers")]
    findings += [
        Finding("wrong", "database", f"{name} is off: an answered order could be lost; turn it on")
        for name in ("fsync", "synchronous_commit")
        if row[name] == "off"
    ]
    skew = row["seconds"] - (before + time.time()) / 2
    if abs(skew) > CLOCK_LIMIT_SECONDS:
        findings.append(Finding("wrong", "clock", f"{skew:+.1f} s from the database's: set up NTP on both machines"))
    else:
        findings.append(Finding("ok", "clock", "agrees with the database's"))
    return findings


async def _logins(connection: Any) -> Finding:
    row = await connection.fetchrow(
        """
        SELECT session_user::text AS login, pg_has_role(session_user, oid, 'MEMBER') AS is_worker
        FROM pg_roles WHERE rolname = $1
        """,
        WORKER_ROLE,
    )
    if row and row["is_worker"]:
        text = (
            f"the login {row['login']} of TRADING_INTENTS_DATABASE_URL may become {WORKER_ROLE}, which reads sealed "
            f"secrets: give TRADING_INTENTS_DATABASE_WORKER_URL a login of its own, then REVOKE {WORKER_ROLE} "
            f"FROM {row['login']}"
        )
        return Finding("warning", "logins", text)
    return Finding("ok", "logins", "the service's login cannot become the worker")


def _schema(missing: list[str]) -> Finding:
    if missing:
        return Finding("warning", "schema", f"lacks {', '.join(missing)}: `trading-intents migrate` adds them")
    return Finding("ok", "schema", "up to date")
