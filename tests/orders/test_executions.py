"""Trades from facts: gaps and what fills them, busts, corrections, averages."""

from decimal import Decimal

import pytest

from tests.orders.facts import D, bust, correct, fill, ours, reported, terms, view
from trading_intents.brokers.port import REPLACED_BY_BROKER, EventKind
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.facts import Fact, FactKind
from trading_intents.orders.model import OrderStatus

E = EventKind
S = OrderStatus


def rows(
    *facts: Fact, quantity: str = "100", limit: str | None = None
) -> list[tuple[str, Decimal, Decimal]]:
    seen = view(*facts, terms=terms(quantity, limit=limit))
    assert sum(trade.quantity for trade in seen.trades) == seen.filled_quantity
    return [(trade.exec_id, trade.quantity, trade.price) for trade in seen.trades]


def made(quantity: str, cum: str | None = None, at: int | None = None) -> Fact:
    """The broker itself made so much of the order."""
    return reported(E.REPLACED, quantity=quantity, cum=cum, at=at, reason=REPLACED_BY_BROKER)


def test_a_jump_of_the_cumulative_quantity_is_stood_in_for() -> None:
    first = fill("e1", "10", "5", cum="10")
    third = fill("e3", "10", "7", cum="30")
    assert rows(first, third) == [
        ("e1", D(10), D(5)),
        ("gap:o1:20", D(10), D(7)),
        ("e3", D(10), D(7)),
    ]


def test_a_stand_in_keeps_its_name_as_later_fills_come() -> None:
    first = fill("e1", "10", cum="10")
    third = fill("e3", "10", cum="30")
    fourth = fill("e4", "10", cum="40")
    assert [row[0] for row in rows(first, third, fourth)] == ["e1", "gap:o1:20", "e3", "e4"]


def test_the_real_execution_replaces_its_stand_in() -> None:
    first = fill("e1", "10", cum="10")
    second = fill("e2", "10", "9", cum="20")
    third = fill("e3", "10", cum="30")
    assert [row[0] for row in rows(first, second, third)] == ["e1", "e2", "e3"]


def test_a_stand_in_shrinks_to_what_is_still_missing() -> None:
    status = reported(E.STATUS, cum="30", average="6")
    assert rows(fill("e1", "10", "5", cum="10"), status) == [
        ("e1", D(10), D(5)),
        ("gap:o1:30", D(20), D("6.5")),
    ]
    both = rows(fill("e1", "10", "5", cum="10"), fill("e2", "10", "6", cum="20"), status)
    assert both == [("e1", D(10), D(5)), ("e2", D(10), D(6)), ("gap:o1:30", D(10), D(7))]


def test_executions_without_reported_ids_stand_in_at_their_own_prices() -> None:
    second, third = (
        reported(E.STATUS, cum=cum, quantity=quantity, price=price)
        for cum, quantity, price in (("30", "20", "6"), ("35", "5", "8"))
    )
    counted = reported(E.STATUS, cum="40", average="6.5")
    missed = [("gap:o1:30", D(20), D(6)), ("gap:o1:35", D(5), D(8)), ("gap:o1:40", D(5), D(10))]
    assert rows(fill("e1", "10", "5", cum="10"), second, third, counted) == [
        ("e1", D(10), D(5)),
        *missed,
    ]
    seen = [fill("e1", "10", "5", cum="10"), fill("e3", "5", "8"), fill("e2", "20", "6", cum="30")]
    assert sorted(row[0] for row in rows(*seen, second, third)) == ["e1", "e2", "e3"]


def test_fills_that_were_never_counted_close_a_gap_too() -> None:
    assert [
        row[0] for row in rows(fill("e1", "10"), fill("e2", "20"), reported(E.STATUS, cum="30"))
    ] == ["e1", "e2"]


def test_a_missed_full_fill_that_a_final_report_counts_fills_the_order() -> None:
    seen = view(reported(E.CANCELLED, cum="100", average="12.5"))
    assert (seen.status, seen.average_price, seen.flags) == (S.FILLED, D("12.5"), ())
    assert view(reported(E.CANCELLED, cum="40")).status is S.CANCELLED


def test_a_stand_in_that_nothing_prices_takes_the_limit_else_says_so() -> None:
    assert rows(reported(E.STATUS, cum="40"), limit="9.5") == [("gap:o1:40", D(40), D("9.5"))]
    (trade,) = view(reported(E.STATUS, cum="40")).trades
    assert (trade.price, trade.flags) == (D(0), (TradeFlag.GAP, TradeFlag.UNPRICED))


def test_counts_of_one_version_only_make_no_gap() -> None:
    assert [row[0] for row in rows(fill("e1", "10", cum="10"), fill("e2", "5", cum="5"))] == [
        "e2",
        "e1",
    ]


def test_counts_that_contradict_each_other_never_invent_more_than_the_highest() -> None:
    seen = view(fill("e1", "10", cum="25"), fill("e2", "10", cum="20"))
    assert seen.filled_quantity == D(25)


def test_each_trade_counts_up_to_the_filled_quantity() -> None:
    seen = view(fill("e2", "30", cum="40"), fill("e1", "10", cum="10"))
    assert [trade.cumulative_quantity for trade in seen.trades] == [D(10), D(40)]
    assert [trade.leaves_quantity for trade in seen.trades] == [D(90), D(60)]


@pytest.mark.parametrize(
    ("facts", "leaves"),
    [
        (
            [reported(E.REPLACED, coid="R", cum="30"), fill("e2", "20", cum="50", coid="R")],
            [70, 30],
        ),
        # It was filled while the REPLACE was on its way.
        ([fill("e2", "20", cum="50"), reported(E.REPLACED, coid="R", cum="50")], [70, 50]),
        # Of a venue that names the order by its first id for ever.
        ([reported(E.REPLACED, coid="R", cum="30"), fill("e2", "20", cum="50")], [70, 30]),
        ([reported(E.REPLACED, coid="R"), fill("e2", "20", cum="50", coid="R")], [70, 30]),
        (
            [reported(E.REPLACED, coid="R", cum="30"), reported(E.STATUS, coid="R", cum="50")],
            [70, 30],
        ),
        ([fill("e2", "20", cum="50"), fill("e3", "30", cum="80", coid="R")], [70, 50, 0]),
        ([made("60", cum="30"), fill("e2", "20", cum="50")], [70, 10]),
        ([fill("e2", "20", cum="50"), made("60", cum="50")], [70, 50]),
        ([made("60", at=2), fill("e2", "20", cum="50", at=3)], [70, 10]),
        ([made("60", at=4), fill("e2", "20", cum="50", at=3)], [70, 50]),
        ([made("0", cum="30"), fill("e2", "20", cum="50")], [70, 0]),
        (
            [
                made("60", cum="30"),
                reported(E.REPLACED, coid="R", cum="30"),
                fill("e2", "20", cum="50", coid="R"),
            ],
            [70, 30],
        ),
    ],
)
def test_a_trade_leaves_of_what_the_broker_worked_at_it(
    facts: list[Fact], leaves: list[int]
) -> None:
    first = fill("e1", "30", cum="30", at=1)
    seen = view(first, *facts, terms=terms("100", "80"))
    assert [trade.leaves_quantity for trade in seen.trades] == leaves
    assert view(*reversed(facts), first, terms=terms("100", "80")).trades == seen.trades


def test_a_busted_fill_is_gone_and_its_counts_leave_no_gap() -> None:
    first = fill("e1", "10", cum="10", at=1)
    second = fill("e2", "10", cum="20", at=2)
    assert rows(first, second, bust("e1", at=3, cum="10")) == [("e2", D(10), D(10))]
    third = fill("e3", "10", "11", cum="20", at=4)
    assert [row[0] for row in rows(first, second, bust("e1", at=3), third)] == ["e2", "e3"]
    assert [row[0] for row in rows(first, second, bust("e1"), third)] == ["e2", "e3"]


def test_a_fill_missed_after_a_bust_is_stood_in_for_where_times_show_it() -> None:
    facts = (
        fill("e1", "10", cum="10", at=1),
        bust("e1", at=2),
        reported(E.STATUS, cum="30", average="8", at=3),
    )
    assert rows(*facts) == [("gap:o1:30", D(30), D(8))]
    untimed = fill("e1", "10", cum="10", at=1), bust("e1"), reported(E.STATUS, cum="10", at=3)
    assert rows(*untimed) == []


def test_a_busted_order_is_worked_again() -> None:
    seen = view(fill("e1", "60", cum="60"), fill("e2", "40", cum="100"), bust("e2"))
    assert (seen.status, seen.filled_quantity, seen.leaves_quantity) == (
        S.PARTIALLY_FILLED,
        D(60),
        D(40),
    )


def test_a_correction_replaces_the_fill_under_its_name() -> None:
    seen = view(fill("e1", "40", "10", fee="1"), correct("e9", "e1", "30", "11"))
    (trade,) = seen.trades
    assert (trade.exec_id, trade.quantity, trade.price, trade.fee) == ("e1", D(30), D(11), D(1))
    assert trade.flags == (TradeFlag.CORRECTED,)


def test_a_correction_may_be_corrected_and_may_come_before_its_fill() -> None:
    again = correct("e10", "e9", "20", "12"), correct("e9", "e1", "30", "11")
    assert rows(*again) == [("e1", D(20), D(12))]
    assert rows(fill("e1", "40"), *again) == [("e1", D(20), D(12))]
    assert rows(fill("e1", "40"), *again, bust("e10")) == []
    assert rows(fill("e1", "40"), correct("e9", "e1", "0", "11")) == []


def test_of_two_corrections_of_one_fill_the_later_by_the_venues_time_stands() -> None:
    assert rows(correct("e8", "e1", "20", "12", at=5), correct("e9", "e1", "30", "11", at=4)) == [
        ("e1", D(20), D(12))
    ]


def test_a_ring_of_corrections_ends() -> None:
    assert len(rows(correct("a", "b", "10", "1"), correct("b", "a", "10", "2"))) == 1


def test_an_average_is_exact_and_rounded_once_half_to_even() -> None:
    thirds = view(fill("e1", "1", "1"), fill("e2", "2", "2"), terms=terms("9"))
    assert thirds.average_price == D("1.666666666666666667")
    half = view(
        fill("e1", "1", "0.000000000000000001"),
        fill("e2", "1", "0.000000000000000002"),
        terms=terms("9"),
    )
    assert half.average_price == D("0.000000000000000002")
    long = "123456789012345678.123456789012345678"
    assert view(fill("e1", long, long), terms=terms(long)).average_price == D(long)
    assert view(fill("e1", long, long), terms=terms(long)).filled_quantity == D(long)


def test_what_only_we_know_makes_no_trade() -> None:
    assert rows(ours(FactKind.SENT), reported(E.ACCEPTED, cum="0")) == []
