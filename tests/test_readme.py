"""What the documents tell people to paste works, in the order in which they read it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.platform import Platform
from trading_intents.config import PREFIX

pytest_plugins = ("tests.started_dirs",)

ROOT = Path(__file__).parents[1]
DOCUMENTED, DOCUMENTED_GRPC = "127.0.0.1:8080", "127.0.0.1:5051"
FOLLOWER = ".venv/bin/python examples/follow_stream.py"
DEMO = ". examples/demo.sh"
RUN_SECONDS = 240  # a busy machine takes a minute
TRADE = "'broker_trade|TradeEvent'"  # as curl shows it, and the Python client
# What goes on until Ctrl-C has a terminal of its own, and has begun before the next command is typed.
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


def blocks_of(document: str, platform: Platform) -> list[str]:
    """What a reader pastes, for this platform's addresses; `make` lines have a test of their own."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    text = "\0".join(re.sub(r"^make .*\n", "", block, flags=re.MULTILINE) for block in blocks)
    text = text.replace(DOCUMENTED, httpx.URL(platform.url).netloc.decode()).replace(DOCUMENTED_GRPC, platform.grpc)
    # A reader sees an error answer; a script must be told to mind it.
    text = text.replace("curl -s ", "curl -sS --fail-with-body ").replace(DEMO, f"{DEMO} {platform.url}")
    return [block for block in text.split("\0") if block]


@pytest.fixture(scope="module")
def folder(platform: Platform) -> Path:
    """Looks like a checkout in which `make run` was typed."""
    folder = Path(platform.environ[f"{PREFIX}DATA_DIR"]).parent
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.mark.timeout(2 * RUN_SECONDS)
@pytest.mark.parametrize(("document", "seen"), [("README.md", TRADE), ("docs/api.md", "subscribed")])
def test_what_a_document_tells_to_paste_works(document: str, seen: str, folder: Path, platform: Platform) -> None:
    script = "".join(blocks_of(document, platform))
    assert "curl -sS " in script
    assert "curl -N " in script
    script = script.replace("curl -N ", "endless curl -sSfN ").replace(FOLLOWER, f"endless {FOLLOWER}")
    run(ENDLESS + script + SEEN % seen, folder)


@pytest.mark.timeout(2 * RUN_SECONDS)
def test_each_block_of_the_readme_works_in_a_new_terminal(folder: Path, platform: Platform) -> None:
    script = ENDLESS
    for place, block in enumerate(blocks_of("README.md", platform)):
        is_endless = "curl -N " in block or FOLLOWER in block
        lines = block.replace("curl -N ", "exec curl -sSfN ").replace(FOLLOWER, f"exec {FOLLOWER}")
        (folder / f"block.{place}").write_text(lines)
        script += f'{"endless " if is_endless else ""}env -i PATH="$PATH" bash -euo pipefail -x block.{place}\n'
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


def test_what_the_documents_tell_to_make_can_be_made() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told: set[str] = set()
    for document in ROOT.glob("*.md"):
        text = document.read_text()
        told |= set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE)) | set(re.findall(r"`make ([a-z]+)", text))
    assert {"run", "test"} <= told
    assert told <= targets
