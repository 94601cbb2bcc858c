"""Programs of other people that check the files of deploy/; `make deploy-checkers` gets them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FETCHED = Path(sys.prefix) / "deploy"
LIMIT_SECONDS = 100
SOURCE = "`make deploy-checkers` gets it, and systemd-analyze is in the package systemd"


def find(name: str, source: str = SOURCE) -> str:
    """The program's path: the machine's, or the one that was fetched."""
    folders = [
        *os.environ["PATH"].split(":"),
        "/usr/sbin",
        *map(str, FETCHED.glob("root/usr/*bin")),
    ]
    folders += [str(FETCHED / "python" / "bin"), str(FETCHED / "npm" / "node_modules" / ".bin")]
    found = shutil.which(name, path=":".join(folders))
    if found is None:
        pytest.skip(f"no {name} here: {source}")
    return found


def libraries() -> dict[str, str]:
    """Of the programs that were fetched."""
    folders = ":".join(str(path) for path in FETCHED.glob("root/usr/lib/*-linux-gnu"))
    return {"LD_LIBRARY_PATH": folders} if folders else {}


def run(name: str, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find(name), *map(str, arguments)],
        cwd=cwd,
        env=os.environ | libraries(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
