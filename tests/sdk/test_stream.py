"""The event stream: typed, resumed after every break, the same over HTTP and gRPC."""

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.proxy import FaultProxy
from tests.sdk.answers import CannedAnswers, problem
from tests.tenants import Tenants
from trading_intents_client import (
    Account,
    ActionEvent,
    ActionType,
    AsyncAccount,
    AsyncEventStream,
    AsyncTradingClient,
    Event,
    GapEvent,
    OrderEvent,
    PositionEvent,
    PrimedEvent,
    TradeEvent,
    TradingClient,
    errors,
)
from trading_intents_client.types.enums import EventTransport

LIMIT_SECONDS = 60


async def take_until(events: AsyncIterator[Event], symbol: str) -> list[Event]:
    """All events up to the order of this symbol that is filled."""
    taken: list[Event] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        async for event in events:
            taken.append(event)
            if isinstance(event, PositionEvent) and event.position.symbol == symbol:
                break
    return taken


def test_events_are_typed_and_follow_an_order_to_its_end(account: Account) -> None:
    with account.events() as stream:
        first = next(stream)
        assert isinstance(first, PrimedEvent)
        assert stream.is_connected
        assert stream.cursor == first.cursor
        placed = account.buy("AAPL", 2)
        received = [next(stream)]
        while not isinstance(received[-1], PositionEvent):
            received.append(next(stream))
    # The broker's acknowledgement may come apart from the fill.
    action, pending, *acknowledged, filled, trade, position = received
    assert [
        event.order.order_status for event in acknowledged if isinstance(event, OrderEvent)
    ] in ([], ["NEW"])
    assert isinstance(action, ActionEvent)
    assert (action.action.seq, action.action.action_type) == (1, ActionType.CREATE)
    assert action.action.quantity == 2
    assert isinstance(pending, OrderEvent)
    assert (pending.order.intent_id, pending.order.order_status) == (
        placed.intent_id,
        "PENDING_NEW",
    )
    assert isinstance(filled, OrderEvent)
    assert (filled.order.order_status, filled.order.order_side, filled.order.order_venue) == (
        "FILLED",
        "BUY",
        "SMART",
    )
    assert isinstance(trade, TradeEvent)
    assert trade.trade.price == filled.order.average_price
    assert isinstance(position, PositionEvent)
    assert position.position.quantity == 2
    assert all(event.cursor for event in received)
    assert list(stream) == [], "it is closed"


def test_a_consumer_goes_on_after_the_cursor_that_it_kept(account: Account) -> None:
    with account.events() as stream:
        kept = next(stream).cursor
    account.buy("AAPL", 1).wait()
    with account.events(after=kept) as stream:
        received = [next(stream) for _ in range(3)]
    with account.events(after=received[0].cursor) as stream:
        assert [next(stream) for _ in range(2)] == received[1:]


async def test_nothing_is_missed_or_repeated_when_connections_break(
    tenants: Tenants, api_key: str, async_account: AsyncAccount
) -> None:
    port = urlsplit(tenants.platform.url).port
    assert port
    proxy = FaultProxy(port)
    with proxy.running():
        async with AsyncTradingClient(f"http://127.0.0.1:{proxy.port}", api_key=api_key) as client:
            stream = client.account(async_account.id).events()
            began = (await anext(stream)).cursor
            reading = asyncio.ensure_future(take_until(stream, "LAST"))
            for number in range(12):
                fault = (proxy.reset, proxy.refuse, lambda: proxy.cut_after(700))[number % 3]
                await asyncio.to_thread(fault)
                order = await async_account.buy("AAPL", number + 1)
                await order.wait()
                await asyncio.to_thread(proxy.work)
            await async_account.buy("LAST", 1)
            seen = await reading
            await stream.aclose()
    whole = await take_until(async_account.events(after=began), "LAST")
    assert seen == whole
    actions = [event.action.seq for event in seen if isinstance(event, ActionEvent)]
    assert actions == list(range(1, 14))


async def test_grpc_delivers_the_same_as_http(
    async_account: AsyncAccount, async_client: AsyncTradingClient
) -> None:
    async with async_account.events() as stream:
        began = (await anext(stream)).cursor
        await async_account.buy("AAPL", 2)
        await async_account.buy("LAST", 1)
        over_http = await take_until(stream, "LAST")
    over_grpc = await take_until(async_account.events(after=began, over="grpc"), "LAST")
    assert over_grpc == over_http
    of_all = await take_until(async_client.events(after=began), "LAST")
    assert [event for event in of_all if event in over_http] == over_http
    for over in ("http", "grpc"):
        received = await take_until(
            async_account.events(after=began, over=over, kinds=["broker_position"]), "LAST"
        )
        assert {type(event) for event in received} == {PositionEvent}


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_cursor_is_known_before_the_first_event_of_a_kind(
    account: Account, over: EventTransport
) -> None:
    """Otherwise a break before it would lose what happens meanwhile."""
    with account.events(kinds=["broker_trade"], over=over) as stream:
        first = next(stream)
        assert isinstance(first, PrimedEvent)
        assert first.cursor
        account.buy("AAPL", 1)
        assert isinstance(next(stream), TradeEvent)
        account.buy("AAPL", 1)
        assert isinstance(next(stream), TradeEvent), "positions are not sent"


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_gap_is_an_event_with_the_state_from_which_the_stream_goes_on(
    account: Account, over: EventTransport
) -> None:
    resting = account.buy("ACME", 3, limit=1)
    account.buy("AAPL", 2).wait()
    resting.wait(until="NEW")
    stranger = base64.urlsafe_b64encode(os.urandom(16) + (5).to_bytes(8)).decode()
    with account.events(after=stranger, over=over) as stream:
        gap = next(stream)
        assert isinstance(gap, GapEvent)
        assert [order.intent_id for order in gap.orders] == [resting.intent_id]
        assert {position.symbol: position.quantity for position in gap.positions} == {"AAPL": 2}
        assert gap.cursor == stream.cursor
        placed = account.buy("MSFT", 1)
        after = next(stream)
        assert isinstance(after, ActionEvent)
        assert after.action.intent_id == placed.intent_id


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_what_will_not_pass_ends_the_stream(
    client: TradingClient, tenants: Tenants, over: EventTransport
) -> None:
    with pytest.raises(errors.NotFound):
        next(client.account("01a1dd48-2166-7b29-aa0c-4afddaa7c207").events(over=over))
    stranger = TradingClient(
        tenants.platform.url, api_key="tip_paper_none", grpc_target=tenants.platform.grpc
    )
    with stranger, pytest.raises(errors.Unauthorized):
        next(stranger.account("01a1dd48-2166-7b29-aa0c-4afddaa7c207").events(over=over))


def test_a_bad_cursor_fails_at_once(account: Account) -> None:
    with pytest.raises(errors.InvalidCursor):
        next(account.events(after="no cursor"))
    with pytest.raises(ValueError, match="http or grpc"):
        account.events(over="pigeon")  # type: ignore[arg-type]  # what is tested


def test_the_first_connection_fails_as_other_calls_do() -> None:
    nobody = "127.0.0.1:9"
    with TradingClient(
        f"http://{nobody}", api_key="k", max_retries=1, grpc_target=nobody
    ) as client:
        with pytest.raises(errors.Unreachable):
            next(client.account("a").events())
        with pytest.raises(errors.Unreachable):
            next(client.account("a").events(over="grpc"))


async def test_a_busy_server_is_asked_again() -> None:
    text = 'event: status\ndata: {"status":{"message":"subscribed"}}\n\n: heartbeat\n\n'
    text += (
        "event: primed\nid: c1\ndata: "
        '{"primed":{"event_type":"EVENT_TYPE_BROKER_POSITION"},"cursor":"c1"}\n\n'
    )
    half = 'event: weather\nid: c2\ndata: {"weather":{},"curs'
    more = 'event: weather\r\nid: c2\r\ndata: {"weather":{},"cursor":"c2"}\r\n\r\n'
    answers = CannedAnswers(
        problem(503, "unavailable", headers={"retry-after": "0"}),
        httpx.Response(200, text=text + half),
        httpx.Response(502, text="proxy"),
        problem(409, "limit_reached"),
        httpx.Response(200, text=more),
        problem(403, "forbidden"),
    )
    async with answers.client() as client:
        stream = client.account("a").events()
        assert await anext(stream) == PrimedEvent(kind="broker_position", cursor="c1")
        assert (await anext(stream)).cursor == "c2"
        with pytest.raises(errors.Forbidden):
            await anext(stream)
        assert isinstance(stream.last_error, errors.Forbidden)
        assert not stream.is_connected
    assert [r.headers.get("last-event-id") for r in answers.asked] == [
        None,
        None,
        "c1",
        "c1",
        "c1",
        "c2",
    ]


async def test_an_event_that_comes_in_the_moment_of_a_cancellation_is_not_lost() -> None:
    loop = asyncio.get_running_loop()
    readers: list[asyncio.Task[Event]] = []

    async def connect(cursor: str | None) -> AsyncIterator[Event]:
        for number in range(int(cursor or 0), 4):
            # It runs after the event has come, and before the reader does.
            loop.call_soon(readers[-1].cancel)
            yield Event(cursor=str(number + 1))

    async def snapshot(cursor: str | None) -> GapEvent:
        raise AssertionError

    stream = AsyncEventStream(connect, snapshot, None, 0)
    seen: list[str | None] = []
    while len(seen) < 4:
        readers.append(asyncio.ensure_future(anext(stream)))
        with contextlib.suppress(asyncio.CancelledError):
            seen.append((await readers[-1]).cursor)
    assert seen == ["1", "2", "3", "4"]
    assert len(readers) > 4, "some were cancelled"
    await stream.aclose()
