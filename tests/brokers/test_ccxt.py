"""The package of ccxt's venues, tested in its own environment; and nothing of ours knows of it."""

import subprocess
from pathlib import Path

import pytest

from tests.sources import PACKAGE, ROOT

FOLDER = ROOT / "brokers" / "ccxt"
PYTHON = ROOT / ".venv" / "ccxt" / "bin" / "python"
FILES = sorted((FOLDER / "tests").glob("test_*.py"))
LIMIT_SECONDS = 280
LONG_SECONDS = 1_700

needs_ccxt = pytest.mark.skipif(
    not PYTHON.exists(), reason="needs the environment of brokers/ccxt: make ccxt"
)


def run(*arguments: str, limit_seconds: float = LIMIT_SECONDS) -> None:
    command = [str(PYTHON), "-m", *arguments]
    done = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, timeout=limit_seconds, check=False
    )
    print(done.stdout[-20_000:], done.stderr[-5_000:])
    assert done.returncode == 0


def test_the_platform_does_not_know_the_package() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if "ccxt" in path.read_text()] == []


@pytest.mark.slow
@needs_ccxt
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_package_passes_its_tests(file: Path) -> None:
    run("pytest", str(file.relative_to(FOLDER)))


@pytest.mark.slow
@needs_ccxt
def test_its_types_are_right() -> None:
    run("mypy")


@pytest.mark.chaos
@needs_ccxt
@pytest.mark.timeout(LONG_SECONDS)
def test_the_package_passes_its_long_tests() -> None:
    run("pytest", "-m", "chaos", limit_seconds=LONG_SECONDS)
