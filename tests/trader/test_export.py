"""`export` writes all pages as CSV, and lists of the client become rows of a table."""

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.trader.conftest import Command
from trading_intents.orders.store import Order
from trading_intents_client import Account, Pages
from trading_intents_client.cli.commands.export import parse_end, parse_time

USAGE = 2


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three records make two pages."""
    defaults = Pages.csv_page.__kwdefaults__
    assert defaults
    monkeypatch.setitem(defaults, "limit", 2)


@pytest.mark.usefixtures("_small_pages")
def test_all_pages_are_exported_with_every_digit(run: Command, account: Account) -> None:
    account.buy("AAPL", 3).wait()
    rejected = account.sell("NOTHING", "5.5", client_reference_id='a "quoted", one').wait()
    resting = account.buy("ACME", 1, limit="1.25")
    resting.wait(until="NEW")
    orders = rows(run("export", "orders").stdout)
    assert [row["symbol"] for row in orders] == ["AAPL", "NOTHING", "ACME"]
    assert list(orders[0]) == list(Order.__struct_fields__), "as the platform writes them"
    assert orders[1]["client_reference_id"] == 'a "quoted", one'
    assert (orders[1]["quantity"], orders[1]["reason"], orders[1]["limit_price"]) == (
        "5.5",
        rejected.reason,
        "",
    )
    (trade,) = rows(run("export", "trades").stdout)
    assert Decimal(trade["price"]) == next(iter(account.trades())).price
    assert datetime.fromisoformat(trade["received_at"]).tzinfo == UTC
    intents = rows(run("export", "intents").stdout)
    assert [row["seq"] for row in intents] == ["1", "2", "3"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+2", "@SUM(1)"])
def test_no_cell_is_a_formula(run: Command, account: Account, text: str) -> None:
    account.buy("AAPL", 1, client_reference_id=text).wait()
    (order,) = rows(run("export", "orders").stdout)
    is_number = text == "+1"
    assert order["client_reference_id"] == (text if is_number else f"'{text}")


def test_an_export_has_the_records_of_its_days(run: Command, account: Account) -> None:
    account.buy("AAPL", 1).wait()
    today = datetime.now().astimezone().date()  # a day of this machine, as a person means it
    assert (
        len(
            rows(
                run(
                    "export",
                    "orders",
                    "--from",
                    str(today - timedelta(1)),
                    "--to",
                    str(today + timedelta(1)),
                ).stdout
            )
        )
        == 1
    )
    assert rows(run("export", "orders", "--from", str(today + timedelta(2))).stdout) == []
    assert rows(run("export", "orders", "--to", str(today - timedelta(2))).stdout) == []
    assert run("export", "orders", "--from", "soon").exit_code == USAGE
    assert run("export", "positions").exit_code == USAGE


def test_a_day_begins_and_ends_at_midnight_here() -> None:
    assert parse_end("2026-11-17") - parse_time("2026-11-17") == timedelta(days=1)
    assert parse_end("2026-11-17T15:30:00Z") == parse_time("2026-11-17T15:30:00Z")
    assert parse_time("2026-11-17T15:30:00Z") == datetime(2026, 11, 17, 15, 30, tzinfo=UTC)


def test_a_list_of_the_client_becomes_rows_of_a_table(account: Account) -> None:
    account.buy("AAPL", 2).wait()
    (row,) = account.trades().to_dicts()
    assert (row["symbol"], row["quantity"]) == ("AAPL", Decimal(2))
    assert isinstance(row["received_at"], datetime)
    assert account.orders().page().to_dicts() == account.orders().to_dicts()
