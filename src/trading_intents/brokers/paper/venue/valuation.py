"""The value of an account at the paper broker: its positions at the middle of the present quotes,
as its session knows both. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.model import PaperAccount, Quote, Source
from trading_intents.brokers.paper.prices import CENT, TICK_MILLIS, tick_number, walk_middle_cents
from trading_intents.brokers.port import BrokerBalance
from trading_intents.trading import Symbol, exact, normalized

CURRENCY = "USD"
WALK_TICKS = 5_000 // TICK_MILLIS  # how long a price of the walk is good enough


@dataclass(slots=True)
class Valuation:
    seed: int
    is_loaded: bool = False
    _posted: dict[Symbol, Decimal] = field(default_factory=dict)  # the last quote's middle
    # Its tick, and the middle then.
    _walked: dict[Symbol, tuple[int, Decimal]] = field(default_factory=dict)

    def load(self, quotes: Mapping[Symbol, Quote]) -> None:
        """The last quotes that were posted, of all symbols that are held: no others are kept."""
        self.is_loaded = True
        self._posted = {symbol: _middle(quote) for symbol, quote in quotes.items()}
        self._walked.clear()

    def update(self, books: Iterable[OrderBook]) -> None:
        for book in books:
            if book.quote is not None and book.quote.source is Source.POSTED:
                self._posted[book.symbol] = _middle(book.quote)

    def balance(
        self, account: PaperAccount, held: Mapping[Symbol, Decimal], now: datetime
    ) -> BrokerBalance:
        tick = tick_number(now)
        with exact():
            equity = account.cash
            for symbol, quantity in held.items():
                equity += quantity * self._price(symbol, tick)
            return BrokerBalance(
                currency=CURRENCY,
                cash=normalized(account.cash),
                buying_power=normalized(account.buying_power),
                equity=normalized(equity),
                as_of=now,
            )

    def _price(self, symbol: Symbol, tick: int) -> Decimal:
        posted = self._posted.get(symbol)
        if posted is not None:
            return posted
        known = self._walked.get(symbol)
        if known is None or not 0 <= tick - known[0] < WALK_TICKS:
            middle = walk_middle_cents(self.seed, symbol, tick) * CENT
            known = self._walked[symbol] = (tick, middle)
        return known[1]


def _middle(quote: Quote) -> Decimal:
    with exact():
        return (quote.bid + quote.ask) / 2
