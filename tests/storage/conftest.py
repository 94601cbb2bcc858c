"""Embedded servers in processes of their own, which a test may kill."""

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import asyncpg
import pytest

from tests.conftest import Urls, copy_folder
from tests.fork_server import Fork
from tests.waiting import eventually

PROGRAM = "tests.server_process"
STOP_LIMIT_SECONDS = 20
DEATH_LIMIT_SECONDS = 20


class ServerProcess:
    """A process that runs or has joined the embedded server of a folder."""

    def __init__(self, data_dir: Path, *options: str, python: Sequence[str] = ()) -> None:
        """Forked, or run by the Python that is named."""
        pipe = subprocess.PIPE
        self._process: Fork | subprocess.Popen[str]
        if python:
            command = [*python, "-m", PROGRAM, str(data_dir), *options]
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
        else:
            self._process = Fork(
                PROGRAM, str(data_dir), *options, stdin=pipe, stdout=pipe, stderr=pipe
            )

    def line(self) -> dict[str, Any]:
        """The next thing it says; waits for it."""
        text = _pipe(self._process.stdout).readline()
        assert text, _pipe(self._process.stderr).read()
        said: dict[str, Any] = json.loads(text)
        return said

    def until(self, key: str) -> dict[str, Any]:
        said = self.line()
        while key not in said:
            said = self.line()
        return said

    def complaint(self, event: str) -> str:
        """The next line of its log with this event; waits for it."""
        text = _pipe(self._process.stderr).readline()
        while text and event not in text:
            text = _pipe(self._process.stderr).readline()
        return text

    def stop(self) -> int:
        _pipe(self._process.stdin).close()
        return self._process.wait(STOP_LIMIT_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEATH_LIMIT_SECONDS)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            _pipe(pipe).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])


def kill_postgres(data_dir: Path) -> None:
    os.kill(postmaster(data_dir), signal.SIGKILL)


def all_gone(data_dir: Path) -> bool:
    """Every process of PostgreSQL holds this lock, so whoever gets it knows that none is left."""
    file = data_dir / "postgres.alive"
    if not file.exists():
        return True
    with file.open() as alive:
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


async def query(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url, timeout=20)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


@pytest.fixture
def urls(new_urls: Urls) -> Urls:
    """These tests are about connections, and change databases and roles."""
    return new_urls


Start = Callable[..., ServerProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts server processes; what still runs after the test is killed."""
    started: dict[ServerProcess, Path] = {}

    def start(data_dir: Path, *options: str, python: Sequence[str] = ()) -> ServerProcess:
        process = ServerProcess(data_dir, *options, python=python)
        started[process] = data_dir
        return process

    yield start
    for process in started:
        process.close()
    for data_dir in started.values():
        eventually(functools.partial(all_gone, data_dir), DEATH_LIMIT_SECONDS)


@pytest.fixture
def data_dir(cluster: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder of a server that was started before: saves each test an initdb. Name it before
    `start`."""
    yield copy_folder(cluster, tmp_path / "data")
    shutil.rmtree(tmp_path, ignore_errors=True)
