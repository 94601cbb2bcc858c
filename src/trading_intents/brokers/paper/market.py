"""A session's look at the market: it has the venue work the books that a quote, the walk or the
time affects, and leaves the others untouched."""

import asyncio

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.model import Quote
from trading_intents.brokers.paper.prices import TICK_MILLIS, tick_number
from trading_intents.brokers.paper.store import AskedQuotes, list_quotes
from trading_intents.brokers.paper.venue.batches import PaperVenue
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueRequest
from trading_intents.brokers.port import IntegrationContext
from trading_intents.loops import Pacer, wait_at_most
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import Symbol

# A wake-up can be lost, so a session with working orders looks for posted quotes this often.
QUOTES_SECONDS = 1.0
LOOK_PAUSE_SECONDS = 0.02  # so that many quotes are worked together


class Market:
    def __init__(self, context: IntegrationContext, venue: PaperVenue, books: AccountBooks) -> None:
        self._clock = context.clock
        self._database = context.database
        self._venue = venue
        self._books = books
        self._wakeup = asyncio.Event()
        self._is_quoted = False  # a quote was posted
        self._looked_seconds = self._quotes_seconds = 0.0

    def wake(self) -> None:
        self._wakeup.set()

    def on_quote(self) -> None:
        if self._books.working():
            self._is_quoted = True
            self._wakeup.set()

    async def wait(self, due_seconds: float) -> None:
        """Until the market may have moved, at most until then."""
        working = self._books.working()
        if working:
            due_seconds = min(due_seconds, self._looked_seconds + QUOTES_SECONDS)
        if any(book.follows_walk for book in working):
            due_seconds = min(due_seconds, self._looked_seconds + TICK_MILLIS / 1000)
        await wait_at_most(self._wakeup, due_seconds - self._clock.monotonic())
        self._wakeup.clear()
        await asyncio.sleep(self._looked_seconds + LOOK_PAUSE_SECONDS - self._clock.monotonic())

    async def look(self) -> None:
        now_seconds = self._clock.monotonic()
        is_quoted = self._is_quoted or now_seconds >= self._quotes_seconds + QUOTES_SECONDS
        self._looked_seconds = now_seconds
        self._is_quoted = False
        due = await self._find_due()
        working = self._books.working()
        if is_quoted and working:
            self._quotes_seconds = now_seconds
            due |= await self._find_quoted(working)
        if due:
            await self._venue.take(VenueRequest(books=self._books, symbols=frozenset(due)))

    async def _find_due(self) -> set[Symbol]:
        """Finds symbols in which an order expires or the walk has reached one. Other tasks run
        meanwhile."""
        due = set[Symbol]()
        now = self._clock.now()
        tick = tick_number(now)
        pacer = Pacer()
        for book in self._books.working():
            await pacer.pause_if_due()
            due_at = book.levels.due_at
            if (due_at and due_at <= now) or (book.follows_walk and book.is_reached(tick)):
                due.add(book.symbol)
        return due

    async def _find_quoted(self, working: list[OrderBook]) -> set[Symbol]:
        """Finds symbols with a new quote that an order could match."""
        books = dict[Symbol, OrderBook]()
        asked = list[AskedQuotes]()
        for book in working:
            books[book.symbol] = book
            seen = max(book.checked_quote, book.holding.posted_number)
            asked.append(self._books.asked_quotes(book.symbol, seen, only_new=True))
        async with self._database.transaction(read_only=True) as tx:
            (posted,) = await PoolTransaction(tx).run([list_quotes(asked)])
        due = set[Symbol]()
        for _, symbol, quote in posted.parse(tuple[str, Symbol, Quote]):
            book = books[symbol]
            if book.follows_walk or book.levels.could_match(quote):
                due.add(symbol)
            elif symbol not in due:
                book.checked_quote = quote.number
        return due
