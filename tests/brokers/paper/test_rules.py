"""The rule table P2 to P14, each rule as short plays: what is done, and what happens."""

from decimal import Decimal

import pytest

from tests.brokers.paper.market import play

RULES = {
    "P2 orders are served in order of acceptance, from one size": """
        99x100 101x1 ->
        buy 5 limit 100 -> 1 accepted
        buy 5 limit 100 -> 2 accepted
        98x100 100x7 -> 1 fill 5@100, 2 fill 2@100
        98x100 100x7 -> 2 fill 3@100
    """,
    "P2 a size is used once, by who rests and who arrives": """
        99x100 101x10 ->
        buy 6 market -> 1 accepted, 1 fill 6@101
        buy 6 market ioc -> 2 accepted, 2 fill 4@101, 2 cancelled immediate_or_cancel
        buy 1 market ioc -> 3 accepted, 3 cancelled immediate_or_cancel
        short 100 market -> 4 rejected position_is_long
    """,
    "P2 the two sides of a quote are two sizes": """
        99x10 101x10 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 market -> 2 accepted, 2 fill 10@99
    """,
    "P3 a market order takes the displayed size, the rest at the next quote": """
        99x5 101x7 ->
        buy 10 market -> 1 accepted, 1 fill 7@101
        100x5 102x2 -> 1 fill 2@102
        100x5 103x2 -> 1 fill 1@103
    """,
    "P3 without a quote it waits": """
        buy 10 market -> 1 accepted
        99x5 101x20 -> 1 fill 10@101
    """,
    "P3 with an old quote it waits, and ends with the day": """
        99x5 101x20 ->
        after 16 seconds ->
        buy 10 market -> 1 accepted
        buy 10 market ioc -> 2 accepted, 2 cancelled immediate_or_cancel
        after 12 hours -> 1 expired day_ended
    """,
    "P3 a quote is old after fifteen seconds, not at them": """
        99x5 101x20 ->
        after 15 seconds ->
        buy 10 market -> 1 accepted, 1 fill 10@101
    """,
    "P4 a limit that is marketable on arrival gets the market's price": """
        99x5 101x7 ->
        buy 10 limit 102 -> 1 accepted, 1 fill 7@101
        99x5 101x7 -> 1 fill 3@102
    """,
    "P4 and at its limit exactly, too": """
        99x5 101x7 ->
        buy 7 limit 101 -> 1 accepted, 1 fill 7@101
        sell 5 limit 99 -> 2 accepted, 2 fill 5@99
    """,
    "P4 never worse than the limit": """
        99x5 101x7 ->
        buy 7 limit 100.99 -> 1 accepted
        short 5 limit 99.01 -> 2 accepted
    """,
    "P5 a resting limit is filled at its price when a quote touches it": """
        99x5 101x7 ->
        buy 4 limit 100 -> 1 accepted
        short 4 limit 102 -> 2 accepted
        99x5 100.01x7 ->
        95x5 97x3 -> 1 fill 3@100
        99x5 100x7 -> 1 fill 1@100
        102x3 105x7 -> 2 fill 3@102
        103x3 105x7 -> 2 fill 1@102
    """,
    "P5 a trade through the limit fills up to its size": """
        99x5 101x7 ->
        buy 10 limit 100 -> 1 accepted
        buy 10 limit 99.5 -> 2 accepted
        99x5 101x7 99.9x12 -> 1 fill 10@100
        99x5 101x7 99.4x12 -> 2 fill 10@99.5
    """,
    "P5 a trade's size is used once as well": """
        99x5 101x7 ->
        buy 10 limit 100 -> 1 accepted
        buy 10 limit 100 -> 2 accepted
        99x5 101x7 99x12 -> 1 fill 10@100, 2 fill 2@100
    """,
    "P5 a trade at the limit fills nobody who rests": """
        99x5 101x7 ->
        buy 10 limit 100 -> 1 accepted
        99x5 101x7 100x50 ->
    """,
    "P5 a trade without a size fills no order": """
        99x5 101x7 ->
        buy 10 limit 100 -> 1 accepted
        99x5 101x7 98 ->
    """,
    "P5 a trade from before fills nobody who comes later": """
        99x5 101x7 98x50 ->
        buy 10 limit 100 -> 1 accepted
    """,
    "P6 a stop triggers on the ask or the bid, and is then a market order": """
        99x50 101x50 ->
        buy 10 stop 103 -> 1 accepted
        short 10 stop 97 -> 2 accepted
        101x50 102.99x50 ->
        102x50 103x4 -> 1 triggered, 1 fill 4@103
        102x50 104x50 -> 1 fill 6@104
        96.5x4 99x50 -> 2 triggered, 2 fill 4@96.5
        98x50 99x50 -> 2 fill 6@98
    """,
    "P6 on the last trade where there is one": """
        99x50 101x50 ->
        buy 10 stop 103 -> 1 accepted
        103x50 104x50 102.9x1 ->
        103x50 105x50 103x1 -> 1 triggered, 1 fill 10@105
    """,
    "P6 through a gap it gets the market's price, never its own": """
        99x50 101x50 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 stop 95 -> 2 accepted
        80x50 82x50 -> 2 triggered, 2 fill 10@80
    """,
    "P6 one that is triggered on arrival trades at once": """
        99x50 101x50 ->
        buy 10 stop 100 -> 1 accepted, 1 triggered, 1 fill 10@101
    """,
    "P7 a stop-limit that is triggered takes the market up to its limit, then rests": """
        99x50 101x50 ->
        buy 10 stoplimit 103 103.5 -> 1 accepted
        102x50 103x4 -> 1 triggered, 1 fill 4@103
        102x50 104x50 ->
        102x50 103x50 -> 1 fill 6@103.5
    """,
    "P7 beyond its limit it rests": """
        99x50 101x50 ->
        buy 5 market -> 1 accepted, 1 fill 5@101
        sell 5 stoplimit 97 96 -> 2 accepted
        90x50 92x50 -> 2 triggered
        95.99x50 97x50 ->
        98x50 99x50 -> 2 fill 5@96
    """,
    "P9 IOC takes what is there, and the rest is cancelled": """
        99x5 101x7 ->
        buy 10 limit 101 ioc -> 1 accepted, 1 fill 7@101, 1 cancelled immediate_or_cancel
        buy 10 limit 100 ioc -> 2 accepted, 2 cancelled immediate_or_cancel
    """,
    "P9 FOK is all or nothing": """
        99x5 101x7 ->
        buy 8 market fok -> 1 accepted, 1 cancelled fill_or_kill
        buy 7 limit 101 fok -> 2 accepted, 2 fill 7@101
        buy 1 limit 101 fok -> 3 accepted, 3 cancelled fill_or_kill
    """,
    "P9 an IOC stop is immediate from its trigger on": """
        99x5 101x7 ->
        buy 10 stop 103 ioc -> 1 accepted
        buy 10 stop 103 fok -> 2 accepted
        102x5 103x7 -> 1 triggered, 1 fill 7@103, 1 cancelled immediate_or_cancel, 2 triggered, 2 cancelled fill_or_kill
    """,
    "P9 DAY ends at midnight, GTC after ninety days": """
        99x5 101x7 ->
        buy 1 limit 90 -> 1 accepted
        buy 1 limit 90 gtc -> 2 accepted
        after 11 hours ->
        after 1 hours -> 1 expired day_ended
        after 89 days ->
        after 12 hours -> 2 expired good_till_cancel_ended
    """,
    "P9 what has ended is filled no more": """
        99x5 101x7 ->
        buy 1 limit 90 -> 1 accepted
        after 12 hours -> 1 expired day_ended
        88x5 89x7 ->
        cancel 1 -> 1 cancel_rejected too_late
    """,
    "P11 what a single order cannot be": """
        99x5 101x7 ->
        buy 0.0000000001 market -> 1 rejected quantity_off_step
        buy 0.000000001 market -> 2 accepted, 2 fill 0.000000001@101
        buy 1 limit 100.001 -> 3 rejected price_off_tick
        buy 1 limit 0.1234 -> 4 accepted
        buy 1 stop 0.12345 -> 5 rejected price_off_tick
    """,
    "P11 buying power is reserved at the limit, and released": """
        99x5 101x7 ->
        buy 6000 limit 100 -> 1 accepted
        buy 6000 limit 100 -> 2 rejected insufficient_buying_power
        buy 4000 limit 100 -> 3 accepted
        buy 1 limit 0.01 -> 4 rejected insufficient_buying_power
        cancel 1 -> 1 cancelled
        buy 6000 limit 100 -> 5 accepted
        cancel 3 -> 3 cancelled
        replace 5 buy 10000 limit 100 -> 5 replaced
        replace 5 buy 10001 limit 100 -> 5 replace_rejected insufficient_buying_power
        after 12 hours -> 5 expired day_ended
        buy 10000 limit 100 -> 6 accepted
    """,
    "P11 a fill costs what it cost, not what was reserved": """
        99x5 50x10000 ->
        buy 10000 limit 100 -> 1 accepted, 1 fill 10000@50
        buy 5000 limit 100 -> 2 accepted
        buy 1 limit 1 -> 3 rejected insufficient_buying_power
    """,
    "P11 a market order that the next quotes make too dear ends": """
        99x5 100x1000 ->
        buy 9000 market -> 1 accepted, 1 fill 1000@100
        99x5 200x9000 -> 1 cancelled insufficient_buying_power
    """,
    "P11 a market order is checked at the price that is there": """
        99x5 100x1000 ->
        buy 10001 market -> 1 rejected insufficient_buying_power
    """,
    "P11 a short sale needs as much again, and buying back needs nothing": """
        100x20000 101x20000 ->
        short 10001 market -> 1 rejected insufficient_buying_power
        short 10000 market -> 2 accepted, 2 fill 10000@100
        buy 1 limit 1 gtc -> 3 accepted
        buy 9999 limit 300 -> 4 accepted, 4 fill 9999@101
        short 1 market -> 5 accepted, 5 fill 1@100
    """,
    "P12 a SELL needs what it sells": """
        99x50 101x50 ->
        sell 1 market -> 1 rejected no_position_to_sell
        buy 10 market -> 2 accepted, 2 fill 10@101
        sell 11 market -> 3 rejected no_position_to_sell
        sell 6 limit 105 -> 4 accepted
        sell 5 limit 105 -> 5 rejected no_position_to_sell
        replace 4 sell 11 limit 105 -> 4 replace_rejected no_position_to_sell
        replace 4 sell 10 limit 105 -> 4 replaced
        sell 1 market -> 6 rejected no_position_to_sell
        cancel 4 -> 4 cancelled
        sell 10 market -> 7 accepted, 7 fill 10@99
        sell 1 market -> 8 rejected no_position_to_sell
    """,
    "P12 going short takes a SELL_SHORT, which does not sell what is held": """
        99x50 101x50 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        short 5 market -> 2 rejected position_is_long
        sell 10 market -> 3 accepted, 3 fill 10@99
        short 5 market -> 4 accepted, 4 fill 5@99
        short 5 market -> 5 accepted, 5 fill 5@99
        sell 1 market -> 6 rejected no_position_to_sell
        buy 15 market -> 7 accepted, 7 fill 15@101
        short 1 market -> 8 rejected position_is_long
    """,
    "P12 a SELL never crosses zero, even where another order took the position": """
        99x50 101x50 ->
        short 10 limit 105 -> 1 accepted
        buy 10 market -> 2 accepted, 2 fill 10@101
        sell 10 limit 105 -> 3 accepted
        105x15 106x50 -> 1 fill 10@105, 3 cancelled no_position_to_sell
    """,
    "P14 a replaced order goes to the end of the queue": """
        99x5 101x7 ->
        buy 5 limit 100 -> 1 accepted
        buy 5 limit 100 -> 2 accepted
        replace 1 buy 6 limit 100 -> 1 replaced
        98x5 100x8 -> 2 fill 5@100, 1 fill 3@100
    """,
    "P14 a replaced order arrives anew": """
        99x5 101x7 ->
        buy 5 limit 100 -> 1 accepted
        replace 1 buy 10 limit 102 -> 1 replaced, 1 fill 7@101
        replace 1 buy 9 limit 102 ioc -> 1 replaced, 1 cancelled immediate_or_cancel
        replace 1 buy 9 limit 102 -> 1 replace_rejected too_late
    """,
    "P14 to no more than what is filled, it is filled": """
        99x5 101x7 ->
        buy 10 limit 101 -> 1 accepted, 1 fill 7@101
        replace 1 buy 5 limit 101 -> 1 replaced
        99x5 101x7 ->
        cancel 1 -> 1 cancel_rejected too_late
    """,
    "P14 neither its side nor its kind can be replaced": """
        99x5 101x7 ->
        short 5 limit 110 -> 1 accepted
        replace 1 buy 5 limit 90 -> 1 replace_rejected another_order
        replace 1 short 5 market -> 1 replace_rejected another_order
        replace 1 short 5 limit 110.001 -> 1 replace_rejected price_off_tick
        111x5 112x5 -> 1 fill 5@110
    """,
    "P14 a triggered stop stays triggered": """
        99x5 101x7 ->
        buy 10 stop 100 -> 1 accepted, 1 triggered, 1 fill 7@101
        replace 1 buy 10 stop 150 -> 1 replaced
        99x5 102x7 -> 1 fill 3@102
    """,
    "an order that nobody knows": """
        cancel 4 -> None cancel_rejected unknown_order
    """,
}


@pytest.mark.parametrize("name", RULES)
def test_the_rule_holds(name: str) -> None:
    play(RULES[name])


def test_a_second_resting_order_is_served_on_the_tick_that_filled_the_first() -> None:
    play("""
        99x50 101x50 ->
        buy 5 limit 100 -> 1 accepted
        buy 5 limit 100 -> 2 accepted
        buy 5 limit 99.5 -> 3 accepted
        98x50 99x12 -> 1 fill 5@100, 2 fill 5@100, 3 fill 2@99.5
    """)


def test_an_ioc_gets_nothing_of_a_size_that_is_taken() -> None:
    play("""
        99x50 101x10 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        buy 5 market ioc -> 2 accepted, 2 cancelled immediate_or_cancel
        buy 5 limit 101 fok -> 3 accepted, 3 cancelled fill_or_kill
    """)


def test_a_stop_is_not_filled_at_its_trigger_through_a_gap() -> None:
    play("""
        99x50 101x50 ->
        short 5 stop 97 -> 1 accepted
        buy 5 stop 103 -> 2 accepted
        90x50 92x50 -> 1 triggered, 1 fill 5@90
        120x50 122x50 -> 2 triggered, 2 fill 5@122
    """)


def test_a_poor_account_buys_what_it_can_pay() -> None:
    play(
        "99x5 100x5 ->\nbuy 1 market -> 1 rejected insufficient_buying_power", cash=Decimal("99.99")
    )
    play("99x5 100x5 ->\nbuy 1 market -> 1 accepted, 1 fill 1@100", cash=Decimal(100))
