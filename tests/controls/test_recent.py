"""What is known of an account's last minute, against a list of all that was accepted."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trading_intents.controls.limits.state import recent as module
from trading_intents.controls.limits.state.recent import NOWHERE, RecentByAccount, RecentOrders, RecentRead, put_recent

START = datetime(2026, 11, 1, 5, 59, 30, tzinfo=UTC)  # half a minute before New York's clocks go back
FIRST, SECOND = (1, "aa"), (2, "bb")


@given(
    window_millis=st.sampled_from([0, 1, 1_500, 60_000]),
    steps=st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from(["", "a", "b", "c"])), max_size=60),
)
def test_it_counts_and_finds_what_a_list_of_all_orders_has(window_millis: int, steps: list[tuple[int, str]]) -> None:
    recent, accepted, now = RecentOrders(window_millis), list[tuple[datetime, str]](), START
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
    assert len(recent._accepted) <= 1 + sum(now - at <= window for at, name in accepted if name), "no more is kept"


def test_what_the_log_adds_is_added_only_where_the_log_has_what_is_known() -> None:
    known: RecentByAccount = {}
    reads = [RecentRead("x", NOWHERE, 60_000), RecentRead("y", NOWHERE, 0)]
    now, second = START.isoformat(), str(int(START.timestamp()))
    rows = [["create", "x", "a", now], ["second", "x", second, "2"], ["second", "y", second, "1"]]
    put_recent(known, reads, rows, {"x": FIRST, "y": FIRST})
    assert [(each.head, each.count(START), each.find("a")) for each in known.values()] == [
        (FIRST, 2, START),
        (FIRST, 1, None),
    ]
    more: list[list[str | None]] = [["known", "x", "true", None], ["known", "y", "false", None]]
    more.append(["second", "x", second, "3"])
    put_recent(known, [RecentRead("x", FIRST, 60_000), RecentRead("y", FIRST, 0)], more, {"x": SECOND, "y": SECOND})
    assert [(each.head, each.count(START), each.find("a")) for each in known.values()] == [
        (SECOND, 5, START),
        (SECOND, 0, None),
    ]


def test_the_accounts_that_were_read_longest_ago_are_forgotten() -> None:
    known: RecentByAccount = {}
    for number in range(module.MAX_ACCOUNTS + 2):
        put_recent(known, [RecentRead(str(number), NOWHERE, 0)], [], {str(number): FIRST})
    assert len(known) == module.MAX_ACCOUNTS
    assert "1" not in known
    assert "2" in known
