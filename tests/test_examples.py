"""The examples end with a clear line and an exit code, never with a traceback."""

import contextlib
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.background import working
from tests.fork_server import Fork
from tests.platform import Platform
from tests.sources import count_tokens
from trading_intents.config import PREFIX
from trading_intents_client import TradingClient

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT_SECONDS = 30
INTERRUPTED = 130
QUOTE_SECONDS = 0.02
MAX_STRATEGY_TOKENS = 530


@pytest.fixture(scope="module")
def folder(platform: Platform) -> Path:
    """The folder in which `make run` was typed."""
    return Path(platform.environ[f"{PREFIX}DATA_DIR"]).parent


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}


def start(name: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """By an interpreter of its own: what is seen at its end is all that a user sees."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def fork(name: str, folder: Path, *arguments: str) -> Fork:
    """From a process that has imported what it needs: a tenth of the time."""
    environ = environment() | {"PYTHONPATH": str(EXAMPLES)}
    with contextlib.chdir(folder):
        module = name.removesuffix(".py")
        return Fork(
            module, *arguments, environ=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


def ended(process: Fork) -> tuple[int, str, str]:
    """Its exit code, what it showed since, and its messages on standard error: a few lines, for
    which a pipe has room."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        code = process.wait(LIMIT_SECONDS)
        return code, process.stdout.read(), process.stderr.read()


def run(name: str, folder: Path, *arguments: str) -> tuple[int, str]:
    code, _, reported = ended(fork(name, folder, *arguments))
    assert "Traceback" not in reported
    return code, reported


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as taken:  # bound, so that nobody else gets it, and never listening
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_the_demo_is_found_without_an_argument(folder: Path) -> None:
    process = start("place_order.py", folder)
    shown, reported = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, reported) == (0, "")
    assert shown.startswith("BUY 5 MSFT: FILLED 5 at ")


def test_an_order_over_the_limit_is_refused_and_a_halt_ends_those_that_rest(folder: Path) -> None:
    code, shown, reported = ended(fork("limit_and_halt.py", folder))
    assert (code, reported) == (0, "")
    refused, halted, resumed = shown.splitlines()
    assert refused.startswith("refused: ")
    assert "101" in refused
    assert halted == "halted: 1 of 1 orders have ended, this one as CANCELLED"
    assert resumed == "resumed"


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("place_order.py", "http://"), ("limit_and_halt.py", "http://"), ("follow_stream.py", "")],
)
def test_a_wrong_port_is_reported_in_a_line(
    name: str, scheme: str, folder: Path, closed_port: str
) -> None:
    code, reported = run(name, folder, scheme + closed_port)
    assert code == 1
    assert len(reported.splitlines()) == 1
    assert closed_port in reported
    assert "make run" in reported


def test_the_port_of_the_other_protocol_is_reported(folder: Path, platform: Platform) -> None:
    for name, address in (
        ("place_order.py", f"http://{platform.grpc}"),
        ("follow_stream.py", platform.url[7:]),
    ):
        code, reported = run(name, folder, address)
        assert (code, len(reported.splitlines())) == (1, 1), reported


@pytest.mark.parametrize(
    ("name", "address"), [("place_order.py", "http://127.0.0.1:1"), ("follow_stream.py", "a:1")]
)
def test_a_folder_without_the_demo_is_reported(name: str, address: str, tmp_path: Path) -> None:
    code, reported = run(name, tmp_path, address)
    assert (code, len(reported.splitlines())) == (1, 1)
    assert "demo.json" in reported


def test_ctrl_c_ends_the_follower_with_a_line(folder: Path, platform: Platform) -> None:
    process = start("follow_stream.py", folder, platform.grpc)
    assert process.stdout is not None
    assert "Event(" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, reported = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, reported) == (INTERRUPTED, "interrupted\n")


@pytest.fixture
def swinging_price(folder: Path, platform: Platform) -> Iterator[TradingClient]:
    """The price of CROSS rises and falls without end."""
    key = json.loads((folder / ".data" / "demo.json").read_text())["api_key"]

    def quote(over: threading.Event) -> None:
        for tick in itertools.count():
            price = 100 + abs(tick % 20 - 10)
            client.market.post_quote(
                "CROSS", bid=price, ask=price, bid_size=10_000, ask_size=10_000
            )
            if over.wait(QUOTE_SECONDS):
                return

    with TradingClient(platform.url, api_key=key) as client, working(quote):
        yield client


def test_a_strategy_that_is_killed_goes_on_and_places_no_order_twice(
    folder: Path, swinging_price: TradingClient, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    asked = ("CROSS", "--ticks", "150", "--pause", "0.01", "--state", str(state))
    for orders_before_kill in (1, 2, 1, None):
        process = fork("moving_average.py", folder, *asked)
        assert process.stdout is not None
        if orders_before_kill is not None:
            assert (
                len(list(itertools.islice(process.stdout, orders_before_kill)))
                == orders_before_kill
            )
            process.kill()
        code, _, reported = ended(process)
        assert reported == ""
    assert code == 0
    account = swinging_price.find_account("sim")
    sides = [order.order_side for order in account.orders(symbol="CROSS")]
    assert len(sides) >= 5
    assert sides == [("BUY", "SELL")[index % 2] for index in range(len(sides))]
    (held,) = [position.quantity for position in account.positions() if position.symbol == "CROSS"]
    assert held == (10 if json.loads(state.read_text())["holds"] else 0)
    assert count_tokens(EXAMPLES / "moving_average.py") <= MAX_STRATEGY_TOKENS


def test_ctrl_c_ends_the_order_with_a_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = start("place_order.py", folder, f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.settimeout(LIMIT_SECONDS)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(16)
            process.send_signal(signal.SIGINT)
            _, reported = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, reported) == (INTERRUPTED, "interrupted\n")


def test_a_strategy_whose_order_is_rejected_ends_with_a_line_and_can_be_started_again(
    folder: Path, swinging_price: TradingClient, tmp_path: Path
) -> None:
    """Under its key the order stays rejected for ever: the state must not keep it."""
    state = tmp_path / "state.json"
    state.write_text(
        json.dumps({"holds": True, "order": {"side": "sell", "key": str(uuid.uuid4())}})
    )
    asked = ("NEVERHELD", "--ticks", "0", "--state", str(state))
    code, reported = run("moving_average.py", folder, *asked)
    assert (code, reported) == (1, "not filled: no_position_to_sell\n")
    assert json.loads(state.read_text())["holds"]
    assert run("moving_average.py", folder, *asked) == (0, "")


def test_research_draws_the_equity_and_sums_up_trades(folder: Path, platform: Platform) -> None:
    with contextlib.chdir(folder), TradingClient(platform.url) as client:
        account = client.find_account("sim")
        account.buy("AAPL", 2).wait()
        trades = account.trades().to_dicts()
        history = account.equity(resolution="1m")
    assert [point["equity"] for point in history.to_dicts()] == [
        point.equity for point in history.data
    ]
    code, reported, wrong = ended(fork("research.py", folder, platform.url))
    assert (code, wrong) == (0, "")
    assert reported.startswith(f"{len(trades)} trades\n  AAPL ")
    assert "equity" in reported
    draw = runpy.run_path(str(EXAMPLES / "research.py"))["draw"]
    assert draw([Decimal(1), Decimal(2), Decimal(3)]) == " ▄█"
    assert draw([Decimal(5)] * 100) == "▄" * 72
