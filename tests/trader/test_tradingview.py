"""examples/tradingview.py: an alert is one order, exact and allowed, or none; and its secret stays
where it is."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from tests.fork_server import Fork
from tests.sources import count_tokens
from trading_intents_client import Account, Limits

EXAMPLES = Path(__file__).parents[2] / "examples"
MAX_TOKENS = 1_035
SECRET = "S3cretOfTheAlerts" * 2
LIMIT_SECONDS = 30


@dataclass
class Alerts:
    url: str
    process: Fork

    def post(self, body: str, path: str = f"/{SECRET}", **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, content=body, headers=headers, timeout=LIMIT_SECONDS)


@pytest.fixture
def alerts(environ: dict[str, str | None], tmp_path: Path) -> Iterator[Alerts]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TRADING_INTENTS_")
    }
    settings = {name: value for name, value in environ.items() if value}
    settings |= {
        "ALERT_SECRET": SECRET,
        "ALERT_SYMBOLS": "AAPL, ACME,BTCUSD=BTC/USD",
        "PYTHONPATH": str(EXAMPLES),
    }
    with open(tmp_path / "log", "w") as log:
        process = Fork(
            "tradingview", "0", environ=kept | settings, stdout=subprocess.PIPE, stderr=log.fileno()
        )
        assert process.stdout is not None
        try:
            yield Alerts(
                process.stdout.readline().split()[-1].removesuffix("/ALERT_SECRET"), process
            )
        finally:
            process.kill()
            process.wait(LIMIT_SECONDS)
            shown = process.stdout.read() + (tmp_path / "log").read_text()
            process.stdout.close()
    assert SECRET not in shown
    assert str(environ["TRADING_INTENTS_API_KEY"]) not in shown
    assert "Traceback" not in shown


def test_an_alert_is_one_order_however_often_it_is_sent(alerts: Alerts, account: Account) -> None:
    text = (
        '{"id": "cross-1", "symbol": "ACME", "side": "buy", "quantity": 0.1, "limit_price": 1.30}'
    )
    first = alerts.post(text, **{"content-type": "text/plain"})
    second = alerts.post(text, **{"content-type": "application/json"})
    assert (first.status_code, second.status_code) == (202, 200)
    (order,) = account.orders()
    assert first.text == second.text == f"order {order.intent_id}\n"
    assert (order.quantity, order.limit_price) == (Decimal("0.1"), Decimal("1.3"))
    other = alerts.post(text.replace("0.1", "0.2"))
    assert other.status_code == 409
    assert "idempotency_conflict" in other.text
    cmdline = Path(f"/proc/{alerts.process.pid}/cmdline").read_text()
    assert SECRET not in cmdline


def test_a_symbol_of_the_senders_is_traded_under_ours(alerts: Alerts, account: Account) -> None:
    assert (
        alerts.post('{"id": "1", "symbol": "BTCUSD", "side": "sell", "quantity": "2"}').status_code
        == 202
    )
    assert [order.symbol for order in account.orders()] == ["BTC/USD"]


def test_a_limit_refuses_and_the_sender_reads_which(alerts: Alerts, account: Account) -> None:
    account.controls.set_limits(Limits(max_order_quantity=Decimal(5)))
    refused = alerts.post('{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 6}')
    assert (refused.status_code, refused.text) == (409, "refused: max_order_quantity\n")


@pytest.mark.parametrize(
    "body",
    [
        "buy AAPL 10",
        "[1]",
        '{"id": "1", "symbol": "AAPL", "side": "buy"}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 1, "limit_prise": 2}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 1, "quantity": 100}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": NaN}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": true}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": -1}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 1e999}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 1e999999999}',
        '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 1e-999999999}',
        '{"id": "1", "symbol": "AAPL", "side": "hold", "quantity": 1}',
        '{"id": "1", "symbol": "MSFT", "side": "buy", "quantity": 1}',
        '{"id": "1", "symbol": "aapl", "side": "buy", "quantity": 1}',
        '{"id": "", "symbol": "AAPL", "side": "buy", "quantity": 1}',
        '{"id": "\\n", "symbol": "AAPL", "side": "buy", "quantity": 1}',
        '{"id": 1, "symbol": "AAPL", "side": "buy", "quantity": 1}',
        "[" * 4000,
        "x" * 5000,
    ],
    ids=lambda body: body[-40:],
)
def test_what_is_no_alert_is_no_order(alerts: Alerts, account: Account, body: str) -> None:
    assert alerts.post(body).status_code == 422
    assert list(account.orders()) == []


def test_another_path_is_not_found(alerts: Alerts, account: Account) -> None:
    text = '{"id": "1", "symbol": "AAPL", "side": "buy", "quantity": 1}'
    for path in ("/", "", f"/{SECRET}x", f"/{SECRET[:-1]}", f"/{SECRET}/", f"/{SECRET}?x", "/é"):
        assert alerts.post(text, path).status_code == 404
    assert httpx.get(alerts.url).status_code == 501
    assert list(account.orders()) == []


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({}, "ALERT_SECRET"),
        ({"ALERT_SECRET": "pa55word"}, "ALERT_SECRET"),
        ({"ALERT_SECRET": SECRET}, "ALERT_SYMBOLS"),
        ({"ALERT_SECRET": SECRET, "ALERT_SYMBOLS": "AAPL"}, "no account to trade in"),
    ],
)
def test_it_says_what_it_needs(
    settings: dict[str, str], reported: str, environ: dict[str, str | None]
) -> None:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TRADING_INTENTS_")
    }
    away = {
        "TRADING_INTENTS_URL": "http://127.0.0.1:9",
        "TRADING_INTENTS_API_KEY": str(environ["TRADING_INTENTS_API_KEY"]),
    }
    process = Fork(
        "tradingview",
        environ=kept | away | settings | {"PYTHONPATH": str(EXAMPLES)},
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    with process.stderr:
        assert process.wait(LIMIT_SECONDS) == 1
        shown = process.stderr.read()
    assert reported in shown
    assert "pa55word" not in shown
    assert len(shown.splitlines()) == 1


def test_the_program_is_short() -> None:
    assert count_tokens(EXAMPLES / "tradingview.py") <= MAX_TOKENS
