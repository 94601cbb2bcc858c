"""Each answer of a venue becomes one outcome of the port, and a request is never made twice."""

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import cast

import ccxt
import pytest
from msgspec.structs import replace
from simulator import Answer, SaidFault
from spot_book import BASE
from stage import SYMBOL, CcxtStage

from trading_intents.brokers.port import (
    AuthFailed,
    BrokerEvent,
    CommandResult,
    EventKind,
    LookupUnknown,
    OrderSnapshot,
    Outcome,
)
from trading_intents.brokers.rest_client import AnswerUnclear, NotSent
from trading_intents.secret import Secret
from trading_intents.testing.broker_suite import CardRun, Sent, deadline
from trading_intents.trading import OrderSide, Symbol, TimeInForce
from trading_intents_ccxt.exchange import Refused, Row, meaning_of
from trading_intents_ccxt.session import CcxtBroker
from trading_intents_ccxt.venues import VENUES, Venue

DOUBTS = {
    "binance": Answer(400, {"code": -1007, "msg": "Timeout waiting for response."}),
    "bybit": Answer(200, {"retCode": 170007, "retMsg": "Timeout waiting for response."}),
    "okx": Answer(200, {"code": "50004", "data": [], "msg": "API endpoint request timeout."}),
}
NOTHING_DONE = {
    "binance": Answer(400, {"code": -1021, "msg": "Timestamp is outside of the recvWindow."}),
    "bybit": Answer(200, {"retCode": 10006, "retMsg": "Too many visits!"}),
    "okx": Answer(200, {"code": "50011", "data": [], "msg": "Too Many Requests"}),
}
STRANGE = {
    "binance": Answer(400, {"code": -9999, "msg": "Something that no document has."}),
    "bybit": Answer(200, {"retCode": 999, "retMsg": "Something that no document has."}),
    "okx": Answer(200, {"code": "59999", "data": [], "msg": "Something that no document has."}),
}


REFUSED = {
    "binance": Answer(400, {"code": -1121, "msg": "Invalid symbol."}),
    "bybit": Answer(200, {"retCode": 170121, "retMsg": "Invalid symbol."}),
    "okx": Answer(200, {"code": "51001", "data": [], "msg": "Instrument ID doesn't exist."}),
}
BODIES: dict[str, Callable[[str], Row]] = {
    "binance": lambda code: {"code": int(code), "msg": "words"},
    "bybit": lambda code: {"retCode": int(code), "retMsg": "words"},
    "okx": lambda code: {"code": "1", "data": [{"sCode": code, "sMsg": "words"}], "msg": ""},
}


async def opened(stage: CcxtStage) -> CardRun:
    run = CardRun(stage=stage, broker=await stage.connect())
    await run.open()
    await run.quote("99", "101")
    return run


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_venue_that_does_not_know_leaves_a_doubt_that_a_look_up_ends(
    stage: CcxtStage, is_done: bool
) -> None:
    run = await opened(stage)
    stage.simulator.faults.append(SaidFault(DOUBTS[stage.venue.id], is_done))
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    found = await run.broker.lookup(run.known(sent), deadline())
    assert isinstance(found, OrderSnapshot) is is_done
    assert len(stage.simulator.book.arrived) == is_done
    await run.close()


@pytest.mark.parametrize("status", [429, 418])
async def test_a_limit_bars_every_request_until_its_end(stage: CcxtStage, status: int) -> None:
    run = await opened(stage)
    resting = await run.buy("1", "90")
    limited = Answer(status, "{}", {"retry-after": "20"})
    stage.simulator.faults.append(SaidFault(limited, is_done=False))
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.NOT_SENT
    assert sent.result.retry_after_seconds in (19, 20)
    before = len(stage.simulator.requests)
    ended = await run.cancel(resting)
    assert (ended.result.outcome, ended.result.retry_after_seconds) == (Outcome.NOT_SENT, 20)
    assert len(stage.simulator.requests) == before
    await run.close()


async def test_what_the_venue_did_not_do_may_be_sent_again(stage: CcxtStage) -> None:
    run = await opened(stage)
    stage.simulator.faults.append(SaidFault(NOTHING_DONE[stage.venue.id], is_done=False))
    ticket = run.ticket(OrderSide.BUY, "1", "90")
    assert (await run.send(ticket)).result.outcome is Outcome.NOT_SENT
    assert (await run.send(ticket)).result.outcome is Outcome.ACKED
    await run.close()


@pytest.mark.parametrize("venue", VENUES.values(), ids=lambda venue: venue.id)
def test_a_code_of_the_table_means_what_the_table_says(venue: Venue) -> None:
    """The class that ccxt gives it decides nothing: that of a timeout may be an invalid order."""
    exchange = getattr(ccxt, venue.id)()
    meant = list[tuple[str, type[Exception]]]()
    meant += [(code, AnswerUnclear) for code in venue.doubts]
    meant += [(code, NotSent) for code in venue.nothing_done]
    meant += [(code, Refused) for code in venue.absences]
    assert len(dict(meant)) == len(meant), "a code has two meanings"
    for code, kind in meant:
        body = BODIES[venue.id](code)
        with pytest.raises(ccxt.BaseError) as raised:
            exchange.handle_errors(400, "", "", "POST", {}, json.dumps(body), body, {}, "")
        assert type(meaning_of(venue, raised.value, body)) is kind, code


async def test_a_look_up_that_is_refused_for_another_reason_proves_nothing(
    stage: CcxtStage,
) -> None:
    run = await opened(stage)
    sent = await run.buy("1", "90")
    answer = REFUSED[stage.venue.id]
    stage.simulator.faults.append(SaidFault(answer, is_done=False, is_of_lookup=True))
    assert isinstance(await run.broker.lookup(run.known(sent), deadline()), LookupUnknown)
    await run.close()


async def test_an_end_is_reported_after_executions_that_are_listed_late(stage: CcxtStage) -> None:
    run = await opened(stage)
    await run.quote("99", "100", "4")
    stage.simulator.book.late_lists = 3
    sent = await run.buy("10", "100", time_in_force=TimeInForce.IMMEDIATE_OR_CANCEL)
    kinds = [EventKind.ACCEPTED, EventKind.FILL, EventKind.CANCELLED]
    await run.expect(kinds, sent)
    await run.close()


async def test_an_execution_that_is_never_listed_is_counted(stage: CcxtStage) -> None:
    run = await opened(stage)
    await run.quote("99", "100", "4")
    stage.simulator.book.late_lists = 1_000
    sent = await run.buy("10", "100", time_in_force=TimeInForce.IMMEDIATE_OR_CANCEL)
    *_, end = await run.expect([EventKind.ACCEPTED, EventKind.CANCELLED], sent)
    assert end.cum_quantity == 4
    await run.close()


async def test_a_code_that_nobody_knows_proves_nothing(stage: CcxtStage) -> None:
    run = await opened(stage)
    stage.simulator.faults.append(SaidFault(STRANGE[stage.venue.id], is_done=True))
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    await run.close()


async def test_a_server_error_proves_nothing(stage: CcxtStage) -> None:
    run = await opened(stage)
    stage.simulator.faults.append(SaidFault(Answer(502, "<html>"), is_done=True))
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.UNKNOWN
    await run.close()


async def test_a_venue_that_cannot_be_reached_got_nothing(stage: CcxtStage) -> None:
    run = await opened(stage)
    broker = cast(CcxtBroker, run.broker)
    rest = broker._rest
    rest.url = broker._reads.exchange.urls["api"] = "http://127.0.0.1:9"
    groups = stage.venue.paths.items()
    broker._reads.exchange.urls["api"] = {name: rest.url + path for name, path in groups}
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "90"))
    assert sent.result.outcome is Outcome.NOT_SENT
    await run.close()


@pytest.mark.parametrize(
    ("quantity", "limit", "code"),
    [
        ("1.000001", "90", "quantity_off_step"),
        ("0.000001", "90", "quantity_off_step"),
        ("1", "90.001", "price_off_tick"),
    ],
)
async def test_ccxt_rounds_nothing(stage: CcxtStage, quantity: str, limit: str, code: str) -> None:
    run = await opened(stage)
    sent = await run.send(run.ticket(OrderSide.BUY, quantity, limit))
    assert (sent.result.outcome, sent.result.code) == (Outcome.REJECTED, code)
    assert stage.simulator.book.arrived == []
    await run.close()


async def test_what_spot_has_not_is_refused_here(stage: CcxtStage) -> None:
    run = await opened(stage)
    short = run.ticket(OrderSide.SELL_SHORT, "1", "110")
    strange = replace(run.ticket(OrderSide.BUY, "1", "90"), symbol=Symbol("BTC/USDT:USDT"))
    for ticket, code in ((short, "no_short_sales"), (strange, "unknown_symbol")):
        result = (await run.send(ticket)).result
        assert (result.outcome, result.code) == (Outcome.REJECTED, code)
    assert stage.simulator.book.arrived == []
    await run.close()


async def test_a_fee_in_the_coin_is_a_fact_of_its_own(stage: CcxtStage) -> None:
    """2 bought, 1.998 held; what is sold pays its fee in money."""
    run = await opened(stage)
    await run.buy_filled("2")
    sold = await run.send(run.ticket(OrderSide.SELL, "1"))
    (fill,) = await run.expect_filled("1", sold)
    assert fill.fee == Decimal("0.099")
    fees = [event for event in run.received if event.kind is EventKind.FEE]
    assert [(fee.symbol, fee.quantity) for fee in fees] == [(SYMBOL, Decimal("0.002"))]
    snapshot = await run.snapshot()
    assert {fee.dedupe_key for fee in fees} <= {each.dedupe_key for each in snapshot.executions}
    assert stage.simulator.book.held[BASE] == Decimal("1.498")
    await run.close()


async def test_a_fee_in_a_third_coin_is_of_that_coin(stage: CcxtStage) -> None:
    stage.simulator.book.fee_coin = "BNB"
    run = await opened(stage)
    bought = await run.buy_filled("2")
    await run.snapshot()
    (fill,) = run.fills(bought)
    (fee,) = (event for event in run.received if event.kind is EventKind.FEE)
    assert fill.fee is None
    assert (fee.symbol, fee.quantity) == ("BNB/USDT", Decimal("0.01"))
    await run.close()


async def test_a_refused_credential_ends_the_session(stage: CcxtStage) -> None:
    context = stage.context()
    secrets = {**context.secrets, "api_key": Secret("another")}
    broker = CcxtBroker(stage.venue, dataclasses.replace(context, secrets=secrets))
    with pytest.raises(AuthFailed):
        await broker.open()
    await broker.close()


async def test_long_lists_are_read_to_their_ends(stage: CcxtStage) -> None:
    """More open orders than a page of OKX's, and more executions than one of Binance's."""
    run = await opened(stage)
    book = stage.simulator.book
    names = [f"RESTING{number:04}" for number in range(120)]
    with book.lock:
        for name in names:
            book.submit(name, True, Decimal(1), Decimal(50), "GTC")
        book.submit("LARGE", True, Decimal(1_100), Decimal(100), "GTC")
    for _ in range(1_100):
        book.quote(Decimal(99), Decimal(100), Decimal(1))
    since = datetime.now(UTC) - timedelta(days=1)
    snapshot = await run.broker.snapshot(since, [])
    assert {order.client_order_id for order in snapshot.open_orders} == set(names)
    large = replace(run.ticket(OrderSide.BUY, "1", "90"), client_order_id="LARGE")
    known = run.known(Sent(large, CommandResult(outcome=Outcome.UNKNOWN)))
    assert count(snapshot.executions) == 1_100
    found = await run.broker.lookup(known, deadline(9))
    assert isinstance(found, OrderSnapshot)
    filled = count(found.events)
    # Binance gives the first thousand executions of an order: the rest is counted, not named.
    assert filled == (1_000 if stage.venue.id == "binance" else 1_100)
    assert not found.is_working
    await run.close()


def count(events: object) -> int:
    return sum(each.kind is EventKind.FILL for each in cast(list[BrokerEvent], events))
