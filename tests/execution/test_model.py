"""The pure decisions of execution: sends, findings, the breaker and the budget."""

import dataclasses
import re
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs
from msgspec.structs import replace

from tests.orders.facts import fill
from trading_intents.brokers.port import (
    Absent,
    BrokerEvent,
    EventKind,
    Lookup,
    LookupKind,
    LookupUnknown,
    OrderSnapshot,
    OrderTicket,
)
from trading_intents.clock import SystemClock
from trading_intents.controls.case import Case, Purpose
from trading_intents.controls.limits.model import AppliedLimits, AskedOrder, TradingLimits
from trading_intents.controls.model import Controls, StandingHalt, Subject, Switch, TimeRule
from trading_intents.execution.model import (
    Breaker,
    Budget,
    EndCommand,
    Hold,
    Send,
    SendContext,
    SendDecision,
    UnresolvedOrder,
    Verdict,
    classify_lookup,
    decide_send,
    ending_event,
    first_reconcile_seconds,
    next_lookup_seconds,
    not_delivered_fact,
)
from trading_intents.ids import id_maker
from trading_intents.orders.facts import CommandKind, Fact, client_order_id, event_fact
from trading_intents.orders.model import (
    OrderTerms,
    OrderVersion,
    OrderView,
    PendingCommands,
    derive,
)
from trading_intents.trading import Leg, OrderKind, OrderSide, Symbol, TimeInForce

ORDER = UUID(int=1)
NO_CONTROLS = Controls(organization_id=str(uuid4()), account_id=str(uuid4()))
OFF = structs.replace(NO_CONTROLS, symbol=Switch(True))
HALTED = structs.replace(NO_CONTROLS, organization_halt=StandingHalt("h", "x"))
WAS_HALTED = structs.replace(NO_CONTROLS, halted_since=True)
SUBJECT = Subject(NO_CONTROLS.organization_id, NO_CONTROLS.account_id, None, "AAPL")
STALE_AFTER_2, STALE_AFTER_60 = (
    structs.replace(NO_CONTROLS, time=TimeRule(None, None, millis)) for millis in (2_000, 60_000)
)
STRICT = AppliedLimits(TradingLimits(max_order_quantity=Decimal("9.9")))
NO_SHORTS = AppliedLimits(symbol=TradingLimits(allow_short=False, max_position_quantity=Decimal(1)))
CREATE = CommandKind.SUBMIT
REPLACE = CommandKind.REPLACE
CANCEL = CommandKind.CANCEL
CONTEXT = SendContext(
    command=CREATE,
    order_id=ORDER,
    ticket=OrderTicket(
        client_order_id="mine",
        symbol=Symbol("AAPL"),
        side=OrderSide.BUY,
        kind=OrderKind.LIMIT,
        quantity=Decimal(10),
        limit_price=Decimal(100),
        time_in_force=TimeInForce.DAY,
    ),
    now=datetime(2026, 1, 5, 15, tzinfo=UTC),
    age_seconds=1.0,
    order_status="PENDING_NEW",
    acknowledged=False,
    cancel_requested=False,
    is_sent=False,
    is_resend=False,
    lookups=0,
    case=Case(
        purpose=Purpose.TRADE,
        controls=NO_CONTROLS,
        now=datetime(2026, 1, 5, 15, tzinfo=UTC),
        symbol=Symbol("AAPL"),
        asked=AskedOrder(
            is_create=True,
            symbol=Symbol("AAPL"),
            side=OrderSide.BUY,
            kind=OrderKind.LIMIT,
            quantity=Decimal(10),
        ),
    ),
    account_disabled=False,
    max_age_seconds=30.0,
)
OF_CASE = {"purpose", "controls", "limits", "side"}


def context(**changes: Any) -> SendContext:
    """Changes of its case too."""
    of_case = {name: changes.pop(name) for name in OF_CASE & changes.keys()}
    assert CONTEXT.case.asked
    if limits := of_case.pop("limits", None):
        of_case["levels"] = limits.levels(SUBJECT)
    if side := of_case.pop("side", None):
        of_case["asked"] = replace(CONTEXT.case.asked, side=side)
    return replace(CONTEXT, case=replace(CONTEXT.case, **of_case), **changes)


def said(decision: SendDecision) -> str:
    match decision:
        case Send():
            return "send"
        case Hold():
            return "hold"
        case EndCommand(own, unclear):
            facts = ", ".join(f"{fact.kind} {fact.reason or ''}".strip() for fact in own)
            return f"look up: {facts}" if unclear else facts or "nothing"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "send"),
        ({"command": REPLACE, "acknowledged": True}, "send"),
        ({"command": REPLACE}, "hold"),
        ({"command": CANCEL, "acknowledged": True}, "send"),
        ({"command": CANCEL}, "hold"),
        ({"command": CANCEL, "lookups": 1}, "send"),
        ({"command": CANCEL, "age_seconds": 3.0}, "send"),
        (
            {
                "command": CANCEL,
                "acknowledged": True,
                "age_seconds": 1e6,
                "account_disabled": True,
                "controls": OFF,
            },
            "send",
        ),
        ({"order_status": "FILLED"}, "nothing"),
        ({"command": REPLACE, "order_status": "CANCELLED", "is_sent": True}, "nothing"),
        ({"is_sent": True}, "look up: UNCERTAIN"),
        ({"is_sent": True, "cancel_requested": True, "age_seconds": 99.0}, "look up: UNCERTAIN"),
        ({"command": CANCEL, "is_sent": True}, "look up: UNCERTAIN"),
        ({"cancel_requested": True}, "CANCELLED_BEFORE_SEND"),
        ({"command": REPLACE, "cancel_requested": True}, "REPLACE_DROPPED cancel_requested"),
        ({"age_seconds": 30.0}, "send"),
        ({"age_seconds": 30.1}, "STALE stale"),
        (
            {"age_seconds": 2.1, "controls": STALE_AFTER_2},
            "STALE stale",
        ),
        (
            {"age_seconds": 31.0, "controls": STALE_AFTER_60},
            "STALE stale",
        ),
        ({"command": REPLACE, "age_seconds": 31.0}, "REPLACE_DROPPED stale"),
        ({"controls": OFF}, "REFUSED symbol_manually_disabled"),
        (
            {"command": REPLACE, "acknowledged": True, "controls": OFF},
            "REPLACE_DROPPED symbol_manually_disabled",
        ),
        ({"limits": STRICT}, "REFUSED max_order_quantity"),
        (
            {"command": REPLACE, "acknowledged": True, "limits": STRICT},
            "REPLACE_DROPPED max_order_quantity",
        ),
        ({"limits": STRICT, "halt_stands": True, "purpose": Purpose.HALT}, "send"),
        ({"halt_stands": False, "purpose": Purpose.HALT}, "CANCELLED_BEFORE_SEND resumed"),
        ({"controls": HALTED}, "HALTED"),
        ({"controls": HALTED, "age_seconds": 30.1, "cancel_requested": True}, "HALTED"),
        ({"controls": WAS_HALTED}, "HALTED"),
        ({"controls": WAS_HALTED, "purpose": Purpose.CLOSE}, "send"),
        ({"command": REPLACE, "controls": HALTED}, "REPLACE_DROPPED halted"),
        ({"limits": NO_SHORTS, "side": OrderSide.SELL_SHORT}, "REFUSED allow_short"),
        ({"limits": NO_SHORTS}, "send"),
        ({"limits": NO_SHORTS, "side": OrderSide.SELL}, "send"),
        ({"account_disabled": True}, "REFUSED account_disabled"),
        ({"is_resend": True}, "send"),
        ({"is_resend": True, "age_seconds": 30.1}, "NOT_DELIVERED"),
        (
            {"is_resend": True, "age_seconds": 30.1, "cancel_requested": True},
            "CANCELLED_BEFORE_SEND",
        ),
        ({"is_resend": True, "controls": OFF}, "REFUSED symbol_manually_disabled"),
        ({"is_resend": True, "acknowledged": True}, "look up: "),
        ({"is_resend": True, "acknowledged": True, "age_seconds": 30.1}, "look up: "),
    ],
)
def test_a_claimed_command_comes_to_one_thing(changes: dict[str, Any], expected: str) -> None:
    assert said(decide_send(context(**changes))) == expected


def test_a_command_is_good_for_a_limited_time_unless_it_is_a_cancel() -> None:
    create = decide_send(CONTEXT)
    cancel = decide_send(replace(CONTEXT, command=CANCEL, acknowledged=True))
    assert isinstance(create, Send)
    assert isinstance(cancel, Send)
    assert create.left_seconds == 29.0
    assert cancel.left_seconds is None


def snapshot(*kinds: EventKind) -> OrderSnapshot:
    events = tuple(BrokerEvent(kind=kind, dedupe_key=kind) for kind in kinds)
    return OrderSnapshot(
        client_order_id="c",
        broker_order_id="v1",
        symbol=Symbol("AAPL"),
        side=OrderSide.BUY,
        quantity=Decimal(10),
        events=events,
    )


WORKING = snapshot(EventKind.ACCEPTED)
OVER = snapshot(EventKind.ACCEPTED, EventKind.CANCELLED)
SOLD = dataclasses.replace(WORKING, quantity=Decimal(0))
AWAY = LookupUnknown("x")
GONE = Absent()
NEVER_SENT = Absent(never_sent=True)
DURABLE = LookupKind.DURABLE
OPEN_ONLY = LookupKind.OPEN_ONLY
IN_DOUBT = UnresolvedOrder(
    order_status="UNKNOWN",
    is_unwanted=False,
    acknowledged=False,
    is_sent=True,
    is_restored=False,
    was_cancelled=False,
    replace_id=None,
    cancel_id=None,
    is_pending=False,
    lookups=0,
    absent_seconds=None,
)
ACCEPTED = replace(IN_DOUBT, order_status="NEW", acknowledged=True)
REPLACING = replace(ACCEPTED, order_status="PENDING_REPLACE", replace_id="r", is_pending=True)
CANCELLING = replace(ACCEPTED, order_status="PENDING_CANCEL", cancel_id="x", is_pending=True)
UNWANTED = replace(ACCEPTED, is_unwanted=True)


@pytest.mark.parametrize(
    ("unresolved", "order", "replaced", "lookup", "expected"),
    [
        (IN_DOUBT, GONE, None, DURABLE, Verdict.MISSING),
        (IN_DOUBT, GONE, None, OPEN_ONLY, Verdict.UNKNOWN),
        (replace(IN_DOUBT, is_sent=False), GONE, None, DURABLE, Verdict.KNOWN),
        (IN_DOUBT, NEVER_SENT, None, LookupKind.NONE, Verdict.MISSING),
        (IN_DOUBT, AWAY, None, DURABLE, Verdict.UNKNOWN),
        (ACCEPTED, WORKING, None, DURABLE, Verdict.KNOWN),
        (ACCEPTED, GONE, None, DURABLE, Verdict.LOST),
        (ACCEPTED, AWAY, None, DURABLE, Verdict.UNKNOWN),
        (replace(ACCEPTED, order_status="FILLED"), OVER, None, DURABLE, Verdict.KNOWN),
        (REPLACING, WORKING, GONE, DURABLE, Verdict.MISSING),
        (REPLACING, WORKING, GONE, OPEN_ONLY, Verdict.UNKNOWN),
        (REPLACING, AWAY, GONE, DURABLE, Verdict.UNKNOWN),
        (REPLACING, AWAY, NEVER_SENT, LookupKind.NONE, Verdict.MISSING),
        (CANCELLING, WORKING, None, OPEN_ONLY, Verdict.MISSING),
        (CANCELLING, AWAY, None, DURABLE, Verdict.UNKNOWN),
        (REPLACING, GONE, GONE, DURABLE, Verdict.LOST),
        (REPLACING, GONE, NEVER_SENT, LookupKind.NONE, Verdict.MISSING),
        (CANCELLING, GONE, None, DURABLE, Verdict.LOST),
        (CANCELLING, SOLD, None, DURABLE, Verdict.UNKNOWN),
        (replace(CANCELLING, may_grow=True), SOLD, None, DURABLE, Verdict.MISSING),
        (replace(CANCELLING, cancel_id=None), WORKING, None, DURABLE, Verdict.WAITING),
        (UNWANTED, WORKING, None, DURABLE, Verdict.ALIVE),
        (replace(UNWANTED, is_pending=True), WORKING, None, DURABLE, Verdict.ALIVE),
        (
            replace(UNWANTED, order_status="CANCELLED", is_unwanted=False),
            OVER,
            None,
            DURABLE,
            Verdict.KNOWN,
        ),
        (UNWANTED, AWAY, None, DURABLE, Verdict.UNKNOWN),
        (UNWANTED, GONE, None, DURABLE, Verdict.LOST),
    ],
)
def test_a_look_up_comes_to_one_thing(
    unresolved: UnresolvedOrder,
    order: Lookup,
    replaced: Lookup | None,
    lookup: LookupKind,
    expected: Verdict,
) -> None:
    assert classify_lookup(unresolved, order, replaced, lookup) is expected


def view_of(*facts: Fact) -> OrderView:
    version = OrderVersion(seq=1, client_order_id="c", quantity=Decimal(10))
    terms = OrderTerms(order_id="o", versions=(version,))
    return derive(terms, facts, PendingCommands())


REJECTED = dataclasses.replace(
    WORKING, events=(replace(OVER.events[1], kind=EventKind.REJECTED, client_order_id="c"),)
)
PART = fill("e1", "4", coid="c", at=2)
OF_A_LEG = BrokerEvent(kind=EventKind.CANCELLED, dedupe_key="l", parent="c", leg=Leg.STOP_LOSS)


@pytest.mark.parametrize(
    ("view", "found", "expected"),
    [
        (view_of(PART), WORKING, None),
        (view_of(PART), dataclasses.replace(WORKING, quantity=Decimal(4)), "REPLACED 4"),
        (view_of(PART), dataclasses.replace(WORKING, quantity=Decimal("3.9")), "REPLACED 3.9"),
        (view_of(PART), dataclasses.replace(WORKING, quantity=Decimal("4.1")), None),
        (view_of(PART), SOLD, None),
        (view_of(PART), OVER, "CANCELLED ended_by_broker"),
        (view_of(PART), dataclasses.replace(WORKING, events=(OF_A_LEG,)), None),
        (view_of(), OVER, "CANCELLED ended_by_broker"),
        (view_of(PART), REJECTED, "CANCELLED ended_by_broker"),
        (view_of(PART), dataclasses.replace(REJECTED, client_order_id="r1"), None),
        (view_of(), GONE, None),
        (view_of(), AWAY, None),
        (view_of(fill("e1", "10", coid="c")), OVER, None),
        (replace(view_of(PART), may_grow=True), OVER, None),
    ],
)
def test_what_the_broker_no_longer_works_ends_here(
    view: OrderView, found: Lookup, expected: str | None
) -> None:
    now = CONTEXT.now
    event = ending_event(view, found, "c", now)
    assert ending_event(view, found, "another version", now) is None
    if expected is None:
        assert event is None
        return
    assert event
    assert f"{event.kind} {event.quantity or event.reason}" == expected
    ended = derive(
        OrderTerms(order_id="o", versions=(view.confirmed,)),
        [PART, event_fact(event)],
        PendingCommands(),
    )
    assert ended.state == "CLOSED"


@pytest.mark.parametrize(
    ("unresolved", "unique_order_ids", "expected"),
    [
        (IN_DOUBT, False, "NOT_DELIVERED mine"),
        (IN_DOUBT, True, None),
        (replace(IN_DOUBT, was_cancelled=True), True, "CANCELLED_BEFORE_SEND mine"),
        (replace(IN_DOUBT, was_cancelled=True), False, "NOT_DELIVERED mine"),
        (REPLACING, True, "REPLACE_DROPPED r"),
        (CANCELLING, True, "CANCEL_DROPPED x"),
    ],
)
def test_a_command_that_never_arrived_is_given_up_or_sent_again(
    unresolved: UnresolvedOrder, unique_order_ids: bool, expected: str | None
) -> None:
    fact = not_delivered_fact(ORDER, "mine", unresolved, unique_order_ids)
    assert (fact and f"{fact.kind} {fact.client_order_id}") == expected


def test_the_attempts_of_a_cancel_have_ids_of_the_same_form() -> None:
    ids = {client_order_id(ORDER, attempt) for attempt in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[A-Z2-7]{18}", each) for each in ids)
    assert client_order_id(ORDER, 0) == client_order_id(ORDER)


def test_look_ups_follow_their_schedule() -> None:
    pauses = [next_lookup_seconds(count, None) for count in range(7)]
    offsets = [sum(pauses[: n + 1]) for n in range(5)]
    assert offsets == [0.25, 1, 3, 10, 30]
    assert pauses[5:] == [60, 60]
    assert next_lookup_seconds(4, 4.0) == 6.0, "the second proof is due"


def test_accounts_that_connect_together_are_reconciled_one_after_the_other() -> None:
    make_id = id_maker(SystemClock())
    dues = [first_reconcile_seconds(make_id(), 300.0) for _ in range(3_000)]
    minutes = Counter(int(due // 60) for due in dues)
    assert sorted(minutes) == [0, 1, 2, 3, 4]
    assert all(450 < count < 750 for count in minutes.values())


def test_five_failures_in_half_a_minute_open_the_breaker() -> None:
    breaker = Breaker()
    assert [breaker.failed(at) for at in (0, 10, 20, 29, 31)] == [False] * 5
    assert [breaker.failed(at) for at in (32, 33)] == [True, False]
    assert breaker.is_open
    breaker.reset()
    assert not breaker.failed(34)
    assert not breaker.is_open


def test_a_budget_is_never_exceeded_and_keeps_some_for_cancels() -> None:
    budget = Budget(60)
    now = 0.0
    sent = list[float]()
    while now < 300:
        wait = budget.wait_seconds(False, now)
        if wait == 0:
            budget.take()
            sent.append(now)
        else:
            assert budget.wait_seconds(True, now) == 0
            now += wait + 1e-9
    busiest = max(sum(1 for at in sent if start <= at < start + 60) for start in sent)
    assert 50 <= busiest <= 60
    assert len(sent) >= 200


def test_without_a_limit_nobody_waits() -> None:
    budget = Budget(None)
    for _ in range(1000):
        budget.take()
    assert budget.wait_seconds(False, 0.0) == 0
