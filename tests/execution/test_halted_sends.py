"""A halt and the sends: nothing that it refuses is sent from its answer on, and what was not sent
says why."""

import asyncio

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.arranged import prove_absent, until_missed
from tests.execution.halt_calls import halt, resume
from tests.execution.in_process_execution import executing, open_in_process
from tests.fakes import Act
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.controls.store import HALT_LOCK

WAIT_SECONDS = 15.0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("is_resumed", [False, True])
async def test_an_accepted_create_that_a_halt_found_unsent_is_cancelled(
    urls: Urls, whole: bool, is_resumed: bool
) -> None:
    async with open_in_process(urls) as in_process:
        intents = [await in_process.create() for _ in range(3)]
        found = await halt(in_process, whole, cancel_orders=False)
        if is_resumed:
            await resume(in_process, found)
        async with executing(in_process):
            for intent in intents:
                assert (await in_process.until_status(intent, "CANCELLED"))["reason"] == "halted"
            await in_process.until_queue_is_empty()
            assert in_process.venue.journal == []
            if is_resumed:
                later = await in_process.create()
                await in_process.until_status(later, "NEW")


async def test_a_halted_create_ends_also_while_its_broker_is_away(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.is_away = True
        async with executing(in_process):
            intent = await in_process.create()
            await halt(in_process, cancel_orders=False)
            assert (await in_process.until_status(intent, "CANCELLED"))["reason"] == "halted"


async def test_a_halt_comes_before_what_else_ends_a_create(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        intent = await in_process.create()
        await halt(in_process, cancel_orders=False)
        await in_process.cancel(intent)
        await in_process.in_process_writer.owner.execute("UPDATE accounts SET disabled = true")
        async with executing(in_process):
            assert (await in_process.until_status(intent, "CANCELLED"))["reason"] == "halted"


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_an_unsent_replace_is_dropped(urls: Urls, is_resumed: bool) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.venue.acts.append(Act.FAIL)
        await in_process.replace(intent, "7")
        await in_process.put_off(intent)
        found = await halt(in_process, cancel_orders=False)
        if is_resumed:
            await resume(in_process, found)
        await in_process.make_due()
        order = await in_process.until_status(intent, "NEW")
        assert (order["quantity"], order["reason"]) == (10, "halted")
        assert in_process.venue.arrived("replace") == []


async def test_a_cancel_passes_a_halt(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        await halt(in_process, whole=True, cancel_orders=False)
        await in_process.cancel(intent)
        await in_process.until_status(intent, "CANCELLED")


@pytest.mark.usefixtures("soon")
async def test_a_lost_create_that_never_arrived_is_not_sent_after_a_halt(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.acts.append(Act.LOSE)
        intent = await in_process.create()
        await in_process.until_status(intent, "UNKNOWN")
        await halt(in_process, cancel_orders=False)
        await in_process.cancel(intent)
        await in_process.until_true(lambda: bool(in_process.venue.arrived("cancel")))
        await in_process.until_queue_is_empty()
        await until_missed(in_process)
        await prove_absent(in_process)
        order = await in_process.until_status(intent, "CANCELLED")
        assert order["reason"] == "halted"
        assert len(in_process.venue.arrived("submit")) <= 1


async def test_nothing_is_marked_after_the_halt_is_answered(urls: Urls) -> None:
    """While orders come in and go out, a halt begins: its answer is a line in time that no send
    crosses."""
    async with (
        open_in_process(urls, accounts=3) as in_process,
        executing(in_process),
        executing(in_process),
    ):
        owner = in_process.in_process_writer.owner
        for _ in range(5):
            intents = [
                asyncio.create_task(
                    in_process.create(account=in_process.in_process_writer.accounts[n % 3])
                )
                for n in range(90)
            ]
            await eventually_async(lambda: _has_sent(owner), WAIT_SECONDS)
            found = await halt(in_process, whole=True, cancel_orders=False)
            answered_at = await owner.fetchval("SELECT clock_timestamp()")
            await asyncio.gather(*intents, return_exceptions=True)
            await in_process.until_queue_is_empty()
            late = "SELECT count(*) FROM orders WHERE sent_at > $1"
            assert await owner.fetchval(late, answered_at) == 0
            await resume(in_process, found)
            await owner.execute("UPDATE orders SET sent_at = NULL")


async def _has_sent(owner: asyncpg.Connection) -> bool:
    return bool(
        await owner.fetchval("SELECT EXISTS (SELECT FROM orders WHERE sent_at IS NOT NULL)")
    )


async def test_a_halt_waits_for_the_transaction_that_marks_sends_and_not_longer(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        marking = await asyncpg.connect(urls.owner.reveal())
        transaction = marking.transaction()
        await transaction.start()
        organization = str(in_process.in_process_writer.organization)
        await marking.execute(
            "SELECT pg_advisory_xact_lock_shared($1, hashtext($2))", HALT_LOCK, organization
        )
        task = asyncio.create_task(halt(in_process))
        await eventually_async(
            lambda: in_process.in_process_writer.owner.fetchval(COUNT_BLOCKED), WAIT_SECONDS
        )
        await transaction.rollback()
        assert (await task).state == "cancelling"
        await marking.close()


async def test_while_a_halt_begins_only_cancels_are_sent(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        # May stand still in a transaction for as long as it takes.
        beginning = await asyncpg.connect(urls.owner.reveal())
        async with beginning.transaction():
            organization = str(in_process.in_process_writer.organization)
            await beginning.execute(
                "SELECT pg_advisory_xact_lock($1, hashtext($2))", HALT_LOCK, organization
            )
            waiting = await in_process.create()
            await in_process.cancel(intent)
            await in_process.until_status(intent, "CANCELLED")
            assert (await in_process.order(waiting))["order_status"] == "PENDING_NEW"
        await beginning.close()
        await in_process.until_status(waiting, "NEW")
