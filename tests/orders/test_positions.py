"""Positions at average cost: a table of lives, and the sums that hold for every one of them."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property_sizes import examples
from trading_intents.orders.positions import (
    Booking,
    NetPosition,
    SummedOrder,
    from_trades,
    open_sums,
    opening,
    take_fee,
)
from trading_intents.trading import OrderSide

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
D = Decimal
FLAT = NetPosition()
SIDES = {"B": OrderSide.BUY, "S": OrderSide.SELL, "H": OrderSide.SELL_SHORT}


def life(text: str) -> list[Booking]:
    """`B 100 10 1` is bought 100 at 10 for a fee of 1."""
    bookings = []
    for trade in text.split(","):
        side, quantity, price, *fee = trade.split()
        bookings.append(
            Booking(SIDES[side], D(quantity), D(price), D(fee[0]) if fee else None, NOON)
        )
    return bookings


@pytest.mark.parametrize(
    ("trades", "quantity", "average", "realized", "bought", "sold"),
    [
        ("B 100 10", "100", "10", "0", "1000", "0"),
        ("B 100 10, B 100 20", "200", "15", "0", "3000", "0"),
        ("B 100 10, B 100 20, S 50 18", "150", "15", "150", "3000", "900"),
        ("B 100 10, S 100 12", "0", "0", "200", "1000", "1200"),
        ("H 100 10", "-100", "10", "0", "0", "1000"),
        ("H 100 10, H 100 12, B 50 9", "-150", "11", "100", "450", "2200"),
        ("H 100 10, B 100 12", "0", "0", "-200", "1200", "1000"),
        ("B 100 10, S 150 12", "-50", "12", "200", "1000", "1800"),
        ("H 100 10, B 150 8", "50", "8", "200", "1200", "1000"),
        ("B 100 10 1, S 100 12 2", "0", "0", "197", "1000", "1200"),
        ("B 100 10 -1", "100", "10", "1", "1000", "0"),
        ("B 3 1, B 4 2, S 7 2", "0", "0", "3", "11", "14"),
        ("B 3 1, B 4 2, S 1 2", "6", "1.571428571428571428", "0.428571428571428571", "11", "2"),
    ],
)
def test_a_position_is_kept_at_average_cost(
    trades: str, quantity: str, average: str, realized: str, bought: str, sold: str
) -> None:
    position = from_trades(life(trades), FLAT)
    assert (position.quantity, position.value_bought, position.value_sold) == (
        D(quantity),
        D(bought),
        D(sold),
    )
    assert position.average_cost is not None
    assert abs(position.average_cost - D(average)) <= D("1e-18")
    assert abs(position.realized_pnl - D(realized)) <= D("1e-17")


@pytest.mark.parametrize(
    ("held", "price", "trades", "quantity", "average", "realized"),
    [
        ("10", "20", "S 4 25", "6", "20", "20"),
        ("10", "20", "B 10 30, S 5 26", "15", "25", "5"),
        ("-10", "20", "B 4 15", "-6", "20", "20"),
        ("10", "20", "S 15 25", "-5", "25", "50"),
        # Its price is not known: closing it realizes nothing, and what we traded ourselves is kept
        # apart.
        ("10", None, "S 4 25", "6", None, "0"),
        ("10", None, "B 5 30, S 10 99", "5", "30", "0"),
        ("10", None, "B 5 30, S 12 40", "3", "30", "20"),
        ("10", None, "S 15 25, B 5 20", "0", "0", "25"),
        ("-10", None, "H 5 30, B 12 20", "-3", "30", "20"),
        ("-10", None, "B 4 20 1", "-6", None, "-1"),
    ],
)
def test_a_position_that_was_held_before_us_is_closed_at_its_own_cost(
    held: str, price: str | None, trades: str, quantity: str, average: str | None, realized: str
) -> None:
    position = from_trades(life(trades), opening(D(held), D(price) if price else None))
    assert (position.quantity, position.realized_pnl) == (D(quantity), D(realized))
    assert position.average_cost == (D(average) if average else None)


def test_a_days_result_starts_again_at_midnight_in_utc() -> None:
    late = datetime(2026, 3, 2, 23, 59, 59, 999_999, tzinfo=UTC)
    midnight = late + timedelta(microseconds=1)
    today = date(2026, 3, 2)
    tomorrow = date(2026, 3, 3)
    held = from_trades([Booking(OrderSide.BUY, D(10), D(10), None, NOON)], FLAT)
    position = from_trades([Booking(OrderSide.SELL, D(1), D(12), None, late)], held)
    assert (position.daily_pnl(today), position.daily_pnl(tomorrow)) == (D(2), D(0))
    position = from_trades([Booking(OrderSide.SELL, D(1), D(15), D(1), midnight)], position)
    assert (position.daily_pnl(today), position.daily_pnl(tomorrow)) == (D(0), D(4))
    position = from_trades([Booking(OrderSide.SELL, D(1), D(20), None, late)], position)
    assert (position.daily_pnl(tomorrow), position.realized_pnl) == (D(4), D(16))


def test_a_bust_is_the_position_without_the_trade() -> None:
    with_bust = life("B 100 10, B 100 20, S 50 18")
    assert from_trades([with_bust[0], with_bust[2]], FLAT) == from_trades(
        life("B 100 10, S 50 18"), FLAT
    )


AMOUNT = st.decimals(
    D("0.000000001"), D("1000000000"), places=9, allow_nan=False, allow_infinity=False
)
BOOKINGS = st.lists(
    st.builds(
        Booking,
        st.sampled_from(OrderSide),
        AMOUNT,
        AMOUNT,
        st.none() | AMOUNT,
        st.integers(0, 200_000).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    ),
    max_size=25,
)


@settings(max_examples=examples(80))
@given(BOOKINGS, st.none() | AMOUNT, st.sampled_from([D(0), D("12.5"), D(-700)]))
def test_a_position_is_the_sum_of_its_trades_to_the_last_digit(
    bookings: list[Booking], price: Decimal | None, held: Decimal
) -> None:
    position = from_trades(bookings, opening(held, price))
    with localcontext(prec=500):
        bought = [each for each in bookings if each.side is OrderSide.BUY]
        sold = [each for each in bookings if each.side is not OrderSide.BUY]
        fees = sum((each.fee or D(0) for each in bookings), D(0))
        traded = sum(each.quantity for each in bought) - sum(each.quantity for each in sold)
        assert position.quantity == held + traded
        assert position.value_bought == sum(each.quantity * each.price for each in bought)
        assert position.value_sold == sum(each.quantity * each.price for each in sold)
        cash = position.value_sold - position.value_bought - fees
        assert position.realized_pnl == cash + position.open_cost - position.opening_cost
        assert (position.open_cost == 0) == (position.quantity == position.uncosted_quantity)
        assert price is None or position.opening_cost == held * price


@settings(max_examples=examples(50))
@given(BOOKINGS)
def test_a_position_that_is_closed_has_realized_all_its_cash(bookings: list[Booking]) -> None:
    position = from_trades(bookings, FLAT)
    if position.quantity:
        side = OrderSide.SELL if position.quantity > 0 else OrderSide.BUY
        position = from_trades([Booking(side, abs(position.quantity), D(7), None, NOON)], position)
    with localcontext(prec=500):
        assert position.realized_pnl == position.value_sold - position.value_bought - position.fees
    assert (position.open_cost, position.average_cost) == (D(0), D(0))


@settings(max_examples=examples(50))
@given(BOOKINGS)
def test_the_average_cost_lies_between_the_prices_paid(bookings: list[Booking]) -> None:
    position = from_trades(bookings, FLAT)
    if position.quantity:
        prices = [each.price for each in bookings]
        assert position.average_cost is not None
        assert min(prices) - D("1e-8") <= position.average_cost <= max(prices) + D("1e-8")


@pytest.mark.parametrize(
    ("trades", "fee", "quantity", "average", "realized"),
    [
        ("B 2 100", "0.005", "1.995", "100", "-0.5"),
        ("B 2 100, S 1.995 110", "0.005", "0", "0", "19.45"),
        ("B 2 100", "-0.005", "2.005", "99.750623441396508728", "0"),
        ("S 2 100", "0.005", "-2.005", "99.750623441396508728", "0"),
    ],
)
def test_a_fee_in_the_symbol_lowers_the_quantity_and_what_it_cost_is_realized(
    trades: str, fee: str, quantity: str, average: str, realized: str
) -> None:
    position = take_fee(from_trades(life(trades), FLAT), D(fee), NOON)
    assert (position.quantity, position.fee_quantity) == (D(quantity), D(fee))
    assert position.average_cost is not None
    assert abs(position.average_cost - D(average)) <= D("1e-18")
    assert position.realized_pnl == D(realized)
    sums = (
        position.value_sold
        - position.value_bought
        + position.open_cost
        - position.opening_cost
        - position.fees
    )
    assert position.realized_pnl == sums


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ("", (0, 0, 0)),
        ("a B 5, b B 3, c S 2, d H 1", (4, 8, 3)),
        ("a B 5, a S 0 held, a S 0 held", (3, 5, 0)),
        ("a B 5, a S 5 held, a S 5 held", (3, 5, 0)),
        ("a B 2, a S 3, a S 3", (3, 2, 3)),
        ("a S 3, a S 1, b S 4", (3, 0, 7)),
        ("a H 6, a B 4, a B 2", (3, 4, 6)),
        ("a S 7, a S 7", (2, 0, 7)),
        ("a H 7, a H 7, b H 1", (3, 0, 8)),
    ],
)
def test_of_linked_orders_of_a_side_the_larger_is_open(
    orders: str, expected: tuple[int, int, int]
) -> None:
    """`a S 3 held` is a SELL of the group a with 3 unfilled, an exit whose entry has no fill."""
    words = [each.split() for each in orders.split(",") if each]
    made = [
        SummedOrder(group, SIDES[side], D(unfilled), not held)
        for group, side, unfilled, *held in words
    ]
    assert tuple(open_sums(made)) == expected
