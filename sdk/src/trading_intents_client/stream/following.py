"""A stream without end: connects again after every break and goes on after the last cursor."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from trading_intents_client.errors import (
    CursorExpired,
    LimitReached,
    TradingError,
    Unauthorized,
    UnexpectedAnswer,
)
from trading_intents_client.stream.events import (
    Event,
    GapEvent,
    PrimedEvent,
    SkippedEvent,
    StatusMessage,
)
from trading_intents_client.transport.retries import Repeat, may_repeat, pause_seconds

Connect = Callable[[str | None], AsyncIterator[Event | StatusMessage]]
Snapshot = Callable[[str | None], Awaitable[GapEvent]]


class AsyncEventStream:
    """`async for event in stream`. Breaks are mended; an error that will not go away is raised.

    It is connected by `async with stream`, else by the first read.
    """

    def __init__(
        self, connect: Connect, snapshot: Snapshot, after: str | None, max_first_retries: int
    ) -> None:
        self._connect = connect
        self._snapshot = snapshot
        # From `_cursor` on the stream is read; the consumer may not have the event of it yet.
        self._cursor = self._delivered_cursor = after
        self._max_first_retries = max_first_retries
        self._events: AsyncIterator[Event | StatusMessage] | None = None
        self._was_connected = self._is_connected = self._has_gap = self._is_closed = False
        self._failures = 0
        self._reading: asyncio.Task[Event | None] | None = None
        self._begun: deque[Event] = deque()  # read on entering the stream, and not delivered yet
        self._last_error: TradingError | None = None

    @property
    def cursor(self) -> str | None:
        """The cursor of the last event that was delivered."""
        return self._delivered_cursor

    @property
    def is_connected(self) -> bool:
        """Whether the server serves this stream now."""
        return self._is_connected

    @property
    def last_error(self) -> TradingError | None:
        """The error that ended the last connection; None while there is one."""
        return self._last_error

    async def __aenter__(self) -> Self:
        """Connects first: all events from here on are delivered."""
        while self._cursor is None and (event := await self._take()) is not None:
            self._begun.append(event)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Ends the stream. Whoever iterates over it, in another task too, comes to its end."""
        self._is_closed = True
        self._begun.clear()
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._disconnect()

    async def __anext__(self) -> Event:
        event = self._begun.popleft() if self._begun else await self._take()
        if event is None:
            raise StopAsyncIteration
        self._delivered_cursor = event.cursor or self._delivered_cursor
        return event

    async def _take(self) -> Event | None:
        # A task of its own, so that `aclose` can end it without cancelling the caller.
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        try:
            event = await self._reading
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._is_closed or (caller is not None and caller.cancelling()):
                if self._reading.cancelled():
                    self._reading = None
                # An event that came in the moment of the cancellation is the next one that is
                # delivered.
                raise
            event = None
        except BaseException:
            self._reading = None
            raise
        self._reading = None
        return event

    async def _read(self) -> Event | None:
        """The next event; None when the stream is closed."""
        while not self._is_closed:
            try:
                event = await self._next()
            except TradingError as error:
                await self._on_failure(error)
                continue
            # Cancelled in the middle of an event: the next one is read from the cursor on.
            except BaseException:
                await self._disconnect()
                raise
            if event is not None:
                return event
        return None

    async def _next(self) -> Event | None:
        if self._events is None:
            self._events = self._connect(self._cursor)
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            raise UnexpectedAnswer("the server ended the stream", status=503) from None
        except ValueError as error:
            raise UnexpectedAnswer(f"the stream sent something else: {error}", status=503) from None
        self._is_connected = self._was_connected = True
        self._last_error = None
        if isinstance(event, StatusMessage):
            if event.is_error:
                raise UnexpectedAnswer(event.message or "the server ended the stream", status=503)
            return None
        self._failures = 0
        if self._has_gap:
            return await self._end_gap(event)
        self._cursor = event.cursor or self._cursor
        return None if isinstance(event, SkippedEvent) else event

    async def _end_gap(self, event: Event) -> Event | None:
        """The state is read after the server has said from which cursor on it sends everything."""
        if not isinstance(event, PrimedEvent):
            return None  # what is retained is in the state too
        gap = await self._snapshot(event.cursor)
        self._has_gap = False
        self._cursor = event.cursor
        return gap

    async def _on_failure(self, error: TradingError) -> None:
        was_served = self._is_connected
        await self._disconnect()
        self._last_error = error
        if isinstance(error, CursorExpired) and self._cursor is not None:
            self._cursor = None
            self._has_gap = True
            return
        self._failures += 1
        # A server that restarts may count this caller's old connection for a moment.
        is_passing = may_repeat(error, Repeat.READ) or (error.status or 0) >= 500
        is_passing |= isinstance(error, LimitReached) and self._was_connected
        # Its token has ended: the next connection has another one, or is refused.
        is_passing |= isinstance(error, Unauthorized) and was_served
        if not is_passing or (not self._was_connected and self._failures > self._max_first_retries):
            raise error
        pause = pause_seconds(error, self._failures, random.random)
        if pause is None:
            raise error
        await asyncio.sleep(pause)

    async def _disconnect(self) -> None:
        events = self._events
        self._events = None
        self._is_connected = False
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
