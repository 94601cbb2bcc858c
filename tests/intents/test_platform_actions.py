"""Commands that the platform records itself: what is said of a COMMIT that nobody answered, and
whom a locked account delays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import asyncpg
import pytest

from tests.conftest import Urls
from tests.intents.cut_commits import CutAtCommit
from tests.intents.in_process_writer import PRICES, InProcessWriter, open_in_process_writer
from tests.proxy import Verdict, proxied
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.brokers.registry import installed_brokers
from trading_intents.clock import SystemClock
from trading_intents.errors import OutcomeUnknown
from trading_intents.ids import id_text_maker
from trading_intents.intents.model import Cancel, Submission
from trading_intents.intents.writing import system
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.statements import WAIT
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.secret import Secret
from trading_intents.storage.database import WORKER_ROLE
from trading_intents.storage.pipeline import Pipeline
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log

WAIT_SECONDS = 20.0
TOGETHER = 4  # as many as there are connections


@pytest.fixture
async def local(urls: Urls) -> AsyncIterator[InProcessWriter]:
    async with open_in_process_writer(urls.login, urls.owner) as local:
        yield local


@asynccontextmanager
async def open_actions(login: Secret) -> AsyncIterator[PlatformActions]:
    log = make_log("critical")
    tools = BatchDependencies(
        pipeline=Pipeline(login, WORKER_ROLE),
        brokers=installed_brokers(log),
        make_id=id_text_maker(),
        clock=SystemClock(),
        prices=PRICES,
    )
    async with open_signals(login, log) as signals:
        with closing(PlatformActions(tools, signals)) as actions:
            yield actions


async def cancel_of(local: InProcessWriter, account: int) -> Submission:
    """Of an order that was just recorded."""
    account_id = local.accounts[account]
    receipt = await local.writer.submit(local.create(account_id))
    return Submission(
        account_id=str(account_id),
        organization_id=str(local.organization),
        key_id=None,
        command=Cancel(receipt.intent_id, once=True),
        client_reference_id=None,
        idempotency_key=None,
        body_digest=None,
    )


@pytest.mark.parametrize("verdict", [Verdict.CUT_UNSENT, Verdict.CUT_UNANSWERED])
async def test_a_lost_commit_is_of_unknown_outcome(
    local: InProcessWriter, urls: Urls, verdict: Verdict
) -> None:
    cancel = await cancel_of(local, 0)
    cut = CutAtCommit()
    cut.left = 1
    cut.choose = lambda: verdict
    with proxied(urls.login, cut.look) as (_, login):
        async with open_actions(login) as actions:
            with pytest.raises(OutcomeUnknown):
                await actions.append([cancel])
            await actions.append([cancel])
    assert await local.count("actions") == 2, "a second CANCEL is not recorded"


async def test_a_locked_account_delays_no_other_account(
    local: InProcessWriter, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "WAIT", WAIT._replace(timeout="60s"))
    cancels = [await cancel_of(local, account) for account in range(3)]
    holder = await asyncpg.connect(urls.owner.reveal())
    async with open_actions(urls.login) as actions:
        async with holder.transaction():
            lock = "SELECT FROM account_heads WHERE account_id = $1::text::uuid FOR UPDATE"
            await holder.execute(lock, cancels[0].account_id)
            waiting = [asyncio.create_task(actions.append([cancels[0]])) for _ in range(TOGETHER)]

            async def is_blocked() -> bool:
                return bool(await local.owner.fetchval(COUNT_BLOCKED))

            await eventually_async(is_blocked, WAIT_SECONDS)
            for cancel in cancels[1:]:
                await actions.append([cancel])
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
    await holder.close()
    assert await local.count("actions") == 6
