"""Requests of sessions to the paper venue, its replies, and an account's books as they are kept in
memory."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import chain, groupby
from uuid import UUID

from msgspec.structs import asdict, replace

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.faults import ActiveFaults
from trading_intents.brokers.paper.model import (
    JournalRow,
    PaperAccount,
    PaperHolding,
    PaperOrder,
)
from trading_intents.brokers.paper.store import AskedQuotes, FoundOrder
from trading_intents.brokers.paper.venue.store import VenueWrites
from trading_intents.brokers.port import BrokerEvent, CommandResult, OrderTicket
from trading_intents.ids import OrganizationId
from trading_intents.trading import FrozenStruct, Symbol


class VenueReply(FrozenStruct):
    result: CommandResult
    faults: ActiveFaults = ActiveFaults()


@dataclass(slots=True, kw_only=True)
class AccountBooks:
    """An account's state at the venue as it was last committed here: totals, holdings, and the
    books of symbols in which orders work. It counts as known while the totals in the database are
    the same."""

    seed: int
    account_id: UUID
    organization_id: OrganizationId
    # With what was committed.
    on_rows: Callable[[Sequence[JournalRow], Sequence[ActiveFaults]], None]
    totals: PaperAccount | None = None  # None: they must be read
    _present: PaperAccount | None = None  # as the present batch has made them
    holdings: dict[str, PaperHolding] = field(default_factory=dict)
    books: dict[str, OrderBook] = field(default_factory=dict)
    # Of the present batch: the journal's rows, and the orders that changed, with those that ended.
    rows: list[JournalRow] = field(default_factory=list)
    changed: dict[int, PaperOrder] = field(default_factory=dict)
    worked_at: datetime | None = None  # by the database's clock
    is_closed: bool = False  # its session has ended, so nothing more is taken

    def clear(self) -> None:
        self.totals = None
        self.holdings.clear()
        self.books.clear()
        self.forget()

    def begin(self, totals: PaperAccount) -> bool:
        """Begins a batch, with the account's row locked. False: the books must be read anew."""
        self._present = totals
        if self.totals == totals:
            return True
        self.clear()
        self.totals = totals
        return False

    @property
    def present(self) -> PaperAccount:
        """The totals as the present batch has made them."""
        assert self._present is not None
        return self._present

    def book(self, symbol: str) -> OrderBook:
        """The symbol's book, with the account's present totals."""
        if symbol not in self.books:
            self.books[symbol] = OrderBook(
                seed=self.seed,
                account_id=str(self.account_id),
                symbol=Symbol(symbol),
                account=self.present,
                holding=self.holdings.get(symbol, PaperHolding()),
                orders={},
            )
        book = self.books[symbol]
        book.account = self.present
        return book

    def positions(self) -> dict[Symbol, Decimal]:
        held = self.holdings.items()
        return {Symbol(symbol): each.position for symbol, each in held if each.position}

    def asked_quotes(
        self, symbol: str, after: int | None = None, only_new: bool = False
    ) -> AskedQuotes:
        return AskedQuotes(self.organization_id, self.account_id, symbol, after, only_new)

    def working(self) -> list[OrderBook]:
        return [book for book in self.books.values() if book.orders]

    def latest(self, found: FoundOrder | None) -> PaperOrder | None:
        """The order as the batch has changed it since it was read."""
        return self.changed.get(found.order.number, found.order) if found else None

    def count_working(self) -> int:
        return sum(len(book.orders) for book in self.books.values())

    def take_number(self) -> int:
        """The number of a row without an event."""
        self._present = replace(self.present, events=self.present.events + 1)
        return self._present.events

    def add_row(self, at: datetime, number: int | None = None) -> JournalRow:
        row = JournalRow(
            account_id=self.account_id, seq=self.take_number(), number=number, at=at, events=[]
        )
        self.rows.append(row)
        return row

    def add_events(self, book: OrderBook, at: datetime) -> list[JournalRow]:
        """Takes over what a step did in the book. An order's first row names it, and the last one
        has it as it ended."""
        self._present = book.account
        by_order: dict[int | None, JournalRow] = {}
        added = list[JournalRow]()
        for number, run in groupby(book.events, lambda each: each.order):
            events = list(run)
            row = JournalRow(
                account_id=self.account_id,
                seq=events[0].seq,
                number=number,
                at=at,
                events=[each.event for each in events],
            )
            if row.seq == number:
                row.command = "SUBMIT"
                row.client_order_id = row.events[0].client_order_id
                row.duplicate = False
            by_order[number] = row
            added.append(row)
        self.rows += added
        book.events = []
        for order in book.take_changed():
            self.changed[order.number] = order
            if not order.is_working:
                row = by_order.get(order.number) or self.add_row(at, order.number)
                row.ended = order
        return added

    def add_answer(
        self, book: OrderBook, order: PaperOrder | None, at: datetime
    ) -> tuple[JournalRow, Iterable[BrokerEvent]]:
        """Takes over what a command did. Gives its row, and all that happened in this batch to its
        order and the legs, as some of it may not have been streamed yet."""
        number = order.number if order else None
        numbers = {number} | book.legs_of(number)
        added = self.add_events(book, at)
        own = [row.events for row in (self.rows if order else added) if row.number in numbers]
        return next(row for row in added if row.number == number), chain.from_iterable(own)

    def add_writes(self, writes: VenueWrites) -> None:
        before = self.totals
        assert before is not None
        key = {"account_id": self.account_id}
        ended = list[int]()
        for order in self.changed.values():
            if order.is_working:
                writes.working.append({**key, "number": order.number, "state": order})
            elif order.number <= before.events:
                ended.append(order.number)
        if ended:
            writes.ended[self.account_id] = ended
        for symbol in {order.symbol for order in self.changed.values()}:
            holding = self.books[symbol].holding
            writes.holdings.append({**key, "symbol": symbol, **asdict(holding)})
        if self.changed and self.present == before:
            self.take_number()  # by which other sessions see that their books are older
        if self.present != before:
            writes.accounts.append({**key, **asdict(self.present)})
        writes.rows += self.rows

    def keep(self) -> None:
        """After the commit: what the batch made is known, and books without an order are not
        kept."""
        for order in self.changed.values():
            self.holdings[order.symbol] = self.books[order.symbol].holding
        for symbol, book in list(self.books.items()):
            book.failed = []
            if not book.orders:
                del self.books[symbol]
        self.totals = self._present
        self.forget()

    def forget(self) -> None:
        """Nothing of the present batch."""
        self.rows = []
        self.changed = {}


@dataclass(slots=True, kw_only=True)
class VenueRequest:
    """A session's request to the venue: a command, or without a ticket that its books be brought up
    to now. Once it `is_taken` nobody knows what became of it before the reply."""

    books: AccountBooks
    command: str = ""
    ticket: OrderTicket | None = None
    symbols: frozenset[Symbol] = frozenset()  # to be brought up to now
    is_abandoned: bool = False  # its caller was cancelled before it was taken
    is_taken: bool = False
