"""Messages of the trader's commands when something fails while or after an order was placed, or for
one of several."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.proxy import Verdict
from tests.tenants import EVERY_PERMISSION, Tenants
from tests.trader.conftest import Command, lines
from tests.trader.replaced_answers import answers_replaced, http
from trading_intents.identity.model import Entitlement
from trading_intents_client import (
    Account,
    ConnectionState,
    Interrupted,
    PlacedOrder,
    TradingClient,
    errors,
)
from trading_intents_client.cli.output import exit_codes
from trading_intents_client.cli.tables import print_table

REFUSED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


FORBIDDEN = http(
    b"403 Forbidden", b'{"code": "forbidden", "status": 403, "title": "t", "detail": "no streams"}'
)


@pytest.mark.parametrize("answer", [FORBIDDEN, Verdict.CUT_UNSENT], ids=["forbidden", "cut"])
def test_an_order_whose_wait_fails_is_not_reported_as_refused(
    run: Command, tenants: Tenants, account: Account, answer: bytes | Verdict
) -> None:
    """A user who repeats a command that was refused would place the order twice."""
    with answers_replaced(tenants, rb"/events|/orders/", answer) as url:
        for mode in ((), ("--json",)):
            done = run("buy", "AAPL", "1", "--wait", *mode, TRADING_INTENTS_URL=url)
            newest = account.orders(order="desc").page(limit=1).data[0]
            assert done.exit_code == UNREACHABLE, done.output
            assert newest.intent_id in done.stdout
            assert "Refused" not in done.stderr
            if mode:
                assert json.loads(done.stdout)["intent_id"] == newest.intent_id


def test_a_wait_without_the_permission_to_stream_reads_the_order(
    run: Command, tenants: Tenants
) -> None:
    with answers_replaced(tenants, b"/events", FORBIDDEN) as url:
        done = run("buy", "AAPL", "1", "--wait", TRADING_INTENTS_URL=url)
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("BUY 1 AAPL: FILLED 1 at ")
        late = run(
            "buy",
            "ACME",
            "1",
            "--limit",
            "1",
            "--wait",
            "--timeout",
            "1.5",
            TRADING_INTENTS_URL=url,
        )
    assert late.exit_code == REFUSED
    assert "is NEW after 1.5 s" in late.stderr


def test_an_order_whose_broker_is_away_is_accepted_with_a_warning(
    run: Command, tenants: Tenants, account: Account
) -> None:
    known = msgspec.json.encode(
        msgspec.structs.replace(account.get(), connection=ConnectionState.DISCONNECTED)
    )
    path = f"GET /v1/accounts/{account.id} ".encode()
    with answers_replaced(tenants, path, http(b"200 OK", known)) as url:
        for mode in ((), ("--wait",)):
            done = run("buy", "AAPL", "1", *mode, TRADING_INTENTS_URL=url)
            assert done.exit_code == 0, done.output
            shown = [
                line.rpartition(": ")[2]
                for line in done.stderr.splitlines()
                if "broker is disconnected" in line
            ]
            assert shown == ["the order will wait for it, or end EXPIRED", "the order waits"], (
                "before, and after"
            )
    with answers_replaced(tenants, path, FORBIDDEN) as url:
        assert run("buy", "AAPL", "1", TRADING_INTENTS_URL=url).stderr == "", (
            "a key that may only trade gets no warning"
        )
    assert run("buy", "AAPL", "1").stderr == ""


def test_a_wait_that_runs_out_names_its_order_to_programs(run: Command) -> None:
    late = run("buy", "ACME", "1", "--limit", "1", "--wait", "--timeout", "0.3", "--json")
    assert late.exit_code == REFUSED
    assert json.loads(late.stdout)["intent_id"] in late.stderr


def test_an_interrupted_wait_names_its_order(
    run: Command, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise Interrupted(None)

    monkeypatch.setattr(PlacedOrder, "wait", interrupt)
    done = run("buy", "AAPL", "1", "--wait")
    assert done.exit_code == INTERRUPTED
    assert account.orders().page().data[0].intent_id in done.stdout


@pytest.mark.parametrize(
    "answer",
    [http(b"202 Accepted", b"<html>"), http(b"500 Internal Server Error", b"oops")],
    ids=["html", "500"],
)
def test_an_order_that_may_have_been_placed_is_not_reported_as_refused(
    run: Command, tenants: Tenants, answer: bytes
) -> None:
    with answers_replaced(tenants, b"/intents ", answer) as url:
        done = run("buy", "AAPL", "1", "--key", "mine", TRADING_INTENTS_URL=url)
    assert done.exit_code == UNREACHABLE, done.output
    assert "Refused" not in done.stderr
    assert "mine" in done.stderr


def test_a_refusal_after_a_lost_answer_is_not_reported_as_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = errors.Unauthorized("no", status=401)
    error.may_be_recorded = True
    error.idempotency_key = "mine"
    with pytest.raises(Exception, match=str(UNREACHABLE)), exit_codes():
        raise error
    shown = capsys.readouterr().err
    assert "Refused" not in shown
    assert "mine" in shown


def test_an_empty_key_is_a_usage_error_and_places_nothing(run: Command, account: Account) -> None:
    """A script whose variable is not set would place an order each time."""
    for key in ("", "k" * 129):
        assert run("buy", "AAPL", "1", "--key", key).exit_code == USAGE
    assert list(account.orders()) == []


def test_each_order_is_cancelled_although_another_cannot_be(run: Command, account: Account) -> None:
    filled = account.buy("AAPL", 1)
    filled.wait()
    resting = account.buy("ACME", 1, limit=1)
    resting.wait(until="NEW")
    done = run("cancel", filled.intent_id, "nobody", resting.intent_id)
    assert done.exit_code == REFUSED
    assert done.stdout == f"accepted: cancel {resting.intent_id}\n"
    assert filled.intent_id in done.stderr
    assert "nobody" in done.stderr
    assert resting.wait().order_status == "CANCELLED"


def test_a_cancel_asks_for_nothing_but_the_cancel(
    run: Command, tenants: Tenants, account: Account
) -> None:
    """Reads have a limit and a permission of their own, which must not stop a CANCEL."""
    resting = account.buy("ACME", 1, limit=1)
    resting.wait(until="NEW")
    with answers_replaced(tenants, b"/orders", http(b"403 Forbidden", b"no reads")) as url:
        assert run("cancel", resting.intent_id, TRADING_INTENTS_URL=url).exit_code == 0
    assert resting.wait().order_status == "CANCELLED"


def test_all_accounts_are_halted_and_resumed_although_one_cannot_be(
    run: Command, tenants: Tenants
) -> None:
    """Of an organization with two accounts: the others' have hundreds."""
    document: dict[str, Any] = {"external_id": "org_halted", "entitlements": list(Entitlement)}
    document |= {
        "api_keys": [{"name": "all", "environment": "paper", "permissions": EVERY_PERMISSION}]
    }
    api_key = tenants.platform.provision({"organizations": [document]})["organizations"][0][
        "api_keys"
    ][0]["api_key"]
    with TradingClient(tenants.platform.url, api_key=api_key) as client:
        made = [client.create_account(name, "paper", "paper").id for name in ("one", "other")]
        first, second = map(client.account, sorted(made))
        path = f"/v1/controls/accounts/{first.id}/halt".encode()
        with answers_replaced(tenants, path, http(b"403 Forbidden", b"no")) as url:
            done = run(
                "halt", "news", "--all", TRADING_INTENTS_URL=url, TRADING_INTENTS_API_KEY=api_key
            )
        assert done.exit_code == REFUSED
        assert first.id in done.stderr
        assert second.controls.current_halt().state != "resumed"
        resumed = run("resume", "--all", "--json", TRADING_INTENTS_API_KEY=api_key)
        assert resumed.exit_code == REFUSED, "the first was not halted"
        assert second.controls.current_halt().state == "resumed"
        with pytest.raises(errors.NotHalted):
            second.controls.resume()


def test_an_account_whose_broker_has_reported_nothing_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    balances = SimpleNamespace(currency=None, cash=None)
    print_table({"currency": "currency", "cash": "cash"}, [balances], "no cash")
    assert capsys.readouterr().out == "no cash\n"


def test_a_symbol_without_all_is_a_usage_error(run: Command) -> None:
    assert run("cancel", "id", "--symbol", "AAPL").exit_code == USAGE


@pytest.mark.parametrize("url", ["localhost:8080", "http://h:99999"])
def test_a_url_that_cannot_be_one_is_a_usage_error(run: Command, url: str) -> None:
    wrong = run("positions", TRADING_INTENTS_URL=url)
    assert wrong.exit_code == USAGE
    assert wrong.exception is None or isinstance(wrong.exception, SystemExit)


def test_a_key_with_spaces_around_it_is_stored_without_them(
    run: Command, tenants: Tenants, account: Account, tmp_path: Path
) -> None:
    key = tenants.api_key("org_acme", "all")["api_key"]
    nothing: dict[str, str | None] = {
        f"TRADING_INTENTS_{name}": None for name in ("URL", "API_KEY", "ACCOUNT")
    }
    assert run("login", "--url", tenants.platform.url, stdin="\n", **nothing).exit_code == USAGE
    assert (
        run("login", "--url", tenants.platform.url, stdin=f"  {key} \n", **nothing).exit_code == 0
    )
    assert run("positions", "--account", account.id, **nothing).exit_code == 0


@pytest.mark.parametrize(
    "variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}], ids=["NO_COLOR", "dumb", "no terminal"]
)
def test_nothing_is_coloured_where_it_must_not_be(run: Command, variables: dict[str, str]) -> None:
    placed = lines(run("buy", "AAPL", "1", "--json", **variables))
    for arguments in (
        ("orders", "--all"),
        ("positions",),
        ("cancel", placed[0]["intent_id"]),
        ("balances",),
    ):
        assert "\x1b" not in run(*arguments, **variables).output
