"""Types that openapi-typescript generates from /openapi.json take the README's bodies, under `tsc
--strict`."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.platform import Platform

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.started_dirs",)

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv" / "npm-types" / "node_modules" / ".bin"
LIMIT_SECONDS = 120
PROGRAM = """
import type { paths } from "./api";

type Body = paths["/v1/accounts/{account_id}/intents"]["post"]["requestBody"]["content"]["application/json"];
type Answer = paths["/v1/accounts/{account_id}/intents"]["post"]["responses"][202]["content"]["application/json"];
export const bodies: Body[] = [BODIES];
export const seq = (answer: Answer): number => answer.seq;
// @ts-expect-error a mistyped field is refused
export const mistyped: Body = { command: { type: "CANCEL", payload: { ref_intent: "x" } } };
"""


def run(folder: Path, tool: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = (str(TOOLS / tool), *options)
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


@pytest.mark.skipif(
    shutil.which("node") is None or not (TOOLS / "openapi-typescript").exists(),
    reason="openapi-typescript is not there: `make client` installs it, with Node.js and npm",
)
def test_the_readmes_bodies_compile_with_generated_types(
    platform: Platform, tmp_path: Path
) -> None:
    bodies = re.findall(
        r"/intents -H [^\n]*\n  -d '({.*?})'", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert len(bodies) >= 2
    (tmp_path / "openapi.json").write_bytes(platform.client.get("/openapi.json").content)
    made = run(tmp_path, "openapi-typescript", "openapi.json", "-o", "api.d.ts")
    assert made.returncode == 0, made.stdout + made.stderr
    (tmp_path / "program.ts").write_text(PROGRAM.replace("BODIES", ", ".join(bodies)))
    checked = run(tmp_path, "tsc", "--strict", "--noEmit", "--target", "es2022", "program.ts")
    assert checked.returncode == 0, checked.stdout + checked.stderr
