"""The worker that judges daily losses, on books of an account that nobody else works on."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from tests.conftest import Urls
from tests.execution.recorded_orders import Books, fill, open_books, reported
from tests.intents.in_process_writer import PRICES
from tests.waiting import COUNT_BLOCKED, eventually_async
from trading_intents.accounts.service import AccountTarget
from trading_intents.brokers.port import EventKind as E
from trading_intents.clock import SystemClock
from trading_intents.controls.limits.model import TradingLimits
from trading_intents.controls.limits.service import LimitsService
from trading_intents.controls.limits.upkeep import LossJudge
from trading_intents.ids import OrganizationId, id_maker
from trading_intents.storage.database import Database
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log

WAIT_SECONDS = 10.0


@dataclass
class JudgedBooks:
    books: Books
    judge: LossJudge

    async def baseline(self) -> Any:
        return await self.books.owner.fetchrow("SELECT day, result, halted FROM daily_baselines")

    async def halts(self) -> int:
        return int(await self.books.owner.fetchval("SELECT count(*) FROM halts"))


@pytest.fixture
async def judged(urls: Urls, database: Database) -> AsyncIterator[JudgedBooks]:
    """Ten were bought at 100, with a limit of 50; 100 are lost by now."""
    log = make_log("critical")
    async with open_books(urls, database) as books, open_signals(urls.login, log) as signals:
        target = AccountTarget(
            OrganizationId(books.organization), books.accounts[0], lambda *_: None
        )
        limits = TradingLimits(max_daily_loss=Decimal(50))
        await LimitsService(database.service, PRICES).put(target, lambda: ("", limits), None)
        order = await books.create("10", limit="100")
        await books.record(reported(E.ACCEPTED, order, "a"), fill(order, "e1", "10", "100"))
        await books.owner.execute("UPDATE accounts SET broker = 'other'")  # where no price walks
        await books.owner.execute(
            """
                UPDATE reference_prices SET price = 90, as_of = clock_timestamp(),
                    environment = 'paper'
            """
        )
        judge = LossJudge(
            pool=database.worker,
            prices=PRICES,
            make_id=id_maker(SystemClock()),
            signals=signals,
            clock=SystemClock(),
            log=log,
        )
        yield JudgedBooks(books, judge)


async def test_a_loss_halts_once_a_day(judged: JudgedBooks) -> None:
    for _ in range(2):
        await judged.judge._judge_all()
    assert await judged.halts() == 1
    assert (await judged.baseline())["halted"]


async def test_a_clock_that_steps_back_over_midnight_halts_nothing_anew(
    judged: JudgedBooks,
) -> None:
    await judged.judge._judge_all()
    await judged.books.owner.execute("UPDATE daily_baselines SET day = day + 1")
    before = await judged.baseline()
    await judged.judge._judge_all()
    assert await judged.baseline() == before
    assert await judged.halts() == 1


async def test_a_loss_of_yesterday_found_at_midnight_uses_up_no_halt_of_today(
    urls: Urls, judged: JudgedBooks
) -> None:
    """The day begins in another transaction while the judge, who has read yesterday's baseline,
    marks the halt."""
    new_day = await asyncpg.connect(urls.owner.reveal())
    async with new_day.transaction():
        await new_day.execute("UPDATE daily_baselines SET day = day + 1, result = -100")
        judging = asyncio.create_task(judged.judge._judge_all())

        async def is_waiting() -> bool:
            return bool(await judged.books.owner.fetchval(COUNT_BLOCKED))

        await eventually_async(is_waiting, WAIT_SECONDS)
    await new_day.close()
    await judging
    assert not (await judged.baseline())["halted"]
    assert await judged.halts() == 0
