"""The events that a connection is still to be sent, bounded. The hub fills it, a transport empties
it; neither waits for the other."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from trading_intents.errors import LimitReached, PlatformError
from trading_intents.stream import trading_pb2
from trading_intents.stream.model import EventType
from trading_intents.stream.text import Message

MAX_EVENTS_BEHIND = 10_000
MAX_BYTES_BEHIND = 8 * 1024 * 1024
# History and retained state are handed over only while less than this waits, at the reader's own
# pace.
FREE_EVENTS = 1_000
FREE_BYTES = 1024 * 1024


class EventBatch:
    """Consecutive messages, shared by all subscribers that want exactly these."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.size = sum(len(message.data) for message in messages)

    @cached_property
    def text(self) -> bytes:
        return b"".join([message.text for message in self.messages])


class Subscriber:
    """One connection's queue. `notify` signals its transport that there are events to take, or that
    the stream has ended."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[EventBatch] = deque()
        self._room = asyncio.Event()
        self.events = 0
        self.bytes = 0  # not sent yet, including what the transport has taken
        self.moved_at = self._loop.time()
        self.error: PlatformError | None = None

    def put(self, batch: EventBatch) -> None:
        """Queues live events. A reader that is too far behind is ended; it can resume from the
        log."""
        if self.error is not None:
            return
        if (
            self.events + len(batch.messages) > MAX_EVENTS_BEHIND
            or self.bytes + batch.size > MAX_BYTES_BEHIND
        ):
            self.end(LimitReached("the reader is too far behind: resume after the last cursor"))
            return
        if not self.events:
            self.moved_at = self._loop.time()
        self.events += len(batch.messages)
        self.bytes += batch.size
        self._waiting.append(batch)
        self._notify()

    async def offer(self, messages: Sequence[Message]) -> None:
        """Queues events of history or retained state once there is room."""
        while self.error is None and (self.events >= FREE_EVENTS or self.bytes >= FREE_BYTES):
            self._room.clear()
            await self._room.wait()
        if messages:
            self.put(EventBatch(messages))

    def take(self) -> EventBatch | None:
        return self._waiting.popleft() if self._waiting else None

    def sent(self, events: int, size: int) -> None:
        self.events -= events
        self.bytes -= size
        self.moved_at = self._loop.time()
        if self.events < FREE_EVENTS:
            self._room.set()

    def end(self, error: PlatformError) -> None:
        """Ends the stream, for the first reason that is given. What waits is dropped."""
        if self.error is None:
            self.error = error
            self._waiting.clear()
            self._room.set()
            self._notify()


def heartbeat(now: datetime) -> Message:
    beat = trading_pb2.Heartbeat()
    beat.sent_at.FromDatetime(now)
    return _message(heartbeat=beat)


def status(text: str) -> Message:
    return _message(status=trading_pb2.Status(message=text))


def failure(text: str) -> Message:
    return _message(error=trading_pb2.Error(message=text))


def primed(kind: EventType, cursor: str) -> Message:
    """Says that the retained state of this kind has been sent; live events follow after the
    cursor."""
    event_type = trading_pb2.EventType.Name(kind)
    return _message(primed=trading_pb2.Primed(event_type=event_type), cursor=cursor)


def _message(**fields: Any) -> Message:
    return Message(trading_pb2.TradingEvent(**fields).SerializeToString())
