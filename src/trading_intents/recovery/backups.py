"""A folder of backups, each a base backup of the embedded PostgreSQL or an increment, with the
files of DATA_DIR that belong to it. Never changes a backup that is complete."""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import msgspec

from trading_intents.accounts.vault import KEY_FILE as VAULT_KEY_FILE
from trading_intents.app import database_urls
from trading_intents.clock import Clock
from trading_intents.config import PREFIX, Settings
from trading_intents.console.demo import DEMO_FILE
from trading_intents.errors import StartupRefused
from trading_intents.identity.provider import ISSUER_FILE
from trading_intents.identity.provider import KEY_FILE as SIGNING_KEY_FILE
from trading_intents.secret import sync_folder, written_beside
from trading_intents.storage import administration
from trading_intents.storage.embedded.cluster import (
    DATA,
    LOGIN,
    OWNER,
    WORKER_LOGIN,
    Cluster,
    open_cluster,
)
from trading_intents.storage.embedded.programs import make_base_backup, verify_base_backup
from trading_intents.stream import log as event_log
from trading_intents.telemetry import BACKUP_STAMP, Log, Metrics
from trading_intents.trading import FrozenStruct

FILES = "files"
DESCRIPTION = "backup.json"
MANIFEST = "backup_manifest"
PARTIAL = ".partial"
PASSWORD_FILES = tuple(f"{login}.password" for login in (OWNER, LOGIN, WORKER_LOGIN))
KEY_FILES = (VAULT_KEY_FILE, SIGNING_KEY_FILE)
KEPT_FILES = (*PASSWORD_FILES, ISSUER_FILE, DEMO_FILE, *KEY_FILES)
FIRST_INCREMENTAL_VERSION = 17
CONNECT_LIMIT_SECONDS = 5.0

ShowProgress = Callable[[str, int, int], None]  # a step, and how many kB of how many are done


class Description(FrozenStruct):
    made_at: str
    epoch: str  # of the event log: another one means that a backup was restored in between
    base: str | None  # the backup that this one is an increment to; None: it is a full one
    files: dict[str, str]  # SHA-256 of each
    left_out: tuple[str, ...] = ()  # files that a restore also needs, to be kept elsewhere


class Backup(FrozenStruct):
    folder: Path
    description: Description


async def make_backup(
    settings: Settings,
    clock: Clock,
    log: Log,
    folder: Path,
    incremental: bool,
    with_keys: bool,
    show: ShowProgress,
) -> Backup:
    """Backs up the embedded database, whether the platform runs or not: if not, the server alone is
    started meanwhile."""
    async with database_urls(settings, log, Metrics()) as urls:
        cluster = open_cluster(settings.data_dir, settings.postgres_bin)
        epoch = await _prepare_server(urls.owner_url.reveal(), cluster, incremental)
        now = clock.now()
        name = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03}Z"
        with _draft(folder, name) as draft:
            base = _find_base(folder, epoch) if incremental else None
            files = _read_files(cluster.home, with_keys)
            manifest = base.folder / DATA / MANIFEST if base else None
            await make_base_backup(
                cluster, draft / DATA, manifest, lambda *done: show("copying", *done)
            )
            if files != _read_files(cluster.home, with_keys):
                raise StartupRefused(
                    "the keys in DATA_DIR were changed while the backup was made: make it again"
                )
            await verify_base_backup(
                cluster.binaries, draft / DATA, lambda *done: show("verifying the copy", *done)
            )
            (draft / FILES).mkdir(mode=0o700)
            digests = {}
            for file, content in files.items():
                _write(draft / FILES / file, content)
                digests[file] = hashlib.sha256(content).hexdigest()
            described = Description(
                made_at=now.isoformat(),
                epoch=epoch,
                base=base.folder.name if base else None,
                files=digests,
                left_out=_left_out(settings, cluster.home, files),
            )
            text = msgspec.json.format(msgspec.json.encode(described), indent=2)
            _write(draft / DESCRIPTION, text)
    (cluster.home / BACKUP_STAMP).touch(mode=0o600)
    return Backup(folder / name, described)


def find_chain(source: Path) -> list[Backup]:
    """Finds the backups that a restore needs, the full one first: of this one, or of the newest in
    this folder."""
    newest = _read(source) if (source / DESCRIPTION).exists() else next(_newest_first(source), None)
    if newest is None:
        raise StartupRefused(
            f"no complete backup in {source}: `trading-intents backup {source}` makes one"
        )
    chain = [newest]
    while (base := chain[0].description.base) is not None:
        if base >= chain[0].folder.name or not (newest.folder.parent / base).exists():
            raise StartupRefused(
                f"{chain[0].folder} is an increment to {base}, which is not beside it"
            )
        chain.insert(0, _read(newest.folder.parent / base))
    return chain


async def verify_chain(binaries: Path, chain: list[Backup], show: ShowProgress) -> None:
    for backup in chain:
        step = f"verifying {backup.folder.name}"
        show(step, 0, 0)
        await verify_base_backup(
            binaries, backup.folder / DATA, lambda *done, step=step: show(step, *done)
        )
        for file, digest in backup.description.files.items():
            path = backup.folder / FILES / file
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                raise StartupRefused(f"{path} is not the file that was backed up")


def _write(path: Path, content: bytes) -> None:
    """A folder of backups may be on a file system without hard links, which `make_file` needs."""
    with written_beside(path, content) as written:
        Path(written).rename(path)


@contextlib.contextmanager
def _draft(folder: Path, name: str) -> Iterator[Path]:
    """The folder in which a backup is made; it gets its name in one step, once it is complete."""
    draft = folder / f"{name}{PARTIAL}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
    except OSError as error:
        raise StartupRefused(f"{draft}: {error.strerror}") from None
    try:
        yield draft
        sync_folder(draft)
        draft.rename(folder / name)
        sync_folder(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _newest_first(folder: Path) -> Iterator[Backup]:
    for path in sorted(folder.glob("*"), reverse=True):
        if path.suffix != PARTIAL and (path / DESCRIPTION).exists():
            yield _read(path)


def _read(folder: Path) -> Backup:
    try:
        description = msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=Description)
    except (OSError, ValueError) as error:
        raise StartupRefused(f"{folder / DESCRIPTION} cannot be read: {error}") from None
    if strange := description.files.keys() - set(KEPT_FILES):
        raise StartupRefused(
            f"{folder / DESCRIPTION} names files that are not a backup's: {', '.join(strange)}"
        )
    return Backup(folder.absolute(), description)


def _find_base(folder: Path, epoch: str) -> Backup:
    newest = next(_newest_first(folder), None)
    if newest is None:
        raise StartupRefused(
            f"no complete backup in {folder}: make a full one first, without --incremental"
        )
    if newest.description.epoch != epoch:
        # Positions in the write-ahead log from before and after a restore look alike, and mean
        # different pages.
        raise StartupRefused(
            f"a backup was restored since {newest.folder.name}: make a full one, without "
            "--incremental"
        )
    return newest


def _read_files(home: Path, with_keys: bool) -> dict[str, bytes]:
    files = {}
    for name in KEPT_FILES:
        if (with_keys or name not in KEY_FILES) and (home / name).exists():
            files[name] = (home / name).read_bytes()
    return files


def _left_out(settings: Settings, home: Path, files: dict[str, bytes]) -> tuple[str, ...]:
    left_out = [name for name in KEY_FILES if name not in files and (home / name).exists()]
    for name in ("vault_key_file", "vault_master_keys", "vault_url"):
        if getattr(settings, name):
            left_out.append(f"the vault's keys, of {PREFIX}{name.upper()}")
    return tuple(left_out)


async def _prepare_server(owner_url: str, cluster: Cluster, incremental: bool) -> str:
    """Lets its owner make base backups, and has it note which pages change, as increments need it.
    Gives the epoch."""
    connection = await asyncpg.connect(owner_url, timeout=CONNECT_LIMIT_SECONDS)
    try:
        if connection.get_server_version().major >= FIRST_INCREMENTAL_VERSION:
            await administration.summarize_wal(connection)
        elif incremental:
            raise StartupRefused(
                "PostgreSQL makes increments from version 17 on: leave --incremental out"
            )
        cluster.allow_base_backups()
        await administration.reload_settings(connection)
        return str(await event_log.read_epoch(connection))
    finally:
        await connection.close(timeout=CONNECT_LIMIT_SECONDS)
