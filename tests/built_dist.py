"""Builds the distributions, and runs programs that are installed from them."""

import os
import subprocess
import sys
from pathlib import Path

from trading_intents.config import PREFIX

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 110


def make_dist(folder: Path) -> str:
    """Without the tools of npm, whose package other tests build; gives what it says."""
    # The environment is as it is: tests that run beside this one use it.
    command = [
        "make",
        "-C",
        str(ROOT),
        "dist",
        f"DIST={folder}",
        f"VENV={sys.prefix}",
        f"NPM_TOOLS={folder}/nothing",
        "-o",
        f"{sys.prefix}/run.stamp",
    ]
    return run(command, ROOT)


def run(command: list[str], folder: Path, **variables: str) -> str:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((PREFIX, "PYTHONPATH"))
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
