"""Replaces the embedded database by a backup. Its data are put together in a folder of their own,
and become DATA_DIR's once nothing of them is sent again: no role meets them before."""

import shutil
import time
from pathlib import Path

from trading_intents.clock import Clock
from trading_intents.config import Settings
from trading_intents.errors import StartupRefused
from trading_intents.execution.restored.restoring import restore_commands
from trading_intents.recovery.backups import (
    FILES,
    KEPT_FILES,
    Backup,
    ShowProgress,
    find_chain,
    verify_chain,
)
from trading_intents.secret import make_file, sync_folder
from trading_intents.storage.database import WORKER_ROLE, open_pool
from trading_intents.storage.embedded.cluster import ALIVE, DATA, LOCK, RESTORING, find_binaries
from trading_intents.storage.embedded.programs import combine_base_backups
from trading_intents.storage.embedded.server import holding_lock, lock_holder, running
from trading_intents.storage.migrate import migrate
from trading_intents.telemetry import BACKUP_STAMP, Log, Metrics
from trading_intents.trading import FrozenStruct

ASIDE = "before-restore-"
REMOVE_SECONDS = 10.0
# Files that may be in a DATA_DIR that counts as empty.
UNIMPORTANT = frozenset({LOCK, ALIVE, RESTORING, "run"})


class Restored(FrozenStruct):
    backup: Backup
    commands: int  # CREATEs and REPLACEs that waited to be sent, and are looked up instead
    aside: Path | None  # the folder with the earlier data


async def restore_backup(
    settings: Settings,
    clock: Clock,
    log: Log,
    source: Path,
    replace: bool,
    halts: bool,
    who: str,
    show: ShowProgress,
) -> Restored:
    """`replace` moves the present data into a folder in DATA_DIR; `halts` halts every
    organization."""
    home = settings.data_dir.absolute()
    binaries = find_binaries(settings.postgres_bin)
    chain = find_chain(source)
    if pid := lock_holder(home):
        raise StartupRefused(f"the platform runs in {home}, pid {pid}: end it first")
    _refuse_occupied(home, replace)
    await verify_chain(binaries, chain, show)
    with holding_lock(home):
        _refuse_occupied(home, replace)
        staging = home / RESTORING
        _remove(staging)
        staging.mkdir(mode=0o700)
        show("putting the data together", 0, 0)
        await combine_base_backups(
            binaries, [backup.folder / DATA for backup in chain], staging / DATA
        )
        for name in chain[-1].description.files:
            make_file(staging / name, (chain[-1].folder / FILES / name).read_bytes())
        show("marking what must not be sent again", 0, 0)
        commands = await _restore_commands(
            settings=settings,
            log=log,
            staging=staging,
            who=who,
            reason=f"restored {chain[-1].folder.name}",
            halts=halts,
        )
        aside = _move_aside(home, home / f"{ASIDE}{clock.now():%Y%m%dT%H%M%S.%fZ}")
        # The data last.
        for name in (*KEPT_FILES, DATA):
            if (staging / name).exists():
                (staging / name).rename(home / name)
        sync_folder(home)
        shutil.rmtree(staging)
    return Restored(chain[-1], commands, aside)


def _refuse_occupied(home: Path, replace: bool) -> None:
    there = set[str]()
    if home.exists():
        there = {path.name for path in home.iterdir()} - UNIMPORTANT
    if there and not replace:
        raise StartupRefused(
            f"{home} is not empty: --replace keeps what is there aside and goes on"
        )


def _remove(folder: Path) -> None:
    """A program of a restore that was killed may write there for a moment longer."""
    until_seconds = time.monotonic() + REMOVE_SECONDS
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > until_seconds:
            raise StartupRefused(
                f"{folder}, of a restore that did not end, cannot be removed: remove it first"
            )


async def _restore_commands(
    settings: Settings, log: Log, staging: Path, who: str, reason: str, halts: bool
) -> int:
    async with running(staging, settings.postgres_bin, log) as server:
        await migrate(server.owner_url, server.url, log, worker_url=server.worker_url)
        async with open_pool(server.worker_url, WORKER_ROLE, 1, Metrics()) as pool:
            return await restore_commands(pool, who, reason, halts=halts)


def _move_aside(home: Path, aside: Path) -> Path | None:
    """Moves the data first: without them, and with an unfinished restore, no server starts."""
    ours = (DATA, *KEPT_FILES, BACKUP_STAMP, "postgres.log", "postgres.log.1")
    there = [name for name in ours if (home / name).exists()]
    if not there:
        return None
    aside.mkdir(mode=0o700)
    for name in there:
        (home / name).rename(aside / name)
    sync_folder(home)
    return aside
