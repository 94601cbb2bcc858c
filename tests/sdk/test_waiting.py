"""`order.wait()` when the stream is late, an order ends unexpectedly or the client is closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from trading_intents_client import (
    AsyncAccount,
    AsyncEventStream,
    AsyncTradingClient,
    Event,
    GapEvent,
    OrderEvent,
    OrderRecord,
    PrimedEvent,
    errors,
)
from trading_intents_client.stream.events import StreamedOrder
from trading_intents_client.stream.waiting import OrderWaits
from trading_intents_client.types.enums import FINAL_STATUSES

LIMIT_SECONDS = 10
AT = "2026-01-05T15:00:00.000000Z"
IDS = {
    "order_id": "o",
    "intent_id": "o",
    "account_id": "a",
    "organization_id": "g",
    "symbol": "S",
    "quantity": "5",
}
ORDER: dict[str, Any] = IDS | {
    "command_seq": 1,
    "external_order_id": None,
    "environment": "paper",
    "broker": "paper",
    "order_type": "LIMIT",
    "order_side": "BUY",
    "limit_price": "1",
    "stop_price": None,
    "average_price": None,
    "route_strategy": "SMART",
    "filled_quantity": "0",
    "time_in_force": "DAY",
    "client_reference_id": None,
    "reason": None,
    "flags": [],
    "broker_sent_at": None,
    "received_at": AT,
    "created_at": AT,
    "updated_at": AT,
}


def record(status: str, version: int, state: str = "OPEN") -> OrderRecord:
    return msgspec.convert(
        ORDER | {"order_status": status, "order_state": state, "version": version}, OrderRecord
    )


def streamed(status: str, version: int, state: str = "OPEN") -> OrderEvent:
    received = IDS | {"order_status": status, "order_state": state, "version": version}
    return OrderEvent(order=msgspec.convert(received, StreamedOrder), cursor=f"c{version}")


class Account:
    """An account whose stream and order are what a test says."""

    def __init__(self, order: OrderRecord) -> None:
        self.order = order
        self.events = asyncio.Queue[Event]()
        self.reads = 0
        self.events.put_nowait(PrimedEvent(kind="broker_position", cursor="c0"))
        self.waits = OrderWaits(self.stream, self.read)

    async def connect(self, cursor: str | None) -> AsyncIterator[Event]:
        while True:
            yield await self.events.get()
            self.events.task_done()

    def stream(self) -> AsyncEventStream:
        async def snapshot(cursor: str | None) -> GapEvent:
            raise AssertionError

        return AsyncEventStream(self.connect, snapshot, None, 0)

    async def read(self, intent_id: str) -> OrderRecord:
        self.reads += 1
        return self.order


async def test_an_event_that_is_older_than_the_order_that_was_read_is_no_answer() -> None:
    """After `replace()` the order is PENDING_REPLACE; a late stream still has the NEW from before
    it."""
    account = Account(record("PENDING_REPLACE", 3))
    waiting = asyncio.ensure_future(account.waits.wait("o", frozenset({"NEW"}), LIMIT_SECONDS))
    async with asyncio.timeout(LIMIT_SECONDS):
        while not account.reads:
            await asyncio.sleep(0)
        for version, status in ((2, "NEW"), (3, "PENDING_REPLACE"), (3, "PENDING_REPLACE")):
            account.events.put_nowait(streamed(status, version))
            while not account.events.empty():
                await asyncio.sleep(0)
    assert account.reads == 1
    account.order = record("NEW", 4)
    account.events.put_nowait(streamed("NEW", 4))
    assert (await waiting).version == 4
    await account.waits.aclose()


@pytest.mark.parametrize("is_followed_by_the_stream", [True, False])
async def test_an_order_that_ends_in_a_status_of_a_newer_server_ends_the_wait(
    is_followed_by_the_stream: bool,
) -> None:
    ended = record("DONE_FOR_DAY", 2, "CLOSED")
    assert ended.is_final
    account = Account(record("NEW", 1) if is_followed_by_the_stream else ended)
    waiting = [
        asyncio.ensure_future(account.waits.wait("o", statuses, LIMIT_SECONDS))
        for statuses in (FINAL_STATUSES, frozenset({"FILLED"}))
    ]
    if is_followed_by_the_stream:
        while account.reads < len(waiting):
            await asyncio.sleep(0)
        account.order = ended
        account.events.put_nowait(streamed("DONE_FOR_DAY", 2, "CLOSED"))
    assert (await waiting[0]).order_status == "DONE_FOR_DAY"
    with pytest.raises(errors.OrderEnded):
        await waiting[1]
    await account.waits.aclose()


async def test_closing_the_client_ends_a_wait_with_an_error_and_not_with_a_cancellation(
    async_client: AsyncTradingClient, async_account: AsyncAccount
) -> None:
    resting = await async_account.buy("ACME", 1, limit=1)
    await resting.wait(until="NEW")
    waiting = asyncio.ensure_future(resting.wait("FILLED"))
    await asyncio.sleep(0)
    await async_client.aclose()
    async with asyncio.timeout(LIMIT_SECONDS):
        with pytest.raises(errors.ClientClosed):
            await waiting


async def test_a_stream_ends_with_its_client_and_opens_no_connection_after_it(
    async_client: AsyncTradingClient, async_account: AsyncAccount
) -> None:
    stream = async_account.events()
    await anext(stream)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await async_client.aclose()
    async with asyncio.timeout(LIMIT_SECONDS):
        with pytest.raises(errors.ClientClosed):
            await reading
    with pytest.raises(errors.ClientClosed):
        await async_account.get()
    await async_client.aclose()


async def test_streams_leave_connections_for_commands(async_client: AsyncTradingClient) -> None:
    """A caller may have 100 streams, and its CANCELs have to get through beside them."""
    streaming = 0
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal streaming
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/events" in head:
            received = b'data: {"primed":{},"cursor":"c"}\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + received)
            streaming += 1
            await is_over.wait()
        else:
            body = b'{"intent_id":"i","seq":1}'
            writer.write(
                b"HTTP/1.1 202 Accepted\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        AsyncTradingClient(f"http://127.0.0.1:{port}", api_key="k", read_seconds=5) as client,
    ):
        streams = [client.account(f"a{number}").events() for number in range(100)]
        try:
            await asyncio.gather(*map(anext, streams))
            assert streaming == 100
            assert (await client.account("a").buy("AAPL", 1)).intent_id == "i"
        finally:
            is_over.set()
            for stream in streams:
                await stream.aclose()


async def test_a_client_that_was_never_used_closes_without_a_connection() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(500))
    client = AsyncTradingClient("http://platform", api_key="k", transport=transport)
    await client.aclose()
    with pytest.raises(errors.ClientClosed):
        await client.account("a").get()


async def test_a_client_that_is_closed_while_the_order_is_read_ends_the_wait() -> None:
    account = Account(record("NEW", 1))

    async def read_and_close(intent_id: str) -> OrderRecord:
        await account.waits.aclose()
        return await account.read(intent_id)

    account.waits = OrderWaits(account.stream, read_and_close)
    with pytest.raises(errors.ClientClosed):
        await account.waits.wait("o", FINAL_STATUSES, LIMIT_SECONDS)
