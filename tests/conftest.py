"""Shared by the whole suite: one embedded server, and a fresh migrated database for each test that asks for one."""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from tests.forks import Fork
from tests.server_process import in_database
from trading_intents.secret import Secret
from trading_intents.storage.database import Database, open_database
from trading_intents.telemetry import Metrics, make_log

pytest_plugins = ["tests.world"]

TEMPLATE = "ti_template"
STOP_LIMIT_SECONDS = 30
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30


def pytest_configure() -> None:
    """Databases live in memory where there is room: here programs are killed, not machines. `make chaos` uses disks."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@dataclass(frozen=True, slots=True)
class Urls:
    owner: Secret
    login: Secret

    def of(self, database: str) -> "Urls":
        return Urls(in_database(self.owner, database), in_database(self.login, database))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    """The session's server, in a process of its own: its event loop must outlive every test's."""
    folder = tmp_path_factory.mktemp("postgres")
    process = Fork(
        "tests.server_process", str(folder), "--template", TEMPLATE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert "url" in lines[1], lines
        yield Urls(Secret(lines[1]["owner_url"]), Secret(lines[1]["url"]))
    process.wait(STOP_LIMIT_SECONDS)
    shutil.rmtree(folder)


@pytest.fixture
async def urls(postgres: Urls) -> AsyncIterator[Urls]:
    """Both logins' URLs of a fresh, migrated database."""
    name = f"t_{uuid.uuid4().hex}"
    server = await asyncpg.connect(postgres.owner.reveal())
    await server.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
    yield postgres.of(name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


@pytest.fixture
def database_url(urls: Urls) -> Secret:
    """The pools' login."""
    return urls.login


@pytest.fixture
def owner_url(urls: Urls) -> Secret:
    """A superuser, for what a test must arrange behind the platform's back."""
    return urls.owner


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def database(database_url: Secret, metrics: Metrics) -> AsyncIterator[Database]:
    async with open_database(database_url, 5, make_log("warning"), metrics) as database:
        yield database
