"""GET /v1/accounts/{account_id}/events from outside: the gRPC stream's events as text, resumed, refused and ended."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from google.protobuf import json_format

from tests.intents.http_client import Desk, create, limit
from tests.stream.client import ACTION, Client, kind_of, messages
from tests.tenants import Headers, World
from tests.waiting import eventually

END_SECONDS = 5.0
LIMIT_SECONDS = 30.0
REFERENCE = 'a "quoted" é, a line\u2028separator'


@dataclass(frozen=True)
class Told:
    kind: str
    id: str
    data: Any


class Reader:
    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._events = self._read()

    def _read(self) -> Iterator[Told]:
        fields: dict[str, str] = {}
        for line in self.answer.iter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                assert name not in fields
                fields[name] = value
            elif fields:
                yield Told(fields.pop("event"), fields.pop("id", ""), json.loads(fields.pop("data")))
                assert not fields

    def take(self, count: int) -> list[Told]:
        return [next(self._events) for _ in range(count)]

    def until(self, kind: str) -> list[Told]:
        found = self.take(1)
        while found[-1].kind != kind:
            found += self.take(1)
        return found

    def rest(self) -> list[Told]:
        return list(self._events)


@contextmanager
def following(world: World, caller: Headers, account: str, last: str = "") -> Iterator[Reader]:
    headers = caller | ({"last-event-id": last} if last else {})
    url = f"/v1/accounts/{account}/events"
    with (
        httpx.Client(base_url=world.platform.url, timeout=LIMIT_SECONDS, verify=False) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        yield Reader(answer)


def test_the_head_says_what_follows(world: World, desk: Desk) -> None:
    with following(world, desk.headers, desk.account["id"]) as reader:
        head = reader.answer.headers
        assert (head["content-type"], head["cache-control"]) == ("text/event-stream", "no-store")
        assert "content-length" not in head
        assert head["x-request-id"]
        status, primed = reader.take(2)
    assert status == Told("status", "", {"status": {"message": "subscribed"}})
    assert (primed.kind, primed.data["primed"]) == ("primed", {"event_type": "EVENT_TYPE_BROKER_POSITION"})
    assert primed.id == primed.data["cursor"] != ""


def test_events_are_those_of_grpc_as_json(world: World, client: Client, desk: Desk) -> None:
    event_of = messages()["TradingEvent"]
    with following(world, desk.headers, desk.account["id"]) as reader:
        primed = reader.until("primed")[-1]
        for number in range(3):
            desk.accepted(create(limit(str(number + 1))) | {"client_reference_id": REFERENCE})
        told = reader.take(6)
    follower = client.follow(desk.headers, desk.account["id"], resume_after=primed.id).subscribed()
    events = follower.take(6)
    assert [json_format.ParseDict(one.data, event_of()) for one in told] == events
    assert [(one.kind, one.id) for one in told] == [(kind_of(event), event.cursor) for event in events]
    action = next(one.data["intent_action"] for one in told if one.kind == "intent_action")
    assert action["action_type"] == "INTENT_ACTION_TYPE_CREATE"
    assert action["client_reference_id"] == REFERENCE
    assert len(action["created_at"]) == len("2026-01-05T15:00:00.000000Z")


def test_the_last_event_id_resumes_right_after_it(world: World, client: Client, desk: Desk) -> None:
    with following(world, desk.headers, desk.account["id"]) as reader:
        intents = [desk.accepted(create(limit()))["intent_id"] for _ in range(3)]
        reader.until("intent_action")
        seen = reader.take(3)
    follower = client.follow(desk.headers, desk.account["id"], resume_after=seen[0].id).subscribed()
    expected = [event.cursor for event in follower.take(4)]
    with following(world, desk.headers, desk.account["id"], seen[0].id) as again:
        status, *told = again.take(5)
        assert (status.kind, [one.id for one in told]) == ("status", expected)
        last = desk.accepted(create(limit()))["intent_id"]
        while told[-1].data.get("intent_action", {}).get("intent_id") != last:
            told += again.take(1)
    assert last not in intents


@pytest.mark.parametrize("cursor", ["x", "A" * 31, "A" * 33, "é"])
def test_what_is_no_cursor_is_refused(world: World, desk: Desk, cursor: str) -> None:
    headers = [(name.encode(), value.encode()) for name, value in (desk.headers | {"last-event-id": cursor}).items()]
    answer = world.client.get(f"/v1/accounts/{desk.account['id']}/events", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_a_cursor_of_another_log_has_expired(world: World, desk: Desk) -> None:
    headers = desk.headers | {"last-event-id": "A" * 32}
    answer = world.client.get(f"/v1/accounts/{desk.account['id']}/events", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (410, "cursor_expired")


def test_callers_are_refused_as_everywhere(world: World, desk: Desk) -> None:
    expected = {"none": 401, "key_disabled": 401, "no_org": 401, "both": 400, "service_unnamed": 400, "key_none": 403}
    expected |= {"service_none": 403, "key_live": 403, "other_key": 404, "other_admin": 404}
    for caller, status in expected.items():
        answer = world.client.get(f"/v1/accounts/{desk.account['id']}/events", headers=world.callers[caller])
        assert (caller, answer.status_code) == (caller, status)
    for account in ("", "nobody", desk.account["id"].upper()):
        assert world.client.get(f"/v1/accounts/{account}/events", headers=desk.headers).status_code == 404
    for caller in ("admin", "member", "read_only", "service_all"):
        with following(world, world.callers[caller], desk.account["id"]) as reader:
            assert reader.take(1)[0].kind == "status"


def test_a_head_has_no_body_and_leaves_no_stream(world: World, desk: Desk) -> None:
    before = subscribers(world)
    answer = world.client.head(f"/v1/accounts/{desk.account['id']}/events", headers=desk.headers)
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "text/event-stream", b"")
    assert subscribers(world) == before


def subscribers(world: World) -> int:
    lines = world.client.get("/metrics").text.splitlines()
    return sum(
        int(line.split()[-1].split(".")[0]) for line in lines if line.startswith('ti_stream_subscribers{door="sse')
    )


def test_a_reader_that_goes_away_is_forgotten(world: World, desk: Desk) -> None:
    before = subscribers(world)
    with following(world, desk.headers, desk.account["id"]) as reader:
        reader.take(1)
        eventually(lambda: subscribers(world) == before + 1, LIMIT_SECONDS)
    eventually(lambda: subscribers(world) == before, LIMIT_SECONDS)


def test_one_stream_more_than_a_hundred_is_refused_whatever_the_door(world: World, client: Client, desk: Desk) -> None:
    caller = world.callers["member"]
    followers = [client.follow(caller, "", (ACTION,)).subscribed() for _ in range(99)]
    with following(world, caller, desk.account["id"]) as reader:
        reader.take(1)
        answer = world.client.get(f"/v1/accounts/{desk.account['id']}/events", headers=caller)
        assert (answer.status_code, answer.json()["code"]) == (409, "limit_reached")
        assert client.follow(caller, "", (ACTION,)).ended()[0] == "RESOURCE_EXHAUSTED"
    assert len(followers) == 99


def test_a_disabled_key_ends_its_streams_and_they_say_why(world: World, desk: Desk) -> None:
    body = {"name": "going", "environment": "paper", "permissions": ["stream:read"]}
    made = world.client.post("/v1/api-keys", json=body, headers=world.callers["admin"]).json()
    with following(world, {"x-api-key": made["api_key"]}, desk.account["id"]) as reader:
        reader.until("primed")
        since = time.monotonic()
        url = f"/v1/api-keys/{made['id']}"
        assert world.client.patch(url, json={"disabled": True}, headers=world.callers["admin"]).status_code == 200
        (last,) = reader.rest()
    assert time.monotonic() - since < END_SECONDS
    assert (last.kind, last.id, last.data) == ("error", "", {"error": {"message": "the API key does not verify"}})
