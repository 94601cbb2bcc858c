"""Strict JSON: by table, by property, and over real HTTP."""

import gzip
import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.web.conftest import Order, Site
from trading_intents.errors import InvalidJson, ValidationFailed
from trading_intents.web.body import MAX_DEPTH, MAX_PARTS, MAX_VALUES, convert, read_json

URL = "/v1/places/here/orders"
ADA = {"x-name": "ada"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"nul",
        b"[" + b"[]," * (MAX_PARTS - 1) + b"[]]",
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\n"}',
        b'{"a":1}{"b":2}',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'[{"b":1,"c":[{"d":1,"d":2}]}]',
        b'{"a":1,"\\u0061":2}',
        b'{"a:":1,"a:":2}',
        rb'{"a":1,"a":2,"b":"\u003a"}',
        rb'{"a":"\u003A","a":2}',
        rb'{"\u003a":1,":":2}',
        b"[" * 17 + b"]" * 17,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000,
        b"1" * 5000,
        b'{"a":-' + b"9" * 65 + b"}",
        b'{"a":0.' + b"1" * 65 + b"}",
    ],
)
def test_what_cannot_be_read_is_invalid_json(text: bytes) -> None:
    with pytest.raises(InvalidJson):
        read_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"a":{"a":{"a":1}}}',
        b'{"a:b":"c:d","e\\":\\"":1}',
        b'[{"a":1},{"a":1}]',
        b'"{{{{{{{{{{{{{{{{{{{{{{"',
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b"[" + b"[]," * (MAX_PARTS - 2) + b"[]]",
        b'["' + b"[" * 2 * MAX_PARTS + b'"]',
        b"[" + b"1," * (MAX_VALUES - 1) + b"1]",
        b'["' + b"," * 2 * MAX_VALUES + b'"]',
        b"[" + b",".join([b"[]"] * 100) + b"]",
        b"[" + b"9" * 64 + b',"' + b"9" * 65 + b'"]',
        rb'{"\u003A":"\\u003a","\\\u003a":":"}',
        rb'{"\\":1,"\"":{"\\\"":"]}:"},"":[{},{"":{}}]}',
    ],
)
def test_what_can_be_read_is_read(text: bytes) -> None:
    assert read_json(text) == json.loads(text)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@given(_values)
def test_every_document_without_a_repeated_key_passes(value: Any) -> None:
    assume(_depth(value) <= MAX_DEPTH)
    assert read_json(json.dumps(value).encode()) == value


@given(st.dictionaries(st.text(), _values, min_size=1, max_size=4), st.data())
def test_every_repeated_key_is_found(value: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    written = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in value.items()]
    again = f"{json.dumps(key)}:{json.dumps(data.draw(_values))}"
    with pytest.raises(InvalidJson):
        read_json(("{" + ",".join([*written, again]) + "}").encode())


class Odd(msgspec.Struct, forbid_unknown_fields=True):
    a: dict[str, int] = {}


@pytest.mark.parametrize(
    ("tree", "kind", "pointer", "detail"),
    [
        ({}, Order, "/symbol", "is required"),
        ({"symbol": 1}, Order, "/symbol", "must be a string, found a number"),
        (
            {"symbol": "A", "legs": [{"quantity": "1"}, {}]},
            Order,
            "/legs/1/quantity",
            "is required",
        ),
        (
            {"symbol": "A", "legs": [{"quantity": "1", "x/~y": 1}]},
            Order,
            "/legs/0/x~1~0y",
            "unknown field; use quantity",
        ),
        ({"symbol": "A", "odd`one": 1}, Order, "/odd`one", "unknown field; use symbol or legs"),
        ([], Order, "", "must be an object, found a list"),
        ({"a": {"k": "v"}}, Odd, "/a/...", "must be a whole number, found a string"),
    ],
)
def test_a_broken_rule_names_its_field(tree: Any, kind: type, pointer: str, detail: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        convert(tree, kind)
    assert [(e.pointer, e.detail) for e in caught.value.errors] == [(pointer, detail)]


async def test_a_good_body_is_taken(site: Site) -> None:
    answer = await site.client.post(URL, json={"symbol": "AAPL"}, headers=ADA)
    assert (answer.status_code, answer.json()) == (201, {"symbol": "AAPL", "legs": []})


async def test_a_broken_rule_answers_422_with_the_pointer(site: Site) -> None:
    answer = await site.client.post(
        URL, json={"symbol": "AAPL", "legs": [{"quantity": 1}]}, headers=ADA
    )
    assert answer.status_code == 422
    assert answer.json()["code"] == "validation_failed"
    assert answer.json()["errors"] == [
        {"pointer": "/legs/0/quantity", "detail": "must be a string, found a number"}
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/x-www-form-urlencoded"},
        JSON | {"content-encoding": "gzip"},
    ],
)
async def test_another_media_type_is_415(site: Site, headers: dict[str, str]) -> None:
    answer = await site.client.post(URL, content=b'{"symbol":"A"}', headers=ADA | headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_a_gzip_bomb_is_refused_unopened(site: Site) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    answer = await site.client.post(
        URL, content=bomb, headers=ADA | JSON | {"content-encoding": "gzip"}
    )
    assert answer.status_code == 415


async def test_parameters_of_the_media_type_are_fine(site: Site) -> None:
    headers = ADA | {"content-type": "Application/JSON; charset=utf-8"}
    assert (
        await site.client.post(URL, content=b'{"symbol":"A"}', headers=headers)
    ).status_code == 201


async def test_64_kib_pass_and_one_byte_more_does_not(site: Site) -> None:
    body = b'{"symbol":"A"}'
    full = body + b" " * (65_536 - len(body))
    assert (await site.client.post(URL, content=full, headers=ADA | JSON)).status_code == 201
    site.clock.advance(2)  # it took most tokens of the limit
    answer = await site.client.post(URL, content=full + b" ", headers=ADA | JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_a_body_of_unknown_length_is_limited_too(site: Site) -> None:
    async def endless() -> Any:
        for _ in range(200):
            yield b" " * 1024

    answer = await site.client.post(URL, content=endless(), headers=ADA | JSON)
    assert answer.status_code == 413


async def test_checks_run_in_the_documented_order(site: Site) -> None:
    async def status(path: str, content: bytes, headers: dict[str, str]) -> int:
        return (await site.client.post(path, content=content, headers=headers)).status_code

    assert await status(URL, b"{", JSON) == 401
    assert await status(URL, b"{", JSON | {"x-name": "weak"}) == 400
    assert await status("/v1/places/nowhere/orders", b"{}", JSON | {"x-name": "weak"}) == 403
    assert await status("/v1/places/nowhere/orders", b"{}", JSON | ADA) == 404
    assert await status(URL, b"{}", JSON | ADA) == 422


async def test_a_header_that_is_sent_twice_is_refused(site: Site) -> None:
    answer = await site.client.post(
        URL, json={"symbol": "A"}, headers=[("x-name", "ada"), ("x-name", "bob")]
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("if_match", "status"),
    [
        (None, 200),
        ('"3"', 200),
        ("*", 200),
        ('"1", "3"', 200),
        ('"2"', 412),
        ('"03"', 412),
        ('W/"3"', 412),
        ('"abc"', 412),
        ("3", 400),
        ('"3', 400),
        ("", 400),
        (", ".join(['"3"'] * 32), 200),
        (", ".join(['"3"'] * 33), 400),
    ],
)
async def test_if_match_makes_a_write_conditional(
    site: Site, if_match: str | None, status: int
) -> None:
    headers = {} if if_match is None else {"if-match": if_match}
    answer = await site.client.put("/v1/orders", json={"symbol": "A"}, headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["etag"] == '"4"'
    if status == 412:
        assert answer.json()["code"] == "version_conflict"
