"""An order whose own step fails is rejected alone: its account, and all other orders, go on."""

import random
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brokers.paper.market import CASH, NOON, Market
from tests.brokers.paper.plays import linked_orders, orders, quotes, run, signed
from tests.brokers.paper.venue import Venue, deadline
from tests.property_sizes import examples
from trading_intents.brokers.paper.book import accounting, linked, rules
from trading_intents.brokers.paper.model import PaperOrder
from trading_intents.brokers.port import EventKind, OrderSnapshot, Outcome
from trading_intents.trading import ZERO, exact

# The pure functions that steps call, each with the number of its argument that is the order.
FUNCTIONS: list[tuple[ModuleType, str, int]] = [
    (rules, "touches", 0),
    (rules, "is_triggered", 0),
    (rules, "with_stop", 0),
    (accounting, "find_allowed", 0),
    (accounting, "booked", 0),
    (linked, "after_fill", 1),
    (linked, "after_end", 1),
    (linked, "exits_of", 1),
]
OTHERS = "sell 1 limit 120"


def break_steps(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str, PaperOrder], bool]) -> None:
    """Makes the functions raise for these orders."""
    for module, name, index in FUNCTIONS:
        real = getattr(module, name)

        def broken(*given: Any, real: Any = real, name: str = name, index: int = index) -> Any:
            if fails(name, given[index]):
                raise StopIteration(name)
            return real(*given)

        monkeypatch.setattr(module, name, broken)


@pytest.mark.parametrize(
    ("name", "order", "quote"),
    [
        ("touches", "buy 3 limit 95", "94x9 95x9"),
        ("is_triggered", "sell 3 stop 98", "97x9 98x9"),
        ("with_stop", "sell 3 trail 2", "97x9 98x9"),
        ("find_allowed", "buy 3 limit 95", "94x9 95x9"),
        ("booked", "buy 3 limit 95", "94x9 95x9"),
        ("after_fill", "buy 3 limit 95 gtc with profit 110,loss 90", "94x9 95x9"),
        ("exits_of", "buy 3 limit 95 gtc with profit 110,loss 90", "94x9 95x9"),
        ("after_end", "sell 3 limit 105 gtc with or 95 gtc", "105x9 106x9"),
    ],
)
def test_a_step_that_fails_changes_nothing_and_rejects_its_order(
    monkeypatch: pytest.MonkeyPatch, name: str, order: str, quote: str
) -> None:
    market = Market(position=10)
    book = market.book
    market.quote("99x5 101x5")
    for text in (OTHERS, order, "buy 1 limit 90"):
        market.submit(text)
    failing = market.order(2)
    before = book.account.cash, book.holding.position
    with monkeypatch.context() as patch:
        break_steps(patch, lambda each, asked: each == name and asked.number == failing.number)
        assert "2 rejected broker_failed" in market.quote(quote)
    assert (book.account.cash, book.holding.position) == before
    assert book.holding.ask_taken == book.holding.bid_taken == ZERO
    assert [market.number_of(order.number) for order, _ in book.failed] == [2]
    others = [each.number for each in book.working() if each.parent != failing.number]
    assert list(map(market.number_of, others)) == [1, len(book.orders)]
    assert "1 fill 1@120" in market.quote("120x9 121x9")
    assert market.cancel(2) == "2 cancel_rejected too_late"
    assert f"{len(book.orders)} cancelled" in market.cancel(len(book.orders))
    assert not failing.filled


def test_what_is_filled_of_an_order_that_fails_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    market = Market()
    market.quote("99x5 101x5")
    market.submit("buy 8 limit 101")
    with monkeypatch.context() as patch:
        break_steps(patch, lambda name, _: name == "booked")
        assert market.quote("99x5 101x5") == "1 cancelled broker_failed"
    assert market.book.holding.position == 5


def test_a_command_that_fails_ends_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    market = Market()
    market.quote("99x5 101x5")
    market.submit("buy 8 limit 90 gtc with profit 110")
    market.submit("buy 1 limit 91")
    with monkeypatch.context() as patch:
        patch.setattr(rules, "find_flaw", lambda _: 1 / 0)
        assert market.submit("buy 1 limit 92 gtc with profit 110") == "4 rejected broker_failed"
        assert market.replace(3, "buy 1 limit 93") == "3 rejected broker_failed"
    with monkeypatch.context() as patch:
        break_steps(patch, lambda name, _: name == "after_end")
        assert market.cancel(1) == "1 rejected broker_failed"
    assert market.cancel(2) == "2 cancelled"
    assert [market.number_of(order.number) for order, _ in market.book.failed] == [4, 3, 1]
    assert market.book.account.reserved == ZERO


trails = st.builds(
    "{} {} trail {} {}".format,
    st.sampled_from(["buy", "sell", "short"]),
    st.sampled_from(["1", "0.000000001", "7"]),
    st.sampled_from(["0.0001", "1", "99", "5000", "1bps", "5000bps"]),
    st.sampled_from(["day", "gtc"]),
)
wild_quotes = st.builds(
    lambda bid, spread, size: f"{bid}x{size} {bid + spread}x{size}",
    st.sampled_from([Decimal(text) for text in ("0.0001", "0.9999", "1", "5", "1e6")]),
    st.sampled_from([Decimal(text) for text in ("0", "0.0001", "1", "300")]),
    st.sampled_from(["0.000000001", "3", "1e9"]),
)
plays = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.one_of(orders(), linked_orders(), trails)),
        st.tuples(st.just("quote"), st.one_of(quotes(), wild_quotes)),
        st.tuples(st.just("cancel"), st.integers(1, 8)),
        st.tuples(st.just("replace"), st.tuples(st.integers(1, 8), st.one_of(orders(), trails))),
        st.tuples(st.just("later"), st.sampled_from([1, 20, 40_000])),
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(plays)
def test_no_play_fails(script: list[tuple[str, object]]) -> None:
    market = Market()
    book = market.book
    for step in script:
        run(market, step)
        if book.quote:
            book.levels.could_match(book.quote)
        book.levels.cents_away(10_000)
    assert not book.failed


@settings(max_examples=examples(200))
@given(plays, st.integers(0, 2**32))
def test_whatever_fails_the_books_balance_and_every_order_can_be_ended(
    script: list[tuple[str, object]], seed: int
) -> None:
    market = Market()
    book = market.book
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        break_steps(patch, lambda name, order: chance.random() < 0.05)
        for step in script:
            run(market, step)
            fills = [each.event for each in book.events if each.event.kind is EventKind.FILL]
            with exact():
                assert book.account.cash == CASH - sum(
                    (signed(fill) * (fill.price or ZERO) for fill in fills), ZERO
                )
                reserved = sum((order.reserved for order in book.orders.values()), ZERO)
            assert book.account.reserved == reserved
            assert book.holding.position == sum(map(signed, fills), ZERO)
        for order in book.working():
            book.cancel(order, f"x{order.number}", market.now)
    assert not book.working()
    numbers = [each.event.dedupe_key for each in book.events]
    assert numbers == [f"paper:{n}" for n in range(1, len(numbers) + 1)]


async def test_an_account_trades_on_after_a_step_of_one_order_failed(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = uuid4()
    await venue.post("99x50 101x50")
    session = await venue.open_session(account)
    await session.submit("bad", "buy 3 limit 95")
    await session.submit("good", "buy 2 limit 96")
    real = rules.touches

    def touches(order: Any, quote: Any) -> bool:
        assert order.client_order_id != "bad", "a fault of the test"
        return real(order, quote)

    monkeypatch.setattr(rules, "touches", touches)
    await venue.post("94x50 95x50")
    assert sorted(await session.events(4)) == [
        "accepted",
        "accepted",
        "fill 2@96",
        "rejected broker_failed",
    ]
    cancelled = await session.cancel("x1", "bad")
    assert (cancelled.outcome, cancelled.code) == (Outcome.REJECTED, "too_late")
    found = await session.broker.lookup("bad", None, deadline())
    assert isinstance(found, OrderSnapshot)
    assert found.events[-2].kind is EventKind.REJECTED
    assert (await session.submit("next", "buy 1 market")).outcome is Outcome.ACKED
    assert (await session.broker.snapshot(NOON)).open_orders == ()
    name = "ti_execution_alerts_total"
    labels = {"kind": "paper_order_failed"}
    assert venue.metrics.registry.get_sample_value(name, labels) == 1
