"""Events at Alpaca from while nobody listened are recorded once: fills, busts, corrections,
replaces, old orders."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

import pytest

from tests.brokers.alpaca.in_process import AlpacaExecution, integration, open_alpaca, trading
from tests.brokers.alpaca.order import stamp
from tests.brokers.alpaca.simulator import Fault, Simulator
from tests.brokers.alpaca.stage import AlpacaStage
from tests.conftest import Urls
from tests.execution.in_process_execution import executing
from trading_intents.brokers.port import Outcome

D = Decimal
BY_BROKER = "replaced_by_broker"
watched = partial(integration, mute_seconds=0.3, watch_seconds=0.3)


async def down(alpaca: AlpacaExecution) -> None:
    """Nobody reaches Alpaca any more; its books go on."""
    await alpaca.simulator.stop()

    async def is_disconnected() -> bool:
        return await alpaca.in_process.connection() != "connected"

    await alpaca.in_process.until(is_disconnected)


async def test_fills_while_alpaca_was_away_are_booked_once(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        order = await alpaca.order(intent)
        alpaca.account.fill(order, D(2), D(99))
        await in_process.until_status(intent, "PARTIALLY_FILLED")
        await down(alpaca)
        alpaca.account.fill(order, D(3), D(98))
        alpaca.account.fill(order, D(5), D(97))
        await simulator.start()
        row = await in_process.until_status(intent, "FILLED")
        assert (row["flags"], row["average_price"]) == ([], D("97.7"))
        assert sorted(await alpaca.trades(intent)) == [
            ("2", "99", []),
            ("3", "98", []),
            ("5", "97", []),
        ]
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 10
        )


async def test_busts_and_corrections_while_alpaca_was_away_are_booked(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        order = await alpaca.order(intent)
        first, second = (alpaca.account.fill(order, D(quantity), D(99)) for quantity in (3, 4))
        await in_process.until_status(intent, "PARTIALLY_FILLED")
        await down(alpaca)
        alpaca.account.bust(first)
        alpaca.account.correct(second, D(2), D(95))
        await simulator.start()

        async def is_corrected() -> bool:
            return bool((await in_process.order(intent))["filled_quantity"] == 2)

        await in_process.until(is_corrected)
        assert await alpaca.trades(intent) == [("2", "95", ["corrected"])]
        owner = in_process.in_process_writer.owner
        assert await owner.fetchval("SELECT quantity FROM holdings") == 2
        assert alpaca.account.positions["AAPL"][0] == 2


async def test_a_bust_and_a_correction_come_by_the_stream_too(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        order = await alpaca.order(intent)
        first, second = (alpaca.account.fill(order, D(quantity), D(99)) for quantity in (3, 4))
        alpaca.account.bust(first)
        alpaca.account.correct(second, D(2), D(95))

        async def is_corrected() -> bool:
            return await alpaca.trades(intent) == [("2", "95", ["corrected"])]

        await in_process.until(is_corrected)


async def test_an_old_order_that_was_filled_meanwhile_is_found(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        order = await alpaca.order(intent)
        order.json["submitted_at"] = order.json["created_at"] = stamp(
            datetime.now(UTC) - timedelta(days=40)
        )
        await down(alpaca)
        alpaca.account.fill(order, D(10), D(99))
        await simulator.start()
        await in_process.until_status(intent, "FILLED")
        assert await alpaca.trades(intent) == [("10", "99", [])]


async def test_what_ended_while_alpaca_was_away_has_ended(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intents = [await alpaca.work_order() for _ in range(3)]
        await in_process.replace(intents[2], "12")

        async def is_replaced() -> bool:
            return bool((await in_process.order(intents[2]))["quantity"] == 12)

        await in_process.until(is_replaced)
        orders = [await alpaca.order(intent) for intent in intents]
        await down(alpaca)
        alpaca.account.fill(orders[0], D(4), D(99))
        alpaca.account.end(orders[0], "canceled")
        alpaca.account.end(orders[1], "expired")
        replacing = alpaca.account.orders[orders[2].json["replaced_by"]]
        alpaca.account.fill(replacing, D(12), D(99))
        await simulator.start()
        assert (await in_process.until_status(intents[0], "CANCELLED"))["filled_quantity"] == 4
        await in_process.until_status(intents[1], "EXPIRED")
        await in_process.until_status(intents[2], "FILLED")


async def test_a_replace_that_was_refused_while_alpaca_was_away_is_dropped(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        alpaca.account.holds_replaces = True
        await in_process.replace(intent, "12")
        await in_process.until_true(lambda: len(alpaca.account.orders) == 2)
        await down(alpaca)
        alpaca.account.reject_replace((await alpaca.order(intent)).json["id"])
        await simulator.start()
        row = await in_process.until_status(intent, "NEW")
        assert (row["quantity"], row["pending_replace_seq"]) == (10, None)


@pytest.mark.parametrize("is_away", [False, True], ids=["while we listen", "while we are away"])
async def test_an_order_that_alpaca_replaces_itself_is_the_same_order(
    urls: Urls, simulator: Simulator, is_away: bool
) -> None:
    """As it does at a split: under a client order id of its own."""
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intents = filled, cancelled, replaced = [await alpaca.work_order() for _ in range(3)]
        orders = [await alpaca.order(intent) for intent in intents]
        if is_away:
            await down(alpaca)
        changed = [
            alpaca.account.replace(order.json["id"], {"qty": "20", "limit_price": "50"}).json["id"]
            for order in orders
        ]
        if is_away:
            await simulator.start()

        async def is_shown() -> bool:
            rows = [await in_process.order(intent) for intent in intents]
            return all(
                (row["quantity"], row["limit_price"], row["reason"]) == (20, 50, BY_BROKER)
                for row in rows
            )

        await in_process.until(is_shown)
        assert [
            (await in_process.order(intent))["external_order_id"] for intent in intents
        ] == changed
        alpaca.account.fill(alpaca.account.orders[changed[0]], D(15), D(50))
        await in_process.until_status(filled, "PARTIALLY_FILLED")
        await down(alpaca)
        alpaca.account.fill(alpaca.account.orders[changed[0]], D(5), D(49))
        await simulator.start()
        row = await in_process.until_status(filled, "FILLED")
        assert (row["filled_quantity"], row["flags"]) == (20, [])
        await in_process.cancel(cancelled)
        await in_process.until_status(cancelled, "CANCELLED")
        await in_process.replace(replaced, "25")

        async def is_replaced() -> bool:
            row = await in_process.order(replaced)
            return bool((row["quantity"], row["reason"]) == (25, None))

        await in_process.until(is_replaced)
        alpaca.account.fill(
            alpaca.account.orders[(await in_process.order(replaced))["external_order_id"]],
            D(25),
            D(50),
        )
        await in_process.until_status(replaced, "FILLED")
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 45
        )


async def test_a_replace_reaches_the_version_that_alpaca_made_before_we_knew(
    stage: AlpacaStage,
) -> None:
    run = await stage.open_session()
    sent = await run.buy("5", "50")
    made = stage.account.replace(sent.result.broker_order_id or "", {"limit_price": "51"})
    changed = await run.replace(sent, "6", "52")
    assert changed.result.outcome is Outcome.ACKED, changed.result
    assert (
        stage.account.by_client[changed.ticket.client_order_id].json["replaces"] == made.json["id"]
    )
    await run.close()


async def test_our_own_restart_in_the_middle_loses_nothing(
    urls: Urls, simulator: Simulator
) -> None:
    async with open_alpaca(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        made = integration(simulator)
        async with executing(in_process, integration=made):
            await alpaca.until_connected()
            intent = await alpaca.work_order()
            alpaca.account.fill(await alpaca.order(intent), D(1), D(99))
        alpaca.account.fill(await alpaca.order(intent), D(2), D(98))
        async with executing(in_process, integration=made):
            alpaca.account.fill(await alpaca.order(intent), D(7), D(97))
            row = await in_process.until_status(intent, "FILLED")
        assert (row["flags"], row["filled_quantity"]) == ([], 10)
        assert len(await alpaca.trades(intent)) == 3
        assert len(alpaca.account.arrived) == 1


async def test_a_mute_stream_is_found_and_opened_anew(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator, watched(simulator)) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        (stream,) = alpaca.account.streams
        simulator.is_mute = True
        alpaca.account.fill(await alpaca.order(intent), D(10), D(99))
        await in_process.until_true(lambda: stream not in alpaca.account.streams)
        simulator.is_mute = False
        await in_process.until_status(intent, "FILLED")
        assert await alpaca.trades(intent) == [("10", "99", [])]


async def test_an_order_that_is_final_by_its_count_gets_its_execution(
    urls: Urls, simulator: Simulator
) -> None:
    """A CANCEL that comes too late counts the order as filled; nothing is open then, and the
    execution comes after."""
    async with trading(urls, simulator, integration(simulator)) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        simulator.is_mute = True
        alpaca.account.fill(await alpaca.order(intent), D(10), D(99))
        await in_process.cancel(intent)
        await in_process.until_status(intent, "FILLED")
        assert await alpaca.trades(intent) == [("10", "99", ["gap"])]
        simulator.is_mute = False
        simulator.break_connections()

        async def is_known() -> bool:
            return await alpaca.trades(intent) == [("10", "99", [])]

        await in_process.until(is_known)


async def test_a_stream_that_reports_no_new_orders_is_mute(
    urls: Urls, simulator: Simulator
) -> None:
    async with trading(urls, simulator, watched(simulator)) as alpaca:
        in_process = alpaca.in_process
        (stream,) = alpaca.account.streams
        simulator.is_mute = True
        await alpaca.work_order()
        await in_process.until_true(lambda: stream not in alpaca.account.streams)


async def test_a_stream_with_nothing_to_report_stays_open(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator, watched(simulator, per_minute=None)) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        alpaca.account.fill(await alpaca.order(intent), D(4), D(99))
        await in_process.until_status(intent, "PARTIALLY_FILLED")
        (stream,) = alpaca.account.streams
        asked = partial(_count, simulator, "/v2beta1/events/activities")
        before = asked()
        await in_process.until_true(lambda: asked() >= before + 3)
        assert alpaca.account.streams == [stream]


def _count(simulator: Simulator, path: str) -> int:
    return sum(each.path == path for each in simulator.exchanges)


async def test_a_lost_answer_is_settled_by_a_look_up(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        simulator.is_mute = True
        for fault in (
            Fault("close", takes=True),
            Fault("half", takes=True),
            Fault("status", takes=True),
        ):
            simulator.faults.append(fault)
            await alpaca.work_order()
        simulator.faults.append(Fault("refuse", takes=True))
        await alpaca.work_order()
        assert len(alpaca.account.arrived) == 4
        simulator.faults.append(Fault("refuse", takes=False))
        row = await in_process.until_status(await in_process.create(), "REJECTED")
        assert (row["reason"], row["detail"]) == ("40310000", "insufficient buying power")


async def test_a_cancel_goes_out_when_a_rate_limit_ends(urls: Urls, simulator: Simulator) -> None:
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=integration(simulator), attempt_limit=1),
    ):
        intent = await alpaca.work_order()
        simulator.faults.append(Fault("too_many", takes=False))
        await alpaca.in_process.cancel(intent)
        await alpaca.in_process.until_status(intent, "CANCELLED")


async def test_without_its_executions_an_account_does_not_connect(
    urls: Urls, simulator: Simulator
) -> None:
    simulator.activities_status = 404
    simulator.has_fills = False
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=integration(simulator)),
    ):
        asked = partial(_count, simulator, "/v2/account/activities/FILL")
        await alpaca.in_process.until_true(lambda: asked() >= 2)
        assert await alpaca.in_process.connection() != "connected"
        simulator.has_fills = True
        await alpaca.until_connected()


async def test_a_bust_that_is_dated_back_is_learnt(urls: Urls, simulator: Simulator) -> None:
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent = await alpaca.work_order()
        busted = alpaca.account.fill(await alpaca.order(intent), D(3), D(99))
        await in_process.until_status(intent, "PARTIALLY_FILLED")
        await down(alpaca)
        alpaca.account.bust(busted, dated=datetime.now(UTC) - timedelta(days=3))
        await simulator.start()

        async def is_busted() -> bool:
            return await alpaca.trades(intent) == []

        await in_process.until(is_busted)


@pytest.mark.parametrize("status", [404, 403])
async def test_without_the_activities_fills_come_from_the_older_list(
    urls: Urls, simulator: Simulator, status: int
) -> None:
    """Its rows have no execution ids: a fill that the stream or the activities report by its id is
    booked once."""
    async with trading(urls, simulator) as alpaca:
        in_process = alpaca.in_process
        intent, replaced = [await alpaca.work_order() for _ in range(2)]
        order, before = [await alpaca.order(each) for each in (intent, replaced)]
        alpaca.account.fill(order, D(2), D(99))
        alpaca.account.fill(before, D(1), D(96))
        for each in (intent, replaced):
            await in_process.until_status(each, "PARTIALLY_FILLED")
        await in_process.replace(replaced, "12")
        await in_process.until_true(lambda: before.json["replaced_by"] is not None)
        version = alpaca.account.orders[before.json["replaced_by"]]
        await down(alpaca)
        alpaca.account.fill(order, D(3), D(98))
        alpaca.account.fill(version, D(4), D(95))
        simulator.activities_status = status
        await simulator.start()

        async def has_fills(first: str, second: str) -> bool:
            quantities = [
                str((await in_process.order(each))["filled_quantity"])
                for each in (intent, replaced)
            ]
            return quantities == [first, second]

        await in_process.until(partial(has_fills, "5", "5"))
        alpaca.account.fill(order, D(5), D(97))
        alpaca.account.fill(version, D(2), D(94))
        await in_process.until(partial(has_fills, "10", "7"))
        stood_in = (
            [("2", "99", []), ("3", "98", ["gap"]), ("5", "97", [])],
            [("1", "96", []), ("4", "95", ["gap"])],
        )
        assert sorted(await alpaca.trades(intent)) == stood_in[0]
        assert sorted(await alpaca.trades(replaced)) == [
            *stood_in[1][:1],
            ("2", "94", []),
            *stood_in[1][1:],
        ]
        simulator.activities_status = 200
        await down(alpaca)
        await simulator.start()

        async def has_ids() -> bool:
            booked = [sorted(await alpaca.trades(each)) for each in (intent, replaced)]
            return not any(flags for trades in booked for _, _, flags in trades)

        await in_process.until(has_ids)
        assert await has_fills("10", "7")
        assert (
            await in_process.in_process_writer.owner.fetchval("SELECT quantity FROM holdings") == 17
        )
