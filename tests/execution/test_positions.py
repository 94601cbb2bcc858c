"""Positions: of many symbols at once, summed up again, and beside the broker's own count."""

from io import StringIO
from typing import Any

import pytest

from tests.execution.books import Books, D, fill, told
from trading_intents.brokers.port import BrokerEvent
from trading_intents.brokers.port import EventKind as E
from trading_intents.execution import tracker
from trading_intents.execution.tracker import warn
from trading_intents.telemetry import Metrics, make_log


def counted(quantity: str, key: str, symbol: str = "AAPL", at: int | None = None) -> BrokerEvent:
    return told(E.POSITION, None, key, at, symbol=symbol, quantity=quantity)


async def shown(books: Books) -> list[tuple[str, str]]:
    """The quantities in the stream's position events."""
    events = [event for event in await books.events() if type(event).__name__ == "BrokerPosition"]
    return [(event.symbol, event.quantity) for event in events]


async def test_many_symbols_are_booked_in_one_transaction(books: Books) -> None:
    symbols = [f"S{number}" for number in range(30)]
    orders = [await books.create("3", symbol=symbol) for symbol in symbols]
    await books.tell(*(fill(sent, f"e{place}", "3", f"{place + 1}.5") for place, sent in enumerate(orders)))
    for place, symbol in enumerate(symbols):
        assert (await books.position(symbol))["open_cost"] == D(3) * D(f"{place + 1}.5")
    assert len(await shown(books)) == 30


async def test_trades_are_booked_as_they_were_told_whatever_their_orders(books: Books) -> None:
    bought, sold = await books.create("20"), await books.create("10", side="SELL")
    await books.tell(fill(bought, "e1", "10", "10"), fill(sold, "e2", "10", "15"), fill(bought, "e3", "10", "20"))
    position = await books.position()
    assert (position["realized_pnl"], position["open_cost"]) == (D(50), D(200))


async def test_a_bust_sums_up_a_long_history_again(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "REBOOK_PAGE", 3)
    bought, sold = await books.create("70"), await books.create("5", side="SELL")
    await books.tell(*(fill(bought, f"e{place}", "10", str(place + 1)) for place in range(7)))
    await books.tell(fill(sold, "s1", "5", "10"))
    await books.tell(told(E.FILL_BUST, bought, "bust/e6", replaces="e6"), fill(bought, "e7", "10", "8"))
    position = await books.position()
    assert (position["quantity"], position["value_bought"]) == (D(65), D(10 * (1 + 2 + 3 + 4 + 5 + 6 + 8)))
    assert position["realized_pnl"] == D("32.5")  # 5 sold at 10 that cost 3.5 on average


async def test_the_brokers_count_is_shown_where_it_tells_one(books: Books) -> None:
    sent = await books.create("10")
    await books.tell(fill(sent, "e1", "4", at=1))
    await books.tell(counted("7", "p1", at=2))
    await books.tell(fill(sent, "e2", "6", at=3))
    assert await shown(books) == [("AAPL", "4"), ("AAPL", "7"), ("AAPL", "13")]
    row = await books.position()
    assert (row["quantity"], row["broker_quantity"]) == (D(10), D(13))
    before = await books.everything()
    await books.tell(counted("7", "p1", at=2), counted("1", "p0", at=0))
    assert await books.everything() == before  # an old report, and an older one
    await books.tell(fill(await books.create("5"), "e3", "5", at=2))
    assert (await books.position())["broker_quantity"] == D(13)  # its report of that second knew of it


async def test_a_report_counts_what_was_told_before_it_and_not_after(books: Books) -> None:
    sent = await books.create("10")
    await books.tell(fill(sent, "e1", "4"), counted("4", "p1"), fill(sent, "e2", "6"))
    row = await books.position()
    assert (row["quantity"], row["broker_quantity"]) == (D(10), D(10))
    await books.tell(told(E.FILL_BUST, sent, "bust/e2", replaces="e2"))
    row = await books.position()
    assert (row["quantity"], row["broker_quantity"]) == (D(4), D(4))


async def test_a_difference_is_logged_and_counted_once(books: Books) -> None:
    metrics, out = Metrics(), StringIO()
    log = make_log("warning", out)

    async def tell(*events: BrokerEvent) -> float | None:
        warn(await books.tell(*events), log, metrics)
        return metrics.registry.get_sample_value("ti_position_differences_total")

    sent = await books.create("10")
    assert await tell(fill(sent, "e1", "4"), counted("4", "p1")) == 0
    assert await tell(counted("3", "p2")) == 1
    assert await tell(counted("3", "p3")) == 1
    assert await tell(fill(sent, "e2", "6")) == 1
    assert await tell(counted("10", "p4")) == 1
    assert await tell(counted("2", "p5", "OTHER")) == 2
    lines: list[Any] = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all("position_differs" in line and str(books.accounts[0]) in line for line in lines)
