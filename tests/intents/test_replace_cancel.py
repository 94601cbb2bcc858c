"""REPLACE and CANCEL: what they append, how they mark the order, and when they are refused."""

import json
import uuid
from decimal import Decimal

import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    FINAL_STATUSES,
    Body,
    TradingClient,
    cancel,
    create,
    limit,
    market,
    pointers,
    replace,
    stop,
    stop_limit,
)
from tests.intents.published import KINDS, published_action, published_order
from tests.tenants import Tenants

OPEN_STATUSES = (
    "PENDING_NEW",
    "NEW",
    "PARTIALLY_FILLED",
    "PENDING_REPLACE",
    "PENDING_CANCEL",
    "UNKNOWN",
)
CHANGED = {
    "MARKET": market("20"),
    "LIMIT": limit("20", "190"),
    "STOP": stop("20", "170"),
    "STOP_LIMIT": stop_limit("20", "170", "169"),
}


def marks(trading_client: TradingClient, intent_id: str) -> tuple[str, bool, int | None, int]:
    order = trading_client.order(intent_id)
    return (
        order["order_status"],
        order["cancel_requested"],
        order["pending_replace_seq"],
        order["version"],
    )


@pytest.mark.parametrize("order_type", KINDS)
def test_a_replace_appends_to_its_intent(trading_client: TradingClient, order_type: str) -> None:
    first = trading_client.accepted(
        create(KINDS[order_type], "MSFT", "SELL") | {"client_reference_id": "mine"}
    )
    second = trading_client.accepted(replace(first["intent_id"], CHANGED[order_type]))
    (amounts,) = CHANGED[order_type].values()
    new = {"seq": 2, "action_type": "REPLACE"} | amounts
    expected = first | new | {name: second[name] for name in ("hash", "created_at")}
    assert second == expected
    assert first["created_at"] < second["created_at"]
    assert marks(trading_client, first["intent_id"]) == ("PENDING_REPLACE", False, 2, 2)
    order = trading_client.order(first["intent_id"])
    assert (order["quantity"], order["command_seq"]) == (Decimal(10), 1), (
        "the fields show the last confirmed version"
    )


def test_a_replace_keeps_the_time_in_force_that_it_does_not_name(
    trading_client: TradingClient,
) -> None:
    for given, expected in ((None, "GOOD_TILL_CANCEL"), ("FILL_OR_KILL", "FILL_OR_KILL")):
        intent = trading_client.accepted(create(limit(time_in_force="GOOD_TILL_CANCEL")))[
            "intent_id"
        ]
        named = {"time_in_force": given} if given else {}
        assert (
            trading_client.accepted(replace(intent, limit("11", **named)))["time_in_force"]
            == expected
        )


def test_a_replace_may_not_change_the_order_kind(trading_client: TradingClient) -> None:
    for kind, spec in KINDS.items():
        intent = trading_client.accepted(create(spec))["intent_id"]
        for other, changed in CHANGED.items():
            if other != kind:
                answer = trading_client.submit(replace(intent, changed))
                assert pointers(answer) == ["/command/payload/spec"]
        assert trading_client.accepted(replace(intent, CHANGED[kind]))["order_type"] == kind


def test_a_replace_must_be_one_that_the_broker_offers(open_client: OpenClient) -> None:
    trading_client = open_client(broker="remote")
    intent = trading_client.accepted(create(stop()))["intent_id"]
    answer = trading_client.submit(replace(intent, stop(time_in_force="IMMEDIATE_OR_CANCEL")))
    assert pointers(answer) == ["/command/payload/spec/Stop/time_in_force"]
    assert (
        trading_client.accepted(replace(intent, stop(time_in_force="GOOD_TILL_CANCEL")))["seq"] == 2
    )


def test_a_replace_of_an_auction_order_keeps_its_time_in_force(open_client: OpenClient) -> None:
    trading_client = open_client(broker="remote")
    intent = trading_client.accepted(create(limit(time_in_force="EXT")))["intent_id"]
    assert trading_client.accepted(replace(intent, limit("11")))["time_in_force"] == "EXT"


def test_a_second_replace_waits_for_the_answer_to_the_first(trading_client: TradingClient) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(replace(intent, limit("11")))
    assert trading_client.refused(replace(intent, limit("12"))) == (409, "replace_pending")
    trading_client.set_order(intent, "NEW")
    assert trading_client.accepted(replace(intent, limit("13")))["seq"] == 3


def test_a_replace_is_refused_while_a_cancel_is_unanswered(trading_client: TradingClient) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(cancel(intent))
    assert trading_client.refused(replace(intent, limit("11"))) == (409, "cancel_pending")
    both = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(replace(both, limit("11")))
    trading_client.accepted(cancel(both))
    assert trading_client.refused(replace(both, limit("12"))) == (409, "cancel_pending"), (
        "the CANCEL is the one that matters"
    )
    trading_client.set_order(intent, "NEW")  # the CANCEL was answered: refused by the broker
    assert trading_client.accepted(replace(intent, limit("12")))["action_type"] == "REPLACE"


@pytest.mark.parametrize("status", ["PENDING_NEW", "NEW", "PARTIALLY_FILLED", "UNKNOWN"])
def test_a_replace_is_taken_while_the_order_is_open(
    trading_client: TradingClient, status: str
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.set_order(intent, status)
    assert trading_client.accepted(replace(intent, limit("11")))["seq"] == 2


@pytest.mark.parametrize("order_type", KINDS)
def test_a_cancel_record_repeats_the_order(trading_client: TradingClient, order_type: str) -> None:
    first = trading_client.accepted(
        create(KINDS[order_type], "MSFT", "SELL_SHORT") | {"client_reference_id": "mine"}
    )
    second = trading_client.accepted(cancel(first["intent_id"]))
    new = {
        "seq": 2,
        "action_type": "CANCEL",
        "hash": second["hash"],
        "created_at": second["created_at"],
    }
    assert second == first | new
    assert marks(trading_client, first["intent_id"]) == ("PENDING_CANCEL", True, None, 2)


def test_a_cancel_repeats_the_confirmed_order_and_keeps_the_pending_replace(
    trading_client: TradingClient,
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(replace(intent, limit("11", "200")))
    record = trading_client.accepted(cancel(intent))
    assert (record["quantity"], record["limit_price"]) == ("10", "187.5")
    assert marks(trading_client, intent) == ("PENDING_CANCEL", True, 2, 3)


@pytest.mark.parametrize("status", OPEN_STATUSES)
def test_a_cancel_can_be_repeated_while_the_order_is_open(
    trading_client: TradingClient, status: str
) -> None:
    intent = trading_client.accepted(create())["intent_id"]
    trading_client.set_order(intent, status)
    for seq in (2, 3, 4):
        record = trading_client.accepted(cancel(intent))
        assert (record["seq"], record["intent_id"]) == (seq, intent)
        assert marks(trading_client, intent) == ("PENDING_CANCEL", True, None, seq + 1)
    assert [row["event_type"] for row in trading_client.queued()] == ["intent.create"] + [
        "intent.cancel"
    ] * 3


@pytest.mark.parametrize("status", FINAL_STATUSES)
def test_a_finished_order_takes_no_more_commands(
    trading_client: TradingClient, status: str
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.set_order(intent, status)
    assert trading_client.refused(replace(intent, limit("11"))) == (409, "intent_closed")
    assert trading_client.refused(cancel(intent)) == (409, "intent_closed")
    assert marks(trading_client, intent)[0] == status


def test_an_unknown_intent_is_not_found(
    trading_client: TradingClient, open_client: OpenClient
) -> None:
    elsewhere = open_client().accepted(create(limit()))["intent_id"]
    theirs = open_client(caller="other_key", admin="other_admin").accepted(create(limit()))[
        "intent_id"
    ]
    for intent in (str(uuid.uuid4()), elsewhere, theirs):
        for body in (cancel(intent), replace(intent, limit("11"))):
            answer = trading_client.submit(body)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
            assert answer.json()["detail"] == "no such intent: /command/payload/ref_intent_id"
            assert trading_client.refused(body) == (404, "not_found")


@pytest.mark.parametrize(
    "spelling", ["{{{0}}}", "urn:uuid:{0}", "{1}", "{2}", "", " {0}", "{0}\n", "nonsense"]
)
def test_another_spelling_of_an_id_is_refused_at_its_field(
    trading_client: TradingClient, spelling: str
) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    other = spelling.format(intent, intent.replace("-", ""), intent.upper())
    for body in (cancel(other), replace(other, limit("11"))):
        assert pointers(trading_client.submit(body)) == ["/command/payload/ref_intent_id"]


@pytest.mark.parametrize("extra", ["spec", "symbol", "order_side", "route_strategy", "quantity"])
def test_a_cancel_names_its_intent_and_nothing_else(
    trading_client: TradingClient, extra: str
) -> None:
    body = cancel(trading_client.accepted(create(limit()))["intent_id"])
    body["command"]["payload"][extra] = limit()
    assert pointers(trading_client.submit(body)) == [f"/command/payload/{extra}"]


@pytest.mark.parametrize("extra", ["symbol", "order_side", "route_strategy", "quantity"])
def test_a_replace_names_its_intent_and_spec_and_nothing_else(
    trading_client: TradingClient, extra: str
) -> None:
    body = replace(trading_client.accepted(create(limit()))["intent_id"], limit("11"))
    body["command"]["payload"][extra] = "BUY"
    assert pointers(trading_client.submit(body)) == [f"/command/payload/{extra}"]


def test_events_have_the_pending_command_and_the_confirmed_order(
    trading_client: TradingClient,
) -> None:
    first = trading_client.accepted(create(limit()) | {"client_reference_id": "mine"})
    intent = first["intent_id"]
    records = [
        trading_client.accepted(body)
        for body in (replace(intent, limit("11", "200")), cancel(intent))
    ]
    events = trading_client.events()
    untold = {"environment", "principal_id", "hash_version", "hash"}
    answered: Body = published_order(events[1])
    for number, (record, status) in enumerate(
        zip(records, ("PENDING_REPLACE", "PENDING_CANCEL"), strict=True), 2
    ):
        action, order = events[2 * number - 2 : 2 * number]
        assert published_action(action) == {
            name: value for name, value in record.items() if name not in untold
        }
        assert published_order(order) == answered | {"order_status": status, "version": number}
    assert len(events) == 6


def test_commands_of_an_intent_queue_in_order_under_its_key(trading_client: TradingClient) -> None:
    intent = trading_client.accepted(create(limit()))["intent_id"]
    trading_client.accepted(replace(intent, limit("11")))
    trading_client.accepted(cancel(intent))
    rows = trading_client.queued()
    assert [(row["event_type"], json.loads(row["payload"])["seq"]) for row in rows] == [
        ("intent.create", 1),
        ("intent.replace", 2),
        ("intent.cancel", 3),
    ]
    assert {(str(row["order_key"]), str(row["lane"])) for row in rows} == {
        (intent, trading_client.account["id"])
    }


def test_a_cancel_makes_its_intents_waiting_rows_due(trading_client: TradingClient) -> None:
    intents = [trading_client.accepted(create())["intent_id"] for _ in range(2)]
    trading_client.tables.execute(
        """
            UPDATE commands SET due_at = clock_timestamp() + interval '1 hour'
            WHERE account_id = $1::text::uuid
        """,
        trading_client.account["id"],
    )
    trading_client.accepted(cancel(intents[0]))
    late = trading_client.tables.fetch(
        """
            SELECT order_id::text FROM commands
            WHERE account_id = $1::text::uuid AND due_at > clock_timestamp()
        """,
        trading_client.account["id"],
    )
    assert [row["order_id"] for row in late] == [intents[1]]


def test_an_account_with_open_orders_stays_open(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    url = f"/v1/accounts/{trading_client.account['id']}"
    admin = tenants.callers["admin"]
    intent = trading_client.accepted(create())["intent_id"]
    for status in OPEN_STATUSES:
        trading_client.set_order(intent, status)
        answer = tenants.client.delete(url, headers=admin)
        assert (answer.status_code, answer.json()["code"]) == (409, "open_orders")
    trading_client.set_order(intent, "FILLED")
    assert tenants.client.delete(url, headers=admin).status_code == 204


def test_a_credential_stays_while_orders_are_open(
    tenants: Tenants, open_client: OpenClient
) -> None:
    trading_client = open_client(broker="remote")
    admin = tenants.callers["admin"]
    url = f"/v1/accounts/{trading_client.account['id']}/credentials"
    (credential,) = tenants.client.get(url, headers=admin).json()["data"]
    intent = trading_client.accepted(create())["intent_id"]
    answer = tenants.client.delete(f"{url}/{credential['id']}", headers=admin)
    assert (answer.status_code, answer.json()["code"]) == (409, "open_orders")
    trading_client.set_order(intent, "REJECTED")
    assert tenants.client.delete(f"{url}/{credential['id']}", headers=admin).status_code == 204
    assert trading_client.refused(create()) == (409, "credential_missing")
