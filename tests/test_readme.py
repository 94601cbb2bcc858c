"""The commands in the documents work, in the order in which they stand there."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import copy_folder
from tests.fork_server import REQUEST_BYTES, Fork
from tests.platform import PROGRAM, Platform, serving
from trading_intents.config import PREFIX

pytest_plugins = ("tests.started_dirs",)

ROOT = Path(__file__).parents[1]
DOCUMENTED = "127.0.0.1:8080"
DOCUMENTED_GRPC = "127.0.0.1:5051"
FOLLOWER = ".venv/bin/python examples/follow_stream.py"
DEMO = ". examples/demo.sh"
API_PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "docs/api").glob("*.md")
    if "```sh" in page.read_text()
)
RUN_SECONDS = 240  # a busy machine takes a minute
TRADE = "'broker_trade|TradeEvent'"  # as curl shows it, and the Python client
# What goes on until Ctrl-C has a terminal of its own, and has begun before the next command is
# typed.
ENDLESS = """
terminals=()
trap 'kill "${terminals[@]}"; cat terminal.*' EXIT
endless() {
    local file=terminal.${#terminals[@]}
    "$@" > $file 2>&1 &
    terminals+=($!)
    until grep -qE 'subscribed|PrimedEvent' $file; do kill -0 $!; sleep 0.1; done
}
"""
SEEN = """
for file in terminal.*; do until grep -qE %s $file; do sleep 0.1; done; done
"""

# Stands for `.venv/bin/trading-intents`: has a process forked that has imported it, where a start
# takes a second.
FORKED_COMMAND = f"""#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect("commands.socket")
    socket.send_fds(asked, [json.dumps([sys.argv[1:], dict(os.environ)]).encode()], [0, 1, 2])
    sys.exit(int(asked.recv(16)))
"""


def blocks_of(document: str, platform: Platform) -> list[str]:
    """The commands that a reader pastes, for this platform's addresses; `make` lines have a test of
    their own."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL
    )
    text = "\0".join(re.sub(r"^make .*\n", "", block, flags=re.MULTILINE) for block in blocks)
    text = text.replace(DOCUMENTED, httpx.URL(platform.url).netloc.decode()).replace(
        DOCUMENTED_GRPC, platform.grpc
    )
    # A reader sees an error answer; a script must ask curl to fail.
    text = text.replace("curl -s ", "curl -sS --fail-with-body ").replace(
        DEMO, f"{DEMO} {platform.url}"
    )
    return [block for block in text.split("\0") if block]


@pytest.fixture(scope="module")
def platform(warm_original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """As `make run` has it: with as many processes as that machine gets."""
    with serving(
        copy_folder(warm_original, tmp_path_factory.mktemp("checkout") / ".data"), WORKERS=""
    ) as platform:
        yield platform


@pytest.fixture(scope="module")
def folder(platform: Platform) -> Path:
    """Looks like a checkout in which `make run` was typed."""
    folder = Path(platform.environ[f"{PREFIX}DATA_DIR"]).parent
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture
def installed(folder: Path) -> Iterator[None]:
    """The environment that we have."""
    (folder / ".venv").symlink_to(sys.prefix)
    yield
    (folder / ".venv").unlink()


@pytest.fixture(scope="module")
def forking_environment(folder: Path) -> Path:
    made = folder / "forking"
    (made / "bin").mkdir(parents=True)
    for path in (*Path(sys.prefix).iterdir(), *Path(sys.prefix, "bin").iterdir()):
        if path.name not in ("bin", "trading-intents"):
            (made / path.relative_to(sys.prefix)).symlink_to(path)
    command = made / "bin" / "trading-intents"
    command.write_text(FORKED_COMMAND)
    command.chmod(0o755)
    return made


@pytest.fixture
def forking(
    folder: Path, forking_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The same, with commands that are forked. That the real one can be pasted is proved by the
    slow test."""
    (folder / ".venv").symlink_to(forking_environment)
    monkeypatch.chdir(folder)  # in which a fork runs
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.bind("commands.socket")
        asked.listen()
        thread = threading.Thread(target=fork_commands, args=(asked,))
        thread.start()
        yield
        asked.shutdown(socket.SHUT_RDWR)
        thread.join()
    (folder / "commands.socket").unlink()
    (folder / ".venv").unlink()


def fork_commands(asked: socket.socket) -> None:
    """One after the other, until the socket is shut."""
    while True:
        try:
            connection, _ = asked.accept()
        except OSError:
            return
        with connection:
            text, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
            arguments, environ = json.loads(text)
            fork = Fork(
                PROGRAM,
                *arguments,
                environ=environ,
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
            )
            for file in files:
                os.close(file)
            connection.sendall(str(fork.wait(RUN_SECONDS)).encode())


# Takes ten seconds: a dozen programs, each of an interpreter of its own.
@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_SECONDS)
@pytest.mark.usefixtures("installed")
def test_the_commands_of_the_readme_work_in_one_terminal(folder: Path, platform: Platform) -> None:
    paste_all("README.md", TRADE, folder, platform)


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_SECONDS)
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("page", API_PAGES)
def test_the_commands_of_a_page_of_the_api_work_in_a_new_terminal(
    page: str, folder: Path, platform: Platform
) -> None:
    paste_all(page, "subscribed", folder, platform)


def test_a_page_of_the_api_follows_a_stream() -> None:
    assert [page for page in API_PAGES if "curl -N " in (ROOT / page).read_text()] == [
        "docs/api/stream.md"
    ]


def paste_all(document: str, seen: str, folder: Path, platform: Platform) -> None:
    script = "".join(blocks_of(document, platform))
    assert "curl -sS " in script or "curl -N " in script
    if "curl -N " in script:
        script = script.replace("curl -N ", "endless curl -sSfN ").replace(
            FOLLOWER, f"endless {FOLLOWER}"
        )
        script = ENDLESS + script + SEEN % seen
    run(script, folder)


# Takes five seconds: a dozen programs, of which one waits for a halt to end.
@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_SECONDS)
@pytest.mark.usefixtures("forking")
def test_each_block_of_the_readme_works_in_a_new_terminal(folder: Path, platform: Platform) -> None:
    script = ENDLESS
    for index, block in enumerate(blocks_of("README.md", platform)):
        is_endless = "curl -N " in block or FOLLOWER in block
        lines = block.replace("curl -N ", "exec curl -sSfN ").replace(FOLLOWER, f"exec {FOLLOWER}")
        (folder / f"block.{index}").write_text(lines)
        script += (
            f'{"endless " if is_endless else ""}env -i PATH="$PATH" bash -euo pipefail -x '
            f"block.{index}\n"
        )
    run(script + SEEN % TRADE, folder)


def run(script: str, folder: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    for file in folder.glob("terminal.*"):
        file.unlink()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-x", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong " not in done.stdout


def test_the_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named: set[str] = set()
    for document in ROOT.glob("*.md"):
        text = document.read_text()
        named |= set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) | set(
            re.findall(r"`make ([a-z-]+)", text)
        )
    assert {"run", "test"} <= named
    assert named <= targets
