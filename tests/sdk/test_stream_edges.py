"""The stream where it is rarely looked at: silence, expired tokens, newer servers, and what
`cursor` promises."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest

from tests.sdk.answers import CannedAnswers, problem
from trading_intents_client import (
    Account,
    ActionEvent,
    AsyncAccount,
    AsyncEventStream,
    AsyncTradingClient,
    BearerCredentials,
    Event,
    GapEvent,
    OrderEvent,
    PositionEvent,
    PrimedEvent,
    TradingClient,
    UnknownEvent,
    errors,
)
from trading_intents_client.stream import grpc_source
from trading_intents_client.stream.events import read_event
from trading_intents_client.types.enums import EventTransport

LIMIT_SECONDS = 60
ORDER: dict[str, Any] = {
    "order_id": "o",
    "intent_id": "o",
    "account_id": "a",
    "organization_id": "g",
    "symbol": "S",
    "quantity": "1",
    "order_state": "ORDER_STATE_OPEN",
    "order_status": "ORDER_STATUS_NEW",
}
PRIMED = b"\x42\x02\x08\x02\x7a\x02c1"  # primed { event_type: BROKER_POSITION }, cursor: "c1"
Handler = Callable[[bytes, Any], AsyncIterator[bytes]]


@asynccontextmanager
async def grpc_server(handler: Handler, **options: Any) -> AsyncIterator[AsyncTradingClient]:
    """A client of a gRPC server that answers as the handler does."""
    server = grpc.aio.server()
    method: Any = grpc.unary_stream_rpc_method_handler(handler)
    served = grpc.method_handlers_generic_handler(
        "trading.TradingService", {"SubscribeEvents": method}
    )
    server.add_generic_rpc_handlers((served,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    settings: dict[str, Any] = {"api_key": "k"} if "credentials" not in options else {}
    try:
        async with AsyncTradingClient(
            "http://127.0.0.1:9", grpc_target=f"127.0.0.1:{port}", **(settings | options)
        ) as client:
            yield client
    finally:
        await server.stop(None)


async def no_snapshot(cursor: str | None) -> GapEvent:
    raise AssertionError


async def test_a_grpc_stream_that_falls_silent_is_connected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keep-alive asks the next proxy only; heartbeats show that the platform is there."""
    monkeypatch.setattr(grpc_source, "STREAM_READ_SECONDS", 1.0)
    calls = 0

    async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal calls
        calls += 1
        yield PRIMED
        if calls == 1:
            await asyncio.Event().wait()
        yield b"\x7a\x02c2"

    async with grpc_server(serve) as client, asyncio.timeout(LIMIT_SECONDS):
        stream = client.account("a").events(over="grpc")
        reported = [(await anext(stream)).cursor for _ in range(3)]
        await stream.aclose()
    assert reported == ["c1", "c1", "c2"]


async def test_a_kind_that_only_a_newer_server_has_moves_the_cursor_over_grpc_too() -> None:
    asked: list[bytes] = []

    async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
        asked.append(request)
        yield PRIMED
        yield b"\x9a\x06\x00\x7a\x02c2"  # field 99, cursor: "c2"
        await context.abort(grpc.StatusCode.UNAVAILABLE, "restart")

    async with grpc_server(serve) as client, asyncio.timeout(LIMIT_SECONDS):
        stream = client.account("a").events(over="grpc")
        assert isinstance(await anext(stream), PrimedEvent)
        unknown = await anext(stream)
        assert isinstance(unknown, UnknownEvent)
        assert unknown.cursor == "c2"
        await anext(stream)
        await stream.aclose()
    assert b"c2" in asked[1]


async def test_a_consumer_that_is_cancelled_as_an_event_comes_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its timeout would be over otherwise, and it would go on without one."""
    received: asyncio.Queue[Any] = asyncio.Queue()

    class Channel:
        read = received.get

        async def __aenter__(self) -> "Channel":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        def unary_stream(self, *_: object, response_deserializer: Any, **__: object) -> Any:
            received.put_nowait(response_deserializer(PRIMED))
            return lambda *_, **__: self

    monkeypatch.setattr(grpc_source, "_channel", lambda *_: Channel())
    async with (
        AsyncTradingClient("http://127.0.0.1:9", api_key="k") as client,
        asyncio.timeout(LIMIT_SECONDS),
    ):
        stream = client.account("a").events(over="grpc")
        event = await anext(stream)
        assert isinstance(event, PrimedEvent)
        waiting = asyncio.ensure_future(anext(stream))
        for _ in range(5):  # until it waits
            await asyncio.sleep(0)
        received.put_nowait(grpc.aio.EOF)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=1)
        assert waiting.cancelled()
        await stream.aclose()


@pytest.mark.parametrize("over", ["http", "grpc"])
async def test_a_stream_outlives_its_token_by_the_next_one(over: EventTransport) -> None:
    """The server ends the stream of an expired token; the next token goes on after the cursor."""
    tokens = iter(["first", "second", "third"])
    used: list[str] = []

    async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
        used.append(dict(context.invocation_metadata())["authorization"])
        if used[-1].endswith("third"):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token")
        yield PRIMED
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")

    def answer(request: httpx.Request) -> httpx.Response:
        used.append(request.headers["authorization"])
        if used[-1].endswith("third"):
            return problem(401, "unauthorized")
        text = 'data: {"primed":{"event_type":"EVENT_TYPE_BROKER_POSITION"},"cursor":"c1"}\n\n'
        return httpx.Response(
            200, text=text + 'data: {"error":{"message":"the token has expired"}}\n\n'
        )

    credentials = BearerCredentials(lambda: next(tokens))
    opened = (
        grpc_server(serve, credentials=credentials)
        if over == "grpc"
        else CannedAnswers(answer).client(credentials=credentials)
    )
    async with opened as client, asyncio.timeout(LIMIT_SECONDS):
        stream = client.account("a").events(over=over)
        assert [(await anext(stream)).cursor for _ in range(2)] == ["c1", "c1"]
        with pytest.raises(errors.Unauthorized):
            await anext(stream)
    assert [token.split()[-1] for token in used] == ["first", "second", "third"]


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_kinds_that_there_are_not_are_refused_in_the_same_way(
    account: Account, over: EventTransport
) -> None:
    with pytest.raises(errors.ValidationFailed, match=r"(?i)weather"):
        next(account.events(kinds=["weather"], over=over))


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_one_kind_may_be_named_without_a_list(account: Account, over: EventTransport) -> None:
    with account.events(kinds="broker_trade", over=over) as stream:
        assert isinstance(next(stream), PrimedEvent)


async def test_a_stream_that_is_served_again_has_no_error_although_nothing_happens() -> None:
    served = asyncio.Event()

    async def connect(cursor: str | None) -> AsyncIterator[Any]:
        if cursor is None:
            yield Event(cursor="1")
            raise errors.AnswerLost("cut")
        yield read_event({"status": {"message": "subscribed"}})
        served.set()
        await asyncio.Event().wait()

    stream = AsyncEventStream(connect, no_snapshot, None, 0)
    await anext(stream)
    reading = asyncio.ensure_future(anext(stream))
    async with asyncio.timeout(LIMIT_SECONDS):
        await served.wait()
    assert (stream.is_connected, stream.last_error) == (True, None)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    await stream.aclose()


@pytest.mark.parametrize("over", ["http", "grpc"])
async def test_events_from_after_a_stream_was_entered_are_delivered(
    async_account: AsyncAccount, over: EventTransport
) -> None:
    # A position is retained, and sent before the cursor.
    await (await async_account.buy("MSFT", 1)).wait()
    async with async_account.events(over=over) as stream, asyncio.timeout(LIMIT_SECONDS):
        assert stream.is_connected
        assert stream.cursor is None, "nothing was delivered yet"
        placed = await async_account.buy("AAPL", 2)
        await placed.wait()
        reported = [await anext(stream) for _ in range(3)]
    assert isinstance(reported[0], PositionEvent)
    assert isinstance(reported[1], PrimedEvent)
    assert isinstance(reported[2], ActionEvent)
    assert reported[2].action.intent_id == placed.intent_id


def test_events_from_after_a_blocking_stream_was_entered_are_delivered(account: Account) -> None:
    with account.events() as stream:
        placed = account.buy("AAPL", 2)
        placed.wait()
        assert isinstance(next(stream), PrimedEvent)
        assert isinstance(next(stream), ActionEvent)


async def test_the_cursor_is_that_of_the_last_delivered_event() -> None:
    """A program that keeps it when it is cancelled must not pass over an event that it has not
    seen."""
    loop = asyncio.get_running_loop()
    readers = list[asyncio.Future[Event]]()

    async def connect(cursor: str | None) -> AsyncIterator[Event]:
        # It runs after the event has come, and before the reader does.
        loop.call_soon(readers[-1].cancel)
        yield Event(cursor="c2")

    stream = AsyncEventStream(connect, no_snapshot, "c1", 0)
    readers.append(asyncio.ensure_future(anext(stream)))
    with pytest.raises(asyncio.CancelledError):
        await readers[0]
    assert stream.cursor == "c1"
    assert (await anext(stream)).cursor == stream.cursor == "c2"
    await stream.aclose()


def test_the_blocking_streams_cursor_is_that_of_the_last_delivered_event() -> None:
    async def connect(cursor: str | None) -> AsyncIterator[Event]:
        yield Event(cursor="c2")
        await asyncio.Event().wait()

    with TradingClient("http://127.0.0.1:9", api_key="k") as client:
        stream = client.account("a").events(after="c1")
        stream._wrapped._connect = connect
        # As an interrupt leaves it: the event has come, and was not delivered.
        client._loop.run(stream._next)
        assert stream.cursor == "c1"
        assert next(stream).cursor == stream.cursor == "c2"
        stream.close()


def test_a_field_beside_the_event_does_not_hide_its_kind() -> None:
    reported = read_event(
        {
            "sent_at": "2026-01-05T15:00:00Z",
            "shard": {"number": 1},
            "broker_order": ORDER,
            "cursor": "c",
        }
    )
    assert isinstance(reported, OrderEvent)
    assert reported.cursor == "c"


@pytest.mark.parametrize("text", ["null", "true", "1", "1.5", ""])
def test_texts_that_look_like_something_else_stay_texts(text: str) -> None:
    reported = read_event(
        {"broker_order": ORDER | {"client_reference_id": text, "reason": text, "symbol": text}}
    )
    assert isinstance(reported, OrderEvent)
    assert (reported.order.client_reference_id, reported.order.reason, reported.order.symbol) == (
        text,
        text,
        text,
    )


async def test_reads_that_are_cancelled_in_any_moment_lose_no_event(
    async_account: AsyncAccount,
) -> None:
    """Polling with a time limit cancels a read in any moment: all events are delivered, once.

    A cancelled read ends its connection, so that in the end the limits must be long enough for a
    new one.
    """
    stream = async_account.events()
    await anext(stream)
    await async_account.buy("AAPL", 2)
    seen: list[Event] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        for number in itertools.count():
            limit_seconds = 0.001 * (number % 40) * (1 + number // 40)
            with contextlib.suppress(TimeoutError):
                seen.append(await asyncio.wait_for(anext(stream), limit_seconds))
            if len(seen) == 5:
                break
    began = seen[0].cursor
    async with async_account.events(after=began) as again:
        assert [await anext(again) for _ in range(4)] == seen[1:]
    await stream.aclose()
