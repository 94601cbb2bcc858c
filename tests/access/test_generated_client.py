"""A client generated from /openapi.json knows every operation and every error, and works."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.platform import Platform

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.started_dirs",)

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv" / "client" / "bin"
PROGRAM = Path(__file__).with_name("generated_client_program.py")
LIMIT_SECONDS = 60


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.skipif(
    not TOOLS.exists(), reason="openapi-python-client is not there: `make client` installs it"
)
def test_a_generated_client_has_no_warning_and_works(platform: Platform, tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    document.write_bytes(platform.client.get("/openapi.json").content)
    options = (
        "--path",
        str(document),
        "--meta",
        "none",
        "--output-path",
        "generated",
        "--fail-on-warning",
    )
    made = run(tmp_path, str(TOOLS / "openapi-python-client"), "generate", *options)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "WARNING" not in made.stdout.upper()

    operations = {
        f"{operation['tags'][0].lower().replace(' ', '_')}/{operation['operationId']}.py"
        for methods in json.loads(document.read_bytes())["paths"].values()
        for operation in methods.values()
    }
    generated = tmp_path / "generated" / "api"
    assert operations == {str(file.relative_to(generated)) for file in generated.glob("*/[!_]*.py")}

    key = json.loads(
        (Path(platform.environ["TRADING_INTENTS_DATA_DIR"]) / "demo.json").read_text()
    )["api_key"]
    used = run(tmp_path, str(TOOLS / "python"), str(PROGRAM), platform.url, key)
    assert used.returncode == 0, used.stdout + used.stderr
    assert json.loads(used.stdout) == {
        "order": [True, "GEN", "BUY"],
        "invalid": [422, "validation_failed", "/command/payload/spec/Market/quantity"],
        "refused": [409, "control_rejected", "symbol_manually_disabled"],
        "missing": [404, "not_found"],
    }
