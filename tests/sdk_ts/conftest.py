"""The packed client, unpacked where Node.js looks for it."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from descriptions.typescript import build, missing_tool, pack_built

from tests.conftest import Once
from tests.tenants import Tenants
from trading_intents.config import PREFIX
from trading_intents_client import TradingClient

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv" / "npm-types"
PROGRAMS = Path(__file__).parent / "programs"
LIMIT_SECONDS = 110
NAME = "trading-intents-client"


@pytest.fixture(scope="session")
def tools() -> Path:
    missing = missing_tool(TOOLS)
    if missing:
        pytest.skip(missing)
    return TOOLS


@pytest.fixture(scope="session")
def source(once: Once, tools: Path, tenants: Tenants) -> Path:
    """The client's source with what is generated, and what TypeScript made of it."""

    def make(folder: Path) -> None:
        build(tenants.client.get("/openapi.json").json(), tools, folder)

    return once("typescript-source", make)


@pytest.fixture(scope="session")
def package(once: Once, source: Path) -> Path:
    """The folder that has the package among its `node_modules`."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        packed = pack_built(source, folder)
        with tarfile.open(packed) as archive:
            archive.extractall(folder / "node_modules")
        (folder / "node_modules" / "package").rename(folder / "node_modules" / NAME)

    return once("typescript-client", make)


class Programs:
    """Runs programs of a folder beside the package, at a URL and with an API key."""

    def __init__(self, package: Path, url: str, api_key: str) -> None:
        self.package = package
        self.url = url
        self.api_key = api_key

    @contextmanager
    def started(self, name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        file = self.package / name
        if not file.exists():
            file.write_text((PROGRAMS / name).read_text())
        clean = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        where = {f"{PREFIX}URL": self.url, f"{PREFIX}API_KEY": self.api_key}
        with subprocess.Popen(
            ["node", "--unhandled-rejections=strict", file.name, *map(str, arguments)],
            cwd=self.package,
            env=clean | where,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            yield process

    def run(self, name: str, *arguments: object) -> list[str]:
        """The lines that it prints."""
        with self.started(name, *arguments) as process:
            shown, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert (process.returncode, errors) == (0, ""), shown
        return shown.splitlines()


@pytest.fixture
def api_key(tenants: Tenants) -> str:
    key: str = tenants.api_key("org_acme", "all")["api_key"]
    return key


@pytest.fixture
def programs(package: Path, tenants: Tenants, api_key: str) -> Programs:
    return Programs(package, tenants.platform.url, api_key)


@pytest.fixture
def client(tenants: Tenants, api_key: str) -> Iterator[TradingClient]:
    with TradingClient(tenants.platform.url, api_key=api_key) as client:
        yield client


@pytest.fixture
def account_id(client: TradingClient, request: pytest.FixtureRequest) -> str:
    return client.create_account(request.node.name[:100], "paper", "paper").id
