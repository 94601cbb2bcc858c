"""Requests of sessions to the paper venue, its replies, and an account's books as they are kept in
memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.faults import ActiveFaults
from trading_intents.brokers.paper.model import PaperAccount, PaperEvent
from trading_intents.brokers.paper.store import CommandTarget
from trading_intents.brokers.port import CommandResult, OrderTicket
from trading_intents.ids import OrganizationId
from trading_intents.trading import AccountSymbol, FrozenStruct, Symbol

MAX_IDLE_BOOKS = 100  # of a session: books without a working order, kept for the next command


class VenueReply(FrozenStruct):
    result: CommandResult
    faults: ActiveFaults = ActiveFaults()


@dataclass(slots=True, kw_only=True)
class AccountBooks:
    """An account's state at the venue as it was last committed here: totals, and the books of
    symbols in which orders work or lately did. It counts as known while the totals in the database
    are the same."""

    account_id: UUID
    organization_id: OrganizationId
    # Once they are committed.
    on_events: Callable[[Sequence[PaperEvent], Sequence[ActiveFaults]], None]
    totals: PaperAccount | None = None
    worked_at: datetime | None = None  # by the database's clock
    books: dict[str, OrderBook] = field(default_factory=dict)
    is_closed: bool = False  # its session has ended, so nothing more is taken

    def clear(self) -> None:
        self.totals = None
        self.books.clear()

    def trim(self) -> None:
        """Removes finished orders from the books, and books without an order when there are too
        many."""
        idle = []
        for symbol, book in self.books.items():
            book.orders = {order.number: order for order in book.working()}
            book.events = []
            book.changed = set()
            book.failed = []
            if not book.orders:
                idle.append(symbol)
        for symbol in idle[: max(0, len(idle) - MAX_IDLE_BOOKS)]:
            del self.books[symbol]

    def list_events(self) -> list[PaperEvent]:
        """The new events of all books, in the account's order."""
        events = list[PaperEvent]()
        for book in self.books.values():
            events += book.events
        events.sort(key=lambda each: each.seq)
        return events

    def working(self) -> list[OrderBook]:
        return [book for book in self.books.values() if book.orders]


@dataclass(slots=True, kw_only=True)
class VenueRequest:
    """A session's request to the venue: a command, or without a ticket that its books be brought up
    to now. Once it
    `is_taken` nobody knows what became of it before the reply."""

    books: AccountBooks
    command: str = ""
    ticket: OrderTicket | None = None
    symbols: frozenset[Symbol] = frozenset()  # to be brought up to now, beside those of the ticket
    is_abandoned: bool = False  # its caller was cancelled before it was taken
    is_taken: bool = False

    @property
    def book_keys(self) -> set[AccountSymbol[UUID]]:
        symbols = set(self.symbols)
        if self.ticket:
            symbols.add(self.ticket.symbol)
        return {(self.books.account_id, symbol) for symbol in symbols}

    @property
    def target(self) -> CommandTarget | None:
        if self.ticket is None or self.command == "SUBMIT":
            return None
        return CommandTarget(
            self.books.account_id, self.ticket.orig_client_order_id, self.ticket.broker_order_id
        )
