"""SubscribeEvents from outside: what happens is seen in its order, resumed, primed, and refused as
documented."""

import random
from typing import Any
from uuid import uuid4

import pytest

from tests.intents.http_client import Tables, TradingClient, create, limit
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
from tests.stream.conftest import OpenClient
from tests.stream.sse_reader import new_caller
from tests.tenants import Tenants
from tests.waiting import eventually
from trading_intents.stream.subscriber import MAX_EVENTS_BEHIND


def submit(trading_client: TradingClient, count: int, **more: Any) -> list[str]:
    return [
        trading_client.accepted(create(limit(str(number + 1)), **more))["intent_id"]
        for number in range(count)
    ]


def test_an_intent_is_seen_as_its_action_and_its_order(
    client: Client, trading_client: TradingClient
) -> None:
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (ORDER, ACTION)
    ).subscribed()
    record = trading_client.accepted(create(limit()) | {"client_reference_id": "mine"})
    action, order = follower.take(2)
    assert (kind_of(action), kind_of(order)) == ("intent_action", "broker_order")
    assert (action.intent_action.seq, order.broker_order.command_seq) == (
        record["seq"],
        record["seq"],
    )
    for body in (action.intent_action, order.broker_order):
        assert (body.intent_id, body.account_id) == (
            record["intent_id"],
            trading_client.account["id"],
        )
        assert body.client_reference_id == "mine"
    assert action.cursor != order.cursor != ""


def test_positions_are_primed_and_live_goes_on_from_there(
    client: Client, trading_client: TradingClient
) -> None:
    submit(trading_client, 3)
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (POSITION, ACTION)
    ).subscribed()
    primed = follower.until(lambda event: kind_of(event) == "primed")[-1]
    assert primed.primed.event_type == POSITION
    again = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,), resume_after=primed.cursor
    ).subscribed()
    (intent_id,) = submit(trading_client, 1)
    for one in (follower, again):
        assert (
            one.until(lambda event: kind_of(event) == "intent_action")[-1].intent_action.intent_id
            == intent_id
        )


def test_only_the_kinds_that_were_asked_for_are_sent(
    client: Client, trading_client: TradingClient
) -> None:
    followers = {
        kind: client.follow(
            trading_client.headers, trading_client.account["id"], kinds
        ).subscribed()
        for kind, kinds in {
            "intent_action": (ACTION, TRADE, 0, 99),
            "broker_order": (ORDER, ORDER),
        }.items()
    }
    submit(trading_client, 5)
    for kind, follower in followers.items():
        assert [kind_of(event) for event in follower.take(5)] == [kind] * 5


def test_a_symbol_narrows_orders_of_a_named_account_in_any_case(
    client: Client, trading_client: TradingClient
) -> None:
    narrow = client.follow(
        trading_client.headers, trading_client.account["id"], (ORDER, ACTION), instrument_key="msft"
    ).subscribed()
    wide = client.follow(trading_client.headers, "", (ORDER,), instrument_key="MSFT").subscribed()
    (apple,) = submit(trading_client, 1, symbol="AAPL")
    (microsoft,) = submit(trading_client, 1, symbol="MSFT")
    seen = [(kind_of(event), body_of(event).intent_id) for event in narrow.take(3)]
    assert seen == [
        ("intent_action", apple),
        ("intent_action", microsoft),
        ("broker_order", microsoft),
    ]
    assert [body_of(event).intent_id for event in wide.take_new(2)] == [apple, microsoft]


def test_the_class_of_an_instrument_is_ignored(
    client: Client, trading_client: TradingClient
) -> None:
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,), instrument_class="equity"
    ).subscribed()
    (intent_id,) = submit(trading_client, 1)
    assert [body_of(event).intent_id for event in follower.take(1)] == [intent_id]


def test_an_organization_is_followed_as_a_whole_but_for_the_other_environment(
    client: Client, tenants: Tenants, open_client: OpenClient
) -> None:
    clients = [
        open_client(),
        open_client(),
        open_client(broker="remote", environment="live", caller="key_live"),
    ]
    everyone = client.follow(tenants.callers["admin"], "", (ACTION,)).subscribed()
    paper = client.follow(tenants.callers["key_all"], "", (ACTION,)).subscribed()
    live = client.follow(tenants.callers["key_live"], "", (ACTION,)).subscribed()
    intents = [submit(trading_client, 1)[0] for trading_client in clients]
    last = [submit(trading_client, 1)[0] for trading_client in (clients[2], clients[0])]

    def seen(follower: Any, end: str) -> list[str]:
        return [
            body_of(event).intent_id
            for event in follower.until(lambda e: body_of(e).intent_id == end)
        ]

    assert seen(everyone, last[1]) == [*intents, *last]
    assert seen(paper, last[1]) == [intents[0], intents[1], last[1]]
    assert seen(live, last[0]) == [intents[2], last[0]]


def test_every_cursor_resumes_right_after_it_in_every_scope(
    client: Client, tenants: Tenants, open_client: OpenClient
) -> None:
    clients = [open_client(), open_client()]
    whole = client.follow(tenants.callers["member"], "", (ORDER, ACTION)).subscribed()
    for number in range(10):
        submit(clients[number % 2], 1)
    events = whole.take(20)
    order = [event.cursor for event in events]
    assert len(set(order)) == 20
    for index in random.Random(7).sample(range(19), 6):
        resumed = client.follow(
            tenants.callers["member"], "", (ORDER, ACTION), resume_after=order[index]
        ).subscribed()
        assert resumed.take(19 - index) == events[index + 1 :]
        mine = [e for e in events[index + 1 :] if body_of(e).account_id == clients[0].account["id"]]
        scoped = client.follow(
            clients[0].headers, clients[0].account["id"], (ORDER, ACTION), resume_after=order[index]
        ).subscribed()
        assert scoped.take(len(mine)) == mine


def test_a_resumed_stream_goes_on_with_what_happens_next(
    client: Client, trading_client: TradingClient
) -> None:
    first = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,)
    ).subscribed()
    intents = submit(trading_client, 2)
    (seen, _) = first.take(2)
    first.cancel()
    intents += submit(trading_client, 2)
    resumed = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,), resume_after=seen.cursor
    ).subscribed()
    intents += submit(trading_client, 2)
    assert [body_of(event).intent_id for event in resumed.take(5)] == intents[1:]


def test_whoever_may_read_the_stream_can_and_nobody_else(
    client: Client, tenants: Tenants, trading_client: TradingClient
) -> None:
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
    assert expected.keys() == tenants.callers.keys()
    for caller, status in expected.items():
        follower = client.follow(tenants.callers[caller], trading_client.account["id"])
        if status:
            assert (caller, follower.ended()[0]) == (caller, status)
        else:
            follower.subscribed().cancel()


def test_another_spelling_of_a_token_is_refused(
    client: Client, tenants: Tenants, trading_client: TradingClient
) -> None:
    padded = {"authorization": tenants.callers["admin"]["authorization"] + "=="}
    assert client.follow(padded, trading_client.account["id"]).ended()[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("spelling", ["{}x", "{{{}}}", "urn:uuid:{}", "nobody", "'", "\x00"])
def test_an_account_that_is_not_there_is_not_found(
    client: Client, trading_client: TradingClient, spelling: str
) -> None:
    for account in (
        spelling.format(trading_client.account["id"]),
        trading_client.account["id"].upper(),
        str(uuid4()),
    ):
        assert client.follow(trading_client.headers, account).ended()[0] == "NOT_FOUND"


def test_what_cannot_be_read_is_an_invalid_argument(
    client: Client, tenants: Tenants, trading_client: TradingClient
) -> None:
    account = trading_client.account["id"]
    for request in (
        subscribe(account, ()),
        subscribe(account, (0,)),
        subscribe(account, (7, 99, -1)),
        subscribe(account, order_delivery=3),
        subscribe(account, instrument_key="not a symbol"),
        subscribe(account, resume_after="x"),
        subscribe(account, resume_after="A" * 33),
        subscribe(account, resume_after="é"),
        subscribe(str(uuid4()), ()),
    ):
        assert (
            client.send(trading_client.headers, request.SerializeToString()).ended()[0]
            == "INVALID_ARGUMENT"
        )
        # It comes before whether one may, and after who one is.
        assert (
            client.send(tenants.callers["key_none"], request.SerializeToString()).ended()[0]
            == "INVALID_ARGUMENT"
        )
        assert client.send({}, request.SerializeToString()).ended()[0] == "UNAUTHENTICATED"
    _, words = client.follow(trading_client.headers, account, resume_after="x").ended()
    assert words == "this is not a cursor of the stream; subscribe without it"
    for junk in (b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff"):
        assert client.send(trading_client.headers, junk).ended()[0] == "INVALID_ARGUMENT"


def test_a_request_that_is_too_large_exhausts_us(
    client: Client, trading_client: TradingClient
) -> None:
    many = subscribe(trading_client.account["id"], ALL * 2_500)
    client.send(trading_client.headers, many.SerializeToString()).subscribed().cancel()
    for size in (64 * 1024, 5_000_000):
        request = subscribe(
            trading_client.account["id"], instrument_class="x" * size
        ).SerializeToString()
        assert client.send(trading_client.headers, request).ended()[0] == "RESOURCE_EXHAUSTED"


def test_a_cursor_of_another_log_is_out_of_range(
    client: Client, trading_client: TradingClient
) -> None:
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (ACTION,)
    ).subscribed()
    submit(trading_client, 1)
    (event,) = follower.take(1)
    # The epoch comes first, the seq last.
    other = ("A" if event.cursor[0] != "A" else "B") + event.cursor[1:]
    ahead = event.cursor[:22] + "B" + event.cursor[23:]
    for cursor in (other, ahead):
        assert (
            client.follow(
                trading_client.headers, trading_client.account["id"], resume_after=cursor
            ).ended()[0]
            == "OUT_OF_RANGE"
        )


def test_one_stream_more_than_a_hundred_is_refused_until_one_ends(
    client: Client, tenants: Tenants
) -> None:
    caller, _ = new_caller(tenants)
    followers = [client.follow(caller, "", (ACTION,)) for _ in range(100)]
    for follower in followers:
        follower.subscribed()
    assert client.follow(caller, "", (ACTION,)).ended()[0] == "RESOURCE_EXHAUSTED"
    client.follow(tenants.callers["admin"], "", (ACTION,)).subscribed()
    followers.pop().cancel()
    # The server hears of a cancelled call a moment later.
    eventually(
        lambda: client.follow(caller, "", ()).ended()[0] == "INVALID_ARGUMENT", LIMIT_SECONDS
    )


def test_unknown_methods_are_unimplemented(client: Client, trading_client: TradingClient) -> None:
    ended = client.send(
        trading_client.headers, b"", method="/trading.TradingService/Nothing"
    ).ended()
    assert ended[0] == "UNIMPLEMENTED"


def test_primed_orders_come_first_then_the_primed_mark_then_what_happens(
    client: Client, trading_client: TradingClient
) -> None:
    intents = submit(trading_client, 3)
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], (ORDER,), order_delivery=PRIMED
    ).subscribed()
    *orders, primed = follower.until(lambda event: kind_of(event) == "primed")
    assert {event.broker_order.intent_id for event in orders} == set(intents)
    assert {event.cursor for event in orders} == {""}
    assert (primed.primed.event_type, bool(primed.cursor)) == (ORDER, True)
    (intent_id,) = submit(trading_client, 1)
    live = follower.until(lambda event: body_of(event).intent_id == intent_id)
    assert all(event.cursor for event in live)


# All of them are more than a reader may be behind: that these do not end it, test_priming.py proves
# with fewer parts.
@pytest.mark.parametrize(
    "others", [1_500, pytest.param(MAX_EVENTS_BEHIND, marks=pytest.mark.chaos)]
)
def test_many_pages_of_orders_are_primed_each_order_once(
    client: Client, trading_client: TradingClient, tables: Tables, others: int
) -> None:
    (intent_id,) = submit(trading_client, 1)
    tables.execute(
        """
        INSERT INTO orders
        SELECT (jsonb_populate_record(o,
            jsonb_build_object('order_id', gen_random_uuid(), 'create_seq', n,
                'client_order_id', n))).*
        FROM orders o, generate_series(2, $2::bigint + 1) AS n WHERE o.order_id = $1::text::uuid
        """,
        intent_id,
        others,
    )
    try:
        follower = client.follow(
            trading_client.headers, trading_client.account["id"], (ORDER,), order_delivery=PRIMED
        ).subscribed()
        events = follower.until(lambda event: kind_of(event) == "primed")
    finally:
        tables.execute(
            "DELETE FROM orders WHERE account_id = $1::text::uuid AND create_seq > 1",
            trading_client.account["id"],
        )
    ids = [event.broker_order.order_id for event in events if kind_of(event) == "broker_order"]
    assert len(ids) == len(set(ids)) == others + 1
