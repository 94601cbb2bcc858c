"""Halts that cancel, on a venue in memory: what gets a CANCEL, how often, and what they wait
for."""

import itertools
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.halt_calls import (
    actions,
    closing_orders,
    halt,
    held_head,
    hold,
    resume,
    shown,
    stay_after_appending,
    until,
    until_waiting,
    working,
)
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import Act
from trading_intents.controls.halts.model import Halt
from trading_intents.execution.halting import store
from trading_intents.execution.halting import worker as halt_worker
from trading_intents.execution.halting.store import HaltedAccount
from trading_intents.execution.halting.worker import HaltWorker

pytestmark = pytest.mark.usefixtures("soon")


async def test_every_open_order_gets_one_cancel_in_the_halts_name(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        intents = await working(in_process, 5)
        found = await halt(in_process)
        done = await until(in_process, found, state="done")
        assert [(await in_process.order(each))["order_status"] for each in intents] == [
            "CANCELLED"
        ] * 5
        cancels = await actions(in_process, found, "CANCEL")
        assert sorted(row["intent_id"] for row in cancels) == sorted(intents)
        assert (done["orders"], done["orders_done"], done["waiting"]) == (5, 5, [])
        assert len(in_process.venue.arrived("cancel")) == 5


async def test_a_halt_without_orders_is_done(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        assert (await until(in_process, await halt(in_process), state="done"))["orders"] == 0


async def test_a_halt_that_cancels_nothing_leaves_orders_working(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        found = await halt(in_process, cancel_orders=False)
        other = await halt(in_process, whole=True)
        await until(in_process, other, state="done")  # this one does
        assert await actions(in_process, found, "CANCEL") == []
        assert (await in_process.order(intent))["order_status"] == "CANCELLED"


async def test_an_unknown_order_is_cancelled_too(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        in_process.venue.hides = True
        in_process.venue.is_mute = True
        in_process.venue.acts.append(Act.DROP)
        intent = await in_process.create()
        await in_process.until_status(intent, "UNKNOWN")
        found = await halt(in_process)
        await in_process.until_true(lambda: bool(in_process.venue.arrived("cancel")))
        assert (await shown(in_process, found))["state"] == "cancelling"
        in_process.venue.hides = in_process.venue.is_mute = False
        in_process.venue.leave_gap()
        await until(in_process, found, 45.0, state="done", orders=1, orders_done=1)


async def test_an_order_that_was_accepted_late_is_found(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        await in_process.create()
        # Recorded without a new version of the rules: the writer decides as one that read before
        # the halt's commit.
        owner = in_process.in_process_writer.owner
        organization = in_process.in_process_writer.organization
        await owner.execute("UPDATE organizations SET name = 'y'")
        await owner.execute("SET session_replication_role = replica")
        await owner.execute(
            """
                INSERT INTO halts (id, organization_id, account_id, reason, cancel_orders,
                    close_positions, state,
            """
            " principal_type, principal_id) SELECT gen_random_uuid(), $1, id, 'x', true, false, 'cancelling', 'USER',"
            " 'u' FROM accounts",
            organization,
        )
        await owner.execute("SET session_replication_role = origin")
        late = await in_process.create()
        async with executing(in_process):
            assert (await in_process.until_status(late, "CANCELLED"))["reason"] == "halted"


# Takes more than seven seconds: the pauses that it proves are one, two and four.
@pytest.mark.slow
async def test_a_refused_cancel_is_followed_by_others_ever_later(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        in_process.venue.acts.extend([Act.REFUSE] * 3)
        found = await halt(in_process)
        await until_waiting(in_process, found, "cancel_refused")
        await until(in_process, found, 20.0, state="done")
        times = [row["created_at"] for row in await actions(in_process, found, "CANCEL")]
        assert len(times) == 4
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert [
            pause >= timedelta(seconds=least)
            for pause, least in zip(pauses, (1, 2, 4), strict=True)
        ] == [True] * 3
        assert (await in_process.order(intent))["order_status"] == "CANCELLED"


async def test_an_unanswered_cancel_is_not_followed_by_another(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        in_process.venue.is_away = True
        in_process.venue.disconnect()
        found = await halt(in_process)
        waiting = await until_waiting(in_process, found, "broker_disconnected")
        assert waiting == [
            {
                "account_id": str(in_process.account),
                "order_id": str(intent),
                "reason": "broker_disconnected",
            }
        ]
        in_process.venue.is_away = False
        await until(in_process, found, 30.0, state="done")
        assert len(await actions(in_process, found, "CANCEL")) == 1


async def test_a_resumed_halt_appends_nothing_more(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            await working(in_process, 2)
        found = await halt(in_process)
        await resume(in_process, found)
        async with executing(in_process):
            later = await in_process.create()
            await in_process.until_status(later, "NEW")
            await in_process.until_queue_is_empty()
        assert await actions(in_process, found, "CANCEL") == []
        assert (await shown(in_process, found))["state"] == "resumed"


async def test_an_account_that_is_held_delays_no_other_of_its_organization(urls: Urls) -> None:
    async with open_in_process(urls, accounts=4) as in_process, executing(in_process):
        accounts = in_process.in_process_writer.accounts
        for account in accounts:
            await working(in_process, 2, account=account)
        async with held_head(in_process, accounts[0]):
            found = await halt(in_process, whole=True)
            done = await until_pool(in_process, found, orders=8, orders_done=6)
            assert done["state"] == "cancelling"
        await until(in_process, found, state="done", orders=8, orders_done=8)


async def test_a_cancel_that_cannot_be_recorded_is_waited_for_by_its_order(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        async with held_head(in_process, in_process.account):
            found = await halt(in_process)
            waiting = await until_waiting(in_process, found, "cancel_pending")
        assert waiting == [
            {
                "account_id": str(in_process.account),
                "order_id": str(intent),
                "reason": "cancel_pending",
            }
        ]
        await until(in_process, found, state="done", orders_done=1)


async def until_pool(in_process: InProcessExecution, found: Halt, **wanted: Any) -> Any:
    """As `until`, by another connection than the owner's."""
    last: Any = None

    async def reached() -> bool:
        nonlocal last
        writer = in_process.in_process_writer
        async with writer.pool.transaction([writer.organization], read_only=True) as tx:
            last = await tx.fetchrow("SELECT * FROM halts WHERE id = $1", found.id)
        return all(last[name] == value for name, value in wanted.items())

    await in_process.until(reached, 20.0)
    return last


async def has_cancels(in_process: InProcessExecution, least: int) -> bool:
    return len(in_process.venue.arrived("cancel")) >= least


async def test_orders_that_end_while_their_worker_does_are_counted(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intents = await working(in_process, 3)
            with monkeypatch.context() as patched:
                stay_after_appending(patched)
                found = await halt(in_process)
                for intent in intents:
                    await in_process.until_status(intent, "CANCELLED")
        async with executing(in_process):
            await until(in_process, found, state="done", orders=3, orders_done=3)


async def test_orders_that_end_before_the_halt_is_worked_are_counted(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            (filled,) = await working(in_process)
        unsent = [await in_process.create() for _ in range(2)]
        found = await halt(in_process)
        in_process.fill(await in_process.coid(filled), "10")
        async with executing(in_process):
            await until(in_process, found, state="done", orders=3, orders_done=3)
        assert (await in_process.order(filled))["order_status"] == "FILLED"
        assert {(await in_process.order(intent))["reason"] for intent in unsent} == {"halted"}


@pytest.mark.parametrize("whole", [False, True], ids=["account", "organization"])
async def test_an_order_that_opens_under_a_done_halt_is_cancelled(urls: Urls, whole: bool) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        coid = await in_process.coid(intent)
        in_process.fill(coid, "10")
        await in_process.until_status(intent, "FILLED")
        found = await halt(in_process, whole)
        await until(in_process, found, state="done", orders=0)
        in_process.venue.acts.append(Act.REFUSE)
        in_process.venue.bust(coid)
        await until(in_process, found, state="cancelling", orders=1, orders_done=0)
        await until(in_process, found, state="done", orders=1, orders_done=1)
        assert (await in_process.order(intent))["order_status"] == "CANCELLED"
        assert {row["intent_id"] for row in await actions(in_process, found, "CANCEL")} == {intent}


async def test_positions_that_are_closed_while_their_worker_ends_are_counted(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            await hold(in_process)
            with monkeypatch.context() as patched:
                stay_after_appending(patched)
                found = await halt(in_process, close_positions=True)
                (closing,) = await closing_orders(in_process, found)
                in_process.fill(await in_process.coid(closing), "10")
                await in_process.until_status(closing, "FILLED")
        async with executing(in_process):
            await until(in_process, found, state="done", positions=1, positions_done=1)


@pytest.mark.slow
async def test_a_worker_that_ends_in_between_is_followed_by_another(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intents = await working(in_process, 30)
        found = await halt(in_process)
        for least in (1, 10, 20):
            async with executing(in_process):
                await in_process.until(partial(has_cancels, in_process, least))
        async with executing(in_process):
            await until(in_process, found, 20.0, state="done", orders=30, orders_done=30)
        assert sorted(
            row["intent_id"] for row in await actions(in_process, found, "CANCEL")
        ) == sorted(intents)
        assert in_process.venue.duplicates == []


EMPTY = 1_000
# Of a broker that is not there, so that their sessions do nothing.
ADD_EMPTY = """
    WITH made AS (
        INSERT INTO accounts (id, organization_id, name, broker, environment)
        SELECT gen_random_uuid(), $1, 'empty', 'none', 'paper' FROM generate_series(1, $2)
        RETURNING id, organization_id
    )
    INSERT INTO account_heads (account_id, organization_id) SELECT id, organization_id FROM made
"""


@pytest.mark.slow
@pytest.mark.parametrize("empty", [0, EMPTY])
async def test_accounts_with_nothing_to_end_cost_a_halt_no_step_and_no_row(
    urls: Urls, monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    """The first look finds every order that can still trade, and each account is stepped as if it
    were alone."""
    looks: list[list[HaltedAccount]] = []
    stepped: list[UUID] = []
    look = store.halted_accounts
    step = HaltWorker._step

    async def noted_look(*given: Any) -> list[HaltedAccount]:
        if found := await look(*given):
            looks.append(found)
        return found

    async def noted_step(self: HaltWorker, halted: HaltedAccount) -> None:
        stepped.append(halted.account_id)
        await step(self, halted)

    monkeypatch.setattr(store, "halted_accounts", noted_look)
    monkeypatch.setattr(HaltWorker, "_step", noted_step)
    async with open_in_process(urls, accounts=3) as in_process:
        writer = in_process.in_process_writer
        await writer.owner.execute(ADD_EMPTY, writer.organization, empty)
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: len(execution.leases.sessions) == 3 + empty)
            open_orders = dict.fromkeys(writer.accounts[:2], 4)
            for account, count in open_orders.items():
                await working(in_process, count, account=account)
            found = await halt(in_process, whole=True, close_positions=True)
            await until(in_process, found, state="done", orders=8, orders_done=8, positions=0)
        first = {each.account_id: len(each.due) for each in looks[0]}
        assert first == open_orders
        assert sorted(stepped) == sorted(open_orders)
        assert await writer.owner.fetchval("SELECT count(*) FROM halt_closings") == 0


async def test_many_orders_are_cancelled_in_as_few_looks_as_one_account_needs(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More accounts than an organization's share of steps are begun in one look."""
    monkeypatch.setattr(halt_worker, "MAX_STEPS_EACH", 2)
    looks = 0
    look = store.halted_accounts

    async def counted(*given: Any) -> list[HaltedAccount]:
        nonlocal looks
        found = await look(*given)
        looks += any(each.due for each in found)
        return found

    monkeypatch.setattr(store, "halted_accounts", counted)
    monkeypatch.setattr(halt_worker, "MIN_ROUND_SECONDS", 1.0)
    async with open_in_process(urls, accounts=8) as in_process, executing(in_process):
        for account in in_process.in_process_writer.accounts:
            await working(in_process, 1, account=account)
        found = await halt(in_process, whole=True)
        await until(in_process, found, state="done", orders=8, orders_done=8)
        assert looks == 1


async def test_a_position_that_appears_under_a_done_halt_is_closed(urls: Urls) -> None:
    """A fill that the broker reports late, of an order that is over."""
    async with open_in_process(urls) as in_process, executing(in_process):
        (intent,) = await working(in_process)
        found = await halt(in_process, close_positions=True)
        await until(in_process, found, state="done", orders_done=1, positions=0)
        in_process.fill(await in_process.coid(intent), "4")
        (closing,) = await closing_orders(in_process, found)
        in_process.fill(await in_process.coid(closing), "4")
        await until(in_process, found, state="done", positions=1, positions_done=1)
