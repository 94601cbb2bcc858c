"""Commands against the shared platform, with an account of their own for each test."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.tenants import Tenants
from trading_intents_client import Account, TradingClient
from trading_intents_client.cli.program import cli

Command = Callable[..., Result]


@pytest.fixture
def client(tenants: Tenants) -> Iterator[TradingClient]:
    key = tenants.api_key("org_acme", "all")["api_key"]
    with TradingClient(tenants.platform.url, api_key=key) as client:
        yield client


@pytest.fixture
def account(client: TradingClient, request: pytest.FixtureRequest) -> Account:
    return client.account(client.create_account(request.node.name[:100], "paper", "paper").id)


@pytest.fixture
def environ(tenants: Tenants, account: Account, tmp_path: Path) -> dict[str, str | None]:
    return {
        "TRADING_INTENTS_URL": tenants.platform.url,
        "TRADING_INTENTS_API_KEY": tenants.api_key("org_acme", "all")["api_key"],
        "TRADING_INTENTS_ACCOUNT": account.id,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COLUMNS": "80",
    }


@pytest.fixture
def run(environ: dict[str, str | None]) -> Command:
    """A command within this process."""

    def invoke(*arguments: str, stdin: str = "", **changes: str | None) -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin, env=environ | changes)

    return invoke


def lines(done: Result) -> list[Any]:
    """The objects that `--json` printed."""
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]
