"""Balances are recorded at their pace, by table: other cash at most every second, another equity
alone every 30 s, any other change every five. The last one is always recorded."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_intents.balances.model import PACE_SECONDS, BalancePacer, is_same
from trading_intents.brokers.port import BrokerBalance

NOW = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)


def balance(
    cash: str, equity: str | None = None, at: int = 0, currency: str = "USD"
) -> BrokerBalance:
    return BrokerBalance(
        currency=currency,
        cash=Decimal(cash),
        equity=None if equity is None else Decimal(equity),
        as_of=NOW + timedelta(seconds=at),
    )


Step = tuple[float, BrokerBalance | None, BrokerBalance | None]  # at, reported, recorded
STORIES: dict[str, tuple[BrokerBalance | None, list[Step]]] = {
    "the first one is recorded": (None, [(0, balance("1"), balance("1")), (9, None, None)]),
    "the same again is not": (balance("1"), [(0, balance("1", at=3), None), (9, None, None)]),
    "other cash is recorded at once after a quiet second, then once a second": (
        balance("1"),
        [
            (0, balance("2"), balance("2")),
            (0.1, balance("3"), None),
            (0.2, balance("4"), None),
            (1, None, balance("4")),
            (1.5, balance("4", at=1), None),
            (9, balance("5"), balance("5")),
        ],
    ),
    "another currency is other cash": (
        balance("1"),
        [(0, balance("1", currency="EUR"), balance("1", currency="EUR"))],
    ),
    "another equity waits for its time": (
        balance("1"),
        [
            (0, balance("2", "5"), balance("2", "5")),
            (1, balance("2", "6", 1), None),
            (2, balance("2", "7", 2), None),
            (29.9, None, None),
            (30, None, balance("2", "7", 2)),
            (31, balance("2", "8", 3), None),
            (60, None, balance("2", "8", 3)),
        ],
    ),
    "the first equity is no change of prices": (
        balance("1"),
        [
            (0, balance("2"), balance("2")),
            (1, balance("2", "5"), None),
            (5, None, balance("2", "5")),
        ],
    ),
    "what changed back is not recorded": (
        balance("1", "1"),
        [
            (0, balance("2", "1"), balance("2", "1")),
            (1, balance("2", "2", 1), None),
            (2, balance("2", "1", 2), None),
            (9, None, None),
        ],
    ),
    "cash takes a held equity along": (
        balance("1"),
        [
            (0, balance("2", "5"), balance("2", "5")),
            (1, balance("2", "6"), None),
            (2, balance("3", "7"), balance("3", "7")),
            (9, None, None),
        ],
    ),
    "after a restart a change is recorded without a wait": (
        balance("1", "1"),
        [(0, balance("1", "2"), balance("1", "2"))],
    ),
    "an older one does not replace a newer one": (
        balance("1"),
        [
            (0, balance("1", "5", 5), balance("1", "5", 5)),
            (1, balance("1", "6", 7), None),
            (2, balance("1", "9", 6), None),
            (30, None, balance("1", "6", 7)),
        ],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_changes_are_recorded_at_their_time(story: str) -> None:
    recorded, steps = STORIES[story]
    pacer = BalancePacer(recorded)
    for at, reported, expected in steps:
        if reported is not None:
            pacer.offer(reported)
        assert pacer.take(at) == expected, (story, at)


amounts = st.sampled_from([None, "1", "2", "3"])
reports = st.lists(st.tuples(st.floats(0, 40), amounts, amounts), min_size=1, max_size=20)


@given(reports)
def test_the_last_balance_is_recorded_when_it_is_due(
    reported: list[tuple[float, str | None, str | None]],
) -> None:
    pacer = BalancePacer()
    taken = []
    now_seconds = 0.0
    for at, (pause_seconds, cash, equity) in enumerate(reported):
        now_seconds += pause_seconds
        pacer.offer(balance(cash or "0", equity, at))
        taken.append(pacer.take(now_seconds))
    while (wait_seconds := pacer.wait_seconds(now_seconds)) is not None:
        now_seconds += wait_seconds
        taken.append(pacer.take(now_seconds))
    _, cash, equity = reported[-1]
    assert pacer.recorded is not None
    assert is_same(pacer.recorded, balance(cash or "0", equity))
    assert pacer.recorded == [each for each in taken if each][-1]


def test_a_held_balance_says_when_it_is_due() -> None:
    pacer = BalancePacer()
    assert pacer.wait_seconds(0) is None
    pacer.offer(balance("1"))
    assert pacer.take(10) == balance("1")
    assert pacer.wait_seconds(11) is None
    pacer.offer(balance("1", "2"))
    assert pacer.take(12) is None
    assert pacer.wait_seconds(12) == PACE_SECONDS - 2
    assert pacer.wait_seconds(99) == 0
