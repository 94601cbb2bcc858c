"""A book to play with: orders and quotes in a few characters, and what happened as short texts."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from trading_intents.brokers.paper.matching import OrderBook
from trading_intents.brokers.paper.model import PaperAccount, PaperHolding, PaperOrder, PaperTerms, Quote, Source
from trading_intents.brokers.port import EventKind
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce, amount_text

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
CASH = Decimal(1_000_000)
ACME = Symbol("ACME")
KINDS = {
    "market": OrderKind.MARKET,
    "limit": OrderKind.LIMIT,
    "stop": OrderKind.STOP,
    "stoplimit": OrderKind.STOP_LIMIT,
}
SIDES = {"buy": OrderSide.BUY, "sell": OrderSide.SELL, "short": OrderSide.SELL_SHORT}
TIMES = {
    "day": TimeInForce.DAY,
    "gtc": TimeInForce.GOOD_TILL_CANCEL,
    "ioc": TimeInForce.IMMEDIATE_OR_CANCEL,
    "fok": TimeInForce.FILL_OR_KILL,
}


def terms(text: str, symbol: Symbol = ACME) -> PaperTerms:
    """Such as `buy 10 limit 99.5 ioc` or `sell 5 stoplimit 98 97.5`: the stop comes first."""
    side, quantity, kind, *rest = text.split()
    time = rest.pop() if rest and rest[-1] in TIMES else "day"
    stop = Decimal(rest.pop(0)) if kind in ("stop", "stoplimit") else None
    limit = Decimal(rest.pop(0)) if kind in ("limit", "stoplimit") else None
    assert not rest
    return PaperTerms(
        symbol=symbol,
        side=SIDES[side],
        kind=KINDS[kind],
        quantity=Decimal(quantity),
        limit_price=limit,
        stop_price=stop,
        time_in_force=TIMES[time],
    )


class Market:
    """Time stands still but for `later`; the quotes are posted ones."""

    def __init__(self, position: int = 0, cash: Decimal = CASH) -> None:
        self.now = NOON
        self.number = 0
        self.book = OrderBook(7, "account", ACME, PaperAccount(cash=cash), PaperHolding(position=Decimal(position)), {})

    def later(self, **time: int) -> None:
        self.now += timedelta(**time)

    def quote(self, text: str) -> str:
        self.book.feed(self.next_quote(text))
        return self.said()

    def next_quote(self, text: str) -> Quote:
        """Such as `99x5 101x7` or, with a trade, `99x5 101x7 100x3`."""
        (bid, bid_size), (ask, ask_size), *trade = (part.split("x") for part in text.split())
        self.number += 1
        last = trade[0] if trade else []
        return Quote(
            source=Source.POSTED,
            number=self.number,
            at=self.now,
            bid=Decimal(bid),
            ask=Decimal(ask),
            bid_size=Decimal(bid_size),
            ask_size=Decimal(ask_size),
            last=Decimal(last[0]) if last else None,
            last_size=Decimal(last[1]) if len(last) > 1 else None,
        )

    def submit(self, text: str) -> str:
        self.book.submit(f"c{self.book.account.orders + 1}", terms(text), self.now)
        return self.said()

    def replace(self, number: int, text: str) -> str:
        self.book.replace(self.order(number), f"r{self.book.account.places}", terms(text), self.now)
        return self.said()

    def cancel(self, number: int) -> str:
        self.book.cancel(self.book.orders.get(number), f"x{number}", self.now)
        return self.said()

    def expire(self) -> str:
        self.book.expire(self.now)
        return self.said()

    def order(self, number: int) -> PaperOrder:
        return self.book.orders[number]

    def said(self) -> str:
        """What happened since it was last asked: `1 fill 5@101, 2 cancelled immediate_or_cancel`."""
        said = []
        for each in self.book.events:
            event = each.event
            words = [str(each.order), event.kind.lower()]
            if event.kind is EventKind.FILL:
                assert event.quantity is not None
                assert event.price is not None
                words.append(f"{amount_text(event.quantity)}@{amount_text(event.price)}")
            said.append(" ".join([*words, *([event.reason] if event.reason else [])]))
        self.book.events.clear()
        return ", ".join(said)


def play(lines: str, position: int = 0, cash: Decimal = CASH) -> None:
    """One step a line, `what to do -> what happens`: a quote, `buy …`, `replace 1 …`, `cancel 1` or `after 3 hours`."""
    market = Market(position, cash)
    for line in filter(None, map(str.strip, lines.splitlines())):
        step, arrow, expected = line.partition("->")
        assert arrow
        word, _, rest = step.strip().partition(" ")
        if word in SIDES:
            happened = market.submit(step)
        elif word == "replace":
            number, _, text = rest.partition(" ")
            happened = market.replace(int(number), text)
        elif word == "cancel":
            happened = market.cancel(int(rest))
        elif word == "after":
            count, unit = rest.split()
            market.later(**{unit: int(count)})
            happened = market.expire()
        else:
            happened = market.quote(step)
        assert happened == expected.strip(), f"{line}: {happened}"
