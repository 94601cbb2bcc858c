"""Reads a venue's markets, orders and executions, whole lists of them."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from trading_intents.brokers import port
from trading_intents.brokers.rest_client import AnswerUnclear, RestClient
from trading_intents.trading import ZERO, Environment, OrderSide, Symbol
from trading_intents_ccxt.exchange import Refused, Row, ask, make_exchange
from trading_intents_ccxt.venues import Venue
from trading_intents_ccxt.wire import VenueOrder, VenueTrade, order_of, trade_of

MARKET_SECONDS = 4 * 3_600.0
RETRY_SECONDS = 60.0
MAX_PAGES = 100
R = TypeVar("R")


class Markets:
    """The markets of a host, which all sessions in a process share."""

    def __init__(self) -> None:
        self.loaded: Any = None  # the object of ccxt's that read them last
        self.due_seconds = 0.0


class VenueReads:
    def __init__(self, venue: Venue, context: port.IntegrationContext) -> None:
        environment = context.account.environment
        secrets = {name: context.secrets[name].reveal() for name in venue.credentials}
        headers = {venue.key_header: secrets["api_key"]}
        if environment is Environment.PAPER:
            headers |= venue.paper_headers
        url = context.settings[venue.setting(environment)]
        self.venue = venue
        self.rest = RestClient(context, url, headers, venue.requests_per_minute)
        self.exchange = make_exchange(venue, self.rest, secrets)
        self._markets = context.share(f"markets of {self.rest.url}", Markets)
        self._clock = context.clock

    async def load_markets(self, deadline: float) -> None:
        """Steps and minima change now and then: those of before hold until they can be read."""
        shared = self._markets
        now = self._clock.monotonic()
        if now >= shared.due_seconds:
            try:
                await self._ask(self.exchange.load_markets(True), deadline)
                shared.loaded = self.exchange
                shared.due_seconds = now + MARKET_SECONDS
            except port.BrokerUnavailable:
                if shared.loaded is None:
                    raise
                shared.due_seconds = now + RETRY_SECONDS
        if self.exchange.markets is not shared.loaded.markets:
            self.exchange.set_markets_from_exchange(shared.loaded)

    def check(self, ticket: port.OrderTicket) -> None:
        """Refused: ccxt would cut the quantity to the market's step, and round the price."""
        if ticket.side is OrderSide.SELL_SHORT:
            raise Refused("no_short_sales", "spot has no short sales")
        market = self.find_market(ticket.symbol)
        step = Decimal(market["precision"]["amount"])
        tick = Decimal(market["precision"]["price"])
        least = Decimal(market["limits"]["amount"]["min"] or 0)
        if ticket.quantity % step:
            raise Refused("quantity_off_step", f"the market's step is {step}")
        if ticket.quantity < least:
            raise Refused("quantity_too_small", f"the market's smallest quantity is {least}")
        if ticket.limit_price is not None and ticket.limit_price % tick:
            raise Refused("price_off_tick", f"the market's tick is {tick}")

    def find_market(self, symbol: str) -> Row:
        market: Row | None = (self.exchange.markets or {}).get(symbol)
        if market is None or not market["spot"]:
            raise Refused("unknown_symbol", f"{self.venue.id} has no spot market {symbol}")
        return market

    async def find(
        self, client_order_id: str, symbol: Symbol, deadline: float, is_cancel: bool = False
    ) -> VenueOrder | None:
        """None: the venue says that it has none."""
        self.find_market(symbol)
        query = {self.venue.lookup_field: client_order_id}
        if self.venue.lookup_lists:
            for name in self.venue.lookup_lists:
                read = getattr(self.exchange, name)
                rows = await self._ask(read(symbol, None, None, query), deadline)
                if rows:
                    return self._read_found(rows[0], rows[0].get("clientOrderId"), client_order_id)
            return None
        try:
            row = await ask(
                self.exchange.fetch_order(None, symbol, query), deadline, is_cancel=is_cancel
            )
        except Refused as error:
            if error.code in self.venue.absences:
                return None
            raise AnswerUnclear(f"{error.code} {error}") from None
        # An order that was cancelled may be shown under the CANCEL's own id.
        return self._read_found(row, client_order_id, client_order_id)

    def _read_found(self, row: Row, shown: str | None, client_order_id: str) -> VenueOrder:
        if shown != client_order_id:
            raise AnswerUnclear(f"{self.venue.id} shows the order {shown}")
        try:
            return order_of(self.venue, row, client_order_id)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise AnswerUnclear(f"the order cannot be read: {error!r}") from None

    async def list_open_orders(self, symbol: Symbol | None, deadline: float) -> list[VenueOrder]:
        """Of all spot markets, if no symbol is given: a list may have orders of others too."""
        size = self.venue.order_page
        rows = await self._pages(
            lambda query: self.exchange.fetch_open_orders(symbol, None, size, query),
            self.venue.order_cursor,
            size,
            deadline,
        )
        orders = self._read(rows, lambda row: order_of(self.venue, row))
        return [order for order in orders if order.symbol in self.exchange.markets]

    async def list_order_trades(self, order: VenueOrder, deadline: float) -> list[VenueTrade]:
        """All executions of an order: fewer than it has filled, if the venue lists them late."""
        if not order.filled:
            return []
        size = self.venue.trade_page
        rows = await self._pages(
            lambda query: self.exchange.fetch_order_trades(
                order.id, order.symbol, None, size, query
            ),
            self.venue.trade_cursor,
            size,
            deadline,
        )
        return self._read(rows, lambda row: trade_of(self.venue, row, order.client_order_id))

    async def list_trades(
        self, symbol: Symbol, since: datetime, deadline: float
    ) -> list[VenueTrade]:
        if self.venue.trade_cursor:
            return await self._list_by_cursor(symbol, since, deadline)
        return await self._list_by_time(symbol, since, deadline)

    async def _list_by_cursor(
        self, symbol: Symbol, since: datetime, deadline: float
    ) -> list[VenueTrade]:
        """One list for each stretch of days that the venue lists."""
        now = self.rest.now()
        stretch = timedelta(days=self.venue.trade_days) if self.venue.trade_days else now - since
        size = self.venue.trade_page
        found = list[VenueTrade]()
        while since < now:
            since_millis = _millis(since)
            until = {"until": _millis(since + stretch)} if self.venue.trade_days else {}
            read = partial(self._read_trades, symbol, since_millis, until)
            rows = await self._pages(read, self.venue.trade_cursor, size, deadline)
            found += self._read(rows, lambda row: trade_of(self.venue, row))
            since += stretch
        return found

    async def _read_trades(
        self, symbol: Symbol, since_millis: int, until: dict[str, int], query: dict[str, str]
    ) -> list[Row]:
        size = self.venue.trade_page
        more = {**until, **query}
        rows: list[Row] = await self.exchange.fetch_my_trades(symbol, since_millis, size, more)
        return rows

    async def _list_by_time(
        self, symbol: Symbol, since: datetime, deadline: float
    ) -> list[VenueTrade]:
        """Of a venue that lists the oldest first: the next page begins at the time of the last row,
        which it has again."""
        size = self.venue.trade_page
        found = dict[str, VenueTrade]()
        for _ in range(MAX_PAGES):
            rows = await self._ask(
                self.exchange.fetch_my_trades(symbol, _millis(since), size), deadline
            )
            page = self._read(rows, lambda row: trade_of(self.venue, row))
            found |= {trade.id: trade for trade in page}
            if len(rows) < size or not page:
                return list(found.values())
            last = page[-1].at
            since = last if last > since else since + timedelta(milliseconds=1)
        raise AnswerUnclear(f"{MAX_PAGES} pages of executions, and more")

    async def _pages(
        self,
        read: Callable[[dict[str, str]], Awaitable[list[Row]]],
        cursor: str,
        size: int,
        deadline: float,
    ) -> list[Row]:
        rows = list[Row]()
        query = dict[str, str]()
        for _ in range(MAX_PAGES):
            page = await self._ask(read(query), deadline)
            rows += page
            if not cursor or len(page) < size:
                return rows
            following = page[self.venue.cursor_row]["info"].get(cursor)
            if not following:
                return rows
            query = {self.venue.cursor_query: following}
        raise AnswerUnclear(f"{MAX_PAGES} pages, and more")

    async def _ask(self, work: Awaitable[R], deadline: float) -> R:
        """Of a list, a refusal proves nothing."""
        try:
            return await ask(work, deadline)
        except Refused as error:
            raise AnswerUnclear(f"{error.code} {error}") from None

    def _read(self, rows: Iterable[Row], read: Callable[[Row], R]) -> list[R]:
        found = list[R]()
        for row in rows:
            try:
                found.append(read(row))
            except (ArithmeticError, KeyError, TypeError, ValueError) as error:
                self.rest.leave_out(repr(row["info"]).encode(), f"{self.venue.id}: {error!r}")
        return found


def _millis(at: datetime) -> int:
    return int(at.timestamp() * 1_000)


def count(trades: Iterable[VenueTrade]) -> Decimal:
    return sum((trade.quantity for trade in trades), ZERO)
