"""The examples end with a clear line and an exit code, never with a traceback."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.platform import Platform
from trading_intents.config import PREFIX

pytest_plugins = ("tests.started_dirs",)

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT_SECONDS = 30
INTERRUPTED = 130


@pytest.fixture(scope="module")
def folder(platform: Platform) -> Path:
    """Where `make run` was typed."""
    return Path(platform.environ[f"{PREFIX}DATA_DIR"]).parent


def start(name: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(name: str, folder: Path, *arguments: str) -> tuple[int, str]:
    process = start(name, folder, *arguments)
    _, told = process.communicate(timeout=LIMIT_SECONDS)
    assert "Traceback" not in told
    return process.returncode, told


@pytest.fixture
def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(("name", "missing"), [("place_order.py", "url"), ("follow_stream.py", "address")])
def test_a_missing_argument_is_named(name: str, missing: str, folder: Path) -> None:
    code, told = run(name, folder)
    assert code == 2
    assert told.splitlines()[-1].endswith(f"the following arguments are required: {missing}")


@pytest.mark.parametrize(("name", "scheme"), [("place_order.py", "http://"), ("follow_stream.py", "")])
def test_a_wrong_port_is_told_of_in_a_line(name: str, scheme: str, folder: Path, closed_port: str) -> None:
    code, told = run(name, folder, scheme + closed_port)
    assert code == 1
    assert len(told.splitlines()) == 1
    assert closed_port in told
    assert "make run" in told


def test_the_port_of_the_other_protocol_is_told_of(folder: Path, platform: Platform) -> None:
    for name, address in (("place_order.py", f"http://{platform.grpc}"), ("follow_stream.py", platform.url[7:])):
        code, told = run(name, folder, address)
        assert (code, len(told.splitlines())) == (1, 1), told


@pytest.mark.parametrize(("name", "address"), [("place_order.py", "http://127.0.0.1:1"), ("follow_stream.py", "a:1")])
def test_a_folder_without_the_demo_is_told_of(name: str, address: str, tmp_path: Path) -> None:
    code, told = run(name, tmp_path, address)
    assert (code, len(told.splitlines())) == (1, 1)
    assert "demo.json" in told


def test_ctrl_c_ends_the_follower_with_a_line(folder: Path, platform: Platform) -> None:
    process = start("follow_stream.py", folder, platform.grpc)
    assert process.stdout is not None
    assert "subscribed" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, told) == (INTERRUPTED, "interrupted\n")


def test_ctrl_c_ends_the_order_with_a_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = start("place_order.py", folder, f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.settimeout(LIMIT_SECONDS)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(16)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, told) == (INTERRUPTED, "interrupted\n")
