"""Lists and event streams of the blocking client."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from trading_intents_client.asynchronous.pages import MAX_PAGE, AsyncPages, Page, to_dicts
from trading_intents_client.blocking.loop import LoopThread
from trading_intents_client.errors import TradingError
from trading_intents_client.stream.events import Event
from trading_intents_client.stream.following import AsyncEventStream

T = TypeVar("T")


class Pages(Generic[T]):
    """`for item in pages` reads all of them; `pages.page()` reads one page."""

    def __init__(
        self, loop: LoopThread, wrapped: AsyncPages[Any], wrap: Callable[[Any], T]
    ) -> None:
        self._loop = loop
        self._wrapped = wrapped
        self._wrap = wrap

    def page(self, *, limit: int = MAX_PAGE, cursor: str | None = None) -> Page[T]:
        """One page of at most `limit` items; the first, or the one that an earlier page's
        `next_cursor` names."""
        page = self._loop.run(lambda: self._wrapped.page(limit=limit, cursor=cursor))
        return Page(data=tuple(map(self._wrap, page.data)), next_cursor=page.next_cursor)

    def csv_page(self, *, limit: int = MAX_PAGE, cursor: str | None = None) -> Page[str]:
        """One page as the platform writes it as CSV, the names of the columns in its first line.
        There is one of orders, trades, positions and intents."""
        return self._loop.run(lambda: self._wrapped.csv_page(limit=limit, cursor=cursor))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Each item's fields by name, of all pages, as a table's rows: for pandas, polars or
        csv."""
        return to_dicts(self)

    def __iter__(self) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self.page(cursor=cursor)
            yield from page.data
            if page.next_cursor is None:
                return
            cursor = page.next_cursor


class EventStream:
    """`for event in stream`. Breaks are mended; an error that will not go away is raised.

    It is connected by `with stream`, else by the first read.
    """

    def __init__(self, loop: LoopThread, wrapped: AsyncEventStream) -> None:
        self._loop = loop
        self._wrapped = wrapped
        self._read: Event | None = None
        self._delivered_cursor = wrapped.cursor

    @property
    def cursor(self) -> str | None:
        """The cursor of the last event that was delivered."""
        return self._delivered_cursor

    @property
    def is_connected(self) -> bool:
        """Whether the server serves this stream now."""
        return self._wrapped.is_connected

    @property
    def last_error(self) -> TradingError | None:
        """The error that ended the last connection; None while there is one."""
        return self._wrapped.last_error

    def __enter__(self) -> Self:
        """Connects first: all events from here on are delivered."""
        self._loop.run(self._wrapped.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        self._loop.run(self._next)
        event = self._read
        self._read = None
        if event is None:
            raise StopIteration
        self._delivered_cursor = event.cursor or self._delivered_cursor
        return event

    def close(self) -> None:
        """Ends the stream."""
        self._loop.run(self._wrapped.aclose)

    async def _next(self) -> None:
        """Keeps the event: one that comes in the moment of an interrupt is the next one that is
        delivered."""
        if self._read is None:
            self._read = await anext(self._wrapped, None)
