"""Lists: iterated over, the pages behind them are read as they are needed."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from trading_intents_client.errors import UnexpectedAnswer
from trading_intents_client.transport.http import Transport

MAX_PAGE = 100
CSV_LINE_END = "\r\n"

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list. `next_cursor` is None on the last one."""

    data: tuple[T, ...]
    next_cursor: str | None

    def to_dicts(self) -> list[dict[str, Any]]:
        """Each item's fields by name, as a table's rows: for pandas, polars or csv."""
        return to_dicts(self.data)


def to_dicts(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Amounts stay Decimal, times datetime."""
    return [msgspec.structs.asdict(item) for item in items]


class AsyncPages(Generic[T]):
    """`async for item in pages` reads all of them; `await pages.page()` reads one page."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        kind: type[T],
        params: Mapping[str, str],
        bind: Callable[[T], T] = lambda item: item,
    ) -> None:
        self._transport = transport
        self._path = path
        self._params = dict(params)
        self._kind: Any = Page[kind]  # type: ignore[valid-type]  # known at run time only
        self._bind = bind

    async def page(self, *, limit: int = MAX_PAGE, cursor: str | None = None) -> Page[T]:
        """One page of at most `limit` items; the first, or the one that an earlier page's
        `next_cursor` names."""
        page: Page[T] = await self._transport.call(
            "GET", self._path, self._kind, params=self._page_params(limit, cursor)
        )
        return Page(data=tuple(map(self._bind, page.data)), next_cursor=page.next_cursor)

    async def csv_page(self, *, limit: int = MAX_PAGE, cursor: str | None = None) -> Page[str]:
        """One page as the platform writes it as CSV, the names of the columns in its first line.
        There is one of orders, trades, positions and intents."""
        response = await self._transport.send(
            "GET",
            self._path,
            params=self._page_params(limit, cursor),
            headers={"accept": "text/csv"},
        )
        if not response.headers.get("content-type", "").startswith("text/csv"):
            raise UnexpectedAnswer(f"{self._path} answered no CSV", status=response.status_code)
        following = response.links.get("next")
        return Page(
            data=tuple(response.text.removesuffix(CSV_LINE_END).split(CSV_LINE_END)),
            next_cursor=httpx.URL(following["url"]).params["next_cursor"] if following else None,
        )

    async def to_dicts(self) -> list[dict[str, Any]]:
        """Each item's fields by name, of all pages, as a table's rows: for pandas, polars or
        csv."""
        return to_dicts([item async for item in self])

    async def __aiter__(self) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self.page(cursor=cursor)
            for item in page.data:
                yield item
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    def _page_params(self, limit: int, cursor: str | None) -> dict[str, str]:
        params = self._params | {"limit": str(limit)}
        return params | {"next_cursor": cursor} if cursor else params
