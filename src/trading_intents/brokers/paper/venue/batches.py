"""The paper venue: takes the waiting requests of all accounts in one transaction, which locks the
accounts, matches, and writes. The truth is in the database; books in memory only save reading."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.book.rules import REFUSALS
from trading_intents.brokers.paper.faults import ActiveFaults, Fault, FaultKind, draw_faults
from trading_intents.brokers.paper.model import (
    JournalRow,
    PaperAccount,
    PaperHolding,
    PaperOrder,
    Quote,
    Source,
    order_number,
)
from trading_intents.brokers.paper.prices import tick_number, walk_quote
from trading_intents.brokers.paper.store import (
    READ_CLOCK,
    AskedQuotes,
    CommandTarget,
    FoundOrder,
    find_orders,
    list_holdings,
    list_quotes,
    list_working,
)
from trading_intents.brokers.paper.venue.model import AccountBooks, VenueReply, VenueRequest
from trading_intents.brokers.paper.venue.store import (
    VenueWrites,
    find_commands,
    insert_account,
    lock_accounts,
    read_faults,
)
from trading_intents.brokers.port import (
    DUPLICATE_ID,
    CommandResult,
    IntegrationContext,
    OrderTicket,
    Outcome,
)
from trading_intents.errors import Unavailable
from trading_intents.loops import Pacer
from trading_intents.storage.grouped import GroupCommit, PipelinedTransaction
from trading_intents.trading import AccountSymbol

# How far back a session that was closed follows the walk: five minutes.
MAX_TICKS_BACK = 1_200
TOO_OLD = "too_old_to_send"
LOST = "the session was lost"
SCRIPTED = "scripted_refusal"
TOO_MANY_ORDERS = "too_many_working_orders"
HELD = "the account is held elsewhere"

ByAccount = Mapping[UUID, AccountBooks]


@dataclass(slots=True, kw_only=True)
class _VenueBatch:
    now: datetime
    totals: dict[UUID, PaperAccount]  # of the accounts that are locked, as they were
    # Of each book that this batch works; none is posted for a symbol that follows the walk.
    quotes: dict[AccountSymbol[UUID], list[Quote]]
    faults: list[Fault]
    known: set[tuple[UUID, str]]
    found: dict[CommandTarget, FoundOrder]
    writes: VenueWrites = field(default_factory=VenueWrites)

    def symbols_of(self, account_id: UUID) -> list[str]:
        """The account's symbols that are brought up to now: those that were read anew, or that
        another request names."""
        return [symbol for each, symbol in self.quotes if each == account_id]


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
            opening = insert_account(books.account_id, books.organization_id, self._cash)
            await tx.commit([opening])
        await self._group.put(VenueRequest(books=books))
        if books.totals is None:
            raise Unavailable(HELD)

    async def take(self, request: VenueRequest) -> VenueReply:
        """Runs the request in a batch with others. Unavailable: nothing happened. OutcomeUnknown:
        it may have."""
        return await self._group.put(request)

    async def _work(self, requests: list[VenueRequest]) -> list[VenueReply]:
        by_account: dict[UUID, AccountBooks] = {}
        for request in requests:
            books = request.books
            if by_account.setdefault(books.account_id, books) is not books:
                raise _TwoSessions  # each by itself
        replies = list[VenueReply]()
        pacer = Pacer()
        try:
            async with self._transactions.transaction() as tx:
                batch = await self._read(tx, requests, by_account)
                for request in requests:
                    replies.append(self._apply(request, batch))
                    await pacer.pause_if_due()
                for account_id in batch.totals:
                    by_account[account_id].add_writes(batch.writes)
                await tx.commit(batch.writes.statements())
        except BaseException:
            for books in by_account.values():
                books.clear()  # the outcome is not known here
            raise
        faults: dict[UUID, list[ActiveFaults]] = {}
        for request, reply in zip(requests, replies, strict=True):
            faults.setdefault(request.books.account_id, []).append(reply.faults)
        for account_id in batch.totals:
            books = by_account[account_id]
            if books.rows:
                books.on_rows(books.rows, faults[account_id])
            self._report_failed(books)
            books.keep()
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

    async def _read(
        self,
        tx: PipelinedTransaction,
        requests: Sequence[VenueRequest],
        by_account: ByAccount,
        reloaded: Iterable[AccountSymbol[UUID]] = (),
    ) -> _VenueBatch:
        """Accounts that are not here as they are in the database are read anew, and then all the
        rest once more."""
        keys = set(reloaded)
        ids = list[tuple[UUID, str]]()
        targets = list[CommandTarget]()
        for request in requests:
            account_id = request.books.account_id
            keys |= {(account_id, symbol) for symbol in request.symbols}
            if request.ticket:
                ids.append((account_id, request.ticket.client_order_id))
                if request.command != "SUBMIT":
                    targets.append(self._target(account_id, request.ticket))
        replies = await tx.run(
            [
                lock_accounts(by_account),
                READ_CLOCK,  # by a statement of its own: after the accounts are locked
                read_faults(by_account),
                find_commands(ids),
                find_orders(targets),
                list_quotes([_asked_quotes(by_account[each], symbol) for each, symbol in keys]),
            ]
        )
        locked, clock, faults, known, found, posted = replies
        totals = dict(locked.parse(tuple[UUID, PaperAccount]))
        stale: dict[UUID, AccountBooks] = {}
        for account_id, account in totals.items():
            if not by_account[account_id].begin(account):
                stale[account_id] = by_account[account_id]
        if stale:
            return await self._read(tx, requests, by_account, await _reload(tx, stale))
        quotes: dict[AccountSymbol[UUID], list[Quote]] = {key: [] for key in keys}
        for account_id, symbol, quote in posted.parse(tuple[UUID, str, Quote]):
            quotes[account_id, symbol].append(quote)
        return _VenueBatch(
            now=clock.parse(datetime)[0],
            totals=totals,
            quotes=quotes,
            faults=faults.parse(Fault),
            known=set(known.parse(tuple[UUID, str])),
            found={each.asked: each for each in found.parse(FoundOrder)},
        )

    def _target(self, account_id: UUID, ticket: OrderTicket) -> CommandTarget:
        number = order_number(self._seed, str(account_id), ticket.broker_order_id or "")
        return CommandTarget(account_id, ticket.orig_client_order_id, number)

    def _apply(self, request: VenueRequest, batch: _VenueBatch) -> VenueReply:
        books = request.books
        is_gone = request.is_abandoned or books.is_closed
        request.is_taken = books.account_id in batch.totals and not is_gone
        if not request.is_taken:
            return VenueReply(CommandResult(outcome=Outcome.NOT_SENT, message=HELD))
        books.worked_at = batch.now
        for symbol in sorted(request.symbols or batch.symbols_of(books.account_id)):
            book = books.book(symbol)
            self._catch_up(book, batch.quotes[books.account_id, symbol], batch.now)
            books.add_events(book, batch.now)
        ticket = request.ticket
        if ticket is None:
            return VenueReply(CommandResult(outcome=Outcome.ACKED))
        if ticket.not_after is not None and self._clock.monotonic() > ticket.not_after:
            return VenueReply(CommandResult(outcome=Outcome.NOT_SENT, code=TOO_OLD))
        faults, spent = draw_faults(
            [fault for fault in batch.faults if fault.account_id == books.account_id],
            self._seed,
            books.account_id,
            request.command,
            books.present.events,
        )
        batch.writes.faults += spent
        if FaultKind.LOSE in faults:
            books.take_number()  # else the next would be lost too
            result = CommandResult(outcome=Outcome.UNKNOWN, message=LOST)
        else:
            result = self._execute(books, request.command, ticket, batch, faults)
        return VenueReply(result, faults)

    def _catch_up(self, book: OrderBook, posted: Sequence[Quote], now: datetime) -> None:
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
            if book.holding.source is Source.WALK:
                at = max(book.holding.number, tick - MAX_TICKS_BACK)
            while has_orders and (match := book.next_match_tick(at, tick)) is not None:
                book.feed(walk_quote(self._seed, book.symbol, match))
                at = match
            book.show(walk_quote(self._seed, book.symbol, tick))
        book.keep_time(now)

    def _execute(
        self,
        books: AccountBooks,
        command: str,
        ticket: OrderTicket,
        batch: _VenueBatch,
        faults: ActiveFaults,
    ) -> CommandResult:
        """Executes a command that arrived, and adds it to the journal."""
        key = (books.account_id, ticket.client_order_id)
        is_duplicate = key in batch.known
        batch.known.add(key)
        if is_duplicate:
            row = books.add_row(batch.now)
            result = CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID)
        else:
            row, result = self._execute_new(books, command, ticket, batch, faults)
        row.command = command
        row.client_order_id = ticket.client_order_id
        row.duplicate = is_duplicate
        row.ticket = ticket
        if result.outcome is Outcome.ACKED:
            batch.known |= {(books.account_id, leg.client_order_id) for leg in ticket.legs}
        return result

    def _execute_new(
        self,
        books: AccountBooks,
        command: str,
        ticket: OrderTicket,
        batch: _VenueBatch,
        faults: ActiveFaults,
    ) -> tuple[JournalRow, CommandResult]:
        """Gives the command's row, too."""
        book = books.book(ticket.symbol)
        book.overfill = FaultKind.OVERFILL in faults
        refusal = SCRIPTED if FaultKind.REJECT in faults else None
        if command == "SUBMIT" and books.count_working() >= self._max_working_orders:
            refusal = refusal or TOO_MANY_ORDERS
        found = batch.found.get(self._target(books.account_id, ticket))
        if found and found.order.symbol != book.symbol:
            found = None
        order, reason = book.execute(command, books.latest(found), ticket, batch.now, refusal)
        row, events = books.add_answer(book, order, batch.now)
        result = CommandResult(
            outcome=Outcome.REJECTED if reason else Outcome.ACKED,
            broker_order_id=order.broker_order_id if order else None,
            code=reason,
            message=REFUSALS.get(reason or "", ""),
            updates=(*(found.events if found else ()), *events),
        )
        return row, result


async def _reload(tx: PipelinedTransaction, stale: ByAccount) -> list[AccountSymbol[UUID]]:
    """Gives the books in which orders work."""
    working, held = await tx.run([list_working(stale), list_holdings(stale)])
    for account_id, symbol, holding in held.parse(tuple[UUID, str, PaperHolding]):
        stale[account_id].holdings[symbol] = holding
    keys = list[AccountSymbol[UUID]]()
    for account_id, order in working.parse(tuple[UUID, PaperOrder]):
        stale[account_id].book(order.symbol).orders[order.number] = order
        keys.append((account_id, order.symbol))
    return keys


def _asked_quotes(books: AccountBooks, symbol: str) -> AskedQuotes:
    """A book's orders need all quotes after the last one that was worked; without one, the present
    quote is enough."""
    book = books.books.get(symbol)
    return books.asked_quotes(symbol, book.holding.posted_number if book else None)
