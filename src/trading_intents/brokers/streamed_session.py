"""A session whose commands are REST requests and whose updates come by WebSocket. While there are
no updates, commands are sent all the same, and orders and executions are read at intervals."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from trading_intents.brokers import port
from trading_intents.brokers.port import (
    AuthFailed,
    BrokerEvent,
    BrokerUnavailable,
    EventKind,
    StreamGap,
)
from trading_intents.brokers.rest_client import RestClient
from trading_intents.brokers.websocket_client import WebSocketClient
from trading_intents.loops import stop_tasks, wait_at_most

SUBSCRIBE_ROUNDS = 5  # of the polls: in one of them the stream is asked for again
SUBSCRIBE_SECONDS = 3.0
LATE = timedelta(seconds=10)  # an execution may be listed so long after it happened
BEGINNINGS = frozenset({EventKind.ACCEPTED, EventKind.REPLACED})

Reported = BrokerEvent | port.BrokerBalance | StreamGap


def _reading_order(event: BrokerEvent) -> tuple[bool, bool]:
    """Orders begin before they are filled, and are filled before they end."""
    return event.kind not in BEGINNINGS, event.exec_id is None


class StreamedSession:
    # The methods of a broker's own class:
    check: Callable[[], Awaitable[None]]  # asks REST whether it takes the credential
    subscribe: Callable[[WebSocketClient], Awaitable[None]]  # AuthFailed is for REST alone to raise
    updates: Callable[[WebSocketClient], AsyncIterator[Reported]]
    # Of orders, and the executions since.
    read_changes: Callable[[datetime], Awaitable[Sequence[BrokerEvent]]]
    # Whether the stream lacks what REST has of the time between; the number counts the comparisons.
    is_mute: Callable[[datetime, datetime, int], Awaitable[bool]]

    def __init__(
        self,
        client: RestClient,
        path: str,  # of the update stream, on the host of REST
        # What REST has and the stream has not reported by then, it never will.
        mute_seconds: float = 10.0,
        watch_seconds: float = 30.0,  # between comparisons of the two
        poll_seconds: float = 2.0,  # between readings while there is no stream
    ) -> None:
        self._client = client
        self._path = path
        self._mute_seconds = mute_seconds
        self._watch_seconds = watch_seconds
        self._poll_seconds = poll_seconds
        self._stream: WebSocketClient | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_over = asyncio.Event()
        self.ended: Exception | None = None  # why the session is down

    async def open(self) -> StreamGap | None:
        await self.check()
        return await self._open_stream()

    async def _open_stream(self) -> StreamGap | None:
        """Gives the reason if there is none to be had."""
        if barred_seconds := self._client.barred_seconds:
            return StreamGap(f"the broker takes no request for {barred_seconds} s")
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                url = f"{self._client.url}{self._path}"
                stream = await WebSocketClient.open(url, self._client.headers, self._client.tls)
                try:
                    await self.subscribe(stream)
                    if self.ended:
                        raise BrokerUnavailable(str(self.ended))
                except BaseException:
                    stream.abort()
                    raise
        except (BrokerUnavailable, TimeoutError) as error:
            return StreamGap(str(error) or "the update stream does not answer")
        self._stream = stream
        self._watching = asyncio.create_task(self._watch())
        return None

    async def events(self) -> AsyncIterator[Reported]:
        try:
            if self._stream is None:
                async for item in self._poll_changes():
                    yield item
            if self._stream is not None:
                async for item in self.updates(self._stream):
                    yield item
        except BrokerUnavailable as error:
            self.end(error)
        if self.ended and not self._is_closed:
            raise self.ended

    async def _poll_changes(self) -> AsyncIterator[Reported]:
        """Runs until there is a stream. Events have the keys that the stream gives them."""
        since = self._client.now()
        reported = set[BrokerEvent]()
        for number in itertools.count(1):
            await wait_at_most(self._is_over, self._poll_seconds)
            if self.ended:
                return
            if number % SUBSCRIBE_ROUNDS == 0 and await self._open_stream() is None:
                yield port.StreamBack("the update stream is back")
                return
            until = self._client.now()
            try:
                changes = await self.read_changes(since - LATE)
            except BrokerUnavailable:
                continue
            since = until
            for event in sorted(changes, key=_reading_order):
                if event not in reported:
                    yield event
            reported = set(changes)

    async def _watch(self) -> None:
        """Ends a session whose stream lacks what REST has had for a while, or cannot be
        compared."""
        since = self._client.now()
        for number in itertools.count():
            await asyncio.sleep(self._watch_seconds)
            until = self._client.now() - timedelta(seconds=self._mute_seconds)
            try:
                if await self.is_mute(since, until, number):
                    self.end(BrokerUnavailable("the update stream is mute"))
            except BrokerUnavailable:
                continue
            except Exception as error:
                unread = BrokerUnavailable(
                    f"the update stream cannot be watched: {type(error).__name__}"
                )
                self.end(error if isinstance(error, AuthFailed) else unread)
                return
            since = max(since, until)

    async def close(self) -> None:
        self._is_closed = True
        self.ended = self.ended or BrokerUnavailable("the session is closed")
        self._is_over.set()
        try:
            await stop_tasks(self._watching)
            if self._stream:
                await self._stream.close()
        finally:
            await self._client.close()

    def end(self, reason: Exception) -> None:
        self.ended = self.ended or reason
        self._is_over.set()
        if self._stream:
            self._stream.abort()
