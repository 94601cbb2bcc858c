"""Fees that Alpaca takes from the coin itself: listed later and without an order, booked once."""

from datetime import timedelta
from decimal import Decimal
from functools import partial

import pytest

from tests.brokers.alpaca.in_process import AlpacaExecution, integration, open_alpaca
from tests.brokers.alpaca.simulator import Simulator
from tests.brokers.alpaca.stage import AlpacaStage
from tests.conftest import Urls
from tests.execution.in_process_execution import executing
from trading_intents.brokers.alpaca.broker import AlpacaBroker
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.intents.model import Create, Spec
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

D = Decimal
COIN = "BTC/USD"


async def holds(alpaca: AlpacaExecution, quantity: str, differs: bool) -> bool:
    owner = alpaca.in_process.in_process_writer.owner
    row = await owner.fetchrow("SELECT quantity, broker_quantity, differs FROM holdings")
    held = alpaca.account.positions[COIN][0]
    return row is not None and (row["quantity"], row["broker_quantity"], row["differs"]) == (
        D(quantity),
        held,
        differs,
    )


@pytest.mark.parametrize("activities_status", [200, 404])
async def test_a_fee_that_is_taken_from_the_coin_is_booked_and_the_rest_can_be_sold(
    urls: Urls, simulator: Simulator, activities_status: int
) -> None:
    simulator.activities_status = activities_status
    made = integration(simulator, per_minute=None, watch_seconds=0.05)
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=made),
    ):
        in_process = alpaca.in_process
        bought = await in_process.create("2", COIN)
        await in_process.until_status(bought, "NEW")
        alpaca.account.fill(await alpaca.order(bought), D(2), D(100))
        alpaca.account.take_fee(COIN, D("0.005"))
        await in_process.until_status(bought, "FILLED")
        simulator.break_connections()
        await in_process.until(partial(holds, alpaca, "2", True))
        alpaca.account.list_fee(COIN, D("0.005"))
        await in_process.until(partial(holds, alpaca, "1.995", False))
        simulator.break_connections()  # the next snapshot has the fee again
        sale = Create(
            Symbol(COIN),
            OrderSide.SELL,
            RouteStrategy.SMART,
            Spec(
                kind=OrderKind.LIMIT,
                quantity="1.995",
                limit_price="90",
                stop_price=None,
                trail_amount=None,
            ),
        )
        receipt = await in_process.submit(
            in_process.in_process_writer.command(in_process.account, sale)
        )
        await in_process.until_true(lambda: len(alpaca.account.arrived) == 2)
        sold = alpaca.account.by_client[alpaca.account.arrived[1]]
        alpaca.account.fill(sold, D("1.995"), D(90))
        simulator.break_connections()
        await in_process.until(partial(holds, alpaca, "0", False))
        assert receipt.intent_id


async def test_fees_are_reported_under_one_key_by_snapshots_and_while_the_session_lasts(
    stage: AlpacaStage,
) -> None:
    fees = [stage.account.list_fee(COIN, D(quantity)) for quantity in ("0.005", "-0.001")]
    broker = AlpacaBroker(stage.context(), watch_seconds=0.05)
    await broker.open()
    snapshot = await broker.snapshot(await stage.now() - timedelta(days=1), ())
    reported = [each for each in snapshot.executions if each.kind is EventKind.FEE]
    assert [(each.symbol, each.quantity) for each in reported] == [
        (COIN, D("0.005")),
        (COIN, D("-0.001")),
    ]
    assert [each.dedupe_key for each in reported] == [
        f"alpaca:fee:{fee['id'].split('::')[1]}" for fee in fees
    ]
    streamed = list[BrokerEvent]()
    async for event in broker.events():
        if isinstance(event, BrokerEvent):
            streamed.append(event)
        if len(streamed) == 2:
            break
    assert streamed == reported
    await broker.close()


async def test_all_pages_of_fees_are_read(stage: AlpacaStage) -> None:
    for number in range(205):
        stage.account.list_fee(COIN, D(number + 1))
    broker = AlpacaBroker(stage.context())
    snapshot = await broker.snapshot(await stage.now() - timedelta(hours=1), ())
    assert [each.quantity for each in snapshot.executions] == [
        D(number + 1) for number in range(205)
    ]
    await broker.close()


async def test_fees_that_are_no_quantity_of_a_coin_are_not_booked(stage: AlpacaStage) -> None:
    """Those in money change no position; those that are cancelled, or of no pair, are named."""
    money = stage.account.list_fee(COIN, D(1))
    money |= {"qty": "0", "net_amount": "-1.25"}
    stage.account.list_fee(COIN, D(2), status="canceled")
    stage.account.list_fee("USD", D(3))
    stage.account.list_fee(COIN, D(4))
    broker = AlpacaBroker(stage.context())
    snapshot = await broker.snapshot(await stage.now() - timedelta(hours=1), ())
    assert [each.quantity for each in snapshot.executions] == [D(4)]
    assert sorted(text.split(":")[0] for text in snapshot.unreadable) == ["FeeActivity"] * 2
    await broker.close()


async def test_an_alpaca_that_lists_no_fees_says_so_and_is_read_all_the_same(
    stage: AlpacaStage,
) -> None:
    stage.simulator.has_fees = False
    broker = AlpacaBroker(stage.context())
    snapshot = await broker.snapshot(await stage.now() - timedelta(hours=1), ())
    assert "/v2/account/activities/CFEE 422" in " ".join(snapshot.remarks)
    await broker.close()
