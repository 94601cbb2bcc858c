"""The embedded server: starts, ends with us, comes back, is shared."""

import asyncio
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.open_folder import open_folder
from tests.server_process import LOGIN
from tests.storage.conftest import Start, all_gone, kill_postgres, postmaster, query
from tests.waiting import eventually, eventually_async
from trading_intents.storage.embedded import server
from trading_intents.storage.embedded.server import running
from trading_intents.telemetry import make_log

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, to stop being it: sudo -E make test"
)
AS_NOBODY = (
    "setpriv",
    "--reuid=nobody",
    "--regid=nogroup",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
)
LOGINS_SECONDS = 0.08  # for which a server that has started is asked for its logins
RETURN_LIMIT_SECONDS = 30
ORPHAN_SECONDS = 2  # docs/operating/install.md says so
GONE_LIMIT_SECONDS = 20  # a backend in the middle of a query would go on for longer
INITDB_LIMIT_SECONDS = 20  # until it has begun
WITHOUT_NAMESPACES = (sys.executable, str(Path(__file__).with_name("without_namespaces.py")))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_rows_survive_a_clean_stop(data_dir: Path, start: Start, loop: str) -> None:
    first = start(data_dir, "--loop", loop)
    await query(first.until("url")["owner_url"], "CREATE TABLE t AS SELECT 42 AS n")
    assert first.stop() == 0
    assert all_gone(data_dir)
    second = start(data_dir, "--loop", loop)
    assert await query(second.until("url")["owner_url"], "SELECT n FROM t") == 42
    assert second.stop() == 0


async def test_it_is_private_durable_and_on_a_socket_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    starts: list[int] = []
    async with running(folder, "", make_log("warning"), lambda: starts.append(1)) as server:
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {modes[name] for name in modes if name.endswith((".password", ".log", ".lock"))} == {
            0o600
        }
        assert modes["run"] == 0o700
        assert (folder / "postgres" / "pg_hba.conf").read_text() == "local all all scram-sha-256\n"
        settings = (
            "listen_addresses",
            "fsync",
            "synchronous_commit",
            "data_checksums",
            "password_encryption",
        )
        found = [await query(server.owner_url.reveal(), f"SHOW {name}") for name in settings]
        assert found == ["", "on", "on", "on", "scram-sha-256"]
        assert (
            await query(server.url.reveal(), "SELECT rolsuper FROM pg_roles WHERE rolname = user")
            is False
        )
        with pytest.raises(asyncpg.InvalidPasswordError):
            await query(server.url.reveal().replace(":", ":x", 2), "SELECT 1")
    assert starts == [1]


@needs_root
async def test_root_can_run_it_below_a_closed_folder(data_dir: Path, start: Start) -> None:
    data_dir.parent.chmod(0o700)
    assert await query(start(data_dir).until("url")["url"], "SELECT 1") == 1
    assert (data_dir / "postgres").stat().st_uid == 0
    assert stat.S_IMODE(data_dir.parent.stat().st_mode) == 0o700


@needs_root
async def test_root_can_run_it_where_namespaces_are_forbidden(tmp_path: Path, start: Start) -> None:
    if subprocess.run([*WITHOUT_NAMESPACES, "true"], check=False).returncode != 0:
        pytest.skip(
            "cannot forbid user namespaces here: allow root to make one (docker run "
            "--privileged, or a real machine)"
        )
    tmp_path.chmod(0o700)
    process = start(tmp_path / "data", python=(*WITHOUT_NAMESPACES, sys.executable))
    assert await query(process.until("url")["url"], "SELECT 1") == 1
    assert (tmp_path / "data" / "postgres").stat().st_uid != 0
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    process.kill()
    eventually(lambda: all_gone(tmp_path / "data"), GONE_LIMIT_SECONDS)
    # And back where namespaces are allowed, with the same files.
    assert await query(start(tmp_path / "data").until("url")["url"], "SELECT 1") == 1


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    with open_folder() as folder:
        shutil.chown(folder, "nobody", "nogroup")
        yield folder


def nobodys_python() -> list[str]:
    """This Python as user nobody, or the system's with our packages when ours is in a closed
    folder."""
    for python in (sys.executable, "/usr/bin/python3"):
        packages = f"PYTHONPATH={':'.join(path for path in sys.path if path)}"
        command = [*AS_NOBODY, "env", packages, python]
        probe = (
            "import asyncpg, uvloop, subprocess, sys; subprocess.run([sys.executable, '-c', ''], "
            "check=True)"
        )
        if (
            subprocess.run(
                [*command, "-c", probe], check=False, stderr=subprocess.DEVNULL
            ).returncode
            == 0
        ):
            return command
    pytest.skip(
        "user nobody can reach no Python with our packages: put the checkout where others may "
        "read it"
    )


@needs_root
async def test_an_ordinary_user_can_run_it(nobodys_folder: Path, start: Start) -> None:
    process = start(nobodys_folder / "data", python=nobodys_python())
    assert await query(process.until("url")["url"], "SELECT 1") == 1
    process.kill()
    eventually(lambda: all_gone(nobodys_folder / "data"), GONE_LIMIT_SECONDS)


@pytest.mark.parametrize("name", ["d" * 120, "a, b&c:%20é"])
async def test_a_long_or_odd_path_gets_a_short_plain_socket(
    data_dir: Path, start: Start, name: str
) -> None:
    moved = data_dir.rename(data_dir.parent / name)
    process = start(moved)
    url = process.until("url")["url"]
    assert await query(url, "SELECT 1") == 1
    folder = Path(url.split("host=")[1])
    assert folder.parent == Path("/tmp")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert process.stop() == 0
    folder.rmdir()


@pytest.mark.deadline
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_killed_owner_leaves_no_process(data_dir: Path, start: Start, loop: str) -> None:
    process = start(data_dir, "--loop", loop)
    async with busy(process.until("url")["owner_url"]):
        process.kill()
        eventually(lambda: all_gone(data_dir), ORPHAN_SECONDS)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_killed_postgres_is_back_with_all_rows(
    data_dir: Path, start: Start, loop: str
) -> None:
    process = start(data_dir, "--loop", loop)
    url = process.until("url")["owner_url"]
    await query(url, "CREATE TABLE t AS SELECT 42 AS n")
    async with busy(url):
        kill_postgres(data_dir)
        process.until("started")
        assert await query(url, "SELECT n FROM t") == 42


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_postgres_killed_at_any_moment_of_its_start_is_back(
    data_dir: Path, start: Start, loop: str, kills: int
) -> None:
    process = start(data_dir, "--loop", loop)
    url = process.until("url")["owner_url"]
    log = data_dir / "postgres.log"
    moments = random.Random(1)

    async def is_ready_again() -> bool:
        return log.read_text().count("ready to accept connections") > starts

    for _ in range(kills):
        starts = log.read_text().count("ready to accept connections")
        kill_postgres(data_dir)
        await eventually_async(is_ready_again, RETURN_LIMIT_SECONDS)
        await asyncio.sleep(moments.uniform(0, LOGINS_SECONDS))
    assert await query(url, "SELECT 1") == 1


@pytest.mark.parametrize("holder", ["another program", "another PostgreSQL", "a zombie"])
async def test_a_stale_pid_does_not_stop_it(
    tmp_path: Path, data_dir: Path, start: Start, holder: str
) -> None:
    """The zombie: its parent does not collect it, so that its pid still answers."""
    program = tmp_path / ("sleep" if holder == "another program" else "postgres")
    shutil.copy("/usr/bin/sleep", program)
    process = subprocess.Popen([program, "0" if holder == "a zombie" else "600"])
    try:
        if holder == "a zombie":
            eventually(lambda: is_zombie(process.pid), ORPHAN_SECONDS)
        pid_file = data_dir / "postgres" / "postmaster.pid"
        pid_file.write_text(f"{process.pid}\n{data_dir / 'postgres'}\n")
        assert await query(start(data_dir).until("url")["url"], "SELECT 1") == 1
    finally:
        process.kill()
        process.wait()


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_second_process_joins_and_takes_over(
    data_dir: Path, start: Start, end: str
) -> None:
    owner = start(data_dir)
    url = owner.until("url")["owner_url"]
    await query(url, "CREATE TABLE t AS SELECT 42 AS n")
    joined = start(data_dir, "--loop", "uvloop")
    # It started nothing.
    assert joined.line() == {"owner_url": url, "url": url.replace(*_login(data_dir))}
    first = postmaster(data_dir)
    getattr(owner, end)()
    joined.until("started")
    assert postmaster(data_dir) != first
    assert await query(url, "SELECT n FROM t") == 42
    assert joined.stop() == 0
    assert all_gone(data_dir)


def _login(data_dir: Path) -> tuple[str, str]:
    passwords = {
        name: (data_dir / f"{name}.password").read_text()
        for name in ("postgres", "trading_intents")
    }
    return f"//postgres:{passwords['postgres']}", f"//{LOGIN}:{passwords['trading_intents']}"


async def test_two_can_start_at_once_on_an_empty_folder(tmp_path: Path, start: Start) -> None:
    both = [start(tmp_path / "data", "--loop", loop) for loop in ("asyncio", "uvloop")]
    urls = [process.until("url")["url"] for process in both]
    assert [await query(url, "SELECT 1") for url in urls] == [1, 1]


async def test_cancelling_a_start_leaves_no_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path / "data", "", make_log("warning")):
            raise AssertionError("cancelled before")

    task = asyncio.create_task(run())
    await eventually_async(
        lambda: asyncio.sleep(0, initdb_is_at_work(tmp_path / "data")), INITDB_LIMIT_SECONDS
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all_gone(tmp_path / "data")


def initdb_is_at_work(data_dir: Path) -> bool:
    return any(data_dir.glob("postgres.new-*/PG_VERSION"))


async def test_an_initdb_that_was_killed_is_begun_again(tmp_path: Path, start: Start) -> None:
    killed = start(tmp_path / "data")
    eventually(lambda: initdb_is_at_work(tmp_path / "data"), INITDB_LIMIT_SECONDS)
    killed.kill()
    assert await query(start(tmp_path / "data").until("url")["url"], "SELECT 1") == 1
    assert not initdb_is_at_work(tmp_path / "data")


async def test_vanished_data_are_not_replaced_by_an_empty_database(
    data_dir: Path, start: Start
) -> None:
    process = start(data_dir)
    process.until("url")
    (data_dir / "postgres").rename(data_dir / "elsewhere")
    os.kill(
        int((data_dir / "elsewhere" / "postmaster.pid").read_text().split("\n", 1)[0]),
        signal.SIGKILL,
    )
    assert "PostgreSQL not started" in process.complaint("PostgreSQL not started")
    assert not (data_dir / "postgres").exists()
    (data_dir / "elsewhere").rename(data_dir / "postgres")
    process.until("started")


class busy:  # noqa: N801 - reads as a clause
    """A backend deep in a query, which does not notice that its postmaster is gone."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        self._connection = await asyncpg.connect(self._url)
        loop = """DO $$ BEGIN PERFORM count(*) FROM generate_series(1, 1000000000) AS a (n)
            WHERE a.n % 7 = 9; END $$
        """
        self._query = asyncio.create_task(self._connection.execute(loop))
        running = (
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
        )
        await eventually_async(lambda: query(self._url, running), RETURN_LIMIT_SECONDS)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait([self._query])
        assert isinstance(self._query.exception(), asyncpg.PostgresError)
        self._connection.terminate()


async def test_a_cancellation_counts_though_the_program_ends_in_the_same_moment() -> None:
    """Else PostgreSQL would be started again, and the process that stops would wait for its end for
    ever."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class EndingProcess:
        returncode = None

        def send_signal(self, number: int) -> None: ...

        async def wait(self) -> int:
            return await ended

    ending: Any = EndingProcess()
    stopping = asyncio.create_task(server.stop_process(ending))
    for _ in range(3):  # until it waits
        await asyncio.sleep(0)
    ended.set_result(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()


async def test_a_program_that_ignores_a_signal_gets_the_next_one_also_from_a_cancelled_task() -> (
    None
):
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "trap '' INT; echo ready; exec sleep 60", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop_process(
                process, ((signal.SIGINT, 0.01), (signal.SIGKILL, RETURN_LIMIT_SECONDS))
            )

    running = asyncio.create_task(run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert process.returncode == -signal.SIGKILL
