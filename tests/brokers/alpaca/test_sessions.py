"""Sessions: only Alpaca's own answer ends one for good, no watchdog ends one that has reported
everything, and CANCELs pass while it lasts."""

import asyncio
import re
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.brokers.alpaca.in_process import integration, open_alpaca
from tests.brokers.alpaca.simulator import Fault, Simulator
from tests.brokers.alpaca.stage import AlpacaStage
from tests.brokers.sought import sought
from tests.conftest import Urls
from tests.execution.in_process_execution import executing
from tests.waiting import eventually_async
from trading_intents.brokers.alpaca.broker import AlpacaBroker
from trading_intents.brokers.port import (
    AuthFailed,
    BrokerUnavailable,
    EventKind,
    LookupUnknown,
    Outcome,
)
from trading_intents.brokers.rest_client import MIN_SKEW
from trading_intents.clock import SystemClock
from trading_intents.telemetry import Metrics
from trading_intents.testing.broker_suite import CardRun, deadline
from trading_intents.trading import OrderSide

D = Decimal
E = EventKind
KEPT_FOR_CANCELS = 20
ACTIVITIES = "/v2beta1/events/activities"
FILLS = "/v2/account/activities/FILL"
MARKET_ORDER = {"symbol": "X", "qty": "9", "side": "buy", "type": "market", "time_in_force": "day"}


class SlowClock(SystemClock):
    """A clock behind Alpaca's, by less than its answers show."""

    def now(self) -> datetime:
        return datetime.now(UTC) - MIN_SKEW * 0.75


async def until_watched(simulator: Simulator, path: str = ACTIVITIES, times: int = 20) -> None:
    """Waits until a stream was compared with REST several times."""
    before = len(simulator.exchanges)

    async def is_compared() -> bool:
        return sum(each.path == path for each in simulator.exchanges[before:]) >= times

    await eventually_async(is_compared, 15)


async def test_a_stream_that_has_an_error_does_not_refuse_the_credential(
    stage: AlpacaStage,
) -> None:
    """AuthFailed would end the account's session until somebody stores another credential."""
    stage.simulator.has_stream_errors = True
    run = await stage.open_session()
    assert run.missing
    await run.buy("1", "50")
    await run.close()


async def test_a_stream_that_has_moved_is_not_sent_the_credential(stage: AlpacaStage) -> None:
    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(writer)
        writer.close()

    reached: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(take, "127.0.0.1", 0) as elsewhere:
        stage.simulator.stream_moved_to = (
            f"ws://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/stream"
        )
        run = await stage.open_session()
        assert "307" in str(run.missing)
        await run.close()
    assert reached == []


async def test_an_alpaca_that_cannot_be_reached_is_named_with_the_cause(stage: AlpacaStage) -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for call in (AlpacaBroker.open, lambda broker: broker.snapshot(datetime.now(UTC), ())):
        broker = AlpacaBroker(changed(stage, url=f"http://{host}").context())
        with pytest.raises(
            BrokerUnavailable,
            match=f"{host} cannot be reached: ConnectionRefusedError: .*refused|call",
        ):
            await call(broker)
        await broker.close()


async def test_a_page_that_is_not_alpacas_does_not_refuse_the_credential(
    stage: AlpacaStage,
) -> None:
    stage.simulator.faults.append(Fault("page", takes=False, methods=("GET",), status=403))
    with pytest.raises(BrokerUnavailable):
        await stage.open_session()


@pytest.mark.parametrize("secret", ["SECRET\n", " SECRET", "SECRET ", "SECR\u00c9T", "SEC\x00RET"])
async def test_secrets_that_no_header_can_hold_are_refused(stage: AlpacaStage, secret: str) -> None:
    with pytest.raises(AuthFailed, match="refuses the credential"):
        await changed(stage, account=changed(stage.account, secret=secret)).open_session()


async def test_a_clock_that_is_days_off_is_reported(stage: AlpacaStage) -> None:
    stage.simulator.clock_skew_seconds = 2 * 86_400 + 30
    broker = AlpacaBroker(stage.context())
    (notice,) = (await broker.snapshot(datetime.now(UTC) - timedelta(minutes=1), ())).notices
    seconds = int(re.findall(r"differ by (\d+) s", notice)[0])
    assert abs(seconds - stage.simulator.clock_skew_seconds) < 5
    await broker.close()


async def test_a_cancel_by_client_order_id_takes_from_what_is_kept_for_cancels(
    stage: AlpacaStage,
) -> None:
    stage.simulator.limit_per_minute = 30
    run = await stage.open_session()
    resting = await run.buy("1", "50")
    outcomes = [
        (await run.send(run.ticket(OrderSide.BUY, "1", "50"))).result.outcome for _ in range(30)
    ]
    assert outcomes[-1] is Outcome.NOT_SENT
    assert (await run.cancel(resting, with_broker_id=False)).result.outcome is Outcome.ACKED
    await run.close()


async def test_a_refusal_is_unknown_if_its_look_up_is_unauthorized(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    unauthorized = Fault("status", takes=False, methods=("GET",), status=401)
    stage.simulator.faults += [Fault("refuse", takes=True), unauthorized]
    sent = await run.send(run.ticket(OrderSide.BUY, "1", "50"))
    assert (sent.result.outcome, len(stage.account.arrived)) == (Outcome.UNKNOWN, 1)
    await run.close()


async def test_a_clock_that_is_slow_makes_no_stream_mute(stage: AlpacaStage) -> None:
    """Only the snapshot reports what happened right before the stream began."""
    stage.account.fill(stage.account.submit(MARKET_ORDER), D(1), D(99))
    stage.account.submit(MARKET_ORDER)
    broker = AlpacaBroker(
        changed(stage.context(), clock=SlowClock()), mute_seconds=0.1, watch_seconds=0.1
    )
    run = CardRun(stage=stage, broker=broker)
    await run.open()
    await broker.snapshot(datetime.now(UTC) - timedelta(minutes=1), ())
    await until_watched(stage.simulator)
    assert not run.has_ended
    await run.close()


async def test_a_version_that_only_the_replaced_order_names_makes_no_stream_mute(
    stage: AlpacaStage,
) -> None:
    run = await stage.open_session(mute_seconds=0.1, watch_seconds=0.1)
    sent = await run.buy("5", "50")
    stage.account.streams_versions = False
    replaced = await run.replace(sent, "6", "51")
    await run.expect([E.ACCEPTED, E.REPLACED], sent, replaced)
    await until_watched(stage.simulator)
    assert not run.has_ended
    await run.close()


# Takes ten seconds: what is younger than `mute_seconds` is not yet compared.
@pytest.mark.slow
async def test_an_order_that_cannot_be_read_ends_no_session(stage: AlpacaStage) -> None:
    run = await stage.open_session(watch_seconds=0.3)
    # In an unknown zone.
    stage.account.submit(MARKET_ORDER).json["submitted_at"] = "2026-01-05T15:00:00"
    await until_watched(stage.simulator, times=2)
    assert not run.has_ended
    assert len((await run.snapshot()).unreadable) == 1
    assert (await run.snapshot()).unreadable == (), "it is named once"
    await run.close()


async def test_a_position_that_cannot_be_read_makes_none_zero(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    await run.quote("99", "100")
    await run.expect_filled("7", await run.buy("7"))
    stage.account.more_positions.append(
        {"symbol": "BAD", "qty": "NaN", "side": "long", "avg_entry_price": "1"}
    )
    snapshot = await run.snapshot()
    assert (snapshot.positions, len(snapshot.unreadable)) == (None, 1)
    await run.close()


def count_left_out(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value(
        "ti_execution_alerts_total", {"kind": "event_left_out"}
    )


@pytest.mark.parametrize("source", [ACTIVITIES, FILLS])
async def test_an_activity_that_cannot_be_read_is_left_out(
    urls: Urls, simulator: Simulator, source: str
) -> None:
    simulator.activities_status = 200 if source == ACTIVITIES else 404
    metrics = Metrics()
    async with open_alpaca(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        account = simulator.add(str(in_process.account), "SECRET")
        account.is_garbling = True
        account.fill(account.submit(MARKET_ORDER), D(1), D(50))
        async with executing(in_process, integration=integration(simulator), metrics=metrics):
            await alpaca.until_connected()
            await alpaca.work_order()
        assert count_left_out(metrics) == 1


@pytest.mark.parametrize(("status", "source"), [(200, ACTIVITIES), (404, FILLS)])
async def test_the_log_says_where_executions_come_from(
    urls: Urls, simulator: Simulator, capsys: pytest.CaptureFixture[str], status: int, source: str
) -> None:
    simulator.activities_status = status
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=integration(simulator), level="info"),
    ):
        await alpaca.until_connected()
    lines = [line for line in capsys.readouterr().err.splitlines() if "broker account read" in line]
    (line,) = [line for line in lines if str(alpaca.in_process.account) in line]
    assert f"executions come from {source}" in line


async def test_an_update_that_cannot_be_read_is_counted_and_ends_no_session(
    urls: Urls, simulator: Simulator
) -> None:
    metrics = Metrics()
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=integration(simulator), metrics=metrics),
    ):
        await alpaca.until_connected()
        (stream,) = alpaca.account.streams
        stream({"stream": "trade_updates", "data": {"event": 7}})
        await alpaca.in_process.until_true(lambda: count_left_out(metrics) == 1)
        await alpaca.work_order()
        assert alpaca.account.streams == [stream]


@pytest.mark.parametrize(
    "frame", ["nonsense", {"stream": "trade_updates", "data": {"event": 7}}, {"stream": "other"}]
)
async def test_frames_before_the_acknowledgement_end_no_session(
    stage: AlpacaStage, frame: dict[str, object] | str
) -> None:
    order = stage.account.submit(MARKET_ORDER)
    early = {
        "stream": "trade_updates",
        "data": {"event": "new", "order": order.json, "execution_id": "e"},
    }
    stage.simulator.early_frames = [frame, early]
    run = await stage.open_session()
    assert run.missing is None, "the stream itself is used, and nothing stands in for it"
    await run.quote("99", "100")
    await run.expect_filled("1", await run.buy("1"))
    assert {each.broker_order_id for each in run.received} > {order.json["id"]}, (
        "an early update is reported too"
    )
    await run.close()


async def test_an_execution_that_is_listed_late_is_in_the_next_snapshot(stage: AlpacaStage) -> None:
    """Otherwise the count of its order would stand in for it for ever, and a version has no
    count."""
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    stage.simulator.is_mute = True
    stage.account.fill(stage.account.by_client[sent.ticket.client_order_id], D(1), D(50))
    late = stage.account.activities.pop()
    first = await run.broker.snapshot(datetime.now(UTC) - timedelta(seconds=30), ())
    stage.account.activities.append(late)
    second = await run.broker.snapshot(datetime.now(UTC), ())
    assert [
        late["ref_id"] in {event.exec_id for event in each.executions} for each in (first, second)
    ] == [False, True]
    await run.close()


async def test_fills_of_the_older_list_come_page_by_page(stage: AlpacaStage) -> None:
    stage.simulator.activities_status = 404
    order = stage.account.submit({**MARKET_ORDER, "qty": "300"})
    for _ in range(250):
        stage.account.fill(order, D(1), D(50))
    broker = AlpacaBroker(stage.context())
    executions = (await broker.snapshot(datetime.now(UTC) - timedelta(minutes=1), ())).executions
    assert [event.cum_quantity for event in executions] == [D(count) for count in range(1, 251)]
    await broker.close()


async def test_a_stream_that_lacks_a_fill_of_the_older_list_is_mute(stage: AlpacaStage) -> None:
    stage.simulator.activities_status = 404
    run = await stage.open_session(mute_seconds=0.1, watch_seconds=0.1)
    sent = await run.buy("5", "50")
    order = stage.account.by_client[sent.ticket.client_order_id]
    stage.account.fill(order, D(1), D(50))
    await until_watched(stage.simulator, FILLS, 3)
    assert not run.has_ended
    stage.simulator.is_mute = True
    stage.account.fill(order, D(1), D(50))

    async def has_ended() -> bool:
        return run.has_ended

    await eventually_async(has_ended, 20)
    await run.close()


async def test_a_look_up_of_versions_waits_for_their_executions(stage: AlpacaStage) -> None:
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    replaced = await run.replace(sent, "6", "51")
    version = stage.account.by_client[replaced.ticket.client_order_id]
    busted = stage.account.fill(version, D(2), D(50))
    stage.account.bust(busted)
    stage.account.fill(version, D(6), D(50))
    late = stage.account.activities.pop()
    assert isinstance(
        await run.broker.lookup(sought(sent.ticket.client_order_id), deadline()), LookupUnknown
    )
    stage.account.activities.append(late)
    assert late["ref_id"] in {event.exec_id for event in (await run.found(sent)).events}
    await run.close()


async def test_a_slow_clock_hides_no_execution(stage: AlpacaStage) -> None:
    run = CardRun(stage=stage, broker=AlpacaBroker(changed(stage.context(), clock=SlowClock())))
    await run.open()
    sent = await run.buy("5", "50")
    replaced = await run.replace(sent, "6", "51")
    execution = stage.account.fill(
        stage.account.by_client[replaced.ticket.client_order_id], D(1), D(50)
    )
    snapshot = await run.broker.snapshot(datetime.now(UTC) - timedelta(minutes=1), ())
    for events in (snapshot.executions, (await run.found(sent)).events):
        assert execution in {event.exec_id for event in events}
    await run.close()


async def test_a_version_is_read_when_requests_are_free_again(stage: AlpacaStage) -> None:
    run = await stage.open_session(watch_seconds=0.5)
    sent = await run.buy("5", "50")
    stage.account.holds_replaces = True
    stage.account.streams_versions = False
    replaced = await run.replace(sent, "6", "51")
    stage.simulator.use_up(stage.account, KEPT_FOR_CANCELS + 1, seconds=1)
    await run.buy("1", "50")  # Alpaca's answer says how many are left
    stage.account.settle()
    await run.expect([E.ACCEPTED, E.REPLACED], sent, replaced)
    assert run.gaps == []
    await run.close()


async def test_a_replaced_order_ends_no_session_whose_requests_are_used_up(
    urls: Urls, simulator: Simulator
) -> None:
    """Alpaca could not be asked for a snapshot either, and CANCELs would wait until it can."""
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=integration(simulator)),
    ):
        in_process = alpaca.in_process
        await alpaca.until_connected()
        replaced, cancelled = [await alpaca.work_order() for _ in range(2)]
        alpaca.account.holds_replaces = True
        alpaca.account.streams_versions = False
        await in_process.replace(replaced, "12")
        await in_process.until_true(lambda: len(alpaca.account.orders) == 3)
        (stream,) = alpaca.account.streams
        simulator.use_up(alpaca.account, KEPT_FOR_CANCELS + 1)
        await alpaca.work_order()  # Alpaca's answer says how many are left
        alpaca.account.settle()
        await in_process.cancel(cancelled)
        await in_process.until_status(cancelled, "CANCELLED")
        assert alpaca.account.streams == [stream]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_credential_that_worked_is_tried_again(
    urls: Urls, simulator: Simulator, status: int
) -> None:
    """Alpaca refuses valid keys now and then: neither one refusal nor some minutes of them end an
    account for good."""
    simulator.unauthorized_status = status
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=integration(simulator)),
    ):
        await alpaca.until_connected()
        intent = await alpaca.work_order()
        alpaca.account.secret = "ANOTHER"
        await alpaca.in_process.cancel(intent)
        if status == 403:  # of a command it says nothing about the credential
            simulator.break_connections()

        async def is_rejected() -> bool:
            return await alpaca.in_process.connection() == "credential_rejected"

        await alpaca.in_process.until(is_rejected)
        alpaca.account.secret = "SECRET"
        await alpaca.in_process.until_status(intent, "CANCELLED")
        await alpaca.until_connected()
