"""A PostgreSQL server of a test's own, whose commits wait for a standby that is not there."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.report import note
from tests.conftest import Urls
from tests.intents.http_client import Tables
from tests.seeds import seeded
from tests.storage.conftest import ServerProcess
from trading_intents.secret import Secret

FAULT_SECONDS = 20.0
STALL_SECONDS = (0.5, 3.0)
PAUSE_SECONDS = (0.02, 0.5)


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[Urls]:
    server = ServerProcess(folder)
    try:
        said = server.until("url")
        yield Urls(owner=Secret(said["owner_url"]), login=Secret(said["url"]))
        assert server.stop() == 0
    finally:
        server.close()


def let_commits_wait(urls: Urls) -> None:
    """For a while, again and again, in all databases of the server."""
    chance = seeded("stalls")
    until = time.monotonic() + FAULT_SECONDS
    pause = threading.Event()
    with contextlib.closing(Tables(urls.owner)) as tables:
        while time.monotonic() < until:
            note("commits wait")
            _name_standby(tables, "nobody")
            pause.wait(chance.uniform(*STALL_SECONDS))
            _name_standby(tables, "")
            pause.wait(chance.uniform(*PAUSE_SECONDS))


def _name_standby(tables: Tables, name: str) -> None:
    tables.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    tables.execute("SELECT pg_reload_conf()")
