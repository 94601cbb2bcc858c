"""One account's desk: commands that came together, or a look at the market, are one transaction that loads the book,
works it and writes it down. The truth is in the database; what is kept here only saves reading."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

import msgspec

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.faults import Fault, Struck, strike
from trading_intents.brokers.paper.matching import Book
from trading_intents.brokers.paper.model import Holding, Order, OrderStatus, Quote, Source, Terms
from trading_intents.brokers.paper.prices import tick_number, walk_quote
from trading_intents.brokers.paper.rules import stirs
from trading_intents.brokers.paper.store import Arrival, Opened, Wanted
from trading_intents.brokers.port import DUPLICATE_ID, CommandResult, IntegrationContext, OrderTicket, Outcome
from trading_intents.errors import Unavailable
from trading_intents.storage.database import Tx
from trading_intents.trading import Symbol

# How far back a link that was away looks for what the walk did meanwhile: five minutes.
MOST_TICKS = 1_200
TOO_OLD, LOST, SCRIPTED = "too_old_to_send", "the link was lost", "scripted_refusal"
DOWN = "the link is down"


@dataclass(frozen=True, slots=True)
class Reply:
    result: CommandResult
    struck: Struck = Struck()


@dataclass(frozen=True, slots=True)
class Watched:
    """The quote that a symbol's resting orders were last asked about. It says nothing of an order that came since, or
    that was just being taken: `places`, of the account as it was read, tells."""

    source: Source
    number: int
    places: int
    resting: tuple[Order, ...]


Act = Callable[[Book, Order | None, datetime, Struck], CommandResult]


@dataclass(slots=True)
class Asked:
    """A command in line. Once it `is_taken` nobody knows what became of it before the reply."""

    command: str
    ticket: OrderTicket
    act: Act
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_taken: bool = False

    @property
    def ids(self) -> list[str]:
        return [each for each in (self.ticket.client_order_id, self.ticket.orig_client_order_id) if each]

    def arrival(self, number: int | None, duplicate: bool) -> Arrival:
        ticket = msgspec.json.encode(self.ticket).decode()
        return Arrival(self.command, self.ticket.client_order_id, number, duplicate, ticket)

    def fail(self, error: Exception) -> None:
        if not self.reply.done():  # who asked may have gone
            self.reply.set_exception(error)


class Desk:
    """`down` is the link's end: what is in line then was not sent."""

    def __init__(self, context: IntegrationContext, down: asyncio.Event) -> None:
        self._pool, self._account = context.database, context.account
        self._seed, self._cash = int(context.settings["PAPER_SEED"]), Decimal(context.settings["PAPER_CASH"])
        self._watched: dict[Symbol, Watched] = {}
        self._places = 0
        # Whoever waits for the account's row holds a connection: of one link, only one does.
        self._turn = asyncio.Lock()
        self._down, self._line = down, list[Asked]()
        self._taking: asyncio.Task[None] | None = None

    @property
    def has_orders(self) -> bool:
        return any(watched.resting for watched in self._watched.values())

    @property
    def walks(self) -> bool:
        """Whether an order rests where the price moves by itself."""
        return any(watched.resting and watched.source is Source.WALK for watched in self._watched.values())

    async def open(self) -> int:
        """The number of the account's last event."""
        async with self._pool.transaction() as tx:
            await store.insert_account(tx, self._account.id, self._account.organization_id, self._cash)
            return (await store.read_account(tx, self._account.id)).account.events

    def submit(self, ticket: OrderTicket) -> Asked:
        def act(book: Book, _: Order | None, now: datetime, struck: Struck) -> CommandResult:
            order = book.submit(ticket.client_order_id, _terms(ticket), now, _scripted(struck))
            refused = order.status is OrderStatus.REJECTED
            reason = book.happenings[-1].event.reason if refused else None
            return _result(book, reason, order)

        return Asked("SUBMIT", ticket, act)

    def replace(self, ticket: OrderTicket) -> Asked:
        def act(book: Book, order: Order | None, now: datetime, struck: Struck) -> CommandResult:
            reason = book.replace(order, ticket.client_order_id, _terms(ticket), now, _scripted(struck))
            return _result(book, reason, order)

        return Asked("REPLACE", ticket, act)

    def cancel(self, ticket: OrderTicket) -> Asked:
        def act(book: Book, order: Order | None, now: datetime, struck: Struck) -> CommandResult:
            reason = book.cancel(order, ticket.client_order_id, now, _scripted(struck))
            return _result(book, reason, order)

        return Asked("CANCEL", ticket, act)

    async def take(self, asked: Asked) -> Reply:
        """With all that are in line by its turn. Who leaves the line before that was never there."""
        self._line.append(asked)
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take_line())
        return await asked.reply

    async def _take_line(self) -> None:
        while self._line:
            async with self._turn:
                line, self._line = self._line, []
                try:
                    await self._work(line)
                except Exception as error:
                    for asked in line:
                        asked.fail(error)

    async def look(self) -> int:
        """Works what the market brought since, and gives the number of the last event. Writes only if it brought
        something: the first pass holds no lock and is thrown away."""
        async with self._pool.transaction(read_only=True, isolation="repeatable read") as tx:
            opened = await store.read_account(tx, self._account.id)
            books = await self._load(tx, opened, await store.list_working(tx, self._account.id))
        if not any(book.happenings for book in books):
            self._watch(books, opened.account.places)
            return opened.account.events
        async with self._turn, self._pool.transaction() as tx:
            opened = await store.lock_account(tx, self._account.id)
            books = await self._load(tx, opened, await store.list_working(tx, self._account.id))
            stirred = [book for book in books if book.happenings]
            if stirred:
                await self._save(tx, stirred)
        self._watch(books, opened.account.places)
        return books[-1].account.events if books else opened.account.events

    def is_due(self, now: datetime) -> bool:
        """Whether the walk, or the time, has come to something that rests here."""
        tick = tick_number(now)
        for symbol, watched in self._watched.items():
            if any(order.expires_at <= now for order in watched.resting):
                return True
            if watched.source is Source.WALK and watched.resting:
                for number in range(max(watched.number, tick - MOST_TICKS) + 1, tick + 1):
                    quote = walk_quote(self._seed, symbol, number)
                    if any(stirs(order, quote) for order in watched.resting):
                        return True
                self._watched[symbol] = replace(watched, number=max(watched.number, tick))
        return False

    async def _work(self, line: Sequence[Asked]) -> None:
        """Those who are still there once the account is held."""
        if self._down.is_set():
            raise Unavailable(DOWN)
        async with self._pool.transaction() as tx:
            await store.lock_account(tx, self._account.id)
            line = [asked for asked in line if not asked.reply.done()]
            for asked in line:
                asked.is_taken = True
            opened = await store.lock_account(tx, self._account.id, commands=len(line))
            replies, books = await self._take_all(tx, opened, line)
        if books:
            self._watch(books, books[-1].account.places, only=True)
        for asked, reply in zip(line, replies, strict=True):
            if not asked.reply.done():
                asked.reply.set_result(reply)

    async def _take_all(self, tx: Tx, opened: Opened, line: Sequence[Asked]) -> tuple[list[Reply], list[Book]]:
        account_id, number = self._account.id, opened.account.commands - len(line)
        known = await store.find_commands(tx, account_id, [each for asked in line for each in asked.ids])
        meant = [await self._meant(tx, asked, known) for asked in line]
        books = await self._open_books(tx, opened, line, meant)
        for book in books.values():
            opened = opened._replace(account=book.account)  # the last one's, after what the market brought
        replies: list[Reply] = []
        arrivals: list[tuple[int, Arrival]] = []
        for asked, order in zip(line, meant, strict=True):
            number += 1
            struck = Struck()
            if opened.faulty:
                struck = await strike(tx, account_id, self._seed, asked.command, number)
            used = asked.ticket.client_order_id in known
            book = books[order.terms.symbol if order else asked.ticket.symbol]
            book.account = opened.account
            book.overfill = Fault.OVERFILL in struck
            result, made = _take(asked, order, book, used, struck, opened.now)
            if result.outcome is not Outcome.NOT_SENT and Fault.LOSE not in struck:
                known.setdefault(asked.ticket.client_order_id, made)
                arrivals.append((number, asked.arrival(None if used else made, used)))
            opened = opened._replace(account=book.account)
            replies.append(Reply(result, struck))
        await store.add_commands(tx, account_id, arrivals, opened.now)
        for book in books.values():
            book.account = opened.account
        await self._save(tx, list(books.values()))
        return await self._tell_stories(tx, meant, replies), list(books.values())

    async def _tell_stories(self, tx: Tx, meant: Sequence[Order | None], replies: list[Reply]) -> list[Reply]:
        """All of what an order did: some of it may still be on its way through the stream."""
        numbers = sorted({order.number for order in meant if order})
        stories = await store.list_events_of(tx, self._account.id, numbers) if numbers else {}
        return [
            replace(reply, result=replace(reply.result, updates=tuple(stories[order.number])))
            if order and reply.result.outcome in (Outcome.ACKED, Outcome.REJECTED)
            else reply
            for order, reply in zip(meant, replies, strict=True)
        ]

    async def _meant(self, tx: Tx, asked: Asked, known: Mapping[str, int | None]) -> Order | None:
        """The order that a REPLACE or CANCEL names, by any id that it ever had."""
        ticket = asked.ticket
        if asked.command == "SUBMIT":
            return None
        number = known.get(ticket.orig_client_order_id or "")
        if number is not None:
            return await store.find_order(tx, self._account.id, number)
        if ticket.broker_order_id is not None:
            return await store.find_order_by_broker_id(tx, self._account.id, ticket.broker_order_id)
        return None

    async def _open_books(
        self, tx: Tx, opened: Opened, line: Sequence[Asked], meant: Sequence[Order | None]
    ) -> dict[Symbol, Book]:
        pairs = list(zip(line, meant, strict=True))
        symbols = sorted({order.terms.symbol if order else asked.ticket.symbol for asked, order in pairs})
        working = await store.list_working(tx, self._account.id, symbols)
        books = {book.symbol: book for book in await self._load(tx, opened, working, symbols)}
        for order in meant:
            if order:
                books[order.terms.symbol].orders.setdefault(order.number, order)
        return books

    async def _load(
        self, tx: Tx, opened: Opened, working: Iterable[Order], symbols: Sequence[Symbol] = ()
    ) -> list[Book]:
        """The books of these symbols and of those that orders work in, each brought up to now."""
        resting: dict[Symbol, dict[int, Order]] = {symbol: {} for symbol in symbols}
        for order in working:
            resting.setdefault(order.terms.symbol, {})[order.number] = order
        if not resting:
            return []
        holdings = await store.list_holdings(tx, self._account.id, list(resting))
        account = opened.account
        account_id = str(self._account.id)
        books = [
            Book(self._seed, account_id, symbol, account, holdings.get(symbol, Holding()), orders)
            for symbol, orders in resting.items()
        ]
        wanted = [Wanted(book.symbol, self._seen(book, Source.POSTED), bool(book.orders)) for book in books]
        posted = await store.list_quotes(tx, self._account.organization_id, wanted)
        for book in books:
            book.account = account
            self._catch_up(book, posted.get(book.symbol), opened.now)
            account = book.account  # the totals go on from book to book
        return books

    def _catch_up(self, book: Book, posted: list[Quote] | None, now: datetime) -> None:
        resting = bool(book.orders)
        if posted:
            seen = self._seen(book, Source.POSTED)
            for quote in posted:
                if resting and quote.number > seen:
                    book.feed(quote)
            book.show(posted[-1])
        else:
            tick = tick_number(now)
            seen = self._seen(book, Source.WALK)
            for number in range(max(seen, tick - MOST_TICKS) + 1, tick + 1) if resting and seen else ():
                quote = walk_quote(self._seed, book.symbol, number)
                if any(stirs(order, quote) for order in book.orders.values() if order.status is OrderStatus.WORKING):
                    book.feed(quote)
            book.show(walk_quote(self._seed, book.symbol, tick))
        book.expire(now)

    def _seen(self, book: Book, source: Source) -> int:
        """The last quote of this source that resting orders were asked about."""
        watched = self._watched.get(book.symbol)
        numbers = [book.holding.number] if book.holding.source is source else [0]
        if watched and watched.source is source and watched.places == book.account.places:
            numbers.append(watched.number)
        return max(numbers)

    async def _save(self, tx: Tx, books: Sequence[Book]) -> None:
        account_id, last = self._account.id, books[-1].account
        happenings = sorted((each for book in books for each in book.happenings), key=lambda each: each.place)
        for book in books:
            await store.save_holding(tx, account_id, book.symbol, book.holding)
            await store.save_orders(tx, account_id, (book.orders[number] for number in sorted(book.changed)))
        await store.add_events(tx, account_id, last.events, happenings)
        await store.save_account(tx, account_id, last)

    def _watch(self, books: Sequence[Book], places: int, only: bool = False) -> None:
        """`only`: these are not all the symbols that orders work in."""
        if places < self._places:
            return  # read before what is watched now
        watched = dict(self._watched) if only else {}
        for book in books:
            resting = tuple(order for order in book.orders.values() if order.status is OrderStatus.WORKING)
            watched.pop(book.symbol, None)
            if resting and book.quote is not None:
                watched[book.symbol] = Watched(book.quote.source, book.quote.number, places, resting)
        self._watched, self._places = watched, places


def _take(
    asked: Asked, order: Order | None, book: Book, used: bool, struck: Struck, now: datetime
) -> tuple[CommandResult, int | None]:
    """What a command does to the book, and the order that it made or meant."""
    ticket = asked.ticket
    if ticket.not_after is not None and now > ticket.not_after:
        return CommandResult(outcome=Outcome.NOT_SENT, code=TOO_OLD), None
    if Fault.LOSE in struck:
        return CommandResult(outcome=Outcome.UNKNOWN, message=LOST), None
    if used:
        return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID), None
    result = asked.act(book, order, now, struck)
    return result, book.account.orders if asked.command == "SUBMIT" else order.number if order else None


def _terms(ticket: OrderTicket) -> Terms:
    return Terms(
        symbol=ticket.symbol,
        side=ticket.side,
        kind=ticket.kind,
        quantity=ticket.quantity,
        limit_price=ticket.limit_price,
        stop_price=ticket.stop_price,
        time_in_force=ticket.time_in_force,
    )


def _scripted(struck: Struck) -> str | None:
    return SCRIPTED if Fault.REJECT in struck else None


def _result(book: Book, reason: str | None, order: Order | None) -> CommandResult:
    number = order.number if order else None
    return CommandResult(
        outcome=Outcome.REJECTED if reason else Outcome.ACKED,
        broker_order_id=order.broker_order_id if order else None,
        code=reason,
        updates=tuple(happening.event for happening in book.happenings if happening.order == number),
    )
