"""The cards about orders that protect: trailing stops, exits of an entry, and one cancels other."""

from decimal import Decimal

from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.port import BrokerEvent, LegTicket, OrderTicket, Outcome
from trading_intents.testing.broker_suite import (
    LINKS_EXITS,
    LINKS_PAIRS,
    Card,
    CardRun,
    Sent,
    offers,
    total,
)
from trading_intents.trading import Leg, OrderKind, OrderSide, TimeInForce, terms_of

_E = port.EventKind
_GTC = TimeInForce.GOOD_TILL_CANCEL
ENDS = {_E.CANCELLED, _E.EXPIRED, _E.REJECTED}


async def trails(run: CardRun) -> None:
    """The stop follows the market up, stays when it falls, and becomes a market order when it is
    reached."""
    await run.buy_filled("5")
    terms = run.ticket(OrderSide.SELL, "5")
    stop = replace(terms, kind=OrderKind.TRAILING_STOP, trail_amount=Decimal(2))
    sent = await run.send_taken(stop)
    for bid in (101, 104, 103):
        await run.quote(str(bid), str(bid + 1))
        assert not run.fills(sent)
    await run.quote("102", "103")
    for fill in await run.expect_filled("5", sent):
        assert fill.price == 102


async def takes_profit(run: CardRun) -> None:
    sent = await _enter(run, profit="110", loss="90")
    await run.quote("110", "111")
    await _expect_filled_leg(run, sent, Leg.TAKE_PROFIT, "5")
    await _expect_ended(run, sent, Leg.STOP_LOSS)
    # What a snapshot has as open is open here for as long.
    assert not (await run.snapshot()).open_orders


async def stops_loss(run: CardRun) -> None:
    sent = await _enter(run, profit="110", loss="90")
    await run.quote("89", "90")
    await _expect_filled_leg(run, sent, Leg.STOP_LOSS, "5")
    await _expect_ended(run, sent, Leg.TAKE_PROFIT)


async def protects_with_one_exit(run: CardRun) -> None:
    sent = await _enter(run, loss="90")
    await run.quote("89", "90")
    await _expect_filled_leg(run, sent, Leg.STOP_LOSS, "5")


async def fills_one_leg_of_a_jump(run: CardRun) -> None:
    """A market that jumps from one leg to the other, and back, fills one."""
    sent = await _enter(run, profit="110", loss="90")
    for bid, ask in (("111", "112"), ("88", "89"), ("111", "112")):
        await run.quote(bid, ask)
    await _expect_filled_leg(run, sent, Leg.TAKE_PROFIT, "5")
    await _expect_ended(run, sent, Leg.STOP_LOSS)
    assert not total(_of_leg(run, sent, Leg.STOP_LOSS))


async def ends_exits_with_an_unfilled_entry(run: CardRun) -> None:
    await run.quote("99", "100")
    entry = run.ticket(OrderSide.BUY, "5", "95", time_in_force=_GTC)
    sent = await _send_with_exits(run, entry, "110", "90")
    assert (await run.cancel(sent)).result.outcome is Outcome.ACKED
    for leg in (Leg.TAKE_PROFIT, Leg.STOP_LOSS):
        await _expect_ended(run, sent, leg)
        assert not total(_of_leg(run, sent, leg))
    assert not (await run.snapshot()).open_orders


async def replaces_a_leg(run: CardRun) -> None:
    """The other leg stays, and is still linked."""
    sent = await _enter(run, profit="110", loss="90")
    leg = _leg_sent(run, sent, Leg.TAKE_PROFIT)
    assert (await run.replace(leg, "5", "105")).result.outcome is Outcome.ACKED
    await run.quote("106", "107")
    await _expect_ended(run, sent, Leg.STOP_LOSS)
    positions = (await run.snapshot()).positions
    held = [each.quantity for each in positions or () if each.symbol == run.stage.symbol]
    assert not any(held), f"{held} are held"


async def names_legs_again(run: CardRun) -> None:
    """A snapshot and a look-up name the legs as the stream did."""
    sent = await _enter(run, profit="110", loss="90")
    await run.connect_again()
    reported = list[BrokerEvent]()
    for order in (await run.snapshot()).open_orders:
        reported += order.events
    for leg in (Leg.TAKE_PROFIT, Leg.STOP_LOSS):
        assert any(_is_of(event, sent, leg) for event in reported), f"the snapshot has no {leg}"


async def cancels_the_other(run: CardRun) -> None:
    """A limit with a stop beside it: each of the two may fill, and ends the other."""
    await run.buy_filled("5")
    ticket = run.ticket(OrderSide.SELL, "5", "110", time_in_force=_GTC)
    stop = _leg(run, ticket, Leg.ONE_CANCELS_OTHER, stop="90")
    sent = await run.send_taken(replace(ticket, legs=(stop,)))
    await run.quote("89", "90")
    await _expect_filled_leg(run, sent, Leg.ONE_CANCELS_OTHER, "5")
    await run.wait_until(lambda: any(event.kind in ENDS for event in run.reported(sent)))
    assert not run.fills(sent)


async def _enter(run: CardRun, profit: str | None = None, loss: str | None = None) -> Sent:
    await run.quote("99", "100")
    entry = run.ticket(OrderSide.BUY, "5", time_in_force=_GTC)
    sent = await _send_with_exits(run, entry, profit, loss)
    await run.expect_filled("5", sent)
    return sent


async def _send_with_exits(
    run: CardRun, ticket: OrderTicket, profit: str | None, loss: str | None
) -> Sent:
    legs = []
    if profit:
        legs.append(_leg(run, ticket, Leg.TAKE_PROFIT, limit=profit))
    if loss:
        legs.append(_leg(run, ticket, Leg.STOP_LOSS, stop=loss))
    return await run.send_taken(replace(ticket, legs=tuple(legs)))


def _leg(
    run: CardRun, entry: OrderTicket, leg: Leg, limit: str | None = None, stop: str | None = None
) -> LegTicket:
    terms = run.ticket(OrderSide.SELL, str(entry.quantity), limit, stop, time_in_force=_GTC)
    return LegTicket(
        leg=leg,
        client_order_id=terms.client_order_id,
        symbol=terms.symbol,
        side=terms.side,
        kind=terms.kind,
        **terms_of(terms),
    )


def _of_leg(run: CardRun, sent: Sent, leg: Leg) -> list[BrokerEvent]:
    """The events of the leg, each once, from the stream and the answer: by its id, or through the
    entry. The stream may report it by its id alone before the answer names it."""
    reported = [*sent.result.updates, *run.received]
    named = {event.broker_order_id for event in reported if _is_of(event, sent, leg)} - {None}
    found = dict[str, BrokerEvent]()
    for event in reported:
        if _is_of(event, sent, leg) or event.broker_order_id in named:
            found[event.dedupe_key] = event
    return list(found.values())


def _is_of(event: BrokerEvent, sent: Sent, leg: Leg) -> bool:
    if event.parent == sent.ticket.client_order_id and event.leg is leg:
        return True
    own = {each.client_order_id for each in sent.ticket.legs if each.leg is leg}
    return event.client_order_id in own


def _leg_sent(run: CardRun, sent: Sent, leg: Leg) -> Sent:
    """The leg as if it had been sent by itself, under the venue's names for it."""
    (ticket,) = [each for each in sent.ticket.legs if each.leg is leg]
    named = [each.broker_order_id for each in _of_leg(run, sent, leg) if each.broker_order_id]
    limit = str(ticket.limit_price)
    alone = run.ticket(ticket.side, "5", limit, time_in_force=ticket.time_in_force)
    alone = replace(alone, client_order_id=ticket.client_order_id, broker_order_id=named[0])
    return Sent(alone, port.CommandResult(outcome=Outcome.ACKED, broker_order_id=named[0]))


async def _expect_filled_leg(run: CardRun, sent: Sent, leg: Leg, quantity: str) -> None:
    await run.wait_until(lambda: total(_of_leg(run, sent, leg)) >= Decimal(quantity))
    events = _of_leg(run, sent, leg)
    assert total(events) == Decimal(quantity), f"{leg}: {events}"


async def _expect_ended(run: CardRun, sent: Sent, leg: Leg) -> None:
    def ends() -> list[BrokerEvent]:
        return [event for event in _of_leg(run, sent, leg) if event.kind in ENDS]

    await run.wait_until(lambda: bool(ends()))
    assert len(ends()) == 1, f"{leg}: {ends()}"


LINKED_CARDS = (
    Card(
        80,
        "a trailing stop follows the market, and never goes back",
        trails,
        offers(OrderKind.TRAILING_STOP),
    ),
    Card(81, "an exit that takes the profit ends the other", takes_profit, LINKS_EXITS),
    Card(82, "an exit that stops the loss ends the other", stops_loss, LINKS_EXITS),
    Card(83, "an entry has one exit", protects_with_one_exit, LINKS_EXITS),
    Card(84, "a market that jumps over both exits fills one", fills_one_leg_of_a_jump, LINKS_EXITS),
    Card(
        85,
        "an entry that ends unfilled ends its exits",
        ends_exits_with_an_unfilled_entry,
        LINKS_EXITS,
    ),
    Card(86, "an exit is replaced, and stays linked", replaces_a_leg, LINKS_EXITS),
    Card(87, "a snapshot names the exits as the stream did", names_legs_again, LINKS_EXITS),
    Card(
        88, "one cancels other: the stop fills, and ends the limit", cancels_the_other, LINKS_PAIRS
    ),
)
