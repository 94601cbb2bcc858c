"""A command's way to the broker and back: what each answer makes of it, and that nothing is sent
twice."""

import pytest

from tests.conftest import Urls
from tests.execution.arranged import alerts, prove_absent, until_missed
from tests.execution.in_process_execution import executing, open_in_process
from tests.fakes import Act, FakeVenue
from trading_intents.brokers.port import EventKind
from trading_intents.execution.sessions import session
from trading_intents.storage.pipeline import Statement
from trading_intents.telemetry import Metrics

UNCLEAR = (Act.DROP, Act.HANG, Act.BREAK, Act.DUPLICATE)


async def test_an_order_is_sent_acknowledged_and_filled(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process, level="warning"):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.fill(await in_process.coid(intent))
        order = await in_process.until_status(intent, "FILLED")
        assert (order["filled_quantity"], order["average_price"], order["external_order_id"]) == (
            10,
            100,
            "v1",
        )
        assert in_process.venue.journal == [("submit", await in_process.coid(intent))]
        await in_process.until_rows_are("completed")
        await in_process.until_connected()  # shown a moment after the first command was sent


async def test_a_worker_that_lost_its_prepared_statements_records_all_the_same(urls: Urls) -> None:
    """Each part meets the loss with one command or one event."""
    metrics = Metrics()
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, metrics=metrics) as execution,
    ):
        await in_process.until_status(await in_process.create(), "NEW")

        async def deallocate() -> None:
            for part in (execution._dispatcher, execution._recorder):
                await (await part._transactions._pipeline.connect()).run(
                    [Statement("DEALLOCATE ALL")]
                )

        await deallocate()
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await in_process.until_rows_are("completed")
        await deallocate()
        in_process.fill(await in_process.coid(intent))
        await in_process.until_status(intent, "FILLED")
        assert [row["attempts"] for row in await in_process.rows(intent)] == [1]
        assert (in_process.venue.lookups, alerts(metrics, "event_left_out")) == ([], 0)


async def test_a_refusal_is_an_answer(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.acts.append(Act.REFUSE)
        intent = await in_process.create()
        order = await in_process.until_status(intent, "REJECTED")
        assert (order["reason"], order["detail"]) == ("scripted", "scripted refusal")
        await in_process.until_rows_are("completed")
        assert len(in_process.venue.journal) == 1


@pytest.mark.parametrize("act", UNCLEAR)
async def test_an_unclear_answer_is_looked_up_and_never_sent_again(urls: Urls, act: Act) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.is_mute = True
        in_process.venue.acts.append(act)
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await in_process.until_rows_are("completed")
        assert await in_process.streamed_statuses(intent) == ["PENDING_NEW", "UNKNOWN", "NEW"]
        assert in_process.venue.journal == [("submit", await in_process.coid(intent))]
        assert in_process.venue.lookups == [await in_process.coid(intent)]


@pytest.mark.usefixtures("soon", "retried_soon")
async def test_what_did_not_leave_is_sent_again(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.acts += [Act.FAIL, Act.FAIL]
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await in_process.until_rows_are("completed")
        assert len(in_process.venue.journal) == 1
        assert [row["attempts"] for row in await in_process.rows(intent)] == [3]
        assert in_process.venue.lookups == []


async def test_a_create_that_never_arrived_is_proved_so_twice(urls: Urls) -> None:
    async with (
        open_in_process(urls, venue=FakeVenue("paper", unique_order_ids=False)) as in_process,
        executing(in_process),
    ):
        in_process.venue.acts.append(Act.LOSE)
        intent = await in_process.create()
        await until_missed(in_process)
        assert (await in_process.order(intent))["order_status"] == "UNKNOWN"
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "REJECTED")
        assert order["reason"] == "not_delivered"
        assert len(in_process.venue.lookups) >= 2
        assert in_process.venue.journal == []


@pytest.mark.usefixtures("soon")
async def test_without_durable_look_ups_an_order_stays_unknown_and_raises_an_alert(
    urls: Urls,
) -> None:
    metrics = Metrics()
    async with open_in_process(urls) as in_process:
        in_process.venue.hides = True
        in_process.venue.acts.append(Act.LOSE)
        async with executing(in_process, metrics=metrics):
            intent = await in_process.create()
            await in_process.until_status(intent, "UNKNOWN")

            async def hurried() -> bool:
                await in_process.in_process_writer.owner.execute(
                    """
                        UPDATE orders SET lookup_due_at = clock_timestamp()
                        WHERE lookup_due_at > clock_timestamp()
                    """
                )
                return len(in_process.venue.lookups) >= 6

            await in_process.until(hurried)
            assert (await in_process.order(intent))["order_status"] == "UNKNOWN"
            assert alerts(metrics, "order_unknown") == 1


@pytest.mark.usefixtures("soon", "retried_soon")
async def test_used_up_attempts_end_the_row_and_the_order_together(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process, attempt_limit=2):
        in_process.venue.acts += [Act.FAIL, Act.FAIL]
        intent = await in_process.create()
        order = await in_process.until_status(intent, "REJECTED")
        assert order["reason"] == "not_delivered"
        assert [(row["status"], row["attempts"]) for row in await in_process.rows(intent)] == [
            ("failed", 2)
        ]
        assert in_process.venue.journal == []


@pytest.mark.parametrize("limited", ["create", "replace", "cancel"])
async def test_a_command_that_a_rate_limit_refuses_uses_up_no_attempt(
    urls: Urls, limited: str
) -> None:
    metrics = Metrics()
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, attempt_limit=1, metrics=metrics),
    ):
        refusals = [Act.LIMIT] * 3
        if limited == "create":
            in_process.venue.acts += refusals
        intent = await in_process.create()
        if limited != "create":
            await in_process.until_status(intent, "NEW")
            in_process.venue.acts += refusals
            await (
                in_process.cancel(intent)
                if limited == "cancel"
                else in_process.replace(intent, "12")
            )
        await in_process.put_off(intent)
        waiting = [(row["status"], row["attempts"]) for row in await in_process.rows(intent)][-1]
        assert waiting == ("pending", 0)
        await in_process.make_due()
        await in_process.until_rows_are("completed")
        order = await in_process.until_status(intent, "CANCELLED" if limited == "cancel" else "NEW")
        assert (order["quantity"], order["reason"]) == (12 if limited == "replace" else 10, None)
        assert len(in_process.venue.journal) == (1 if limited == "create" else 2)
        assert alerts(metrics, "cancel_not_delivered") == 0


async def test_a_create_that_a_rate_limit_refuses_ends_by_its_age(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process, max_age_millis=300):
        in_process.venue.acts.append(Act.LIMIT)
        order = await in_process.until_status(await in_process.create(), "EXPIRED")
        assert (order["reason"], in_process.venue.journal) == ("stale", [])


@pytest.mark.slow
@pytest.mark.deadline
async def test_a_create_in_back_off_is_ended_by_its_cancel(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.acts += [Act.FAIL] * 3
        intent = await in_process.create()
        await in_process.put_off(intent)
        assert [row["attempts"] for row in await in_process.rows(intent)] == [3]
        await in_process.cancel(intent)
        order = await in_process.until_status(intent, "CANCELLED", 2)
        assert order["reason"] == "before_send"
        await in_process.until_rows_are("completed")
        assert in_process.venue.journal == []


async def test_replace_and_cancel_follow_their_order(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        (sent,) = in_process.venue.orders.values()
        created = sent.ticket
        assert (created.orig_client_order_id, created.broker_order_id) == (None, None)
        seq = await in_process.replace(intent, "7")
        order = await in_process.until_status(intent, "NEW")
        assert (order["quantity"], order["command_seq"]) == (7, seq)
        assert (sent.ticket.orig_client_order_id, sent.ticket.broker_order_id) == (
            created.client_order_id,
            "v1",
        )
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")
        assert [command for command, _ in in_process.venue.journal] == [
            "submit",
            "replace",
            "cancel",
        ]
        cancelled = in_process.venue.tickets[-1]
        named = cancelled.orig_client_order_id, cancelled.broker_order_id
        assert named == (sent.ticket.client_order_id, "v1")


async def test_commands_that_come_at_once_go_out_in_order(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        intent = await in_process.create()
        await in_process.replace(intent, "7")
        async with executing(in_process):
            order = await in_process.until_status(intent, "NEW")
            assert order["quantity"] == 7
            assert [command for command, _ in in_process.venue.journal] == ["submit", "replace"]


async def test_a_cancel_waits_for_the_acknowledgement_of_its_order(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.is_mute = in_process.venue.hides = True
        in_process.venue.acts.append(Act.DROP)
        intent = await in_process.create()
        await in_process.until_status(intent, "UNKNOWN")
        in_process.venue.hides = False
        await in_process.cancel(intent)
        await in_process.until_true(lambda: bool(in_process.venue.arrived("cancel")))
        assert in_process.venue.lookups, "looked up before"


@pytest.mark.usefixtures("soon")
async def test_a_command_that_was_taken_and_is_never_answered_is_looked_up(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.is_mute = True
        await in_process.cancel(intent)
        await in_process.until_rows_are("completed")
        assert (await in_process.order(intent))["order_status"] == "PENDING_CANCEL"
        await in_process.in_process_writer.owner.execute(
            "UPDATE commands SET sent_at = sent_at - interval '10 s'"
        )
        await in_process.until_status(intent, "CANCELLED")


@pytest.mark.deadline
async def test_an_unsent_replace_is_dropped_by_a_cancel(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts += [Act.FAIL] * 2
        await in_process.replace(intent, "7")
        await in_process.put_off(intent)
        await in_process.cancel(intent)
        order = await in_process.until_status(intent, "CANCELLED", 2)
        assert order["quantity"] == 10
        assert in_process.venue.arrived("replace") == []


async def test_a_lost_answer_to_a_replace_is_found_out(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.is_mute = True
        in_process.venue.acts.append(Act.DROP)
        await in_process.replace(intent, "7")
        order = await in_process.until_status(intent, "NEW")
        assert order["quantity"] == 7
        assert in_process.venue.lookups == [
            await in_process.coid(intent),
            await in_process.coid(intent, "REPLACE"),
        ]


async def test_a_replace_that_never_arrived_is_dropped(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts.append(Act.LOSE)
        await in_process.replace(intent, "7")
        await until_missed(in_process)
        assert (await in_process.order(intent))["order_status"] == "PENDING_REPLACE"
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "NEW")
        assert (order["quantity"], order["reason"]) == (10, "not_delivered")


async def test_a_cancel_that_is_refused_leaves_the_order_working(urls: Urls) -> None:
    metrics = Metrics()
    async with open_in_process(urls) as in_process, executing(in_process, metrics=metrics):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts.append(Act.REFUSE)
        await in_process.cancel(intent)
        order = await in_process.until_status(intent, "NEW")
        assert order["reason"] == "cancel_not_delivered"
        await in_process.until_true(lambda: alerts(metrics, "cancel_not_delivered") == 1)


async def test_a_cancel_whose_attempts_are_used_up_raises_an_alert(urls: Urls) -> None:
    metrics = Metrics()
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, attempt_limit=1, metrics=metrics),
    ):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts.append(Act.FAIL)
        await in_process.cancel(intent)
        order = await in_process.until_status(intent, "NEW")
        assert order["reason"] == "cancel_not_delivered"
        await in_process.until_true(lambda: alerts(metrics, "cancel_not_delivered") == 1)
        assert [row["status"] for row in await in_process.rows(intent)] == ["completed", "failed"]


@pytest.mark.usefixtures("soon")
async def test_a_row_that_its_workers_never_finish_fails_together_with_its_order(
    urls: Urls,
) -> None:
    async with open_in_process(urls) as in_process:
        unsent = await in_process.create()
        sent = await in_process.create()
        await in_process.in_process_writer.owner.execute(
            """
            UPDATE outbox SET status = 'processing', attempts = 10, claim_token = gen_random_uuid(),
                claimed_at = clock_timestamp() - interval '6 s'
            """
        )
        await in_process.in_process_writer.owner.execute(
            """
            INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq,
                action_type, sent_at)
            SELECT account_id, $2, organization_id, order_id, create_seq, 'CREATE',
                clock_timestamp() - interval '6 s'
            FROM orders WHERE order_id = $1
            """,
            sent,
            await in_process.coid(sent),
        )
        async with executing(in_process):
            order = await in_process.until_status(unsent, "REJECTED")
            assert order["reason"] == "not_delivered"
            await until_missed(in_process)
            assert (await in_process.order(sent))["order_status"] == "UNKNOWN"
            await in_process.until_rows_are("failed")


@pytest.mark.usefixtures("soon")
async def test_a_command_that_was_marked_and_never_answered_is_only_looked_up(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process) as execution:
        in_process.venue.is_mute = True
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await in_process.until_rows_are("completed")
        # As a worker leaves it that dies right after the send.
        await in_process.in_process_writer.owner.execute("UPDATE reports SET facts = NULL")
        await in_process.in_process_writer.owner.execute(
            "UPDATE orders SET order_status = 'PENDING_NEW', external_order_id = NULL"
        )
        await in_process.in_process_writer.owner.execute(
            "UPDATE outbox SET status = 'pending', finished_at = NULL"
        )
        assert execution.leases.sessions
        await in_process.until_status(intent, "NEW")
        assert len(in_process.venue.journal) == 1
        assert in_process.venue.lookups == [await in_process.coid(intent)]


async def test_an_order_is_not_looked_up_again_by_what_was_read_before_the_answer(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The due look-ups are read while the order's own is under way, and acted upon once that has
    ended."""
    monkeypatch.setattr(session, "LOOKUP_SECONDS", 60.0)  # it waits until the test lets it go
    async with open_in_process(urls) as in_process, executing(in_process):
        owner = in_process.in_process_writer.owner
        venue = in_process.venue

        async def reader_waits() -> bool:
            await owner.execute("SELECT pg_stat_clear_snapshot()")
            waiting = """
                SELECT count(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE $1
            """
            return bool(await owner.fetchval(waiting, "%FROM symbol_times t%"))

        venue.is_mute = True
        venue.acts += [Act.DROP, Act.DROP]
        venue.answers_lookups.clear()
        first = await in_process.create()
        await in_process.until_true(lambda: len(venue.lookups) == 1)
        # Is read after the look-ups.
        await owner.execute("BEGIN; LOCK TABLE symbol_times IN ACCESS EXCLUSIVE MODE")
        await in_process.until(reader_waits)
        venue.answers_lookups.set()
        await in_process.until_status(first, "NEW")
        await owner.execute("ROLLBACK")
        second = await in_process.create()
        await in_process.until_status(second, "NEW")
        assert venue.lookups == [await in_process.coid(first), await in_process.coid(second)]


async def test_an_order_that_ended_while_nobody_listened_is_found_out(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intent = await in_process.create()
            await in_process.until_status(intent, "NEW")
        await in_process.in_process_writer.owner.execute(
            "UPDATE commands SET sent_at = sent_at - interval '1 min'"
        )
        in_process.venue.end(await in_process.coid(intent), EventKind.EXPIRED)
        async with executing(in_process):
            await in_process.until_status(intent, "EXPIRED")
