"""Orders, trades and positions as a client reads them over HTTP."""

import re
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from tests.execution.api_only_platform import ApiOnlyPlatform
from tests.execution.recorded_orders import Books, Sent, fill, ours, reported
from trading_intents.brokers.port import EventKind as E
from trading_intents.orders.facts import FactKind as F

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
ORDER_FIELDS = [
    "order_id",
    "intent_id",
    "command_seq",
    "external_order_id",
    "account_id",
    "organization_id",
    "environment",
    "broker",
    "symbol",
    "order_state",
    "order_status",
    "order_type",
    "order_side",
    "limit_price",
    "stop_price",
    "average_price",
    "route_strategy",
    "quantity",
    "filled_quantity",
    "time_in_force",
    "client_reference_id",
    "reason",
    "detail",
    "flags",
    "broker_sent_at",
    "received_at",
    "created_at",
    "updated_at",
    "version",
    "trail_amount",
    "trail_bps",
    "leg",
    "parent_intent_id",
    "active",
]
TRADE_FIELDS = [
    "trade_id",
    "exec_id",
    "order_id",
    "intent_id",
    "account_id",
    "symbol",
    "side",
    "quantity",
    "price",
    "fee",
    "cumulative_quantity",
    "leaves_quantity",
    "client_reference_id",
    "flags",
    "broker_sent_at",
    "received_at",
]
POSITION_FIELDS = ["symbol", "quantity", "average_cost", "realized_pnl", "daily_pnl", "received_at"]
POSITION_FIELDS += ["opening_quantity", "broker_quantity", "differs"]
MARKET_FIELDS = ["market_price", "market_price_at", "market_value", "unrealized_pnl"]


async def test_an_order_has_the_contracts_fields(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    sent = await shown.create("10", limit="187.50", reference="my-17")
    (account,) = shown.accounts
    new = api_platform.read(account, f"orders/{sent.order_id}")
    assert list(new) == ORDER_FIELDS
    assert new == {
        "order_id": str(sent.order_id),
        "intent_id": str(sent.order_id),
        "command_seq": 1,
        "external_order_id": None,
        "account_id": str(account),
        "organization_id": str(api_platform.organization),
        "environment": "paper",
        "broker": "paper",
        "symbol": "AAPL",
        "order_state": "OPEN",
        "order_status": "PENDING_NEW",
        "order_type": "LIMIT",
        "order_side": "BUY",
        "limit_price": "187.5",
        "stop_price": None,
        "average_price": None,
        "route_strategy": "SMART",
        "quantity": "10",
        "filled_quantity": "0",
        "time_in_force": "DAY",
        "client_reference_id": "my-17",
        "reason": None,
        "detail": None,
        "flags": [],
        "broker_sent_at": None,
        "version": 1,
        "trail_amount": None,
        "trail_bps": None,
        "leg": None,
        "parent_intent_id": None,
        "active": True,
    } | {name: new[name] for name in ("received_at", "created_at", "updated_at")}
    assert all(MOMENT.fullmatch(new[name]) for name in ("received_at", "created_at", "updated_at"))
    await shown.record(
        reported(E.ACCEPTED, sent, broker_order_id="b1", at=1),
        fill(sent, "e1", "10", "187.250", at=2),
    )
    answer = api_platform.get(account, f"orders/{sent.order_id}")
    done = answer.json()
    assert (answer.headers["etag"], done["version"]) == ('"2"', 2)
    assert (done["order_state"], done["order_status"], done["average_price"]) == (
        "CLOSED",
        "FILLED",
        "187.25",
    )
    assert (done["external_order_id"], done["broker_sent_at"]) == (
        "b1",
        "2026-03-02T12:00:02.000000Z",
    )
    assert api_platform.read(account, "orders")["data"] == [done]


async def test_a_trade_and_a_position_have_the_contracts_fields(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    bought = await shown.create("10", reference="in")
    sold = await shown.create("4", side="SELL")
    await shown.record(
        fill(bought, "e1", "10", "10.50", at=1, fee="0.10"), fill(sold, "e2", "4", "12")
    )
    (account,) = shown.accounts
    first, second = api_platform.read(account, "trades")["data"]
    assert list(first) == TRADE_FIELDS
    assert first == {
        "trade_id": first["trade_id"],
        "exec_id": "e1",
        "order_id": str(bought.order_id),
        "intent_id": str(bought.order_id),
        "account_id": str(account),
        "symbol": "AAPL",
        "side": "BUY",
        "quantity": "10",
        "price": "10.5",
        "fee": "0.1",
        "cumulative_quantity": "10",
        "leaves_quantity": "0",
        "client_reference_id": "in",
        "flags": [],
        "broker_sent_at": "2026-03-02T12:00:01.000000Z",
        "received_at": first["received_at"],
    }
    assert uuid.UUID(first["trade_id"]).version == 7
    assert (second["exec_id"], second["fee"], second["broker_sent_at"]) == ("e2", None, None)
    (position,) = api_platform.read(account, "positions")["data"]
    assert list(position) == [*POSITION_FIELDS, *MARKET_FIELDS, "broker_sent_at"]
    # Of the walk: tests/prices says what they are.
    assert all(position.pop(name) for name in MARKET_FIELDS)
    assert position | {"received_at": ""} == {
        "symbol": "AAPL",
        "quantity": "6",
        "average_cost": "10.5",
        "realized_pnl": "5.9",
        "daily_pnl": "6",  # the fee was of another day
        "received_at": "",
        "opening_quantity": "0",
        "broker_quantity": None,
        "differs": None,
        "broker_sent_at": None,
    }
    await shown.record(reported(E.POSITION, None, "p1", symbol="AAPL", quantity="11"))
    (position,) = api_platform.read(account, "positions")["data"]
    assert (position["quantity"], position["broker_quantity"], position["differs"]) == (
        "6",
        "11",
        True,
    )


STATUSES: Mapping[str, tuple[str, str]] = {
    "PENDING_NEW": ("OPEN", ""),
    "NEW": ("OPEN", "ACCEPTED"),
    "PARTIALLY_FILLED": ("OPEN", "FILL 4"),
    "PENDING_REPLACE": ("OPEN", "replace"),
    "PENDING_CANCEL": ("OPEN", "cancel"),
    "UNKNOWN": ("OPEN", "UNCERTAIN"),
    "FILLED": ("CLOSED", "FILL 10"),
    "CANCELLED": ("CLOSED", "CANCELLED"),
    "EXPIRED": ("CLOSED", "EXPIRED"),
    "REJECTED": ("REJECTED", "REJECTED"),
}


async def bring(books: Books, status: str) -> Sent:
    """An order of that status."""
    sent = await books.create("10", limit="5", symbol=status, reference=f"ref {status}")
    what, _, quantity = STATUSES[status][1].partition(" ")
    if what == "FILL":
        await books.record(fill(sent, f"{status}", quantity))
    elif what == "UNCERTAIN":
        await books.record(own=(ours(sent, F.UNCERTAIN),))
    elif what == "replace":
        await books.replace(sent, "20", limit="5")
    elif what == "cancel":
        await books.cancel(sent)
    elif what:
        await books.record(reported(E(what), sent))
    return sent


async def test_orders_are_found_by_what_is_asked_for(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    (account,) = shown.accounts
    orders = {status: await bring(shown, status) for status in STATUSES}

    def found(**query: Any) -> list[str]:
        return [
            order["order_status"]
            for order in api_platform.pages(account, "orders", limit=3, **query)
        ]

    assert found() == list(STATUSES)
    for state in ("OPEN", "CLOSED", "REJECTED"):
        assert found(state=state) == [
            status for status, (shows, _) in STATUSES.items() if shows == state
        ]
        assert {
            order["order_state"] for order in api_platform.pages(account, "orders", state=state)
        } == {state}
    assert found(symbol="filled") == ["FILLED"]
    assert found(client_reference_id="ref NEW") == ["NEW"]
    assert found(intent_id=str(orders["UNKNOWN"].order_id)) == ["UNKNOWN"]
    assert found(symbol="NEW", state="OPEN", client_reference_id="ref NEW") == ["NEW"]
    assert found(symbol="NEW", state="CLOSED") == []
    assert found(flag="overfill") == found(flag="unprotected") == []
    await shown.record(fill(orders["CANCELLED"], "late", "1"))
    assert found(flag="late_fill") == ["CANCELLED"]
    assert found(flag="late_fill", state="OPEN") == []
    assert (
        found(symbol="NEVER")
        == found(client_reference_id="")
        == found(intent_id=str(uuid.uuid4()))
        == []
    )


@pytest.mark.parametrize(
    "query",
    [
        {"state": "open"},
        {"state": ""},
        {"state": "FILLED"},
        {"symbol": ""},
        {"symbol": "A B"},
        {"symbol": "A" * 33},
        {"intent_id": "1"},
        {"parent_intent_id": "1"},
        {"flag": "late"},
        {"flag": ""},
        {"intent_id": "01A1DD48-2166-7B29-AA0C-4AFDDAA7C207"},
        {"client_reference_id": "x" * 65},
        {"client_reference_id": "a\0b"},
    ],
    ids=str,
)
async def test_a_filter_that_can_mean_nothing_is_refused(
    shown: Books, api_platform: ApiOnlyPlatform, query: dict[str, Any]
) -> None:
    answer = api_platform.get(shown.accounts[0], "orders", **query)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


@pytest.mark.parametrize("path", ["orders", "trades", "positions"])
async def test_a_cursor_belongs_to_its_list(
    shown: Books, api_platform: ApiOnlyPlatform, path: str
) -> None:
    first = await shown.create("10")
    second = await shown.create("10", symbol="MSFT")
    await shown.record(fill(first, "e1", "1"), fill(second, "e2", "1"))
    (account,) = shown.accounts
    page = api_platform.read(account, path, limit=1)
    assert len(page["data"]) == 1
    rest = api_platform.read(account, path, limit=1, next_cursor=page["next_cursor"])
    assert len(rest["data"]) == 1
    assert rest["next_cursor"] is None
    assert page["data"] != rest["data"]
    for other in {"orders", "trades", "positions"} - {path}:
        answer = api_platform.get(account, other, next_cursor=page["next_cursor"])
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")
    answer = api_platform.get(api_platform.open_account(), path, next_cursor=page["next_cursor"])
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")
    assert api_platform.get(account, path, limit="-1").status_code == 400


async def test_a_filters_cursor_does_not_fit_another_filter(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    for _ in range(2):
        await shown.create("10")
    (account,) = shown.accounts
    cursor = api_platform.read(account, "orders", limit=1, symbol="AAPL")["next_cursor"]
    assert api_platform.get(account, "orders", next_cursor=cursor).status_code == 400
    assert len(api_platform.read(account, "orders", symbol="aapl", next_cursor=cursor)["data"]) == 1


async def test_a_reader_of_trades_sees_every_change(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    sent = await shown.create("10")
    (account,) = shown.accounts
    await shown.record(fill(sent, "e1", "4"), fill(sent, "e2", "6"))
    cursor = api_platform.read(account, "trades", limit=1)["next_cursor"]
    await shown.record(reported(E.FILL_BUST, sent, "bust/e1", replaces="e1"))
    await shown.record(
        reported(
            E.FILL_CORRECT, sent, "fix/e2", exec_id="e3", replaces="e2", quantity="5", price="10"
        )
    )
    rest = api_platform.read(account, "trades", next_cursor=cursor)["data"]
    assert [(trade["exec_id"], trade["quantity"], trade["flags"]) for trade in rest] == [
        ("e1", "0", ["busted"]),
        ("e2", "5", ["corrected"]),
    ]


async def test_a_final_order_changes_only_with_a_flag_that_the_contract_names(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    sent = await shown.create("10")
    await shown.record(fill(sent, "e1", "10"))
    (account,) = shown.accounts
    assert api_platform.read(account, f"orders/{sent.order_id}")["flags"] == []
    await shown.record(reported(E.FILL_BUST, sent, "bust/e1", replaces="e1"))
    order = api_platform.read(account, f"orders/{sent.order_id}")
    assert (order["order_status"], order["flags"]) == ("NEW", ["conflicting_execution"])
    named = api_platform.client.get("/openapi.json").json()["components"]["schemas"]["OrderFlag"][
        "enum"
    ]
    assert sorted(named) == [
        "conflicting_execution",
        "late_fill",
        "overfill",
        "resurrected",
        "unprotected",
    ]


async def test_what_is_not_there_or_not_ones_own_is_not_found(
    shown: Books, api_platform: ApiOnlyPlatform
) -> None:
    sent = await shown.create("10")
    (account,) = shown.accounts
    other = api_platform.open_account()
    for path in (f"orders/{uuid.uuid4()}", "orders/1", f"orders/{str(sent.order_id).upper()}"):
        assert api_platform.get(account, path).status_code == 404
    assert api_platform.get(other, f"orders/{sent.order_id}").status_code == 404
    for path in ("orders", f"orders/{sent.order_id}", "trades", "positions"):
        assert api_platform.get(account, path, api_platform.neighbours_headers).status_code == 404
        assert api_platform.get(account, path, api_platform.live_headers).status_code == 403
        assert api_platform.get(uuid.uuid4(), path).status_code == 404
