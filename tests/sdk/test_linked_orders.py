"""Exits, one cancels other, legs and baskets: what the client sends, reads and answers."""

import json
from typing import Any

import httpx
import pytest

from tests.sdk.answers import CannedAnswers, problem
from tests.tenants import Tenants
from trading_intents_client import (
    AsyncPlacedOrder,
    ControlRejected,
    NotFound,
    PlacedOrder,
    TradingClient,
    Unavailable,
    ValidationFailed,
    create_command,
)

ENTRY, PROFIT, LOSS = (f"01a1dd48-2166-7b29-aa0c-4afddaa7c20{digit}" for digit in "789")
LEGS = [
    {"leg": "take_profit", "intent_id": PROFIT, "seq": 2},
    {"leg": "stop_loss", "intent_id": LOSS, "seq": 3},
]


@pytest.mark.parametrize(
    ("given", "payload"),
    [
        ({"take_profit": "190"}, {"exits": {"take_profit": {"limit_price": "190"}}}),
        (
            {"take_profit": 190, "stop_loss": 180, "exits_time_in_force": "DAY"},
            {
                "exits": {
                    "take_profit": {"limit_price": "190"},
                    "stop_loss": {"stop_price": "180"},
                    "time_in_force": "DAY",
                }
            },
        ),
        (
            {"stop_loss": ("180", "179.5")},
            {"exits": {"stop_loss": {"stop_price": "180", "limit_price": "179.5"}}},
        ),
        ({"limit": 187, "one_cancels_other": 200}, {"one_cancels_other": {"stop_price": "200"}}),
        ({}, {}),
    ],
)
def test_a_create_carries_its_exits_or_its_pair(
    given: dict[str, Any], payload: dict[str, Any]
) -> None:
    made = create_command("AAPL", "BUY", 10, **given)["payload"]
    assert {
        name: made[name] for name in made if name not in ("symbol", "order_side", "spec")
    } == payload


async def test_what_is_placed_has_its_legs_which_can_be_acted_upon() -> None:
    answered = {"intent_id": ENTRY, "seq": 1, "legs": LEGS}
    answers = CannedAnswers(httpx.Response(202, json=answered))
    async with answers.client() as client:
        account = client.account("a")
        placed = await account.buy("AAPL", 10, limit="187.5", take_profit="190", stop_loss="180")
        assert [(leg.leg, leg.intent_id, leg.seq) for leg in placed.legs] == [
            ("take_profit", PROFIT, 2),
            ("stop_loss", LOSS, 3),
        ]
        sent = json.loads(answers.asked[0].content)["command"]["payload"]
        assert sent["exits"] == {
            "take_profit": {"limit_price": "190"},
            "stop_loss": {"stop_price": "180"},
        }
        await placed.legs[1].cancel()
        assert json.loads(answers.asked[1].content)["command"] == {
            "type": "CANCEL",
            "payload": {"ref_intent_id": LOSS},
        }
        await account.short("AAPL", 10, take_profit="180")
        await account.sell("AAPL", 10, limit="190", one_cancels_other=("180", "179"))
        pair = json.loads(answers.asked[3].content)["command"]["payload"]["one_cancels_other"]
        assert pair == {"stop_price": "180", "limit_price": "179"}


async def test_legs_are_found_by_their_parent() -> None:
    answers = CannedAnswers(
        httpx.Response(202, json={"intent_id": ENTRY, "seq": 1}),
        httpx.Response(200, json={"data": [], "next_cursor": None}),
        httpx.Response(200, json={"data": [], "next_cursor": None}),
    )
    async with answers.client() as client:
        placed = await client.account("a").buy("AAPL", 10)
        assert placed.legs == ()
        assert await placed.find_legs() == []
        assert await client.account("a").orders(flag="unprotected").page() is not None
    assert dict(answers.asked[1].url.params)["parent_intent_id"] == ENTRY
    assert dict(answers.asked[2].url.params)["flag"] == "unprotected"


def test_a_basket_places_each_order_and_answers_each(tenants: Tenants) -> None:
    key = tenants.api_key("org_acme", "all")["api_key"]
    with TradingClient(tenants.platform.url, api_key=key) as client:
        account = client.account(client.create_account("basket", "paper", "paper").id)
        basket = client.basket()
        for number in range(60):
            basket.add(
                account.id,
                create_command("AAPL", "BUY", 1, limit=1),
                client_reference_id=f"basket-{number}",
            )
        basket.add(account.id, create_command("AAPL", "BUY", "-5"))
        basket.add("01a1dd48-2166-7b29-aa0c-4afddaa7c207", create_command("AAPL", "BUY", 1))
        assert len(basket) == 62
        answers = basket.send()
        placed = [each for each in answers[:60] if isinstance(each, PlacedOrder)]
        assert len(placed) == 60
        assert [account.order(each.intent_id).client_reference_id for each in placed[:3]] == [
            f"basket-{number}" for number in range(3)
        ]
        assert [type(each) for each in answers[60:]] == [ValidationFailed, NotFound]

        again = basket.send()
        ids = [
            each.intent_id for each in again if isinstance(each, PlacedOrder) and each.is_replayed
        ]
        assert ids == [each.intent_id for each in placed], "sent again, none is placed twice"
        assert len(list(account.orders())) == 60


async def test_what_becomes_of_one_order_of_a_basket_changes_nothing_for_the_others() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        symbol = json.loads(request.content)["command"]["payload"]["symbol"]
        if symbol == "REFUSED":
            return problem(409, "control_rejected", triggered=[])
        if symbol == "AWAY":
            raise httpx.ConnectError("refused")
        return httpx.Response(202, json={"intent_id": ENTRY, "seq": 1})

    async with CannedAnswers(answer).client(max_retries=0) as client:
        basket = client.basket()
        assert await basket.send() == []
        for symbol in ("AAPL", "REFUSED", "AWAY", "MSFT"):
            basket.add("a", create_command(symbol, "BUY", 1), idempotency_key=symbol)
        first, refused, away, last = await basket.send()
        assert isinstance(first, AsyncPlacedOrder)
        assert isinstance(last, AsyncPlacedOrder)
        assert (first.idempotency_key, last.idempotency_key) == ("AAPL", "MSFT")
        assert isinstance(refused, ControlRejected)
        assert not isinstance(away, AsyncPlacedOrder | Unavailable)
        assert away.idempotency_key == "AWAY"
    with pytest.raises(ValueError, match="idempotency_key"):
        basket.add("a", create_command("AAPL", "BUY", 1), idempotency_key="")
