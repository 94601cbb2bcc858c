"""CREATE over HTTP: what is taken, what is recorded, and all that one transaction writes."""

import itertools
import re
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Body,
    TradingClient,
    create,
    limit,
    market,
    pointers,
    stop,
    stop_limit,
)
from tests.intents.published import ACTION_FIELDS, KINDS, published_action, published_order
from tests.journal import OF_ACCOUNT, OF_ORGANIZATION, read_messages
from tests.tenants import Tenants

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.mark.parametrize(
    ("order_type", "side"),
    list(itertools.product(KINDS, ("BUY", "SELL", "SELL_SHORT"))),
    ids="-".join,
)
def test_every_kind_and_side_is_recorded_as_it_was_sent(
    tenants: Tenants, trading_client: TradingClient, order_type: str, side: str
) -> None:
    spec = KINDS[order_type]
    record = trading_client.accepted(create(spec, "MSFT", side))
    assert set(record) == ACTION_FIELDS
    assert STAMP.fullmatch(record.pop("created_at"))
    assert re.fullmatch(r"[0-9a-f]{64}", record.pop("hash"))
    intent_id = record.pop("intent_id")
    assert uuid.UUID(intent_id).version == 7
    assert str(uuid.UUID(intent_id)) == intent_id
    (amounts,) = spec.values()
    assert record == {
        "seq": 1,
        "account_id": trading_client.account["id"],
        "organization_id": tenants.organization("org_acme")["id"],
        "environment": "paper",
        "action_type": "CREATE",
        "symbol": "MSFT",
        "order_side": side,
        "order_type": order_type,
        "quantity": "10",
        "limit_price": amounts.get("limit_price"),
        "stop_price": amounts.get("stop_price"),
        "time_in_force": "DAY",
        "route_strategy": "SMART",
        "client_reference_id": None,
        "principal_type": "API_KEY",
        "principal_id": tenants.api_key("org_acme", "all")["id"],
        "hash_version": 1,
    }


def test_the_answer_is_the_intent_and_its_seq(trading_client: TradingClient) -> None:
    answer = trading_client.submit(create())
    assert (answer.status_code, set(answer.json()), answer.json()["seq"]) == (
        202,
        {"intent_id", "seq"},
        1,
    )
    assert "idempotent-replayed" not in answer.headers
    assert answer.headers["x-request-id"]
    assert "submits" in answer.headers["ratelimit-policy"]


@pytest.mark.parametrize(
    "time_in_force", ["DAY", "GOOD_TILL_CANCEL", "IMMEDIATE_OR_CANCEL", "FILL_OR_KILL"]
)
def test_a_time_in_force_is_kept_and_day_is_the_default(
    trading_client: TradingClient, time_in_force: str
) -> None:
    assert (
        trading_client.accepted(create(limit(time_in_force=time_in_force)))["time_in_force"]
        == time_in_force
    )
    assert trading_client.accepted(create(limit(time_in_force=None)))["time_in_force"] == "DAY"
    assert trading_client.accepted(create(limit()))["time_in_force"] == "DAY"


def test_a_route_is_smart_unless_said(trading_client: TradingClient) -> None:
    assert trading_client.accepted(create())["route_strategy"] == "SMART"
    assert trading_client.accepted(create(route_strategy="SMART"))["route_strategy"] == "SMART"
    assert trading_client.accepted(create(route_strategy=None))["route_strategy"] == "SMART"


@pytest.mark.parametrize(
    "route", ["AMEX", "ARCA", "BATS", "BATY", "EDGA", "EDGX", "NSDQ", "NYSE", "IEX", "MEMX"]
)
def test_a_venue_that_the_broker_cannot_reach_is_refused_at_its_field(
    trading_client: TradingClient, route: str
) -> None:
    answer = trading_client.submit(create(route_strategy=route))
    assert pointers(answer) == ["/command/payload/route_strategy"]
    assert "paper" in answer.json()["errors"][0]["detail"], "it is a known venue: the broker is why"


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        (market(time_in_force="EXT"), "/command/payload/spec/Market/time_in_force"),
        (stop(time_in_force="IMMEDIATE_OR_CANCEL"), "/command/payload/spec/Stop/time_in_force"),
        (stop(time_in_force="AT_OPEN"), "/command/payload/spec/Stop/time_in_force"),
        (stop_limit(time_in_force="FILL_OR_KILL"), "/command/payload/spec/StopLimit/time_in_force"),
        (stop_limit(time_in_force="EXT"), "/command/payload/spec/StopLimit/time_in_force"),
        (limit(time_in_force="EXT"), None),
        (limit(time_in_force="AT_OPEN"), None),
        (market(time_in_force="AT_CLOSE"), None),
    ],
)
def test_a_time_in_force_must_be_one_that_the_broker_offers(
    open_client: OpenClient, spec: Body, pointer: str | None
) -> None:
    trading_client = open_client(broker="remote")
    if pointer:
        assert pointers(trading_client.submit(create(spec))) == [pointer]
        assert trading_client.refused(create(spec)) == (422, "validation_failed")
    else:
        assert trading_client.accepted(create(spec))["seq"] == 1


@pytest.mark.parametrize("time_in_force", ["AT_OPEN", "AT_CLOSE", "EXT"])
def test_the_paper_broker_has_no_auctions(
    trading_client: TradingClient, time_in_force: str
) -> None:
    answer = trading_client.submit(create(limit(time_in_force=time_in_force)))
    assert pointers(answer) == ["/command/payload/spec/Limit/time_in_force"]


@pytest.mark.parametrize(
    ("sent", "recorded"),
    [
        ("10", "10"),
        ("10.0", "10"),
        ("10.500", "10.5"),
        ("100", "100"),
        ("1000.000000000000000000", "1000"),
        ("0.1", "0.1"),
        ("0.000000000000000001", "0.000000000000000001"),
        ("0.10", "0.1"),
        ("999999999999999999", "999999999999999999"),
        ("999999999999999999.999999999999999999", "999999999999999999.999999999999999999"),
    ],
)
def test_amounts_are_exact_and_their_zeros_trimmed(
    trading_client: TradingClient, sent: str, recorded: str
) -> None:
    record = trading_client.accepted(create(stop_limit(sent, sent, sent)))
    assert [record[name] for name in ("quantity", "limit_price", "stop_price")] == [recorded] * 3
    order = trading_client.order(record["intent_id"])
    assert [order[name] for name in ("quantity", "limit_price", "stop_price")] == [
        Decimal(recorded)
    ] * 3


@pytest.mark.parametrize(
    "symbol", ["aapl", "Brk.b", "btc/usd", "es:z26", "a_b-c", "7203", "x" * 32]
)
def test_a_symbol_is_folded_to_upper_case(trading_client: TradingClient, symbol: str) -> None:
    assert trading_client.accepted(create(symbol=symbol))["symbol"] == symbol.upper()


@pytest.mark.parametrize(
    "reference", ["my-17", "x" * 64, "é" * 64, "\U0001f600" * 64, 'a"b\\c/d', "\u00a0\ue000", ""]
)
def test_a_client_reference_is_kept_on_action_order_and_events(
    trading_client: TradingClient, reference: str
) -> None:
    record = trading_client.accepted(create() | {"client_reference_id": reference})
    assert record["client_reference_id"] == reference
    assert trading_client.order(record["intent_id"])["client_reference_id"] == reference
    action, order = trading_client.events()
    assert (
        action.intent_action.client_reference_id
        == order.broker_order.client_reference_id
        == reference
    )


@pytest.mark.parametrize(
    "reference", ["x" * 65, "a\nb", "a\x00", "\x7f", "\x9b", "\u2028", "\u202e", 5, ["x"], {}]
)
def test_a_bad_client_reference_is_refused_at_its_field(
    trading_client: TradingClient, reference: Any
) -> None:
    assert pointers(trading_client.submit(create() | {"client_reference_id": reference})) == [
        "/client_reference_id"
    ]


@pytest.mark.parametrize("order_type", KINDS)
def test_an_order_starts_pending_new(trading_client: TradingClient, order_type: str) -> None:
    record = trading_client.accepted(create(KINDS[order_type]) | {"client_reference_id": "r"})
    order = trading_client.order(record["intent_id"])
    stamps = {order.pop(name) for name in ("received_at", "created_at", "updated_at")}
    assert {stamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for stamp in stamps} == {
        record["created_at"]
    }
    for name in ("order_id", "account_id", "organization_id"):
        order[name] = str(order[name])
    amounts = {
        name: Decimal(record[name]) if record[name] else None
        for name in ("quantity", "limit_price", "stop_price")
    }
    same = (
        "account_id",
        "organization_id",
        "environment",
        "symbol",
        "order_type",
        "order_side",
        "time_in_force",
    )
    expected = {
        name: record[name] for name in (*same, "route_strategy", "client_reference_id")
    } | amounts
    expected |= {
        "order_id": record["intent_id"],
        "broker": "paper",
        "create_seq": 1,
        "command_seq": 1,
        "version": 1,
    }
    expected |= {
        "order_status": "PENDING_NEW",
        "filled_quantity": Decimal(0),
        "flags": [],
        "cancel_requested": False,
    }
    unknown = (
        "average_price",
        "external_order_id",
        "reason",
        "pending_replace_seq",
        "broker_sent_at",
    )
    expected |= dict.fromkeys(unknown)
    assert {name: order[name] for name in expected} == expected


def test_an_action_queues_one_row_for_its_account_and_intent(trading_client: TradingClient) -> None:
    records = [trading_client.accepted(create()) for _ in range(2)]
    rows = trading_client.queued()
    assert [
        (str(row["lane"]), str(row["order_key"]), row["event_type"], row["status"]) for row in rows
    ] == [
        (trading_client.account["id"], record["intent_id"], "intent.create", "pending")
        for record in records
    ]
    assert [row["payload"] for row in rows] == ['{"seq": 1}', '{"seq": 2}']
    assert {str(row["organization_id"]) for row in rows} == {
        trading_client.account["organization_id"]
    }


@pytest.mark.parametrize("order_type", KINDS)
def test_both_events_say_what_the_record_says(
    trading_client: TradingClient, order_type: str
) -> None:
    record = trading_client.accepted(
        create(KINDS[order_type], "TSLA", "SELL") | {"client_reference_id": "r-é"}
    )
    action, order = trading_client.events()
    untold = {"environment", "principal_id", "hash_version", "hash"}
    assert published_action(action) == {
        name: value for name, value in record.items() if name not in untold
    }
    same = (
        "intent_id",
        "account_id",
        "organization_id",
        "order_side",
        "order_type",
        "quantity",
        "limit_price",
    )
    append_statements = ("stop_price", "time_in_force", "route_strategy", "client_reference_id")
    assert published_order(order) == {
        name: record[name] for name in (*same, *append_statements)
    } | {
        "order_id": record["intent_id"],
        "command_seq": 1,
        "broker": "paper",
        "symbol": "TSLA",
        "order_state": "OPEN",
        "order_status": "PENDING_NEW",
        "filled_quantity": "0",
        "external_order_id": None,
        "average_price": None,
        "reason": None,
        "received_at": record["created_at"],
        "version": 1,
    }


def test_one_transaction_writes_all_of_it(trading_client: TradingClient) -> None:
    """Every row that an accepted command leaves was made by one and the same transaction."""
    record = trading_client.accepted(create())
    account = trading_client.account["id"]
    made = {
        trading_client.tables.value(
            f"SELECT xmin::text FROM {table} WHERE {column} = $1::text::uuid LIMIT 1", account
        )
        for table, column in (
            ("actions", "account_id"),
            ("orders", "account_id"),
            ("commands", "account_id"),
            ("account_heads", "account_id"),
        )
    }
    assert len(made) == 1
    rows = trading_client.tables.fetch(OF_ACCOUNT, account)
    assert [each.kind for each in read_messages(rows)] == [4, 1]
    stamp = datetime.fromisoformat(record["created_at"])
    assert trading_client.tables.value(
        "SELECT abs(extract(epoch FROM clock_timestamp() - $1)) < 5", stamp
    )


def test_events_of_an_organization_are_numbered_without_a_gap(
    trading_client: TradingClient, open_client: OpenClient
) -> None:
    other = open_client()
    organization = trading_client.account["organization_id"]
    trading_client.accepted(create())
    last = "SELECT seq FROM stream_heads WHERE organization_id = $1::text::uuid"
    first = trading_client.tables.value(last, organization) + 1
    for each in (trading_client, other, trading_client, other):
        each.accepted(create())
    reports = trading_client.tables.fetch(OF_ORGANIZATION, organization)
    messages = [each for each in read_messages(reports) if each.seq >= first]
    assert [each.seq for each in messages] == list(range(first, first + len(messages)))
    ours = [
        (each.account_id, each.kind)
        for each in messages
        if each.account_id in (trading_client.account["id"], other.account["id"])
    ]
    each_of = [trading_client.account["id"], other.account["id"]] * 2
    assert ours == [(account, kind) for account in each_of for kind in (4, 1)]
