"""judge_limits(): every limit at its edge by a table, on every level that it has, and for any state that
can be made up."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from trading_intents.controls.limits.model import (
    AppliedLimits,
    AskedOrder,
    Levels,
    LimitState,
    TradingLimits,
    added_notional,
    judge_limits,
)
from trading_intents.controls.model import Subject, Triggered
from trading_intents.trading import ZERO, Leg, OrderKind, OrderSide, Symbol, exact

NOW = datetime(2026, 1, 5, 15, 0, tzinfo=UTC)
OWNER = Subject("organization", "account", None, "AAPL")
SCOPES: dict[str, Any] = {
    "organization": {"Organization": "organization"},
    "account": {"Account": "account"},
    "symbol": {"Symbol": {"account_id": "account", "symbol": "AAPL"}},
}
BUY = OrderSide.BUY
SELL = OrderSide.SELL
SHORT = OrderSide.SELL_SHORT
ALL = ("organization", "account", "symbol")
OWN = ("account", "symbol")
ACCOUNT = ("account",)


def order(side: OrderSide = BUY, quantity: str = "10", **changes: Any) -> AskedOrder:
    prices: dict[str, Any] = {
        name: Decimal(changes.pop(name))
        for name in ("limit_price", "stop_price")
        if name in changes
    }
    made = AskedOrder(
        is_create=True,
        symbol=Symbol("AAPL"),
        side=side,
        kind=OrderKind.LIMIT,
        quantity=Decimal(quantity),
        open_after=Decimal(quantity),
        **prices,
    )
    return structs.replace(made, **changes)


def replacing(side: OrderSide, old: str, new: str, filled: str = "0") -> AskedOrder:
    left = Decimal(old) - Decimal(filled)
    larger = max(Decimal(old), Decimal(new)) - Decimal(filled)
    return order(side, new, is_create=False, open_before=left, open_after=larger)


def state(**changes: Any) -> LimitState:
    given: dict[str, Any] = {
        n: Decimal(each) if isinstance(each, str) else each for n, each in changes.items()
    }
    return LimitState(**given)


def limits(**fields: Any) -> TradingLimits:
    given: dict[str, Any] = {
        n: Decimal(each) if isinstance(each, str) else each for n, each in fields.items()
    }
    return TradingLimits(**given)


def applied(*levels: TradingLimits | None, **named: TradingLimits | None) -> Levels:
    return AppliedLimits(*levels, **named).levels(OWNER)


def ago(millis: int) -> LimitState:
    return LimitState(duplicate_at=NOW - timedelta(milliseconds=millis))


UNKNOWN = LimitState(is_position_known=False)
TINY = "0.000000000000000001"
# The limit, on which levels, the order, the state, and what is refused: None, or the limit and what was asked.
# fmt: off
EDGES: list[tuple[dict[str, Any], tuple[str, ...], AskedOrder, LimitState, tuple[str, Any, Any] | None]] = [
    ({"max_order_quantity": "10"}, ALL, order(), state(), None),
    ({"max_order_quantity": "10"}, ALL, order(quantity="10" + TINY[1:]), state(),
     ("max_order_quantity", "10", "10" + TINY[1:])),
    ({"max_order_quantity": TINY}, ALL, order(quantity=TINY), state(), None),
    ({"max_order_quantity": "10"}, ALL, replacing(BUY, "5", "10"), state(), None),
    ({"max_order_quantity": "10"}, ALL, replacing(BUY, "5", "11"), state(), ("max_order_quantity", "10", "11")),
    ({"max_order_notional": "1000"}, ALL, order(limit_price="100"), state(), None),
    ({"max_order_notional": "1000"}, ALL, order(limit_price="100.01"), state(),
     ("max_order_notional", "1000", "1000.1")),
    ({"max_order_notional": "1000"}, ALL, order(limit_price="90"), state(reference_price="100.5"),
     ("max_order_notional", "1000", "1005")),
    ({"max_order_notional": "1000"}, ALL, order(limit_price="90", stop_price="101"), state(reference_price="95"),
     ("max_order_notional", "1000", "1010")),
    ({"max_order_notional": "1000"}, ALL, order(stop_price="100"), state(), None),
    ({"max_order_notional": "1000"}, ALL, order(), state(reference_price="100"), None),
    ({"max_order_notional": "1000"}, ALL, order(), state(), ("no_reference_price", "1000", "AAPL")),
    ({"price_collar_bps": 100}, ALL, order(limit_price="202"), state(reference_price="200"), None),
    ({"price_collar_bps": 100}, ALL, order(limit_price="202.01"), state(reference_price="200"),
     ("price_collar_bps", 100, "100.5")),
    ({"price_collar_bps": 100}, ALL, order(limit_price="1"), state(reference_price="200"), None),
    ({"price_collar_bps": 100}, ALL, order(SELL, limit_price="198"), state(reference_price="200"), None),
    ({"price_collar_bps": 100}, ALL, order(SELL, limit_price="197.99"), state(reference_price="200"),
     ("price_collar_bps", 100, "100.5")),
    ({"price_collar_bps": 100}, ALL, order(SHORT, limit_price="197.99"), state(reference_price="200"),
     ("price_collar_bps", 100, "100.5")),
    ({"price_collar_bps": 10_000}, ALL, order(SELL, limit_price=TINY), state(reference_price="200"), None),
    ({"price_collar_bps": 100}, ALL, order(limit_price="1"), state(), ("no_reference_price", 100, "AAPL")),
    ({"price_collar_bps": 1}, ALL, order(), state(), None),
    ({"price_collar_bps": 1}, ALL, order(stop_price="999"), state(reference_price="1"), None),
    ({"max_open_orders": 3}, ("symbol",), order(), state(open_orders=2, account_open_orders=9), None),
    ({"max_open_orders": 3}, ("symbol",), order(), state(open_orders=3), ("max_open_orders", 3, 4)),
    ({"max_open_orders": 3}, ACCOUNT, order(), state(open_orders=2, account_open_orders=2), None),
    ({"max_open_orders": 3}, ACCOUNT, order(), state(open_orders=2, account_open_orders=3), ("max_open_orders", 3, 4)),
    ({"max_open_orders": 1}, OWN, replacing(BUY, "1", "9"), state(open_orders=9, account_open_orders=9), None),
    ({"max_position_quantity": "100"}, OWN, order(), state(position="70", open_buy="20", open_sell="500"), None),
    ({"max_position_quantity": "100"}, OWN, order(), state(position="70", open_buy="20.5"),
     ("max_position_quantity", "100", "100.5")),
    ({"max_position_quantity": "100"}, OWN, order(SHORT), state(position="-70", open_sell="20", open_buy="500"), None),
    ({"max_position_quantity": "100"}, OWN, order(SHORT), state(position="-70", open_sell="21"),
     ("max_position_quantity", "100", "101")),
    ({"max_position_quantity": "100"}, OWN, order(SELL, "150"), state(position="500"), None),
    ({"max_position_quantity": "100"}, OWN, order(SELL, "500"), state(position="500"), None),
    ({"max_position_quantity": "100"}, OWN, order(SELL, "600"), state(position="500"), None),
    ({"max_position_quantity": "100"}, OWN, order(SELL, "601"), state(position="500"),
     ("max_position_quantity", "100", "101")),
    ({"max_position_quantity": "100"}, OWN, order(BUY, "300"), state(position="-500", open_buy="200"), None),
    ({"max_position_quantity": "100"}, OWN, order(BUY, "401"), state(position="-500", open_buy="200"),
     ("max_position_quantity", "100", "101")),
    ({"max_position_quantity": "100"}, OWN, replacing(BUY, "20", "50"), state(position="50", open_buy="20"), None),
    ({"max_position_quantity": "100"}, OWN, replacing(BUY, "20", "51"), state(position="50", open_buy="20"),
     ("max_position_quantity", "100", "101")),
    ({"max_position_quantity": "100"}, OWN, replacing(BUY, "50", "1"), state(position="50", open_buy="50"), None),
    ({"max_position_quantity": "100"}, OWN, replacing(BUY, "50", "60", "10"), state(position="50", open_buy="40"),
     None),
    ({"max_orders_per_minute": 60}, ACCOUNT, order(), state(orders_last_minute=59), None),
    ({"max_orders_per_minute": 60}, ACCOUNT, order(), state(orders_last_minute=60), ("max_orders_per_minute", 60, 61)),
    ({"max_orders_per_minute": 60}, ACCOUNT, replacing(BUY, "1", "2"), state(orders_last_minute=60),
     ("max_orders_per_minute", 60, 61)),
    ({"allow_short": True}, ALL, order(SHORT), state(), None),
    ({"allow_short": False}, ALL, order(SHORT), state(position="100"), ("allow_short", False, "SELL_SHORT")),
    ({"allow_short": False}, ALL, order(SELL), state(position="30", open_sell="20", open_buy="5"), None),
    ({"allow_short": False}, ALL, order(SELL), state(position="29.5", open_sell="20"), ("allow_short", False, "10")),
    ({"allow_short": False}, ALL, order(SELL), state(), ("allow_short", False, "10")),
    ({"allow_short": False}, ALL, order(BUY), state(position="-5"), None),
    ({"allow_short": False}, ALL, replacing(SELL, "10", "20"), state(position="20", open_sell="10"), None),
    ({"allow_short": False}, ALL, replacing(SELL, "10", "21"), state(position="20", open_sell="10"),
     ("allow_short", False, "21")),
    ({"allowed_symbols": frozenset({"AAPL", "MSFT"})}, ACCOUNT, order(), state(), None),
    ({"allowed_symbols": frozenset({"MSFT", "IBM"})}, ACCOUNT, order(), state(),
     ("allowed_symbols", ["IBM", "MSFT"], "AAPL")),
    ({"duplicate_window_millis": 500}, ACCOUNT, order(), ago(500), None),
    ({"duplicate_window_millis": 500}, ACCOUNT, order(), ago(499), ("duplicate_window_millis", 500, 499)),
    ({"duplicate_window_millis": 500}, ACCOUNT, order(), ago(-3), ("duplicate_window_millis", 500, 0)),
    ({"duplicate_window_millis": 500}, ACCOUNT, order(), state(), None),
    ({"duplicate_window_millis": 500}, ACCOUNT, replacing(BUY, "10", "10"), ago(1), None),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(), state(daily_result="-999.99"), None),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(), state(daily_result="-1000"), ("max_daily_loss", "1000", "1000")),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(), state(daily_result="5000"), None),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(SELL), state(daily_result="-1000", position="10"), None),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(SELL), state(daily_result="-1000", position="9"),
     ("max_daily_loss", "1000", "1000")),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(BUY), state(daily_result="-1000", position="-20", open_buy="10"), None),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(BUY), state(daily_result="-1000", position="-20", open_buy="11"),
     ("max_daily_loss", "1000", "1000")),
    ({"max_position_quantity": "100"}, OWN, order(), UNKNOWN, ("position_unknown", "100", "AAPL")),
    ({"max_position_quantity": "100"}, OWN, replacing(SELL, "2", "1"), UNKNOWN, ("position_unknown", "100", "AAPL")),
    ({"max_daily_loss": "1000"}, ACCOUNT, order(), UNKNOWN, ("position_unknown", "1000", "AAPL")),
    ({"allow_short": False}, ALL, order(SELL), UNKNOWN, ("position_unknown", False, "AAPL")),
    ({"allow_short": False}, ALL, order(BUY), UNKNOWN, None),
    ({"allow_short": False}, ALL, order(SHORT), UNKNOWN, ("allow_short", False, "SELL_SHORT")),
    ({"allow_short": True}, ALL, order(SELL), UNKNOWN, None),
    ({"max_open_orders": 3}, OWN, order(), UNKNOWN, None),
]
# fmt: on


@pytest.mark.parametrize(("fields", "levels", "asked", "met", "refused"), EDGES)
def test_every_limit_holds_at_its_edge(
    fields: dict[str, Any],
    levels: tuple[str, ...],
    asked: AskedOrder,
    met: LimitState,
    refused: tuple[str, Any, Any] | None,
) -> None:
    for level in levels:
        found = judge_limits(applied(**{level: limits(**fields)}), asked, met, NOW)
        answered = [(each.reason, each.limit, each.asked) for each in found]
        assert answered == ([] if refused is None else [refused]), level
        assert [each.scope for each in found] == [SCOPES[level]] * len(found)
        assert all(each.detail for each in found)


def test_every_level_that_says_no_is_named() -> None:
    found = judge_limits(
        applied(
            limits(max_order_quantity="5", allow_short=False),
            limits(max_order_quantity="6", max_open_orders=1, allowed_symbols=frozenset({"IBM"})),
            limits(max_order_quantity="7", max_position_quantity="1"),
        ),
        order(SHORT),
        state(account_open_orders=1),
        NOW,
    )
    assert [(str(each.reason), next(iter(each.scope))) for each in found] == [
        ("max_order_quantity", "Organization"),
        ("allow_short", "Organization"),
        ("max_order_quantity", "Account"),
        ("allowed_symbols", "Account"),
        ("max_open_orders", "Account"),
        ("max_order_quantity", "Symbol"),
        ("max_position_quantity", "Symbol"),
    ]


@pytest.mark.parametrize(
    ("fields", "judged"),
    [
        ({"max_order_quantity": "9"}, set(Leg)),
        ({"max_order_notional": "1900"}, {Leg.ONE_CANCELS_OTHER}),
        ({"max_daily_notional": "1900"}, {Leg.ONE_CANCELS_OTHER}),
        ({"price_collar_bps": 100}, {Leg.ONE_CANCELS_OTHER, Leg.TAKE_PROFIT}),
        ({"max_position_quantity": "10"}, set()),
    ],
)
@pytest.mark.parametrize("leg", Leg)
def test_a_leg_is_judged_alone_as_in_its_group(
    fields: dict[str, Any], judged: set[Leg], leg: Leg
) -> None:
    met = state(reference_price="180")
    asked = order(limit_price="200", stop_price="190", leg=leg)
    level = applied(key=limits(**fields))
    refused = [*fields] if leg in judged else []
    entry = order(quantity="9", limit_price="180", legs=(asked,))
    for each in (structs.replace(asked, is_create=False), entry):
        assert [found.reason for found in judge_limits(level, each, met, NOW)] == refused


def test_before_a_send_only_what_needs_no_state_is_judged_again() -> None:
    strict = limits(
        max_order_quantity="1",
        max_order_notional="1",
        price_collar_bps=1,
        max_open_orders=1,
        max_position_quantity="1",
        max_orders_per_minute=1,
        allow_short=False,
        allowed_symbols=frozenset({"IBM"}),
        duplicate_window_millis=1,
        max_daily_loss="1",
    )

    def reasons(asked: AskedOrder) -> list[str]:
        return [
            str(each.reason) for each in judge_limits(applied(account=strict), asked, None, NOW)
        ]

    assert reasons(order(SHORT, limit_price="5")) == [
        "max_order_quantity",
        "allow_short",
        "allowed_symbols",
    ]
    assert reasons(order(SELL, limit_price="5")) == ["max_order_quantity", "allowed_symbols"]


@given(
    versions=st.lists(
        st.tuples(
            st.decimals(min_value="0.01", max_value=1_000, places=2),
            st.none() | st.decimals(min_value="0.01", max_value=1_000, places=2),
            st.decimals(min_value="0.01", max_value=1_000, places=2),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_the_versions_of_an_order_add_up_to_its_dearest_when_it_was_accepted(
    versions: list[tuple[Decimal, Decimal | None, Decimal]],
) -> None:
    counted = ZERO
    dearest = ZERO
    for quantity, price, reference in versions:
        asked = structs.replace(order(), quantity=quantity, limit_price=price, counted=counted)
        added = added_notional(asked, reference)
        assert added is not None
        assert added >= 0
        counted += added
        dearest = max(dearest, quantity * max(price or ZERO, reference))
    assert counted == dearest


AMOUNTS = st.decimals(min_value=0, max_value=10**18, places=18, allow_nan=False)
COUNTS = st.integers(min_value=0, max_value=10**6)
LEVELS = st.builds(
    TradingLimits,
    max_order_quantity=st.none() | AMOUNTS,
    max_order_notional=st.none() | AMOUNTS,
    price_collar_bps=st.none() | st.integers(1, 10_000),
    max_open_orders=st.none() | COUNTS,
    max_position_quantity=st.none() | AMOUNTS,
    max_orders_per_minute=st.none() | COUNTS,
    allow_short=st.none() | st.booleans(),
    allowed_symbols=st.none() | st.frozensets(st.sampled_from(["AAPL", "IBM"])),
    duplicate_window_millis=st.none() | st.integers(1, 60_000),
    max_daily_loss=st.none() | AMOUNTS,
)
ORDERS = st.builds(
    AskedOrder,
    is_create=st.booleans(),
    symbol=st.just(Symbol("AAPL")),
    side=st.sampled_from(OrderSide),
    kind=st.sampled_from(OrderKind),
    quantity=AMOUNTS,
    limit_price=st.none() | AMOUNTS,
    stop_price=st.none() | AMOUNTS,
    open_before=AMOUNTS,
    open_after=AMOUNTS,
)
STATES = st.builds(
    LimitState,
    position=st.decimals(min_value=-(10**18), max_value=10**18, places=18),
    open_buy=AMOUNTS,
    open_sell=AMOUNTS,
    open_orders=COUNTS,
    account_open_orders=COUNTS,
    orders_last_minute=COUNTS,
    duplicate_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    reference_price=st.none() | AMOUNTS.filter(bool),
    daily_result=st.decimals(min_value=-(10**18), max_value=10**18, places=18),
    is_position_known=st.booleans(),
)


@given(level=LEVELS, asked=ORDERS, met=STATES)
def test_it_never_raises_and_each_level_is_judged_alone(
    level: TradingLimits, asked: AskedOrder, met: LimitState
) -> None:
    separately = [judge_limits(applied(**{name: level}), asked, met, NOW) for name in ALL]
    together = judge_limits(applied(level, level, level), asked, met, NOW)
    assert together == tuple(each for found in separately for each in found)
    assert all(isinstance(each, Triggered) for each in together)


@given(level=LEVELS, asked=ORDERS, met=STATES)
def test_a_reducing_order_passes_what_bounds_the_position(
    level: TradingLimits, asked: AskedOrder, met: LimitState
) -> None:
    side = SELL if met.position > 0 else BUY
    with exact():
        room = abs(met.position)
    reducing = structs.replace(asked, side=side, open_before=ZERO, open_after=room)
    free = structs.replace(met, open_buy=ZERO, open_sell=ZERO)
    found = judge_limits(applied(account=level), reducing, free, NOW)
    if room:
        assert not {each.reason for each in found} & {
            "max_position_quantity",
            "allow_short",
            "max_daily_loss",
        }
