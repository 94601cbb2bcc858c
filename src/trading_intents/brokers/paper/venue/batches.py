"""The paper venue: takes the waiting requests of all accounts in one transaction, which locks the
accounts, matches, and writes. The truth is in the database; books in memory only save reading."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from trading_intents.brokers.paper import model
from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.book.rules import REFUSALS
from trading_intents.brokers.paper.faults import ActiveFaults, Fault, FaultKind, draw_faults
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperEvent,
    PaperHolding,
    PaperLeg,
    PaperOrder,
    Quote,
)
from trading_intents.brokers.paper.prices import tick_number, walk_middle_cents, walk_quote
from trading_intents.brokers.paper.store import CommandTarget, TargetRow, find_targets
from trading_intents.brokers.paper.venue import store
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueReply, VenueRequest
from trading_intents.brokers.paper.venue.store import Arrival, AskedQuotes
from trading_intents.brokers.port import (
    DUPLICATE_ID,
    BrokerEvent,
    CommandResult,
    IntegrationContext,
    LegTicket,
    OrderTicket,
    Outcome,
)
from trading_intents.loops import Pacer
from trading_intents.storage.grouped import GroupCommit, PipelinedTransaction
from trading_intents.storage.pipeline import Statement, json_text
from trading_intents.trading import AccountSymbol, Symbol

# How far back a session that was closed follows the walk: five minutes.
MAX_TICKS_BACK = 1_200
TOO_OLD = "too_old_to_send"
LOST = "the session was lost"
SCRIPTED = "scripted_refusal"
TOO_MANY_ORDERS = "too_many_working_orders"
LOCKED = CommandResult(outcome=Outcome.NOT_SENT, message="the account is held elsewhere")


@dataclass(slots=True, kw_only=True)
class _VenueBatch:
    now: datetime
    totals: dict[UUID, PaperAccount]  # of the accounts that are locked, as they were
    # Of each book that this batch works; none is posted for a symbol that follows the walk.
    quotes: dict[AccountSymbol[UUID], list[Quote]]
    faults: dict[UUID, list[Fault]]
    known: set[tuple[UUID, str]]
    targets: dict[CommandTarget, TargetRow]
    arrivals: list[Arrival] = field(default_factory=list)
    spent: list[Fault] = field(default_factory=list)

    def keys_of(self, account_id: UUID) -> set[AccountSymbol[UUID]]:
        """The account's books that are brought up to now: those that were read anew, or that
        another request names."""
        return {key for key in self.quotes if key[0] == account_id}


class _TwoSessions(Exception):
    """A batch has requests of two sessions of one account, which do not know each other's
    changes."""


class PaperVenue:
    def __init__(self, context: IntegrationContext) -> None:
        self._transactions = context.open_transactions()
        self._clock = context.clock
        self._metrics = context.metrics
        self._log = context.log
        self._seed = int(context.settings["PAPER_SEED"])
        self._cash = Decimal(context.settings["PAPER_CASH"])
        self._max_working_orders = int(context.settings["PAPER_MAX_OPEN_ORDERS"])
        self._group: GroupCommit[VenueRequest, VenueReply] = GroupCommit(self._work)

    async def open(self, books: AccountBooks) -> None:
        books.clear()
        async with self._transactions.transaction() as tx:
            await tx.commit(
                [store.insert_account(books.account_id, books.organization_id, self._cash)]
            )
        await self._group.put(VenueRequest(books=books))

    async def take(self, request: VenueRequest) -> VenueReply:
        """Runs the request in a batch with others. Unavailable: nothing happened. OutcomeUnknown:
        it may have."""
        return await self._group.put(request)

    def next_match_tick(self, book: OrderBook, after: int, until: int) -> int | None:
        """The first tick of the walk at which one of the book's orders could match; the walk is
        computed only as often as it can have come near."""
        tick = after + 1
        while tick <= until:
            away = book.levels.cents_away(walk_middle_cents(self._seed, book.symbol, tick))
            if away == 0:
                return tick
            tick += away
        return None

    async def _work(self, requests: list[VenueRequest]) -> list[VenueReply]:
        by_account: dict[UUID, AccountBooks] = {}
        for request in requests:
            books = request.books
            if by_account.setdefault(books.account_id, books) is not books:
                raise _TwoSessions  # each by itself
        try:
            async with self._transactions.transaction() as tx:
                replies, events = await self._run(tx, requests, by_account)
        except BaseException:
            for books in by_account.values():
                books.clear()  # the outcome is not known here
            raise
        faults: dict[UUID, list[ActiveFaults]] = {}
        for request, reply in zip(requests, replies, strict=True):
            faults.setdefault(request.books.account_id, []).append(reply.faults)
        for account_id, books in by_account.items():
            if account_events := events.get(account_id):
                books.on_events(account_events, faults[account_id])
            self._report_failed(books)
            books.trim()
        return replies

    def _report_failed(self, books: AccountBooks) -> None:
        for book in books.books.values():
            for order, error in book.failed:
                self._metrics.alert("paper_order_failed")
                self._log.error(
                    "paper order failed",
                    order=order.broker_order_id,
                    exc_info=error,
                )

    async def _run(
        self,
        tx: PipelinedTransaction,
        requests: Sequence[VenueRequest],
        by_account: Mapping[UUID, AccountBooks],
    ) -> tuple[list[VenueReply], dict[UUID, list[PaperEvent]]]:
        batch = await self._read(tx, requests, by_account)
        replies = list[VenueReply]()
        pacer = Pacer()
        for request in requests:
            replies.append(self._apply(request, batch) if request.is_taken else VenueReply(LOCKED))
            await pacer.pause_if_due()
        events: dict[UUID, list[PaperEvent]] = {}
        for account_id in batch.totals:
            if account_events := by_account[account_id].list_events():
                events[account_id] = account_events
        await tx.commit(_save(batch, by_account, events))
        return replies, events

    async def _read(
        self,
        tx: PipelinedTransaction,
        requests: Sequence[VenueRequest],
        by_account: Mapping[UUID, AccountBooks],
    ) -> _VenueBatch:
        keys = set[AccountSymbol[UUID]]()
        ids = list[tuple[UUID, str]]()
        targets = list[CommandTarget]()
        for request in requests:
            keys |= request.book_keys
            if request.ticket:
                ids.append((request.books.account_id, request.ticket.client_order_id))
            if request.target:
                targets.append(request.target)
        unread = [(each, symbol) for each, symbol in keys if symbol not in by_account[each].books]
        replies = await tx.run(
            [
                store.lock_accounts(by_account),
                store.read_clock(),
                store.read_faults(by_account),
                store.find_commands(ids),
                find_targets(targets),
                store.read_holdings(unread),
                _list_quotes(by_account, keys),
            ]
        )
        locked, clock, faults, known, meant, held, posted = replies
        batch = _VenueBatch(
            now=store.parse_clock(clock),
            totals=store.parse_accounts(locked),
            quotes=store.parse_quotes(posted, keys),
            faults=store.parse_faults(faults),
            known=store.parse_commands(known),
            targets=store.parse_targets(meant),
        )
        for request in requests:
            is_gone = request.is_abandoned or request.books.is_closed
            request.is_taken = request.books.account_id in batch.totals and not is_gone
        self._put_books(by_account, store.parse_holdings(held), keys)
        stale: dict[UUID, AccountBooks] = {}
        for account_id, totals in batch.totals.items():
            if by_account[account_id].totals != totals:
                stale[account_id] = by_account[account_id]
        if stale:
            batch.quotes |= await self._reload(tx, stale, batch.totals, keys)
        return batch

    async def _reload(
        self,
        tx: PipelinedTransaction,
        stale: Mapping[UUID, AccountBooks],
        totals: Mapping[UUID, PaperAccount],
        requested: set[AccountSymbol[UUID]],
    ) -> dict[AccountSymbol[UUID], list[Quote]]:
        (working,) = await tx.run([store.list_working(stale)])
        orders = store.parse_orders(working)
        keys = {key for key in requested if key[0] in stale}
        keys |= {(account_id, order.symbol) for account_id, order in orders}
        (held,) = await tx.run([store.read_holdings(keys)])
        for account_id, books in stale.items():
            books.clear()
            books.totals = totals[account_id]
        self._put_books(stale, store.parse_holdings(held), keys)
        for account_id, order in orders:
            stale[account_id].books[order.symbol].orders[order.number] = order
        (posted,) = await tx.run([_list_quotes(stale, keys)])
        return store.parse_quotes(posted, keys)

    def _put_books(
        self,
        by_account: Mapping[UUID, AccountBooks],
        holdings: Mapping[AccountSymbol[UUID], PaperHolding],
        keys: Iterable[AccountSymbol[UUID]],
    ) -> None:
        for account_id, symbol in keys:
            books = by_account[account_id].books
            if symbol not in books:
                books[symbol] = OrderBook(
                    seed=self._seed,
                    account_id=str(account_id),
                    symbol=Symbol(symbol),
                    account=PaperAccount(cash=self._cash),  # handed over with each use
                    holding=holdings.get((account_id, symbol), PaperHolding()),
                    orders={},
                )

    def _apply(self, request: VenueRequest, batch: _VenueBatch) -> VenueReply:
        books = request.books
        books.worked_at = batch.now
        for key in sorted(request.book_keys or batch.keys_of(books.account_id)):
            self._catch_up(books, books.books[key[1]], batch.quotes[key], batch.now)
        if request.ticket is None:
            return VenueReply(CommandResult(outcome=Outcome.ACKED))
        assert books.totals is not None
        number = books.totals.commands + 1
        books.totals = replace(books.totals, commands=number)
        faults, spent = draw_faults(
            batch.faults.get(books.account_id, ()),
            self._seed,
            books.account_id,
            request.command,
            number,
        )
        batch.spent += spent
        result, made = self._execute(request, request.ticket, batch, faults)
        if result.outcome is not Outcome.NOT_SENT and FaultKind.LOSE not in faults:
            has_legs = request.command == "SUBMIT" and result.outcome is Outcome.ACKED
            self._record(request, request.ticket, batch, made, has_legs)
        return VenueReply(result, faults)

    def _record(
        self,
        request: VenueRequest,
        ticket: OrderTicket,
        batch: _VenueBatch,
        made: int | None,
        has_legs: bool,
    ) -> None:
        """Adds the command to the journal and, if its legs were accepted, them too: they are found
        by their ids, as any order."""
        books = request.books
        assert books.totals is not None
        number = books.totals.commands
        key = (books.account_id, ticket.client_order_id)
        is_duplicate = key in batch.known
        batch.known.add(key)
        arrival = Arrival(
            account_id=books.account_id,
            seq=number,
            command=request.command,
            client_order_id=ticket.client_order_id,
            number=None if is_duplicate else made,
            duplicate=is_duplicate,
            ticket=json_text(ticket),
            at=batch.now,
        )
        batch.arrivals.append(arrival)
        if not has_legs or not made or is_duplicate:
            return
        for n, leg in enumerate(ticket.legs, start=1):
            leg_id = leg.client_order_id
            batch.known.add((books.account_id, leg_id))
            batch.arrivals.append(
                replace(arrival, seq=number + n, client_order_id=leg_id, number=made + n, ticket="")
            )
        books.totals = replace(books.totals, commands=number + len(ticket.legs))

    def _catch_up(
        self, books: AccountBooks, book: OrderBook, posted: Sequence[Quote], now: datetime
    ) -> None:
        assert books.totals is not None
        book.account = books.totals
        has_orders = bool(book.orders)
        tick = tick_number(now)
        if posted:
            seen = book.holding.posted_number
            for quote in posted:
                if has_orders and quote.number > seen:
                    book.feed(quote)
            book.show(posted[-1])
        else:
            at = tick
            if book.holding.source is model.Source.WALK:
                at = max(book.holding.number, tick - MAX_TICKS_BACK)
            while has_orders and (match := self.next_match_tick(book, at, tick)) is not None:
                book.feed(walk_quote(self._seed, book.symbol, match))
                at = match
            book.show(walk_quote(self._seed, book.symbol, tick))
        book.keep_time(now)
        books.totals = book.account

    def _execute(
        self,
        request: VenueRequest,
        ticket: OrderTicket,
        batch: _VenueBatch,
        faults: ActiveFaults,
    ) -> tuple[CommandResult, int | None]:
        """Executes the command; gives its events and the number of the order that it made or
        named."""
        books = request.books
        if ticket.not_after is not None and self._clock.monotonic() > ticket.not_after:
            return CommandResult(outcome=Outcome.NOT_SENT, code=TOO_OLD), None
        if FaultKind.LOSE in faults:
            return CommandResult(outcome=Outcome.UNKNOWN, message=LOST), None
        if (books.account_id, ticket.client_order_id) in batch.known:
            return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID), None
        book = books.books[ticket.symbol]
        refusal = SCRIPTED if FaultKind.REJECT in faults else None
        assert books.totals is not None
        book.account = books.totals
        book.overfill = FaultKind.OVERFILL in faults
        order, before = self._target(request, batch, book)
        client_id = ticket.client_order_id
        match request.command:
            case "SUBMIT":
                refusal = refusal or self._lacks_room(books)
                order = book.submit(client_id, _terms(ticket), batch.now, refusal, _legs(ticket))
                is_refused = order.status is model.PaperOrderStatus.REJECTED
                reason = book.events[-1].event.reason if is_refused else None
            case "REPLACE":
                reason = book.replace(order, client_id, _terms(ticket), batch.now, refusal)
            case _:
                reason = book.cancel(order, client_id, batch.now, refusal)
        books.totals = book.account
        number = order.number if order else None
        result = CommandResult(
            outcome=Outcome.REJECTED if reason else Outcome.ACKED,
            broker_order_id=order.broker_order_id if order else None,
            code=reason,
            message=REFUSALS.get(reason or "", ""),
            updates=(*before, *_events_of(book, number)),
        )
        return result, number

    def _target(
        self, request: VenueRequest, batch: _VenueBatch, book: OrderBook
    ) -> tuple[model.PaperOrder | None, Sequence[BrokerEvent]]:
        found = batch.targets.get(request.target) if request.target else None
        if found is None or found.order.symbol != book.symbol:
            return None, ()
        return book.orders.setdefault(found.order.number, found.order), found.events

    def _lacks_room(self, books: AccountBooks) -> str | None:
        working = sum(len(book.orders) for book in books.books.values())
        return TOO_MANY_ORDERS if working >= self._max_working_orders else None


def _save(
    batch: _VenueBatch,
    by_account: Mapping[UUID, AccountBooks],
    events: Mapping[UUID, Sequence[PaperEvent]],
) -> list[Statement]:
    totals: dict[UUID, PaperAccount] = {}
    holdings: dict[AccountSymbol[UUID], PaperHolding] = {}
    orders = list[tuple[UUID, PaperOrder]]()
    for account_id, before in batch.totals.items():
        books = by_account[account_id]
        if books.totals and books.totals != before:
            totals[account_id] = books.totals
        for book in books.books.values():
            if book.events or book.changed:
                holdings[account_id, book.symbol] = book.holding
            for number in sorted(book.changed):
                orders.append((account_id, book.orders[number]))
    statements = list[Statement]()
    if batch.spent:
        statements.append(store.save_faults(batch.spent))
    if batch.arrivals:
        statements.append(store.add_commands(batch.arrivals))
    if orders:
        statements.append(store.save_orders(orders))
    if holdings:
        statements.append(store.save_holdings(holdings))
    if events:
        statements.append(store.add_events(events))
    if totals:
        statements.append(store.save_accounts(totals))
    return statements


def _events_of(book: OrderBook, number: int | None) -> list[BrokerEvent]:
    """All events of an order and its legs: some of them may not have been streamed yet."""
    numbers = {number}
    for each in book.orders.values():
        if number and each.parent == number:
            numbers.add(each.number)
    return [each.event for each in book.events if each.order in numbers]


def _list_quotes(
    by_account: Mapping[UUID, AccountBooks], keys: Iterable[AccountSymbol[UUID]]
) -> Statement:
    asked = list[AskedQuotes]()
    for account_id, symbol in keys:
        account = by_account[account_id]
        seen = _seen(account.books.get(symbol))
        asked.append(AskedQuotes(account_id, symbol, account.organization_id, seen))
    return store.list_quotes(asked)


def _seen(book: OrderBook | None) -> int | None:
    """The number of the posted quote after which the book's orders need all quotes; None: the
    present one is enough."""
    return book.holding.posted_number if book and book.orders else None


def _terms(ticket: OrderTicket | LegTicket) -> model.PaperTerms:
    return msgspec.convert(ticket, model.PaperTerms, from_attributes=True)


def _legs(ticket: OrderTicket) -> list[PaperLeg]:
    return [
        PaperLeg(leg=each.leg, client_order_id=each.client_order_id, terms=_terms(each))
        for each in ticket.legs
    ]
