"""The cards: what is done at a venue, and what a broker integration must report. Numbers are never
reused."""

from decimal import Decimal

from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.port import Absent, Outcome
from trading_intents.testing import broker_suite as suite
from trading_intents.testing.broker_suite import (
    KEEPS_FILLED,
    TAKES_LIMIT,
    TAKES_MARKET,
    Card,
    CardRun,
    Sent,
    StageFault,
    deadline,
    offers,
    total,
)
from trading_intents.testing.linked_cards import LINKED_CARDS
from trading_intents.testing.session_cards import SESSION_CARDS
from trading_intents.trading import OrderKind, OrderSide, TimeInForce

_E = port.EventKind
_IOC = TimeInForce.IMMEDIATE_OR_CANCEL
_FOK = TimeInForce.FILL_OR_KILL
_GTC = TimeInForce.GOOD_TILL_CANCEL


async def fills_market(run: CardRun) -> None:
    await run.quote("99", "100")
    sent = await run.buy("10")
    *_, last = await run.expect([_E.ACCEPTED, _E.FILL], sent)
    assert (last.cum_quantity, last.price) in ((Decimal(10), Decimal(100)), (None, Decimal(100)))


async def sells_what_was_bought(run: CardRun) -> None:
    await run.buy_filled("10")
    sold = await run.send(run.ticket(OrderSide.SELL, "10"))
    (fill,) = await run.expect_filled("10", sold)
    assert fill.price == 99


async def rests(run: CardRun) -> None:
    sent = await run.buy_resting("10")
    await run.expect([_E.ACCEPTED], sent)
    assert sent.result.broker_order_id


async def fills_marketable_limit(run: CardRun) -> None:
    await run.quote("99", "100")
    await _expect_filled_within(run, "101", await run.buy("10", "101"))


async def fills_resting_limit(run: CardRun) -> None:
    await run.quote("99", "101")
    sent = await run.buy("10", "100")
    await run.expect([_E.ACCEPTED], sent)
    await run.quote("98", "99")
    await _expect_filled_within(run, "100", sent)


async def _expect_filled_within(run: CardRun, limit: str, sent: Sent) -> None:
    for fill in await run.expect_filled("10", sent):
        assert fill.price is not None
        assert fill.price <= Decimal(limit)


async def fills_in_parts(run: CardRun) -> None:
    sent = await run.buy_filled_in_part()
    await run.quote("99", "100", "100")
    fills = await run.expect_filled("10", sent)
    counts = [fill.cum_quantity for fill in fills if fill.cum_quantity is not None]
    assert counts == sorted(counts)
    assert not counts or counts[-1] == 10, "a count is of all that the order filled so far"
    assert len({fill.exec_id for fill in fills}) == len(fills) > 1


async def triggers_stop(run: CardRun) -> None:
    await run.quote("99", "100")
    sent = await run.buy("10", stop="105")
    await run.expect([_E.ACCEPTED], sent)
    await run.quote("106", "107")
    (fill,) = await run.expect_filled("10", sent)
    assert fill.price == 107


async def triggers_stop_limit(run: CardRun) -> None:
    await run.quote("99", "100")
    sent = await run.buy("10", "106", "105")
    await run.expect([_E.ACCEPTED], sent)
    await run.quote("104", "105")
    await _expect_filled_within(run, "106", sent)


async def cancels_rest_of_ioc(run: CardRun) -> None:
    await run.quote("99", "100", "4")
    sent = await run.buy("10", "100", time_in_force=_IOC)
    *_, fill, end = await run.expect([_E.ACCEPTED, _E.FILL, _E.CANCELLED], sent)
    assert fill.quantity == 4
    assert end.cum_quantity in (None, Decimal(4))


async def kills_fok(run: CardRun) -> None:
    await run.quote("99", "100", "4")
    sent = await run.send(run.ticket(OrderSide.BUY, "10", "100", time_in_force=_FOK))
    if sent.result.outcome is Outcome.ACKED:
        events = await run.expect([_E.ACCEPTED, _E.CANCELLED], sent)
        assert events[-1].cum_quantity in (None, Decimal(0))
    assert not run.fills(sent)


async def fills_fok(run: CardRun) -> None:
    await run.quote("99", "100", "10")
    await run.expect_filled("10", await run.buy("10", "100", time_in_force=_FOK))


async def keeps_gtc(run: CardRun) -> None:
    await run.quote("99", "101")
    await run.expect([_E.ACCEPTED], await run.buy("1", "90", time_in_force=_GTC))


async def refuses(run: CardRun) -> None:
    """A quantity that no account can pay."""
    await run.quote("99", "101")
    sent = await run.send(run.ticket(OrderSide.BUY, "100000000000", "100"))
    assert sent.result.outcome in (Outcome.REJECTED, Outcome.ACKED), sent.result
    if sent.result.outcome is Outcome.REJECTED:
        assert sent.result.code or sent.result.message
    else:
        await run.expect([_E.REJECTED], sent)
    assert not run.fills(sent)


async def never_takes_an_id_twice(run: CardRun) -> None:
    """If the venue takes an id twice, the adapter cannot prevent it: the card fails, and only the
    platform's own rule is left."""
    sent = await run.buy_resting("1")
    again = await run.broker.submit(sent.ticket, deadline())
    assert again.outcome is Outcome.UNKNOWN, "a known id is no refusal: the order is there"
    snapshot = await run.snapshot()
    assert len(snapshot.open_orders) == 1


async def refuses_a_used_id_for_ever(run: CardRun) -> None:
    """Also for a finished order, and in a new session."""
    await run.quote("99", "100")
    filled = await run.buy("1", "100")
    await run.expect_filled("1", filled)
    cancelled = await run.buy("1", "90")
    await run.expect([_E.ACCEPTED, _E.CANCELLED], cancelled, await run.cancel(cancelled))
    await run.connect_again()
    for sent in (filled, cancelled):
        again = await run.broker.submit(sent.ticket, deadline())
        assert again.outcome is Outcome.UNKNOWN
    snapshot = await run.snapshot()
    assert not snapshot.open_orders
    assert total(snapshot.executions) == 1


async def sells_nothing_that_is_not_held(run: CardRun) -> None:
    """A SELL never opens a short: that is what SELL_SHORT is for."""
    await run.quote("99", "100")
    sent = await run.send(run.ticket(OrderSide.SELL, "1"))
    if sent.result.outcome is Outcome.ACKED:
        await run.expect([_E.REJECTED], sent)
    else:
        assert sent.result.outcome is Outcome.REJECTED, sent.result
    assert not run.fills(sent)


async def ends_with_its_fill(run: CardRun) -> None:
    await run.quote("99", "100")
    sent = await run.buy("1")
    *_, filled = await run.expect_filled("1", sent)
    assert filled.cum_quantity == 1, "by its count the platform knows that the order was filled"
    await run.stage.fault(StageFault.BUST_FILL)
    await run.expect([_E.ACCEPTED, _E.FILL, _E.FILL_BUST], sent)
    assert (await run.cancel(sent)).result.outcome is Outcome.REJECTED
    assert not (await run.snapshot()).open_orders


async def sends_nothing_stale(run: CardRun) -> None:
    await run.quote("99", "101")
    stale = replace(run.ticket(OrderSide.BUY, "1"), not_after=deadline(-1))
    assert (await run.broker.submit(stale, deadline())).outcome is Outcome.NOT_SENT
    late = run.ticket(OrderSide.BUY, "1")
    assert (await run.broker.submit(late, deadline(-1))).outcome is Outcome.NOT_SENT
    snapshot = await run.snapshot()
    assert not snapshot.open_orders
    assert not snapshot.executions


async def keeps_its_keys(run: CardRun) -> None:
    """An answer, the stream and a snapshot report the same event under the same key."""
    await run.quote("99", "100")
    sent = await run.buy("5")
    streamed = await run.expect([_E.ACCEPTED, _E.FILL], sent)
    snapshot = await run.snapshot()
    keys = {event.dedupe_key for event in streamed}
    assert len(keys) == len(streamed)
    for event in sent.result.updates:
        assert event.dedupe_key in keys or event.kind not in (_E.ACCEPTED, _E.FILL)
    assert suite.keys_of(snapshot.executions, _E.FILL) == suite.keys_of(streamed, _E.FILL)


async def keeps_every_digit(run: CardRun) -> None:
    """Of a quantity and a price, on the way there and back."""
    step = run.stage.capabilities.quantity_step
    quantity = "0.123456789" if step and Decimal("0.123456789") % step == 0 else "1237"
    await run.quote("101.38", "101.4")
    sent = await run.buy(quantity, "101.37")
    await run.expect([_E.ACCEPTED], sent)
    await run.quote("101.36", "101.37", "5000")
    fills = await run.expect_filled(quantity, sent)
    assert {fill.price for fill in fills} == {Decimal("101.37")}


async def replaces_quantity(run: CardRun) -> None:
    sent = await run.buy_resting("10")
    changed = await run.replace(sent, "20", "91")
    assert changed.result.outcome is Outcome.ACKED
    *_, event = await run.expect([_E.ACCEPTED, _E.REPLACED], sent, changed)
    assert event.client_order_id == changed.ticket.client_order_id
    assert event.replaces in (None, sent.ticket.client_order_id)


async def fills_a_replaced_order(run: CardRun) -> None:
    sent = await run.buy_filled_in_part()
    changed = await run.replace(sent, "8", "101")
    await run.quote("99", "100")
    fills = await run.expect_filled("8", sent, changed)
    assert fills[-1].cum_quantity in (None, Decimal(8))


async def replaces_to_what_is_filled(run: CardRun) -> None:
    """The order is FILLED at what is filled, or the REPLACE refused: never more."""
    sent = await run.buy_filled_in_part()
    changed = await run.replace(sent, "4", "100")
    await run.quote("99", "100")
    if changed.result.outcome is Outcome.ACKED:
        await run.expect([_E.ACCEPTED, _E.FILL, _E.REPLACED], sent, changed)
        assert total(run.fills(sent, changed)) == 4


async def refuses_to_replace_what_is_over(run: CardRun) -> None:
    sent = await run.buy_filled("1")
    changed = await run.replace(sent, "2")
    assert changed.result.outcome is Outcome.REJECTED


async def cancels(run: CardRun) -> None:
    sent = await run.buy_resting("10")
    ended = await run.cancel(sent)
    assert ended.result.outcome is Outcome.ACKED
    await run.expect([_E.ACCEPTED, _E.CANCELLED], sent, ended)


async def cancels_what_is_left(run: CardRun) -> None:
    sent = await run.buy_filled_in_part()
    ended = await run.cancel(sent)
    *_, event = await run.expect([_E.ACCEPTED, _E.FILL, _E.CANCELLED], sent, ended)
    assert event.cum_quantity in (None, Decimal(4))


async def cancels_by_client_id(run: CardRun) -> None:
    """The answer to its CREATE may have been lost, and the broker's id with it."""
    sent = await run.buy_resting("10")
    ended = await run.cancel(sent, with_broker_id=False)
    await run.expect([_E.ACCEPTED, _E.CANCELLED], sent, ended)


async def doubts_a_change_without_answer(run: CardRun) -> None:
    """It is sent once: a second one would be refused, as the first one was carried out."""
    await _expect_doubt(run, StageFault.DROP_ANSWER)


async def doubts_a_lost_change(run: CardRun) -> None:
    await _expect_doubt(run, StageFault.LOSE_COMMAND)


async def _expect_doubt(run: CardRun, fault: StageFault) -> None:
    sent = await run.buy_resting("10")
    await run.stage.fault(fault)
    changed = await run.replace(sent, "20", "91")
    assert changed.result.outcome is Outcome.UNKNOWN, "the venue may have carried it out"


async def doubts_a_cancel_without_answer(run: CardRun) -> None:
    """It is sent once, as a REPLACE is."""
    sent = await run.buy_resting("10")
    await run.stage.fault(StageFault.DROP_ANSWER)
    ended = await run.cancel(sent)
    assert ended.result.outcome is Outcome.UNKNOWN, "the venue may have carried it out"
    if run.has_ended or (await run.snapshot()).open_orders:
        await run.connect_again()  # a venue may report it only then
    assert not (await run.snapshot()).open_orders


async def doubts_a_lost_cancel(run: CardRun) -> None:
    sent = await run.buy_resting("10")
    await run.stage.fault(StageFault.LOSE_COMMAND)
    ended = await run.cancel(sent)
    assert ended.result.outcome is Outcome.UNKNOWN, "the venue may have carried it out"
    assert (await run.snapshot()).open_orders


async def refuses_to_cancel_what_is_over(run: CardRun) -> None:
    sent = await run.buy_filled("1")
    assert (await run.cancel(sent)).result.outcome is Outcome.REJECTED


async def refuses_to_cancel_what_is_not_there(run: CardRun) -> None:
    assert (await run.cancel(run.never_sent())).result.outcome is Outcome.REJECTED


async def looks_up_a_working_order(run: CardRun) -> None:
    found = await run.found(await run.buy_resting("3"))
    assert (found.symbol, found.side) == (run.stage.symbol, OrderSide.BUY)
    assert found.quantity == 3
    assert found.events[0].kind is _E.ACCEPTED


async def looks_up_what_is_over(run: CardRun) -> None:
    filled = await run.buy_filled("3")
    cancelled = await run.buy("3", "90")
    await run.cancel(cancelled)
    assert total((await run.found(filled)).events) == 3
    ended = await run.found(cancelled)
    assert _E.CANCELLED in [event.kind for event in ended.events]
    assert not (await run.found(filled)).is_working
    assert not ended.is_working


async def looks_up_by_the_id_of_a_replace(run: CardRun) -> None:
    """With the total of all versions: an order that filled the quantity of its look-up is over,
    also if we know of more."""
    sent = await run.buy_filled_in_part()
    changed = await run.replace(sent, "8", "90")
    await run.expect([_E.ACCEPTED, _E.FILL, _E.REPLACED], sent, changed)
    found = await run.found(changed)
    assert found.quantity == 8
    assert found.is_working


async def finds_nothing_that_was_not_sent(run: CardRun) -> None:
    await run.buy("3", "1")
    found = await run.broker.lookup(run.known(run.never_sent()), deadline())
    assert isinstance(found, Absent)


async def proves_nothing_by_a_refused_lookup(run: CardRun) -> None:
    await _expect_no_proof(run, StageFault.REFUSE_LOOKUP)


async def proves_nothing_by_a_lost_lookup(run: CardRun) -> None:
    await _expect_no_proof(run, StageFault.LOSE_LOOKUP)


async def _expect_no_proof(run: CardRun, fault: StageFault) -> None:
    sent = await run.buy_resting("3")
    await run.stage.fault(fault)
    found = await run.broker.lookup(run.known(sent), deadline())
    assert isinstance(found, port.LookupUnknown), f"the venue has it, and it is called {found}"
    assert (await run.found(sent)).is_working


async def has_all_open_orders(run: CardRun) -> None:
    """Two of them, and thirty."""
    await run.quote("99", "101")
    names = set[str | None]()
    for count in (2, 28):
        for _ in range(count):
            names.add((await run.buy("1", "90")).ticket.client_order_id)
        found = {order.client_order_id for order in (await run.snapshot()).open_orders}
        assert found == names, f"of {len(names)} open orders the snapshot has {len(found)}"


async def has_open_orders(run: CardRun) -> None:
    sent = await run.buy_filled_in_part()
    await run.cancel(await run.buy("1", "90"))
    snapshot = await run.snapshot()
    (order,) = snapshot.open_orders
    assert order.client_order_id == sent.ticket.client_order_id
    assert order.is_working
    assert total(order.events) in (0, 4)
    assert total(snapshot.executions) == 4


async def has_positions(run: CardRun) -> None:
    await run.buy_filled("7")
    positions = (await run.snapshot()).positions
    if positions is not None or run.stage.capabilities.tells_positions:
        assert positions is not None
        assert [each.quantity for each in positions if each.symbol == run.stage.symbol] == [7]


_K = OrderKind
_ORDER_CARDS = (
    Card(10, "a market order is filled", fills_market, TAKES_MARKET),
    Card(11, "what was bought can be sold", sells_what_was_bought, TAKES_MARKET),
    Card(12, "a limit order rests", rests, TAKES_LIMIT),
    Card(
        13,
        "a marketable limit order is filled, not worse than its limit",
        fills_marketable_limit,
        TAKES_LIMIT,
    ),
    Card(
        14,
        "a resting limit order is filled when the market comes",
        fills_resting_limit,
        TAKES_LIMIT,
    ),
    Card(15, "an order is filled in parts, which add up", fills_in_parts, TAKES_LIMIT),
    Card(16, "a stop order becomes a market order", triggers_stop, offers(_K.STOP)),
    Card(
        17, "a stop-limit order becomes a limit order", triggers_stop_limit, offers(_K.STOP_LIMIT)
    ),
    Card(
        18,
        "IOC: what is not filled at once is cancelled",
        cancels_rest_of_ioc,
        offers(_K.LIMIT, _IOC),
    ),
    Card(19, "FOK: all or nothing", kills_fok, offers(_K.LIMIT, _FOK)),
    Card(20, "FOK: all", fills_fok, offers(_K.LIMIT, _FOK)),
    Card(21, "GTC rests", keeps_gtc, offers(_K.LIMIT, _GTC)),
    Card(22, "a refusal is definite and says why", refuses, TAKES_LIMIT),
    Card(
        23,
        "a used id makes no second order, and is not called a refusal",
        never_takes_an_id_twice,
        TAKES_LIMIT,
    ),
    Card(
        24,
        "a command that is too old, or out of time, is not sent",
        sends_nothing_stale,
        TAKES_MARKET,
    ),
    Card(25, "an event has the same key in every source", keeps_its_keys, TAKES_MARKET),
    Card(
        26,
        "an id that was used is refused for ever",
        refuses_a_used_id_for_ever,
        suite.REFUSES_USED_IDS,
    ),
    Card(
        27,
        "a SELL of a position that is not held is refused",
        sells_nothing_that_is_not_held,
        TAKES_MARKET,
    ),
    Card(
        28,
        "a filled order whose fill is busted stays final",
        ends_with_its_fill,
        KEEPS_FILLED,
        StageFault.BUST_FILL,
    ),
    Card(29, "a quantity and a price keep every digit", keeps_every_digit, TAKES_LIMIT),
    Card(30, "an order is replaced", replaces_quantity, suite.REPLACES),
    Card(
        31, "a replaced order goes on from what was filled", fills_a_replaced_order, suite.REPLACES
    ),
    Card(
        32,
        "a replace to no more than what is filled buys nothing more",
        replaces_to_what_is_filled,
        suite.REPLACES,
    ),
    Card(
        33,
        "a REPLACE of a finished order is refused",
        refuses_to_replace_what_is_over,
        suite.REPLACES,
    ),
    Card(
        34,
        "a REPLACE whose answer is lost is unknown, and sent once",
        doubts_a_change_without_answer,
        suite.REPLACES,
        StageFault.DROP_ANSWER,
    ),
    Card(
        35,
        "a REPLACE that is lost is unknown",
        doubts_a_lost_change,
        suite.REPLACES,
        StageFault.LOSE_COMMAND,
    ),
    Card(40, "an order is cancelled", cancels, TAKES_LIMIT),
    Card(41, "what is left of an order is cancelled", cancels_what_is_left, TAKES_LIMIT),
    Card(
        42,
        "an order is cancelled by its client order id alone",
        cancels_by_client_id,
        TAKES_LIMIT,
    ),
    Card(
        43,
        "a CANCEL of a finished order is refused",
        refuses_to_cancel_what_is_over,
        TAKES_MARKET,
    ),
    Card(44, "a CANCEL of an unknown order is refused", refuses_to_cancel_what_is_not_there),
    Card(
        45,
        "a CANCEL whose answer is lost is unknown, and sent once",
        doubts_a_cancel_without_answer,
        TAKES_LIMIT,
        StageFault.DROP_ANSWER,
    ),
    Card(
        46,
        "a CANCEL that is lost is unknown",
        doubts_a_lost_cancel,
        TAKES_LIMIT,
        StageFault.LOSE_COMMAND,
    ),
    Card(50, "a working order is found", looks_up_a_working_order, suite.looks_up),
    Card(51, "a finished order is found", looks_up_what_is_over, suite.looks_up_for_ever),
    Card(
        52,
        "an order is found by the id of its replace",
        looks_up_by_the_id_of_a_replace,
        suite.LOOKS_UP_REPLACES,
    ),
    Card(
        53,
        "an order that was never sent is absent",
        finds_nothing_that_was_not_sent,
        suite.looks_up_for_ever,
    ),
    Card(
        54,
        "a look-up that is refused proves nothing",
        proves_nothing_by_a_refused_lookup,
        suite.ASKS_A_VENUE,
        StageFault.REFUSE_LOOKUP,
    ),
    Card(
        55,
        "a look-up without an answer proves nothing",
        proves_nothing_by_a_lost_lookup,
        suite.ASKS_A_VENUE,
        StageFault.LOSE_LOOKUP,
    ),
    Card(60, "a snapshot has open orders and executions", has_open_orders, TAKES_LIMIT),
    Card(61, "a snapshot has positions, if the broker reports any", has_positions, TAKES_MARKET),
    Card(65, "a snapshot has two, and thirty, open orders", has_all_open_orders, TAKES_LIMIT),
)
CARDS = tuple(sorted((*_ORDER_CARDS, *SESSION_CARDS, *LINKED_CARDS), key=lambda card: card.number))
