"""`make` and the interpreter: says which one it needs, and makes the environment anew with another
one."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Answers what the Makefile asks of an interpreter, and makes environments that only name their
# interpreter.
INTERPRETER = """#!/bin/sh
case "$*" in
--version) echo "Python {version}" ;;
-c*version_info*) exit {status} ;;
-c*) echo "$0 {version}" ;;
"-m venv "*) mkdir -p "$3/bin" && echo "{version}" > "$3/bin/made_by" ;;
esac
"""


def interpreter(folder: Path, version: str, status: int = 0) -> Path:
    file = folder / f"python{version}"
    file.write_text(INTERPRETER.format(version=version, status=status))
    file.chmod(0o755)
    return file


def make(python: Path | str, environment: Path) -> subprocess.CompletedProcess[str]:
    command = [
        "make",
        "-C",
        str(ROOT),
        f"{environment}/interpreter",
        f"VENV={environment}",
        f"PYTHON={python}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("python", ["3.9.2", "none"])
def test_make_says_which_python_it_needs_and_leaves_nothing_broken(
    tmp_path: Path, python: str
) -> None:
    named = (
        tmp_path / "no_such_python" if python == "none" else interpreter(tmp_path, python, status=1)
    )
    done = make(named, tmp_path / "venv")
    assert done.returncode != 0
    assert "needs Python 3.11 or later" in done.stderr
    assert python == "none" or f"is Python {python}." in done.stderr
    assert "PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_make_makes_the_environment_anew_when_the_interpreter_changes(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    made_by = venv / "bin" / "made_by"
    # As it was left by another, or by an earlier version of the Makefile.
    (venv / "bin").mkdir(parents=True)
    (venv / "run.stamp").touch()
    for version in ("3.11.4", "3.12.1"):
        python = interpreter(tmp_path, version)
        assert make(python, venv).returncode == 0
        assert made_by.read_text() == f"{version}\n"
        assert not (venv / "run.stamp").exists(), "what is installed belongs to another environment"
        (venv / "run.stamp").touch()
        made_at = made_by.stat().st_mtime_ns
        assert make(python, venv).returncode == 0
        assert made_by.stat().st_mtime_ns == made_at, "nothing has changed"
        assert (venv / "run.stamp").exists()


def test_a_commit_that_the_quick_checks_refuse_is_not_made(clone: Path) -> None:
    untidy = clone / "tests" / "untidy.py"
    untidy.write_text('"""A file."""\n\nimport os\n')
    run(clone, "make", "--silent", "hooks").check_returncode()
    run(clone, "git", "add", "-f", str(untidy)).check_returncode()
    refused = commit(clone)
    assert refused.returncode != 0
    assert "`os` imported but unused" in refused.stdout + refused.stderr
    untidy.write_text('"""A file."""\n')
    run(clone, "git", "add", "-f", str(untidy)).check_returncode()
    made = commit(clone)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with an environment that is up to date: it has only the programs that check."""
    folder = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", "--shared", str(ROOT), str(folder)).check_returncode()
    environment = folder / ".venv"
    (environment / "bin").mkdir(parents=True)
    for program in ("ruff", "lint-imports"):
        (environment / "bin" / program).symlink_to(ROOT / ".venv" / "bin" / program)
    shutil.copy(ROOT / ".venv" / "interpreter", environment)
    for stamp in ("run.stamp", "dev.stamp"):
        (environment / stamp).touch()
    return folder


def commit(clone: Path) -> subprocess.CompletedProcess[str]:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return run(clone, "git", *author, "commit", "-q", "-m", "change")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
