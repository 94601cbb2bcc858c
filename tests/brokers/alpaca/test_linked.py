"""Orders that Alpaca links, as its hosts differ: with and without the fields that name a group, and
with a stop that cancels the limit beside it or replaces it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal

import pytest
from msgspec.structs import replace

from tests.brokers.alpaca.order import Order
from tests.brokers.alpaca.simulator import Fault, Simulator
from tests.brokers.alpaca.stage import AlpacaStage
from tests.brokers.sought import sought
from tests.waiting import eventually_async
from trading_intents.brokers.port import (
    Absent,
    BrokerEvent,
    EventKind,
    LegTicket,
    OrderSnapshot,
    OrderTicket,
    Outcome,
)
from trading_intents.testing.broker_suite import Card, CardRun, Sent, deadline, new_id, play
from trading_intents.testing.linked_cards import LINKED_CARDS
from trading_intents.trading import Leg, OrderSide, TimeInForce, terms_of

D = Decimal
GTC = TimeInForce.GOOD_TILL_CANCEL
LINKED = [card for card in LINKED_CARDS if card.number > 80]
CLOSING = {OrderSide.BUY: OrderSide.SELL, OrderSide.SELL_SHORT: OrderSide.BUY}


def leg(
    run: CardRun, entry: OrderTicket, kind: Leg, limit: str | None = None, stop: str | None = None
) -> LegTicket:
    side = entry.side if kind is Leg.ONE_CANCELS_OTHER else CLOSING[entry.side]
    terms = run.ticket(side, str(entry.quantity), limit, stop, entry.time_in_force)
    return LegTicket(
        leg=kind,
        client_order_id=terms.client_order_id,
        symbol=terms.symbol,
        side=side,
        kind=terms.kind,
        **terms_of(terms),
    )


OpenSession = Callable[..., Awaitable[CardRun]]


@pytest.fixture
async def open_session() -> AsyncIterator[OpenSession]:
    """Opens sessions, which are closed at the end."""
    opened: list[CardRun] = []

    async def open_one(stage: AlpacaStage, **options: float) -> CardRun:
        opened.append(await stage.open_session(**options))
        return opened[-1]

    yield open_one
    for run in opened:
        await run.close()


async def enter(run: CardRun, limit: str | None = None, side: OrderSide = OrderSide.BUY) -> Sent:
    """Enters five, with both exits."""
    await run.quote("99", "100")
    entry = run.ticket(side, "5", limit, time_in_force=GTC)
    profit, loss = ("110", "90") if side is OrderSide.BUY else ("90", "110")
    legs = leg(run, entry, Leg.TAKE_PROFIT, profit), leg(run, entry, Leg.STOP_LOSS, stop=loss)
    sent = await run.send(replace(entry, legs=legs))
    assert sent.result.outcome is Outcome.ACKED, sent.result
    return sent


def events_of(reported: list[BrokerEvent], sent: Sent, kind: Leg) -> list[BrokerEvent]:
    return [
        event
        for event in reported
        if event.parent == sent.ticket.client_order_id and event.leg is kind
    ]


def role(stage: AlpacaStage, name: str) -> Order:
    """The last version of the order in that role."""
    return [
        order for order in stage.account.orders.values() if order.json.get("group_role") == name
    ][-1]


async def until_ended(run: CardRun, sent: Sent, kind: Leg) -> BrokerEvent:
    def ends() -> list[BrokerEvent]:
        return [
            event
            for event in events_of(run.received, sent, kind)
            if event.kind is EventKind.CANCELLED
        ]

    await run.wait_until(lambda: bool(ends()))
    (end, *others) = {event.dedupe_key: event for event in ends()}.values()
    assert not others
    return end


@pytest.mark.parametrize("stop_replaces", [False, True], ids=["cancels", "replaces"])
@pytest.mark.parametrize("names_groups", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("card", LINKED, ids=lambda card: card.name)
async def test_linked_cards_hold_at_every_host(
    simulator: Simulator, card: Card, names_groups: bool, stop_replaces: bool
) -> None:
    account = simulator.add()
    account.names_groups = names_groups
    account.stop_replaces = stop_replaces
    await play(card, AlpacaStage(simulator, account))


@pytest.mark.parametrize("side", [OrderSide.BUY, OrderSide.SELL_SHORT])
async def test_a_group_is_sent_as_one_order(
    stage: AlpacaStage, open_session: OpenSession, side: OrderSide
) -> None:
    run = await open_session(stage)
    sent = await enter(run, side=side)
    (posted,) = (each.body for each in stage.simulator.exchanges if each.method == "POST")
    profit, loss = ("110", "90") if side is OrderSide.BUY else ("90", "110")
    assert posted["order_class"] == "bracket"
    assert (posted["take_profit"], posted["stop_loss"]) == (
        {"limit_price": profit},
        {"stop_price": loss},
    )
    named = [
        (event.parent, event.leg, event.client_order_id)
        for event in sent.result.updates
        if event.leg
    ]
    parent = sent.ticket.client_order_id
    assert named == [(parent, Leg.TAKE_PROFIT, None), (parent, Leg.STOP_LOSS, None)]
    assert {event.side for event in sent.result.updates if event.leg} == {CLOSING[side]}


async def test_one_time_in_force_is_for_all_of_a_group(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    entry = run.ticket(OrderSide.BUY, "5", "95")
    loss = replace(leg(run, entry, Leg.STOP_LOSS, stop="90"), time_in_force=GTC)
    sent = await run.send(replace(entry, legs=(loss,)))
    assert (sent.result.outcome, sent.result.code) == (Outcome.REJECTED, "one_time_in_force")
    assert not stage.account.orders


async def test_a_buy_beside_a_stop_only_closes_a_short(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    await run.quote("99", "100")
    ticket = run.ticket(OrderSide.BUY, "5", "90", time_in_force=GTC)
    pair = replace(ticket, legs=(leg(run, ticket, Leg.ONE_CANCELS_OTHER, "112", "110"),))
    assert (await run.send(pair)).result.outcome is Outcome.REJECTED
    await run.send(run.ticket(OrderSide.SELL_SHORT, "5"))
    sent = await run.send(replace(pair, client_order_id=new_id()))
    assert sent.result.outcome is Outcome.ACKED
    body = [each.body for each in stage.simulator.exchanges if each.method == "POST"][-1]
    assert (body["order_class"], body["position_intent"], "limit_price" in body) == (
        "oco",
        "buy_to_close",
        False,
    )
    assert body["stop_loss"] == {"stop_price": "110", "limit_price": "112"}
    assert {event.leg for event in sent.result.updates} == {None, Leg.ONE_CANCELS_OTHER}


@pytest.mark.parametrize("names_groups", [False, True], ids=["unnamed", "named"])
async def test_frames_before_the_answer_name_the_leg_or_its_number(
    stage: AlpacaStage, open_session: OpenSession, names_groups: bool
) -> None:
    """The answer is lost: the look-up of the order that was sent matches what the stream
    reported."""
    stage.account.names_groups = names_groups
    stage.simulator.faults.append(Fault("close", takes=True))
    run = await open_session(stage)
    await run.quote("99", "100")
    entry = run.ticket(OrderSide.BUY, "5", time_in_force=GTC)
    legs = leg(run, entry, Leg.TAKE_PROFIT, "110"), leg(run, entry, Leg.STOP_LOSS, stop="90")
    sent = await run.send(replace(entry, legs=legs))
    assert sent.result.outcome is Outcome.UNKNOWN
    profit = role(stage, "take_profit").json["id"]
    stage.account.fill(role(stage, "take_profit"), D(2), D(110))
    await run.wait_until(
        lambda: any(
            event.kind is EventKind.FILL
            for event in run.received
            if event.broker_order_id == profit
        )
    )
    (early,) = (
        event
        for event in run.received
        if event.broker_order_id == profit and event.kind is EventKind.FILL
    )
    assert early.client_order_id is None
    assert (early.parent == sent.ticket.client_order_id) == names_groups
    found = [*(await run.found(sent)).events]
    assert {event.broker_order_id for event in events_of(found, sent, Leg.TAKE_PROFIT)} == {profit}
    assert early.dedupe_key in {
        event.dedupe_key for event in events_of(found, sent, Leg.TAKE_PROFIT)
    }
    assert events_of(found, sent, Leg.STOP_LOSS)


async def test_a_leg_is_found_by_its_number_alone(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    sent = await enter(run)
    loss = sent.ticket.legs[1].client_order_id
    assert isinstance(await run.broker.lookup(sought(loss), deadline()), Absent)
    found = await run.broker.lookup(sought(loss, role(stage, "stop_loss").json["id"]), deadline())
    assert isinstance(found, OrderSnapshot)
    assert [event.kind for event in events_of([*found.events], sent, Leg.STOP_LOSS)] == [
        EventKind.ACCEPTED
    ]
    other = await run.broker.lookup(sought("nobody", sent.result.broker_order_id), deadline())
    assert isinstance(other, Absent), "the number of an order that has a name of ours is no leg's"


@pytest.mark.parametrize("names_groups", [False, True], ids=["unnamed", "named"])
async def test_a_leg_that_is_held_is_replaced_at_once(
    stage: AlpacaStage, open_session: OpenSession, names_groups: bool
) -> None:
    stage.account.names_groups = names_groups
    run = await open_session(stage)
    sent = await enter(run)
    held = role(stage, "stop_loss")
    ticket = run.ticket(OrderSide.SELL, "5", stop="95", time_in_force=GTC)
    numbers = {
        "broker_order_id": held.json["id"],
        "orig_client_order_id": sent.ticket.legs[1].client_order_id,
    }
    result = await run.broker.replace(replace(ticket, **numbers), deadline())
    assert result.outcome is Outcome.ACKED, result
    assert [(event.kind, event.client_order_id) for event in result.updates] == [
        (EventKind.REPLACED, ticket.client_order_id)
    ]
    await run.quote("94", "95")

    def fills() -> list[BrokerEvent]:
        named = [event for event in run.received if event.client_order_id == ticket.client_order_id]
        return [event for event in named if event.kind is EventKind.FILL]

    await run.wait_until(lambda: bool(fills()))
    assert [event.price for event in fills()] == [D(94)]
    await until_ended(run, sent, Leg.TAKE_PROFIT)


async def test_only_prices_of_a_linked_order_are_replaced(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    """After a part of the profit is taken the stop is for the rest, whatever quantity we show."""
    run = await open_session(stage)
    sent = await enter(run)
    stage.account.fill(role(stage, "take_profit"), D(2), D(110))
    ticket = run.ticket(OrderSide.SELL, "5", stop="95", time_in_force=GTC)
    result = await run.broker.replace(
        replace(
            ticket, broker_order_id=role(stage, "stop_loss").json["id"], orig_client_order_id="x"
        ),
        deadline(),
    )
    assert result.outcome is Outcome.ACKED, result
    assert stage.account.by_client[ticket.client_order_id].json["qty"] == "3"
    assert sent.result.outcome is Outcome.ACKED


async def test_the_leg_of_an_order_with_one_exit_is_not_replaced(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    await run.quote("99", "100")
    entry = run.ticket(OrderSide.BUY, "5", time_in_force=GTC)
    await run.send(replace(entry, legs=(leg(run, entry, Leg.STOP_LOSS, stop="90"),)))
    ticket = run.ticket(OrderSide.SELL, "5", stop="95", time_in_force=GTC)
    loss = role(stage, "stop_loss")
    result = await run.broker.replace(replace(ticket, broker_order_id=loss.json["id"]), deadline())
    assert result.outcome is Outcome.REJECTED
    assert loss.json["status"] == "new"


async def test_a_leg_that_alpaca_replaced_itself_stays_the_leg(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    sent = await enter(run)
    made = stage.account.replace(role(stage, "take_profit").json["id"], {"limit_price": "105"})
    await run.wait_until(
        lambda: any(event.broker_order_id == made.json["id"] for event in run.received)
    )
    by_key = {
        event.dedupe_key: event
        for event in run.received
        if event.broker_order_id == made.json["id"]
    }
    (reported,) = by_key.values()
    assert (reported.kind, reported.reason, reported.price) == (
        EventKind.REPLACED,
        "replaced_by_broker",
        D(105),
    )
    names = reported.client_order_id, reported.parent, reported.leg
    assert names == (None, sent.ticket.client_order_id, Leg.TAKE_PROFIT)
    await run.quote("106", "107")
    await until_ended(run, sent, Leg.STOP_LOSS)
    fills = [
        event
        for event in events_of(run.received, sent, Leg.TAKE_PROFIT)
        if event.kind is EventKind.FILL
    ]
    assert [event.broker_order_id for event in fills] == [made.json["id"]]


@pytest.mark.parametrize("names_groups", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("stop_replaces", [False, True], ids=["cancels", "replaces"])
async def test_what_happened_to_legs_while_no_session_was_open_is_reported(
    stage: AlpacaStage, open_session: OpenSession, names_groups: bool, stop_replaces: bool
) -> None:
    stage.account.names_groups = names_groups
    stage.account.stop_replaces = stop_replaces
    run = await open_session(stage)
    sent = await enter(run)
    await run.close()
    await run.quote("89", "90")
    again = await open_session(stage)
    reported = [*(await again.snapshot()).executions]
    assert [event.kind for event in events_of(reported, sent, Leg.TAKE_PROFIT)] == [
        EventKind.CANCELLED
    ]
    assert EventKind.FILL in {event.kind for event in events_of(reported, sent, Leg.STOP_LOSS)}
    profit = next(
        order
        for order in stage.account.orders.values()
        if order.json["group_role"] == "take_profit"
    )
    found = await again.broker.lookup(sought("x", profit.json["id"]), deadline())
    assert isinstance(found, OrderSnapshot)
    assert EventKind.CANCELLED in {event.kind for event in found.events}
    ticket = replace(run.ticket(OrderSide.SELL, "5", "110"), broker_order_id=profit.json["id"])
    assert (await again.broker.cancel(ticket, deadline())).code == "too_late"


@pytest.mark.parametrize("names_groups", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("stop_replaces", [False, True], ids=["cancels", "replaces"])
async def test_legs_are_followed_without_updates(
    simulator: Simulator, open_session: OpenSession, names_groups: bool, stop_replaces: bool
) -> None:
    simulator.refuses_streams = True
    account = simulator.add()
    account.names_groups = names_groups
    account.stop_replaces = stop_replaces
    stage = AlpacaStage(simulator, account)
    run = await open_session(stage, poll_seconds=0.05)
    sent = await enter(run)
    await run.wait_until(lambda: any(event.kind is EventKind.FILL for event in run.received))
    simulator.exchanges.clear()

    async def is_polled() -> bool:
        return len([each for each in simulator.exchanges if each.path == "/v2/orders"]) > 3

    await eventually_async(is_polled, 10)
    read = [each.path for each in simulator.exchanges if each.path.startswith("/v2/orders/")]
    assert len(read) <= 1, "a leg that is held is not asked for again and again"
    await run.quote("89", "90")
    await until_ended(run, sent, Leg.TAKE_PROFIT)
    await run.wait_until(
        lambda: EventKind.FILL in {e.kind for e in events_of(run.received, sent, Leg.STOP_LOSS)}
    )
    assert EventKind.FILL in {event.kind for event in events_of(run.received, sent, Leg.STOP_LOSS)}


async def test_a_group_whose_end_takes_time_is_read_again(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    """The profit is taken, and the stop still held a moment later."""
    run = await open_session(stage, watch_seconds=0.1)
    sent = await enter(run)
    profit = role(stage, "take_profit")
    loss = role(stage, "stop_loss")
    group = loss.json.pop("group_id")  # its end comes later
    stage.account.fill(profit, D(5), D(110))
    loss.json["group_id"] = group
    await run.wait_until(
        lambda: EventKind.FILL in {e.kind for e in events_of(run.received, sent, Leg.TAKE_PROFIT)}
    )

    await run.wait_until(lambda: bool(events_of(run.received, sent, Leg.STOP_LOSS)))
    stage.account.end(loss, "canceled", publish=False)
    await until_ended(run, sent, Leg.STOP_LOSS)


async def test_an_entry_that_is_replaced_keeps_its_exits(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    sent = await enter(run, "95")
    changed_ = await run.replace(sent, "5", "97")
    assert changed_.result.outcome is Outcome.ACKED, changed_.result
    await run.quote("96", "97")
    await run.wait_until(lambda: any(event.kind is EventKind.FILL for event in run.received))
    await run.quote("110", "111")
    await until_ended(run, sent, Leg.STOP_LOSS)
    fills = [
        event
        for event in events_of(run.received, sent, Leg.TAKE_PROFIT)
        if event.kind is EventKind.FILL
    ]
    assert [event.price for event in fills] == [D(110)]


async def test_coins_and_fractions_have_no_exits_at_alpaca(
    stage: AlpacaStage, open_session: OpenSession
) -> None:
    run = await open_session(stage)
    for terms in ({"symbol": "BTC/USD"}, {"quantity": D("1.5")}):
        entry = replace(run.ticket(OrderSide.BUY, "5", "95", time_in_force=GTC), **terms)
        sent = await run.send(replace(entry, legs=(leg(run, entry, Leg.STOP_LOSS, stop="90"),)))
        assert sent.result.outcome is Outcome.REJECTED
    assert not stage.account.orders
