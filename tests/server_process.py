"""Run as a program: an embedded server in a process of its own, described on a line of JSON, until
standard input ends.

Usage: python -m tests.server_process DATA_DIR [--loop uvloop] [--bin FOLDER] [--template DATABASE]
"""

import argparse
import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import uvloop

from trading_intents.errors import StartupRefused
from trading_intents.secret import Secret
from trading_intents.storage.connections import DatabaseUrls
from trading_intents.storage.embedded.server import running
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import Log, make_log

LOGIN = "external"


@dataclass(frozen=True, slots=True)
class Urls:
    """Of one database, for its owner and for the platform."""

    owner: Secret
    login: Secret

    def of(self, database: str) -> "Urls":
        return Urls(in_database(self.owner, database), in_database(self.login, database))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--loop", default="asyncio")
    parser.add_argument("--bin", default="")
    parser.add_argument("--template", default="")
    arguments = parser.parse_args()
    run = uvloop.run if arguments.loop == "uvloop" else asyncio.run
    try:
        run(serve(arguments.data_dir, arguments.bin, arguments.template))
    except StartupRefused as error:
        say(refused=error.detail)
        sys.exit(2)


async def serve(data_dir: Path, postgres_bin: str, template: str) -> None:
    log = make_log("warning")
    async with running(data_dir, postgres_bin, log, lambda: say(started=True)) as server:
        login = await make_login(server)
        if template:
            await make_template(server.owner_url, login, template, log)
        say(owner_url=server.owner_url.reveal(), url=login.reveal())
        await end_of_input()


async def make_login(server: DatabaseUrls) -> Secret:
    """One that may become both roles, as the tests use the server as an external one."""
    login = server.url.reveal().replace("//trading_intents:", f"//{LOGIN}:")
    password = login.partition(f"{LOGIN}:")[2].partition("@")[0]
    connection = await asyncpg.connect(server.owner_url.reveal())
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", LOGIN):
        with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
            await connection.execute(f"CREATE ROLE {LOGIN} LOGIN PASSWORD '{password}'")
    await connection.close()
    return Secret(login)


async def make_template(owner_url: Secret, login_url: Secret, template: str, log: Log) -> None:
    connection = await asyncpg.connect(owner_url.reveal())
    await connection.execute(f"CREATE DATABASE {template}")
    await connection.close()
    await make_logins_quick(owner_url, login_url)
    await migrate(in_database(owner_url, template), in_database(login_url, template), log)


async def make_logins_quick(*urls: Secret) -> None:
    """Checked as ever, but hashed once in place of 4,096 times: tests connect some thousand
    times."""
    connection = await asyncpg.connect(urls[0].reveal())
    await connection.execute("SET scram_iterations = 1")
    for url in urls:
        login, password = url.reveal().removeprefix("postgresql://").split("@")[0].split(":")
        await connection.execute(f"ALTER ROLE {login} PASSWORD '{password}'")
    await connection.close()


def in_database(url: Secret, database: str) -> Secret:
    """The same login in another database of the embedded server."""
    return Secret(url.reveal().replace("@/trading_intents?", f"@/{database}?"))


async def end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
