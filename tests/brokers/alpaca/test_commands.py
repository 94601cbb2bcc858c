"""Answers to commands: each command is written once, and an outcome is called certain only if it
is."""

import asyncio
from dataclasses import replace as changed
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from tests.brokers.alpaca.order import stamp
from tests.brokers.alpaca.simulator import Fault, Simulator
from tests.brokers.alpaca.stage import AlpacaStage, CutRequests
from tests.brokers.sought import sought
from tests.proxy import FaultProxy, Verdict
from trading_intents.brokers.alpaca.broker import AlpacaBroker
from trading_intents.brokers.port import (
    DUPLICATE_ID,
    Absent,
    AuthFailed,
    BrokerBalance,
    BrokerUnavailable,
    EventKind,
    LookupUnknown,
    OrderSnapshot,
    Outcome,
)
from trading_intents.testing.broker_suite import CardRun, Sent, deadline, total
from trading_intents.trading import OrderSide, Symbol, TimeInForce

E = EventKind
Cuts = tuple[AlpacaStage, CutRequests, FaultProxy]


async def buy(run: CardRun, quantity: str = "1", limit: str = "50") -> Sent:
    return await run.send(run.ticket(OrderSide.BUY, quantity, limit))


@pytest.mark.parametrize(
    ("verdict", "outcome", "arrived"),
    [
        (Verdict.CUT_UNSENT, Outcome.UNKNOWN, 0),
        (Verdict.CUT_SENT, Outcome.UNKNOWN, None),
        (Verdict.CUT_UNANSWERED, Outcome.UNKNOWN, 1),
    ],
    ids=["before it", "behind it", "before the answer"],
)
async def test_a_connection_that_is_cut_makes_no_second_order(
    cuts: Cuts, verdict: Verdict, outcome: Outcome, arrived: int | None
) -> None:
    stage, cut, _ = cuts
    run = await stage.open_session()
    cut.text = b"POST /v2/orders"
    cut.verdict = verdict
    sent = await buy(run)
    assert sent.result.outcome is outcome
    assert len(stage.account.arrived) in ((0, 1) if arrived is None else (arrived,))
    if arrived:
        assert (await run.found(sent)).events[0].kind is E.ACCEPTED
    await run.close()


async def test_an_alpaca_that_cannot_be_reached_was_sent_nothing(cuts: Cuts) -> None:
    stage, _, proxy = cuts
    run = await stage.open_session()
    proxy.refuse()
    sent = await buy(run)
    # A kept connection, or a new one.
    assert sent.result.outcome in (Outcome.NOT_SENT, Outcome.UNKNOWN)
    assert (await buy(run)).result.outcome is Outcome.NOT_SENT
    assert stage.account.arrived == []
    await run.close()
    with pytest.raises(BrokerUnavailable):
        await stage.open_session()


async def test_an_answer_that_never_comes_is_unknown_in_time(cuts: Cuts) -> None:
    stage, cut, proxy = cuts
    run = await stage.open_session()
    cut.text = b"POST /v2/orders"
    cut.verdict = Verdict.HOLD
    sent = await run.broker.submit(run.ticket(OrderSide.BUY, "1", "50"), deadline(1.5))
    assert sent.outcome is Outcome.UNKNOWN
    proxy.work()
    await run.close()


@pytest.mark.parametrize("takes", [True, False], ids=["taken", "not taken"])
@pytest.mark.parametrize("kind", ["close", "half", "status"])
async def test_what_is_not_clearly_answered_is_unknown(
    stage: AlpacaStage, kind: str, takes: bool
) -> None:
    run = await stage.open_session()
    stage.simulator.faults.append(Fault(kind, takes))
    sent = await buy(run)
    assert sent.result.outcome is Outcome.UNKNOWN
    found = await run.broker.lookup(sought(sent.ticket.client_order_id), deadline())
    assert isinstance(found, OrderSnapshot if takes else Absent)
    assert len(stage.account.arrived) == takes
    await run.close()


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_server_error_is_unknown(stage: AlpacaStage, status: int) -> None:
    run = await stage.open_session()
    stage.simulator.faults.append(Fault("status", takes=True, status=status))
    assert (await buy(run)).result.outcome is Outcome.UNKNOWN
    await run.close()


async def test_a_refusal_of_an_order_that_works_is_none(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    stage.simulator.faults.append(Fault("refuse", takes=True))
    sent = await buy(run)
    assert sent.result.outcome is Outcome.ACKED
    assert sent.result.broker_order_id in stage.account.orders
    stage.simulator.faults.append(Fault("refuse", takes=False))
    refused = (await buy(run)).result
    assert (refused.outcome, refused.code, refused.message) == (
        Outcome.REJECTED,
        "40310000",
        "insufficient buying power",
    )
    await run.close()


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_a_page_that_is_not_alpacas_refuses_no_order(stage: AlpacaStage, status: int) -> None:
    run = await stage.open_session()
    stage.simulator.faults += [
        Fault("page", takes=True, status=status),
        Fault("page", takes=False, status=status),
    ]
    assert [(await buy(run)).result.outcome for _ in range(2)] == [Outcome.ACKED, Outcome.REJECTED]
    await run.close()


async def test_a_refused_replace_that_works_is_none(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    stage.simulator.faults.append(Fault("refuse", takes=True, methods=("PATCH",)))
    replaced = await run.replace(sent, "6", "51")
    assert replaced.result.outcome is Outcome.ACKED
    await run.expect([E.ACCEPTED, E.REPLACED], sent, replaced)
    await run.close()


async def test_a_refusal_that_cannot_be_looked_up_is_unknown(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    stage.simulator.faults += [
        Fault("refuse", takes=False),
        Fault("status", takes=False, methods=("GET",)),
    ]
    assert (await buy(run)).result.outcome is Outcome.UNKNOWN
    await run.close()


async def test_a_duplicate_is_distinguished_from_an_invalid_order_by_the_message(
    stage: AlpacaStage,
) -> None:
    run = await stage.open_session()
    sent = await buy(run)
    again = await run.broker.submit(sent.ticket, deadline())
    assert (again.outcome, again.code) == (Outcome.UNKNOWN, DUPLICATE_ID)
    asked = len(stage.simulator.exchanges)
    invalid = await run.broker.submit(run.ticket(OrderSide.BUY, "0.0000000001", "50"), deadline())
    assert (invalid.outcome, invalid.code) == (Outcome.REJECTED, "40010001")
    assert len(stage.simulator.exchanges) == asked + 1, "what is not valid is not looked up"
    await run.close()


@pytest.mark.parametrize(
    ("reset_seconds", "wait"), [(7.0, range(6, 9)), (None, range(1, 2))], ids=["reset", "none"]
)
async def test_too_many_requests_are_not_sent_until_they_may_be(
    stage: AlpacaStage, reset_seconds: float | None, wait: range
) -> None:
    run = await stage.open_session()
    stage.simulator.faults.append(Fault("too_many", takes=False, reset_seconds=reset_seconds))
    first = (await buy(run)).result
    assert first.outcome is Outcome.NOT_SENT
    assert first.retry_after_seconds in wait
    asked = len(stage.simulator.exchanges)
    second = (await buy(run)).result
    assert (second.outcome, second.retry_after_seconds in wait) == (Outcome.NOT_SENT, True)
    assert len(stage.simulator.exchanges) == asked, "it was asked again too early"
    await run.close()


async def test_all_accounts_of_a_credential_share_its_limit_and_cancels_come_first(
    stage: AlpacaStage,
) -> None:
    stage.simulator.limit_per_minute = 30
    first = await stage.open_session()
    resting = await first.buy("1", "50")
    await first.close()
    second = await stage.open_session()  # it asks Alpaca once more, and learns what is left
    outcomes = [(await buy(second)).result.outcome for _ in range(30)]
    assert outcomes.count(Outcome.ACKED) < 10
    assert outcomes[-1] is Outcome.NOT_SENT
    assert len(stage.account.arrived) == outcomes.count(Outcome.ACKED) + 1
    assert (await second.cancel(resting)).result.outcome is Outcome.ACKED
    await second.close()


async def test_a_credential_is_checked_and_watched(
    stage: AlpacaStage, simulator: Simulator
) -> None:
    wrong = changed(stage, account=changed(stage.account, secret="WRONG"))
    with pytest.raises(AuthFailed, match="refuses"):
        await wrong.open_session()
    run = await stage.open_session()
    simulator.accounts["KEY"].secret = "ROTATED"
    assert (await buy(run)).result.outcome is Outcome.NOT_SENT
    await run.expect_end()
    assert run._following
    assert isinstance(run._following.exception(), AuthFailed)
    await run.close()


async def test_a_credential_of_another_account_is_refused(stage: AlpacaStage) -> None:
    broker = AlpacaBroker(stage.context(external_account_id="PA0000"))
    with pytest.raises(AuthFailed, match="another account"):
        await broker.open()
    await broker.close()
    for named in (stage.account.number, stage.account.id):
        broker = AlpacaBroker(stage.context(external_account_id=named))
        await broker.open()
        await broker.close()


async def test_only_alpacas_own_word_proves_that_an_order_is_not_there(cuts: Cuts) -> None:
    stage, _, _ = cuts
    run = await stage.open_session()
    stage.simulator.faults.append(Fault("status", takes=False, methods=("GET",), status=404))
    assert isinstance(await run.broker.lookup(sought("never"), deadline()), LookupUnknown)
    assert await run.broker.lookup(sought("never"), deadline()) == Absent()
    await run.close()


async def test_a_replace_asks_for_what_is_left_of_the_new_total(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    await run.quote("99", "100", "4")
    sent = await run.buy("10", "100")
    await run.expect_filled("4", sent)
    second = await run.replace(sent, "9", "100")
    await run.quote("99", "100", "3")
    await run.expect_filled("7", sent, second)
    third = await run.replace(second, "8", "100")
    bodies = [each.body for each in stage.simulator.exchanges if each.method == "PATCH"]
    assert [body.get("qty") for body in bodies] == ["5", "1"]
    await run.quote("99", "100", "100")
    assert total(await run.expect_filled("8", sent, second, third)) == 8
    refused = (await run.replace(third, "3", "100")).result
    assert (refused.outcome, refused.code) == (Outcome.REJECTED, "replace_below_filled")
    await run.close()


async def test_a_replace_that_the_market_refuses_leaves_the_order_as_it_was(
    stage: AlpacaStage,
) -> None:
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    stage.account.holds_replaces = True
    replaced = await run.replace(sent, "6", "51")
    assert replaced.result.outcome is Outcome.ACKED
    assert sent.result.broker_order_id
    stage.account.reject_replace(sent.result.broker_order_id)
    await run.expect([E.ACCEPTED, E.REPLACE_REJECTED, E.REPLACE_REJECTED], sent, replaced)
    reasons = {
        (event.client_order_id, event.reason) for event in run.reported(replaced) if event.reason
    }
    assert reasons == {(replaced.ticket.client_order_id, "replace_rejected")}
    await run.close()


async def test_a_cancel_reaches_the_version_that_is_at_the_market(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    stage.account.holds_replaces = True
    replaced = await run.replace(sent, "6", "51")
    waiting = (await run.cancel(sent)).result
    assert (waiting.outcome, waiting.retry_after_seconds) == (Outcome.NOT_SENT, 1)
    stage.account.settle()
    ended = await run.cancel(sent)
    assert (ended.result.outcome, ended.result.broker_order_id) == (
        Outcome.ACKED,
        replaced.result.broker_order_id,
    )
    await run.expect([E.ACCEPTED, E.REPLACED, E.CANCELLED], sent, replaced)
    await run.close()


async def test_a_cancel_waits_the_longer_the_longer_its_order_is_being_replaced(
    stage: AlpacaStage,
) -> None:
    """Made every second, its attempts would use up the credential's requests while Alpaca still
    replaces the order."""
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    stage.account.holds_replaces = True
    await run.replace(sent, "6", "51")
    order = stage.account.by_client[sent.ticket.client_order_id]
    waits = []
    for seconds in (0, 20, 3_600):
        order.json["updated_at"] = stamp(await stage.now() - timedelta(seconds=seconds))
        waits.append((await run.cancel(sent)).result.retry_after_seconds)
    assert waits == [1, 20, 60]
    await run.close()


async def test_a_cancel_that_is_too_late_says_what_became_of_the_order(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    await run.quote("99", "100")
    sent = await run.buy("2", "100")
    await run.expect_filled("2", sent)
    late = (await run.cancel(sent)).result
    assert (late.outcome, late.code) == (Outcome.REJECTED, "too_late")
    assert [event.cum_quantity for event in late.updates if event.kind is E.STATUS] == [2]
    await run.close()


async def test_fractions_are_for_day_orders(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    day = await run.buy("1.123456789", "50")
    gtc = run.ticket(OrderSide.BUY, "1.5", "50", time_in_force=TimeInForce.GOOD_TILL_CANCEL)
    assert (await run.send(gtc)).result.outcome is Outcome.REJECTED
    assert (await run.replace(day, "2", "50")).result.outcome is Outcome.REJECTED
    priced = await run.replace(day, "1.123456789", "51")
    assert priced.result.outcome is Outcome.ACKED
    await run.close()


async def test_a_sale_says_whether_it_closes_or_opens(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    await run.quote("99", "100")
    await run.expect_filled("3", await run.buy("3", "100"))
    for side in (OrderSide.SELL, OrderSide.SELL_SHORT):
        await run.send(run.ticket(side, "3"))
    await run.send(with_fields(run.ticket(OrderSide.SELL, "1"), symbol=Symbol("BTC/USD")))
    bodies = [each.body for each in stage.simulator.exchanges if each.method == "POST"][1:]
    assert [body.get("position_intent") for body in bodies] == [
        "sell_to_close",
        "sell_to_open",
        None,
    ]
    await run.close()


@pytest.mark.parametrize("named", [{"symbol": None, "side": None}, {"symbol": "", "side": ""}, {}])
async def test_orders_of_several_legs_beside_ours_do_no_harm(
    stage: AlpacaStage, named: dict[str, Any]
) -> None:
    body = {"symbol": "X", "qty": "1", "side": "buy", "type": "market", "time_in_force": "day"}
    for legs in (stage.account.submit(body), stage.account.submit(body)):
        del legs.json["symbol"], legs.json["side"]
        legs.json |= named
    run = await stage.open_session()
    stage.account.cancel(legs.json["id"])
    sent = await run.buy("1", "50")
    await run.expect([E.ACCEPTED], sent)
    snapshot = await run.broker.snapshot(await stage.now() - timedelta(days=1), ())
    assert [order.broker_order_id for order in snapshot.open_orders] == [
        sent.result.broker_order_id
    ]
    assert run.gaps == []
    assert {event.symbol for event in (*run.received, *snapshot.executions)} == {stage.symbol}
    await run.close()


async def test_activities_that_are_no_trades_do_no_harm(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    await run.quote("99", "100")
    await run.expect_filled("1", await run.buy("1", "100"))
    fill = stage.account.activities[0]
    dividend = {
        **fill,
        "activity_type": "DIV",
        "ref_id": "d",
        "details": {"symbol": None, "per_share_amount": "1"},
    }
    stage.account.activities += [
        dividend,
        {key: value for key, value in dividend.items() if key != "details"},
    ]
    snapshot = await run.broker.snapshot(await stage.now() - timedelta(days=1), ())
    assert [each.exec_id for each in snapshot.executions if each.exec_id] == [fill["ref_id"]]
    await run.close()


async def test_a_balance_is_reported_without_a_trade(stage: AlpacaStage) -> None:
    broker = AlpacaBroker(stage.context(), watch_seconds=0.1)
    await broker.open()
    stage.account.cash = Decimal("123.45")
    async with asyncio.timeout(10):
        async for event in broker.events():
            assert isinstance(event, BrokerBalance)
            assert (event.cash, event.equity, event.currency) == (
                Decimal("123.45"),
                Decimal("123.45"),
                "USD",
            )
            break
    await broker.close()


async def test_a_command_under_way_ends_though_the_session_is_closed(cuts: Cuts) -> None:
    """It leaves no connection behind: pytest fails where one is collected open."""
    stage, cut, proxy = cuts
    run = await stage.open_session()
    cut.text = b"POST /v2/orders"
    cut.verdict = Verdict.HOLD
    sending = [asyncio.create_task(buy(run)) for _ in range(3)]
    await asyncio.to_thread(proxy.held.wait, 5)
    await run.close()
    proxy.work()
    outcomes = {(await each).result.outcome for each in sending}
    assert outcomes <= {Outcome.ACKED, Outcome.UNKNOWN, Outcome.NOT_SENT}
    assert len(stage.account.arrived) <= 3
    assert (await buy(run)).result.outcome is Outcome.NOT_SENT


async def test_a_second_stream_is_refused_and_breaks_nothing(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    second = await stage.open_session()
    assert "429" in str(second.missing)
    await second.close()
    assert stage.simulator.refused_streams == 1
    await run.expect([E.ACCEPTED], await run.buy("1", "50"))
    await run.close()


async def test_what_alpaca_replaces_of_others_stays_theirs_and_is_asked_for_once(
    stage: AlpacaStage,
) -> None:
    """Orders of Alpaca's own pages have ids that Alpaca made as well."""
    run = await stage.open_session()
    body = {
        "symbol": stage.symbol,
        "qty": "5",
        "side": "buy",
        "type": "limit",
        "time_in_force": "day",
    }
    theirs = stage.account.submit({**body, "limit_price": "50"})
    made = stage.account.replace(theirs.json["id"], {"limit_price": "51"})
    stage.account.fill(made, Decimal(2), Decimal(51))
    since = await stage.now() - timedelta(days=1)
    for _ in range(2):
        before = len(stage.simulator.exchanges)
        snapshot = await run.broker.snapshot(since, ())
        (order,) = snapshot.open_orders
        assert (order.client_order_id, order.broker_order_id) == (
            theirs.json["client_order_id"],
            made.json["id"],
        )
        (bought,) = [each for each in snapshot.executions if each.kind is E.FILL]
        assert bought.client_order_id == theirs.json["client_order_id"]
    asked = [each.path for each in stage.simulator.exchanges[before:]]
    assert not any(each.startswith("/v2/orders/") for each in asked)
    await run.close()
