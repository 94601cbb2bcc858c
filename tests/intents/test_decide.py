"""decide() and judge(): pure rules. By table in the order of its checks, and for any state that can be made
up."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.installed.remote_broker import CAPABILITIES as REMOTE
from tests.property_sizes import examples
from trading_intents.brokers.paper.model import CAPABILITIES as PAPER
from trading_intents.brokers.port import Capabilities, LinkedOrders
from trading_intents.controls.case import Case, judge
from trading_intents.controls.model import Controls, StandingHalt, Switch, TimeRule, evaluate
from trading_intents.controls.rules import AccountState, KeyState, Rules
from trading_intents.errors import ControlRejected, PlatformError
from trading_intents.identity.model import Entitlement, Permission
from trading_intents.intents.deciding.compose import asked_order, purpose_of
from trading_intents.intents.deciding.decide import decide
from trading_intents.intents.model import (
    Accepted,
    Cancel,
    Close,
    Create,
    Decision,
    EarlierAction,
    KnownOrder,
    LinkedSpec,
    Replace,
    Replayed,
    Spec,
    Submission,
    SubmissionState,
)
from trading_intents.orders.model import FINAL_STATUSES
from trading_intents.orders.positions import Holding
from trading_intents.trading import (
    ActionType,
    Environment,
    Leg,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
)

OF_RULES = {"key", "account", "controls", "limited"}
NOW = datetime(2026, 1, 5, 15, 0, tzinfo=UTC)
MINE, OTHER, ACCOUNT, INTENT, KEY = (str(uuid4()) for _ in range(5))
OPEN_STATUSES = (
    "PENDING_NEW",
    "NEW",
    "PARTIALLY_FILLED",
    "PENDING_REPLACE",
    "PENDING_CANCEL",
    "UNKNOWN",
)
AAPL = Symbol("AAPL")
LIMIT = Spec(
    kind=OrderKind.LIMIT, quantity="10", limit_price="187.5", stop_price=None, trail_amount=None
)
KEPT = structs.replace(LIMIT, time_in_force=TimeInForce.GOOD_TILL_CANCEL)
CREATE = Create(AAPL, OrderSide.BUY, RouteStrategy.SMART, LIMIT)
REPLACE = Replace(INTENT, LIMIT)
CANCEL = Cancel(INTENT)
NONE_SET = Controls(organization_id=MINE, account_id=ACCOUNT)
WITHOUT_REPLACE = Capabilities(
    name="slow",
    environments=PAPER.environments,
    times_in_force=PAPER.times_in_force,
    routes=PAPER.routes,
    native_replace=False,
    credential_fields=(),
)


def submission(command: Any, **changes: Any) -> Submission:
    return structs.replace(
        Submission(
            account_id=ACCOUNT,
            organization_id=MINE,
            key_id=KEY,
            command=command,
            client_reference_id=None,
            idempotency_key=None,
            body_digest=None,
        ),
        **changes,
    )


def key(**changes: Any) -> KeyState:
    made = KeyState(
        organization_id=MINE,
        environment=Environment.PAPER,
        permissions=frozenset({Permission.INTENT_EDIT}),
        entitlements=frozenset(),
        disabled=False,
    )
    return structs.replace(made, **changes)


def account(**changes: Any) -> AccountState:
    return structs.replace(
        AccountState(
            organization_id=MINE,
            environment=Environment.PAPER,
            broker="paper",
            disabled=False,
            closed=False,
            has_credential=False,
        ),
        **changes,
    )


def order(**changes: Any) -> KnownOrder:
    made = KnownOrder(
        account_id=ACCOUNT,
        symbol=AAPL,
        side=OrderSide.SELL,
        route=RouteStrategy.SMART,
        spec=KEPT,
        client_reference_id="mine",
        status="NEW",
        cancel_requested=False,
        replace_pending=False,
        version=1,
        command_seq=1,
    )
    return structs.replace(made, **changes)


def rules(**changes: Any) -> Rules:
    made = Rules(key=key(), account=account(), controls=NONE_SET, limited=None)
    return structs.replace(made, **changes)


def state(**changes: Any) -> SubmissionState:
    """Changes of its rules too."""
    of_rules = {name: changes.pop(name) for name in OF_RULES & changes.keys()}
    made = SubmissionState(rules=rules(**of_rules), broker=PAPER, order=order(), earlier=None)
    return structs.replace(made, **changes)


def answer(asked: Submission, met: SubmissionState, now: datetime = NOW) -> Decision:
    """As the writer does: the controls are judged last."""
    decided = decide(asked, met, now)
    if not isinstance(decided, Accepted):
        return decided
    case = Case(
        purpose=purpose_of(decided, asked.halt_id),
        controls=met.rules.controls,
        now=now,
        symbol=decided.symbol,
        asked=asked_order(decided, met.order),
    )
    triggered = judge(case)
    return ControlRejected(triggered) if triggered else decided


LIVE = {
    "key": key(environment=Environment.LIVE),
    "account": account(environment=Environment.LIVE, broker="remote"),
}
OFF = structs.replace(NONE_SET, account=Switch(True))
NEVER = {"earlier": EarlierAction("other", INTENT, 1)}
ALL = (CREATE, REPLACE, CANCEL)
RISKY = (CREATE, REPLACE)
UNOFFERED = structs.replace(LIMIT, time_in_force=TimeInForce.EXT)

# Each row is wrong in its own way and in every way below it too, so the order of the checks shows.
ORDER: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("unauthorized", ALL, {"key": None}),
    ("unauthorized", ALL, {"key": key(disabled=True, permissions=frozenset())}),
    ("unauthorized", ALL, {"key": key(expires_at=NOW, permissions=frozenset())}),
    (
        "forbidden",
        ALL,
        {"key": key(permissions=frozenset({Permission.INTENT_READ})), "account": None},
    ),
    ("not_found", ALL, {"account": None, "broker": None}),
    ("not_found", ALL, {"account": account(organization_id=OTHER, environment=Environment.LIVE)}),
    ("forbidden", ALL, {"account": account(environment=Environment.LIVE)}),
    ("entitlement_required", RISKY, LIVE | {"broker": None, "order": None}),
    ("unavailable", RISKY, {"broker": None, "order": None}),
    ("validation_failed", (REPLACE,), {"broker": WITHOUT_REPLACE, "order": None}),
    (
        "validation_failed",
        (Replace(INTENT, UNOFFERED), structs.replace(CREATE, spec=UNOFFERED)),
        {"order": None},
    ),
    ("validation_failed", (structs.replace(CREATE, route=RouteStrategy.NYSE),), NEVER),
    ("not_found", (REPLACE, CANCEL), {"order": None} | NEVER),
    ("not_found", (REPLACE, CANCEL), {"order": order(account_id=str(uuid4()))} | NEVER),
    (
        "validation_failed",
        (Replace(INTENT, structs.replace(LIMIT, kind=OrderKind.MARKET, limit_price=None)),),
        NEVER,
    ),
    ("idempotency_conflict", ALL, NEVER | {"account": account(closed=True, disabled=True)}),
    ("account_closed", ALL, {"account": account(closed=True, disabled=True)}),
    (
        "account_disabled",
        RISKY,
        {"account": account(disabled=True, broker="remote"), "broker": REMOTE},
    ),
    (
        "credential_missing",
        RISKY,
        {"broker": REMOTE, "order": order(status="FILLED"), "controls": OFF},
    ),
    (
        "intent_closed",
        (REPLACE, CANCEL),
        {"order": order(status="FILLED", cancel_requested=True), "controls": OFF},
    ),
    (
        "cancel_pending",
        (REPLACE,),
        {"order": order(cancel_requested=True, replace_pending=True), "controls": OFF},
    ),
    ("replace_pending", (REPLACE,), {"order": order(replace_pending=True), "controls": OFF}),
    ("control_rejected", RISKY, {"controls": OFF}),
)


@pytest.mark.parametrize(("code", "commands", "changes"), ORDER)
def test_the_first_error_is_answered(
    code: str, commands: tuple[Any, ...], changes: dict[str, Any]
) -> None:
    for command in commands:
        refusal = answer(
            submission(command, idempotency_key="k", body_digest="mine"), state(**changes)
        )
        assert isinstance(refusal, PlatformError), command
        assert refusal.code == code, command


def test_a_create_is_completed_by_its_defaults() -> None:
    made = answer(submission(CREATE, client_reference_id="r"), state(order=None))
    spec = structs.replace(LIMIT, time_in_force=TimeInForce.DAY)
    assert made == Accepted(
        action_type=ActionType.CREATE,
        symbol=AAPL,
        side=OrderSide.BUY,
        route=RouteStrategy.SMART,
        spec=spec,
        client_reference_id="r",
    )


PROFIT = LinkedSpec(
    Leg.TAKE_PROFIT,
    Spec(
        kind=OrderKind.LIMIT,
        quantity="10",
        limit_price="190",
        time_in_force=TimeInForce.GOOD_TILL_CANCEL,
    ),
)
BRACKET = structs.replace(CREATE, legs=(PROFIT,))
BUYS = LinkedOrders(
    (OrderSide.BUY,), (OrderKind.LIMIT,), (TimeInForce.DAY, TimeInForce.GOOD_TILL_CANCEL)
)


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (None, "does not link orders in this way"),
        (replace(BUYS, order_sides=(OrderSide.SELL_SHORT,)), "links it to no BUY; use SELL_SHORT"),
        (replace(BUYS, order_kinds=(OrderKind.MARKET,)), "links it to no Limit order; use Market"),
        (
            replace(BUYS, times_in_force=(TimeInForce.DAY,)),
            "time_in_force GOOD_TILL_CANCEL; use DAY",
        ),
        (
            replace(BUYS, times_in_force=(TimeInForce.GOOD_TILL_CANCEL,)),
            "time_in_force DAY; use GOOD_TILL_CANCEL",
        ),
        (
            replace(BUYS, one_time_in_force=True),
            (
                "has one time_in_force for linked orders; the entry's is DAY and the exits' is "
                "GOOD_TILL_CANCEL"
            ),
        ),
    ],
)
def test_a_broker_refuses_legs_that_it_does_not_offer(
    offered: LinkedOrders | None, said: str
) -> None:
    met = state(order=None, broker=replace(PAPER, exits=offered))
    refusal = answer(submission(BRACKET), met)
    assert isinstance(refusal, PlatformError)
    assert refusal.code == "validation_failed"
    assert "/command/payload/exits" in str(refusal)
    assert said in str(refusal)
    assert isinstance(
        answer(submission(CREATE), state(order=None, broker=replace(PAPER, exits=offered))),
        Accepted,
    )


def test_a_broker_with_one_time_in_force_takes_a_group_that_has_one() -> None:
    broker = replace(PAPER, exits=replace(BUYS, one_time_in_force=True))
    made = answer(
        submission(structs.replace(BRACKET, spec=KEPT)), state(order=None, broker=broker), NOW
    )
    assert isinstance(made, Accepted)
    assert (made.is_linked, made.legs) == (True, (PROFIT,))


def test_a_replace_is_completed_by_the_order() -> None:
    spec = structs.replace(LIMIT, quantity="11")
    made = answer(submission(Replace(INTENT, spec)), state())
    kept = structs.replace(spec, time_in_force=TimeInForce.GOOD_TILL_CANCEL)
    assert made == Accepted(
        action_type=ActionType.REPLACE,
        symbol=AAPL,
        side=OrderSide.SELL,
        route=RouteStrategy.SMART,
        spec=kept,
        client_reference_id="mine",
    )


def test_a_cancel_repeats_the_order() -> None:
    made = answer(submission(CANCEL), state())
    assert made == Accepted(
        action_type=ActionType.CANCEL,
        symbol=AAPL,
        side=OrderSide.SELL,
        route=RouteStrategy.SMART,
        spec=KEPT,
        client_reference_id="mine",
    )


def test_a_cancel_needs_no_broker_plan_credential_or_control() -> None:
    off = account(environment=Environment.LIVE, broker="remote", disabled=True)
    bare = {"broker": None, "controls": OFF} | LIVE | {"account": off}
    assert isinstance(answer(submission(CANCEL), state(**bare)), Accepted)


def test_an_earlier_answer_is_given_again_whatever_has_happened_since() -> None:
    earlier = EarlierAction("mine", INTENT, 7)
    is_abandoned = {
        "earlier": earlier,
        "controls": OFF,
        "account": account(closed=True, disabled=True),
    }
    # A fill of its pair did that, so the REPLACE would be refused.
    lower = structs.replace(KEPT, quantity="0.1")
    since: tuple[dict[str, Any], ...] = (
        {"order": order(status="FILLED")},
        {"broker": None},
        {"order": order(spec=lower, is_linked=True)},
    )
    for command, change in itertools.product(ALL, since):
        asked = submission(command, idempotency_key="k", body_digest="mine")
        assert answer(asked, state(**is_abandoned | change)) == Replayed(INTENT, 7)


uuids = st.sampled_from([ACCOUNT, INTENT, UUID(int=0)])
organizations = st.sampled_from([MINE, OTHER])
amounts = st.sampled_from(["1", "0.5", "999999999999999999.999999999999999999"])
times = st.none() | st.sampled_from(TimeInForce)


@st.composite
def specs(draw: st.DrawFn, timed: bool = False) -> Spec:
    kind = draw(st.sampled_from(OrderKind))
    has_limit = kind in (OrderKind.LIMIT, OrderKind.STOP_LIMIT)
    has_stop = kind in (OrderKind.STOP, OrderKind.STOP_LIMIT)
    return Spec(
        kind=kind,
        quantity=draw(amounts),
        limit_price=draw(amounts) if has_limit else None,
        stop_price=draw(amounts) if has_stop else None,
        trail_amount=draw(amounts) if kind is OrderKind.TRAILING_STOP else None,
        time_in_force=draw(st.sampled_from(TimeInForce) if timed else times),
    )


symbols = st.sampled_from([AAPL, Symbol("BTC/USD")])
sides = st.sampled_from(OrderSide)
routes = st.sampled_from(RouteStrategy)
commands = st.one_of(
    st.builds(Create, symbols, sides, routes, specs()),
    st.builds(Replace, uuids, specs()),
    st.builds(Cancel, uuids),
)
switches = st.none() | st.builds(Switch, st.booleans(), st.none() | st.text(max_size=5))
rule_times = st.none() | st.builds(
    TimeRule,
    st.none() | st.times(),
    st.none() | st.times(),
    st.none(),
    st.none() | st.sampled_from(["UTC", "No/Where"]),
)
keys = st.builds(
    KeyState,
    organization_id=organizations,
    environment=st.sampled_from(Environment),
    permissions=st.frozensets(st.sampled_from(Permission)),
    entitlements=st.frozensets(st.sampled_from(Entitlement)),
    disabled=st.booleans(),
    expires_at=st.none(),
)
accounts = st.builds(
    AccountState,
    organization_id=organizations,
    environment=st.sampled_from(Environment),
    broker=st.sampled_from(["paper", "remote"]),
    disabled=st.booleans(),
    closed=st.booleans(),
    has_credential=st.booleans(),
)
orders = st.builds(
    KnownOrder,
    account_id=uuids,
    symbol=symbols,
    side=sides,
    route=routes,
    spec=specs(timed=True),
    client_reference_id=st.none() | st.text(max_size=5),
    status=st.sampled_from([*OPEN_STATUSES, *FINAL_STATUSES]),
    cancel_requested=st.booleans(),
    replace_pending=st.booleans(),
    version=st.integers(1, 9),
    command_seq=st.integers(1, 9),
)
states = st.builds(
    SubmissionState,
    rules=st.builds(
        Rules,
        key=st.none() | keys,
        account=st.none() | accounts,
        controls=st.builds(
            Controls,
            organization_id=organizations,
            account_id=st.just(ACCOUNT),
            organization=switches,
            account=switches,
            symbol=switches,
            time=rule_times,
        ),
        limited=st.none(),
    ),
    broker=st.none() | st.sampled_from([PAPER, REMOTE, WITHOUT_REPLACE]),
    order=st.none() | orders,
    earlier=st.none()
    | st.builds(EarlierAction, st.sampled_from(["mine", "other"]), uuids, st.integers(1, 9)),
)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.chaos)])
def test_every_state_gives_one_answer_and_it_is_a_safe_one(count: int) -> None:
    settings(max_examples=count)(given(commands, states)(check_answer))()


def check_answer(command: Any, met: SubmissionState) -> None:
    asked = submission(
        command,
        idempotency_key="k" if met.earlier else None,
        body_digest="mine" if met.earlier else None,
    )
    made = answer(asked, met)
    assert made is not None
    assert sum(isinstance(made, kind) for kind in (Accepted, Replayed, PlatformError)) == 1
    if isinstance(made, PlatformError):
        assert 400 <= made.status < 500 or made.code == "unavailable"
        return
    assert met.rules.key is not None
    assert met.rules.account is not None
    assert not met.rules.key.disabled
    assert met.rules.key.organization_id == met.rules.account.organization_id
    assert met.rules.key.environment == met.rules.account.environment
    if isinstance(made, Replayed):
        assert met.earlier is not None
        assert (made.intent_id, made.seq, met.earlier.body_digest) == (
            met.earlier.intent_id,
            met.earlier.seq,
            "mine",
        )
        return
    assert met.earlier is None
    assert not met.rules.account.closed
    assert made.spec.time_in_force is not None
    if not isinstance(command, Create):
        assert met.order is not None
        assert (met.order.account_id, made.symbol, made.side) == (
            ACCOUNT,
            met.order.symbol,
            met.order.side,
        )
        assert met.order.status in OPEN_STATUSES
        assert made.spec.kind is met.order.spec.kind
    if not isinstance(command, Cancel):
        assert not met.rules.account.disabled
        assert not evaluate(met.rules.controls, made.symbol, NOW)
        if met.rules.account.environment is Environment.LIVE:
            assert Entitlement.TRADING_LIVE in met.rules.key.entitlements
    assert answer(asked, met) == made, "the same question has the same answer"


@settings(max_examples=examples(200))
@given(
    states,
    st.sampled_from(OPEN_STATUSES),
    st.booleans(),
    st.booleans(),
    st.frozensets(st.sampled_from(Entitlement)),
)
def test_a_cancel_of_an_open_order_is_always_taken(
    met: SubmissionState, status: str, cancelled: bool, replaced: bool, plan: frozenset[Entitlement]
) -> None:
    """By a key that may; whatever the controls, the plan, the broker or the account's switch
    say."""
    kept = (
        structs.replace(met.rules.account, organization_id=MINE, closed=False)
        if met.rules.account
        else account()
    )
    allowed = key(environment=kept.environment, entitlements=plan)
    open_order = order(status=status, cancel_requested=cancelled, replace_pending=replaced)
    changed = structs.replace(met.rules, key=allowed, account=kept)
    met = structs.replace(met, rules=changed, order=open_order, earlier=None)
    made = answer(submission(CANCEL), met)
    assert isinstance(made, Accepted)
    assert made.spec == open_order.spec


def test_a_window_is_judged_at_the_moment_that_is_given() -> None:
    window = structs.replace(NONE_SET, time=TimeRule(time(9), time(15)))
    assert isinstance(
        answer(submission(CREATE), state(controls=window), NOW.replace(hour=14, minute=59)),
        Accepted,
    )
    refused = answer(submission(CREATE), state(controls=window))
    assert isinstance(refused, PlatformError)
    assert refused.code == "control_rejected"


def test_a_close_on_a_live_account_takes_the_plan_as_a_create_does() -> None:
    live = {
        "key": key(environment=Environment.LIVE),
        "account": account(environment=Environment.LIVE),
    }
    held = Holding(Decimal(3), Decimal(0), Decimal(0), 0, False)
    met = state(order=None, holding=held, **live)
    close = submission(Close(AAPL))
    assert getattr(answer(close, met), "code", None) == "entitlement_required"
    planned = structs.replace(live["key"], entitlements=frozenset({Entitlement.TRADING_LIVE}))
    made = answer(close, state(order=None, holding=held, **live | {"key": planned}))
    assert isinstance(made, Accepted)
    assert (made.side, made.spec.quantity, made.closes) == (OrderSide.SELL, "3", True)


def test_a_halt_that_is_over_appends_nothing() -> None:
    held = Holding(Decimal(1), Decimal(0), Decimal(0), 0, False)
    none = {"key": None, "order": None, "holding": held}
    close = submission(Close(AAPL, Decimal(1), 1), key_id=None, halt_id="h")
    assert getattr(answer(close, state(**none)), "code", None) == "not_halted"
    halted = structs.replace(NONE_SET, account_halt=StandingHalt("h", "x"), account=Switch(True))
    assert isinstance(answer(close, state(controls=halted, **none)), Accepted)
    shut = structs.replace(halted, time=TimeRule(time(9), time(15)))
    assert getattr(answer(close, state(controls=shut, **none)), "code", None) == "control_rejected"


def test_a_close_of_a_caller_passes_halts_and_no_other_control() -> None:
    held = Holding(Decimal(1), Decimal(0), Decimal(0), 0, False)
    halted = structs.replace(
        NONE_SET, account_halt=StandingHalt("h", "x"), organization_halt=StandingHalt("i", "y")
    )
    for controls, expected in ((halted, Accepted), (OFF, ControlRejected)):
        met = state(order=None, holding=held, controls=controls)
        assert isinstance(answer(submission(Close(AAPL)), met), expected)
    refused = answer(submission(CREATE), state(controls=halted))
    assert getattr(refused, "reasons", None) == ("organization_halted", "account_halted")
