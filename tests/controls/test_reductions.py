"""Cancel-all and close, as a caller asks for them: on the paper broker, at prices that the test
posts."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.controls.calls import code, pointers
from tests.controls.traders import WAIT_SECONDS, Trader
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.intents.reductions import MAX_CANCELS


@pytest.fixture
def trader(tenants: Tenants) -> Trader:
    return Trader(tenants)


def test_cancel_all_appends_a_cancel_for_each_open_order(trader: Trader) -> None:
    orders = [trader.create(limit="1") for _ in range(3)]
    for each in orders:
        trader.until(each, "NEW")
    answer = trader.cancel_all()
    assert answer.status_code == 202
    answered = answer.json()
    assert [each["intent_id"] for each in answered["intents"]] == orders
    assert answered["more"] is False
    for each in answered["intents"]:
        action = trader.action(each["intent_id"])
        assert (action["action_type"], action["seq"], action["principal_type"]) == (
            "CANCEL",
            each["seq"],
            "API_KEY",
        )
        trader.until(each["intent_id"], "CANCELLED")
    assert trader.cancel_all({}).json() == {"intents": [], "pending": 0, "more": False}


def test_cancel_all_of_a_symbol_leaves_the_others(trader: Trader) -> None:
    other = f"{trader.symbol}.B"
    trader.quote(other)
    mine = trader.create(limit="1")
    left = trader.create(limit="1", symbol=other)
    trader.until(left, "NEW")
    answer = trader.cancel_all({"symbol": trader.symbol.lower()})
    assert [each["intent_id"] for each in answer.json()["intents"]] == [mine]
    trader.until(mine, "CANCELLED")
    assert trader.order(left)["order_status"] == "NEW"


def test_cancel_alls_at_once_append_one_cancel_for_each_order(trader: Trader) -> None:
    orders = {trader.create(limit="1") for _ in range(20)}

    async def ask() -> list[httpx.Response]:
        url = f"{trader.tenants.platform.url}/v1/accounts/{trader.account}/intents/cancel-all"
        async with httpx.AsyncClient(timeout=10, headers=trader.headers, verify=False) as client:
            return await asyncio.gather(*(client.post(url) for _ in range(8)))

    answers = asyncio.run(ask())
    assert {(answer.status_code, answer.json()["more"]) for answer in answers} == {(202, False)}
    answered = [each["intent_id"] for answer in answers for each in answer.json()["intents"]]
    assert sorted(answered) == sorted(orders)
    for each in orders:
        trader.until(each, "CANCELLED")


def test_cancel_alls_at_once_of_many_orders_are_all_served(trader: Trader) -> None:
    """Each order gets one CANCEL, whoever asks how often; a caller who is to ask again does."""
    orders = set(trader.create_many(3 * MAX_CANCELS))

    async def ask(client: httpx.AsyncClient) -> list[str]:
        cancelled: list[str] = []
        more = True
        while more:
            answer = await client.post(url)
            assert answer.status_code == 202, answer.text
            cancelled += [each["intent_id"] for each in answer.json()["intents"]]
            more = answer.json()["more"]
        return cancelled

    async def ask_at_once() -> list[list[str]]:
        async with httpx.AsyncClient(timeout=30, headers=trader.headers, verify=False) as client:
            return await asyncio.gather(*(ask(client) for _ in range(30)))

    url = f"{trader.tenants.platform.url}/v1/accounts/{trader.account}/intents/cancel-all"
    cancelled = [each for own in asyncio.run(ask_at_once()) for each in own]
    assert len(cancelled) == len(set(cancelled))
    # The venue takes 1,000 at once, and refuses what comes to it before the others are cancelled.
    assert orders - set(cancelled) <= too_many(trader)


def too_many(trader: Trader) -> set[str]:
    """The orders that the venue refused because others worked."""
    url = f"/v1/accounts/{trader.account}/orders"
    refused = set[str]()
    query = {"status": "REJECTED", "limit": "200"}
    while True:
        page = trader.tenants.client.get(url, params=query, headers=trader.headers).json()
        for order in page["data"]:
            if order["reason"] == "too_many_working_orders":
                refused.add(order["order_id"])
        if not page["next_cursor"]:
            return refused
        query["cursor"] = page["next_cursor"]


def test_cancel_all_takes_500_at_a_time(trader: Trader) -> None:
    orders = set(trader.create_many(MAX_CANCELS + 2))
    first = trader.cancel_all().json()
    assert (len(first["intents"]), first["more"]) == (MAX_CANCELS, True)
    rest = trader.cancel_all().json()
    assert (len(rest["intents"]), rest["more"]) == (2, False)
    assert {each["intent_id"] for each in first["intents"] + rest["intents"]} == orders


@pytest.mark.parametrize(
    ("body", "pointer"), [({"symbol": "a b"}, "/symbol"), ({"side": "BUY"}, "/side")]
)
def test_a_wrong_body_cancels_nothing(trader: Trader, body: Any, pointer: str) -> None:
    order = trader.create(limit="1")
    assert pointers(trader.cancel_all(body)) == [pointer]
    trader.until(order, "NEW")


def test_cancel_all_works_in_a_halt_and_on_a_disabled_account(trader: Trader) -> None:
    order = trader.create(limit="1")
    trader.until(order, "NEW")
    assert (
        trader.client.call("POST", "/halt", {"reason": "x", "cancel_orders": False}).status_code
        == 202
    )
    path = f"/v1/accounts/{trader.account}"
    assert (
        trader.tenants.client.patch(
            path, json={"disabled": True}, headers=trader.headers
        ).status_code
        == 200
    )
    assert len(trader.cancel_all().json()["intents"]) == 1
    trader.until(order, "CANCELLED")


def test_a_closed_account_has_nothing_to_cancel_or_close(trader: Trader) -> None:
    path = f"/v1/accounts/{trader.account}"
    assert trader.tenants.client.delete(path, headers=trader.client.headers).status_code == 204
    assert code(trader.cancel_all()) == (409, "account_closed")
    assert code(trader.close()) == (409, "account_closed")
    assert pointers(trader.cancel_all({"symbol": "a b"})) == ["/symbol"]


def test_close_sells_a_long_position_at_the_market(trader: Trader) -> None:
    trader.hold("10")
    answer = trader.close()
    assert answer.status_code == 202
    order = trader.until(answer.json()["intent_id"], "FILLED")
    assert (order["order_side"], order["order_type"], order["quantity"]) == ("SELL", "MARKET", "10")
    assert trader.action(order["intent_id"])["principal_type"] == "API_KEY"
    assert code(trader.close()) == (409, "no_position")


def test_close_buys_a_short_position_back(trader: Trader) -> None:
    trader.hold("4", "SELL_SHORT")
    order = trader.until(trader.close(body={}).json()["intent_id"], "FILLED")
    assert (order["order_side"], order["quantity"]) == ("BUY", "4")


def test_close_leaves_what_open_orders_close_already(trader: Trader) -> None:
    trader.hold("10")
    selling = trader.create("SELL", "3", limit="1000")
    trader.until(selling, "NEW")
    trader.until(trader.create("BUY", "5", limit="1"), "NEW")  # which closes nothing
    order = trader.until(trader.close().json()["intent_id"], "FILLED")
    assert order["quantity"] == "7"
    assert code(trader.close()) == (409, "no_position")


def test_close_counts_the_larger_version_of_an_order_under_replace(trader: Trader) -> None:
    trader.hold("10")
    selling = trader.create("SELL", "3", limit="1000")
    trader.until(selling, "NEW")
    spec = {"Limit": {"quantity": "6", "limit_price": "1000"}}
    replaced = trader.post(
        "intents",
        {"command": {"type": "REPLACE", "payload": {"ref_intent_id": selling, "spec": spec}}},
    )
    assert replaced.status_code == 202
    order = trader.until(trader.close().json()["intent_id"], "FILLED")
    assert order["quantity"] == "4"


def test_close_passes_a_halt_and_nothing_else_does(trader: Trader) -> None:
    trader.hold("10")
    assert trader.client.call("POST", "/halt", {"reason": "x"}).status_code == 202
    eventually(lambda: trader.client.get("/halt").json()["state"] == "done", WAIT_SECONDS)
    order = trader.until(trader.close().json()["intent_id"], "FILLED")
    assert order["order_side"] == "SELL"


def test_other_controls_hold_for_close(trader: Trader) -> None:
    trader.hold("1")
    assert trader.client.put(trader.symbol, "no").status_code == 200
    answer = trader.close()
    assert code(answer) == (409, "control_rejected")
    assert [each["reason"] for each in answer.json()["triggered"]] == ["symbol_manually_disabled"]


def test_a_limit_holds_for_close(trader: Trader) -> None:
    trader.hold("10")
    limits = f"/v1/controls/accounts/{trader.account}/limits"
    body = {"max_order_quantity": "9"}
    assert trader.tenants.client.put(limits, json=body, headers=trader.headers).status_code == 200
    answer = trader.close()
    assert [each["reason"] for each in answer.json()["triggered"]] == ["max_order_quantity"]


def test_the_idempotency_key_of_a_close_covers_method_and_path(trader: Trader) -> None:
    trader.hold("10")
    first = trader.close(idempotency_key="k1")
    trader.until(first.json()["intent_id"], "FILLED")
    again = trader.close(symbol=trader.symbol.lower(), body={}, idempotency_key="k1")
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert code(trader.close(symbol="OTHER", idempotency_key="k1")) == (409, "idempotency_conflict")
    payload = {"symbol": trader.symbol, "order_side": "BUY", "spec": {"Market": {"quantity": "1"}}}
    submitted = trader.post(
        "intents", {"command": {"type": "CREATE", "payload": payload}}, idempotency_key="k1"
    )
    assert code(submitted) == (409, "idempotency_conflict")


def test_what_close_refuses(trader: Trader, tenants: Tenants) -> None:
    assert code(trader.close()) == (409, "no_position")
    assert pointers(trader.close(body={"quantity": "1"})) == ["/quantity"]
    assert code(trader.close(symbol="a%20b")) == (422, "validation_failed")
    for caller, expected in (
        ("admin", 401),
        ("key_live", 403),
        ("key_none", 403),
        ("other_key", 404),
    ):
        for tail in (f"positions/{trader.symbol}/close", "intents/cancel-all"):
            path = f"/v1/accounts/{trader.account}/{tail}"
            assert (
                tenants.client.post(path, headers=tenants.callers[caller]).status_code == expected
            )


def closes_at_once(trader: Trader, **headers: str) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        url = f"{trader.tenants.platform.url}/v1/accounts/{trader.account}/positions/{trader.symbol}/close"
        async with httpx.AsyncClient(
            timeout=10, headers=trader.headers | headers, verify=False
        ) as client:
            return await asyncio.gather(*(client.post(url) for _ in range(16)))

    return asyncio.run(ask())


def test_of_closes_at_once_one_closes_the_position(trader: Trader) -> None:
    """Each is decided under the account's lock, by what those before it left open."""
    trader.hold("10")
    answers = closes_at_once(trader)
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 15


def test_closes_at_once_with_one_key_are_one_close(trader: Trader) -> None:
    trader.hold("10")
    answers = closes_at_once(trader, **{"idempotency-key": "once"})
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 15
