"""judge(): the one judgement of accepting, sending and evaluating, for any case that can be made
up."""

from datetime import UTC, datetime, time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, structs

from tests.property_sizes import examples
from trading_intents.controls.case import HALTS, Case, Purpose, judge
from trading_intents.controls.limits.model import (
    AppliedLimits,
    AskedOrder,
    LimitState,
    TradingLimits,
)
from trading_intents.controls.model import (
    Controls,
    Reason,
    StandingHalt,
    Subject,
    Switch,
    TimeRule,
)
from trading_intents.trading import OrderKind, OrderSide, Symbol

NOW = datetime(2026, 1, 5, 15, 0, tzinfo=UTC)
AAPL = Symbol("AAPL")
SUBJECT = Subject("organization", "account", "key", AAPL)
SWITCHES = (
    Reason.ORGANIZATION_MANUALLY_DISABLED,
    Reason.ACCOUNT_MANUALLY_DISABLED,
    Reason.SYMBOL_MANUALLY_DISABLED,
)
# Of limits, those that need neither the account's state nor a price.
STATELESS = (Reason.MAX_ORDER_QUANTITY, Reason.ALLOW_SHORT, Reason.ALLOWED_SYMBOLS)
EVERYTHING_OFF = Controls(
    organization_id="organization",
    account_id="account",
    organization=Switch(True),
    account=Switch(True),
    symbol=Switch(True),
    time=TimeRule(time(9), time(15)),
    organization_halt=StandingHalt("h", "x"),
    account_halt=StandingHalt("i", "x"),
)
NOTHING_ALLOWED = TradingLimits(
    max_order_quantity=Decimal(1), allow_short=False, allowed_symbols=frozenset(["MSFT"])
)
ASKED = AskedOrder(
    is_create=True,
    symbol=AAPL,
    side=OrderSide.SELL_SHORT,
    kind=OrderKind.LIMIT,
    quantity=Decimal(10),
    limit_price=Decimal(100),
    open_after=Decimal(10),
)
REFUSED = Case(
    purpose=Purpose.TRADE,
    controls=EVERYTHING_OFF,
    now=NOW,
    symbol=AAPL,
    asked=ASKED,
    levels=AppliedLimits(account=NOTHING_ALLOWED, key=NOTHING_ALLOWED).levels(SUBJECT),
    met=LimitState(),
)


def reasons(case: Case) -> list[Reason]:
    return [each.reason for each in judge(case)]


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        (
            Purpose.TRADE,
            [
                Reason.ORGANIZATION_HALTED,
                Reason.ORGANIZATION_MANUALLY_DISABLED,
                Reason.ACCOUNT_HALTED,
                Reason.ACCOUNT_MANUALLY_DISABLED,
                Reason.SYMBOL_MANUALLY_DISABLED,
                Reason.OUTSIDE_TRADING_WINDOW,
                *STATELESS,
                *STATELESS,
            ],
        ),
        (Purpose.CLOSE, [*SWITCHES, Reason.OUTSIDE_TRADING_WINDOW, *STATELESS]),
        (Purpose.HALT, [Reason.OUTSIDE_TRADING_WINDOW]),
        (Purpose.CANCEL, []),
    ],
)
def test_each_purpose_passes_what_it_may_and_nothing_else(
    purpose: Purpose, expected: list[Reason]
) -> None:
    closing = structs.replace(ASKED, closes=purpose is Purpose.CLOSE)
    assert reasons(structs.replace(REFUSED, purpose=purpose, asked=closing)) == expected


def test_every_purpose_is_judged() -> None:
    for purpose in Purpose:
        clear = Controls(organization_id="organization", account_id="account")
        assert judge(structs.replace(REFUSED, purpose=purpose, controls=clear, levels=())) == ()


def test_a_question_about_an_account_has_no_answer_of_a_symbol() -> None:
    case = Case(purpose=Purpose.TRADE, controls=EVERYTHING_OFF, now=NOW, symbol=None)
    assert reasons(case) == [
        Reason.ORGANIZATION_HALTED,
        Reason.ORGANIZATION_MANUALLY_DISABLED,
        Reason.ACCOUNT_HALTED,
        Reason.ACCOUNT_MANUALLY_DISABLED,
    ]


def test_a_halt_that_is_over_refuses_what_was_accepted_before_its_end() -> None:
    ended = Controls(organization_id="organization", account_id="account", halted_since=True)
    for purpose, expected in (
        (Purpose.TRADE, [Reason.ACCOUNT_HALTED]),
        (Purpose.CLOSE, []),
        (Purpose.HALT, []),
        (Purpose.CANCEL, []),
    ):
        case = structs.replace(REFUSED, purpose=purpose, controls=ended, levels=())
        assert reasons(case) == expected


switches = st.none() | st.builds(Switch, st.booleans(), st.none() | st.text(max_size=3))
halts = st.none() | st.builds(StandingHalt, st.just("h"), st.just("x"))
windows = st.none() | st.builds(
    TimeRule, st.none() | st.times(), st.none() | st.times(), st.none(), st.just("UTC")
)
amounts = st.none() | st.sampled_from([Decimal(1), Decimal(10), Decimal(1000)])
counts = st.none() | st.sampled_from([1, 3, 1000])
limits = st.none() | st.builds(
    TradingLimits,
    max_order_quantity=amounts,
    max_order_notional=amounts,
    price_collar_bps=counts,
    max_open_orders=counts,
    max_position_quantity=amounts,
    max_orders_per_minute=counts,
    allow_short=st.none() | st.booleans(),
    allowed_symbols=st.none() | st.sampled_from([frozenset(["AAPL"]), frozenset(["MSFT"])]),
    duplicate_window_millis=counts,
    max_daily_loss=amounts,
)
quantities = st.sampled_from([Decimal(-20), Decimal(0), Decimal(5), Decimal(20)])
unfilled = st.sampled_from([Decimal(0), Decimal(5)])
cases = st.builds(
    Case,
    purpose=st.sampled_from(Purpose),
    controls=st.builds(
        Controls,
        organization_id=st.just("organization"),
        account_id=st.just("account"),
        organization=switches,
        account=switches,
        symbol=switches,
        time=windows,
        organization_halt=halts,
        account_halt=halts,
    ),
    now=st.just(NOW),
    symbol=st.just(AAPL),
    asked=st.builds(
        structs.replace,
        st.just(ASKED),
        is_create=st.booleans(),
        side=st.sampled_from(OrderSide),
        limit_price=amounts,
        quantity=st.sampled_from([Decimal(1), Decimal(10)]),
    ),
    levels=st.builds(AppliedLimits, limits, limits, limits).map(lambda all: all.levels(SUBJECT)),
    met=st.builds(
        LimitState,
        position=quantities,
        open_buy=unfilled,
        open_sell=unfilled,
        open_orders=st.integers(0, 4),
        account_open_orders=st.integers(0, 4),
        orders_last_minute=st.integers(0, 4),
        reference_price=amounts,
        daily_result=quantities,
        is_position_known=st.booleans(),
    ),
)


@settings(max_examples=examples(400))
@given(cases)
def test_before_a_send_nothing_refuses_that_would_not_refuse_at_the_accept(case: Case) -> None:
    """Limits that need a count are not judged again, and the rest is judged alike."""
    accepted = judge(case)
    sent = judge(structs.replace(case, met=None))
    assert [each for each in sent if each not in accepted] == []
    left_out = [each for each in accepted if each not in sent]
    assert not {each.reason for each in left_out} & {*HALTS, *SWITCHES}
    assert all(each.limit is not UNSET for each in left_out)


@settings(max_examples=examples(200))
@given(cases)
def test_whatever_a_halts_own_order_meets_a_callers_meets_more(case: Case) -> None:
    found = {
        purpose: {*reasons(structs.replace(case, purpose=purpose))}
        for purpose in (Purpose.TRADE, Purpose.CLOSE, Purpose.HALT, Purpose.CANCEL)
    }
    assert found[Purpose.CANCEL] <= found[Purpose.HALT] <= found[Purpose.CLOSE]
    assert found[Purpose.CLOSE] <= found[Purpose.TRADE]
    assert found[Purpose.TRADE] - found[Purpose.CLOSE] <= {*HALTS}
