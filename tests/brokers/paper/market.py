"""A book to play with: orders and quotes in a few characters, and what happened as short texts."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperHolding,
    PaperLeg,
    PaperOrder,
    PaperTerms,
    Quote,
    Source,
)
from trading_intents.brokers.port import REPLACED_BY_BROKER
from trading_intents.trading import Leg, OrderKind, OrderSide, Symbol, TimeInForce, amount_text

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
CASH = Decimal(1_000_000)
ACME = Symbol("ACME")
KINDS = {
    "market": OrderKind.MARKET,
    "limit": OrderKind.LIMIT,
    "stop": OrderKind.STOP,
    "stoplimit": OrderKind.STOP_LIMIT,
    "trail": OrderKind.TRAILING_STOP,
}
SIDES = {"buy": OrderSide.BUY, "sell": OrderSide.SELL, "short": OrderSide.SELL_SHORT}
LEGS = {"profit": Leg.TAKE_PROFIT, "loss": Leg.STOP_LOSS, "or": Leg.ONE_CANCELS_OTHER}
TIMES = {
    "day": TimeInForce.DAY,
    "gtc": TimeInForce.GOOD_TILL_CANCEL,
    "ioc": TimeInForce.IMMEDIATE_OR_CANCEL,
    "fok": TimeInForce.FILL_OR_KILL,
}


def terms(text: str, symbol: Symbol = ACME) -> PaperTerms:
    """Such as `buy 10 limit 99.5 ioc`, `sell 5 stoplimit 98 97.5`: the stop comes first, `sell 5
    trail 2` or, in basis points, `sell 5 trail 50bps`."""
    side, quantity, kind, *rest = text.split()
    time = rest.pop() if rest and rest[-1] in TIMES else "day"
    stop = Decimal(rest.pop(0)) if kind in ("stop", "stoplimit") else None
    limit = Decimal(rest.pop(0)) if kind in ("limit", "stoplimit") else None
    trail = rest.pop(0) if kind == "trail" else ""
    is_bps = trail.endswith("bps")
    assert not rest
    return PaperTerms(
        symbol=symbol,
        side=SIDES[side],
        kind=KINDS[kind],
        quantity=Decimal(quantity),
        limit_price=limit,
        stop_price=stop,
        trail_amount=Decimal(trail) if trail and not is_bps else None,
        trail_bps=int(trail.removesuffix("bps")) if is_bps else None,
        time_in_force=TIMES[time],
    )


def legs(text: str, entry: PaperTerms, name: str = "") -> list[PaperLeg]:
    """Such as `profit 110`, `loss 95`, `loss 95 94 day` or `or 95`, separated by commas; exits are
    GTC by default."""
    made = []
    closing = "sell" if entry.side is OrderSide.BUY else "buy"
    for number, part in enumerate(filter(None, text.split(",")), start=1):
        word, *rest = part.split()
        time = rest.pop() if rest[-1] in TIMES else "gtc"
        kind = "limit" if word == "profit" else ("stop", "stoplimit")[len(rest) - 1]
        side = {value: key for key, value in SIDES.items()}[entry.side] if word == "or" else closing
        asked = terms(f"{side} {entry.quantity} {kind} {' '.join(rest)} {time}", entry.symbol)
        made.append(PaperLeg(leg=LEGS[word], client_order_id=f"{name}l{number}", terms=asked))
    return made


class Market:
    """Time stands still but for `later`; the quotes are posted ones."""

    def __init__(self, position: int = 0, cash: Decimal = CASH) -> None:
        self.now = NOON
        self.number = 0
        self.book = OrderBook(
            seed=7,
            account_id="account",
            symbol=ACME,
            account=PaperAccount(cash=cash),
            holding=PaperHolding(position=Decimal(position)),
            orders={},
        )

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
        text, _, linked = text.partition(" with ")
        asked = terms(text)
        number = self.book.account.orders + 1
        self.book.submit(f"c{number}", asked, self.now, legs=legs(linked, asked))
        return self.said()

    def replace(self, number: int, text: str) -> str:
        self.book.replace(self.order(number), f"r{self.book.account.places}", terms(text), self.now)
        return self.said()

    def cancel(self, number: int) -> str:
        self.book.cancel(self.book.orders.get(number), f"x{number}", self.now)
        return self.said()

    def expire(self) -> str:
        self.book.keep_time(self.now)
        return self.said()

    def order(self, number: int) -> PaperOrder:
        return self.book.orders[number]

    def said(self) -> str:
        """Lists the events since the last call: `1 fill 5@101, 2 cancelled immediate_or_cancel`."""
        said = []
        for each in self.book.events:
            event = each.event
            words = [str(each.order), event.kind.lower()]
            if event.quantity is not None:
                assert event.price is not None
                words.append(f"{amount_text(event.quantity)}@{amount_text(event.price)}")
            reason = event.reason if event.reason and event.reason != REPLACED_BY_BROKER else ""
            said.append(" ".join([*words, *([reason] if reason else [])]))
        self.book.events.clear()
        return ", ".join(said)


def play(lines: str, position: int = 0, cash: Decimal = CASH) -> None:
    """One step a line, `what to do -> what happens`: a quote, `buy …`, `replace 1 …`, `cancel 1` or
    `after 3 hours`."""
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
        assert happened == " ".join(expected.split()), f"{line}: {happened}"
