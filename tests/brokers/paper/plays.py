"""Any orders, quotes and plays of a book, and what a step of a play does."""

from decimal import Decimal

from hypothesis import strategies as st

from tests.brokers.paper.market import Market, legs, named, terms
from trading_intents.brokers.port import BrokerEvent
from trading_intents.trading import OrderSide

prices = st.integers(95, 105)
sizes = st.integers(1, 40)


@st.composite
def orders(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["market", "limit", "stop", "stoplimit"]))
    needed = {"market": 0, "limit": 1, "stop": 1, "stoplimit": 2}[kind]
    words = [
        draw(st.sampled_from(["buy", "sell", "short"])),
        draw(sizes),
        kind,
        *(draw(prices) for _ in range(needed)),
    ]
    return " ".join(map(str, [*words, draw(st.sampled_from(["day", "gtc", "ioc", "fok"]))]))


@st.composite
def linked_orders(draw: st.DrawFn) -> str:
    """An entry with one exit or two, or a pair; or a stop that trails."""
    time = draw(st.sampled_from(["day", "gtc"]))
    size = draw(sizes)
    kind = draw(st.sampled_from(["long", "short", "pair", "trail"]))
    if kind == "trail":
        trail = draw(st.sampled_from(["1", "3", "50bps", "300bps"]))
        return f"{draw(st.sampled_from(['buy', 'sell', 'short']))} {size} trail {trail} {time}"
    low, middle, high = sorted(draw(st.lists(prices, min_size=3, max_size=3, unique=True)))
    if kind == "pair":
        return f"sell {size} limit {high} {time} with or {low} {time}"
    side, profit, loss = ("buy", high, low) if kind == "long" else ("short", low, high)
    entry = draw(st.sampled_from(["market", f"limit {middle}"]))
    exits = draw(
        st.sampled_from([f"profit {profit}", f"loss {loss} {time}", f"profit {profit},loss {loss}"])
    )
    return f"{side} {size} {entry} {time} with {exits}"


@st.composite
def quotes(draw: st.DrawFn) -> str:
    bid = draw(prices)
    spread = draw(st.integers(0, 3))
    trade = draw(st.one_of(st.just(""), st.builds("{}x{}".format, prices, sizes)))
    return f"{bid}x{draw(sizes)} {bid + spread}x{draw(sizes)} {trade}".strip()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.one_of(orders(), linked_orders())),
        st.tuples(st.just("quote"), quotes()),
        st.tuples(st.just("cancel"), st.integers(1, 8)),
        st.tuples(st.just("replace"), st.tuples(st.integers(1, 8), orders())),
        st.tuples(st.just("later"), st.sampled_from([1, 20, 40_000])),
    ),
    max_size=40,
)


def run(market: Market, step: tuple[str, object]) -> list[BrokerEvent]:
    """Runs the step, and gives its events."""
    name, what = step
    book = market.book
    before = len(market.book.events)
    if name == "submit":
        text, _, linked = str(what).partition(" with ")
        asked = terms(text)
        name = f"c{before}"
        book.submit(named(asked, name, legs=legs(linked, asked, name)), market.now)
    elif name == "quote":
        book.feed(market.next_quote(str(what)))
    elif name == "cancel":
        assert isinstance(what, int)
        book.cancel(market.find(what), f"x{before}", market.now)
    elif name == "replace":
        assert isinstance(what, tuple)
        book.replace(market.find(what[0]), named(terms(what[1]), f"r{before}"), market.now)
    else:
        assert isinstance(what, int)
        market.later(seconds=what)
        book.keep_time(market.now)
    return [each.event for each in book.events[before:]]


def signed(fill: BrokerEvent) -> Decimal:
    assert fill.quantity is not None
    return fill.quantity if fill.side is OrderSide.BUY else -fill.quantity
