"""`pytest --workers`: every test runs once and is reported, whatever becomes of its worker."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 100
FIXTURES = """
import os, pytest

@pytest.fixture(scope="session")
def broken():
    yield os.getpid()
    raise RuntimeError("cannot be torn down")

@pytest.fixture(scope="module", autouse=True)
def once_in_a_file(shared_folder, request):
    with (shared_folder.parent / "order").open("a") as file:
        file.write(f"{request.module.__name__} {os.getpid()}\\n")
"""
FILES = {
    "conftest.py": FIXTURES,
    "test_passes.py": "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_passes(n): print(n)\n",
    "test_fails.py": "def test_fails():\n    print('captured text')\n    assert 1 == 2\ndef test_goes_on(): pass\n",
    "test_crashes.py": "import os\ndef test_before(): pass\ndef test_crashes(): os._exit(7)\n",
    "test_leaves.py": "def test_leaves(broken): pass\n",
    "test_waits.py": """
import pytest
@pytest.mark.deadline
@pytest.mark.parametrize('n', range(3))
def test_waits(n): pass
def test_does_not_wait(): pass
""",
    "shown_signals.py": "import signal\nprint([signal.getsignal(each).name for each in (1, 15)])\n",
    "test_programs.py": """
import os, subprocess
from tests.fork_server import Fork
def test_a_program_hears_what_the_tests_do_not(request):
    environ = os.environ | {"PYTHONPATH": str(request.path.parent)}
    program = Fork("shown_signals", environ=environ, stdout=subprocess.PIPE)
    with program.stdout:
        assert program.stdout.read() == "['SIG_DFL', 'SIG_DFL']\\n"
""",
}
IGNORED = (signal.SIGHUP, signal.SIGTERM)


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    settings = [
        "-p",
        "no:schemathesis",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        f"--basetemp={folder / 'temporary'}",
        "-p",
        "tests.workers",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *settings,
        "--workers",
        "2",
        "--waiters",
        "1",
        str(folder),
    ]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "COLUMNS": "200"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
        preexec_fn=ignore_signals,  # as nohup
    )


def ignore_signals() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def test_every_end_of_a_test_is_reported(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "captured text" in done.stdout
    assert "the worker ended with 7" in done.stdout
    assert "cannot be torn down" in done.stdout
    shown = re.findall(r"^(FAILED|ERROR) \S*::(test_\w+)", done.stdout, re.MULTILINE)
    (kind, _), *failed = sorted(shown)
    assert (kind, failed) == ("ERROR", [("FAILED", "test_crashes"), ("FAILED", "test_fails")]), (
        done.stdout
    )
    assert re.search(r"^2 failed, 28 passed, .*1 error in ", done.stdout, re.MULTILINE), done.stdout
    order = (tmp_path / "order").read_text().split()[::2]
    assert order.pop() == "test_waits", (
        "its deadlines are the last of all, and share what their file makes once"
    )
    assert sorted(order) == sorted(
        name.removesuffix(".py") for name in FILES if name.startswith("test_")
    )
