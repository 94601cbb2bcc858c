"""A broker's reports make the same order in any sequence, however often they come: at least 10,000
shuffles."""

import random
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.orders.facts import bust, correct, fill, ours, reported, terms
from tests.property_sizes import examples
from trading_intents.brokers.port import EventKind
from trading_intents.orders.facts import Fact, FactKind, admit
from trading_intents.orders.model import (
    OrderFlag,
    OrderStatus,
    OrderTerms,
    OrderView,
    PendingCommands,
    derive,
)

EXAMPLES = 200
SHUFFLES = 50  # of each example
CHAIN = terms("100", "80", "120", limit="10")
COMMANDS = PendingCommands(cancels=("X",), replace="R2")
OPEN = {
    OrderStatus.PENDING_NEW,
    OrderStatus.NEW,
    OrderStatus.PARTIALLY_FILLED,
    OrderStatus.PENDING_REPLACE,
    OrderStatus.PENDING_CANCEL,
    OrderStatus.UNKNOWN,
}

times = st.none() | st.integers(0, 5)
counts = st.none() | st.sampled_from(["10", "30", "50", "80", "100", "120", "130"])
ids = st.sampled_from(["C", "R", "R2", "X"])
versions = st.sampled_from(["C", "C", "R", "R2"])
executions = st.sampled_from(["e1", "e2", "e3", "e4"])
# One size each: conflicts are another test.
SIZES = {"e1": "10", "e2": "20", "e3": "50.5", "e4": "70"}
OF_SYMBOLS = {EventKind.POSITION, EventKind.FEE}

reports = st.builds(
    reported,
    st.sampled_from(
        [kind for kind in EventKind if not kind.startswith("FILL") and kind not in OF_SYMBOLS]
    ),
    coid=ids,
    at=times,
    cum=counts,
    average=st.none() | st.just("9.7"),
    broker=st.none() | st.sampled_from(["b1", "b2"]),
    reason=st.none() | st.sampled_from(["one", "other"]),
)
fills = executions.flatmap(
    lambda name: st.builds(
        fill, st.just(name), st.just(SIZES[name]), cum=counts, coid=versions, at=times
    )
)
busts = st.builds(bust, executions | st.just("k1"), at=times, cum=counts)
corrections = st.sampled_from(["k1", "k2"]).flatmap(
    lambda name: st.builds(
        correct,
        st.just(name),
        st.just({"k1": "e1", "k2": "k1"}[name]),
        st.just("15"),
        st.just("9"),
        at=times,
    )
)
OURS = sorted({kind.value for kind in FactKind} - {kind.value for kind in EventKind})
own = st.builds(ours, st.sampled_from([FactKind(kind) for kind in OURS]), ids)
# The fills twice: most of what a broker says is fills.
histories = st.lists(st.one_of(fills, fills, reports, busts, corrections, own), max_size=12)


def shuffled(facts: list[Fact], chance: random.Random) -> list[Fact]:
    repeats = chance.choices(facts, k=chance.randrange(len(facts) + 1)) if facts else []
    mixed = [*facts, *repeats]
    chance.shuffle(mixed)
    return mixed


@settings(max_examples=examples(EXAMPLES))
@given(histories, st.integers(0, 2**32))
def test_no_shuffle_with_repeats_changes_the_order(facts: list[Fact], seed: int) -> None:
    chance = random.Random(seed)
    expected = derive(CHAIN, facts, COMMANDS)
    for _ in range(SHUFFLES):
        assert derive(CHAIN, shuffled(facts, chance), COMMANDS) == expected


def test_the_shuffles_are_at_least_ten_thousand() -> None:
    assert EXAMPLES * SHUFFLES >= 10_000


@settings(max_examples=examples(100))
@given(histories)
def test_what_is_filled_is_the_sum_of_the_trades(facts: list[Fact]) -> None:
    seen = derive(CHAIN, facts, COMMANDS)
    assert sum((trade.quantity for trade in seen.trades), Decimal(0)) == seen.filled_quantity
    assert all(trade.quantity > 0 for trade in seen.trades)
    assert len({trade.exec_id for trade in seen.trades}) == len(seen.trades)
    assert not seen.trades or seen.trades[-1].cumulative_quantity == seen.filled_quantity
    assert (seen.average_price is None) == (seen.filled_quantity == 0)
    assert_consistent(seen)


def assert_consistent(seen: OrderView) -> None:
    assert (seen.status in OPEN) == (seen.state == "OPEN")
    assert (seen.status is OrderStatus.FILLED) == (seen.filled_quantity >= seen.quantity)
    assert (OrderFlag.OVERFILL in seen.flags) == (seen.filled_quantity > seen.quantity)
    assert seen.status is not OrderStatus.REJECTED or not seen.trades
    assert seen.leaves_quantity == (
        max(seen.quantity - seen.filled_quantity, 0) if seen.status in OPEN else 0
    )


@settings(max_examples=examples(60))
@given(histories)
def test_what_is_admitted_one_by_one_derives_as_the_whole(facts: list[Fact]) -> None:
    kept: dict[str, Fact] = {}
    for fact in [*facts, *facts]:
        admitted = admit(kept, fact)
        if admitted:
            kept[admitted.key] = admitted
    whole, stored = (derive(CHAIN, each, COMMANDS) for each in (facts, kept.values()))
    assert (OrderFlag.CONFLICTING_EXECUTION in stored.flags) == (
        OrderFlag.CONFLICTING_EXECUTION in whole.flags
    )
    assert stored == derive(CHAIN, [*kept.values()] * 2, COMMANDS)


@settings(max_examples=examples(60))
@given(st.permutations(range(8)), st.integers(0, 8))
def test_stand_ins_only_ever_fill_the_holes_of_what_was_seen(
    order: list[int], seen_count: int
) -> None:
    """Eight fills of ten, counted by the broker: after any of them the filled quantity is the
    highest count."""
    counted = [
        fill(f"e{index}", "10", "10", cum=str(10 * index + 10)) for index in order[:seen_count]
    ]
    whole = OrderTerms(order_id="o1", versions=terms("80").versions)
    seen = derive(whole, counted, PendingCommands())
    highest = max((10 * index + 10 for index in order[:seen_count]), default=0)
    assert seen.filled_quantity == highest
    real = {trade.exec_id for trade in seen.trades if not trade.flags}
    assert real == {f"e{index}" for index in order[:seen_count]}
    assert all(trade.price == 10 for trade in seen.trades)
