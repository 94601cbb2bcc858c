"""A newcomer's machine: a bare Debian that systemd boots, without a network, with what `make dist` and deploy/ have in
its folder /srv/trading-intents and the lock's packages beside it. It runs in a container of systemd's own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.programs import DEPLOY, ROOT, find
from tests.waiting import eventually

PACKAGES = "ca-certificates,dbus,postgresql,python-is-python3,python3,python3-venv,sudo,systemd,systemd-sysv"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")
MAKE_SECONDS, BOOT_SECONDS, COMMAND_SECONDS = 900, 120, 300
PIP_CONF = "[global]\nno-index = true\nfind-links = /srv/wheels\n"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check(
    command: list[str],
    limit_seconds: float,
    stdin: str = "",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    done = subprocess.run(
        command,
        input=stdin,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    return done.stdout


def make_debian(archive: Path) -> None:
    """An archive of its files, from the packages that this machine's apt knows."""
    if os.getuid() != 0:
        pytest.skip("only root may make a machine")
    program = find("mmdebstrap", "it is in the package mmdebstrap")
    options = [f"--dpkgopt=path-exclude={folder}" for folder in LEFT_OUT]
    check(
        [program, "-q", "--variant=minbase", f"--include={PACKAGES}", *options, "bookworm", str(archive)],
        MAKE_SECONDS,
    )


def make_wheels(folder: Path) -> None:
    """Those of the lock, for Debian's Python."""
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--require-hashes",
        "-r",
        str(ROOT / "requirements.lock"),
    ]
    check([*download, "--only-binary=:all:", "--python-version=3.11", "-d", str(folder)], MAKE_SECONDS)


class BareMachine:
    _process: subprocess.Popen[bytes]

    def __init__(self, root: Path, archive: Path, wheels: Path, dist: Path) -> None:
        self._root = root
        root.mkdir()
        check(["tar", "-xf", str(archive), "-C", str(root)], COMMAND_SECONDS)
        source = root / "srv" / "trading-intents"
        shutil.copytree(DEPLOY, source / "deploy")
        shutil.copytree(dist, source / "dist")
        shutil.copytree(wheels, root / "srv" / "wheels")
        shutil.copy(ROOT / "requirements.lock", source)
        (root / "etc" / "pip.conf").write_text(PIP_CONF)
        (root / "etc" / "hosts").write_text("127.0.0.1 localhost bare\n")

    def boot(self) -> None:
        program = find("systemd-nspawn", "it is in the package systemd-container")
        options = ["--register=no", "--keep-unit", "--private-network", "--hostname=bare", "--console=pipe"]
        with (self._root.parent / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                [program, "-q", "-b", "-D", str(self._root), *options],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        eventually(self._is_up, BOOT_SECONDS)

    def lose_power(self) -> None:
        """Everything in it ends at once."""
        with contextlib.suppress(ProcessLookupError, LookupError):
            os.kill(self._leader(), signal.SIGKILL)
        self._process.wait(COMMAND_SECONDS)

    def run(self, script: str) -> str:
        """A shell of root's runs the commands; one that fails fails the test. Gives what they print."""
        return check([*self._inside(), "sh", "-ec", script], COMMAND_SECONDS, cwd=Path("/"))

    def _is_up(self) -> bool:
        assert self._process.poll() is None, (self._root.parent / "console.log").read_text(errors="replace")
        try:
            return self.run("systemctl is-system-running --wait").strip() == "running"
        except (AssertionError, LookupError):  # it has not begun, or its bus has not
            return False

    def _leader(self) -> int:
        """The process that is the first one there."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _inside(self) -> list[str]:
        return [
            "nsenter",
            "-t",
            str(self._leader()),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "env",
            "-i",
            PATH,
            "LANG=C.UTF-8",
        ]
