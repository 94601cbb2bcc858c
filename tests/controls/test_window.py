"""Trading windows and sets of controls: edges by a table, the rest by chance."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from trading_intents.controls.bodies import read_zones
from trading_intents.controls.model import (
    Controls,
    Reason,
    StandingHalt,
    Switch,
    TimeChange,
    TimeField,
    TimeRule,
    changed,
    closed_at,
    evaluate,
)
from trading_intents.errors import ValidationFailed
from trading_intents.trading import Symbol, parse_symbol

NEW_YORK = "America/New_York"
BERLIN = "Europe/Berlin"
UTC_NAME = "UTC"
AAPL = Symbol("AAPL")
ORGANIZATION = str(uuid4())
ACCOUNT = str(uuid4())
ZONES = read_zones()
# The others are limits.
SWITCHES_AND_WINDOWS = list(Reason)[: list(Reason).index(Reason.OUTSIDE_TRADING_WINDOW) + 1]

# start, end, zone, the moment in UTC, open?
# fmt: off
EDGES: list[tuple[str | None, str | None, str | None, str, bool]] = [
    ("09:30:00", "16:00:00", None,     "2026-01-05T09:29:59.999999", False),
    ("09:30:00", "16:00:00", None,     "2026-01-05T09:30:00", True),   # the start is in
    ("09:30:00", "16:00:00", None,     "2026-01-05T15:59:59.999999", True),
    ("09:30:00", "16:00:00", None,     "2026-01-05T16:00:00", False),  # the end is out
    ("09:30:00", "09:30:01", None,     "2026-01-05T09:30:00.999999", True),
    ("09:30:00", "09:30:01", None,     "2026-01-05T09:30:01", False),
    ("22:00:00", "06:00:00", None,     "2026-01-05T21:59:59.999999", False),  # over midnight
    ("22:00:00", "06:00:00", None,     "2026-01-05T22:00:00", True),
    ("22:00:00", "06:00:00", None,     "2026-01-05T23:59:59.999999", True),
    ("22:00:00", "06:00:00", None,     "2026-01-06T00:00:00", True),
    ("22:00:00", "06:00:00", None,     "2026-01-06T05:59:59.999999", True),
    ("22:00:00", "06:00:00", None,     "2026-01-06T06:00:00", False),
    ("22:00:00", "00:00:00", None,     "2026-01-05T23:59:59.999999", True),   # until midnight
    ("22:00:00", "00:00:00", None,     "2026-01-06T00:00:00", False),
    ("00:00:00", "23:59:59", None,     "2026-01-05T00:00:00", True),
    ("00:00:00", "23:59:59", None,     "2026-01-05T23:59:59", False),
    ("09:30:00", None,       None,     "2026-01-05T09:29:59.999999", False),  # only a start
    ("09:30:00", None,       None,     "2026-01-05T23:59:59.999999", True),
    ("09:30:00", None,       None,     "2026-01-06T00:00:00", False),
    ("00:00:00", None,       None,     "2026-01-06T00:00:00", True),
    (None,       "16:00:00", None,     "2026-01-05T00:00:00", True),          # only an end
    (None,       "16:00:00", None,     "2026-01-05T15:59:59.999999", True),
    (None,       "16:00:00", None,     "2026-01-05T16:00:00", False),
    (None,       "00:00:00", None,     "2026-01-05T12:00:00", False),         # an empty day
    # A zone alone bounds nothing.
    (None,       None,       NEW_YORK, "2026-01-05T12:00:00", True),
    ("09:30:00", "16:00:00", NEW_YORK, "2026-01-05T14:29:59", False),  # winter: UTC-5
    ("09:30:00", "16:00:00", NEW_YORK, "2026-01-05T14:30:00", True),
    ("09:30:00", "16:00:00", NEW_YORK, "2026-07-06T13:30:00", True),   # summer: UTC-4
    ("09:30:00", "16:00:00", NEW_YORK, "2026-07-06T20:00:00", False),
    # New York, 8 March 2026: 02:00 to 03:00 does not exist.
    ("02:30:00", "04:00:00", NEW_YORK, "2026-03-08T06:59:59", False),  # 01:59:59
    # 03:00:00, which is after 02:30.
    ("02:30:00", "04:00:00", NEW_YORK, "2026-03-08T07:00:00", True),
    ("02:30:00", "04:00:00", NEW_YORK, "2026-03-08T08:00:00", False),  # 04:00:00
    ("02:00:00", "03:00:00", NEW_YORK, "2026-03-08T07:00:00", False),  # the whole window is skipped
    # New York, 1 November 2026: 01:00 to 02:00 comes twice.
    ("01:30:00", "02:00:00", NEW_YORK, "2026-11-01T05:30:00", True),   # the first 01:30
    ("01:30:00", "02:00:00", NEW_YORK, "2026-11-01T06:00:00", False),  # the second 01:00
    ("01:30:00", "02:00:00", NEW_YORK, "2026-11-01T06:30:00", True),   # the second 01:30
    ("01:30:00", "02:00:00", NEW_YORK, "2026-11-01T07:00:00", False),
    # Berlin, 29 March 2026: 02:00 to 03:00 does not exist.
    ("02:15:00", "02:45:00", BERLIN,   "2026-03-29T00:59:59", False),  # 01:59:59
    ("02:15:00", "02:45:00", BERLIN,   "2026-03-29T01:00:00", False),  # 03:00:00
    ("22:00:00", "03:00:00", BERLIN,   "2026-03-29T00:59:59", True),
    ("22:00:00", "03:00:00", BERLIN,   "2026-03-29T01:00:00", False),
    # Berlin, 25 October 2026: 02:00 to 03:00 comes twice.
    ("02:15:00", "02:45:00", BERLIN,   "2026-10-25T00:15:00", True),
    ("02:15:00", "02:45:00", BERLIN,   "2026-10-25T00:45:00", False),
    ("02:15:00", "02:45:00", BERLIN,   "2026-10-25T01:15:00", True),
    ("02:15:00", "02:45:00", BERLIN,   "2026-10-25T01:45:00", False),
    ("23:00:00", "01:00:00", "Asia/Kathmandu", "2026-01-05T17:14:59", False),  # UTC+5:45
    ("23:00:00", "01:00:00", "Asia/Kathmandu", "2026-01-05T17:15:00", True),
]
# fmt: on


def of(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)


def controls(**set_: Any) -> Controls:
    return Controls(organization_id=ORGANIZATION, account_id=ACCOUNT, **set_)


@pytest.mark.parametrize(("start", "end", "zone", "moment", "is_open"), EDGES)
def test_a_window_holds_its_start_and_not_its_end(
    start: str | None, end: str | None, zone: str | None, moment: str, is_open: bool
) -> None:
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    rule = TimeRule(of(start), of(end), None, zone)
    assert (closed_at(rule, now) is None) is is_open
    answered = evaluate(controls(time=rule), AAPL, now)
    assert [t.reason for t in answered] == ([] if is_open else ["outside_trading_window"])
    elsewhere = now.astimezone(ZoneInfo("Asia/Tokyo"))  # the moment counts, not how it is written
    assert evaluate(controls(time=rule), AAPL, elsewhere) == answered


def test_a_closed_window_says_the_zones_time() -> None:
    rule = TimeRule(of("09:30:00"), of("16:00:00"), None, NEW_YORK)
    now = datetime(2026, 7, 6, 20, tzinfo=UTC)
    assert closed_at(rule, now) == (
        "trading is from 09:30:00 until 16:00:00, and it is 16:00:00 in America/New_York"
    )


def test_every_control_that_refuses_is_listed_widest_first() -> None:
    off = Switch(True, "why\nnot")
    halt = StandingHalt("1", "stop")
    everything = controls(
        organization=off,
        account=off,
        symbol=Switch(True),
        time=TimeRule(None, of("00:00:00")),
        organization_halt=halt,
        account_halt=halt,
    )
    now = datetime(2026, 1, 5, 12, tzinfo=UTC)
    answered = evaluate(everything, AAPL, now)
    assert [t.reason for t in answered] == SWITCHES_AND_WINDOWS
    symbol = {"Symbol": {"account_id": ACCOUNT, "symbol": "AAPL"}}
    organization = {"Organization": ORGANIZATION}
    account = {"Account": ACCOUNT}
    assert [t.scope for t in answered] == [
        organization,
        organization,
        account,
        account,
        symbol,
        symbol,
    ]
    assert [t.detail for t in answered[:5]] == [
        "the organization is halted: stop",
        "the organization is disabled: why\nnot",
        "the account is halted: stop",
        "the account is disabled: why\nnot",
        "the symbol is disabled",
    ]
    assert evaluate(everything, None, now) == answered[:4]
    assert evaluate(controls(), AAPL, now) == ()
    on = Switch(False, "was off")
    assert (
        evaluate(controls(organization=on, account=on, symbol=on, time=TimeRule()), AAPL, now) == ()
    )


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "../../etc/passwd", "/etc/localtime", "\x00", "Europe", "a" * 300]
)
def test_a_zone_that_cannot_be_read_closes_the_window(zone: str) -> None:
    rule = TimeRule(of("00:00:00"), None, None, zone)
    answered = evaluate(controls(time=rule), AAPL, datetime(2026, 1, 5, 12, tzinfo=UTC))
    assert [t.reason for t in answered] == ["outside_trading_window"]


SECONDS = st.times().map(lambda t: t.replace(microsecond=0))
RULES = st.builds(
    TimeRule,
    st.none() | SECONDS,
    st.none() | SECONDS,
    st.none(),
    st.none() | st.sampled_from(sorted(ZONES)),
)
HALTS = st.none() | st.builds(StandingHalt, st.text(), st.text())
SWITCHES = st.none() | st.builds(Switch, st.booleans(), st.none() | st.text())
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - a range


@given(SWITCHES, SWITCHES, SWITCHES, st.none() | RULES, HALTS, HALTS, MOMENTS)
def test_evaluating_never_fails_and_says_no_exactly_when_a_part_does(
    organization: Switch | None,
    account: Switch | None,
    symbol: Switch | None,
    rule: TimeRule | None,
    organization_halt: StandingHalt | None,
    account_halt: StandingHalt | None,
    now: datetime,
) -> None:
    judged = Controls(
        organization_id=ORGANIZATION,
        account_id=ACCOUNT,
        organization=organization,
        account=account,
        symbol=symbol,
        time=rule,
        organization_halt=organization_halt,
        account_halt=account_halt,
    )
    answered = evaluate(judged, AAPL, now)
    off = [bool(s and s.disabled) for s in (organization, account, symbol)]
    is_closed = rule is not None and closed_at(rule, now) is not None
    noes = [
        organization_halt is not None,
        off[0],
        account_halt is not None,
        off[1],
        off[2],
        is_closed,
    ]
    assert [t.reason for t in answered] == [
        reason for reason, no in zip(SWITCHES_AND_WINDOWS, noes, strict=True) if no
    ]


@given(
    SECONDS, SECONDS, st.sampled_from(sorted(ZONES)), st.dates(date(2000, 1, 1), date(2037, 1, 1))
)
def test_a_window_opens_at_its_start_and_closes_at_its_end(
    start: time, end: time, zone: str, day: date
) -> None:
    def is_open_at(wall: time, change: TimeRule) -> bool | None:
        local = datetime.combine(day, wall, ZoneInfo(zone))
        if local.astimezone(UTC).astimezone(ZoneInfo(zone)).time() != wall:
            return None  # this zone's clocks skipped it that day
        return closed_at(change, local.astimezone(UTC)) is None

    if start == end:
        return
    rule = TimeRule(start, end, None, zone)
    assert is_open_at(start, rule) in (True, None)
    assert is_open_at(end, rule) in (False, None)
    swapped = TimeRule(end, start, None, zone)
    assert is_open_at(start, swapped) in (False, None)
    assert is_open_at(end, swapped) in (True, None)


@given(RULES, MOMENTS)
def test_a_window_and_its_opposite_share_no_moment(rule: TimeRule, now: datetime) -> None:
    start = rule.trading_start
    end = rule.trading_end
    zone = rule.timezone
    if start is not None and end is not None and start != end:
        assert (closed_at(rule, now) is None) != (
            closed_at(TimeRule(end, start, None, zone), now) is None
        )


def test_a_change_sets_clears_and_leaves() -> None:
    rule = TimeRule(of("09:30:00"), of("16:00:00"), 500, NEW_YORK)
    assert changed(rule, TimeChange()) == rule
    assert changed(rule, TimeChange(TimeRule(of("10:00:00")))) == structs.replace(
        rule, trading_start=of("10:00:00")
    )
    assert changed(rule, TimeChange(clear=frozenset(TimeField))) == TimeRule()
    moved = TimeChange(TimeRule(timezone=BERLIN), frozenset({TimeField.STALE_ORDER_MILLIS}))
    assert changed(rule, moved) == TimeRule(rule.trading_start, rule.trading_end, None, BERLIN)
    for bad, pointer in (
        (TimeRule(of("16:00:00")), "/trading_start"),
        (TimeRule(None, of("09:30:00")), "/trading_end"),
    ):
        with pytest.raises(ValidationFailed) as refused:
            changed(rule, TimeChange(bad))
        assert refused.value.errors[0].pointer == pointer


def test_every_zone_offered_is_one_and_none_is_a_path() -> None:
    assert available_timezones() >= ZONES
    assert {"UTC", NEW_YORK, BERLIN, "Etc/GMT+5"} <= ZONES
    assert not ZONES & {"localtime", "Factory", "posixrules", "utc", "europe/berlin"}
    now = datetime.now(UTC)
    for zone in ZONES:
        assert abs(now.astimezone(ZoneInfo(zone)).utcoffset() or timedelta()) < timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("AAPL", "AAPL"),
        ("aapl", "AAPL"),
        ("btc/usd", "BTC/USD"),
        ("0", "0"),
        ("BRK.B", "BRK.B"),
        ("X:a_b-c", "X:A_B-C"),
        ("A" * 32, "A" * 32),
        ("A" * 33, None),
        ("", None),
        (".A", None),
        ("-A", None),
        ("/A", None),
        ("A B", None),
        (" A", None),
        ("A\n", None),
        ("A\x00", None),
        ("\u017f", None),  # its upper case is S
        ("\u0131BM", None),  # its upper case is I
        ("\u00df", None),
        ("\uff21", None),
        ("\u0661", None),  # a digit, but not of ours
    ],
)
def test_a_symbol_has_one_spelling(text: str, symbol: str | None) -> None:
    assert parse_symbol(text) == symbol
