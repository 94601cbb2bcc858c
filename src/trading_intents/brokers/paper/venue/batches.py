"""The paper venue: takes what waits, of all accounts, in one transaction that locks the accounts,
matches, and writes orders, holdings, events and the journal. The truth is in the database; books in
memory only save reading."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.paper import model
from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.book.rules import REFUSALS
from trading_intents.brokers.paper.faults import ActiveFaults, Fault, FaultKind, draw_faults
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperEvent,
    PaperHolding,
    PaperLeg,
    Quote,
)
from trading_intents.brokers.paper.prices import tick_number, walk_middle_cents, walk_quote
from trading_intents.brokers.paper.store import CommandTarget, TargetRow, find_targets
from trading_intents.brokers.paper.venue import store
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueReply, VenueRequest
from trading_intents.brokers.paper.venue.store import Arrival, AskedQuotes
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
LOCKED = port.CommandResult(outcome=port.Outcome.NOT_SENT, message="the account is held elsewhere")


@dataclass(slots=True, kw_only=True)
class _VenueBatch:
    now: datetime
    faults: dict[UUID, list[Fault]]
    known: set[tuple[UUID, str]]
    targets: dict[CommandTarget, TargetRow]
    arrivals: list[Arrival] = field(default_factory=list)
    spent: list[Fault] = field(default_factory=list)


class _TwoSessions(Exception):
    """A batch has requests of two sessions of one account, which do not know each other's
    changes."""


class PaperVenue:
    def __init__(self, context: port.IntegrationContext) -> None:
        self._transactions = context.open_transactions()
        self._clock = context.clock
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
        if len({id(r.books) for r in requests}) > len({r.books.account_id for r in requests}):
            raise _TwoSessions  # each by itself
        try:
            async with self._transactions.transaction() as tx:
                replies, events = await self._run(tx, requests)
        except BaseException:
            for request in requests:
                request.books.clear()  # the outcome is not known here
            raise
        for account_id, books in {
            request.books.account_id: request.books for request in requests
        }.items():
            if account_events := events.get(account_id):
                faults = [
                    r.faults for q, r in zip(requests, replies, strict=True) if q.books is books
                ]
                books.on_events(account_events, faults)
            books.trim()
        return replies

    async def _run(
        self, tx: PipelinedTransaction, requests: Sequence[VenueRequest]
    ) -> tuple[list[VenueReply], dict[UUID, list[PaperEvent]]]:
        batch, totals, quotes = await self._read(tx, requests)
        replies = []
        pacer = Pacer()
        for request in requests:
            replies.append(
                self._apply(request, batch, quotes) if request.is_taken else VenueReply(LOCKED)
            )
            await pacer.pause_if_due()
        taken = {
            request.books.account_id: request.books for request in requests if request.is_taken
        }
        books = [
            (account_id, book) for account_id, each in taken.items() for book in each.books.values()
        ]
        changed = [(account_id, book) for account_id, book in books if book.events or book.changed]
        events: dict[UUID, list[PaperEvent]] = {}
        for account_id, book in changed:
            events.setdefault(account_id, []).extend(book.events)
        for account_events in events.values():
            account_events.sort(key=lambda each: each.seq)
        moved = {
            key: each.totals
            for key, each in taken.items()
            if each.totals and each.totals != totals[key]
        }
        orders = [
            (key, book.orders[number]) for key, book in changed for number in sorted(book.changed)
        ]
        await tx.commit(
            [
                *([store.save_faults(batch.spent)] if batch.spent else ()),
                *([store.add_commands(batch.arrivals)] if batch.arrivals else ()),
                *([store.save_orders(orders)] if orders else ()),
                *(
                    [store.save_holdings({(k, b.symbol): b.holding for k, b in changed})]
                    if changed
                    else ()
                ),
                *(
                    [store.add_events([(k, each) for k, made in events.items() for each in made])]
                    if events
                    else ()
                ),
                *([store.save_accounts(moved)] if moved else ()),
            ]
        )
        return replies, events

    async def _read(
        self, tx: PipelinedTransaction, requests: Sequence[VenueRequest]
    ) -> tuple[_VenueBatch, dict[UUID, PaperAccount], dict[AccountSymbol[UUID], list[Quote]]]:
        keys = {book_key for request in requests for book_key in request.book_keys}
        by_account = {request.books.account_id: request.books for request in requests}
        targets = [target for request in requests if (target := request.target)]
        unread = [(each, symbol) for each, symbol in keys if symbol not in by_account[each].books]
        ids = [
            (each.books.account_id, each.ticket.client_order_id) for each in requests if each.ticket
        ]
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
        totals = store.parse_accounts(locked)
        for request in requests:
            is_gone = request.is_abandoned or request.books.is_closed
            request.is_taken = request.books.account_id in totals and not is_gone
        quotes = store.parse_quotes(posted)
        stale = [
            each for key, each in by_account.items() if key in totals and each.totals != totals[key]
        ]
        self._put_books(by_account, store.parse_holdings(held), keys)
        if stale:
            quotes |= await self._reload(tx, stale, totals, keys)
        batch = _VenueBatch(
            now=store.parse_clock(clock),
            faults=store.parse_faults(faults),
            known=store.parse_commands(known),
            targets=store.parse_targets(meant),
        )
        return batch, totals, quotes

    async def _reload(
        self,
        tx: PipelinedTransaction,
        stale: Sequence[AccountBooks],
        totals: dict[UUID, PaperAccount],
        requested: set[AccountSymbol[UUID]],
    ) -> dict[AccountSymbol[UUID], list[Quote]]:
        by_account = {each.account_id: each for each in stale}
        (working,) = await tx.run([store.list_working(by_account)])
        orders = store.parse_orders(working)
        keys = {key for key in requested if key[0] in by_account}
        keys |= {(account_id, order.symbol) for account_id, order in orders}
        (held,) = await tx.run([store.read_holdings(keys)])
        for each in stale:
            each.clear()
            each.totals = totals[each.account_id]
        self._put_books(by_account, store.parse_holdings(held), keys)
        for account_id, order in orders:
            by_account[account_id].books[order.symbol].orders[order.number] = order
        (posted,) = await tx.run([_list_quotes(by_account, keys)])
        return store.parse_quotes(posted)

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

    def _apply(
        self,
        request: VenueRequest,
        batch: _VenueBatch,
        quotes: Mapping[AccountSymbol[UUID], list[Quote]],
    ) -> VenueReply:
        books = request.books
        books.worked_at = batch.now
        concerned = [
            books.books[symbol] for _, symbol in sorted(request.book_keys)
        ] or books.working()
        for book in concerned:
            self._catch_up(books, book, quotes.get((books.account_id, book.symbol)), batch.now)
        if request.ticket is None:
            return VenueReply(port.CommandResult(outcome=port.Outcome.ACKED))
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
        if result.outcome is not port.Outcome.NOT_SENT and FaultKind.LOSE not in faults:
            key = (books.account_id, request.ticket.client_order_id)
            is_duplicate = key in batch.known
            batch.known.add(key)
            order_number = None if is_duplicate else made
            row = Arrival(
                account_id=books.account_id,
                seq=number,
                command=request.command,
                client_order_id=key[1],
                number=order_number,
                duplicate=is_duplicate,
                ticket="",
                at=batch.now,
            )
            batch.arrivals.append(replace(row, ticket=json_text(request.ticket)))
            if (
                request.command == "SUBMIT"
                and made
                and not is_duplicate
                and result.outcome is port.Outcome.ACKED
            ):
                # Found by their ids, as any order.
                for n, leg in enumerate(request.ticket.legs, start=1):
                    batch.known.add((books.account_id, leg.client_order_id))
                    leg_row = replace(
                        row, seq=number + n, client_order_id=leg.client_order_id, number=made + n
                    )
                    batch.arrivals.append(leg_row)
                books.totals = replace(books.totals, commands=number + len(request.ticket.legs))
        return VenueReply(result, faults)

    def _catch_up(
        self, books: AccountBooks, book: OrderBook, posted: Sequence[Quote] | None, now: datetime
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
            at = (
                max(book.holding.number, tick - MAX_TICKS_BACK)
                if book.holding.source is model.Source.WALK
                else tick
            )
            while has_orders and (match := self.next_match_tick(book, at, tick)) is not None:
                book.feed(walk_quote(self._seed, book.symbol, match))
                at = match
            book.show(walk_quote(self._seed, book.symbol, tick))
        book.keep_time(now)
        books.totals = book.account

    def _execute(
        self,
        request: VenueRequest,
        ticket: port.OrderTicket,
        batch: _VenueBatch,
        faults: ActiveFaults,
    ) -> tuple[port.CommandResult, int | None]:
        """Executes the command; gives its events and the number of the order that it made or
        named."""
        books = request.books
        now = batch.now
        if ticket.not_after is not None and self._clock.monotonic() > ticket.not_after:
            return port.CommandResult(outcome=port.Outcome.NOT_SENT, code=TOO_OLD), None
        if FaultKind.LOSE in faults:
            return port.CommandResult(outcome=port.Outcome.UNKNOWN, message=LOST), None
        if (books.account_id, ticket.client_order_id) in batch.known:
            return port.CommandResult(outcome=port.Outcome.UNKNOWN, code=port.DUPLICATE_ID), None
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
                order = book.submit(client_id, _terms(ticket), now, refusal, _legs(ticket))
                is_refused = order.status is model.PaperOrderStatus.REJECTED
                reason = book.events[-1].event.reason if is_refused else None
            case "REPLACE":
                reason = book.replace(order, client_id, _terms(ticket), now, refusal)
            case _:
                reason = book.cancel(order, client_id, now, refusal)
        books.totals = book.account
        number = order.number if order else None
        # All events of the order: some of them may not have been streamed yet.
        named = {
            number,
            *(each.number for each in book.orders.values() if number and each.parent == number),
        }
        updates = (*before, *(each.event for each in book.events if each.order in named))
        result = port.CommandResult(
            outcome=port.Outcome.REJECTED if reason else port.Outcome.ACKED,
            broker_order_id=order.broker_order_id if order else None,
            code=reason,
            message=REFUSALS.get(reason or "", ""),
            updates=updates,
        )
        return result, number

    def _target(
        self, request: VenueRequest, batch: _VenueBatch, book: OrderBook
    ) -> tuple[model.PaperOrder | None, Sequence[port.BrokerEvent]]:
        found = batch.targets.get(request.target) if request.target else None
        if found is None or found.order.symbol != book.symbol:
            return None, ()
        return book.orders.setdefault(found.order.number, found.order), found.events

    def _lacks_room(self, books: AccountBooks) -> str | None:
        working = sum(len(book.orders) for book in books.books.values())
        return TOO_MANY_ORDERS if working >= self._max_working_orders else None


def _list_quotes(
    by_account: Mapping[UUID, AccountBooks], keys: Iterable[AccountSymbol[UUID]]
) -> Statement:
    asked = [(by_account[account_id], symbol) for account_id, symbol in keys]
    return store.list_quotes(
        [
            AskedQuotes(a.account_id, symbol, a.organization_id, _seen(a.books.get(symbol)))
            for a, symbol in asked
        ]
    )


def _seen(book: OrderBook | None) -> int | None:
    """The number of the posted quote after which the book's orders need all quotes; None: the
    present one is enough."""
    return book.holding.posted_number if book and book.orders else None


def _terms(ticket: port.OrderTicket | port.LegTicket) -> model.PaperTerms:
    return msgspec.convert(ticket, model.PaperTerms, from_attributes=True)


def _legs(ticket: port.OrderTicket) -> list[PaperLeg]:
    return [
        PaperLeg(leg=each.leg, client_order_id=each.client_order_id, terms=_terms(each))
        for each in ticket.legs
    ]
