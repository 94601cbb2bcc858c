"""The records of a broker's reports: facts, orders, trades, positions, stats and stream, each
once."""

from datetime import UTC, datetime
from io import StringIO

import pytest

from tests.execution.recorded_orders import Books, D, Sent, fill, ours, reported
from tests.journal import ALL_ROWS, read_messages
from trading_intents.brokers.port import BrokerEvent, CommandResult, Outcome
from trading_intents.brokers.port import EventKind as E
from trading_intents.orders.facts import CommandKind
from trading_intents.orders.facts import FactKind as F
from trading_intents.orders.ledger.recording import answer_facts
from trading_intents.orders.ledger.reporting import log_recorded
from trading_intents.telemetry import Metrics, make_log


def kinds(events: list[object]) -> list[str]:
    return [type(event).__name__.removeprefix("Broker") for event in events]


async def status(books: Books, sent: Sent) -> tuple[str, str, list[str]]:
    row = await books.order(sent)
    return row["order_status"], f"{row['filled_quantity']:f}", row["flags"]


async def test_an_order_is_accepted_and_filled(books: Books) -> None:
    sent = await books.create("10", reference="mine")
    result = CommandResult(
        outcome=Outcome.ACKED,
        broker_order_id="b1",
        updates=(reported(E.ACCEPTED, sent, broker_order_id="b1", at=1),),
    )
    await books.record(
        *result.updates,
        own=answer_facts(sent.order_id, CommandKind.SUBMIT, sent.client_order_id, result),
    )
    row = await books.order(sent)
    assert (row["order_status"], row["external_order_id"], row["version"]) == ("NEW", "b1", 2)
    assert (row["finished_at"], row["broker_sent_at"].second) == (None, 1)
    await books.record(
        fill(sent, "e1", "4", "10", at=2), fill(sent, "e2", "6", "11", at=3, fee="0.5")
    )
    row = await books.order(sent)
    assert (row["order_status"], row["filled_quantity"], row["average_price"]) == (
        "FILLED",
        D(10),
        D("10.6"),
    )
    assert (row["version"], row["broker_sent_at"].second, row["received_at"]) == (
        3,
        3,
        row["finished_at"],
    )
    assert await books.filled(sent) == [("e1", "4", "10"), ("e2", "6", "11")]
    position = await books.position()
    assert (position["quantity"], position["open_cost"], position["realized_pnl"]) == (
        D(10),
        D(106),
        D("-0.5"),
    )


async def test_every_change_is_an_event_and_a_trade_has_its_seq(books: Books) -> None:
    sent = await books.create("10", reference="mine")
    await books.record(
        reported(E.ACCEPTED, sent, broker_order_id="b1"),
        fill(sent, "e1", "10", "10.50", at=2, fee="0.10"),
    )
    pending, order, trade, position = await books.events()
    assert kinds([pending, order, trade, position]) == ["Order", "Order", "Trade", "Position"]
    assert (pending.version, order.version, order.filled_quantity, order.average_price) == (
        1,
        2,
        "10",
        "10.5",
    )
    assert (order.external_order_id, order.client_reference_id, list(order.flags)) == (
        "b1",
        "mine",
        [],
    )
    assert (trade.client_order_id, trade.command_seq, trade.order_quantity) == (
        sent.client_order_id,
        sent.seq,
        "10",
    )
    assert (trade.exec_id, trade.quantity, trade.price, trade.fee) == ("e1", "10", "10.5", "0.1")
    assert (trade.cumulative_quantity, trade.leaves_quantity, trade.client_reference_id) == (
        "10",
        "0",
        "mine",
    )
    assert trade.order_id == trade.intent_id == str(sent.order_id)
    assert (position.quantity, position.average_cost, position.realized_pnl) == (
        "10",
        "10.5",
        "-0.1",
    )
    assert (position.value_bought, position.value_sold, position.broker) == ("105", "0", "paper")
    row = (await books.trades(sent))["e1"]
    assert str(row["trade_id"]) == trade.trade_id
    messages = {each.seq: each for each in read_messages(await books.owner.fetch(ALL_ROWS))}
    assert messages[row["seq"]].event.broker_trade.trade_id == trade.trade_id


async def test_what_was_seen_before_changes_nothing(books: Books) -> None:
    sent = await books.create("10")
    events = (
        reported(E.ACCEPTED, sent, broker_order_id="b1"),
        fill(sent, "e1", "4"),
        reported(E.POSITION, None, symbol="AAPL", quantity="4"),
    )
    await books.record(*events)
    before = await books.everything()
    for again in (events, events[::-1], events * 3):
        recorded = await books.record(*again)
        assert not recorded.events
        assert not recorded.orders
    assert await books.everything() == before


async def test_a_hundred_thousand_repeats_write_nothing(books: Books) -> None:
    sent = await books.create("10")
    events = [reported(E.ACCEPTED, sent, broker_order_id="b1"), fill(sent, "e1", "4")]
    await books.record(*events, fill(None, "strange", "1", broker_order_id="b2"))
    before = await books.everything()
    for _ in range(50):
        assert not (await books.record(*events * 1_000)).events
    assert await books.everything() == before


async def test_own_facts_are_recorded_once_too(books: Books) -> None:
    sent = await books.create("10")
    await books.record(own=(ours(sent, F.UNCERTAIN, "timeout"),))
    assert await status(books, sent) == ("UNKNOWN", "0", [])
    before = await books.everything()
    await books.record(own=(ours(sent, F.UNCERTAIN, "another"),))
    assert await books.everything() == before


@pytest.mark.parametrize(
    ("kind", "reason", "shown"),
    [
        (F.STALE, None, ("EXPIRED", "stale")),
        (F.REFUSED, "symbol_manually_disabled", ("REJECTED", "symbol_manually_disabled")),
        (F.CANCELLED_BEFORE_SEND, None, ("CANCELLED", "before_send")),
        (F.NOT_DELIVERED, None, ("REJECTED", "not_delivered")),
    ],
)
async def test_a_create_that_was_never_sent_says_why(
    books: Books, kind: F, reason: str | None, shown: tuple[str, str]
) -> None:
    sent = await books.create("10")
    await books.record(own=(ours(sent, kind, reason),))
    row = await books.order(sent)
    assert (row["order_status"], row["reason"]) == shown
    assert row["finished_at"] is not None
    assert row["received_at"] == row["created_at"]  # nothing was reported


async def test_a_fill_before_the_acknowledgement_implies_it(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "4"))
    assert await status(books, sent) == ("PARTIALLY_FILLED", "4", [])
    await books.record(reported(E.ACCEPTED, sent, broker_order_id="b1"))
    assert await status(books, sent) == ("PARTIALLY_FILLED", "4", [])
    assert (await books.order(sent))["external_order_id"] == "b1"


async def test_reports_out_of_order_are_put_in_order(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e2", "6", "11", cum_quantity="10", at=3))
    assert await status(books, sent) == ("FILLED", "10", [])
    gap = f"gap:{sent.order_id}:4"
    assert await books.filled(sent) == [(gap, "4", "11"), ("e2", "6", "11")]
    await books.record(fill(sent, "e1", "4", "10", cum_quantity="4", at=2))
    assert await status(books, sent) == ("FILLED", "10", ["late_fill"])
    assert await books.filled(sent) == [(gap, "0", "11"), ("e2", "6", "11"), ("e1", "4", "10")]
    assert (await books.trades(sent))[gap]["flags"] == ["gap", "replaced"]
    assert (await books.position())["open_cost"] == D(106)
    seqs = {exec_id: row["seq"] for exec_id, row in (await books.trades(sent)).items()}
    # A reader who follows the seqs sees both changes.
    assert seqs["e2"] < min(seqs["e1"], seqs[gap])


async def test_a_cancel_and_a_fill_cross(books: Books) -> None:
    sent = await books.create("10")
    cancel = await books.cancel(sent)
    assert (await books.order(sent))["cancel_requested"]
    await books.record(fill(sent, "e1", "4"), reported(E.CANCELLED, sent, cum_quantity="4"))
    assert await status(books, sent) == ("CANCELLED", "4", [])
    assert not (await books.order(sent))["cancel_requested"]
    await books.record(reported(E.CANCEL_REJECTED, cancel, reason="too late"))
    assert await status(books, sent) == ("CANCELLED", "4", [])
    full = await books.create("10")
    refused = await books.cancel(full)
    await books.record(
        reported(E.CANCEL_REJECTED, refused, reason="too late"), fill(full, "e2", "10")
    )
    assert await status(books, full) == ("FILLED", "10", [])


async def test_a_refused_cancel_leaves_the_order_working(books: Books) -> None:
    sent = await books.create("10")
    await books.record(reported(E.ACCEPTED, sent))
    cancel = await books.cancel(sent)
    assert await status(books, sent) == ("PENDING_CANCEL", "0", [])
    await books.record(own=(ours(cancel, F.CANCEL_DROPPED),))
    row = await books.order(sent)
    assert (row["order_status"], row["reason"], row["cancel_requested"]) == (
        "NEW",
        "cancel_not_delivered",
        False,
    )


async def test_a_chain_of_replaces_shows_the_last_confirmed_version(books: Books) -> None:
    sent = await books.create("10", limit="5")
    await books.record(reported(E.ACCEPTED, sent, broker_order_id="b1"))
    first = await books.replace(sent, "20", limit="6")
    row = await books.order(sent)
    assert (row["order_status"], row["quantity"], row["pending_replace_seq"]) == (
        "PENDING_REPLACE",
        D(10),
        first.seq,
    )
    replaced = reported(E.REPLACED, first, broker_order_id="b2", replaces=sent.client_order_id)
    await books.record(fill(sent, "e1", "4", "5"), replaced)
    row = await books.order(sent)
    assert (row["order_status"], row["quantity"], row["limit_price"]) == (
        "PARTIALLY_FILLED",
        D(20),
        D(6),
    )
    assert (row["command_seq"], row["external_order_id"], row["pending_replace_seq"]) == (
        first.seq,
        "b2",
        None,
    )
    second = await books.replace(sent, "30", limit="7")
    await books.record(reported(E.REPLACE_REJECTED, second, reason="no"))
    row = await books.order(sent)
    assert (row["quantity"], row["reason"], row["pending_replace_seq"]) == (D(20), "no", None)
    await books.record(fill(first, "e2", "16", "6"))
    assert await status(books, sent) == ("FILLED", "20", [])
    trades = await books.trades(sent)
    assert [trades[name]["command_seq"] for name in ("e1", "e2")] == [sent.seq, first.seq]


async def test_a_replace_publishes_no_trade_again(books: Books) -> None:
    sent = await books.create("10", limit="5")
    await books.record(fill(sent, "e1", "4", "5"))
    first = await books.replace(sent, "20", limit="6")
    await books.record(reported(E.REPLACED, first, replaces=sent.client_order_id))
    assert kinds(await books.events()).count("Trade") == 1
    assert (await books.trades(sent))["e1"]["leaves_quantity"] == D(6)


async def test_a_late_fill_is_booked_and_flagged(books: Books) -> None:
    sent = await books.create("10")
    await books.record(reported(E.CANCELLED, sent, cum_quantity="0"))
    finished = (await books.order(sent))["finished_at"]
    await books.record(fill(sent, "e1", "4"))
    assert await status(books, sent) == ("CANCELLED", "4", ["late_fill"])
    await books.record(fill(sent, "e2", "6"))
    assert await status(books, sent) == ("FILLED", "10", ["late_fill"])
    assert (await books.order(sent))["finished_at"] == finished


async def test_an_overfill_is_booked_and_flagged(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "10"), fill(sent, "e2", "1"))
    assert await status(books, sent) == ("FILLED", "11", ["overfill"])
    assert (await books.position())["quantity"] == D(11)


async def test_a_busted_trade_stays_with_nothing(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "4", "10", fee="1"), fill(sent, "e2", "6", "20"))
    before = (await books.trades(sent))["e1"]["seq"]
    await books.record(reported(E.FILL_BUST, sent, "bust/e1", replaces="e1"))
    assert await status(books, sent) == ("PARTIALLY_FILLED", "6", ["conflicting_execution"])
    assert (await books.order(sent))["finished_at"] is None
    busted = (await books.trades(sent))["e1"]
    assert (busted["quantity"], busted["flags"], busted["seq"] > before) == (0, ["busted"], True)
    position = await books.position()
    assert (position["quantity"], position["open_cost"], position["fees"]) == (D(6), D(120), 0)


async def test_a_corrected_trade_has_its_new_numbers(books: Books) -> None:
    bought = await books.create("10")
    sold = await books.create("5", side="SELL")
    await books.record(fill(bought, "e1", "10", "10"), fill(sold, "e2", "5", "12"))
    assert (await books.position())["realized_pnl"] == D(10)
    correction = reported(
        E.FILL_CORRECT, bought, "fix/e1", exec_id="e3", replaces="e1", quantity="10", price="11"
    )
    await books.record(correction)
    assert await status(books, bought) == ("FILLED", "10", ["conflicting_execution"])
    assert await books.filled(bought) == [("e1", "10", "11")]
    position = await books.position()
    assert (position["quantity"], position["open_cost"], position["realized_pnl"]) == (
        D(5),
        D(55),
        D(5),
    )


async def test_an_execution_with_other_numbers_keeps_the_first_and_is_flagged(books: Books) -> None:
    sent = await books.create("10")
    await books.record(fill(sent, "e1", "4", "10"), fill(sent, "e1", "5", "10"))
    assert await status(books, sent) == ("PARTIALLY_FILLED", "4", ["conflicting_execution"])
    other = await books.create("10")
    await books.record(fill(other, "e2", "4", "10"))
    await books.record(fill(other, "e2", "5", "10"))
    assert await status(books, other) == ("PARTIALLY_FILLED", "4", ["conflicting_execution"])


async def test_an_order_that_the_broker_has_after_all_is_named(books: Books) -> None:
    sent = await books.create("10")
    await books.record(own=(ours(sent, F.NOT_DELIVERED),))
    recorded = await books.record(reported(E.ACCEPTED, sent, broker_order_id="b1"))
    assert recorded.resurrected == (sent.order_id,)
    assert await status(books, sent) == ("NEW", "0", ["resurrected"])
    assert (await books.order(sent))["finished_at"] is None
    recorded = await books.record(fill(sent, "e1", "4"), reported(E.CANCELLED, sent))
    assert recorded.resurrected == ()
    assert await status(books, sent) == ("CANCELLED", "4", ["late_fill", "resurrected"])


async def test_stats_count_what_happened(books: Books) -> None:
    sent = await books.create("10")
    await books.record(reported(E.ACCEPTED, sent))
    await books.record(fill(sent, "e1", "10", "3"))
    await books.record(reported(E.FILL_BUST, sent, "bust/e1", replaces="e1"))
    await books.record(reported(E.CANCELLED, sent))
    rows = await books.owner.fetch(
        """
            SELECT counted ->> 0 AS measure, counted ->> 1 AS key,
                sum((counted ->> 2)::numeric) AS amount
            FROM reports CROSS JOIN json_array_elements(counts) AS counted
            GROUP BY measure, key HAVING sum((counted ->> 2)::numeric) <> 0
        """
    )
    counted = {(row["measure"], row["key"]): row["amount"] for row in rows}
    latency = [amount for (measure, _), amount in counted.items() if measure == "ack_millis"]
    assert latency == [1]
    assert {
        key: amount
        for key, amount in counted.items()
        if key[0] not in ("ack_millis", "action", "symbol")
    } == {("finished", "CANCELLED"): 1}


async def test_unreadable_text_stops_nothing(books: Books) -> None:
    sent = await books.create("10")
    await books.record(
        reported(E.REJECTED, sent, "odd\0key\ud800", reason="bad\0\udfff" + "x" * 1000)
    )
    row = await books.order(sent)
    assert row["order_status"] == "REJECTED"
    assert row["reason"].startswith("bad??x")
    assert len(row["reason"]) == 500


async def test_answers_and_names_of_orders_that_no_database_takes_stop_nothing(
    books: Books,
) -> None:
    odd = "\0\x1e\ud800\n"
    taken = await books.create("10")
    refused = await books.create("10")
    acked = CommandResult(outcome=Outcome.ACKED, broker_order_id=f"b{odd}")
    rejected = CommandResult(outcome=Outcome.REJECTED, message=f"no{odd}")
    for sent, result in ((taken, acked), (refused, rejected)):
        await books.record(
            own=answer_facts(sent.order_id, CommandKind.SUBMIT, sent.client_order_id, result)
        )
    assert (await books.order(refused))["reason"] == "no????"
    await books.record(fill(None, "e1", "4", broker_order_id=f"b{odd}"))
    assert await status(books, taken) == ("PARTIALLY_FILLED", "4", [])
    await books.record(
        fill(None, "e2", "4", client_order_id=f"somebody else's{odd}"), fill(taken, "e3", "6")
    )
    assert await status(books, taken) == ("FILLED", "10", [])


async def test_an_execution_under_another_orders_key_is_another_trade(books: Books) -> None:
    """As from a venue that begins to count again."""
    first = await books.create("10")
    second = await books.create("10")
    await books.record(fill(first, "e1", "4"))
    await books.record(fill(second, "e1", "3"))
    assert await status(books, first) == ("PARTIALLY_FILLED", "4", [])
    assert await status(books, second) == ("PARTIALLY_FILLED", "3", [])
    assert (await books.position())["quantity"] == D(7)
    again = await books.record(fill(second, "e1", "3"), fill(first, "e1", "4"))
    assert (again.events, again.conflicts) == ([], ())


async def test_whatever_comes_under_a_key_that_its_order_used_raises_an_alert_once(
    books: Books,
) -> None:
    metrics = Metrics()
    out = StringIO()

    async def record(*events: BrokerEvent) -> float | None:
        log_recorded(await books.record(*events), make_log("error", out), metrics)
        return metrics.registry.get_sample_value(
            "ti_execution_alerts_total", {"kind": "conflicting_execution"}
        )

    sent = await books.create("10")
    await record(
        reported(E.ACCEPTED, sent, "1"),
        reported(E.FILL, sent, "2", exec_id="x2", quantity="4", price="10"),
    )
    again = reported(E.TRIGGERED, sent, "1"), reported(E.CANCELLED, sent, "2")
    assert await record(*again) == 2
    assert await record(*again) == 2
    assert await status(books, sent) == ("PARTIALLY_FILLED", "4", ["conflicting_execution"])
    assert out.getvalue().count(str(sent.order_id)) == 2
    assert await record(fill(None, "x", "4")) == 2
    assert await record(fill(None, "x", "5")) == 3, "of an order that is not ours, too"


async def test_a_late_replace_changes_no_final_order_in_silence(books: Books) -> None:
    first = await books.create("10", limit="10")
    second = await books.create("10", limit="10")
    larger = await books.replace(first, "20", "10")
    dearer = await books.replace(second, "10", "11")
    await books.record(fill(first, "e1", "10"), fill(second, "e2", "10"))
    before = await books.order(second)
    assert await status(books, first) == await status(books, second) == ("FILLED", "10", [])
    recorded = await books.record(
        *(
            reported(E.REPLACED, new, replaces=old.client_order_id)
            for old, new in ((first, larger), (second, dearer))
        )
    )
    assert await status(books, first) == ("PARTIALLY_FILLED", "10", ["resurrected"])
    assert recorded.resurrected == (first.order_id,)
    assert await books.order(second) == before


async def test_an_execution_that_comes_again_with_other_numbers_raises_an_alert(
    books: Books,
) -> None:
    metrics = Metrics()
    out = StringIO()

    async def record(*events: BrokerEvent) -> float | None:
        log_recorded(await books.record(*events), make_log("error", out), metrics)
        return metrics.registry.get_sample_value(
            "ti_execution_alerts_total", {"kind": "conflicting_execution"}
        )

    sent = await books.create("10")
    assert await record(fill(sent, "e1", "4"), fill(sent, "e1", "4")) == 0
    assert await record(fill(sent, "e1", "5")) == 1
    assert await record(fill(sent, "e1", "5")) == 1
    listed = reported(E.FILL, sent, "listed/e1", exec_id="e1", quantity="6", price="10")
    assert await record(listed) == 2
    assert (
        await record(
            reported(E.FILL_CORRECT, sent, "k", exec_id="k", replaces="e1", quantity="3", price="9")
        )
        == 2
    )
    assert await status(books, sent) == ("PARTIALLY_FILLED", "3", ["conflicting_execution"])
    assert out.getvalue().count(str(sent.order_id)) == 2


async def test_executions_whose_odd_ids_look_alike_stay_two(books: Books) -> None:
    sent = await books.create("10")
    for odd in ("\x1f", "\0", "\ud800", "\udfff", "x" * 600 + "1", "x" * 600 + "2"):
        await books.record(fill(sent, f"e{odd}", "1"))
    assert (await books.order(sent))["filled_quantity"] == D(6)
    await books.record(reported(E.FILL_BUST, sent, "bust", replaces="e\ud800"))
    assert (await books.order(sent))["filled_quantity"] == D(5)
    ids = [row["exec_id"] for row in (await books.trades(sent)).values()]
    assert all(each.isprintable() and len(each) <= 500 for each in ids)


async def test_the_day_of_a_position_is_the_trades_own(books: Books) -> None:
    bought = await books.create("10")
    sold = await books.create("10", side="SELL")
    await books.record(fill(bought, "e1", "10", "10"), fill(sold, "e2", "10", "12"))
    row = await books.position()
    assert (row["day"], row["day_pnl"]) == (datetime.now(UTC).date(), D(20))
    (*_, last) = await books.events()
    assert (last.quantity, last.realized_pnl, last.daily_pnl) == ("0", "20", "20")


async def test_a_venues_clock_that_runs_ahead_moves_no_day(books: Books) -> None:
    bought = await books.create("10")
    sold = await books.create("10", side="SELL")
    ahead = fill(bought, "e1", "5", "10", venue_time=datetime(2226, 1, 1, tzinfo=UTC))
    await books.record(ahead, fill(sold, "e2", "5", "12"))
    row = await books.position()
    assert (row["day"], row["day_pnl"]) == (datetime.now(UTC).date(), D(10))
    await books.record(
        fill(bought, "e3", "1", "10"), reported(E.FILL_BUST, sold, "bust", replaces="e2")
    )
    assert (await books.position())["day"] == datetime.now(UTC).date()
