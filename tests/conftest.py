"""Shared by the whole suite: one embedded server, and a fresh migrated database for each test that
asks for one."""

import asyncio
import contextlib
import fcntl
import functools
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import uvloop

from tests.fork_server import IGNORED_BY_PYTHON, Fork
from tests.kept_connections import open_pools
from tests.kept_database import Databases, KeptDatabase
from tests.property_sizes import load_profile
from tests.server_process import Urls
from trading_intents.secret import Secret
from trading_intents.storage.database import Database
from trading_intents.telemetry import Metrics

pytest_plugins = ["tests.tenants", "tests.workers"]
__all__ = ["Databases", "Urls"]  # which tests import from here

TEMPLATE = "ti_template"
STOP_LIMIT_SECONDS = 30
MEMORY = Path("/dev/shm")
AUTHORITIES = "/etc/ssl/certs"
ROOM_BYTES = 4 << 30
GARBAGE_OBJECTS = 50_000

Once = Callable[[str, Callable[[Path], None]], Path]
CLUSTER = "cluster"
MAKING = pytest.StashKey[threading.Thread]()


@pytest.hookimpl(tryfirst=True)  # before anything is forked
def pytest_configure(config: pytest.Config) -> None:
    """Databases live in memory where there is room: here programs are killed, not machines. `make
    chaos` uses disks."""
    leave_callers_habits()
    # `make chaos` asks for the properties, which Hypothesis marks.
    load_profile(is_whole="hypothesis" in config.option.markexpr)
    gc.disable()
    # As the programs do; it takes less of the processor.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    # Authorities are looked up when somebody shows a certificate: to read the file of them all
    # takes 45 ms each time.
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = AUTHORITIES
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def leave_callers_habits() -> None:
    """Programs start as from a terminal, whatever the caller of the tests ignores, blocks or
    keeps to itself: a shell's background jobs ignore SIGINT, nohup's SIGHUP."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # which programs do not inherit
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignores files without a marked test where only marked tests run: they need not be
    imported."""
    wanted = re.findall(r"(?<!not )\b(deadline|slow)\b", config.option.markexpr)
    if not wanted or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    return True if any(f"mark.{mark}" not in text for mark in wanted) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """The workers' cluster is made while tests are collected, which leaves a processor free."""
    if session.config.option.workers and not session.config.option.collectonly:
        folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # has no public name
        session.config.stash[MAKING] = threading.Thread(
            target=made_once, args=(folder, CLUSTER, make_cluster)
        )
        session.config.stash[MAKING].start()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes the collected tests: searching them for garbage again and again takes a tenth of the
    time."""
    if MAKING in session.config.stash:
        session.config.stash[MAKING].join()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    gc.enable()


def copy_folder(folder: Path, to: Path) -> Path:
    """In half the time that shutil takes."""
    subprocess.run(["cp", "-a", folder, to], check=True)
    return to


def made_once(shared_folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A folder by its name: the first who asks makes it, the others find it."""
    folder = shared_folder / name
    draft = shared_folder / f"{name}.draft"
    with (shared_folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(draft)
            draft.rename(folder)
    return folder


@pytest.fixture(scope="session")
def once(shared_folder: Path) -> Once:
    """Gives a folder by its name, the same to all workers."""
    return functools.partial(made_once, shared_folder)


def make_cluster(folder: Path) -> None:
    with server(folder, "--template", TEMPLATE):
        pass


@pytest.fixture(scope="session")
def cluster(once: Once) -> Path:
    """The folder of a stopped server that has the template; never used, only copied. Saves everyone
    an initdb."""
    return once(CLUSTER, make_cluster)


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[Urls]:
    """In a process of its own: its event loop must outlive every test's."""
    process = Fork(
        "tests.server_process", str(folder), *options, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert "url" in lines[1], lines
        yield Urls(Secret(lines[1]["owner_url"]), Secret(lines[1]["url"]))
    assert process.wait(STOP_LIMIT_SECONDS) == 0


@pytest.fixture(scope="session")
def postgres(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    """The session's server."""
    folder = copy_folder(cluster, tmp_path_factory.mktemp("postgres") / "data")
    with server(folder) as urls:
        yield urls
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def databases(postgres: Urls) -> Iterator[Databases]:
    """Gives both logins' URLs of a fresh, migrated database, as often as it is entered."""
    # Leaves a file that spares every copy 3 ms.
    psycopg.connect(postgres.of(TEMPLATE).owner.reveal()).close()
    with psycopg.connect(postgres.owner.reveal(), autocommit=True) as server:

        @contextlib.contextmanager
        def made() -> Iterator[Urls]:
            name = f"t_{uuid.uuid4().hex}"
            server.execute(
                f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy".encode()
            )
            yield postgres.of(name)
            server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

        yield made


@pytest.fixture(scope="session")
async def kept_database(databases: Databases) -> AsyncIterator[KeptDatabase]:
    kept = KeptDatabase(databases)
    yield kept
    await kept.close()


@pytest.fixture
async def urls(kept_database: KeptDatabase) -> AsyncIterator[Urls]:
    """Of a database that is empty, and nobody else's while the test runs."""
    yield await kept_database.take()
    await kept_database.give_back()


@pytest.fixture
def new_urls(databases: Databases) -> Iterator[Urls]:
    """Of a database that was never used, for a test of how a database is read or left; where a
    whole file needs it, its
    `urls` are these."""
    with databases() as made:
        yield made


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
    async with open_pools(database_url, 5, metrics) as database:
        yield database
