"""Common orders are advanced in one pass exactly as by all their facts, whatever a broker reports,
in whatever order, and however often."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.orders.facts import NOON, moment
from tests.property_sizes import examples
from trading_intents.brokers.port import (
    DUPLICATE_ID,
    REPLACED_BY_BROKER,
    BrokerEvent,
    EventKind,
)
from trading_intents.ids import IdText
from trading_intents.orders.events import order_event, trade_event
from trading_intents.orders.facts import (
    Fact,
    FactKind,
    admit,
    client_order_id,
    event_fact,
    own_fact,
)
from trading_intents.orders.ledger.booking import (
    Arrivals,
    DerivedOrder,
    book_trades,
    derive_orders,
)
from trading_intents.orders.ledger.one_pass import advance
from trading_intents.orders.model import OrderFlag, OrderStatus
from trading_intents.orders.positions import PositionRow
from trading_intents.orders.store import Action, CommandRow, OrderHistory, OrderRow
from trading_intents.trading import (
    ActionType,
    Environment,
    OrderSide,
    RouteStrategy,
    VersionTerms,
)

D = Decimal
ORDER = UUID(int=1)
ORDER_ID = IdText(str(ORDER))
ACCOUNT = IdText("00000000-0000-0000-0000-00000000000a")
ORGANIZATION = IdText("00000000-0000-0000-0000-00000000000b")
OTHER = UUID(int=2)  # the action of a REPLACE or a CANCEL
IDS = {"C": client_order_id(ORDER), "X": client_order_id(OTHER), "": None}
OURS = sorted({kind.value for kind in FactKind} - {kind.value for kind in EventKind})
Batch = Sequence[tuple[Fact, bool]]  # whether it is an event

QUANTITIES = ("1", "10", "0.000000000000000001", "33.333333333333333333", "100")
PRICES = ("10", "9.99999999999999999", "123456789.123456789", "0", "-3.5")
names = st.sampled_from(["C"] * 12 + ["", "", "X"])
times = st.none() | st.integers(0, 6)
brokers = st.sampled_from([None, None, "b1", "b1", "b1", "b2"])


def start(quantity: str, asked: ActionType | None, **terms: Any) -> OrderHistory:
    """An order that was sent, and a command about it that was asked for at once."""
    row = OrderRow(
        order_id=ORDER_ID,
        account_id=ACCOUNT,
        organization_id=ORGANIZATION,
        environment=Environment.PAPER,
        broker="paper",
        create_seq=1,
        command_seq=1,
        symbol="AAPL",
        order_status=OrderStatus.PENDING_NEW,
        order_type="LIMIT",
        order_side=OrderSide.BUY,
        route_strategy=RouteStrategy.SMART,
        quantity=D(quantity),
        filled_quantity=D(0),
        average_price=None,
        external_order_id=None,
        client_reference_id=None,
        reason=None,
        detail=None,
        flags=(),
        pending_replace_seq=2 if asked is ActionType.REPLACE else None,
        cancel_requested=asked is ActionType.CANCEL,
        broker_sent_at=None,
        received_at=NOON,
        created_at=NOON,
        updated_at=NOON,
        version=1,
        finished_at=None,
        **terms,
    )
    actions = [Action(1, ORDER, ActionType.CREATE, VersionTerms(quantity=row.quantity, **terms))]
    if asked:
        actions.append(Action(2, OTHER, asked, VersionTerms(quantity=row.quantity * 2, **terms)))
    return OrderHistory(
        row=row,
        commands=tuple(_sent(action) for action in actions),
        trades=(),
        facts=(),
        actions=tuple(actions),
    )


def _sent(action: Action) -> CommandRow:
    return CommandRow(
        account_id=ACCOUNT,
        client_order_id=client_order_id(action.action_id),
        order_id=ORDER_ID,
        seq=action.seq,
        action_type=action.action_type,
        sent_at=NOON,
    )


def reported(
    kind: EventKind, key: str, name: str = "C", at: int | None = None, **more: Any
) -> Fact:
    amounts = {field: D(each) for field, each in more.items() if field in AMOUNTS and each}
    return event_fact(
        BrokerEvent(
            kind=kind,
            dedupe_key=key,
            client_order_id=IDS[name],
            venue_time=moment(at),
            **(more | amounts),
        )
    )


AMOUNTS = ("quantity", "price", "fee", "cum_quantity", "average_price")


class Ledger:
    """The rows of one order, and what both ways make of the same news of it."""

    def __init__(self, history: OrderHistory) -> None:
        self.history = history
        self.known: dict[str, Fact] = {}
        self.arrivals = 0
        self.taken = 0

    def take(self, batch: Batch, is_filtered: bool) -> None:
        """Facts that are known by their keys are left out of the pass if it `is_filtered`."""
        self.arrivals += 1
        now = NOON + timedelta(minutes=self.arrivals)
        new: dict[str, Fact] = {}
        numbers: dict[tuple[IdText | None, str], int] = {}
        news = []
        all_numbers: dict[tuple[IdText | None, str], int] = {}
        is_odd = False
        for number, (fact, is_event) in enumerate(batch):
            admitted = admit(self.known, fact)
            if admitted or not is_filtered:
                news.append(fact)
                all_numbers |= {(ORDER_ID, fact.key): number} if is_event else {}
            if admitted is None:
                is_odd = is_odd or self.known[fact.key].numbers != fact.numbers
                continue
            is_odd = is_odd or admitted is not fact  # the key was used for something else
            self.known[admitted.key] = new[admitted.key] = admitted
            if is_event:
                numbers[ORDER_ID, admitted.key] = number
        before = self.history
        self.history = replace(before, facts=(*before.facts, *new.values()))
        whole = replace(before, news=tuple(new.values()))
        [true] = derive_orders([whole], Arrivals(numbers, now), True)
        once = None if is_odd else advance(before, news, Arrivals(all_numbers, now))
        if once:
            self.taken += 1
            assert compared(once, is_filtered) == compared(true, is_filtered)
        self.store(true)

    def store(self, true: DerivedOrder) -> None:
        trades = {trade.exec_id: trade for trade in self.history.trades}
        trades |= {change.after.exec_id: change.after for change in true.trades}
        self.history = replace(self.history, row=true.row, trades=tuple(trades.values()))


def compared(order: DerivedOrder, is_filtered: bool) -> dict[str, Any]:
    """All that is written and published; a repeated report makes `received_at` that of now."""
    position = PositionRow(
        account_id=ACCOUNT, organization_id=ORGANIZATION, symbol="AAPL", received_at=NOON
    )
    for change in sorted(order.trades, key=lambda change: change.event_number):
        position = book_trades(position, (change.after.as_booking(),))
    fields = {name: getattr(order, name) for name in order.__struct_fields__ if name != "view"}
    events = [order_event(order.row)] if order.visible else []
    events += [trade_event(order.row, each.after) for each in order.trades if each.is_published]
    row = order.row if is_filtered else replace(order.row, received_at=NOON)
    return fields | {"row": row, "position": position, "events": events}


fills = st.builds(
    reported,
    st.just(EventKind.FILL),
    st.sampled_from(["k1", "k2", "k3", "k4", "k5", "k6"]),
    names,
    times,
    exec_id=st.sampled_from(["e1", "e2", "e3", "e10"]),
    quantity=st.sampled_from(QUANTITIES),
    price=st.sampled_from(PRICES),
    fee=st.none() | st.sampled_from(["0", "0.25"]),
    cum_quantity=st.none() | st.sampled_from(QUANTITIES),
    average_price=st.none() | st.just("9.7"),
    broker_order_id=brokers,
)
KINDS = sorted(
    set(EventKind) - {EventKind.FILL, EventKind.POSITION, EventKind.FEE},
    key=lambda kind: kind.value,
)


@st.composite
def wild_reports(draw: st.DrawFn) -> Fact:
    kind = draw(st.sampled_from(KINDS))
    is_amendment = kind in (EventKind.FILL_BUST, EventKind.FILL_CORRECT)
    more: dict[str, Any] = {"replaces": "e1", "exec_id": "e9"} if is_amendment else {}
    if kind is EventKind.FILL_CORRECT:
        more |= {"quantity": "1", "price": "10"}
    reasons = [None, "one", "other", DUPLICATE_ID]
    if kind is EventKind.REPLACED:
        more |= {"quantity": draw(st.sampled_from(QUANTITIES))}
        reasons = [REPLACED_BY_BROKER]
    return reported(
        kind,
        draw(st.sampled_from(["k7", "k8", "k9", "k10", "k11"])),
        draw(names),
        draw(times),
        cum_quantity=draw(st.none() | st.sampled_from(["0", *QUANTITIES])),
        average_price=draw(st.none() | st.just("9.7")),
        broker_order_id=draw(brokers),
        reason=draw(st.sampled_from(reasons)),
        detail=draw(st.none() | st.just("words")),
        **more,
    )


own = st.builds(
    own_fact,
    st.sampled_from([FactKind(kind) for kind in OURS]),
    names.map(lambda name: IDS[name] or IDS["C"]),
    st.none() | st.just("mine"),
    brokers,
)
wild = st.lists(
    st.lists(
        st.one_of(
            fills.map(lambda fact: (fact, True)),
            wild_reports().map(lambda fact: (fact, True)),
            own.map(lambda fact: (fact, False)),
        ),
        max_size=4,
    ),
    max_size=5,
)


@st.composite
def sane(draw: st.DrawFn) -> tuple[str, list[Batch]]:
    """An order and its reports by an honest venue: late, repeated, in other batches and orders."""
    is_counted = draw(st.booleans())
    is_timed = draw(st.booleans())
    sizes = draw(st.lists(st.sampled_from(QUANTITIES), min_size=0, max_size=4))
    filled = D(0)
    facts = [(own_fact(FactKind.ACCEPTED, str(IDS["C"]), broker_order_id="b1"), False)]
    facts.append((reported(EventKind.ACCEPTED, "a", at=0, broker_order_id="b1"), True))
    for index, size in enumerate(sizes):
        filled += D(size)
        fill = reported(
            EventKind.FILL,
            f"f{index}",
            at=index + 1 if is_timed else None,
            exec_id=f"e{index}",
            quantity=size,
            price=draw(st.sampled_from(PRICES)),
            fee=draw(st.none() | st.just("0.1")),
            cum_quantity=str(filled) if is_counted else None,
            broker_order_id="b1",
        )
        facts.append((fill, True))
        if draw(st.booleans()):
            key = f"s{index}"
            status = reported(EventKind.STATUS, key, at=index + 1, cum_quantity=str(filled))
            facts.append((status, True))
    quantity = filled
    end = draw(st.sampled_from([None, EventKind.CANCELLED, EventKind.EXPIRED, EventKind.REJECTED]))
    if end or not filled:
        quantity += 5
    if end:
        counted = str(filled) if draw(st.booleans()) else None
        ended = reported(end, "x", at=9, reason="venue", cum_quantity=counted)
        facts.append((ended, True))
    if draw(st.booleans()):
        facts = draw(st.permutations(facts))
    doubt = own_fact(FactKind.UNCERTAIN, str(IDS["C"]), reason="timeout")
    if draw(st.integers(0, 3)) == 0:
        facts.insert(draw(st.integers(0, len(facts))), (doubt, False))
    batches: list[Batch] = []
    while facts:
        count = draw(st.integers(1, len(facts)))
        again = draw(st.sampled_from([(), (), *batches]))
        batches.append([*again, *facts[:count]])
        facts = facts[count:]
    return str(quantity), batches


@settings(max_examples=examples(2_000))
@given(sane(), st.booleans())
def test_an_honest_venues_reports_make_the_order_of_all_facts(
    history: tuple[str, list[Batch]], is_filtered: bool
) -> None:
    quantity, batches = history
    ledger = Ledger(start(quantity, None, limit_price=D(10)))
    for batch in batches:
        ledger.take(batch, is_filtered)
    event(f"in one pass: {ledger.taken} of {len(batches)}")


@settings(max_examples=examples(2_000))
@given(
    wild,
    st.sampled_from(QUANTITIES),
    st.sampled_from([None] * 4 + [ActionType.CANCEL, ActionType.REPLACE]),
    st.sampled_from([{}, {}, {"limit_price": D(10)}, {"trail_amount": D(1)}, {"trail_bps": 10}]),
    st.booleans(),
)
def test_whatever_is_reported_makes_the_order_of_all_facts(
    batches: list[Batch],
    quantity: str,
    asked: ActionType | None,
    terms: dict[str, Any],
    is_filtered: bool,
) -> None:
    ledger = Ledger(start(quantity, asked, **terms))
    for batch in batches:
        ledger.take(batch, is_filtered)
    event(f"in one pass: {ledger.taken} of {len(batches)}")


ACCEPTED = reported(EventKind.ACCEPTED, "a", at=0, broker_order_id="b1")


def filled(exec_id: str, quantity: str, **more: Any) -> Fact:
    fields: dict[str, Any] = {"at": 1, "price": "10", "broker_order_id": "b1"}
    return reported(EventKind.FILL, exec_id, exec_id=exec_id, quantity=quantity, **(fields | more))


def advanced(*batches: Sequence[Fact], **changed: Any) -> list[bool]:
    """Whether one pass took each batch of facts."""
    history = start("10", None)
    ledger = Ledger(replace(history, row=replace(history.row, **changed)))
    taken = []
    for facts in batches:
        before = ledger.taken
        ledger.take([(fact, True) for fact in facts], is_filtered=True)
        taken.append(ledger.taken > before)
    return taken


@pytest.mark.parametrize(
    "batches",
    [
        [[ACCEPTED, filled("e1", "10")]],
        [[ACCEPTED], [filled("e1", "10")]],
        [[filled("e1", "10")], [ACCEPTED]],
        [[filled("e1", "4"), ACCEPTED], [filled("e2", "6", at=2)], [ACCEPTED]],
        [
            [filled("e1", "4", cum_quantity="4")],
            [filled("e1", "4", cum_quantity="4")],
            [reported(EventKind.STATUS, "s", at=2, cum_quantity="4")],
            [filled("e2", "6", cum_quantity="10", at=3)],
        ],
    ],
)
def test_an_order_that_is_accepted_and_filled_is_common(batches: list[list[Fact]]) -> None:
    assert all(advanced(*batches))


@pytest.mark.parametrize(
    ("batches", "changed"),
    [
        ([[filled("e1", "11")]], {}),
        ([[filled("e1", "4", cum_quantity="6")]], {}),
        ([[filled("e2", "4", at=2)], [filled("e1", "4", at=1)]], {}),
        ([[filled("e1", "4")], [filled("e1", "5")]], {}),
        ([[filled("e1", "10")], [filled("e2", "1")]], {}),
        ([[reported(EventKind.CANCELLED, "x", at=9)]], {}),
        (
            [[reported(EventKind.REJECTED, "x", at=1)], [reported(EventKind.ACCEPTED, "a", at=2)]],
            {},
        ),
        ([[reported(EventKind.STATUS, "s", cum_quantity="4")], [filled("e2", "6", at=2)]], {}),
        ([[reported(EventKind.FEE, "f", quantity="1", symbol="AAPL")]], {}),
        ([[ACCEPTED]], {"linked": True}),
        ([[ACCEPTED]], {"trail_amount": D(1)}),
        ([[ACCEPTED]], {"trail_bps": 10}),
        ([[ACCEPTED]], {"command_seq": 2}),
        ([[ACCEPTED]], {"reason": "one"}),
        ([[ACCEPTED]], {"flags": (OrderFlag.RESURRECTED,)}),
        ([[ACCEPTED]], {"cancel_requested": True}),
    ],
)
def test_what_a_row_does_not_show_is_left_to_all_facts(
    batches: list[list[Fact]], changed: dict[str, Any]
) -> None:
    assert not advanced(*batches, **changed)[-1]
