"""Installations: the trader's commands without the server, and the server's commands beside
them."""

import os
import subprocess
import sys

import pytest

from tests.trader.conftest import Command

pytestmark = pytest.mark.slow

LOADED = """
import sys
from trading_intents_client.cli import main
try:
    main()
finally:
    packages = ("trading_intents", "mcp")
    print([name for name in sys.modules if name.partition(".")[0] in packages], file=sys.stderr)
"""
WITHOUT_THE_EXTRA = """
import sys
sys.modules[sys.argv.pop(1)] = None
from trading_intents_client.cli import main
main()
"""


def python(
    program: str, environ: dict[str, str | None], *arguments: str
) -> subprocess.CompletedProcess[str]:
    settings = {
        name: value for name, value in (dict(os.environ) | environ).items() if value is not None
    }
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_traders_command_imports_nothing_of_the_server_or_for_agents(
    environ: dict[str, str | None],
) -> None:
    done = python(LOADED, environ, "quote", "AAPL")
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "AAPL" in done.stdout
    assert "trading_intents.cli" in python(LOADED, environ, "audit", "--help").stderr


def test_without_the_extra_the_command_says_what_to_install() -> None:
    done = python(WITHOUT_THE_EXTRA, {}, "typer", "quote", "AAPL")
    assert done.returncode == 1
    assert done.stderr == "this command needs typer: pip install 'trading-intents-client[cli]'\n"


def test_without_the_extra_for_agents_their_command_says_what_to_install(run: Command) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mcp_types", None)
        patch.delitem(sys.modules, "trading_intents_client.agents.server", raising=False)
        done = run("mcp")
    assert done.exit_code == 2
    assert "this command needs mcp: pip install 'trading-intents-client[mcp]'" in " ".join(
        done.stderr.split()
    )


def test_traders_and_operators_commands_stand_apart_in_the_help(run: Command) -> None:
    trading, operating = run("--help").stdout.partition("─ Trading ─")[2].split("─ Operating ─")
    assert "│ buy " in trading
    assert "│ serve " not in trading
    assert "│ serve " in operating
    assert "│ buy " not in operating
