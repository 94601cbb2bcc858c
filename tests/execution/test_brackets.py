"""Linked orders from the POST to their end, at the whole platform as `make run` starts it, and its
paper broker."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import Urls
from tests.intents.http_client import (
    Body,
    Tables,
    TradingClient,
    cancel,
    create,
    limit,
    market,
    open_trading_client,
    replace,
    stop,
)
from tests.tenants import Tenants
from tests.waiting import eventually

WAIT_SECONDS = 60.0
EXITS = {"take_profit": {"limit_price": "110"}, "stop_loss": {"stop_price": "90"}}
COVERED = {"entry": "FILLED", "take_profit": "NEW", "stop_loss": "NEW"}


class Group:
    """An order and its legs, at a symbol of its own."""

    def __init__(self, client: TradingClient) -> None:
        self.client = client
        self.symbol = uuid4().hex[:12].upper()
        self.ids: dict[str, str] = {}

    def quote(
        self, bid: str, ask: str, size: str = "500", ask_size: str = "", symbol: str = ""
    ) -> None:
        body = {"bid": bid, "ask": ask, "bid_size": size, "ask_size": ask_size or size}
        url = f"/v1/paper/quotes/{symbol or self.symbol}"
        assert (
            self.client.client.put(url, json=body, headers=self.client.headers).status_code == 200
        )

    def submit(self, spec: Body, side: str, **more: Any) -> None:
        answer = self.client.submit(create(spec, self.symbol, side, **more))
        assert answer.status_code == 202, answer.text
        made = answer.json()
        self.ids = {"entry": made["intent_id"]} | {
            each["leg"]: each["intent_id"] for each in made["legs"]
        }

    def orders(self) -> dict[str, Body]:
        url = f"/v1/accounts/{self.client.account['id']}/orders"
        found = self.client.client.get(
            url, params={"symbol": self.symbol}, headers=self.client.headers
        ).json()["data"]
        return {each["leg"] or "entry": each for each in found}

    def until(self, **statuses: str) -> dict[str, Body]:
        wanted: dict[str, Body] = {}

        def is_reached() -> bool:
            nonlocal wanted
            wanted = self.orders()
            return {name: wanted[name]["order_status"] for name in statuses} == statuses

        eventually(is_reached, WAIT_SECONDS)
        return wanted

    def until_filled(self, **filled: str) -> dict[str, Body]:
        def is_filled() -> bool:
            shown = self.orders()
            return {name: shown[name]["filled_quantity"] for name in filled} == filled

        eventually(is_filled, WAIT_SECONDS)
        return self.orders()

    def position(self, symbol: str = "") -> str:
        url = f"/v1/accounts/{self.client.account['id']}/positions"
        held = self.client.client.get(url, headers=self.client.headers).json()["data"]
        wanted = symbol or self.symbol
        return next((str(each["quantity"]) for each in held if each["symbol"] == wanted), "0")

    def exposure(self) -> list[Any]:
        query = "SELECT open_orders, open_buy, open_sell FROM holdings WHERE symbol = $1"
        return [
            value for row in self.client.tables.fetch(query, self.symbol) for value in row.values()
        ]


@pytest.fixture
def group(tenants: Tenants, tenants_database: Urls) -> Iterator[Group]:
    tables = Tables(tenants_database.owner)
    made = Group(open_trading_client(tenants, tables))
    made.quote("99", "100")
    yield made
    tables.close()


@pytest.mark.parametrize(
    ("bid", "filled", "ended"),
    [("111", "take_profit", "stop_loss"), ("85", "stop_loss", "take_profit")],
)
def test_one_exit_closes_a_filled_entry_and_ends_the_other(
    group: Group, tenants: Tenants, bid: str, filled: str, ended: str
) -> None:
    group.submit(market("10"), "BUY", exits=EXITS)
    covered = group.until(**COVERED)
    for name in ("take_profit", "stop_loss"):
        assert (covered[name]["active"], covered[name]["quantity"]) == (True, "10")
        assert covered[name]["parent_intent_id"] == group.ids["entry"]
    assert group.position() == "10"
    assert group.exposure() == [2, 0, 10]
    group.quote(bid, str(int(bid) + 1))
    over = group.until(**{filled: "FILLED", ended: "CANCELLED"})
    assert (over[ended]["reason"], over[ended]["filled_quantity"], over["entry"]["flags"]) == (
        "pair_filled",
        "0",
        [],
    )
    assert group.position() == "0"
    assert group.exposure() in ([], [0, 0, 0])
    done = tenants.platform.run("audit", "verify", "--account", group.client.account["id"])
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "1 accounts, 3 actions followed, 0 accounts damaged",
    )


def test_exits_of_an_entry_that_is_cancelled_unfilled_end_with_it(group: Group) -> None:
    group.submit(limit("10", "95", time_in_force="GOOD_TILL_CANCEL"), "BUY", exits=EXITS)
    waiting = group.until(entry="NEW", take_profit="NEW", stop_loss="NEW")
    assert [waiting[name]["active"] for name in COVERED] == [True, False, False]
    assert group.exposure() == [3, 10, 0]
    group.client.accepted(cancel(group.ids["entry"]))
    over = group.until(entry="CANCELLED", take_profit="CANCELLED", stop_loss="CANCELLED")
    assert [over[name]["reason"] for name in ("take_profit", "stop_loss")] == ["entry_ended"] * 2
    assert group.exposure() in ([], [0, 0, 0])


def test_an_exit_is_replaced_by_its_caller(group: Group) -> None:
    group.submit(market("10"), "BUY", exits=EXITS)
    group.until(**COVERED)
    group.client.accepted(replace(group.ids["take_profit"], limit("10", "105")))

    def is_moved() -> bool:
        shown = group.orders()["take_profit"]
        return bool((shown["limit_price"], shown["order_status"]) == ("105", "NEW"))

    eventually(is_moved, WAIT_SECONDS)
    group.quote("106", "107")
    assert (
        group.until(take_profit="FILLED", stop_loss="CANCELLED")["stop_loss"]["reason"]
        == "pair_filled"
    )


def test_of_a_limit_and_the_stop_beside_it_one_is_filled(group: Group) -> None:
    group.submit(limit("10", "95"), "BUY", one_cancels_other={"stop_price": "105"})
    both = group.until(entry="NEW", one_cancels_other="NEW")
    assert (both["one_cancels_other"]["active"], both["one_cancels_other"]["order_side"]) == (
        True,
        "BUY",
    )
    assert group.exposure() == [2, 10, 0]
    group.quote("105", "106")
    over = group.until(entry="CANCELLED", one_cancels_other="FILLED")
    assert over["entry"]["reason"] == "pair_filled"
    assert (group.position(), over["entry"]["flags"]) == ("10", [])


def enter_in_part(group: Group, filled: str) -> None:
    """A BUY of 10 at 100, of which so much is filled."""
    group.quote("99", "100", "1000", filled)
    spec = limit("10", "100", time_in_force="GOOD_TILL_CANCEL")
    exits = {"take_profit": {"limit_price": "110"}, "stop_loss": {"stop_price": "95"}}
    group.submit(spec, "BUY", exits=exits)
    group.until_filled(entry=filled)


def test_exits_that_each_sold_a_part_end_with_their_entry(group: Group) -> None:
    enter_in_part(group, "7")
    group.quote("110", "111", "5.5", "1000")
    group.until_filled(take_profit="5.5")
    group.quote("94", "105", "1.5", "1000")
    sold = group.until_filled(stop_loss="1.5")
    group.until(entry="PARTIALLY_FILLED", take_profit="PARTIALLY_FILLED")
    assert [sold[name]["quantity"] for name in COVERED] == ["10", "5.5", "1.5"]
    assert group.exposure() == [3, 3, 0]
    group.client.accepted(cancel(group.ids["entry"]))
    group.until(entry="CANCELLED", take_profit="FILLED", stop_loss="FILLED")
    assert group.exposure() in ([], [0, 0, 0])
    url = f"/v1/accounts/{group.client.account['id']}/trades"
    trades = group.client.client.get(url, headers=group.client.headers).json()["data"]
    assert [each["leaves_quantity"] for each in trades] == ["3", "1.5", "0"]


def test_a_halt_closes_another_position_than_that_which_exits_sold_in_parts(group: Group) -> None:
    enter_in_part(group, "7")
    group.quote("110", "111", "5.5", "1000")
    group.until_filled(take_profit="5.5")
    group.quote("94", "105", "1.5", "1000")
    group.until_filled(stop_loss="1.5")
    other = uuid4().hex[:12].upper()
    group.quote("50", "51", symbol=other)
    bought = group.client.accepted(create(market("3"), other))
    eventually(
        lambda: group.client.order(bought["intent_id"])["order_status"] == "FILLED", WAIT_SECONDS
    )
    halt(group)
    ended = group.until(entry="CANCELLED")
    # An exit is FILLED if the entry's CANCEL comes to the venue before its own.
    for name, sold in (("take_profit", "5.5"), ("stop_loss", "1.5")):
        assert ended[name]["order_status"] in ("FILLED", "CANCELLED")
        assert ended[name]["filled_quantity"] == sold
    assert group.position(other) == "0"


def test_an_exit_that_works_nothing_shows_so_and_keeps_no_position_from_being_closed(
    group: Group, tenants: Tenants
) -> None:
    enter_in_part(group, "4")
    group.quote("94", "105", "1000", "1000")
    sold = group.until_filled(stop_loss="4")
    eventually(lambda: group.orders()["take_profit"]["quantity"] == "0", WAIT_SECONDS)
    assert sold["take_profit"]["order_status"] == "NEW"
    assert group.exposure() == [3, 6, 0]
    group.client.accepted(create(market("4"), group.symbol))
    eventually(lambda: group.position() == "4", WAIT_SECONDS)
    url = f"/v1/accounts/{group.client.account['id']}/positions/{group.symbol}/close"
    answer = group.client.client.post(url, json={}, headers=group.client.headers)
    assert answer.status_code == 202, answer.text
    eventually(lambda: group.position() == "0", WAIT_SECONDS)
    group.client.accepted(replace(group.ids["take_profit"], limit("10", "108")))
    eventually(lambda: group.orders()["take_profit"]["limit_price"] == "108", WAIT_SECONDS)
    assert group.orders()["take_profit"]["quantity"] == "0"
    assert group.exposure() == [3, 6, 0]
    group.client.accepted(cancel(group.ids["take_profit"]))
    group.until(take_profit="CANCELLED", stop_loss="CANCELLED")
    done = tenants.platform.run("audit", "verify", "--account", group.client.account["id"])
    assert done.returncode == 0, done.stdout


def halt(group: Group) -> None:
    """Until it is done."""
    url = f"/v1/controls/accounts/{group.client.account['id']}/halt"
    asked = {"reason": "stop", "cancel_orders": True, "close_positions": True}
    answer = group.client.client.post(url, json=asked, headers=group.client.headers)
    assert answer.status_code == 202, answer.text

    def is_done() -> bool:
        return bool(
            group.client.client.get(url, headers=group.client.headers).json()["state"] == "done"
        )

    eventually(is_done, WAIT_SECONDS)


def test_a_halt_cancels_the_exits_and_closes_what_their_entry_filled(group: Group) -> None:
    group.submit(market("10"), "BUY", exits=EXITS)
    group.until(**COVERED)
    halt(group)
    group.until(take_profit="CANCELLED", stop_loss="CANCELLED")
    assert group.position() == "0"
    assert group.exposure() in ([], [0, 0, 0])


# Takes more than five seconds: for so long exits may fall short.
def test_an_entry_is_unprotected_until_other_orders_cover_it(
    group: Group, tenants: Tenants
) -> None:
    client = group.client
    url = f"/v1/accounts/{client.account['id']}/orders"

    def is_unprotected() -> bool:
        query = {"flag": "unprotected", "symbol": group.symbol}
        found = client.client.get(url, params=query, headers=client.headers).json()["data"]
        shown = client.client.get(f"{url}/{group.ids['entry']}", headers=client.headers).json()
        assert [each["order_id"] for each in found] in ([], [group.ids["entry"]])
        counted = metric("ti_execution_unprotected_entries")
        return bool(found and shown["flags"] == ["unprotected"] and counted == 1)

    def is_covered() -> bool:
        shown = client.client.get(f"{url}/{group.ids['entry']}", headers=client.headers).json()
        return shown["flags"] == [] and metric("ti_execution_unprotected_entries") == 0

    def metric(name: str) -> float:
        lines = tenants.platform.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def submit_alone(spec: Body, side: str = "SELL") -> str:
        answer = client.submit(create(spec, group.symbol, side))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["intent_id"])

    group.submit(market("10"), "BUY", exits=EXITS)
    group.until(**COVERED)
    for name in ("take_profit", "stop_loss"):
        client.submit(cancel(group.ids[name]))
    eventually(is_unprotected, WAIT_SECONDS)
    other = submit_alone(stop("10", "80"))
    eventually(is_covered, WAIT_SECONDS)
    assert client.submit(cancel(other)).status_code == 202
    eventually(is_unprotected, WAIT_SECONDS)
    submit_alone(market("10"))
    eventually(is_covered, WAIT_SECONDS)
    assert group.position() == "0"
