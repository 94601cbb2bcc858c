"""Hostile bodies: whatever is sent, the answer is 4xx, comes soon, names the field, and nothing is
written."""

import copy
import gzip
import itertools
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.intents.conftest import OpenClient
from tests.intents.http_client import (
    Body,
    Tables,
    TradingClient,
    cancel,
    create,
    dumps,
    limit,
    market,
    replace,
    stop,
    stop_limit,
)

# Generous to a busy machine; what this guards against runs for seconds or minutes.
ANSWER_SECONDS = 1.0
JSON = {"content-type": "application/json"}

# fmt: off
NO_AMOUNT: tuple[Any, ...] = (
    "1e5", "1E5", "1e999", "+1", "-1", "-0", "01", "00", ".5", "1.", "1_0", "1,000", " 1", "1 ", "1\n", "\n1", "1\t",
    "0", "0.0", "0.000000000000000000", "1" * 19, f"0.{'0' * 18}1", "0x10", "0b1", "1/2", "\u0661", "\uff11", "1\u0660",
    "½", "NaN", "nan", "sNaN", "Infinity", "-Infinity", "inf", "null", "", " ", "\x00", "1\x00", "ten", "9" * 1_000,
    "1e" + "9" * 60, 10, 1.5, 0, -1, 1e308, True, False, None, [], ["1"], {}, {"quantity": "1"}, "1" + "0" * 60_000,
    "'; DROP TABLE actions", "$1", "--1", "1;1", "1'", "\u202e1", "\ufeff1", "1e1000000",
)
NO_TEXT: tuple[Any, ...] = (
    "", " ", "\x00", "A\x00", "\n", "x" * 33, "x" * 60_000, "é", "\uff21", 1, 1.5, True, None, [], ["A"], {}, {"a": 1},
)
# fmt: on
NO_ENUM = (*NO_TEXT, "buy", "Buy", "BUY ", " BUY", "UNSPECIFIED", "0", "day", "smart")
NO_ID = (
    *NO_TEXT,
    "{u}",
    "nonsense",
    "' OR 1=1 --",
    "00000000-0000-0000-0000-00000000000G",
    "../../x",
)
NO_OBJECT: tuple[Any, ...] = ("", "x", 1, 1.5, True, None, [], [{}], {}, {"x": {}})
AMOUNTS = ("quantity", "limit_price", "stop_price")
KIND_AMOUNTS = {
    "Market": AMOUNTS[:1],
    "Limit": AMOUNTS[:2],
    "Stop": AMOUNTS[::2],
    "StopLimit": AMOUNTS,
}
# fmt: off
FIELDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *((f"/command/payload/spec/{kind}/{name}", NO_AMOUNT) for kind, names in KIND_AMOUNTS.items() for name in names),
    *((f"/command/payload/spec/{kind}/time_in_force", tuple(v for v in NO_ENUM if v is not None))
      for kind in ("Market", "Limit", "Stop", "StopLimit")),
    *((f"/command/payload/spec/{kind}", NO_OBJECT) for kind in ("Market", "Limit", "Stop", "StopLimit")),
    ("/command/payload/symbol", NO_TEXT),
    ("/command/payload/order_side", NO_ENUM),
    ("/command/payload/route_strategy", tuple(v for v in NO_ENUM if v is not None)),
    ("/command/payload/spec", NO_OBJECT),
    ("/command/payload", NO_OBJECT),
    ("/command/type", NO_ENUM),
    ("/command", NO_OBJECT),
    ("/client_reference_id", ("x" * 65, "x" * 60_000, "\x00", "a\nb", "\x1b[2J", "\x7f", 1, 1.5, True, [], {})),
    ("/command/payload/ref_intent_id", NO_ID),
)
# fmt: on
BODIES = {"Market": market(), "Limit": limit(), "Stop": stop(), "StopLimit": stop_limit()}


def body_for(pointer: str) -> Body:
    """One that holds but for the field, which it has."""
    if pointer.endswith("ref_intent_id"):
        return replace(str(uuid.uuid4()), limit())
    kind = next(
        (kind for kind in BODIES if f"/{kind}" in pointer + "/" and f"/{kind}/" in pointer + "/"),
        "Market",
    )
    return copy.deepcopy(create(BODIES[kind]))


def put(body: Body, pointer: str, value: Any) -> Body:
    *way, last = pointer.removeprefix("/").split("/")
    parent: Any = body
    for step in way:
        parent = parent[step]
    parent[last] = value
    return body


@pytest.fixture(scope="module")
def hostile(open_client: OpenClient) -> TradingClient:
    return open_client()


@pytest.fixture(autouse=True)
def nothing_written(tables: Tables, hostile: TradingClient) -> Iterator[None]:
    before = tables.counts()
    yield
    assert tables.counts() == before
    assert hostile.client.get("/readyz").status_code == 200


def answered(
    trading_client: TradingClient, content: bytes, headers: dict[str, str] | None = None
) -> httpx.Response:
    """An answer that is some 4xx, in time. What costs much does so each time; a busy machine may
    stand still once."""
    for is_last in (False, False, True):
        before = time.monotonic()
        answer = trading_client.client.post(
            trading_client.url,
            content=content,
            headers=trading_client.headers | JSON | (headers or {}),
        )
        took = time.monotonic() - before
        assert 400 <= answer.status_code < 500, (content[:200], answer.text)
        if took < ANSWER_SECONDS:
            break
        assert not is_last, (content[:200], took)
    assert answer.headers["content-type"] == "application/problem+json"
    return answer


@pytest.mark.parametrize(("pointer", "values"), FIELDS, ids=[pointer for pointer, _ in FIELDS])
def test_every_bad_value_of_a_field_is_refused_there(
    hostile: TradingClient, pointer: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        answer = answered(hostile, dumps(put(body_for(pointer), pointer, value)))
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), (
            value,
            answer.text,
        )
        (error,) = answer.json()["errors"]
        # Inside an object it is the first bad field in it, else the field itself.
        inside = error["pointer"].startswith(pointer) and (
            error["pointer"] == pointer or isinstance(value, dict)
        )
        assert inside, (value, error)
        assert error["detail"]


def test_a_number_that_is_not_text_is_refused_with_the_reason(hostile: TradingClient) -> None:
    for pointer in (f"/command/payload/spec/Limit/{name}" for name in ("quantity", "limit_price")):
        for value in (10, 10.5, 0.1):
            answer = answered(hostile, dumps(put(body_for(pointer), pointer, value)))
            (error,) = answer.json()["errors"]
            assert error["pointer"] == pointer
            assert "decimal strings" in error["detail"]


@pytest.mark.parametrize(
    "pointer",
    [
        "",
        "/command",
        "/command/payload",
        "/command/payload/spec",
        "/command/payload/spec/Limit",
    ],
)
def test_a_field_that_nobody_asked_for_is_refused_at_every_level(
    hostile: TradingClient, pointer: str
) -> None:
    ours = (
        "organization_id",
        "seq",
        "version",
        "intent_id",
        "account_id",
        "hash",
        "created_at",
        "environment",
    )
    odd = (
        "x",
        "Quantity",
        "quantity ",
        "a/b",
        "a~b",
        "a.b",
        "$",
        "",
        "\n",
        "é",
        "__proto__",
        "limit_Price",
        "x" * 5_000,
    )
    for name in (*ours, *odd):
        answer = answered(
            hostile, dumps(put(create(limit()), f"{pointer}/{name.replace('/', '|')}", 1))
        )
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"].startswith(f"{pointer}/"), (name, error)


@pytest.mark.parametrize(
    "pointer",
    [
        "/command",
        "/command/type",
        "/command/payload",
        *(f"/command/payload/{n}" for n in ("symbol", "order_side", "spec")),
    ]
    + [f"/command/payload/spec/StopLimit/{name}" for name in AMOUNTS],
)
def test_a_field_that_is_missing_is_named(hostile: TradingClient, pointer: str) -> None:
    body = create(copy.deepcopy(stop_limit()))
    *way, last = pointer.removeprefix("/").split("/")
    parent: Any = body
    for step in way:
        parent = parent[step]
    del parent[last]
    answer = answered(hostile, dumps(body))
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_a_spec_has_exactly_one_key(hostile: TradingClient) -> None:
    pairs = [one | other for one, other in itertools.combinations(BODIES.values(), 2)]
    for spec in (
        *pairs,
        {},
        {"market": {"quantity": "1"}},
        {"LIMIT": {}},
        {"Stoplimit": {}},
        {"Stop_Limit": {}},
    ):
        for body in (create(), replace(str(uuid.uuid4()), market())):
            answer = answered(hostile, dumps(put(body, "/command/payload/spec", spec)))
            (error,) = answer.json()["errors"]
            assert error["pointer"].startswith("/command/payload/spec")


GOOD = json.dumps(create(limit()))
UNREADABLE = {
    "empty": b"",
    "space": b" ",
    "cut": GOOD[:-1].encode(),
    "more": GOOD.encode() + b"{}",
    "trailing comma": GOOD.replace('"BUY",', '"BUY",,').encode(),
    "comment": b"/* */" + GOOD.encode(),
    "single quotes": GOOD.replace('"', "'").encode(),
    "NaN": GOOD.replace('"10"', "NaN").encode(),
    "Infinity": GOOD.replace('"10"', "Infinity").encode(),
    "1e999": GOOD.replace('"10"', "1e999").encode(),
    "plus": GOOD.replace('"10"', "+1").encode(),
    "huge number": GOOD.replace('"10"', "9" * 60_000).encode(),
    "NUL": GOOD.replace("AAPL", "A\x00").encode(),
    "newline in text": GOOD.replace("AAPL", "A\n").encode(),
    "lone surrogate": GOOD.replace("AAPL", "\\ud800").encode(),
    "turned surrogates": GOOD.replace("AAPL", "\\udc00\\ud800").encode(),
    "surrogate bytes": GOOD.encode().replace(b"AAPL", b"\xed\xa0\x80"),
    "latin-1": GOOD.replace("AAPL", "é").encode("latin-1"),
    "UTF-16": GOOD.encode("utf-16"),
    "UTF-16 LE": GOOD.encode("utf-16-le"),
    "UTF-32": GOOD.encode("utf-32"),
    "BOM": b"\xef\xbb\xbf" + GOOD.encode(),
    "gzip unsaid": gzip.compress(GOOD.encode()),
    "deep lists": b"[" * 10_000 + b"]" * 10_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep unfinished": b"[" * 60_000,
    "deep in a field": GOOD.replace('"10"', "[" * 10_000 + "]" * 10_000).encode(),
    "seventeen deep": GOOD.replace('"10"', "[" * 13 + "]" * 13).encode(),
    "repeated at the top": GOOD[:-1].encode() + b', "command": 1}',
    "repeated payload": GOOD.replace('"payload":', '"payload": 1, "payload":').encode(),
    "repeated symbol": GOOD.replace('"symbol":', '"symbol": "MSFT", "symbol":').encode(),
    "repeated quantity": GOOD.replace('"quantity":', '"quantity": "1", "quantity":').encode(),
    "repeated, escaped": GOOD.replace('"quantity":', '"quan\\u0074ity": "1", "quantity":').encode(),
    "many quotes": b'"' * 60_000,
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_refused(hostile: TradingClient, name: str) -> None:
    answer = answered(hostile, UNREADABLE[name])
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")


def test_text_that_never_ends_is_refused_soon(hostile: TradingClient) -> None:
    for content in (b'"' + b'\\"' * 30_000, b'"' + b'\\"' * 30_000 + b"\\"):
        assert answered(hostile, content).status_code == 400


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b'"x"', b"null", b"true", b"{}", b'[{"command": 1}]']
)
def test_a_body_that_is_no_command_is_refused(hostile: TradingClient, body: bytes) -> None:
    assert answered(hostile, body).status_code == 422


def test_what_is_too_large_is_refused_unread(hostile: TradingClient) -> None:
    padded = GOOD.encode() + b" " * (64 * 1024)
    for content in (padded, b"[" * 70_000, b"x" * 10_000_000):
        assert answered(hostile, content).status_code == 413


def test_a_body_without_a_length_is_refused_once_it_is_too_large(hostile: TradingClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(70):
            yield b" " * 1024

    answer = hostile.client.post(hostile.url, content=pieces(), headers=hostile.headers | JSON)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json5"},
        {"content-type": ""},
        {"content-encoding": "gzip"},
        {"content-encoding": "br"},
    ],
)
def test_another_media_type_or_encoding_is_refused(
    hostile: TradingClient, headers: dict[str, str]
) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    for content in (GOOD.encode(), bomb):
        assert answered(hostile, content, headers).status_code == 415


def test_a_cancel_is_read_as_strictly(hostile: TradingClient) -> None:
    for value in NO_ID:
        answer = answered(hostile, dumps(cancel(value)))
        assert [error["pointer"] for error in answer.json()["errors"]] == [
            "/command/payload/ref_intent_id"
        ]
