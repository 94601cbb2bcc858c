"""Ids by their first characters, lines to type again, times of events, and keys that may only
trade."""

import itertools
import re
import shlex
from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.proxy import Verdict
from tests.tenants import Tenants
from tests.trader.conftest import Command, lines
from tests.trader.replaced_answers import answers_replaced, http
from trading_intents_client import Account, TradingClient
from trading_intents_client.cli.commands.arguments import find_order_id
from trading_intents_client.cli.commands.orders import typed

REFUSED = 1
UNREACHABLE = 3


def test_an_order_is_named_by_the_first_characters_of_its_id(
    run: Command, account: Account
) -> None:
    placed = account.buy("ACME", 5, limit="1.5")
    placed.wait(until="NEW")
    shown = run("orders").stdout.splitlines()[1].split()[-1]
    assert placed.intent_id.startswith(shown)
    assert len(shown) >= 8
    assert run("replace", shown, "--quantity", "7").exit_code == 0
    assert placed.wait(until="NEW").quantity == 7
    assert run("cancel", shown.upper()).stdout == f"accepted: cancel {placed.intent_id}\n"
    placed.wait()
    gone = run("cancel", shown)
    assert gone.exit_code == REFUSED
    assert f"no open order has an id that begins with {shown}" in gone.stderr


def test_a_beginning_of_several_ids_cancels_none_of_them(run: Command, account: Account) -> None:
    placed = [account.buy("ACME", number, limit=1) for number in (1, 2, 3)]
    for order in placed:
        order.wait(until="NEW")
    shared = [
        ids
        for ids in itertools.combinations([order.intent_id for order in placed], 2)
        if ids[0][:8] == ids[1][:8]
    ]
    assert shared, "their first eight characters change once in 65 s"
    unclear = run("cancel", shared[0][0][:8])
    assert unclear.exit_code == REFUSED
    assert "open orders begin with" in unclear.stderr
    assert len(list(account.orders(state="OPEN"))) == 3
    named = unclear.stderr.partition("type more: ")[2].partition(" (")[0].split(", ")
    assert {find_order_id(account, name) for name in named} <= {order.intent_id for order in placed}


def test_an_account_is_named_by_the_first_characters_of_its_id(
    run: Command, client: TradingClient
) -> None:
    ids = [found.id for found in client.accounts() if found.closed_at is None]
    for size in range(8, 36):
        if [one[:size] for one in ids].count(ids[0][:size]) == 1:
            break
    assert lines(run("balances", "--json", "--account", ids[0][:size]))[0]["account_id"] == ids[0]
    assert run("positions", "--account", "01a1d").exit_code == REFUSED


def test_a_whole_account_id_needs_no_permission_to_list_accounts(
    run: Command, tenants: Tenants, account: Account
) -> None:
    with answers_replaced(tenants, rb"/v1/accounts[? ]", http(b"403 Forbidden", b"no")) as url:
        done = run("buy", "AAPL", "1", "--account", account.id, TRADING_INTENTS_URL=url)
    assert done.exit_code == 0, done.output


def test_a_lost_answer_shows_the_line_to_type_again(
    run: Command, tenants: Tenants, account: Account
) -> None:
    options = ("--limit", "1.5", "--tif", "gtc", "--account", account.id)
    with answers_replaced(tenants, b"/intents ", Verdict.CUT_UNANSWERED) as url:
        lost = run("buy", "ACME", "2", *options, TRADING_INTENTS_URL=url)
    assert lost.exit_code == UNREACHABLE
    program, *again = shlex.split(lost.stderr.splitlines()[-1])
    assert program == "trading-intents"
    assert again[:-2] == [
        "buy",
        "ACME",
        "2",
        "--limit",
        "1.5",
        "--tif",
        "GOOD_TILL_CANCEL",
        "--account",
        account.id,
    ]
    assert again[-2] == "--key"
    (placed,) = lines(run(*again, "--json"))
    assert placed["is_replayed"]
    (order,) = account.orders()
    assert order.order_id == placed["intent_id"]
    order.wait(until="NEW")
    with answers_replaced(tenants, b"/intents ", Verdict.CUT_UNANSWERED) as url:
        lost = run("replace", order.order_id, "--quantity", "3", TRADING_INTENTS_URL=url)
    assert shlex.split(lost.stderr.splitlines()[-1])[1:5] == [
        "replace",
        order.order_id,
        "--quantity",
        "3",
    ]
    assert lines(run(*shlex.split(lost.stderr.splitlines()[-1])[1:], "--json"))[0]["is_replayed"]


def test_the_line_to_type_again_leaves_no_price_out() -> None:
    """An order that was typed again without its limit would be a market order; 30 is the default of
    another option."""
    for number in (Decimal(30), Decimal(1), Decimal("0.5")):
        assert typed(
            "buy", "A", {"--limit": number, "--stop": None, "--json": False, "--wait": True}
        ) == [*("buy", "A", "--limit", format(number, "f"), "--wait")]


def test_events_show_their_times(
    run: Command, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    with account.events() as stream:
        account.buy("AAPL", 1).wait()
        reported = list(itertools.islice(stream, 6))

    def replay(*_: object, **__: object) -> Iterator[object]:
        return iter(reported)

    monkeypatch.setattr(Account, "events", replay)
    done = run("events")
    assert done.exit_code == 0, done.output
    assert all(
        re.match(r"(\d\d-\d\d )?\d\d:\d\d:\d\d  \w", line) for line in done.stdout.splitlines()
    )
