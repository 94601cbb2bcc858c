"""Tables fit 80 columns, decimals line up, and reasons are sentences."""

import re
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trader.conftest import Command, lines
from trading_intents.controls.model import Reason
from trading_intents_client import Account
from trading_intents_client.cli.reasons import SENTENCES, explain, order_reason
from trading_intents_client.cli.tables import print_table, rounded, short_ids

D = Decimal
WIDTH = 80
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def record(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**fields)


def test_decimals_line_up_and_columns_without_a_value_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        record(s="A", q=D(1), n=None),
        record(s="LONG", q=D("12.345"), n=None),
        record(s="C", q=None, n=None),
    ]
    print_table({"symbol": "s", "quantity": "q", "none": "n"}, rows, "")
    assert (
        capsys.readouterr().out
        == "symbol  quantity\nA          1\nLONG      12.345\nC              -\n"
    )


def test_what_has_no_room_stands_below_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [record(name="n" * 30, why="w " * 45, id="i" * 30), record(name="m", why=None, id="j")]
    print_table({"name": "name", "why": "why", "id": "id"}, rows, "", ("why", "id"))
    reported = capsys.readouterr().out.splitlines()
    assert max(map(len, reported)) <= WIDTH
    assert [line.split() for line in reported[:2]] == [["name", "id"], ["n" * 30, "i" * 30]]
    assert " ".join(reported[2:4]).split() == ["w"] * 45
    assert reported[4].split() == ["m", "j"]


@pytest.mark.parametrize(
    ("value", "prices", "shown"),
    [
        ("424.123456789", ["424.12"], "424.12"),
        ("424.5", ["424"], "424.50"),
        ("0.000012345678", ["0.00001", None], "0.00001"),
        ("424.123456789", [], "424.1235"),
        ("424", [], "424"),
        ("0.000012345678", [], "0.00001235"),
    ],
)
def test_an_average_has_the_digits_of_its_prices(
    value: str, prices: list[str | None], shown: str
) -> None:
    known = [None if price is None else D(price) for price in prices]
    assert format(rounded(D(value), *known) or 0, "f") == shown


def test_an_id_is_shown_as_short_as_it_is_unique() -> None:
    ids = ["01a1dd48-2166-7b29", "01a1dd48-2167-7b29", "02a1dd48-2166-7b29"]
    assert list(short_ids(ids).values()) == ["01a1dd48-2166", "01a1dd48-2167", "02a1dd48"]
    assert short_ids(["same", "same"]) == {"same": "same"}


def test_every_reason_of_ours_has_a_sentence() -> None:
    paper = re.search(
        r"A refused or ended order says why in `reason`: (.*?)\.\n",
        (DOCS / "brokers.md").read_text(),
        re.S,
    )
    assert paper
    states = re.findall(r"reason `([a-z_]+)`", (DOCS / "states.md").read_text())
    assert set(Reason) | set(re.findall(r"`(\w+)`", paper[1])) | set(states) <= set(SENTENCES)
    assert explain("stale") == "it could not be sent in time and was given up (stale)"
    assert explain("asset ACME is not active") == "asset ACME is not active", (
        "as the broker says it"
    )
    assert order_reason(
        record(reason="stale", detail="the broker was not connected", flags=())
    ) == ("the broker was not connected (stale)")
    assert order_reason(record(reason=None, detail=None, flags=("unprotected",))) == "UNPROTECTED"


def test_tables_of_orders_trades_and_positions_fit_and_show_reasons(
    run: Command, account: Account
) -> None:
    account.buy("AAPL", 10).wait()
    account.buy("GOOGL", 1234, limit="1.25", stop="1234.5", time_in_force="GOOD_TILL_CANCEL").wait(
        until="NEW"
    )
    rejected = account.sell("NOTHING", 5_000_000).wait()
    assert (rejected.reason, rejected.detail) == (
        "no_position_to_sell",
        "the account holds less than it sells",
    )
    assert account.order(rejected.order_id).detail == rejected.detail
    reported = run("orders", "--all").stdout
    assert "the account holds less than it sells (no_position_to_sell)" in reported
    assert rejected.order_id[:8] in reported
    for command in (
        ("orders", "--all"),
        ("trades",),
        ("positions",),
        ("balances",),
        ("quote", "AAPL"),
    ):
        assert max(map(len, run(*command).stdout.splitlines())) <= WIDTH, command
    (position,) = lines(run("positions", "--json"))
    cost = re.search(r"^AAPL +10 +([\d.]+)", run("positions").stdout, re.MULTILINE)
    assert cost
    assert len(cost[1].partition(".")[2]) == max(2, len(position["market_price"].partition(".")[2]))
    wait = run("sell", "NOTHING", "3", "--wait")
    assert (
        "REJECTED, the account holds less than it sells (no_position_to_sell), order" in wait.stdout
    )
