"""GET /v1/accounts/{account_id}/events from outside: the gRPC stream's events as text, resumed,
refused and ended."""

import time

import pytest
from google.protobuf import json_format

from tests.intents.http_client import TradingClient, create, limit
from tests.stream.client import ACTION, Client, kind_of, messages
from tests.stream.sse_reader import LIMIT_SECONDS, ReceivedEvent, following, new_caller
from tests.tenants import Tenants
from tests.waiting import eventually

END_SECONDS = 5.0
REFERENCE = 'a "quoted" é, a back\\slash'


def test_the_head_says_what_follows(tenants: Tenants, trading_client: TradingClient) -> None:
    with following(tenants, trading_client.headers, trading_client.account["id"]) as reader:
        head = reader.answer.headers
        assert (head["content-type"], head["cache-control"]) == ("text/event-stream", "no-store")
        assert "content-length" not in head
        assert head["x-request-id"]
        status, primed = reader.take(2)
    assert status == ReceivedEvent("status", "", {"status": {"message": "subscribed"}})
    assert (primed.kind, primed.data["primed"]) == (
        "primed",
        {"event_type": "EVENT_TYPE_BROKER_POSITION"},
    )
    assert primed.id == primed.data["cursor"] != ""


def test_events_are_those_of_grpc_as_json(
    tenants: Tenants, client: Client, trading_client: TradingClient
) -> None:
    event_of = messages()["TradingEvent"]
    with following(tenants, trading_client.headers, trading_client.account["id"]) as reader:
        primed = reader.until("primed")[-1]
        for number in range(3):
            trading_client.accepted(
                create(limit(str(number + 1))) | {"client_reference_id": REFERENCE}
            )
        received = reader.take(6)
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], resume_after=primed.id
    ).subscribed()
    events = follower.take(6)
    assert [json_format.ParseDict(one.data, event_of()) for one in received] == events
    assert [(one.kind, one.id) for one in received] == [
        (kind_of(event), event.cursor) for event in events
    ]
    action = next(one.data["intent_action"] for one in received if one.kind == "intent_action")
    assert action["action_type"] == "INTENT_ACTION_TYPE_CREATE"
    assert action["client_reference_id"] == REFERENCE
    assert len(action["created_at"]) == len("2026-01-05T15:00:00.000000Z")


def test_the_last_event_id_resumes_right_after_it(
    tenants: Tenants, client: Client, trading_client: TradingClient
) -> None:
    with following(tenants, trading_client.headers, trading_client.account["id"]) as reader:
        intents = [trading_client.accepted(create(limit()))["intent_id"] for _ in range(3)]
        reader.until("intent_action")
        seen = reader.take(3)
    follower = client.follow(
        trading_client.headers, trading_client.account["id"], resume_after=seen[0].id
    ).subscribed()
    expected = [event.cursor for event in follower.take(4)]
    with following(
        tenants, trading_client.headers, trading_client.account["id"], seen[0].id
    ) as again:
        status, *received = again.take(5)
        assert (status.kind, [one.id for one in received]) == ("status", expected)
        last = trading_client.accepted(create(limit()))["intent_id"]
        while received[-1].data.get("intent_action", {}).get("intent_id") != last:
            received += again.take(1)
    assert last not in intents


@pytest.mark.parametrize("cursor", ["x", "A" * 31, "A" * 33, "é"])
def test_what_is_no_cursor_is_refused(
    tenants: Tenants, trading_client: TradingClient, cursor: str
) -> None:
    headers = [
        (name.encode(), value.encode())
        for name, value in (trading_client.headers | {"last-event-id": cursor}).items()
    ]
    answer = tenants.client.get(
        f"/v1/accounts/{trading_client.account['id']}/events", headers=headers
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_a_cursor_of_another_log_has_expired(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    headers = trading_client.headers | {"last-event-id": "A" * 32}
    answer = tenants.client.get(
        f"/v1/accounts/{trading_client.account['id']}/events", headers=headers
    )
    assert (answer.status_code, answer.json()["code"]) == (410, "cursor_expired")


def test_callers_are_refused_as_everywhere(tenants: Tenants, trading_client: TradingClient) -> None:
    expected = {
        "none": 401,
        "key_disabled": 401,
        "no_org": 401,
        "both": 400,
        "service_unnamed": 400,
        "key_none": 403,
    }
    expected |= {"service_none": 403, "key_live": 403, "other_key": 404, "other_admin": 404}
    for caller, status in expected.items():
        answer = tenants.client.get(
            f"/v1/accounts/{trading_client.account['id']}/events", headers=tenants.callers[caller]
        )
        assert (caller, answer.status_code) == (caller, status)
    for account in ("", "nobody", trading_client.account["id"].upper()):
        assert (
            tenants.client.get(
                f"/v1/accounts/{account}/events", headers=trading_client.headers
            ).status_code
            == 404
        )
    for caller in ("admin", "member", "read_only", "service_all"):
        with following(tenants, tenants.callers[caller], trading_client.account["id"]) as reader:
            assert reader.take(1)[0].kind == "status"


def test_a_head_has_no_body_and_leaves_no_stream(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    await_no_subscribers(tenants)
    answer = tenants.client.head(
        f"/v1/accounts/{trading_client.account['id']}/events", headers=trading_client.headers
    )
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (
        200,
        "text/event-stream",
        b"",
    )
    assert subscribers(tenants) == 0


def await_no_subscribers(tenants: Tenants) -> None:
    """The platform hears a moment later that a stream of the test before was closed."""
    eventually(lambda: subscribers(tenants) == 0, LIMIT_SECONDS)


def subscribers(tenants: Tenants) -> int:
    lines = tenants.client.get("/metrics").text.splitlines()
    return sum(
        int(line.split()[-1].split(".")[0])
        for line in lines
        if line.startswith('ti_stream_subscribers{door="sse')
    )


def test_a_reader_that_goes_away_is_forgotten(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    await_no_subscribers(tenants)
    with following(tenants, trading_client.headers, trading_client.account["id"]) as reader:
        reader.take(1)
        eventually(lambda: subscribers(tenants) == 1, LIMIT_SECONDS)
    await_no_subscribers(tenants)


def test_one_stream_more_than_a_hundred_is_refused_whatever_the_door(
    tenants: Tenants, client: Client, trading_client: TradingClient
) -> None:
    caller, _ = new_caller(tenants)
    followers = [client.follow(caller, "", (ACTION,)).subscribed() for _ in range(99)]
    with following(tenants, caller, trading_client.account["id"]) as reader:
        reader.take(1)
        answer = tenants.client.get(
            f"/v1/accounts/{trading_client.account['id']}/events", headers=caller
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "limit_reached")
        assert client.follow(caller, "", (ACTION,)).ended()[0] == "RESOURCE_EXHAUSTED"
    assert len(followers) == 99


@pytest.mark.deadline
def test_a_disabled_key_ends_its_streams_and_they_say_why(
    tenants: Tenants, trading_client: TradingClient
) -> None:
    caller, key_id = new_caller(tenants)
    with following(tenants, caller, trading_client.account["id"]) as reader:
        reader.until("primed")
        since = time.monotonic()
        url = f"/v1/api-keys/{key_id}"
        assert (
            tenants.client.patch(
                url, json={"disabled": True}, headers=tenants.callers["admin"]
            ).status_code
            == 200
        )
        (last,) = reader.rest()
    assert time.monotonic() - since < END_SECONDS
    assert (last.kind, last.id, last.data) == (
        "error",
        "",
        {"error": {"message": "the API key does not verify"}},
    )
