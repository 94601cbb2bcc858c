"""Servers and workers that come back whenever they die."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.commits import own_server
from tests.conftest import Urls, copy_folder
from tests.execution.worker_processes import Mortals, WorkerProcesses
from tests.intents.http_client import Body
from tests.seeds import seeded
from tests.storage.conftest import postmaster
from tests.waiting import eventually

RETURN_SECONDS = 60.0
NOT_STARTED = "the platform did not start"
DATABASE_PAUSES_SECONDS = (2.0, 5.0)


@pytest.fixture
def server(cluster: Path, tmp_path: Path) -> Iterator[tuple[Path, Urls]]:
    """PostgreSQL, whose keeper starts it again whenever it dies."""
    folder = copy_folder(cluster, tmp_path / "server")
    with own_server(folder) as urls:
        yield folder, urls


class Restarted(Mortals):
    """Workers that are started again also when they find no database."""

    def _run_session(self, number: int) -> None:
        while not self.released.is_set():
            try:
                super()._run_session(number)
            except AssertionError as error:
                if NOT_STARTED not in str(error):
                    raise


def api_settings(processes: WorkerProcesses) -> dict[str, str]:
    return processes.settings | {"ROLES": "api"}


def until_answered(
    processes: WorkerProcesses, method: str, path: str, body: Body | None = None
) -> Any:
    """Repeated while the database is away."""
    answer: Any = None

    def is_answered() -> bool:
        nonlocal answer
        answer = processes.api.client.request(
            method, path, json=body, headers=processes.headers, timeout=20
        )
        return bool(answer.status_code != 503)

    try:
        eventually(is_answered, RETURN_SECONDS)
    except AssertionError:
        raise AssertionError(
            f"{method} {path} not within {RETURN_SECONDS} s: {answer.text}"
        ) from None
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


def kill_postgres(folder: Path, kills: int) -> None:
    chance = seeded("database")
    for _ in range(kills):
        time.sleep(chance.uniform(*DATABASE_PAUSES_SECONDS))
        pid = postmaster(folder)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: is_replaced(folder, pid), RETURN_SECONDS)  # type: ignore[misc]  # bound now


def is_replaced(folder: Path, pid: int) -> bool:
    try:
        return postmaster(folder) != pid
    except (OSError, ValueError):  # the file is away, or half written
        return False
