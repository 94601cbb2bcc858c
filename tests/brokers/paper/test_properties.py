"""Properties of any orders and quotes: nothing is overfilled, no cash is lost, no size is used
twice, no limit is broken."""

from collections import defaultdict
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.brokers.paper.market import CASH, NOON, Market, terms
from tests.brokers.paper.plays import run, signed, steps
from tests.property_sizes import examples
from trading_intents.brokers.paper.book.linked import exits_of, may_grow, pair_of
from trading_intents.brokers.paper.book.rules import (
    is_traded_through,
    is_triggered,
    price_levels,
    touches,
)
from trading_intents.brokers.paper.model import PaperOrder, PaperOrderStatus, Quote, Source
from trading_intents.brokers.paper.prices import HALF_BLOCK, tick_number, walk_quote
from trading_intents.brokers.port import EventKind
from trading_intents.trading import ZERO, OrderSide, Symbol, exact, terms_of


@settings(max_examples=examples(150))
@given(steps)
def test_the_books_balance_after_every_step(script: list[tuple[str, object]]) -> None:
    market = Market()
    book = market.book
    used: dict[tuple[int, bool], Decimal] = defaultdict(Decimal)
    for step in script:
        position = book.holding.position
        for fill in (event for event in run(market, step) if event.kind is EventKind.FILL):
            assert book.quote is not None
            used[book.quote.number, fill.side is OrderSide.BUY] += abs(signed(fill))
            position += signed(fill)
            assert position >= 0 or fill.side is not OrderSide.SELL, "a SELL went short"
        fills = [h.event for h in book.events if h.event.kind is EventKind.FILL]
        with exact():
            paid = sum((signed(fill) * (fill.price or ZERO) for fill in fills), ZERO)
            assert book.account.cash == CASH - paid
            assert book.holding.position == sum(map(signed, fills), ZERO) == position
            assert book.account.reserved == sum(
                (order.reserved for order in book.orders.values()), ZERO
            )
            assert book.account.short_value == book.holding.short_value >= 0
        if book.quote:
            traded = book.quote.last_size or ZERO
            assert used[book.quote.number, True] <= book.quote.ask_size + traded
            assert used[book.quote.number, False] <= book.quote.bid_size + traded
    numbers = [h.event.dedupe_key for h in book.events]
    assert numbers == [f"paper:{n}" for n in range(1, len(numbers) + 1)]


@settings(max_examples=examples(150))
@given(steps)
# It is held.
@example(
    [("submit", "buy 5 limit 100 day with profit 105"), ("replace", (2, "sell 5 limit 105 ioc"))]
)
def test_no_order_is_overfilled_or_filled_beyond_its_limit(
    script: list[tuple[str, object]],
) -> None:
    market = Market()
    limits: dict[str, Decimal | None] = {}
    for step in script:
        events = run(market, step)
        for order in market.book.orders.values():
            limits[order.client_order_id] = order.limit_price
            assert order.filled <= order.quantity or order.status is PaperOrderStatus.FILLED
            is_whole = order.status is PaperOrderStatus.WORKING and order.filled >= order.quantity
            assert not is_whole or may_grow(market.book.orders, order)
            assert order.time_in_force not in ("IMMEDIATE_OR_CANCEL", "FILL_OR_KILL") or (
                order.status is not PaperOrderStatus.WORKING or order.waits_for_trigger
            )
        for fill in (event for event in events if event.kind is EventKind.FILL):
            limit = limits[str(fill.client_order_id)]
            assert fill.price
            if limit is not None:
                assert fill.price <= limit if fill.side is OrderSide.BUY else fill.price >= limit
    ended = [
        h.order for h in market.book.events if h.event.kind in ("CANCELLED", "EXPIRED", "REJECTED")
    ]
    assert len(ended) == len(set(ended))


@settings(max_examples=examples(300))
@given(steps)
def test_exits_never_close_more_than_their_entry_opened(script: list[tuple[str, object]]) -> None:
    market = Market()
    orders = market.book.orders
    for step in script:
        run(market, step)
        exits: dict[int, list[PaperOrder]] = defaultdict(list)
        for order in orders.values():
            if order.is_exit and order.parent:
                exits[order.parent].append(order)
        for number, both in exits.items():
            entry = orders[number]
            closed = sum((each.filled for each in both), ZERO)
            assert closed <= entry.filled
            for each in exits_of(orders, entry):
                assert each.is_held == (entry.filled == 0)
                assert each.leaves == entry.filled - closed, "an exit works what is not closed yet"
            assert (
                entry.status is PaperOrderStatus.WORKING
                or entry.filled
                or not exits_of(orders, entry)
            )
        for order in orders.values():
            other = pair_of(orders, order)
            assert other is None or order.status is PaperOrderStatus.WORKING, (
                "one of a pair works on without the other"
            )
            assert other is None or other.leaves == order.leaves


@given(steps)
def test_the_same_run_gives_the_same_events_and_ids(script: list[tuple[str, object]]) -> None:
    one = Market()
    other = Market()
    assert [run(one, step) for step in script] == [run(other, step) for step in script]


@given(st.integers(0, 2**20), st.sampled_from(["AAPL", "BTC/USD"]), st.integers(0, 10**10))
def test_the_walk_goes_tick_by_tick(seed: int, name: str, tick: int) -> None:
    symbol = Symbol(name)
    here = walk_quote(seed, symbol, tick)
    there = walk_quote(seed, symbol, tick + 1)
    assert abs(there.bid - here.bid) == Decimal("0.01")
    assert here.ask - here.bid == Decimal("0.02")
    assert here == walk_quote(seed, symbol, tick)
    assert tick_number(here.at) == tick
    assert min(here.bid_size, here.ask_size) >= 100
    assert Decimal(29) < here.bid < Decimal(521)


def test_the_walk_comes_back_to_where_it_began() -> None:
    marks = {walk_quote(3, Symbol("AAPL"), block * 2 * HALF_BLOCK).bid for block in range(50)}
    assert len(marks) == 1
    block = [walk_quote(3, Symbol("AAPL"), tick).bid for tick in range(2 * HALF_BLOCK)]
    assert len(set(block)) > 20


def test_every_seed_and_symbol_has_its_own_walk() -> None:
    paths = [
        tuple(walk_quote(seed, Symbol(name), tick).bid for tick in range(50))
        for seed in (1, 2)
        for name in "AB"
    ]
    assert len(set(paths)) == 4


@pytest.mark.parametrize("sides", [("buy", "sell"), ("short", "buy")])
def test_cash_follows_a_round_trip_to_the_last_digit(sides: tuple[str, str]) -> None:
    market = Market()
    market.quote("99.99x1000 100.01x1000")
    for side in sides:
        assert "fill" in market.submit(f"{side} 0.333333333 market")
    with exact():
        assert market.book.account.cash == CASH - Decimal("0.02") * Decimal("0.333333333")
    assert market.book.account.buying_power == market.book.account.cash
    assert market.book.holding.short_value == 0


CENTS = st.integers(900, 1_100)


@st.composite
def resting_orders(draw: st.DrawFn) -> list[PaperOrder]:
    side = st.sampled_from(["buy", "sell", "short"])
    price = CENTS.map(lambda cents: f"{Decimal(cents) / 100}")
    texts = draw(
        st.lists(
            st.one_of(
                st.builds("{} 1 market".format, side),
                st.builds("{} 1 limit {}".format, side, price),
                st.builds("{} 1 stop {}".format, side, price),
                st.builds("{} 1 stoplimit {} {}".format, side, price, price),
            ),
            max_size=5,
        )
    )
    return [
        PaperOrder(
            number=n,
            broker_order_id="b",
            client_order_id="c",
            rank=n,
            symbol=asked.symbol,
            side=asked.side,
            kind=asked.kind,
            accepted_at=NOON,
            expires_at=NOON,
            **terms_of(asked),
        )
        for n, asked in enumerate(map(terms, texts))
    ]


def could_match(order: PaperOrder, quote: Quote) -> bool:
    """By the rules themselves, order by order."""
    if order.waits_for_trigger:
        return is_triggered(order, quote)
    return touches(order, quote) or is_traded_through(order, quote)


def quote_at(middle: int, last: int | None = None) -> Quote:
    bid, ask = (Decimal(middle + half) / 100 for half in (-1, 1))
    one = Decimal(1)
    trade = {"last": Decimal(last) / 100, "last_size": one} if last else {}
    return Quote(
        source=Source.POSTED,
        number=1,
        at=NOON,
        bid=bid,
        ask=ask,
        bid_size=one,
        ask_size=one,
        **trade,
    )


@given(resting_orders(), CENTS, st.one_of(st.none(), CENTS))
def test_price_levels_say_what_each_order_would(
    orders: list[PaperOrder], middle: int, last: int | None
) -> None:
    quote = quote_at(middle, last)
    assert price_levels(orders).could_match(quote) == any(
        could_match(order, quote) for order in orders
    )


@given(resting_orders(), CENTS)
def test_nothing_matches_before_the_walk_has_come_so_far(
    orders: list[PaperOrder], middle: int
) -> None:
    away = price_levels(orders).cents_away(middle)
    assert (away == 0) == any(could_match(order, quote_at(middle)) for order in orders)
    for moved in (middle - away + 1, middle + away - 1) if away else ():
        assert not any(could_match(order, quote_at(moved)) for order in orders)
