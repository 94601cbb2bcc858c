"""StreamEvents from outside: one connection whose subscriptions come, replace each other and go."""

from collections.abc import Iterator

import pytest

from tests.intents.http_client import TradingClient, create, limit
from tests.stream.client import ACTION, ORDER, POSITION, PRIMED, Client, Follower, body_of, kind_of
from tests.stream.conftest import OpenClient
from tests.stream.wire import Wire
from tests.tenants import Tenants


def intent(trading_client: TradingClient) -> str:
    return str(trading_client.accepted(create(limit()))["intent_id"])


def intents_of(follower: Follower, count: int) -> list[str]:
    return [body_of(event).intent_id for event in follower.take(count)]


@pytest.fixture
def wire(client: Client, tenants: Tenants) -> Iterator[Wire]:
    wire = Wire(client, tenants.callers["key_all"])
    yield wire
    wire.finish()
    wire.follower.cancel()


def test_subscriptions_come_and_go_on_one_connection(wire: Wire, open_client: OpenClient) -> None:
    one = open_client()
    other = open_client()
    wire.subscribe(one.account["id"])
    wire.expect_status("subscribed")
    first = intent(one)
    _ = intent(other)
    assert intents_of(wire.follower, 1) == [first]
    wire.subscribe(other.account["id"])
    wire.expect_status("subscribed")
    both = [intent(one), intent(other)]
    assert intents_of(wire.follower, 2) == both
    wire.unsubscribe(one.account["id"])
    wire.expect_status("unsubscribed")
    _ = intent(one)
    last = intent(other)
    assert intents_of(wire.follower, 1) == [last]


def test_a_second_subscribe_of_a_scope_replaces_the_first(
    wire: Wire, trading_client: TradingClient
) -> None:
    wire.subscribe(trading_client.account["id"], (ACTION,))
    wire.expect_status("subscribed")
    wire.subscribe(trading_client.account["id"], (ORDER, POSITION), order_delivery=PRIMED)
    wire.expect_status("subscribed")
    primed = wire.follower.take(2)
    assert [event.primed.event_type for event in primed] == [ORDER, POSITION]
    intent_id = intent(trading_client)
    (event,) = wire.follower.take(1)
    assert (kind_of(event), event.broker_order.intent_id) == ("broker_order", intent_id)


def test_nothing_is_missed_or_repeated_while_a_scope_is_replaced_again_and_again(
    wire: Wire, trading_client: TradingClient
) -> None:
    wire.subscribe(trading_client.account["id"])
    wire.expect_status("subscribed")
    sent = []
    for number in range(20):
        sent.append(intent(trading_client))
        wire.subscribe(trading_client.account["id"], (ACTION, ORDER) if number % 2 else (ACTION,))
        sent.append(intent(trading_client))
    seen = wire.follower.until(
        lambda event: kind_of(event) == "intent_action" and body_of(event).intent_id == sent[-1]
    )
    actions = [body_of(event).intent_id for event in seen if kind_of(event) == "intent_action"]
    assert actions == sent


def test_an_event_that_two_scopes_want_comes_once(
    wire: Wire, trading_client: TradingClient
) -> None:
    wire.subscribe(trading_client.account["id"])
    wire.expect_status("subscribed")
    wire.subscribe("", (ACTION, ORDER))
    wire.expect_status("subscribed")
    sent = [intent(trading_client) for _ in range(3)]
    seen = [(kind_of(event), body_of(event).intent_id) for event in wire.follower.take_new(6)]
    assert seen == [(kind, one) for one in sent for kind in ("intent_action", "broker_order")]
    wire.unsubscribe("")
    wire.expect_status("unsubscribed")
    last = intent(trading_client)
    assert intents_of(wire.follower, 1) == [last]


def test_a_resumed_scope_beside_a_live_one_gets_its_past(
    wire: Wire, open_client: OpenClient
) -> None:
    one = open_client()
    other = open_client()
    wire.subscribe(one.account["id"])
    wire.expect_status("subscribed")
    first = intent(one)
    (event,) = wire.follower.take(1)
    past = [intent(other) for _ in range(3)]
    wire.subscribe(other.account["id"], resume_after=event.cursor)
    wire.expect_status("subscribed")
    assert intents_of(wire.follower, 3) == past
    assert first not in past


def test_unsubscribing_what_is_not_subscribed_is_no_error(
    wire: Wire, trading_client: TradingClient
) -> None:
    for account in (trading_client.account["id"], "", "nobody"):
        wire.unsubscribe(account)
        wire.expect_status("unsubscribed")


@pytest.mark.parametrize(
    ("account", "kinds", "status"),
    [
        ("nobody", (ACTION,), "NOT_FOUND"),
        ("", (), "INVALID_ARGUMENT"),
        ("", (99,), "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_request_ends_the_call_with_its_status(
    wire: Wire, trading_client: TradingClient, account: str, kinds: tuple[int, ...], status: str
) -> None:
    wire.subscribe(trading_client.account["id"])
    wire.expect_status("subscribed")
    wire.subscribe(account, kinds)
    ended, received = wire.follower.ended()
    assert ended == status
    assert account or "EVENT_TYPE_BROKER_ORDER, EVENT_TYPE_BROKER_POSITION" in received, (
        "as the proto names them"
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "INVALID_ARGUMENT"),
        (b"\xff", "INVALID_ARGUMENT"),
        (b"x" * 70_000, "RESOURCE_EXHAUSTED"),
    ],
)
def test_what_is_no_request_ends_the_call(wire: Wire, data: bytes, status: str) -> None:
    wire.send(data)
    assert wire.follower.ended()[0] == status


def test_whoever_asks_for_nothing_more_keeps_what_was_asked_for(
    client: Client, tenants: Tenants, trading_client: TradingClient
) -> None:
    wire = Wire(client, tenants.callers["key_all"])
    wire.subscribe(trading_client.account["id"])
    wire.finish()
    wire.expect_status("subscribed")
    intent_id = intent(trading_client)
    assert intents_of(wire.follower, 1) == [intent_id]
    wire.follower.cancel()
    nothing = Wire(client, tenants.callers["key_all"])
    nothing.finish()
    assert nothing.follower.ended() == ("OK", "")


def test_a_stream_needs_a_credential_before_it_asks(client: Client) -> None:
    assert Wire(client, {}).follower.ended()[0] == "UNAUTHENTICATED"
