"""A book to play with: orders and quotes in a few characters, and what happened as short texts."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from trading_intents.brokers.paper.book.matching import OrderBook
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperHolding,
    PaperOrder,
    Quote,
    Source,
)
from trading_intents.brokers.port import REPLACED_BY_BROKER, LegTicket, OrderTicket
from trading_intents.trading import (
    Leg,
    OrderKind,
    OrderSide,
    Symbol,
    TimeInForce,
    amount_text,
    terms_of,
)

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


def terms(text: str, symbol: Symbol = ACME) -> OrderTicket:
    """Such as `buy 10 limit 99.5 ioc`, `sell 5 stoplimit 98 97.5`: the stop comes first, `sell 5
    trail 2` or, in basis points, `sell 5 trail 50bps`."""
    side, quantity, kind, *rest = text.split()
    time = rest.pop() if rest and rest[-1] in TIMES else "day"
    stop = Decimal(rest.pop(0)) if kind in ("stop", "stoplimit") else None
    limit = Decimal(rest.pop(0)) if kind in ("limit", "stoplimit") else None
    trail = rest.pop(0) if kind == "trail" else ""
    is_bps = trail.endswith("bps")
    assert not rest
    return OrderTicket(
        client_order_id="",
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


def legs(text: str, entry: OrderTicket, name: str = "") -> tuple[LegTicket, ...]:
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
        leg = LegTicket(
            leg=LEGS[word],
            client_order_id=f"{name}l{number}",
            symbol=asked.symbol,
            side=asked.side,
            kind=asked.kind,
            **terms_of(asked),
        )
        made.append(leg)
    return tuple(made)


def named(asked: OrderTicket, client_order_id: str, **more: Any) -> OrderTicket:
    return replace(asked, client_order_id=client_order_id, **more)


class Market:
    """Time stands still but for `later`; the quotes are posted ones."""

    def __init__(self, position: int = 0, cash: Decimal = CASH) -> None:
        self.now = NOON
        self.number = self.replaced = 0
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
        number = len(self.book.orders) + 1
        self.book.submit(named(asked, f"c{number}", legs=legs(linked, asked)), self.now)
        return self.said()

    def replace(self, number: int, text: str) -> str:
        self.replaced += 1
        asked = named(terms(text), f"r{self.replaced}")
        self.book.replace(self.order(number), asked, self.now)
        return self.said()

    def cancel(self, number: int) -> str:
        self.book.cancel(self.find(number), f"x{number}", self.now)
        return self.said()

    def expire(self) -> str:
        self.book.keep_time(self.now)
        return self.said()

    def find(self, number: int) -> PaperOrder | None:
        """The order that came so many'th."""
        orders = list(self.book.orders.values())
        return orders[number - 1] if number <= len(orders) else None

    def order(self, number: int) -> PaperOrder:
        order = self.find(number)
        assert order
        return order

    def number_of(self, order: int | None) -> int | None:
        return list(self.book.orders).index(order) + 1 if order else None

    def said(self) -> str:
        """Lists the events since the last call: `1 fill 5@101, 2 cancelled immediate_or_cancel`."""
        said = []
        for each in self.book.events:
            event = each.event
            words = [str(self.number_of(each.order)), event.kind.lower()]
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
