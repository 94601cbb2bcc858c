"""`pytest --workers`: every test runs once and is reported, whatever becomes of its worker."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
}
# The first fails for good, the second once, both without a stall; the third and the fourth while
# nothing went on.
STALLS = """
import os, signal, time, pytest
from tests.stalls import STALLS

def fails_once(folder, name):
    made = (folder / name).exists()
    (folder / name).touch()
    assert made

def test_fails(): assert 1 == 2

def test_fails_once(shared_folder): fails_once(shared_folder, "test")

def stop(stalls):
    began_at = time.monotonic()
    os.kill(stalls.pid, signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(stalls.pid, signal.SIGCONT)
    while not stalls.is_any_since(began_at):
        time.sleep(0.01)

@pytest.fixture(scope="module")
def file(shared_folder, pytestconfig):
    stop(pytestconfig.stash[STALLS])
    fails_once(shared_folder, "file")

def test_stalls(file): pass

def test_stalls_and_fails(pytestconfig):
    stop(pytestconfig.stash[STALLS])
    assert 1 == 3
"""


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
        "tests.stalls",
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
    )


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
    assert re.search(r"^2 failed, 27 passed, .*1 error in ", done.stdout, re.MULTILINE), done.stdout
    order = (tmp_path / "order").read_text().split()[::2]
    assert order.pop() == "test_waits", (
        "its deadlines are the last of all, and share what their file makes once"
    )
    assert sorted(order) == sorted(
        name.removesuffix(".py") for name in FILES if name != "conftest.py"
    )


# Takes more than five seconds: the machine stands still for more than a second three times.
def test_what_failed_while_the_machine_stood_still_runs_once_more(tmp_path: Path) -> None:
    (tmp_path / "test_stalled.py").write_text(STALLS)
    done = run(tmp_path)
    shown = re.findall(r"^FAILED \S*::(test_\w+)", done.stdout, re.MULTILINE)
    assert shown == ["test_fails", "test_fails_once", "test_stalls_and_fails"], done.stdout
    assert (
        "test_stalls failed while the machine stood still, and passed when run again" in done.stdout
    )
    assert re.search(r"^3 failed, 1 run again in ", done.stdout, re.MULTILINE), done.stdout
