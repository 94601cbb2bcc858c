"""Answers of this and of a newer server, and amounts and times in requests."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import pytest

from tests.sdk.answers import CannedAnswers, accepted, problem
from tests.tenants import Tenants
from trading_intents_client import (
    Account,
    CreatedApiKey,
    OrderRecord,
    OrderStatus,
    TradingClient,
    UnknownEvent,
    create_command,
    errors,
)
from trading_intents_client.stream.events import OrderEvent, read_event


@pytest.fixture
def order_json(account: Account) -> dict[str, Any]:
    placed = account.buy("AAPL", 1)
    placed.wait()
    path = f"/v1/accounts/{account.id}/orders/{placed.intent_id}"
    received: dict[str, Any] = json.loads(
        account._loop.run(lambda: account._wrapped._transport.send("GET", path)).content
    )
    return received


def test_amounts_are_decimals_and_times_have_a_zone(account: Account) -> None:
    order = account.buy("AAPL", Decimal("1.5")).wait()
    assert order.quantity == Decimal("1.5") == order.filled_quantity
    assert isinstance(order.average_price, Decimal)
    assert order.created_at.utcoffset() == timedelta(0)
    assert order.order_status is OrderStatus.FILLED


def test_answers_cannot_be_changed(account: Account) -> None:
    order = account.buy("AAPL", 1).wait()
    with pytest.raises(AttributeError):
        order.quantity = Decimal(2)  # type: ignore[misc]  # what is tested


def test_a_newer_servers_fields_and_names_do_not_break_a_client(order_json: dict[str, Any]) -> None:
    newer = order_json | {
        "order_state": "OPEN",
        "order_status": "HELD_BY_MOON",
        "flags": ["odd"],
        "mood": {"deep": [1]},
        "order_type": "ICEBERG",
    }
    order = msgspec.convert(newer, OrderRecord)
    assert order.order_status == "HELD_BY_MOON"
    assert not order.order_status.is_known
    assert OrderStatus.NEW.is_known
    assert order.flags == ("odd",)
    assert order.order_type == "ICEBERG"
    assert not order.is_final


def test_a_newer_servers_events_do_not_break_a_client() -> None:
    order: dict[str, Any] = {
        "order_id": "o",
        "intent_id": "o",
        "account_id": "a",
        "organization_id": "g",
        "symbol": "S",
    }
    order |= {
        "order_state": "ORDER_STATE_OPEN",
        "order_status": "ORDER_STATUS_DOZING",
        "quantity": "1",
        "new": True,
    }
    known = read_event({"broker_order": order, "cursor": "c"})
    assert isinstance(known, OrderEvent)
    assert known.order.order_status == "DOZING"
    numbered = read_event({"broker_order": order | {"order_status": 77}})
    assert isinstance(numbered, OrderEvent)
    assert numbered.order.order_status == "77"
    unknown = read_event({"weather": {"wind": "strong"}, "cursor": "d"})
    assert unknown == UnknownEvent(kind="weather", data={"weather": {"wind": "strong"}}, cursor="d")
    changed = read_event({"broker_order": {"order_id": 5}, "cursor": "e"})
    assert isinstance(changed, UnknownEvent)
    assert changed.cursor == "e"
    assert read_event({"heartbeat": {}}) is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (10, "10"),
        ("0.1", "0.1"),
        (Decimal("1E+3"), "1000"),
        (Decimal("0.000001"), "0.000001"),
        (Decimal(5), "5"),
    ],
)
async def test_amounts_are_sent_as_plain_decimals(amount: Any, text: str) -> None:
    answers = CannedAnswers(accepted())
    async with answers.client() as client:
        await client.account("a").buy("AAPL", amount, limit=amount)
    spec = json.loads(answers.asked[0].content)["command"]["payload"]["spec"]
    assert spec == {"Limit": {"quantity": text, "limit_price": text}}


@pytest.mark.parametrize("amount", [0.1, True, None])
def test_a_float_is_refused_before_anything_is_sent(amount: Any) -> None:
    with pytest.raises(TypeError, match="Decimal, int or str"):
        create_command("AAPL", "BUY", amount)


@pytest.mark.parametrize(
    ("prices", "kind"),
    [
        ({}, "Market"),
        ({"limit": 1}, "Limit"),
        ({"stop": 1}, "Stop"),
        ({"limit": 1, "stop": 2}, "StopLimit"),
        ({"trail": 1}, "TrailingStop"),
        ({"trail_bps": 1}, "TrailingStop"),
    ],
)
def test_the_prices_say_which_kind_of_order_it_is(prices: dict[str, Any], kind: str) -> None:
    command = create_command(
        "AAPL", "BUY", 1, time_in_force="GOOD_TILL_CANCEL", route="ARCA", **prices
    )
    assert [*command["payload"]["spec"]] == [kind]
    assert command["payload"]["spec"][kind]["time_in_force"] == "GOOD_TILL_CANCEL"
    assert command["payload"]["route_strategy"] == "ARCA"


async def test_filters_of_lists_are_sent_as_the_contract_has_them() -> None:
    answers = CannedAnswers(httpx.Response(200, json={"data": [], "next_cursor": None}))
    moment = datetime(2026, 1, 5, 16, tzinfo=timezone(timedelta(hours=1)))
    async with answers.client() as client:
        orders = client.account("a").orders(
            status=["NEW", OrderStatus.FILLED], created_after=moment, order="desc"
        )
        assert [order async for order in orders] == []
        with pytest.raises(ValueError, match="no time zone"):
            client.account("a").trades(created_before=datetime(2026, 1, 5))  # noqa: DTZ001  # what is tested
    asked = dict(answers.asked[0].url.params)
    assert asked == {
        "status": "NEW,FILLED",
        "created_after": "2026-01-05T15:00:00.000000Z",
        "order": "desc",
        "limit": "100",
    }


@pytest.mark.parametrize("code", sorted(errors.CLASS_OF_CODE))
async def test_an_answer_becomes_the_error_of_its_code(code: str) -> None:
    triggered = {
        "reason": "max_order_quantity",
        "scope": {"Account": "a"},
        "detail": "d",
        "limit": "5",
        "asked": "6",
    }
    received = problem(
        418,
        code,
        triggered=[triggered],
        errors=[{"pointer": "/x", "detail": "y"}],
        headers={"retry-after": "0"},
    )
    answers = CannedAnswers(received)
    async with answers.client(max_retries=0) as client:
        with pytest.raises(errors.CLASS_OF_CODE[code]) as caught:
            await client.account("a").buy("AAPL", 1)
    error = caught.value
    assert (error.status, error.code, error.request_id) == (418, code, "r1")
    assert isinstance(error, errors.TradingError)
    if isinstance(error, errors.ControlRejected):
        assert error.triggered[0].limit == "5"
    if isinstance(error, errors.ValidationFailed):
        assert error.errors[0].pointer == "/x"


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, text="<html>"), httpx.Response(200, json={"seq": "x"})]
)
async def test_an_answer_that_is_none_of_the_api_raises_an_error_with_the_key(
    answer: httpx.Response,
) -> None:
    async with CannedAnswers(answer).client() as client:
        with pytest.raises(errors.UnexpectedAnswer) as caught:
            await client.account("a").buy("AAPL", 1)
    assert caught.value.idempotency_key


def test_errors_of_the_platform_are_typed(account: Account, client: TradingClient) -> None:
    account.controls.set_symbol("AAPL", disabled=True, reason="earnings")
    with pytest.raises(errors.ControlRejected) as refused:
        account.buy("aapl", 1)
    assert [triggered.reason for triggered in refused.value.triggered] == [
        "symbol_manually_disabled"
    ]
    assert refused.value.request_id
    with pytest.raises(errors.ValidationFailed) as wrong:
        account.buy("AAPL", "ten")
    assert wrong.value.errors[0].pointer == "/command/payload/spec/Market/quantity"
    with pytest.raises(errors.NotFound):
        client.account("nobody").get()
    with pytest.raises(errors.VersionConflict):
        account.update(name="n", version=7)
    filled = account.buy("MSFT", 1)
    filled.wait()
    with pytest.raises(errors.IntentClosed):
        filled.cancel()
    with pytest.raises(errors.IdempotencyConflict):
        account.buy("MSFT", 2, idempotency_key=filled.idempotency_key)
    assert account.buy("MSFT", 1, idempotency_key=filled.idempotency_key).is_replayed


def test_plain_text_errors_and_oauth_errors_are_typed(
    client: TradingClient, tenants: Tenants
) -> None:
    with pytest.raises(errors.Unauthorized) as caught:
        client.platform.outbox_health()
    assert caught.value.status == 401
    with pytest.raises(errors.InvalidClient):
        client.platform.issue_token("nobody", "x")


def test_secrets_are_in_no_repr() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    key = CreatedApiKey(
        id="i",
        organization_id="o",
        name="n",
        environment="paper",  # type: ignore[arg-type]  # a name will do
        permissions=(),
        disabled=False,
        hint="abcd",
        last_used_at=None,
        created_at=at,
        updated_at=at,
        version=1,
        api_key="tip_paper_secret",
    )
    client = TradingClient("http://x", api_key="tip_paper_secret")
    for shown in (key, client, client.account("a"), client._wrapped._transport.endpoint):
        assert "secret" not in repr(shown)
