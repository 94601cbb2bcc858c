"""A server of the oldest PostgreSQL that we promise, as Debian has it, run by another user as
somebody else's would be."""

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.open_folder import open_folder
from tests.waiting import eventually

BINARIES = Path("/usr/lib/postgresql/15/bin")


@contextlib.contextmanager
def postgres_15() -> Iterator[str]:
    """A superuser's URL. Skips the test where the server is not installed."""
    if not BINARIES.exists():
        pytest.skip("needs PostgreSQL 15: apt-get install postgresql-15")
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    with open_folder() as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        initdb = [
            f"{BINARIES}/initdb",
            "-D",
            f"{folder}/data",
            "-U",
            "postgres",
            "--auth=trust",
            "--no-sync",
        ]
        subprocess.run(
            initdb,
            check=True,
            user=user.pw_uid,
            group=user.pw_gid,
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        command = [f"{BINARIES}/postgres", "-D", f"{folder}/data", "-k", str(folder), "-h", ""]
        command += ["-c", "shared_preload_libraries=pg_stat_statements"]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(
                command, user=user.pw_uid, group=user.pw_gid, cwd=folder, stderr=log
            ) as server,
        ):
            eventually(lambda: "ready to accept" in (folder / "log").read_text(), 60)
            try:
                yield f"postgresql://postgres@/postgres?host={folder}"
                assert _compiled_statements(folder) == []
            finally:
                server.terminate()


def _compiled_statements(folder: Path) -> list[str]:
    """Those for which the server's JIT ran, which takes up to a second each time."""
    with psycopg.connect(host=str(folder), user="postgres", autocommit=True) as server:
        server.execute("CREATE EXTENSION pg_stat_statements")
        compiled = "SELECT query FROM pg_stat_statements WHERE jit_functions > 0"
        return [query for (query,) in server.execute(compiled)]
