"""Rule P18 and trailing stops, each as short plays: what is done, and what happens."""

import pytest

from tests.brokers.paper.market import play

RULES = {
    "P18 exits work for every fill of their entry, and one that sold all so far stays open": """
        99x100 101x4 ->
        buy 10 limit 101 with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 4@101, \
            2 replaced 4@110, 3 replaced 4@95
        110x100 111x100 -> 2 fill 4@110, 3 replaced 0@95
        100x100 101x6 -> 1 fill 6@101, 2 replaced 10@110, 3 replaced 6@95
        94x100 96x100 -> 3 triggered, 3 fill 6@94, 2 cancelled pair_filled
    """,
    "P18 the event that fills an entry triggers no exit": """
        99x100 101x100 ->
        buy 10 limit 100 with loss 99 -> 1 accepted, 2 accepted
        98x100 99x100 -> 1 fill 10@100
        98x100 99x100 -> 2 triggered, 2 fill 10@98
    """,
    "P18 an entry that a REPLACE moved is still matched before its exits": """
        99x100 101x100 ->
        buy 10 limit 98 with loss 97 -> 1 accepted, 2 accepted
        replace 1 buy 10 limit 99 -> 1 replaced
        96x100 97x100 -> 1 fill 10@99
        96x100 97x100 -> 2 triggered, 2 fill 10@96
    """,
    "P18 a fill of one exit lowers the other, and the last one ends it": """
        99x100 101x100 ->
        buy 10 market with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 10@101
        110x3 111x100 -> 2 fill 3@110, 3 replaced 7@95
        94x5 96x100 -> 3 triggered, 3 fill 5@94, 2 replaced 5@110
        94x5 96x100 -> 3 fill 2@94, 2 cancelled pair_filled
    """,
    "P18 a price that jumps over both legs fills the first that it reaches in order of acceptance": """
        99x100 101x100 ->
        buy 10 market with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 10@101
        111x100 112x100 94x5 -> 2 fill 10@110, 3 cancelled pair_filled
    """,
    "P18 an entry that ends unfilled ends its exits": """
        99x100 101x100 ->
        buy 10 limit 90 with profit 110,loss 85 -> 1 accepted, 2 accepted, 3 accepted
        cancel 1 -> 1 cancelled, 2 cancelled entry_ended, 3 cancelled entry_ended
        buy 10 limit 90 with loss 85 -> 4 accepted, 5 accepted
        after 13 hours -> 4 expired day_ended, 5 cancelled entry_ended
    """,
    "P18 an entry that ends in part leaves its exits for that part": """
        99x100 101x4 ->
        buy 10 limit 101 with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 4@101, \
            2 replaced 4@110, 3 replaced 4@95
        cancel 1 -> 1 cancelled
        110x100 111x100 -> 2 fill 4@110, 3 cancelled pair_filled
    """,
    "P18 an entry that ends in part finishes the exit that sold it": """
        99x100 101x4 ->
        buy 10 limit 101 with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 4@101, \
            2 replaced 4@110, 3 replaced 4@95
        110x100 111x100 -> 2 fill 4@110, 3 replaced 0@95
        cancel 1 -> 1 cancelled, 3 cancelled pair_filled
        cancel 2 -> 2 cancel_rejected too_late
    """,
    "P18 exits that each sold a part are reported with what they sold, before their entry ends": """
        99x100 100x7 ->
        buy 10 limit 100 gtc with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 7@100, \
            2 replaced 7@110, 3 replaced 7@95
        110x5.5 111x100 -> 2 fill 5.5@110, 3 replaced 1.5@95
        94x1.5 105x100 -> 3 triggered, 3 fill 1.5@94, 2 replaced 5.5@110
        cancel 1 -> 1 cancelled
        cancel 2 -> 2 cancel_rejected too_late
    """,
    "P18 a REPLACE that ends an entry ends its exits with nothing to close": """
        99x100 101x4 ->
        buy 10 limit 101 with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 4@101, \
            2 replaced 4@110, 3 replaced 4@95
        110x100 111x100 -> 2 fill 4@110, 3 replaced 0@95
        replace 1 buy 4 limit 101 -> 1 replaced, 3 cancelled pair_filled
    """,
    "P18 a refused entry has no exits": """
        99x100 101x100 ->
        buy 100000 limit 101 with profit 110,loss 95 -> 1 rejected insufficient_buying_power
        cancel 2 -> None cancel_rejected unknown_order
    """,
    "P18 a CANCEL of one leg ends the other": """
        99x100 101x100 ->
        buy 10 market with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 10@101
        cancel 3 -> 3 cancelled, 2 cancelled pair_cancelled
    """,
    "P18 exits expire together": """
        99x100 101x100 ->
        buy 10 market with profit 110 day,loss 95 day -> 1 accepted, 2 accepted, 3 accepted, 1 fill 10@101
        after 13 hours -> 2 expired day_ended, 3 expired day_ended
    """,
    "P18 exits of a short buy it back, and never more": """
        99x100 101x100 ->
        short 10 market with profit 90,loss 105 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 10@99
        buy 4 market -> 4 accepted, 4 fill 4@101
        105x100 106x100 -> 3 triggered, 3 fill 6@106, 2 replaced 4@90, \
            3 cancelled no_position_to_sell, 2 cancelled pair_cancelled
    """,
    "P18 a pair promises its shares once": """
        99x100 101x100 ->
        buy 10 market with profit 110,loss 95 -> 1 accepted, 2 accepted, 3 accepted, 1 fill 10@101
        sell 1 limit 120 -> 4 rejected no_position_to_sell
        buy 2 market -> 5 accepted, 5 fill 2@101
        sell 2 limit 120 -> 6 accepted
        replace 2 sell 10 limit 111 gtc -> 2 replaced
    """,
    "P18 one cancels other: both work at once, and a fill of one lowers the other": """
        99x100 101x100 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 limit 110 with or 95 -> 2 accepted, 3 accepted
        110x4 111x100 -> 2 fill 4@110, 3 replaced 6@95
        94x100 96x100 -> 3 triggered, 3 fill 6@94, 2 cancelled pair_filled
    """,
    "P18 one cancels other of a BUY reserves the dearer of the two": """
        99x100 101x100 ->
        buy 9901 limit 90 with or 101 -> 1 rejected insufficient_buying_power
        buy 9900 limit 90 with or 101 -> 2 accepted, 3 accepted
        cancel 2 -> 2 cancelled, 3 cancelled pair_cancelled
        buy 9900 market -> 4 accepted, 4 fill 100@101
    """,
    "a stop that trails by an amount follows the best bid and never goes back": """
        99x100 101x100 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 trail 2 -> 2 accepted, 2 replaced 10@97
        after 1 seconds ->
        100x100 101x100 -> 2 replaced 10@98
        after 1 seconds ->
        99x100 101x100 ->
        98x100 101x100 -> 2 triggered, 2 fill 10@98
    """,
    "a stop that trails by basis points is rounded away from the market": """
        99.99x100 101x100 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 trail 100bps -> 2 accepted, 2 replaced 10@98.99
        buy 1 trail 100bps -> 3 accepted, 3 replaced 1@102.01
    """,
    "a stop's moves are reported once a second, and the last one before it is triggered": """
        99x100 101x100 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 trail 2 -> 2 accepted, 2 replaced 10@97
        100x100 101x100 ->
        after 1 seconds -> 2 replaced 10@98
        100x100 101x100 ->
        103x100 104x100 ->
        101x100 104x100 -> 2 replaced 10@101, 2 triggered, 2 fill 10@101
    """,
    "a REPLACE of a trailing stop keeps the best price": """
        99x100 101x100 ->
        buy 10 market -> 1 accepted, 1 fill 10@101
        sell 10 trail 5 -> 2 accepted, 2 replaced 10@94
        after 1 seconds ->
        110x100 111x100 -> 2 replaced 10@105
        107x100 108x100 ->
        after 1 seconds ->
        replace 2 sell 10 trail 4 -> 2 replaced, 2 replaced 10@106
        106x100 108x100 -> 2 triggered, 2 fill 10@106
    """,
    "a stop whose trail is more than the price rests at the lowest price": """
        1x100 1.01x100 ->
        buy 5 market -> 1 accepted, 1 fill 5@1.01
        sell 1 trail 2 -> 2 accepted, 2 replaced 1@0.0001
        0.5x100 0.51x100 ->
        3x100 3.01x100 ->
        after 1 seconds -> 2 replaced 1@1
    """,
    "a trailing stop without a quote begins with the first": """
        buy 1 trail 2 -> 1 accepted
        99x100 101x100 -> 1 replaced 1@103
    """,
}


@pytest.mark.parametrize("lines", RULES.values(), ids=RULES.keys())
def test_the_rule_holds(lines: str) -> None:
    play(lines)
