"""The connection is lost while a claim commits: the server is asked how that ended, so that no
order which was marked and not sent has to be looked up for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.worker_processes import HURRY_PROOFS
from tests.proxy import Verdict, proxied
from trading_intents.execution import dispatcher
from trading_intents.execution.service import Execution
from trading_intents.execution.sessions import leases, store
from trading_intents.storage.grouped import has_committed

ORDERS = 4  # fewer than an account has slots
MARK = b"UPDATE commands SET sent_at"  # COMMIT is sent with it
QUESTION = b"pg_xact_status"
MOMENT_SECONDS = 0.5

HOUR_SECONDS = 3600

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def lasting_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of a claim is asked for, however slow the machine is."""
    for module in (leases, store):
        monkeypatch.setattr(module, "LEASE_SECONDS", HOUR_SECONDS)


class LostClaim:
    """Ends the connection of the first claim that marks orders, and those that ask about it while
    `is_mute`."""

    def __init__(self, verdict: Verdict, is_mute: bool = False) -> None:
        self.verdict = verdict
        self.is_mute = is_mute
        self.claims = self.questions = 0

    def look(self, data: bytes) -> Verdict:
        if QUESTION in data:
            self.questions += 1
            return Verdict.CUT_UNSENT if self.is_mute else Verdict.PASS
        if MARK in data:
            self.claims += 1
            return self.verdict if self.claims == 1 else Verdict.PASS
        return Verdict.PASS


@asynccontextmanager
async def losing_a_claim(
    urls: Urls, lost: LostClaim
) -> AsyncIterator[tuple[InProcessExecution, Execution, list[UUID]]]:
    """A worker beside orders of one account, which are one claim, and the answer to that is
    lost."""
    async with open_in_process(urls) as in_process:
        orders = [await in_process.create() for _ in range(ORDERS)]
        with proxied(urls.login, lost.look) as (_, login):
            async with executing(replace(in_process, urls=replace(urls, login=login))) as execution:
                yield in_process, execution, orders


async def check_sent_once(in_process: InProcessExecution, orders: list[UUID]) -> None:
    sent = sorted(in_process.venue.arrived("submit"))
    assert sent == sorted([await in_process.coid(order) for order in orders])
    assert in_process.venue.duplicates == []


@pytest.mark.parametrize(
    "verdict", [Verdict.CUT_UNANSWERED, Verdict.CUT_UNSENT], ids=["committed", "not_committed"]
)
@pytest.mark.usefixtures("lasting_lease")
async def test_orders_of_a_claim_without_an_answer_are_sent_once_and_not_looked_up(
    urls: Urls, verdict: Verdict
) -> None:
    lost = LostClaim(verdict)
    async with losing_a_claim(urls, lost) as (in_process, _, orders):
        for order in orders:
            await in_process.until_status(order, "NEW")
        await in_process.until_queue_is_empty()
        await check_sent_once(in_process, orders)
        assert in_process.venue.lookups == []
        # More while the server has not noticed that the connection is gone.
        assert lost.questions >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_lease")
async def test_orders_of_a_claim_whose_outcome_is_not_found_in_time_are_looked_up(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[bool | None] = []

    async def ask_for_a_moment(**question: Any) -> bool | None:
        outcomes.append(await has_committed(**question | {"limit_seconds": MOMENT_SECONDS}))
        return outcomes[-1]

    monkeypatch.setattr(dispatcher, "has_committed", ask_for_a_moment)
    lost = LostClaim(Verdict.CUT_UNANSWERED, is_mute=True)
    async with losing_a_claim(urls, lost) as (in_process, execution, orders):
        owner = in_process.in_process_writer.owner
        sessions = execution.leases.sessions
        await in_process.until_true(lambda: outcomes == [None])
        await in_process.until_true(
            lambda: not any(session.in_flight for session in sessions.values())
        )
        assert in_process.venue.arrived("submit") == []
        marked = await owner.fetchval("SELECT count(sent_at) FROM known_commands")

        async def all_looked_up() -> bool:
            await owner.execute(HURRY_PROOFS)
            return bool(await owner.fetchval("SELECT bool_and(order_status = 'NEW') FROM orders"))

        await in_process.until(all_looked_up)
        await check_sent_once(in_process, orders)
        assert len(set(in_process.venue.lookups)) == marked == ORDERS
