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
    """`event` is the number of the account's last event that the positions include."""

    seed: int
    positions: dict[Symbol, Decimal] | None = None  # None: they must be read again
    event: int = 0
    _posted: dict[Symbol, Decimal] = field(default_factory=dict)  # the last quote's middle
    # Its tick, and the middle then.
    _walked: dict[Symbol, tuple[int, Decimal]] = field(default_factory=dict)

    def load(
        self, positions: Mapping[Symbol, Decimal], quotes: Mapping[Symbol, Quote], event: int
    ) -> None:
        """Positions as they were read, unless newer ones are known, and the last quotes of them
        that were posted."""
        if self.positions is None or event >= self.event:
            held = positions.items()
            self.positions = {symbol: quantity for symbol, quantity in held if quantity}
            self.event = event
        for symbol, quote in quotes.items():
            self._posted[symbol] = _middle(quote)
        # Of symbols that are held: no others are kept for long.
        for known in (self._posted, self._walked):
            for symbol in known.keys() - self.positions.keys():
                del known[symbol]

    def positions_at(self, event: int) -> Mapping[Symbol, Decimal] | None:
        """The positions, if they include just that event; None: they must be read again."""
        return self.positions if event == self.event else None

    def update(self, books: Iterable[OrderBook], event: int) -> None:
        if self.positions is None or event < self.event:
            return
        self.event = event
        for book in books:
            if book.holding.position:
                self.positions[book.symbol] = book.holding.position
            else:
                self.positions.pop(book.symbol, None)
            if book.quote is not None and book.quote.source is Source.POSTED:
                self._posted[book.symbol] = _middle(book.quote)

    def balance(self, account: PaperAccount, now: datetime) -> BrokerBalance:
        with exact():
            cash = normalized(account.cash)
            power = normalized(account.buying_power)
        equity = self._equity(cash, now)
        return BrokerBalance(
            currency=CURRENCY, cash=cash, buying_power=power, equity=equity, as_of=now
        )

    def _equity(self, cash: Decimal, now: datetime) -> Decimal | None:
        if self.positions is None:
            return None
        tick = tick_number(now)
        value = cash
        with exact():
            for symbol, quantity in self.positions.items():
                value += quantity * self._price(symbol, tick)
        return normalized(value)

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
