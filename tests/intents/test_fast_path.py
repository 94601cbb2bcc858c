"""The quick way of a submit and the handler's way give the same answer to the same request,
whatever is sent."""

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.intents.http_client import TradingClient, cancel, create, limit, replace
from tests.intents.ways import RECEIPT, REPLAYED, Ways, shown
from tests.tenants import Tenants
from trading_intents.config import Rate
from trading_intents.controls.model import Reason, Triggered
from trading_intents.errors import (
    ControlRejected,
    IntentClosed,
    InternalError,
    OutcomeUnknown,
    Unavailable,
)
from trading_intents.intents.writing.batch import SubmitOutcome
from trading_intents.web.limits import Bucket

Reply = tuple[int, dict[str, Any], set[str]]
NO_ID = "01a1ddf6-8899-707d-b118-000000000000"
BODIES: dict[str, bytes] = {
    "create": json.dumps(create()).encode(),
    "limit": json.dumps(create(limit()) | {"client_reference_id": 'é"\\'}).encode(),
    "cancel of nothing": json.dumps(cancel(NO_ID)).encode(),
    "replace of nothing": json.dumps(replace(NO_ID, limit())).encode(),
    "escaped": json.dumps(create()).replace("AAPL", "\\u0041APL").encode(),
    "repeated key": json.dumps(create()).replace('"symbol"', '"symbol": "A", "symbol"').encode(),
    "unknown field": json.dumps(create() | {"seq": 1}).encode(),
    "no JSON": b"{",
    "deep": b'{"command":{"payload":' + b"[" * 5000 + b"]" * 5000 + b',"type":"CREATE"}}',
    "no object": b"[]",
    "empty": b"",
    "number": json.dumps(create()).replace('"10"', "10").encode(),
    "zero": json.dumps(create()).replace('"10"', '"0.0"').encode(),
    "bad symbol": json.dumps(create(symbol="A B")).encode(),
    "not UTF-8": json.dumps(create()).replace("AAPL", "XX").encode().replace(b"XX", b"\xff\xfe"),
}
HEADERS: dict[str, dict[str, str]] = {
    "plain": {},
    "idempotent": {"idempotency-key": "once"},
    "bad idempotency": {"idempotency-key": "x" * 200},
    "own request id": {"x-request-id": "mine-1"},
    "form": {"content-type": "text/plain"},
    "encoded": {"content-encoding": "gzip"},
    "no key": {"x-api-key": ""},
    "unknown key": {"x-api-key": "tip_paper_" + "a" * 38},
    "two credentials": {"authorization": "Bearer x"},
}


@pytest.fixture
def connection(tenants: Tenants) -> http.client.HTTPConnection:
    parts = urlsplit(tenants.platform.url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)


def send(
    connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]
) -> Reply:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    names = {name.lower() for name, _ in answer.getheaders()} - {"connection"}
    return (
        answer.status,
        {k: v for k, v in said.items() if k not in ("intent_id", "seq", "request_id")},
        names,
    )


@pytest.mark.parametrize("named", HEADERS)
@pytest.mark.parametrize("body", BODIES)
def test_both_ways_give_the_same_answer(
    trading_client: TradingClient, connection: http.client.HTTPConnection, body: str, named: str
) -> None:
    """A request that asks for the connection's end goes the handler's way."""
    headers = {"content-type": "application/json", **trading_client.headers, **HEADERS[named]}
    send(connection, trading_client.url, b"{}", headers)  # the key is known from here on
    if "idempotency-key" in headers:
        headers["idempotency-key"] += f"-{body}"[:20]
    first = send(connection, trading_client.url, BODIES[body], headers)
    if "idempotency-key" in headers and first[0] == 202:
        headers["idempotency-key"] += "2"
    second = send(connection, trading_client.url, BODIES[body], headers | {"connection": "close"})
    assert first == second


def test_who_closes_its_half_after_a_submit_is_answered(
    trading_client: TradingClient, tenants: Tenants
) -> None:
    """Ten of them: whether the answer or the end of data comes first is chance."""
    parts = urlsplit(tenants.platform.url)
    for _ in range(10):
        with socket.create_connection((parts.hostname, parts.port or 80), timeout=10) as wire:
            wire.sendall(written(trading_client, BODIES["create"]))
            wire.shutdown(socket.SHUT_WR)
            answer = wire.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 202 ")
    assert len(trading_client.actions()) == 10


def written(trading_client: TradingClient, body: bytes, request_id: str = "mine") -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in trading_client.headers.items())
    return (
        f"POST {trading_client.url} HTTP/1.1\r\nhost: x\r\n{head}x-request-id: {request_id}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def test_answers_of_piped_requests_keep_their_order(
    trading_client: TradingClient, tenants: Tenants
) -> None:
    """Quick ones and others by turns on one connection, all sent before the first is answered."""
    parts = urlsplit(tenants.platform.url)
    bodies = [BODIES[name] for name in ("create", "zero", "limit", "no JSON", "create")]
    requests = b"".join(
        written(trading_client, body, f"n{number}") for number, body in enumerate(bodies)
    )
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=10) as wire:
        wire.sendall(requests)
        received = b""
        while received.count(b"x-request-id: n") < len(bodies):
            received += wire.recv(65536)
    starts = [received.index(f"x-request-id: n{number}".encode()) for number in range(len(bodies))]
    assert starts == sorted(starts)
    assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [
        b"202",
        b"422",
        b"202",
        b"400",
        b"202",
    ]


ONE = Rate(1, 1)
OUTCOMES: dict[str, SubmitOutcome | None] = {
    "recorded": RECEIPT,
    "replayed": REPLAYED,
    "no room": None,
    "controls": ControlRejected(
        [Triggered(Reason.MAX_ORDER_QUANTITY, {"Organization": "o"}, "too many")]
    ),
    "closed": IntentClosed(),
    "database away": Unavailable("away"),
    "unknown": OutcomeUnknown("lost"),
    "fault": InternalError("our fault"),
}
LIMITED: dict[str, tuple[dict[Bucket, Rate], dict[Bucket, Rate]]] = {
    "plenty": ({}, {}),
    "the principal's submits": ({Bucket.SUBMITS: ONE}, {}),
    "the organization's submits": ({}, {Bucket.SUBMITS: ONE}),
    "both submits": ({Bucket.SUBMITS: ONE}, {Bucket.SUBMITS: ONE}),
    "the principal's cancels": ({Bucket.CANCELS: ONE}, {}),
    "failures": ({Bucket.FAILURES: ONE}, {}),
}
KEYS = {"good": {}, "unknown": {"x-api-key": "nobody"}, "weak": {"x-api-key": "weak"}}


async def compare(
    outcome: SubmitOutcome | None,
    body: bytes | None,
    headers: dict[str, str],
    limited: tuple[dict[Bucket, Rate], dict[Bucket, Rate]] = ({}, {}),
) -> list[int]:
    """The same requests, all the quick way or all the handler's: answers, metrics and limits are
    the same."""
    fast = Ways(outcome, *limited)
    slow = Ways(outcome, *limited)
    statuses = []
    for asked in (headers, headers, {}):
        first = await fast.ask(body, asked, fast=True)
        second = await slow.ask(body, asked, fast=False)
        assert shown(first) == shown(second)
        statuses.append(first.status)
    assert fast.counted() == slow.counted()
    assert fast.left() == slow.left()
    assert fast.writer.taken == slow.writer.taken
    return statuses


@pytest.mark.parametrize("limited", LIMITED)
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_both_ways_answer_count_and_charge_alike_whatever_comes_of_it(
    outcome: str, limited: str
) -> None:
    for body in (BODIES["create"], BODIES["cancel of nothing"]):
        for headers in (*KEYS.values(), HEADERS["idempotent"]):
            await compare(OUTCOMES[outcome], body, headers, LIMITED[limited])


@pytest.mark.parametrize("named", HEADERS)
@pytest.mark.parametrize("body", [*BODIES, "too large"])
async def test_both_ways_count_and_charge_alike_whatever_is_sent(body: str, named: str) -> None:
    await compare(RECEIPT, BODIES.get(body), HEADERS[named])


async def test_a_refusal_is_counted_once_and_a_full_writer_costs_one_token() -> None:
    limited = Ways(RECEIPT, {Bucket.SUBMITS: ONE}, {})
    answers = [await limited.ask(BODIES["create"], {}, fast=True) for _ in range(3)]
    assert [answer.status for answer in answers] == [202, 429, 429]
    assert 'ti_rate_limited_total{bucket="submits"} 2.0' in limited.counted()
    full = Ways(None, {}, {})
    answer = await full.ask(BODIES["create"], {}, fast=True)
    left = b'"submits";r=99;t=1, "organization_submits";r=99;t=1'
    assert (answer.status, dict(answer.headers)[b"ratelimit"]) == (503, left)
    assert (limited.fast_answers, full.fast_answers) == (1, 0)
