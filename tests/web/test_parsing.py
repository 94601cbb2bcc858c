"""Byte streams cut at every offset: what the connection takes, h11 takes with equal method, target,
headers and body."""

import asyncio
import itertools
import re

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property_sizes import examples
from tests.web.wire import SMALLEST, Taken, Wire
from trading_intents.web.server.connection import MAX_PIPELINED, MAX_PIPELINED_BYTES, PARSE_BYTES
from trading_intents.web.server.table import READ_BYTES


def take(pieces: list[bytes]) -> tuple[list[Taken], int]:
    """The requests that the connection takes, and how many answers say that something was none."""

    async def run() -> tuple[list[Taken], int]:
        wire = Wire()
        await wire.send(pieces)
        assert wire.transport.written.count(b"HTTP/1.1 ") == len(wire.app.taken) + wire.app.refused
        return wire.app.taken, wire.app.refused

    return asyncio.run(run())


def take_by_h11(data: bytes) -> list[Taken]:
    """The requests that h11 takes, each on a connection of its own.

    It is spared two things that RFC 9112 lets a server forgive: empty lines before a request (2.2),
    and more than one space between the words of the request line (3).
    """
    taken: list[Taken] = []
    while True:
        line, end, rest = data.lstrip(b"\r\n").partition(b"\r\n")
        peer = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        body = b""
        try:
            peer.receive_data(re.sub(rb" +", b" ", line) + end + rest)
            request = peer.next_event()
            if not isinstance(request, h11.Request):
                return taken
            while isinstance(event := peer.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                return taken
        except h11.RemoteProtocolError:
            return taken
        taken.append((request.method, request.target, list(request.headers), body))
        data = peer.trailing_data[0]


def comparable(taken: list[Taken]) -> list[Taken]:
    """h11 writes `chunked` in lower case, and takes spaces around a value away where we do when it
    is read."""

    def value_of(name: bytes, value: bytes) -> bytes:
        return (value.lower() if name == b"transfer-encoding" else value).strip(b" \t")

    return [
        (method, target, [(name, value_of(name, value)) for name, value in headers], body)
        for method, target, headers, body in taken
    ]


TOKENS = st.sampled_from(
    [b"a", b"x-api-key", b"Expect", b"Connection", b"Upgrade", b"Content-Length", b"Host", b"TE"]
)
VALUES = st.sampled_from(
    [
        b"",
        b"b",
        b" b \t",
        b"close",
        b"keep-alive",
        b"upgrade",
        b"h2c",
        b"3",
        b"0",
        b"+3",
        b"3, 3",
        b"chunked",
        b"\xff",
    ]
)
CODINGS = st.sampled_from(
    [b"chunked", b"Chunked ", b"gzip, chunked", b"identity", b"chunked, chunked", b""]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from([b"GET", b"POST"] * 4 + [b"HEAD", b"CONNECT", b"get", b"PRI"]))
    target = draw(
        st.sampled_from(
            [b"/", b"/a?b=c"] * 4 + [b"*", b"/%2F", b"http://x/y", b"x:1", b"/#f", b"/\xff", b""]
        )
    )
    version = draw(
        st.sampled_from(
            [b" HTTP/1.1"] * 12 + [b" HTTP/1.0", b" HTTP/2.0", b" HTTP/0.9", b"", b" http/1.1"]
        )
    )
    lines = [method + b" " + target + version]
    if draw(st.integers(0, 9)):
        lines.append(b"Host: x")
    lines += draw(
        st.lists(st.builds(lambda name, value: name + b":" + value, TOKENS, VALUES), max_size=3)
    )
    body = draw(st.binary(max_size=20))
    match draw(st.sampled_from(["none", "length", "chunked"])):
        case "length":
            lines.append(b"Content-Length: %d" % len(body))
        case "chunked":
            lines.append(b"Transfer-Encoding: " + draw(CODINGS))
            body = draw(chunked(body))
        case _:
            body = b""
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    data = b""
    while body:
        size = draw(st.integers(1, len(body)))
        extension = draw(st.sampled_from([b"", b";a", b";a=b", b';a="b c"', b" ;a"]))
        data += b"%x" % size + extension + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    trailers = draw(
        st.lists(st.sampled_from([b"a: b", b"x-api-key: stolen", b"content-length: 9"]), max_size=2)
    )
    return data + b"0\r\n" + b"".join(line + b"\r\n" for line in trailers) + b"\r\n"


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Requests one after the other, with some bytes lost, doubled or replaced."""
    data = b"".join(draw(st.lists(requests(), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        other = draw(
            st.sampled_from(
                [b"", b" ", b"\r\n", b"\n", b"\r", b"\0", b"\t", b":", b"0", b"\xe9", data[at:]]
            )
        )
        data = data[:at] + other + data[at + draw(st.integers(0, 2)) :]
    return data


def cut(data: bytes, offsets: list[int]) -> list[bytes]:
    bounds = [0, *sorted(offset % (len(data) + 1) for offset in offsets), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@settings(max_examples=examples(80))
@example(HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", [])
@example(HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc", [])
@example(
    HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", []
)
@example(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", [])
@example(
    HEAD
    + b"a: b \t\r\ntransfer-encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\nx-api-key: y\r\n\r\n"
    + HEAD
    + b"\r\n",
    [],
)
@given(streams(), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_what_we_take_h11_takes_as_well_wherever_it_is_cut(data: bytes, offsets: list[int]) -> None:
    assert_h11_agrees(data, offsets)


@pytest.mark.chaos
@settings(max_examples=2_000)
@given(streams(), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_what_we_take_of_many_streams_h11_takes_as_well(data: bytes, offsets: list[int]) -> None:
    assert_h11_agrees(data, offsets)


def assert_h11_agrees(data: bytes, offsets: list[int]) -> None:
    taken, refused = take([data])
    assert refused <= 1
    theirs = comparable(take_by_h11(data))
    assert comparable(taken) == theirs[: len(taken)]
    assert take(cut(data, offsets)) == (taken, refused)
    assert take([bytes([byte]) for byte in data]) == (taken, refused)


@settings(max_examples=examples(150))
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_bytes_are_taken_by_h11_or_by_nobody(pieces: list[bytes]) -> None:
    taken, _ = take(pieces)
    assert comparable(taken) == comparable(take_by_h11(b"".join(pieces)))[: len(taken)]


@pytest.mark.parametrize("count", [1, MAX_PIPELINED, 1000])
def test_every_pipelined_request_is_taken(count: int) -> None:
    data = b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % n for n in range(count))
    taken, refused = take(
        [data[start : start + READ_BYTES] for start in range(0, len(data), READ_BYTES)]
    )
    assert ([target for _, target, _, _ in taken], refused) == (
        [b"/%d" % n for n in range(count)],
        0,
    )


async def test_only_so_many_requests_wait_and_nothing_more_is_read() -> None:
    wire = Wire()
    wire.receive((SMALLEST * READ_BYTES)[:READ_BYTES])
    assert not wire.transport.reads
    assert len(wire.connection._waiting) <= MAX_PIPELINED + PARSE_BYTES // len(SMALLEST) + 1
    await wire.send([])
    assert len(wire.app.taken) == READ_BYTES // len(SMALLEST)


async def test_nothing_is_answered_or_read_while_answers_are_not_read() -> None:
    wire = Wire()
    wire.receive(SMALLEST * 40)
    wire.connection.pause_writing()
    await asyncio.sleep(0)  # one was being answered
    written = wire.transport.written
    for _ in range(100):
        await asyncio.sleep(0)
    assert (wire.transport.written, wire.transport.reads) == (written, False)
    wire.connection.resume_writing()
    await wire.send([])
    assert len(wire.app.taken) == 40


async def test_only_so_many_bytes_wait() -> None:
    wire = Wire()
    large = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + b"x" * 60_000
    data = SMALLEST + SMALLEST + large * 8
    sent = 0
    while wire.transport.reads:
        wire.receive(data[sent : sent + PARSE_BYTES])
        sent += PARSE_BYTES
    assert sent <= MAX_PIPELINED_BYTES + 2 * PARSE_BYTES
    await wire.send(
        [data[start : start + READ_BYTES] for start in range(sent, len(data), READ_BYTES)]
    )
    assert [len(body or b"") for _, _, _, body in wire.app.taken] == [0, 0, *[60_000] * 8]
