"""The client's README is a program that runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.platform import Platform
from trading_intents.config import PREFIX

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "sdk" / "README.md"
LIMIT_SECONDS = 60


def test_the_readmes_program_runs_in_the_folder_of_a_make_run(platform: Platform) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    folder = Path(platform.environ[f"{PREFIX}DATA_DIR"]).parent
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    bought, cancelled, wrong, sold = done.stdout.splitlines()
    assert bought.startswith("AAPL 10 ")
    assert cancelled == "CANCELLED"
    assert wrong.startswith("/command/payload/spec/Market/quantity validation_failed ")
    assert sold == "sold 10 keep True"
