"""Keeps one embedded PostgreSQL running for every process on a DATA_DIR. Must be used from the main
thread."""

import asyncio
import contextlib
import fcntl
import os
import signal
import threading
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO, Any

import asyncpg

from trading_intents.errors import StartupRefused
from trading_intents.loops import report_failure, stop_tasks
from trading_intents.storage.connections import CONNECTION_ERRORS, DatabaseUrls
from trading_intents.storage.embedded.cluster import (
    ALIVE,
    DATABASE,
    LOCK,
    LOGIN,
    OWNER,
    RESTORING,
    WORKER_LOGIN,
    Cluster,
    check_cluster,
    open_cluster,
    program_environment,
)
from trading_intents.telemetry import Log

POLL_SECONDS = 0.02
TAKEOVER_POLL_SECONDS = 0.1
CONNECT_LIMIT_SECONDS = 2.0
INITDB_LIMIT_SECONDS = 120.0
START_LIMIT_SECONDS = 300.0  # long, because a crash recovery that is cut short has to begin again
RESTART_PAUSE_SECONDS = 0.02
RESTART_PAUSE_LIMIT_SECONDS = 2.0
STOP_STEPS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 6.0), (signal.SIGKILL, 2.0))


@contextlib.asynccontextmanager
async def running(
    data_dir: Path,
    postgres_bin: str,
    log: Log,
    on_start: Callable[[], None] = lambda: None,
    may_create: bool = True,
    may_start: bool = True,
) -> AsyncIterator[DatabaseUrls]:
    """Runs the server of this DATA_DIR, or joins the process that runs it and takes over when that
    process ends, if it may start a server."""
    if not may_create:
        check_cluster(data_dir)
    # The kernel ties PostgreSQL's life to the thread that starts it.
    assert threading.current_thread() is threading.main_thread()
    cluster = open_cluster(data_dir, postgres_bin)
    supervisor = _Supervisor(cluster, log, on_start)
    keeping: asyncio.Task[Any] = asyncio.create_task(
        supervisor.keep() if may_start else asyncio.Event().wait()
    )
    ready = asyncio.create_task(supervisor.until_ready())
    try:
        await asyncio.wait([keeping, ready], return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        await ready
        keeping.add_done_callback(report_failure)
        yield DatabaseUrls(
            owner_url=cluster.url(OWNER, DATABASE),
            url=cluster.url(LOGIN, DATABASE),
            worker_url=cluster.url(WORKER_LOGIN, DATABASE),
        )
    finally:
        await stop_tasks(keeping, ready)


class _Supervisor:
    def __init__(self, cluster: Cluster, log: Log, on_start: Callable[[], None]) -> None:
        self._cluster = cluster
        self._log = log
        self._on_start = on_start
        self._owner = False
        self._ready = asyncio.Event()

    async def until_ready(self) -> None:
        """Returns when the logins can connect, whoever runs the server."""
        try:
            async with asyncio.timeout(START_LIMIT_SECONDS):
                while not self._ready.is_set():
                    # Made after the other login.
                    if not self._owner and await self._accepts(WORKER_LOGIN, DATABASE):
                        self._ready.set()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise self._refusal("PostgreSQL does not accept connections") from None

    async def keep(self) -> None:
        """Waits until no other process runs the server, then keeps it running until cancelled."""
        with (self._cluster.home / LOCK).open("r+b", buffering=0) as lock:
            while not _locked(lock.fileno()):  # noqa: ASYNC110 - the kernel signals to nobody
                await asyncio.sleep(TAKEOVER_POLL_SECONDS)
            with contextlib.suppress(OSError):  # a full disk: the pid is for people
                _write_pid(lock)
            self._owner = True
            pause = RESTART_PAUSE_SECONDS
            while True:
                began = await self._attempt()
                pause = (
                    RESTART_PAUSE_SECONDS if began else min(2 * pause, RESTART_PAUSE_LIMIT_SECONDS)
                )
                await asyncio.sleep(pause)

    async def _attempt(self) -> bool:
        """Runs PostgreSQL once; whether it started. Only before the first start is a failure
        raised."""
        try:
            await self._run()
        except Exception as error:  # any at all: nobody else would start PostgreSQL again
            if self._ready.is_set():
                self._log.error("PostgreSQL not started", reason=str(error))
                return False
            if isinstance(error, StartupRefused):
                raise
            raise self._refusal(f"PostgreSQL does not start ({error})") from error
        return True

    async def _run(self) -> None:
        if not self._ready.is_set() and not self._cluster.data.exists():
            # Only at the start: if data vanish later, no empty cluster replaces them.
            await self._create()
        self._cluster.make_passwords()
        self._cluster.check_version()
        _end_leftovers(self._cluster.name)
        process = await self._spawn(self._cluster.postgres_command())
        try:
            await self._until_accepting(process)
            await self._make_logins()
            self._on_start()
            self._ready.set()
            self._log.info("PostgreSQL started", pid=process.pid)
            status = await process.wait()
            self._log.error("PostgreSQL ended", pid=process.pid, status=status)
        finally:
            await stop_process(process)

    async def _create(self) -> None:
        self._cluster.make_passwords()
        if (self._cluster.home / RESTORING).exists():
            raise StartupRefused(
                f"a restore into {self._cluster.home} did not end: run `trading-intents "
                "restore` again, with --replace"
            )
        folder = self._cluster.new_folder()
        process = await self._spawn(self._cluster.initdb_command(folder))
        try:
            async with asyncio.timeout(INITDB_LIMIT_SECONDS):
                status = await process.wait()
        except TimeoutError:
            raise self._refusal("initdb takes too long") from None
        finally:
            await stop_process(process)
        if status != 0:
            raise self._refusal("initdb failed")
        self._cluster.adopt(folder)

    async def _spawn(self, command: list[str]) -> Process:
        self._cluster.rotate_log()
        with self._cluster.log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=out, stderr=STDOUT, env=program_environment()
            )

    async def _until_accepting(self, process: Process) -> None:
        try:
            async with asyncio.timeout(START_LIMIT_SECONDS):
                while not await self._accepts(OWNER, "postgres"):
                    if process.returncode is not None:
                        raise self._refusal("PostgreSQL did not start")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise self._refusal("PostgreSQL does not accept connections") from None

    async def _accepts(self, login: str, database: str) -> bool:
        try:
            url = self._cluster.url(login, database).reveal()
            connection = await asyncpg.connect(url, timeout=CONNECT_LIMIT_SECONDS)
        except CONNECTION_ERRORS:
            return False
        connection.terminate()
        return True

    async def _make_logins(self) -> None:
        """Makes the logins at every start: a crash may have come between initdb and this."""
        owner = await asyncpg.connect(
            self._cluster.url(OWNER, "postgres").reveal(), timeout=CONNECT_LIMIT_SECONDS
        )
        try:
            for login in (LOGIN, WORKER_LOGIN):
                if not await owner.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", login):
                    password = self._cluster.password_file(login).read_text().strip()
                    await owner.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{password}'")
            if not await owner.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await owner.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await owner.close(timeout=CONNECT_LIMIT_SECONDS)

    def _refusal(self, what: str) -> StartupRefused:
        return StartupRefused(
            f"{what}; the end of {self._cluster.log}:\n{self._cluster.log_tail()}"
        )


def lock_holder(data_dir: Path) -> str | None:
    """The pid of the process that runs the server of this DATA_DIR; None if there is none."""
    try:
        with (data_dir / LOCK).open("rb") as lock:
            return (
                None if _locked(lock.fileno(), fcntl.LOCK_SH) else lock.read().decode() or "unknown"
            )
    except OSError:
        return None


@contextlib.contextmanager
def holding_lock(data_dir: Path) -> Iterator[None]:
    """Keeps other processes from starting a server on this DATA_DIR. StartupRefused while one runs
    or PostgreSQL still ends."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (LOCK, ALIVE):
        (data_dir / name).touch(mode=0o600)
    with (data_dir / LOCK).open("r+b", buffering=0) as lock, (data_dir / ALIVE).open("ab") as alive:
        if not _locked(lock.fileno()):
            raise StartupRefused(
                f"the platform runs in {data_dir}, pid {lock_holder(data_dir)}: end it first"
            )
        if not _locked(alive.fileno()):
            raise StartupRefused(f"PostgreSQL still ends in {data_dir}: try again in a moment")
        _write_pid(lock)
        yield


def _write_pid(lock: IO[bytes]) -> None:
    lock.truncate(0)
    lock.write(str(os.getpid()).encode())


def _locked(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_leftovers(cluster_name: str) -> None:
    """Kills children of a killed postmaster: in a long query they notice its death late and delay
    the next start, and the postmaster, which kills those that hang in their own end, is gone."""
    title = f"postgres: {cluster_name}: ".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            if (folder / "cmdline").read_bytes().startswith(title):
                os.kill(pid, signal.SIGKILL)


async def stop_process(
    process: Process, steps: tuple[tuple[signal.Signals, float], ...] = STOP_STEPS
) -> None:
    ended = asyncio.ensure_future(process.wait())
    try:
        for step, limit in steps:
            if process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(step)
            # Not by wait_for, which can lose a cancellation, nor by timeout, which never expires in
            # a cancelled task.
            await asyncio.wait([ended], timeout=limit)
    finally:
        ended.cancel()
