"""Exits of an entry and one cancels other over HTTP: what is taken, what it writes, what is refused
and where."""

import hashlib
from functools import partial
from typing import Any

import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
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
from tests.intents.linked_orders import BOTH, SHORT, bracket, orders, pair, placed
from tests.tenants import Tenants

PAYLOAD = "/command/payload"
EXITS = f"{PAYLOAD}/exits"
PAIR = f"{PAYLOAD}/one_cancels_other"
PROFIT = f"{EXITS}/take_profit/limit_price"
LOSS = f"{EXITS}/stop_loss/stop_price"


def test_one_post_appends_the_entry_and_its_exits_with_consecutive_seqs(
    trading_client: TradingClient,
) -> None:
    trading_client.accepted(create(market()))
    body = bracket(limit("10.50", "190", time_in_force="DAY")) | {"client_reference_id": "mine"}
    entry, legs = placed(trading_client, body)
    assert list(legs) == ["take_profit", "stop_loss"]
    assert [entry["seq"], *(each["seq"] for each in legs.values())] == [2, 3, 4]
    assert len({entry["intent_id"], *(each["intent_id"] for each in legs.values())}) == 3
    shared = (
        "symbol",
        "quantity",
        "route_strategy",
        "client_reference_id",
        "principal_type",
        "principal_id",
    )
    for name, record in legs.items():
        assert {field: record[field] for field in shared} == {
            field: entry[field] for field in shared
        }
        assert (record["action_type"], record["order_side"]) == ("CREATE", "SELL")
        assert (record["leg"], record["parent_intent_id"]) == (name, entry["intent_id"])
        assert record["time_in_force"] == "GOOD_TILL_CANCEL"
        assert (record["hash_version"], record["created_at"]) == (2, entry["created_at"])
    assert (entry["hash_version"], entry["leg"], entry["parent_intent_id"]) == (2, None, None)
    assert (entry["quantity"], entry["client_reference_id"]) == ("10.5", "mine")
    terms = [
        (each["order_type"], each["limit_price"], each["stop_price"]) for each in legs.values()
    ]
    assert terms == [("LIMIT", "200", None), ("STOP", None, "180")]


@pytest.mark.parametrize(
    ("body", "side", "expected"),
    [
        (
            bracket(take_profit={"limit_price": "191"}),
            "SELL",
            {"take_profit": ("LIMIT", "191", None)},
        ),
        (bracket(stop_loss={"stop_price": "189"}), "SELL", {"stop_loss": ("STOP", None, "189")}),
        (
            bracket(
                market(), stop_loss={"stop_price": "189", "limit_price": "188"}, time_in_force="DAY"
            ),
            "SELL",
            {"stop_loss": ("STOP_LIMIT", "188", "189")},
        ),
        (
            bracket(side="SELL_SHORT", **SHORT),
            "BUY",
            {"take_profit": ("LIMIT", "180", None), "stop_loss": ("STOP", None, "200")},
        ),
        (pair(), "SELL", {"one_cancels_other": ("STOP", None, "180")}),
        (
            pair(side="BUY", stop_price="200", limit_price="201"),
            "BUY",
            {"one_cancels_other": ("STOP_LIMIT", "201", "200")},
        ),
        (pair(side="SELL_SHORT"), "SELL_SHORT", {"one_cancels_other": ("STOP", None, "180")}),
    ],
    ids=[
        "profit alone",
        "loss alone",
        "stop limit",
        "short",
        "pair",
        "pair that buys",
        "pair that sells short",
    ],
)
def test_legs_have_the_side_and_kind_that_was_asked_for(
    trading_client: TradingClient, body: Body, side: str, expected: dict[str, Any]
) -> None:
    _, legs = placed(trading_client, body)
    assert {
        n: (r["order_type"], r["limit_price"], r["stop_price"]) for n, r in legs.items()
    } == expected
    assert {each["order_side"] for each in legs.values()} == {side}


def test_a_pair_has_the_time_in_force_of_its_limit(trading_client: TradingClient) -> None:
    for given, expected in ((None, "DAY"), ("GOOD_TILL_CANCEL", "GOOD_TILL_CANCEL")):
        _, legs = placed(trading_client, pair(limit("1", "190", time_in_force=given)))
        assert legs["one_cancels_other"]["time_in_force"] == expected
    _, legs = placed(trading_client, bracket(time_in_force="DAY", **BOTH))
    assert {each["time_in_force"] for each in legs.values()} == {"DAY"}


def test_leg_orders_are_pending_beside_the_entry_and_found_by_it(
    trading_client: TradingClient,
) -> None:
    single = trading_client.accepted(create(market()))
    entry, legs = placed(trading_client, bracket())
    held, _ = placed(trading_client, pair())
    shown = {each["intent_id"]: each for each in orders(trading_client)}
    own = orders(trading_client, parent_intent_id=entry["intent_id"])
    assert [each["intent_id"] for each in own] == [each["intent_id"] for each in legs.values()]
    for each in own:
        assert (each["order_status"], each["quantity"], each["order_side"]) == (
            "PENDING_NEW",
            "10",
            "SELL",
        )
        assert (each["parent_intent_id"], each["active"], each["command_seq"]) == (
            entry["intent_id"],
            False,
            legs[each["leg"]]["seq"],
        )
    for intent_id in (single["intent_id"], entry["intent_id"], held["intent_id"]):
        assert [shown[intent_id][name] for name in ("leg", "parent_intent_id", "active")] == [
            None,
            None,
            True,
        ]
    (other,) = orders(trading_client, parent_intent_id=held["intent_id"])
    assert (other["leg"], other["active"]) == ("one_cancels_other", True)
    assert orders(trading_client, parent_intent_id=single["intent_id"]) == []
    csv = {"accept": "text/csv"}
    path = f"/v1/accounts/{trading_client.account['id']}/orders"
    lines = trading_client.client.get(path, headers=trading_client.headers | csv).text.splitlines()
    assert lines[0].endswith("trail_bps,leg,parent_intent_id,active")
    assert [line.split(",")[-3:] for line in lines[1:]] == [
        ["", "", "true"],
        ["", "", "true"],
        ["take_profit", entry["intent_id"], "false"],
        ["stop_loss", entry["intent_id"], "false"],
        ["", "", "true"],
        ["one_cancels_other", held["intent_id"], "true"],
    ]


def test_only_the_entry_is_queued_and_later_commands_of_legs_are(
    trading_client: TradingClient,
) -> None:
    entry, legs = placed(trading_client, bracket())
    (queued,) = trading_client.queued()
    assert (str(queued["order_key"]), queued["event_type"]) == (entry["intent_id"], "intent.create")
    leg_id = legs["take_profit"]["intent_id"]
    ended = trading_client.accepted(cancel(leg_id))
    assert [str(each["order_key"]) for each in trading_client.queued()] == [
        entry["intent_id"],
        leg_id,
    ]
    names = ("leg", "parent_intent_id", "hash_version", "limit_price")
    assert [ended[name] for name in names] == ["take_profit", entry["intent_id"], 2, "200"]
    assert trading_client.accepted(cancel(entry["intent_id"]))["hash_version"] == 2


def test_each_leg_has_its_events_in_the_stream(trading_client: TradingClient) -> None:
    entry, legs = placed(trading_client, bracket())
    parts = [None, *legs]
    events = trading_client.events()
    assert len(events) == 6
    for index, part in enumerate(parts):
        action = events[2 * index].intent_action
        order = events[2 * index + 1].broker_order
        for message in (action, order):
            assert (
                message.HasField("leg")
                is message.HasField("parent_intent_id")
                is (part is not None)
            )
            assert (message.leg, message.parent_intent_id) == (
                (part, entry["intent_id"]) if part else ("", "")
            )
        assert order.HasField("active")
        assert order.active is (part is None)
    trading_client.accepted(cancel(legs["stop_loss"]["intent_id"]))
    action, order = (event for event in trading_client.events()[-2:])
    assert (action.intent_action.leg, order.broker_order.leg) == ("stop_loss", "stop_loss")
    assert (
        order.broker_order.parent_intent_id
        == action.intent_action.parent_intent_id
        == entry["intent_id"]
    )
    assert (order.broker_order.HasField("active"), order.broker_order.active) == (True, False)


def test_a_replayed_key_answers_the_same_legs_and_appends_nothing(
    trading_client: TradingClient,
) -> None:
    body = bracket()
    first = trading_client.submit(body, idempotency_key="once")
    before = trading_client.tables.counts()
    again = trading_client.submit(body, idempotency_key="once")
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert trading_client.tables.counts() == before
    other = trading_client.submit(
        bracket(take_profit={"limit_price": "199"}), idempotency_key="once"
    )
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    entry = first.json()["intent_id"]
    leg = first.json()["legs"][0]["intent_id"]
    cancelled = trading_client.submit(cancel(entry), idempotency_key="ended")
    repeated = trading_client.submit(cancel(entry), idempotency_key="ended")
    assert repeated.json() == cancelled.json() == {"intent_id": entry, "seq": 4}
    assert trading_client.submit(cancel(leg), idempotency_key="leg").json() == {
        "intent_id": leg,
        "seq": 5,
    }


def test_a_chain_of_both_versions_is_what_it_was_hashed_as(trading_client: TradingClient) -> None:
    trading_client.accepted(create(market()))
    placed(trading_client, bracket())
    trading_client.accepted(create(market()))
    placed(trading_client, pair())
    digest = "0" * 64
    rows = trading_client.tables.fetch(
        "SELECT record, hash FROM actions WHERE account_id = $1::text::uuid ORDER BY seq",
        trading_client.account["id"],
    )
    for row in rows:
        names = [part.split('"')[1] for part in row["record"].split(",")]
        assert names == sorted(names)
        digest = hashlib.sha256(f"{digest}\n{row['record']}".encode()).hexdigest()
        assert row["hash"] == digest
    assert [each["hash_version"] for each in trading_client.actions()] == [1, 2, 2, 2, 1, 2, 2]


EQUAL: dict[str, Any] = {"take_profit": {"limit_price": "190"}}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (bracket(time_in_force="DAY"), EXITS),
        (create(exits={}), EXITS),
        (create(exits={"take_profit": None, "stop_loss": None}), EXITS),
        (create(exits=[]), EXITS),
        (bracket(take_profit={}), PROFIT),
        (bracket(take_profit={"limit_price": 200}), PROFIT),
        (bracket(take_profit={"limit_price": "0"}), PROFIT),
        (bracket(take_profit={"limit_price": "-1"}), PROFIT),
        (
            bracket(take_profit={"limit_price": "200", "stop_price": "1"}),
            f"{EXITS}/take_profit/stop_price",
        ),
        (bracket(stop_loss={"limit_price": "180"}), LOSS),
        (bracket(stop_loss={"stop_price": "0.0"}), LOSS),
        (
            bracket(stop_loss={"stop_price": "180", "limit_price": "0"}),
            f"{EXITS}/stop_loss/limit_price",
        ),
        (bracket(time_in_force="IMMEDIATE_OR_CANCEL", **BOTH), f"{EXITS}/time_in_force"),
        (bracket(take_loss={"limit_price": "200"}), f"{EXITS}/take_loss"),
        (bracket(side="SELL", **SHORT), EXITS),
        (bracket(stop("10", "190")), EXITS),
        (bracket(stop_limit("10", "190", "190")), EXITS),
        (bracket({"TrailingStop": {"quantity": "1", "trail_bps": 1}}), EXITS),
        (bracket(limit("10", "190", time_in_force="IMMEDIATE_OR_CANCEL")), EXITS),
        (create(limit("10", "190"), exits=BOTH, one_cancels_other={"stop_price": "180"}), PAIR),
        (pair(market()), PAIR),
        (pair(stop("10", "190")), PAIR),
        (pair(limit("10", "190", time_in_force="FILL_OR_KILL")), PAIR),
        (create(limit("10", "190"), one_cancels_other={}), f"{PAIR}/stop_price"),
        (pair(stop_price=180), f"{PAIR}/stop_price"),
        (pair(stop_price="180", limit_price="x"), f"{PAIR}/limit_price"),
        (pair(stop_price="180", time_in_force="DAY"), f"{PAIR}/time_in_force"),
        # On the wrong side, or equal.
        (bracket(**EQUAL), PROFIT),
        (bracket(take_profit={"limit_price": "190.00"}), PROFIT),
        (bracket(take_profit={"limit_price": "189.99"}), PROFIT),
        (bracket(stop_loss={"stop_price": "190"}), LOSS),
        (bracket(stop_loss={"stop_price": "191"}), LOSS),
        (
            bracket(stop_loss={"stop_price": "189", "limit_price": "190"}),
            f"{EXITS}/stop_loss/limit_price",
        ),
        (bracket(market(), take_profit={"limit_price": "9"}, stop_loss={"stop_price": "9"}), LOSS),
        (bracket(market(), take_profit={"limit_price": "9"}, stop_loss={"stop_price": "10"}), LOSS),
        (bracket(side="SELL_SHORT", **EQUAL), PROFIT),
        (bracket(side="SELL_SHORT", take_profit={"limit_price": "191"}), PROFIT),
        (bracket(side="SELL_SHORT", stop_loss={"stop_price": "189"}), LOSS),
        (
            bracket(
                market(),
                "SELL_SHORT",
                take_profit={"limit_price": "9"},
                stop_loss={"stop_price": "8"},
            ),
            LOSS,
        ),
        (pair(stop_price="190"), f"{PAIR}/stop_price"),
        (pair(stop_price="191"), f"{PAIR}/stop_price"),
        (pair(stop_price="180", limit_price="190"), f"{PAIR}/limit_price"),
        (pair(side="BUY", stop_price="189"), f"{PAIR}/stop_price"),
        (pair(side="BUY", stop_price="190"), f"{PAIR}/stop_price"),
        (pair(side="SELL_SHORT", stop_price="195"), f"{PAIR}/stop_price"),
    ],
)
def test_what_is_wrong_is_refused_at_its_field(
    trading_client: TradingClient, body: Body, pointer: str
) -> None:
    assert pointers(trading_client.submit(body)) == [pointer]
    assert trading_client.refused(body) == (422, "validation_failed")


def test_a_wrong_price_is_answered_with_the_one_that_it_must_pass(
    trading_client: TradingClient,
) -> None:
    detail = trading_client.submit(bracket(stop_loss={"stop_price": "191"})).json()["errors"][0][
        "detail"
    ]
    assert detail == "must be below the limit_price of the order that it is linked to, which is 190"
    swapped = bracket(market(), take_profit={"limit_price": "9"}, stop_loss={"stop_price": "10"})
    detail = trading_client.submit(swapped).json()["errors"][0]["detail"]
    assert detail == "must be below the limit_price of the take profit, which is 9"
    tiny = "0.000000000000000001"
    swapped = bracket(market(), take_profit={"limit_price": tiny}, stop_loss={"stop_price": "10"})
    assert trading_client.submit(swapped).json()["errors"][0]["detail"].endswith(f"which is {tiny}")


def test_a_broker_without_linked_orders_refuses_before_anything_is_written(
    open_client: OpenClient,
) -> None:
    client = open_client(broker="remote")
    for body, pointer in ((bracket(), EXITS), (pair(), PAIR)):
        answer = client.submit(body)
        assert pointers(answer) == [pointer]
        assert "the broker remote" in answer.json()["errors"][0]["detail"]
        assert client.refused(body) == (422, "validation_failed")


def test_brokers_say_which_linked_orders_they_offer(tenants: Tenants) -> None:
    shown = tenants.client.get("/v1/brokers", headers=tenants.callers["key_all"]).json()["data"]
    brokers = {each["name"]: (each["exits"], each["one_cancels_other"]) for each in shown}
    times = ["DAY", "GOOD_TILL_CANCEL"]
    assert brokers["paper"] == (
        {
            "order_sides": ["BUY", "SELL_SHORT"],
            "order_kinds": ["Market", "Limit"],
            "times_in_force": times,
            "one_time_in_force": False,
        },
        {
            "order_sides": ["BUY", "SELL", "SELL_SHORT"],
            "order_kinds": ["Limit"],
            "times_in_force": times,
            "one_time_in_force": False,
        },
    )
    assert brokers["remote"] == (None, None)


def test_a_replace_of_a_linked_order_changes_its_prices_alone(
    trading_client: TradingClient,
) -> None:
    entry, legs = placed(trading_client, bracket())
    profit, loss = (legs[name]["intent_id"] for name in ("take_profit", "stop_loss"))
    for intent_id in (entry["intent_id"], profit, loss):
        trading_client.set_order(intent_id, "NEW")
    spec = f"{PAYLOAD}/spec"
    wrong = [
        (replace(profit, limit("11", "201")), f"{spec}/Limit/quantity"),
        (replace(loss, stop("9.5", "181")), f"{spec}/Stop/quantity"),
        (replace(entry["intent_id"], limit("9", "190")), f"{spec}/Limit/quantity"),
        (replace(profit, limit("10", "201", time_in_force="DAY")), f"{spec}/Limit/time_in_force"),
        (replace(profit, limit("10", "190")), f"{spec}/Limit/limit_price"),
        (replace(profit, limit("10", "180")), f"{spec}/Limit/limit_price"),
        (replace(loss, stop("10", "190")), f"{spec}/Stop/stop_price"),
        (replace(loss, stop("10", "200")), f"{spec}/Stop/stop_price"),
        (replace(loss, stop_limit("10", "181", "180")), spec),
        (replace(entry["intent_id"], limit("10", "200")), f"{spec}/Limit/limit_price"),
        (replace(entry["intent_id"], limit("10", "180")), f"{spec}/Limit/limit_price"),
    ]
    for body, pointer in wrong:
        answer = trading_client.submit(body)
        assert pointers(answer) == [pointer], body
        assert trading_client.refused(body) == (422, "validation_failed")
        question = {"account_id": trading_client.account["id"], "command": body["command"]}
        asked = trading_client.client.post(
            "/v1/controls/evaluate", json=question, headers=trading_client.headers
        )
        assert pointers(asked) == [pointer]
    changed = trading_client.accepted(
        replace(profit, limit("10.0", "195", time_in_force="GOOD_TILL_CANCEL"))
    )
    names = ("leg", "parent_intent_id", "hash_version", "limit_price", "quantity", "order_side")
    assert [changed[name] for name in names] == [
        "take_profit",
        entry["intent_id"],
        2,
        "195",
        "10",
        "SELL",
    ]
    moved = trading_client.accepted(replace(entry["intent_id"], limit("10", "185")))
    assert (moved["hash_version"], moved["leg"]) == (2, None)


DAY = {"time_in_force": "DAY"}
KEPT = {"time_in_force": "GOOD_TILL_CANCEL"}


@pytest.mark.parametrize("is_said", [False, True], ids=["by default", "as said"])
def test_a_replace_of_a_linked_order_keeps_its_time_in_force(
    trading_client: TradingClient, is_said: bool
) -> None:
    def said(time: Body) -> Body:
        return time if is_said else {}

    spec = limit("10", "190", **said(DAY))
    entry, legs = placed(trading_client, bracket(spec, **BOTH, **said(KEPT)))
    parent, stops = placed(trading_client, pair(spec))
    group = [
        (entry["intent_id"], partial(limit, "10", "191"), DAY, KEPT),
        (legs["take_profit"]["intent_id"], partial(limit, "10", "201"), KEPT, DAY),
        (legs["stop_loss"]["intent_id"], partial(stop, "10", "181"), KEPT, DAY),
        (parent["intent_id"], partial(limit, "10", "191"), DAY, KEPT),
        (stops["one_cancels_other"]["intent_id"], partial(stop, "10", "181"), DAY, KEPT),
    ]
    for intent_id, make, own, other in group:
        trading_client.set_order(intent_id, "NEW")
        answer = trading_client.submit(replace(intent_id, make(**other)))
        assert [each.rpartition("/")[2] for each in pointers(answer)] == ["time_in_force"]
        for time in ({}, own):
            assert trading_client.accepted(replace(intent_id, make(**time))).items() >= own.items()
            trading_client.set_order(intent_id, "NEW")


def test_the_price_of_an_entry_with_a_fill_binds_nothing(trading_client: TradingClient) -> None:
    entry, legs = placed(trading_client, bracket())
    loss = legs["stop_loss"]["intent_id"]
    above = replace(loss, stop("10", "195"))
    assert trading_client.refused(above) == (422, "validation_failed")
    trading_client.tables.execute(
        "UPDATE orders SET filled_quantity = 3 WHERE order_id = $1::text::uuid", entry["intent_id"]
    )
    trading_client.accepted(above)
    trading_client.set_order(loss, "NEW")
    beyond = replace(loss, stop("10", "200"))
    assert trading_client.refused(beyond) == (422, "validation_failed"), "the take profit does"
    trading_client.accepted(replace(entry["intent_id"], limit("10", "202")))
    trading_client.set_order(entry["intent_id"], "FILLED")
    trading_client.accepted(replace(loss, stop("10", "199")))


def test_a_price_must_pass_the_one_that_a_pending_replace_asks_for_too(
    trading_client: TradingClient,
) -> None:
    body = bracket(market(), take_profit={"limit_price": "200"}, stop_loss={"stop_price": "180"})
    _, legs = placed(trading_client, body)
    profit, loss = (legs[name]["intent_id"] for name in ("take_profit", "stop_loss"))
    trading_client.accepted(replace(profit, limit("10", "190")))
    assert trading_client.refused(replace(loss, stop("10", "195"))) == (422, "validation_failed")
    assert trading_client.refused(replace(loss, stop("10", "190"))) == (422, "validation_failed")
    trading_client.accepted(replace(loss, stop("10", "189.99")))


def test_an_exit_that_ended_does_not_bind_the_other_ones_price(
    trading_client: TradingClient,
) -> None:
    _, legs = placed(trading_client, bracket(market(), **BOTH))
    trading_client.set_order(legs["take_profit"]["intent_id"], "CANCELLED")
    trading_client.accepted(replace(legs["stop_loss"]["intent_id"], stop("10", "250")))


def test_the_stop_beside_a_limit_stays_on_its_side(trading_client: TradingClient) -> None:
    parent, legs = placed(trading_client, pair())
    leg = legs["one_cancels_other"]["intent_id"]
    assert trading_client.refused(replace(leg, stop("10", "190"))) == (422, "validation_failed")
    assert trading_client.refused(replace(parent["intent_id"], limit("10", "180"))) == (
        422,
        "validation_failed",
    )
    trading_client.accepted(replace(leg, stop("10", "185")))
    assert trading_client.refused(replace(parent["intent_id"], limit("10", "184"))) == (
        422,
        "validation_failed",
    )
    trading_client.accepted(replace(parent["intent_id"], limit("10", "186")))
