"""The OpenAPI document holds: no server error, no undocumented status, whatever schemathesis makes up."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world import World

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = 15
LIMIT_SECONDS = 100


@pytest.mark.parametrize("caller", ["admin", "service_all", "none"])
def test_no_server_error_and_no_undocumented_status(world: World, caller: str, tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert program, "the developers' lock installs schemathesis"
    headers = [part for name, value in world.callers[caller].items() for part in ("--header", f"{name}: {value}")]
    options = (f"--checks={CHECKS}", f"--max-examples={EXAMPLES}", "--generation-deterministic")
    phases = "--phases=examples,coverage,fuzzing"
    done = subprocess.run(
        [program, "run", f"{world.platform.url}/openapi.json", *options, phases, *headers],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    # It may have made up that the organization does not trade, and the tests after this one want it to.
    world.client.put("/v1/controls/organization", json={"manually_disabled": False}, headers=world.callers["admin"])
    assert "generated," in done.stdout, "it made up nothing"
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
