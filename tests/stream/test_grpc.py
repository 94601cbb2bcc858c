"""SubscribeEvents from outside: what happens is seen in its order, resumed, primed, and refused as documented."""

import random
from typing import Any
from uuid import uuid4

import pytest

from tests.intents.http_client import Desk, Tables, create, limit
from tests.stream.client import (
    ACTION,
    ALL,
    LIMIT_SECONDS,
    ORDER,
    POSITION,
    PRIMED,
    TRADE,
    Client,
    body_of,
    kind_of,
    subscribe,
)
from tests.stream.conftest import Opener
from tests.tenants import World
from tests.waiting import eventually
from trading_intents.stream.subscriber import MAX_EVENTS_BEHIND


def submit(desk: Desk, count: int, **more: Any) -> list[str]:
    return [desk.accepted(create(limit(str(number + 1)), **more))["intent_id"] for number in range(count)]


def test_an_intent_is_seen_as_its_action_and_its_order(client: Client, desk: Desk) -> None:
    follower = client.follow(desk.headers, desk.account["id"], (ORDER, ACTION)).subscribed()
    record = desk.accepted(create(limit()) | {"client_reference_id": "mine"})
    action, order = follower.take(2)
    assert (kind_of(action), kind_of(order)) == ("intent_action", "broker_order")
    assert (action.intent_action.seq, order.broker_order.command_seq) == (record["seq"], record["seq"])
    for body in (action.intent_action, order.broker_order):
        assert (body.intent_id, body.account_id) == (record["intent_id"], desk.account["id"])
        assert body.client_reference_id == "mine"
    assert action.cursor != order.cursor != ""


def test_positions_are_primed_and_live_goes_on_from_there(client: Client, desk: Desk) -> None:
    submit(desk, 3)
    follower = client.follow(desk.headers, desk.account["id"], (POSITION, ACTION)).subscribed()
    primed = follower.until(lambda event: kind_of(event) == "primed")[-1]
    assert primed.primed.event_type == POSITION
    again = client.follow(desk.headers, desk.account["id"], (ACTION,), resume_after=primed.cursor).subscribed()
    (intent_id,) = submit(desk, 1)
    for one in (follower, again):
        assert one.until(lambda event: kind_of(event) == "intent_action")[-1].intent_action.intent_id == intent_id


def test_only_the_kinds_that_were_asked_for_are_sent(client: Client, desk: Desk) -> None:
    followers = {
        kind: client.follow(desk.headers, desk.account["id"], kinds).subscribed()
        for kind, kinds in {"intent_action": (ACTION, TRADE, 0, 99), "broker_order": (ORDER, ORDER)}.items()
    }
    submit(desk, 5)
    for kind, follower in followers.items():
        assert [kind_of(event) for event in follower.take(5)] == [kind] * 5


def test_a_symbol_narrows_orders_of_a_named_account_in_any_case(client: Client, desk: Desk) -> None:
    narrow = client.follow(desk.headers, desk.account["id"], (ORDER, ACTION), instrument_key="msft").subscribed()
    wide = client.follow(desk.headers, "", (ORDER,), instrument_key="MSFT").subscribed()
    (apple,), (microsoft,) = submit(desk, 1, symbol="AAPL"), submit(desk, 1, symbol="MSFT")
    seen = [(kind_of(event), body_of(event).intent_id) for event in narrow.take(3)]
    assert seen == [("intent_action", apple), ("intent_action", microsoft), ("broker_order", microsoft)]
    assert [body_of(event).intent_id for event in wide.take_new(2)] == [apple, microsoft]


def test_the_class_of_an_instrument_is_ignored(client: Client, desk: Desk) -> None:
    follower = client.follow(desk.headers, desk.account["id"], (ACTION,), instrument_class="equity").subscribed()
    (intent_id,) = submit(desk, 1)
    assert [body_of(event).intent_id for event in follower.take(1)] == [intent_id]


def test_an_organization_is_followed_as_a_whole_but_for_the_other_environment(
    client: Client, world: World, opener: Opener
) -> None:
    desks = [opener(), opener(), opener(broker="remote", environment="live", caller="key_live")]
    everyone = client.follow(world.callers["admin"], "", (ACTION,)).subscribed()
    paper = client.follow(world.callers["key_all"], "", (ACTION,)).subscribed()
    live = client.follow(world.callers["key_live"], "", (ACTION,)).subscribed()
    intents = [submit(desk, 1)[0] for desk in desks]
    last = [submit(desk, 1)[0] for desk in (desks[2], desks[0])]

    def seen(follower: Any, end: str) -> list[str]:
        return [body_of(event).intent_id for event in follower.until(lambda e: body_of(e).intent_id == end)]

    assert seen(everyone, last[1]) == [*intents, *last]
    assert seen(paper, last[1]) == [intents[0], intents[1], last[1]]
    assert seen(live, last[0]) == [intents[2], last[0]]


def test_every_cursor_resumes_right_after_it_in_every_scope(client: Client, world: World, opener: Opener) -> None:
    desks = [opener(), opener()]
    whole = client.follow(world.callers["member"], "", (ORDER, ACTION)).subscribed()
    for number in range(10):
        submit(desks[number % 2], 1)
    events = whole.take(20)
    order = [event.cursor for event in events]
    assert len(set(order)) == 20
    for place in random.Random(7).sample(range(19), 6):
        resumed = client.follow(world.callers["member"], "", (ORDER, ACTION), resume_after=order[place]).subscribed()
        assert resumed.take(19 - place) == events[place + 1 :]
        mine = [e for e in events[place + 1 :] if body_of(e).account_id == desks[0].account["id"]]
        scoped = client.follow(
            desks[0].headers, desks[0].account["id"], (ORDER, ACTION), resume_after=order[place]
        ).subscribed()
        assert scoped.take(len(mine)) == mine


def test_a_resumed_stream_goes_on_with_what_happens_next(client: Client, desk: Desk) -> None:
    first = client.follow(desk.headers, desk.account["id"], (ACTION,)).subscribed()
    intents = submit(desk, 2)
    (seen, _) = first.take(2)
    first.cancel()
    intents += submit(desk, 2)
    resumed = client.follow(desk.headers, desk.account["id"], (ACTION,), resume_after=seen.cursor).subscribed()
    intents += submit(desk, 2)
    assert [body_of(event).intent_id for event in resumed.take(5)] == intents[1:]


def test_whoever_may_read_the_stream_can_and_nobody_else(client: Client, world: World, desk: Desk) -> None:
    expected = {
        "key_all": "",
        "admin": "",
        "member": "",
        "read_only": "",
        "service_all": "",
        "none": "UNAUTHENTICATED",
        "key_disabled": "UNAUTHENTICATED",
        "key_closed": "UNAUTHENTICATED",
        "no_org": "UNAUTHENTICATED",
        "closed_admin": "UNAUTHENTICATED",
        "both": "INVALID_ARGUMENT",
        "service_unnamed": "INVALID_ARGUMENT",
        "key_none": "PERMISSION_DENIED",
        "key_live": "PERMISSION_DENIED",
        "service_none": "PERMISSION_DENIED",
        "other_key": "NOT_FOUND",
        "other_admin": "NOT_FOUND",
        "internal_admin": "NOT_FOUND",
    }
    assert expected.keys() == world.callers.keys()
    for caller, status in expected.items():
        follower = client.follow(world.callers[caller], desk.account["id"])
        if status:
            assert (caller, follower.ended()[0]) == (caller, status)
        else:
            follower.subscribed().cancel()


@pytest.mark.parametrize("spelling", ["{}x", "{{{}}}", "urn:uuid:{}", "nobody", "'", "\x00"])
def test_an_account_that_is_not_there_is_not_found(client: Client, desk: Desk, spelling: str) -> None:
    for account in (spelling.format(desk.account["id"]), desk.account["id"].upper(), str(uuid4())):
        assert client.follow(desk.headers, account).ended()[0] == "NOT_FOUND"


def test_what_cannot_be_read_is_an_invalid_argument(client: Client, world: World, desk: Desk) -> None:
    account = desk.account["id"]
    for request in (
        subscribe(account, ()),
        subscribe(account, (0,)),
        subscribe(account, (5, 99, -1)),
        subscribe(account, order_delivery=3),
        subscribe(account, instrument_key="not a symbol"),
        subscribe(account, resume_after="x"),
        subscribe(account, resume_after="A" * 33),
        subscribe(account, resume_after="é"),
        subscribe(str(uuid4()), ()),
    ):
        assert client.send(desk.headers, request.SerializeToString()).ended()[0] == "INVALID_ARGUMENT"
        # It comes before whether one may, and after who one is.
        assert client.send(world.callers["key_none"], request.SerializeToString()).ended()[0] == "INVALID_ARGUMENT"
        assert client.send({}, request.SerializeToString()).ended()[0] == "UNAUTHENTICATED"
    for junk in (b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff"):
        assert client.send(desk.headers, junk).ended()[0] == "INVALID_ARGUMENT"


def test_a_request_that_is_too_large_exhausts_us(client: Client, desk: Desk) -> None:
    many = subscribe(desk.account["id"], ALL * 2_500)
    client.send(desk.headers, many.SerializeToString()).subscribed().cancel()
    for size in (64 * 1024, 5_000_000):
        request = subscribe(desk.account["id"], instrument_class="x" * size).SerializeToString()
        assert client.send(desk.headers, request).ended()[0] == "RESOURCE_EXHAUSTED"


def test_a_cursor_of_another_log_is_out_of_range(client: Client, desk: Desk) -> None:
    follower = client.follow(desk.headers, desk.account["id"], (ACTION,)).subscribed()
    submit(desk, 1)
    (event,) = follower.take(1)
    # The epoch comes first, the seq last.
    other = ("A" if event.cursor[0] != "A" else "B") + event.cursor[1:]
    ahead = event.cursor[:22] + "B" + event.cursor[23:]
    for cursor in (other, ahead):
        assert client.follow(desk.headers, desk.account["id"], resume_after=cursor).ended()[0] == "OUT_OF_RANGE"


def test_one_stream_more_than_a_hundred_is_refused_until_one_ends(client: Client, world: World) -> None:
    caller = world.callers["other_key"]
    followers = [client.follow(caller, "", (ACTION,)) for _ in range(100)]
    for follower in followers:
        follower.subscribed()
    assert client.follow(caller, "", (ACTION,)).ended()[0] == "RESOURCE_EXHAUSTED"
    client.follow(world.callers["other_admin"], "", (ACTION,)).subscribed()
    followers.pop().cancel()
    # The server hears of a cancelled call a moment later.
    eventually(lambda: client.follow(caller, "", ()).ended()[0] == "INVALID_ARGUMENT", LIMIT_SECONDS)


def test_unknown_methods_are_unimplemented(client: Client, desk: Desk) -> None:
    ended = client.send(desk.headers, b"", method="/trading.TradingService/Nothing").ended()
    assert ended[0] == "UNIMPLEMENTED"


def test_primed_orders_come_first_then_the_primed_mark_then_what_happens(client: Client, desk: Desk) -> None:
    intents = submit(desk, 3)
    follower = client.follow(desk.headers, desk.account["id"], (ORDER,), order_delivery=PRIMED).subscribed()
    *orders, primed = follower.until(lambda event: kind_of(event) == "primed")
    assert {event.broker_order.intent_id for event in orders} == set(intents)
    assert {event.cursor for event in orders} == {""}
    assert (primed.primed.event_type, bool(primed.cursor)) == (ORDER, True)
    (intent_id,) = submit(desk, 1)
    live = follower.until(lambda event: body_of(event).intent_id == intent_id)
    assert all(event.cursor for event in live)


def test_more_orders_than_a_reader_may_be_behind_are_primed_each_once(
    client: Client, desk: Desk, tables: Tables
) -> None:
    (intent_id,) = submit(desk, 1)
    tables.execute(
        """
        INSERT INTO orders
        SELECT (jsonb_populate_record(o, jsonb_build_object('order_id', gen_random_uuid(), 'create_seq', n))).*
        FROM orders o, generate_series(2, $2::bigint + 1) AS n WHERE o.order_id = $1::text::uuid
        """,
        intent_id,
        MAX_EVENTS_BEHIND,
    )
    try:
        follower = client.follow(desk.headers, desk.account["id"], (ORDER,), order_delivery=PRIMED).subscribed()
        events = follower.until(lambda event: kind_of(event) == "primed")
    finally:
        tables.execute("DELETE FROM orders WHERE account_id = $1::text::uuid AND create_seq > 1", desk.account["id"])
    ids = [event.broker_order.order_id for event in events if kind_of(event) == "broker_order"]
    assert len(ids) == len(set(ids)) == MAX_EVENTS_BEHIND + 1
