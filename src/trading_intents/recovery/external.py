"""The commands by which an administrator backs up and restores an external database. Runs nothing itself."""

from pathlib import Path

from trading_intents.config import Settings
from trading_intents.recovery.backups import KEPT_FILES, PASSWORD_FILES

BACKUP = """\
# {where} is external, so nothing was backed up here.
# Its administrator runs, with a login that may replicate, and with the programs of its own version (17 or later for
# increments, and with summarize_wal = on in its settings before the full backup):
pg_basebackup --host=HOST --username=LOGIN --checkpoint=fast --progress --pgdata={folder}/full
pg_basebackup --host=HOST --username=LOGIN --checkpoint=fast --progress --pgdata={folder}/increment \\
    --incremental={folder}/full/backup_manifest
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


def show_commands(text: str, settings: Settings, folder: Path) -> str:
    home = settings.data_dir.absolute()
    files = [name for name in KEPT_FILES if name not in PASSWORD_FILES and (home / name).exists()]
    named = ", ".join(str(home / name) for name in files) or f"no key files are in {home}"
    return text.format(where="The database of TRADING_INTENTS_DATABASE_URL", folder=folder, files=named)
