"""The last minute of an account's log, compared with a list of all accepted orders."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_intents.controls.limits.state import recent as module
from trading_intents.controls.limits.state.recent import (
    LogHead,
    RecentByAccount,
    RecentOrders,
    RecentRequest,
    RecentRow,
    find_whole,
    put_recent,
    request_recent,
)

# Half a minute before New York's clocks go back.
START = datetime(2026, 11, 1, 5, 59, 30, tzinfo=UTC)
FIRST = (1, "aa")
SECOND = (2, "bb")


@given(
    window_millis=st.sampled_from([0, 1, 1_500, 60_000]),
    steps=st.lists(
        st.tuples(st.integers(0, 20_000), st.sampled_from(["", "a", "b", "c"])), max_size=60
    ),
)
def test_it_counts_and_finds_what_a_list_of_all_orders_has(
    window_millis: int, steps: list[tuple[int, str]]
) -> None:
    recent = RecentOrders(window_millis, START)
    accepted = list[tuple[datetime, str]]()
    now = START
    for millis, terms in steps:
        now += timedelta(milliseconds=millis)
        since = now.replace(microsecond=0) - timedelta(seconds=59)
        assert recent.count(now) == sum(at >= since for at, _ in accepted)
        for each in "abc":
            last = max((at for at, name in accepted if name == each), default=None)
            if window_millis and last and now - last < timedelta(milliseconds=window_millis):
                assert recent.find(each) == last
        recent.accept(terms, now)
        accepted.append((now, terms))
    recent.accept("last", now)
    window = timedelta(milliseconds=window_millis)
    assert len(recent._accepted) <= 1 + sum(now - at <= window for at, name in accepted if name), (
        "no more is kept"
    )


def test_what_the_log_adds_is_added_only_where_the_log_has_what_is_known() -> None:
    memory: RecentByAccount = {}
    second = int(START.timestamp())
    rows = [
        RecentRow(account_id="x", terms="a", accepted_at=START),
        RecentRow(account_id="x", second=second, orders=2),
        RecentRow(account_id="y", second=second, orders=1),
        RecentRow(account_id="x", is_known=False),
        RecentRow(account_id="y", is_known=False),
    ]
    first = {"x": FIRST, "y": FIRST}
    put_recent(
        memory, [RecentRequest("x", None, 60_000), RecentRequest("y", None, 0)], rows, first, START
    )
    assert shown(memory) == {"x": (FIRST, 2, START), "y": (FIRST, 1, None)}
    reads = [RecentRequest("x", memory["x"], 60_000), RecentRequest("y", memory["y"], 0)]
    memory.clear()  # the accounts are evicted while their logs are read
    rows = [
        RecentRow(account_id="x", is_known=True),
        RecentRow(account_id="x", second=second, orders=3),
        RecentRow(account_id="y", is_known=False),
    ]
    found = put_recent(memory, reads, rows, {"x": SECOND, "y": SECOND}, START)
    assert shown(found) == shown(memory) == {"x": (SECOND, 5, START), "y": (SECOND, 0, None)}


def test_a_log_that_takes_too_long_to_read_stays_unknown() -> None:
    memory: RecentByAccount = {}
    rows = [RecentRow(account_id="y", is_known=False)]
    found = put_recent(
        memory,
        [RecentRequest(each, None, 0) for each in "xy"],
        rows,
        {"x": FIRST, "y": FIRST},
        START,
    )
    assert [*found] == [*memory] == ["y"]


def test_only_what_ends_at_the_head_is_whole_and_what_was_used_longest_ago_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 3)
    memory = make(*"abcd")
    whole = find_whole(memory, {"a": FIRST, "b": SECOND, "e": FIRST}, START)
    assert [*whole] == ["a"]
    assert [*memory] == ["c", "d", "a"], "b was used before a"
    assert request_recent({"a": 0, "c": 0, "f": 0}, memory, whole, START) == [
        RecentRequest("c", memory["c"], 0),
        RecentRequest("f", None, 0),
    ]
    assert request_recent({"a": 5}, memory, whole, START) == [RecentRequest("a", None, 5)], (
        "no terms were remembered"
    )
    find_whole(memory, {"d": FIRST}, START + timedelta(seconds=61))
    assert len(memory) == 3
    find_whole(memory, {"d": FIRST}, START + timedelta(seconds=62))
    assert [*memory] == ["d"], "the others have been idle for a minute"


def test_a_clock_that_is_set_back_has_the_log_read_again() -> None:
    """Something may be forgotten that is of the last minute again."""
    memory = make("a")
    later = START + timedelta(seconds=90)
    assert [*find_whole(memory, {"a": FIRST}, later)] == ["a"]
    assert find_whole(memory, {"a": FIRST}, START) == {}
    assert request_recent({"a": 0}, memory, {}, START) == [RecentRequest("a", None, 0)]


def test_seconds_that_come_out_of_order_are_forgotten_in_time() -> None:
    recent = RecentOrders(0, START)
    ahead = START + timedelta(hours=1)
    recent.accept("", ahead)
    for second in range(600):
        recent.accept("", START + timedelta(seconds=second))
    assert recent.count(START + timedelta(seconds=599)) == 61, (
        "the last minute's, and the one ahead"
    )
    assert len(recent._seconds) == 61


def make(*account_ids: str) -> RecentByAccount:
    memory: RecentByAccount = {}
    for account_id in account_ids:
        rows = [RecentRow(account_id=account_id, is_known=False)]
        put_recent(memory, [RecentRequest(account_id, None, 0)], rows, {account_id: FIRST}, START)
    return memory


def shown(known: RecentByAccount) -> dict[str, tuple[LogHead, int, datetime | None]]:
    return {name: (each.head, each.count(START), each.find("a")) for name, each in known.items()}
