"""The OpenAPI document holds: no server error, no undocumented status, whatever schemathesis makes
up."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tenants import Headers, Tenants

pytestmark = pytest.mark.slow

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EVERY_PHASE = "examples,coverage,fuzzing"
LIMIT_SECONDS = 400
# Programs at once, each with its paths. An event stream has no end: it is read until the request's
# timeout.
PARTS = (
    ["--include-path-regex=^/v1/controls"],
    ["--include-path-regex=/events$", "--request-timeout=3"],
    ["--exclude-path-regex=^/v1/controls|/events$"],
)


@pytest.fixture(scope="session")
def tenants(working_tenants: Tenants) -> Tenants:
    """Lists show what became of orders that are made up."""
    return working_tenants


@pytest.fixture(scope="module")
def callers(tenants: Tenants, folder: Path) -> dict[str, Headers]:
    """Of an organization of their own: what is made up here disturbs nobody."""
    users = [{"external_id": "fuzz-admin", "role": "admin"}]
    accounts = [{"name": "a", "broker": "paper", "environment": "paper"}]
    document = {
        "external_id": "org_fuzz",
        "entitlements": ["controls_premium"],
        "users": users,
        "accounts": accounts,
    }
    made = tenants.platform.provision({"organizations": [document]})["organizations"][0]
    admin = {"authorization": f"Bearer {tenants.platform.token('fuzz-admin', 'org_fuzz')}"}
    service = tenants.callers["service_unnamed"] | {"x-organization-id": made["id"]}
    (folder / "schemathesis.toml").write_text(
        f'[parameters]\n"path.account_id" = "{made["accounts"][0]["id"]}"\n'
    )
    return {"admin": admin, "service": service, "none": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that what schemathesis finds out about our sources is found out once."""
    return tmp_path_factory.mktemp("schemathesis")


@pytest.mark.timeout(LIMIT_SECONDS + 20)  # the program's own limit comes first
@pytest.mark.parametrize(
    ("caller", "examples", "phases"),
    [
        ("admin", 1, EVERY_PHASE),
        *(
            pytest.param(caller, 15, EVERY_PHASE, marks=pytest.mark.chaos)
            for caller in ("admin", "service", "none")
        ),
    ],
)
def test_no_server_error_and_no_undocumented_status(
    tenants: Tenants,
    callers: dict[str, Headers],
    caller: str,
    examples: int,
    phases: str,
    folder: Path,
) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert program, "the developers' lock installs schemathesis"
    headers = [
        part for name, value in callers[caller].items() for part in ("--header", f"{name}: {value}")
    ]
    options = (f"--checks={CHECKS}", f"--max-examples={examples}", "--generation-deterministic")
    # Who deletes themself is refused from then on, and nothing more would be looked at.
    choice = (f"--phases={phases}", "--exclude-path=/v1/users/me")
    command = [program, "run", f"{tenants.platform.url}/openapi.json", *options, *choice, *headers]

    def run(part: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *part], cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )

    with ThreadPoolExecutor(len(PARTS)) as threads:
        for done in threads.map(run, PARTS):
            assert "generated," in done.stdout, "it made up nothing"
            assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
