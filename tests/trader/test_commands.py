"""Orders by command: what is printed, what happens, and the exit code that a script gets."""

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.platform import run_command
from tests.tenants import Tenants
from tests.trader.conftest import Command, lines
from trading_intents_client import Account, PlacedOrder, TradingClient
from trading_intents_client.cli.program import cli

REFUSED = 1
USAGE = 2
UNREACHABLE = 3


def test_a_market_order_is_bought_and_waited_for(run: Command, account: Account) -> None:
    done = run("buy", "aapl", "10", "--wait")
    assert done.exit_code == 0, done.output
    assert re.fullmatch(r"BUY 10 AAPL: FILLED 10 at [\d.]+, order \S+\n", done.stdout)
    assert run("sell", "AAPL", "4", "--wait").exit_code == 0
    assert run("short", "MSFT", "2", "--wait").exit_code == 0
    shown = run("positions").stdout.splitlines()
    assert [line.split()[:2] for line in shown[1:3]] == [["AAPL", "6"], ["MSFT", "-2"]]
    assert [trade["symbol"] for trade in lines(run("trades", "--json"))] == ["AAPL", "AAPL", "MSFT"]
    assert "AAPL" in run("trades").stdout


def test_a_limit_order_is_shown_replaced_and_cancelled(run: Command, account: Account) -> None:
    placed = lines(run("buy", "ACME", "5", "--limit", "1.5", "--tif", "gtc", "--json"))[0]
    account.order(placed["intent_id"]).wait(until="NEW")
    (order,) = lines(run("orders", "--json"))
    assert (order["limit_price"], order["time_in_force"]) == ("1.5", "GOOD_TILL_CANCEL")
    shown = run("orders").stdout
    assert placed["intent_id"][:8] in shown
    assert run("replace", placed["intent_id"], "--quantity", "7").exit_code == 0
    assert account.order(placed["intent_id"]).wait(until="NEW").quantity == 7
    done = run("cancel", placed["intent_id"])
    assert (done.exit_code, done.stdout) == (0, f"accepted: cancel {placed['intent_id']}\n")
    account.order(placed["intent_id"]).wait()
    assert run("orders").stdout == "no open orders\n"
    assert [o["order_status"] for o in lines(run("orders", "--all", "--json"))] == ["CANCELLED"]
    assert [
        o["order_status"] for o in lines(run("orders", "--status", "cancelled,new", "--json"))
    ] == ["CANCELLED"]
    assert run("orders", "--flag", "unprotected").stdout == "no orders\n"
    assert run("orders", "--flag", "bare").exit_code != 0


def test_a_halt_stops_and_a_resume_lets_trade_again(run: Command) -> None:
    assert run("halt", "strange news").stdout.startswith("halted: ")
    refused = run("buy", "AAPL", "1")
    assert refused.exit_code == REFUSED
    assert "account_halted" in refused.stderr
    assert (
        "Refused: the account is halted: strange news (account_halted); request " in refused.stderr
    )
    assert "triggered" not in refused.stderr
    assert run("resume").exit_code == 0
    again = run("resume")
    assert again.exit_code == REFUSED
    assert "Account('" not in again.stderr
    assert run("buy", "AAPL", "1").exit_code == 0
    assert run("halt", "x", "--all", "--account", "y").exit_code == USAGE


def test_a_halt_prints_what_it_found(run: Command, account: Account) -> None:
    run("buy", "AAPL", "2", "--wait")
    placed = lines(run("buy", "ACME", "5", "--limit", "1.5", "--json"))[0]
    account.order(placed["intent_id"]).wait(until="NEW")
    kept = run("halt", "news", "--keep-orders").stdout
    assert kept == f"halted: account {account.id}, done\n"
    found = run("halt", "news", "--close-positions").stdout
    assert re.fullmatch(rf"halted: account {account.id}, \w+, 1 orders, 1 positions\n", found)
    (answered,) = lines(run("halt", "news", "--close-positions", "--json"))
    assert (answered["orders"], answered["positions"]) == (1, 1)


def test_money_and_prices_are_shown_and_all_orders_cancelled(
    run: Command, account: Account
) -> None:
    assert "cash" in run("balances").stdout
    assert lines(run("balances", "--json"))[0]["account_id"] == account.id
    assert re.search(r"^symbol .*\nAAPL .*walk", run("quote", "aapl").stdout, re.MULTILINE)
    placed = [account.buy("ACME", number, limit=1) for number in (1, 2)]
    for order in placed:
        order.wait(until="NEW")
    assert {one["intent_id"] for one in lines(run("cancel", "--all", "--json"))} == {
        o.intent_id for o in placed
    }
    assert {order.wait().order_status for order in placed} == {"CANCELLED"}
    assert run("cancel", "--all").stdout == "no open orders\n"


def test_a_refused_order_says_which_control_it_was(run: Command, account: Account) -> None:
    account.controls.set_symbol("AAPL", disabled=True, reason="earnings tonight")
    refused = run("buy", "AAPL", "1")
    assert refused.exit_code == REFUSED
    assert "earnings tonight" in refused.stderr
    assert refused.stdout == ""


def test_an_order_that_is_not_filled_fails_a_wait(run: Command) -> None:
    rejected = run("sell", "NOTHING", "3", "--wait")
    assert rejected.exit_code == REFUSED
    assert "REJECTED" in rejected.stdout
    late = run("buy", "ACME", "1", "--limit", "1", "--wait", "--timeout", "2")
    assert late.exit_code == REFUSED
    assert "after 2 s" in late.stderr


def test_the_same_key_places_one_order(run: Command, account: Account) -> None:
    first, second = (lines(run("buy", "AAPL", "1", "--key", "k1", "--json"))[0] for _ in range(2))
    assert second["is_replayed"]
    assert first["intent_id"] == second["intent_id"]
    assert len(list(account.orders())) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("buy", "AAPL"),
        ("buy", "AAPL", "many"),
        ("buy", "AAPL", "-1"),
        ("buy", "AAPL", "1", "--tif", "moon"),
        ("buy", "AAPL", "1", "--limit", "x"),
        ("cancel",),
        ("cancel", "id", "--all"),
        ("replace", "id"),
        ("orders", "--limit", "0"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_a_usage_error(run: Command, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == USAGE


def test_a_platform_that_cannot_be_reached_has_an_exit_code_of_its_own(run: Command) -> None:
    away = run("positions", TRADING_INTENTS_URL="http://127.0.0.1:9")
    assert away.exit_code == UNREACHABLE
    assert "http://127.0.0.1:9" in away.stderr
    assert "Traceback" not in away.output


def test_without_any_credential_it_says_where_they_come_from(run: Command, tmp_path: Path) -> None:
    nobody = run("positions", TRADING_INTENTS_API_KEY=None, TRADING_INTENTS_DATA_DIR=str(tmp_path))
    assert nobody.exit_code == USAGE
    assert "TRADING_INTENTS_API_KEY" in nobody.stderr
    wrong = run("positions", TRADING_INTENTS_API_KEY="tip_paper_none")
    assert wrong.exit_code == REFUSED
    assert "401 unauthorized" in wrong.stderr


def test_an_account_is_named_where_there_are_several(
    run: Command, client: TradingClient, account: Account
) -> None:
    client.create_account("second", "paper", "paper")
    unclear = run("positions", TRADING_INTENTS_ACCOUNT=None)
    assert unclear.exit_code == REFUSED
    assert "name one" in unclear.stderr
    assert (
        run("positions", "--account", account.id, TRADING_INTENTS_ACCOUNT=None).stdout
        == "no positions\n"
    )
    assert run("positions", "--account", "nobody").exit_code == REFUSED


def test_login_keeps_url_and_key_for_the_user_alone(
    run: Command, tenants: Tenants, account: Account, tmp_path: Path
) -> None:
    key = tenants.api_key("org_acme", "all")["api_key"]
    nothing: dict[str, str | None] = {
        f"TRADING_INTENTS_{name}": None for name in ("URL", "API_KEY", "ACCOUNT")
    }
    wrong = run("login", "--url", tenants.platform.url, stdin="tip_paper_none\n", **nothing)
    assert wrong.exit_code == REFUSED
    file = tmp_path / "config" / "trading-intents" / "login.json"
    assert not file.exists()
    done = run(
        "login", "--url", tenants.platform.url, "--account", account.id, stdin=f"{key}\n", **nothing
    )
    assert done.exit_code == 0, done.output
    assert key not in done.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert run("positions", **nothing).stdout == "no positions\n"
    other = {
        **nothing,
        "TRADING_INTENTS_URL": "http://127.0.0.1:9",
        "TRADING_INTENTS_DATA_DIR": str(tmp_path),
    }
    assert run("positions", **other).exit_code == USAGE, (
        "a stored key never goes to another platform"
    )
    assert run("logout", **nothing).stdout == f"removed {file}\n"
    assert run("logout", **nothing).stdout == "nothing was stored\n"


def test_it_says_its_version(run: Command) -> None:
    version = r"trading-intents \d+\.\d+\.\d+\n"
    assert re.fullmatch(f"{version}operating: {version}", run("--version").stdout), (
        "the server's is of its own"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_its_commands(shell: str) -> None:
    """Asked as the script asks that `--install-completion` writes."""
    asked = {
        "COMP_WORDS": "trading-intents bu",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "trading-intents bu",
    }
    asked |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for step, reported in (("source", "trading-intents"), ("complete", "buy")):
        environ = asked | {"_TRADING_INTENTS_COMPLETE": f"{step}_{shell}"}
        done = CliRunner().invoke(cli, [], env=environ, prog_name="trading-intents")
        assert reported in done.stdout, done


def test_the_clients_variables_are_no_unknown_settings_of_the_server(tenants: Tenants) -> None:
    environ = tenants.platform.environ | {
        "TRADING_INTENTS_URL": "x",
        "TRADING_INTENTS_API_KEY": "y",
    }
    reported = run_command(environ, "token", "--user", "acme-admin", "--organization", "org_acme")
    assert "unknown setting" not in reported.stderr


def test_exits_and_pairs_are_sent_as_they_are_typed(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def submit(_: Account, command: Any, *, idempotency_key: str | None = None) -> PlacedOrder:
        sent.append(command["payload"])
        legs = tuple(
            PlacedOrder(intent_id=f"{leg}-id", seq=2, leg=leg)
            for leg in command["payload"].get("exits", ())
        )
        return PlacedOrder(intent_id="entry-id", seq=1, idempotency_key=idempotency_key, legs=legs)

    monkeypatch.setattr(Account, "submit", submit)
    prices = ("--take-profit", "195", "--stop-loss", "180", "--stop-loss-limit", "179.5")
    done = run("buy", "AAPL", "10", "--limit", "187.5", *prices)
    assert done.exit_code == 0, done.output
    assert (
        "order entry-id\n  take_profit: order take_profit-id\n  stop_loss: order stop_loss-id\n"
        in done.stdout
    )
    run("sell", "AAPL", "10", "--limit", "195", "--oco", "180")
    assert [each.get("exits") or each["one_cancels_other"] for each in sent] == [
        {
            "take_profit": {"limit_price": "195"},
            "stop_loss": {"stop_price": "180", "limit_price": "179.5"},
        },
        {"stop_price": "180"},
    ]
    assert run("buy", "AAPL", "10", "--stop-loss-limit", "179.5").exit_code == 2
