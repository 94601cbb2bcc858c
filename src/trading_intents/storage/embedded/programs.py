"""Runs PostgreSQL's own programs for base backups: makes one, verifies one, combines increments.
Starts no server."""

import asyncio
import os
import re
import shutil
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from trading_intents.errors import StartupRefused
from trading_intents.storage.embedded.cluster import OWNER, PORT, Cluster, program_environment

PROGRESS = re.compile(rb"(\d+)/(\d+) kB")
MAX_OUTPUT_LINES = 5
COMBINE = "pg_combinebackup"  # from version 17 on

OnProgress = Callable[[int, int], None]  # kilobytes done, of how many


async def make_base_backup(
    cluster: Cluster, folder: Path, manifest: Path | None, on_progress: OnProgress
) -> None:
    """Backs the running server up into a new folder; with the manifest of an earlier backup only
    what changed since."""
    arguments = [
        f"--host={cluster.sockets}",
        f"--port={PORT}",
        f"--username={OWNER}",
        "--no-password",
        f"--pgdata={folder}",
        "--checkpoint=fast",
        "--progress",
    ]
    if manifest:
        arguments.append(f"--incremental={manifest}")
    await _run(
        cluster.binaries,
        "pg_basebackup",
        arguments,
        password=cluster.password_file(OWNER).read_text().strip(),
        on_progress=on_progress,
    )


async def verify_base_backup(binaries: Path, folder: Path, on_progress: OnProgress) -> None:
    """Checks every file against the manifest, and that the write-ahead log is there and can be
    read."""
    # Versions before 17 may not have the option.
    shown = ["--progress"] if (binaries / COMBINE).exists() else []
    await _run(binaries, "pg_verifybackup", [*shown, str(folder)], on_progress=on_progress)


async def combine_base_backups(binaries: Path, folders: Sequence[Path], into: Path) -> None:
    """Combines a full backup and its increments, the oldest first, into a folder that a server can
    be started on."""
    if len(folders) == 1:
        await asyncio.to_thread(shutil.copytree, folders[0], into)
        return
    arguments = [f"--output={into}", *map(str, folders)]
    await _run(binaries, COMBINE, arguments, on_progress=lambda *_: None)


async def _run(
    binaries: Path,
    program: str,
    arguments: Sequence[str],
    on_progress: OnProgress,
    password: str | None = None,
) -> None:
    if not os.access(binaries / program, os.X_OK):
        raise StartupRefused(
            f"{binaries} holds no {program}, which backups need: set TRADING_INTENTS_POSTGRES_BIN"
        )
    secret = {"PGPASSWORD": password} if password else {}
    process = await asyncio.create_subprocess_exec(
        str(binaries / program),
        *arguments,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env=program_environment() | secret,
    )
    assert process.stdout is not None
    output = deque[str](maxlen=MAX_OUTPUT_LINES)
    try:
        async for line in process.stdout:
            if found := PROGRESS.search(line):
                on_progress(int(found[1]), int(found[2]))
            else:
                output.append(line.decode(errors="replace").strip())
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0:
        raise StartupRefused(f"{program} failed: {' '.join(output)}")
