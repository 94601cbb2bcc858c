"""The paper broker's rule table from outside, over HTTP alone: quotes are posted, orders placed,
replaced, cancelled, and orders, trades and positions say what came of it."""

import uuid
from collections import defaultdict
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.intents.http_client import cancel, create, limit, market, replace, stop, stop_limit
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.trading import amount_text

WAIT_SECONDS = 20.0
SIDES = {"buy": "BUY", "sell": "SELL", "short": "SELL_SHORT"}
TIMES = {
    "gtc": "GOOD_TILL_CANCEL",
    "ioc": "IMMEDIATE_OR_CANCEL",
    "fok": "FILL_OR_KILL",
    "day": "DAY",
}


def trailing(quantity: str, trail_amount: str) -> Any:
    return {"TrailingStop": {"quantity": quantity, "trail_amount": trail_amount}}


SPECS: dict[str, Any] = {
    "market": market,
    "limit": limit,
    "stop": stop,
    "stoplimit": stop_limit,
    "trail": trailing,
}
HELD = "99x50 100x20 ->\nbuy 20 market -> 1 FILLED 20@100\n"

# A step, and what the orders that it names become: their status and their trades.
RULES = {
    # Each kind on each side, with partial fills by displayed size.
    "market buy": """
        99x50 101x7 ->
        buy 10 market -> 1 PARTIALLY_FILLED 7@101
        99x50 102x2 -> 1 PARTIALLY_FILLED 7@101 2@102
        99x50 103x9 -> 1 FILLED 7@101 2@102 1@103
    """,
    "market sell": HELD
    + """
        98x7 101x50 ->
        sell 10 market -> 2 PARTIALLY_FILLED 7@98
        97x50 101x50 -> 2 FILLED 7@98 3@97
    """,
    "market short": """
        98x7 101x50 ->
        short 10 market -> 1 PARTIALLY_FILLED 7@98
        97x50 101x50 -> 1 FILLED 7@98 3@97
    """,
    "limit buy": """
        99x50 101x7 ->
        buy 10 limit 102 -> 1 PARTIALLY_FILLED 7@101
        buy 5 limit 100 -> 2 NEW
        99x50 103x50 ->
        99x50 101x1 -> 1 PARTIALLY_FILLED 7@101 1@102; 2 NEW
        95x50 96x5 -> 1 FILLED 7@101 1@102 2@102; 2 PARTIALLY_FILLED 3@100
        99x50 100x5 -> 2 FILLED 3@100 2@100
    """,
    "limit sell": HELD
    + """
        99x7 101x50 ->
        sell 10 limit 98.5 -> 2 PARTIALLY_FILLED 7@99
        sell 5 limit 100 -> 3 NEW
        97x50 101x50 ->
        103x5 104x50 -> 2 FILLED 7@99 3@98.5; 3 PARTIALLY_FILLED 2@100
        100x50 104x50 -> 3 FILLED 2@100 3@100
    """,
    "limit short": """
        99x7 101x50 ->
        short 10 limit 98.5 -> 1 PARTIALLY_FILLED 7@99
        99x1 101x50 -> 1 PARTIALLY_FILLED 7@99 1@98.5
        99x9 101x50 -> 1 FILLED 7@99 1@98.5 2@98.5
    """,
    "stop buy": """
        99x50 101x50 ->
        buy 10 stop 103 -> 1 NEW
        102x50 102.5x50 ->
        105x50 107x4 -> 1 PARTIALLY_FILLED 4@107
        99x50 100x50 -> 1 FILLED 4@107 6@100
    """,
    "stop sell": HELD
    + """
        sell 10 stop 95 -> 2 NEW
        96x50 97x50 ->
        80x4 82x50 -> 2 PARTIALLY_FILLED 4@80
        99x50 100x50 -> 2 FILLED 4@80 6@99
    """,
    "stop short": """
        99x50 101x50 ->
        short 10 stop 95 -> 1 NEW
        80x4 82x50 -> 1 PARTIALLY_FILLED 4@80
        99x50 100x50 -> 1 FILLED 4@80 6@99
    """,
    "stop on the last trade": """
        99x50 101x50 ->
        buy 10 stop 103 -> 1 NEW
        103x50 104x50 102x1 ->
        100x50 102x50 103x1 -> 1 FILLED 10@102
    """,
    "stop-limit buy": """
        99x50 101x50 ->
        buy 10 stoplimit 103 104 -> 1 NEW
        102x50 103x4 -> 1 PARTIALLY_FILLED 4@103
        104x50 105x50 ->
        102x50 103x50 -> 1 FILLED 4@103 6@104
    """,
    "stop-limit sell": HELD
    + """
        sell 10 stoplimit 95 94 -> 2 NEW
        90x50 92x50 ->
        94x4 97x50 -> 2 PARTIALLY_FILLED 4@94
        98x50 99x50 -> 2 FILLED 4@94 6@94
    """,
    "stop-limit short": """
        99x50 101x50 ->
        short 10 stoplimit 95 94 -> 1 NEW
        94.5x4 97x50 -> 1 PARTIALLY_FILLED 4@94.5
        98x50 99x50 -> 1 FILLED 4@94.5 6@94
    """,
    "a trade through a resting limit": """
        99x50 101x50 ->
        buy 10 limit 100 -> 1 NEW
        99x50 101x50 100x9 ->
        99x50 101x50 99.5x4 -> 1 PARTIALLY_FILLED 4@100
        99x50 101x50 99.5x9 -> 1 FILLED 4@100 6@100
    """,
    "a market order without a quote waits": """
        buy 10 limit 0.01 -> 1 NEW
        99x50 101x50 ->
        buy 1 market -> 2 FILLED 1@101; 1 NEW
    """,
    "orders are served in order of acceptance, from a size that is used once": """
        99x50 101x50 ->
        buy 5 limit 100 -> 1 NEW
        buy 5 limit 100 -> 2 NEW
        buy 5 limit 100 -> 3 NEW
        98x50 100x12 -> 1 FILLED 5@100; 2 FILLED 5@100; 3 PARTIALLY_FILLED 2@100
        buy 1 market ioc -> 4 CANCELLED; 3 PARTIALLY_FILLED 2@100
    """,
    "IOC": """
        99x50 101x7 ->
        buy 10 limit 101 ioc -> 1 CANCELLED 7@101
        buy 10 market ioc -> 2 CANCELLED
        short 5 limit 99.5 ioc -> 3 REJECTED position_is_long
        sell 5 limit 99.5 ioc -> 4 CANCELLED
        sell 5 limit 99 ioc -> 5 FILLED 5@99
    """,
    "FOK": """
        99x50 101x7 ->
        buy 8 limit 101 fok -> 1 CANCELLED
        buy 7 limit 101 fok -> 2 FILLED 7@101
        buy 1 market fok -> 3 CANCELLED
        99x50 101x7 ->
        buy 7 market fok -> 4 FILLED 7@101
    """,
    "replace": """
        99x50 101x7 ->
        buy 5 limit 100 -> 1 NEW
        buy 5 limit 100 -> 2 NEW
        replace 1 buy 6 limit 100 -> 1 NEW
        98x50 100x8 -> 2 FILLED 5@100; 1 PARTIALLY_FILLED 3@100
        102x50 103x50 ->
        replace 1 buy 8 limit 104 -> 1 FILLED 3@100 5@103
        buy 5 limit 90 -> 3 NEW
        97x50 102x3 ->
        replace 3 buy 5 limit 103 -> 3 PARTIALLY_FILLED 3@102
        replace 3 buy 2 limit 103 -> 3 FILLED 3@102
    """,
    "cancel": """
        99x50 101x7 ->
        buy 10 limit 101 -> 1 PARTIALLY_FILLED 7@101
        cancel 1 -> 1 CANCELLED 7@101
        99x50 101x7 ->
        buy 1 limit 90 -> 2 NEW
        cancel 2 -> 2 CANCELLED
        90x50 91x50 ->
        buy 1 market -> 3 FILLED 1@91; 1 CANCELLED 7@101; 2 CANCELLED
    """,
    "trailing stop": HELD
    + """
        99x50 101x50 ->
        sell 10 trail 2 -> 2 NEW stop 97
        105x50 106x50 -> 2 NEW stop 103
        104x50 106x50 ->
        replace 2 sell 10 trail 1.5 -> 2 NEW stop 103.5
        103.5x50 106x50 -> 2 FILLED 10@103.5
    """,
    "what cannot be": """
        99x50 101x7 ->
        sell 1 market -> 1 REJECTED no_position_to_sell
        buy 1 limit 100.001 -> 2 REJECTED price_off_tick
        buy 0.0000000001 market -> 3 REJECTED quantity_off_step
        buy 100000 limit 100 -> 4 REJECTED insufficient_buying_power
        buy 1 market -> 5 FILLED 1@101
        sell 2 limit 200 -> 6 REJECTED no_position_to_sell
        short 1 market -> 7 REJECTED position_is_long
        sell 1 limit 200 -> 8 NEW
        replace 8 sell 2 limit 200 -> 8 NEW no_position_to_sell
    """,
}


class Play:
    def __init__(self, tenants: Tenants) -> None:
        self.client: httpx.Client = tenants.client
        self.headers = tenants.callers["key_all"]
        self.symbol = uuid.uuid4().hex[:10].upper()
        body = {"name": "rules", "broker": "paper", "environment": "paper"}
        self.account = self.checked("POST", "/v1/accounts", 201, body)["id"]
        self.intents: list[str] = []

    def checked(self, method: str, path: str, status: int = 200, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body, headers=self.headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def run(self, line: str) -> None:
        step, arrow, expected = line.partition("->")
        assert arrow
        word, _, rest = step.strip().partition(" ")
        if word in SIDES:
            self.intents.append(self.submit(create(self.spec(step), self.symbol, SIDES[word])))
        elif word == "replace":
            number, _, order = rest.partition(" ")
            self.submit(replace(self.intents[int(number) - 1], self.spec(order)))
        elif word == "cancel":
            self.submit(cancel(self.intents[int(rest) - 1]))
        else:
            self.quote(step)
        for each in filter(None, map(str.strip, expected.split(";"))):
            self.expect(each, line)

    def spec(self, text: str) -> Any:
        _, quantity, kind, *rest = text.split()
        more = {"time_in_force": TIMES[rest.pop()]} if rest and rest[-1] in TIMES else {}
        return SPECS[kind](quantity, *rest, **more)

    def submit(self, body: Any) -> str:
        intent_id: str = self.checked("POST", f"/v1/accounts/{self.account}/intents", 202, body)[
            "intent_id"
        ]
        return intent_id

    def quote(self, text: str) -> None:
        (bid, bid_size), (ask, ask_size), *trade = (part.split("x") for part in text.split())
        body = {"bid": bid, "ask": ask, "bid_size": bid_size, "ask_size": ask_size}
        if trade:
            body |= {"last": trade[0][0], "last_size": trade[0][1]}
        self.checked("PUT", f"/v1/paper/quotes/{self.symbol}", 200, body)

    def expect(self, text: str, line: str) -> None:
        number, *words = text.split()
        shown = ""

        def is_so() -> bool:
            nonlocal shown
            shown = self.shown(int(number))
            return shown == " ".join(words)

        try:
            eventually(is_so, WAIT_SECONDS)
        except AssertionError:
            raise AssertionError(f"{line.strip()}: {number} is {shown}") from None

    def shown(self, number: int) -> str:
        """Status, reason of what was refused, trades."""
        intent_id = self.intents[number - 1]
        order = self.checked("GET", f"/v1/accounts/{self.account}/orders/{intent_id}")
        trades = [each for each in self.trades() if each["order_id"] == intent_id]
        reported = order["order_status"] in ("REJECTED", "NEW") and order["reason"]
        words = [order["order_status"], *([order["reason"]] if reported else [])]
        if order["order_type"] == "TRAILING_STOP" and order["order_status"] == "NEW":
            words += ["stop", str(order["stop_price"])]
        return " ".join([*words, *(f"{trade['quantity']}@{trade['price']}" for trade in trades)])

    def trades(self) -> list[Any]:
        found: list[Any] = self.checked("GET", f"/v1/accounts/{self.account}/trades?limit=100")[
            "data"
        ]
        return found

    def assert_sums(self) -> None:
        """An order's trades are what is filled of it, and the position is the sum of all trades."""
        filled: dict[str, Decimal] = defaultdict(Decimal)
        position = Decimal(0)
        for trade in self.trades():
            filled[trade["order_id"]] += Decimal(trade["quantity"])
            position += Decimal(trade["quantity"]) * (1 if trade["side"] == "BUY" else -1)
        for intent_id in self.intents:
            order = self.checked("GET", f"/v1/accounts/{self.account}/orders/{intent_id}")
            assert (
                Decimal(order["filled_quantity"]) == filled[intent_id] <= Decimal(order["quantity"])
            )
        held = self.checked("GET", f"/v1/accounts/{self.account}/positions")["data"]
        assert [(each["symbol"], each["quantity"]) for each in held] == (
            [(self.symbol, amount_text(position))] if filled and self.trades() else []
        )


@pytest.mark.parametrize("rule", RULES)
def test_orders_are_filled_by_the_rules(tenants: Tenants, rule: str) -> None:
    play = Play(tenants)
    for line in filter(None, map(str.strip, RULES[rule].splitlines())):
        play.run(line)
    play.assert_sums()
