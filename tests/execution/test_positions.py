"""Positions: of many symbols at once, summed up again, and beside what the broker reports."""

import asyncio
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import executing, open_in_process
from tests.execution.recorded_orders import Books, D, fill, reported
from tests.journal import FACTS
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.brokers.port import BrokerEvent
from trading_intents.brokers.port import EventKind as E
from trading_intents.orders.facts import FactKind
from trading_intents.orders.ledger import recording
from trading_intents.orders.ledger.reporting import log_recorded
from trading_intents.telemetry import Metrics, make_log

WAIT_SECONDS = 10.0


def counted(quantity: str, key: str, symbol: str = "AAPL", at: int | None = None) -> BrokerEvent:
    return reported(E.POSITION, None, key, at, symbol=symbol, quantity=quantity)


async def shown(books: Books) -> list[tuple[str, str]]:
    """The quantities in the stream's position events."""
    events = [event for event in await books.events() if type(event).__name__ == "BrokerPosition"]
    return [(event.symbol, event.quantity) for event in events]


async def test_many_symbols_are_booked_in_one_transaction(books: Books) -> None:
    symbols = [f"S{number}" for number in range(30)]
    orders = [await books.create("3", symbol=symbol) for symbol in symbols]
    await books.record(
        *(fill(sent, f"e{index}", "3", f"{index + 1}.5") for index, sent in enumerate(orders))
    )
    for index, symbol in enumerate(symbols):
        assert (await books.position(symbol))["open_cost"] == D(3) * D(f"{index + 1}.5")
    assert len(await shown(books)) == 30


async def test_trades_are_booked_as_they_were_reported_whatever_their_orders(books: Books) -> None:
    bought = await books.create("20")
    sold = await books.create("10", side="SELL")
    await books.record(
        fill(bought, "e1", "10", "10"), fill(sold, "e2", "10", "15"), fill(bought, "e3", "10", "20")
    )
    position = await books.position()
    assert (position["realized_pnl"], position["open_cost"]) == (D(50), D(200))


async def test_a_bust_sums_up_a_long_history_again(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "REBOOK_PAGE", 3)
    bought = await books.create("70")
    sold = await books.create("5", side="SELL")
    await books.record(*(fill(bought, f"e{index}", "10", str(index + 1)) for index in range(7)))
    await books.record(fill(sold, "s1", "5", "10"))
    await books.record(
        reported(E.FILL_BUST, bought, "bust/e6", replaces="e6"), fill(bought, "e7", "10", "8")
    )
    position = await books.position()
    assert (position["quantity"], position["value_bought"]) == (
        D(65),
        D(10 * (1 + 2 + 3 + 4 + 5 + 6 + 8)),
    )
    assert position["realized_pnl"] == D("32.5")  # 5 sold at 10 that cost 3.5 on average


async def compared(books: Books, symbol: str = "AAPL") -> tuple[Decimal, Decimal | None, bool]:
    row = await books.position(symbol)
    return row["quantity"], row["broker_quantity"], row["differs"]


async def test_readers_see_our_quantity_and_the_brokers_report_is_an_alarm(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "4", at=1))
    await books.record(counted("7", "p1", at=2))
    await books.record(fill(sent, "e2", "6", at=3))
    assert await shown(books) == [("AAPL", "4"), ("AAPL", "10")]
    assert await compared(books) == (D(10), D(7), True)
    before = await books.everything()
    await books.record(counted("7", "p1", at=2), counted("1", "p0", at=0))
    assert await books.everything() == before  # an old report, and an older one


async def test_a_fill_that_was_on_its_way_ends_the_difference(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "1"))
    await books.record(counted("11", "p1"))
    assert await compared(books) == (D(1), D(11), True)
    await books.record(fill(await books.create("10"), "e2", "10"))
    assert await compared(books) == (D(11), D(11), False)
    await books.record(fill(sent, "e3", "5"))
    assert await compared(books) == (D(16), D(11), False)  # a fill from after the report


async def test_fills_that_overtake_a_report_make_no_difference(books: Books) -> None:
    sent = await books.create("100")
    await books.record(fill(sent, "e1", "1"))
    await books.record(fill(sent, "e2", "10"), fill(sent, "e3", "20"))
    await books.record(counted("1", "p1"))
    assert await compared(books) == (D(31), D(1), False)
    await books.record(fill(sent, "e4", "5"), counted("31", "p2"))
    assert await compared(books) == (D(36), D(31), False)
    await books.owner.execute("UPDATE trades SET received_at = received_at - interval '1 minute'")
    await books.record(counted("11", "p3"))
    assert await compared(books) == (D(36), D(11), True)


async def test_hundreds_of_fills_may_overtake_a_report(books: Books) -> None:
    sent = await books.create("1000")
    await books.record(fill(sent, "first", "1"))
    await books.record(*(fill(sent, f"e{n}", "1") for n in range(300)))
    await books.record(counted("1", "p1"))
    assert await compared(books) == (D(301), D(1), False)


async def test_a_bust_that_the_broker_counts_already_ends_the_difference(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "4"), fill(sent, "e2", "6"))
    await books.record(counted("3", "p1"))
    await books.record(
        reported(E.FILL_CORRECT, sent, "k1", exec_id="k1", replaces="e1", quantity="3", price="10")
    )
    await books.record(reported(E.FILL_BUST, sent, "bust/e2", replaces="e2"))
    assert await compared(books) == (D(3), D(3), False)


async def test_a_symbol_that_was_never_held_or_traded_has_no_position(books: Books) -> None:
    await books.create("10", limit="1")
    await books.record(counted("0", "p1"), counted("0", "p2", "OTHER"))
    assert await books.owner.fetchval("SELECT count(received_at) FROM holdings") == 0
    await books.record(counted("2", "p3", "OTHER"))
    assert await compared(books, "OTHER") == (D(0), D(2), True)
    await books.record(counted("0", "p4", "OTHER"))
    assert await compared(books, "OTHER") == (D(0), D(0), False)


async def test_a_position_of_what_is_no_symbol_is_left_out_loudly(books: Books) -> None:
    metrics = Metrics()
    out = StringIO()
    odd = ["AAA\x1fBBB", "\x1e", "A\nB", "<b>", "\u202eX", "K" * 300, "A\ud800", "A\0"]
    events = [counted("2", f"p{index}", symbol) for index, symbol in enumerate(odd)]
    log_recorded(
        await books.record(*events, counted("3", "good", "ok.a")), make_log("warning", out), metrics
    )
    rows = await books.owner.fetch("SELECT symbol, broker_quantity FROM holdings")
    assert [tuple(row) for row in rows] == [("OK.A", D(3))]
    kinds = {"kind": "event_left_out"}
    assert metrics.registry.get_sample_value("ti_execution_alerts_total", kinds) == len(odd)
    assert out.getvalue().count("broker event left out") == len(odd)


async def test_a_difference_is_logged_and_counted_once(books: Books) -> None:
    metrics = Metrics()
    out = StringIO()
    log = make_log("warning", out)

    async def record(*events: BrokerEvent) -> float | None:
        log_recorded(await books.record(*events), log, metrics)
        return metrics.registry.get_sample_value("ti_position_differences_total")

    sent = await books.create("10")
    assert await record(fill(sent, "e1", "4"), counted("4", "p1")) == 0
    assert await record(counted("3", "p2")) == 1
    assert await record(counted("3", "p3")) == 1
    assert await record(fill(sent, "e2", "5")) == 1
    assert await record(counted("9", "p4")) == 1
    assert await record(counted("2", "p5", "OTHER")) == 2
    lines: list[Any] = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all("position differs" in line and str(books.accounts[0]) in line for line in lines)


def fee(quantity: str, key: str, symbol: str = "BTC/USD") -> BrokerEvent:
    return reported(E.FEE, None, key, symbol=symbol, quantity=quantity)


async def test_a_fee_in_the_symbol_is_booked_once_and_ends_the_difference(books: Books) -> None:
    sent = await books.create("2", symbol="BTC/USD")
    await books.record(fill(sent, "e1", "2", "100"), counted("1.995", "p1", "BTC/USD"))
    assert await compared(books, "BTC/USD") == (D(2), D("1.995"), True)
    await books.record(fee("0.005", "f1"), fee("0.005", "f1"))
    assert await compared(books, "BTC/USD") == (D("1.995"), D("1.995"), False)
    before = await books.everything()
    await books.record(fee("0.005", "f1"))
    assert await books.everything() == before
    position = await books.position("BTC/USD")
    assert (position["realized_pnl"], position["open_cost"]) == (D("-0.5"), D("199.5"))
    assert (await books.order(sent))["filled_quantity"] == D(2)
    assert (await shown(books))[-1] == ("BTC/USD", "1.995")


async def test_a_bust_keeps_the_fees_that_were_taken_in_the_symbol(books: Books) -> None:
    sent = await books.create("4", symbol="BTC/USD")
    await books.record(
        fill(sent, "e1", "2", "100"), fill(sent, "e2", "2", "100"), fee("0.01", "f1")
    )
    await books.record(reported(E.FILL_BUST, sent, "bust/e2", replaces="e2"), fee("-0.005", "f2"))
    position = await books.position("BTC/USD")
    assert (position["quantity"], position["fee_quantity"]) == (D("1.995"), D("0.005"))
    assert position["realized_pnl"] == D("-0.5")


async def test_a_fee_under_a_known_key_with_another_quantity_is_not_booked(books: Books) -> None:
    await books.record(
        fill(await books.create("2", symbol="BTC/USD"), "e1", "2"), fee("0.005", "f1")
    )
    recorded = await books.record(fee("0.004", "f1"))
    assert (await books.position("BTC/USD"))["quantity"] == D("1.995")
    assert [fact.kind for fact, _ in recorded.conflicts] == [FactKind.FEE]


async def test_a_fee_that_many_record_at_once_is_taken_once(books: Books) -> None:
    """The first makes the position; of the second all have looked for their orders when they wait
    for the position."""
    first = [books.record(fee("0.001", "coin1")) for _ in range(4)]
    await asyncio.gather(*first)
    lock = "SELECT FROM holdings WHERE symbol = 'BTC/USD' FOR UPDATE"
    async with asyncio.TaskGroup() as recorders, books.owner.transaction():
        await books.owner.execute(lock)
        for _ in range(4):
            recorders.create_task(books.record(fee("0.002", "coin2")))

        async def are_waiting() -> bool:
            return bool(await books.owner.fetchval(COUNT_BLOCKED) == 4)

        await eventually_async(are_waiting, WAIT_SECONDS)
    assert (await books.position("BTC/USD"))["fee_quantity"] == D("0.003")
    assert await books.owner.fetchval(f"SELECT count(*) FROM {FACTS}") == 2


async def test_what_a_venue_takes_of_the_coin_lowers_what_we_hold(urls: Urls) -> None:
    async with open_in_process(urls) as it, executing(it):
        intent = await it.create("2", "BTC/USD")
        await it.until_status(intent, "NEW")
        it.fill(await it.coid(intent), "2")
        await it.until_status(intent, "FILLED")
        it.venue.sessions[0].received.put_nowait(fee("0.005", "f1"))

        async def is_lower() -> bool:
            held = await it.in_process_writer.owner.fetchval("SELECT quantity FROM holdings")
            return bool(held == D("1.995"))

        await it.until(is_lower)
