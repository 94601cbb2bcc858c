"""Exits and pairs at the paper broker, by the client and the commands, from the order to its
end."""

import uuid
from collections.abc import Iterator
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from tests.tenants import Tenants
from trading_intents_client import Account, TradingClient, ValidationFailed
from trading_intents_client.cli.program import cli

WAIT_SECONDS = 30
WIDTH = 80


@pytest.fixture
def client(tenants: Tenants) -> Iterator[TradingClient]:
    with TradingClient(
        tenants.platform.url, api_key=tenants.api_key("org_acme", "all")["api_key"]
    ) as client:
        yield client


@pytest.fixture
def account(client: TradingClient) -> Account:
    return client.account(client.create_account("exits", "paper", "paper").id)


@pytest.fixture
def symbol(client: TradingClient) -> str:
    name = f"X{uuid.uuid4().hex[:8].upper()}"
    post(client, name, 100)
    return name


def post(client: TradingClient, symbol: str, price: int) -> None:
    client.market.post_quote(symbol, bid=price, ask=price, bid_size=100_000, ask_size=100_000)


def test_a_bracket_takes_its_profit(client: TradingClient, account: Account, symbol: str) -> None:
    placed = account.buy(symbol, 10, take_profit="110", stop_loss=("90", "89"))
    profit, loss = placed.legs
    assert (profit.leg, loss.leg, profit.seq, loss.seq) == (
        "take_profit",
        "stop_loss",
        placed.seq + 1,
        placed.seq + 2,
    )
    assert placed.wait(timeout=WAIT_SECONDS).order_status == "FILLED"
    stop = loss.wait(until="NEW", timeout=WAIT_SECONDS)
    assert (stop.parent_intent_id, stop.stop_price, stop.limit_price) == (
        placed.intent_id,
        Decimal(90),
        Decimal(89),
    )
    post(client, symbol, 111)
    assert profit.wait(timeout=WAIT_SECONDS).average_price == 110
    ended = loss.wait(timeout=WAIT_SECONDS)
    assert (ended.order_status, ended.reason) == ("CANCELLED", "pair_filled")
    assert {(leg.leg, leg.order_status) for leg in placed.find_legs()} == {
        ("take_profit", "FILLED"),
        ("stop_loss", "CANCELLED"),
    }


def test_exits_wait_for_their_entry_and_a_leg_is_replaced(account: Account, symbol: str) -> None:
    placed = account.short(symbol, 10, limit="120", take_profit="80", stop_loss="130")
    placed.wait(until="NEW", timeout=WAIT_SECONDS)
    assert [(leg.active, leg.is_final) for leg in placed.find_legs()] == [(False, False)] * 2
    with pytest.raises(ValidationFailed) as wrong:
        account.short(symbol, 10, limit="120", take_profit="125")
    assert wrong.value.errors[0].pointer == "/command/payload/exits/take_profit/limit_price"
    placed.cancel()
    for leg in placed.legs:
        assert leg.wait(timeout=WAIT_SECONDS).reason == "entry_ended"


def test_one_cancels_the_other(client: TradingClient, account: Account, symbol: str) -> None:
    account.buy(symbol, 10).wait(timeout=WAIT_SECONDS)
    limit = account.sell(symbol, 10, limit="110", one_cancels_other="90")
    (stop,) = limit.legs
    assert stop.wait(until="NEW", timeout=WAIT_SECONDS).leg == "one_cancels_other"
    post(client, symbol, 89)
    assert stop.wait(timeout=WAIT_SECONDS).order_status == "FILLED"
    assert limit.wait(timeout=WAIT_SECONDS).order_status == "CANCELLED"


def test_commands_place_and_show_exits(
    client: TradingClient, account: Account, symbol: str, tenants: Tenants
) -> None:
    key = tenants.api_key("org_acme", "all")["api_key"]
    environ = {
        "TRADING_INTENTS_URL": client.url,
        "TRADING_INTENTS_API_KEY": key,
        "COLUMNS": str(WIDTH),
    }
    environ |= {"TRADING_INTENTS_ACCOUNT": account.id}
    exits = ("--take-profit", "120", "--stop-loss", "80")
    done = CliRunner().invoke(cli, ["buy", symbol, "3", "--limit", "99", *exits], env=environ)
    assert done.exit_code == 0, done.output
    (entry,) = [order for order in account.orders() if order.leg is None]
    for leg in entry.find_legs():
        assert f"  {leg.leg}: order {leg.order_id}\n" in done.stdout
    shown = CliRunner().invoke(cli, ["orders"], env=environ).stdout
    assert "take_profit" in shown
    assert "stop_loss" in shown
    assert max(map(len, shown.splitlines())) <= WIDTH
    refused = CliRunner().invoke(cli, ["sell", symbol, "3", *exits], env=environ)
    assert refused.exit_code == 1
    assert "a SELL has no exits" in refused.output
