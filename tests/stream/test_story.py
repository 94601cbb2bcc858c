"""The life of a paper order, as a client sees it: every status, trade, position and action, in
order."""

import random
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Urls
from tests.intents.http_client import TradingClient, create, limit, market
from tests.platform import serving
from tests.stream.client import (
    ALL,
    BALANCE,
    ORDER,
    POSITION,
    PRIMED,
    Client,
    Follower,
    body_of,
    kind_of,
)
from tests.stream.conftest import OpenClient
from tests.stream.sse_reader import following
from tests.tenants import PLENTY, Tenants

PENDING_NEW = 1
NEW = 2
PARTIALLY_FILLED = 3
FILLED = 4
ORDERS = 40
FOLLOWERS = 8


def quote(tenants: Tenants, symbol: str, ask: str, ask_size: str) -> None:
    body = {"bid": "99", "ask": ask, "bid_size": "1000000", "ask_size": ask_size}
    answer = tenants.client.put(
        f"/v1/paper/quotes/{symbol}", json=body, headers=tenants.callers["key_all"]
    )
    assert answer.status_code == 200, answer.text


def a_symbol() -> str:
    return f"S{uuid.uuid4().hex[:12].upper()}"


def test_a_paper_order_is_seen_in_every_state(
    tenants: Tenants, client: Client, trading_client: TradingClient
) -> None:
    symbol = a_symbol()
    quote(tenants, symbol, "100", "7")
    follower = client.follow(trading_client.headers, trading_client.account["id"]).subscribed()
    follower.until(lambda event: kind_of(event) == "primed")
    intent_id = trading_client.accepted(
        create(market("10"), symbol=symbol) | {"client_reference_id": "mine"}
    )["intent_id"]
    story = follower.until(lambda event: kind_of(event) == "broker_position")
    quote(tenants, symbol, "101", "100")
    story += follower.until(lambda event: kind_of(event) == "broker_position")

    assert kind_of(story[0]) == "intent_action"
    orders = [event.broker_order for event in story if kind_of(event) == "broker_order"]
    statuses = [order.order_status for order in orders]
    assert [status for status in statuses if status != NEW] == [
        PENDING_NEW,
        PARTIALLY_FILLED,
        FILLED,
    ]
    assert statuses == sorted(statuses)
    assert [order.version for order in orders] == list(range(1, len(orders) + 1))
    trades = [event.broker_trade for event in story if kind_of(event) == "broker_trade"]
    assert [(trade.quantity, trade.price) for trade in trades] == [("7", "100"), ("3", "101")]
    positions = [event.broker_position for event in story if kind_of(event) == "broker_position"]
    assert [position.quantity for position in positions] == ["7", "10"]
    kinds = [kind_of(event) for event in story]
    for index, kind in enumerate(kinds):
        # An order's change, its trades and what they make of the position come in this order.
        assert kind != "broker_trade" or kinds[index - 1] in ("broker_order", "broker_trade")
        assert kind != "broker_position" or kinds[index - 1] == "broker_trade"
    assert {body.client_reference_id for body in (*orders, *trades)} == {"mine"}
    assert {body.intent_id for body in (*orders, *trades)} == {intent_id}
    assert_as_in_rest(trading_client, symbol, orders[-1], trades, positions[-1])


def assert_as_in_rest(
    trading_client: TradingClient, symbol: str, order: Any, trades: list[Any], position: Any
) -> None:
    def read(tail: str) -> Any:
        return trading_client.client.get(
            f"/v1/accounts/{trading_client.account['id']}/{tail}", headers=trading_client.headers
        ).json()

    kept = read(f"orders/{order.order_id}")
    assert (kept["order_status"], kept["version"]) == ("FILLED", order.version)
    assert kept["average_price"] == order.average_price
    assert [one["trade_id"] for one in read("trades")["data"]] == [
        trade.trade_id for trade in trades
    ]
    (shown,) = [one for one in read("positions")["data"] if one["symbol"] == symbol]
    assert (shown["quantity"], shown["average_cost"]) == (position.quantity, position.average_cost)


@pytest.mark.slow
def test_primed_then_live_while_orders_keep_coming(
    tenants: Tenants, client: Client, trading_client: TradingClient
) -> None:
    """Whenever one attaches: the state that it gets and what follows are what one saw who was there
    all along."""
    symbol = a_symbol()
    chance = random.Random(7)
    quote(tenants, symbol, "100", "1000000")
    # Of the followers' environment.
    witness = client.follow(trading_client.headers, kinds=(*ALL, BALANCE)).subscribed()
    start = witness.until(lambda event: kind_of(event) == "primed")[-1]
    accounts = [trading_client.account["id"], ""]

    def trade() -> None:
        for number in range(ORDERS):
            spec = market(str(number % 5 + 1)) if number % 3 else limit("1", "50")
            assert trading_client.submit(create(spec, symbol=symbol)).status_code == 202

    trading = threading.Thread(target=trade)
    trading.start()
    followers: list[tuple[str, Follower]] = []
    while trading.is_alive() or len(followers) < 2:
        if len(followers) < FOLLOWERS:
            account = accounts[len(followers) % 2]
            followers.append(
                (
                    account,
                    client.follow(
                        trading_client.headers, account, order_delivery=PRIMED
                    ).subscribed(),
                )
            )
        trading.join(chance.uniform(0, 0.05))
    last = trading_client.accepted(create(market("1"), symbol=symbol))["intent_id"]

    def is_last(event: Any) -> bool:
        return (
            kind_of(event) == "broker_order"
            and body_of(event).order_id == last
            and (body_of(event).order_status == FILLED)
        )

    seen = witness.until(is_last)
    indexes = {event.cursor: index for index, event in enumerate(seen, 1)} | {start.cursor: 0}
    assert len(indexes) == len(seen) + 1
    for account, follower in followers:
        everything = follower.until(is_last)
        ends = [index for index, event in enumerate(everything) if kind_of(event) == "primed"]
        assert [everything[end].primed.event_type for end in ends] == [ORDER, POSITION]
        (cursor,) = {everything[end].cursor for end in ends}
        # The witness has them for their cursors.
        shown = [event for event in seen if kind_of(event) != "balance"]
        mine = [event for event in shown if account in ("", body_of(event).account_id)]
        before = [event for event in mine if indexes[event.cursor] <= indexes[cursor]]
        assert everything[ends[1] + 1 :] == mine[len(before) :]
        state = {key_of(event): event for event in before}
        retained = {
            key_of(event): event for event in everything[: ends[1]] if kind_of(event) != "primed"
        }
        for key, event in state.items():
            if key is not None:
                assert body_of(retained[key]) == body_of(event)


def key_of(event: Any) -> tuple[str, ...] | None:
    """The order or position whose state the event is, if it is one."""
    match kind_of(event):
        case "broker_order":
            return ("order", event.broker_order.order_id)
        case "broker_position":
            return ("position", event.broker_position.account_id, event.broker_position.symbol)
    return None


@pytest.mark.slow
def test_either_of_two_processes_shows_what_both_were_sent(
    tenants: Tenants,
    client: Client,
    open_client: OpenClient,
    tenants_database: Urls,
    tmp_path: Path,
) -> None:
    trading_client = open_client()
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "api,stream"}
    with serving(tmp_path, **settings) as second:
        elsewhere = Client(second.grpc)
        near = client.follow(trading_client.headers, trading_client.account["id"]).subscribed()
        far = elsewhere.follow(trading_client.headers, trading_client.account["id"]).subscribed()
        other = Tenants(second, tenants.answer, tenants.callers)
        account = trading_client.account["id"]
        with (
            following(tenants, trading_client.headers, account) as text,
            following(other, trading_client.headers, account) as far_text,
        ):
            readers = (text, far_text)
            for reader in readers:
                reader.until("primed")
            there = TradingClient(
                second.client, trading_client.headers, trading_client.account, trading_client.tables
            )
            intents = [
                [trading_client, there][n % 2].accepted(create(limit("1", "0.01")))["intent_id"]
                for n in range(20)
            ]
            near_events, far_events = (
                one.until(
                    lambda event: (
                        kind_of(event) == "intent_action"
                        and body_of(event).intent_id == intents[-1]
                    )
                )
                for one in (near, far)
            )
            texts = [reader.take(len(near_events) - 1) for reader in readers]
        elsewhere.close()
    assert near_events == far_events
    assert [body_of(e).intent_id for e in near_events if kind_of(e) == "intent_action"] == intents
    cursors = [event.cursor for event in near_events if kind_of(event) != "primed"]
    assert [[received.id for received in one] for one in texts] == [cursors, cursors]
