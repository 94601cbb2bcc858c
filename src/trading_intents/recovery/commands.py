"""The commands `backup`, `restore` and `admin resume-restored`: parse, call, print."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from trading_intents import app
from trading_intents.clock import SystemClock
from trading_intents.config import Settings
from trading_intents.errors import InvalidRequest, StartupRefused
from trading_intents.execution.restored.restoring import (
    refuse_workers,
    restore_commands,
    resume_restored,
)
from trading_intents.outbox.operators import name_operator
from trading_intents.recovery.backups import KEPT_FILES, PASSWORD_FILES, ShowProgress, make_backup
from trading_intents.recovery.restore import restore_backup
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log

# What the administrator of an external database runs.
BACKUP = """\
# {where} is external, so nothing was backed up here.
# Its administrator runs, with a login that may replicate, and with the programs of its own version
# (17 or later for increments, and with summarize_wal = on in its settings before the full backup):
pg_basebackup --host=HOST --username=LOGIN --checkpoint=fast --progress --pgdata={folder}/full
pg_basebackup --host=HOST --username=LOGIN --checkpoint=fast --progress \\
    --pgdata={folder}/increment --incremental={folder}/full/backup_manifest
pg_verifybackup {folder}/full
pg_verifybackup {folder}/increment
# Keep with it, or apart from it: {files}"""

RESTORE = """\
# {where} is external, so nothing was restored here.
# End every process of the platform. Then the administrator runs, on the database's machine:
pg_verifybackup {folder}/full
pg_verifybackup {folder}/increment
pg_combinebackup {folder}/full {folder}/increment --output=NEW_DATA_FOLDER
# and starts PostgreSQL on NEW_DATA_FOLDER. Put back: {files}
# Before any process of the platform starts, so that nothing from before the restore is sent again:
trading-intents restore --mark"""


async def backup(
    settings: Settings,
    log: Log,
    folder: Annotated[Path, typer.Argument(help="A folder of backups.")],
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Only what changed since the newest one.")
    ] = False,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Leave the vault's keys and the signing key out.")
    ] = False,
) -> int:
    """Back up the embedded database and its keys into a new folder in FOLDER, whether the platform
    runs or not."""
    if settings.database_url:
        typer.echo(_show_commands(BACKUP, settings, folder))
        return 1
    with _progress() as show:
        made = await make_backup(
            settings=settings,
            clock=SystemClock(),
            log=log,
            folder=folder,
            incremental=incremental,
            with_keys=not without_keys,
            show=show,
        )
    base = made.description.base
    typer.echo(f"backed up to {made.folder}" + (f", an increment to {base}" if base else ""))
    typer.echo(
        f"with {', '.join(made.description.files)}: whoever has this folder has what they open"
    )
    for what in made.description.left_out:
        typer.echo(f"left out, to be kept by you: {what}")
    return 0


async def restore(
    settings: Settings,
    log: Log,
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder of backups, of which the newest is taken, or one of them."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Keep what is in the data folder aside, and go on.")
    ] = False,
    mark: Annotated[
        bool,
        typer.Option(
            "--mark", help="Only mark a database that was restored by other means as restored."
        ),
    ] = False,
    no_halt: Annotated[
        bool, typer.Option("--no-halt", help="Leave trading on: halt no organization.")
    ] = False,
) -> int:
    """Restore a backup, verified and without starting the platform; no order from before it is sent
    again."""
    if mark == (folder is not None):
        raise InvalidRequest("name a folder of backups, or --mark")
    if folder is None:
        async with app.open_infrastructure(settings, log) as parts:
            await refuse_workers(parts.database.worker)
            count = await restore_commands(
                parts.database.worker, name_operator(), "restored by other means", halts=not no_halt
            )
            parts.signals.notify(STREAM)
        _show_restored(count, no_halt)
        return 0
    if settings.database_url:
        typer.echo(_show_commands(RESTORE, settings, folder))
        return 1
    with _progress() as show:
        done = await restore_backup(
            settings=settings,
            clock=SystemClock(),
            log=log,
            source=folder,
            replace=replace,
            halts=not no_halt,
            who=name_operator(),
            show=show,
        )
    typer.echo(f"restored {done.backup.folder} into {settings.data_dir}")
    _show_restored(done.commands, no_halt)
    if done.aside:
        typer.echo(f"what was there before is in {done.aside}")
    for what in done.backup.description.left_out:
        typer.echo(f"not in the backup: {what}; put it back before you start the platform")
    return 0


async def resume(
    settings: Settings,
    log: Log,
    organization: Annotated[
        str | None, typer.Argument(help="Its id or external id. Default: all.")
    ] = None,
) -> int:
    """Let organizations trade again that a restore has halted; other halts stand."""
    async with app.open_infrastructure(settings, log) as parts:
        ended = await resume_restored(parts.database.worker, name_operator(), organization)
        parts.signals.notify(STREAM)
    for halt in ended:
        log.warning(
            "trading resumed", organization=str(halt.scope.organization_id), by=name_operator()
        )
        typer.echo(f"resumed {halt.scope.organization_id}")
    return 0


def _show_restored(commands: int, no_halt: bool) -> None:
    typer.echo(
        f"{commands} CREATEs and REPLACEs that waited to be sent are looked up at their "
        "brokers, never sent"
    )
    if not no_halt:
        typer.echo(
            "every organization is halted: its admin resumes it, or `trading-intents admin "
            "resume-restored`"
        )


@contextlib.contextmanager
def _progress() -> Iterator[ShowProgress]:
    """Shows bars on a terminal, else a line for each step."""
    out = Console(stderr=True)
    tasks = dict[str, TaskID]()
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=None)
                if not out.is_terminal:
                    typer.echo(step, err=True)
            bar.update(tasks[step], completed=done, total=total or None)

        try:
            yield show
        except OSError as error:
            raise StartupRefused(
                f"{error.filename or 'the disk'}: {error.strerror or error}"
            ) from None


def _show_commands(text: str, settings: Settings, folder: Path) -> str:
    home = settings.data_dir.absolute()
    files = [name for name in KEPT_FILES if name not in PASSWORD_FILES and (home / name).exists()]
    named = ", ".join(str(home / name) for name in files) or f"no key files are in {home}"
    return text.format(
        where="The database of TRADING_INTENTS_DATABASE_URL", folder=folder, files=named
    )
