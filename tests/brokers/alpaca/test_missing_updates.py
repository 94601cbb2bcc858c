"""Commands are sent while REST answers and the update stream does not; their outcome is read, and
reported once."""

import contextlib
from collections.abc import AsyncIterator
from decimal import Decimal
from functools import partial

import pytest

from tests.brokers.alpaca.in_process import AlpacaExecution, integration, open_alpaca
from tests.brokers.alpaca.simulator import Fault, Simulator
from tests.brokers.alpaca.stage import AlpacaStage
from tests.conftest import Urls
from tests.execution.halt_calls import halt, until
from tests.execution.in_process_execution import executing
from tests.waiting import eventually_async
from trading_intents.brokers import streamed_session
from trading_intents.brokers.port import EventKind, Outcome, StreamBack
from trading_intents.trading import OrderSide

D = Decimal
E = EventKind
POLL_SECONDS = 0.2
polled = partial(integration, poll_seconds=POLL_SECONDS)


async def until_shown(alpaca: AlpacaExecution, connection: str) -> None:
    async def is_shown() -> bool:
        return await alpaca.in_process.connection() == connection

    await alpaca.in_process.until(is_shown)


async def until_polled(simulator: Simulator, times: int = 3) -> None:
    """Waits until executions were read several times."""
    before = len(simulator.exchanges)

    async def is_polled() -> bool:
        return sum("activities" in each.path for each in simulator.exchanges[before:]) >= times

    await eventually_async(is_polled, 15)


@contextlib.asynccontextmanager
async def trading(urls: Urls, simulator: Simulator) -> AsyncIterator[AlpacaExecution]:
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=polled(simulator)),
    ):
        await alpaca.until_connected()
        yield alpaca


async def lose_updates(alpaca: AlpacaExecution) -> None:
    """The stream breaks, and every new one is refused."""
    alpaca.simulator.refuses_streams = True
    alpaca.simulator.break_connections()
    await until_shown(alpaca, "connecting")


async def test_commands_and_fills_pass_without_updates_and_once(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        cancelled, filled, replaced = [await alpaca.work_order() for _ in range(3)]
        await lose_updates(alpaca)
        await in_process.cancel(cancelled)
        await in_process.until_status(cancelled, "CANCELLED")
        created = await alpaca.work_order()
        alpaca.account.fill(await alpaca.order(created), D(10), D(99))
        alpaca.account.fill(await alpaca.order(filled), D(4), D(98))
        await in_process.until_status(created, "FILLED")
        await in_process.until_status(filled, "PARTIALLY_FILLED")
        await in_process.replace(replaced, "12")

        async def is_replaced() -> bool:
            return bool((await in_process.order(replaced))["quantity"] == 12)

        await in_process.until(is_replaced)
        assert await in_process.connection() == "connecting"
        simulator.refuses_streams = False
        await until_shown(alpaca, "connected")
        alpaca.account.fill(await alpaca.order(filled), D(6), D(97))
        row = await in_process.until_status(filled, "FILLED")
        assert row["flags"] == []
        assert sorted(await alpaca.trades(filled)) == [("4", "98", []), ("6", "97", [])]
        assert await alpaca.trades(created) == [("10", "99", [])]
        assert len(alpaca.account.arrived) == len(set(alpaca.account.arrived)) == 5
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 20
        )


@pytest.mark.usefixtures("soon")
async def test_a_halts_cancels_pass_without_updates(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator) as alpaca:
        intents = [await alpaca.work_order() for _ in range(3)]
        await lose_updates(alpaca)
        await until(alpaca.in_process, await halt(alpaca.in_process), state="done")
        assert [(await alpaca.order(each)).json["status"] for each in intents] == ["canceled"] * 3
        assert await alpaca.in_process.connection() == "connecting"


async def test_a_stream_that_does_not_answer_keeps_no_session_waiting(
    urls: Urls, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_session, "SUBSCRIBE_SECONDS", POLL_SECONDS)
    simulator.leaves_streams_waiting = True
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=polled(simulator)),
    ):
        intent = await alpaca.work_order()
        alpaca.account.fill(await alpaca.order(intent), D(10), D(99))
        await alpaca.in_process.until_status(intent, "FILLED")
        assert await alpaca.in_process.connection() == "connecting"


async def test_the_end_of_a_command_is_reported_without_updates(stage: AlpacaStage) -> None:
    """Also of an order that ended before it was ever listed as open."""
    stage.simulator.refuses_streams = True
    run = await stage.open_session(poll_seconds=POLL_SECONDS)
    resting = await run.buy("5", "50")
    await until_polled(stage.simulator)
    stage.account.holds_replaces = True
    refused = await run.replace(resting, "6", "51")
    stage.account.reject_replace(stage.account.by_client[resting.ticket.client_order_id].json["id"])
    stage.account.holds_replaces = False
    await run.expect([E.ACCEPTED, E.REPLACE_REJECTED], resting, refused)
    at_once = await run.buy("1", "50")
    stage.account.end(stage.account.by_client[at_once.ticket.client_order_id], "expired")
    await run.expect([E.ACCEPTED, E.EXPIRED], at_once)
    await run.close()
    assert run.has_ended


async def test_a_read_event_is_reported_once_and_so_is_the_return_of_updates(
    stage: AlpacaStage,
) -> None:
    stage.simulator.refuses_streams = True
    run = await stage.open_session(poll_seconds=POLL_SECONDS)
    sent = await run.buy("5", "50")
    stage.account.fill(stage.account.by_client[sent.ticket.client_order_id], D(1), D(50))
    await run.expect_filled("1", sent)
    await until_polled(stage.simulator)
    assert len(run.received) == len(set(run.received))
    stage.simulator.refuses_streams = False

    async def is_back() -> bool:
        return bool(run.gaps)

    await eventually_async(is_back, 15)
    assert [type(gap) for gap in run.gaps] == [StreamBack]
    stage.account.fill(stage.account.by_client[sent.ticket.client_order_id], D(4), D(50))
    await run.expect_filled("5", sent)
    await run.close()


async def test_an_answer_that_is_missing_hides_nothing_without_updates(stage: AlpacaStage) -> None:
    """Neither the execution nor the end of the order, which was read already."""
    stage.simulator.refuses_streams = True
    run = await stage.open_session(poll_seconds=POLL_SECONDS)
    sent = await run.buy("5", "50")
    await until_polled(stage.simulator)
    stage.simulator.activities_status = 500
    stage.simulator.faults += [Fault("status", takes=False, methods=("GET",)) for _ in range(2)]
    order = stage.account.by_client[sent.ticket.client_order_id]
    stage.account.fill(order, D(2), D(50))
    stage.account.end(order, "canceled")
    await until_polled(stage.simulator)
    stage.simulator.activities_status = 200
    await run.expect([E.ACCEPTED, E.FILL, E.CANCELLED], sent)
    await run.close()


async def test_a_refused_credential_ends_a_session_without_updates(stage: AlpacaStage) -> None:
    stage.simulator.refuses_streams = True
    run = await stage.open_session(poll_seconds=60)
    stage.account.secret = "ANOTHER"
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "50"))
    assert sent.result.outcome is Outcome.NOT_SENT
    await run.expect_end()
    await run.close()
