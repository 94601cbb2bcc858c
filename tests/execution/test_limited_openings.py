"""Limits of an account that held something before us: its opening is no result of today, and counts
from the start."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.openings import fill_order, put_price, reconcile, report, until_position, up
from tests.fakes import FakeVenue
from tests.intents.in_process_writer import PRICES
from trading_intents.accounts.service import AccountTarget, lock_target
from trading_intents.clock import SystemClock
from trading_intents.controls.limits.model import TradingLimits
from trading_intents.controls.limits.service import LimitsService
from trading_intents.controls.limits.upkeep import LossJudge
from trading_intents.errors import ControlRejected
from trading_intents.ids import OrganizationId, id_maker
from trading_intents.intents.model import Create, Spec
from trading_intents.storage.database import Database, Tx
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

D = Decimal


@dataclass
class LimitedAccount:
    in_process: InProcessExecution
    database: Database
    judge: LossJudge

    async def put(self, tx: Tx | None = None, **limits: Any) -> None:
        """Sets limits, or does so in a transaction that is under way."""
        organization = OrganizationId(self.in_process.in_process_writer.organization)
        target = AccountTarget(organization, self.in_process.account, lambda *_: None)
        service = LimitsService(self.database.service, PRICES)
        wanted = TradingLimits(**limits)
        if tx is None:
            await service.put(target, lambda: ("", wanted), None)
            return
        account = await lock_target(tx, target)
        await service._put(tx, organization, account.id, "", wanted, None, account)

    async def losses(self) -> list[str]:
        """The reasons of the account's halts once all losses are judged."""
        await self.judge._judge_all()
        await self.judge._judge_all()  # the first may have begun the day
        owner = self.in_process.in_process_writer.owner
        return [row["reason"] for row in await owner.fetch("SELECT reason FROM halts")]

    async def move_price(self, price: str) -> None:
        await self.in_process.in_process_writer.owner.execute(
            "UPDATE reference_prices SET price = $1, source = 'posted', as_of = clock_timestamp()",
            D(price),
        )

    async def refusals(self, quantity: str) -> list[str]:
        writer = self.in_process.in_process_writer
        spec = Spec(
            kind=OrderKind.LIMIT,
            quantity=quantity,
            limit_price="100",
            stop_price=None,
            trail_amount=None,
        )
        command = Create(Symbol("AAPL"), OrderSide.BUY, RouteStrategy.SMART, spec)
        answer = await writer.submit(writer.command(self.in_process.account, command))
        return list(answer.reasons) if isinstance(answer, ControlRejected) else []


@contextlib.asynccontextmanager
async def open_limited(
    urls: Urls, database: Database, tells_positions: bool
) -> AsyncIterator[LimitedAccount]:
    log = make_log("critical")
    venue = FakeVenue("fake", tells_positions=tells_positions)
    async with (
        open_in_process(urls, venue=venue) as in_process,
        open_signals(urls.login, log) as signals,
    ):
        judge = LossJudge(
            pool=database.worker,
            prices=PRICES,
            make_id=id_maker(SystemClock()),
            signals=signals,
            clock=SystemClock(),
            log=log,
        )
        yield LimitedAccount(in_process, database, judge)


@pytest.fixture(params=[True, False], ids=["reports positions", "need not report"])
async def limited(
    urls: Urls, database: Database, request: pytest.FixtureRequest
) -> AsyncIterator[LimitedAccount]:
    async with open_limited(urls, database, request.param) as limited:
        yield limited


@pytest.mark.parametrize(
    ("bought_at", "then", "loss"),
    [
        ("100", "50", None),
        ("100", "40.01", None),
        ("100", "40", "100"),
        ("10", "40", "100"),
        (None, "40", "100"),
    ],
)
async def test_what_an_opening_made_before_is_no_result_of_today(
    limited: LimitedAccount, bought_at: str | None, then: str, loss: str | None
) -> None:
    """10 are held, and the price is 50 when they become known; the limit was set before."""
    in_process = limited.in_process
    await put_price(in_process, "AAPL", "50")
    await limited.put(max_daily_loss=D(100))
    in_process.venue.positions = (report("AAPL", "10", "p1", bought_at),)
    async with executing(in_process):
        await until_position(in_process, "AAPL", broker_quantity=D(10))
    await limited.move_price(then)
    expected = (
        [f"max_daily_loss: today's result is a loss of {loss}, and the limit is 100"]
        if loss
        else []
    )
    assert await limited.losses() == expected


async def test_a_price_that_the_report_of_an_opening_carries_is_no_result_of_today(
    limited: LimitedAccount,
) -> None:
    """No price was known before."""
    in_process = limited.in_process
    await limited.put(max_daily_loss=D(100))
    in_process.venue.positions = (replace(report("AAPL", "10", "p1", "100"), price=D(50)),)
    async with executing(in_process):
        await until_position(in_process, "AAPL", broker_quantity=D(10))
    assert await limited.losses() == []
    await limited.move_price("40")
    assert len(await limited.losses()) == 1


async def test_the_first_price_of_an_opening_is_no_result_of_today(limited: LimitedAccount) -> None:
    """The report has an average price, and the symbol none: it counts nothing that day, and from
    the next day on."""
    in_process = limited.in_process
    owner = limited.in_process.in_process_writer.owner
    await limited.put(max_daily_loss=D(100))
    in_process.venue.positions = (report("AAPL", "10", "p1", "100"),)
    async with executing(in_process):
        await until_position(in_process, "AAPL", broker_quantity=D(10))
    assert await limited.losses() == []
    await put_price(in_process, "AAPL", "50")
    assert await limited.losses() == []
    assert await limited.refusals("1") == []
    await owner.execute("UPDATE daily_baselines SET day = day - 1")
    assert await limited.losses() == []
    await limited.move_price("40")
    assert len(await limited.losses()) == 1


async def test_our_own_result_stays_when_the_opening_comes_later(
    urls: Urls, database: Database
) -> None:
    async with open_limited(urls, database, tells_positions=False) as limited:
        in_process = limited.in_process
        await limited.put(max_daily_loss=D(100))
        async with executing(in_process):
            await fill_order(in_process)  # 10 at 100
            await limited.move_price("91")  # 90 are lost
            in_process.venue.positions = (report("AAPL", "30", "p1", "500"),)
            await reconcile(in_process)
            await until_position(in_process, "AAPL", opening_quantity=D(20))
        assert await limited.losses() == []
        await limited.move_price("90.67")  # 0.33 of 30: 99.9
        assert await limited.losses() == []
        await limited.move_price("90.66")
        assert len(await limited.losses()) == 1


async def test_an_opening_begins_a_day_that_nobody_has_judged(limited: LimitedAccount) -> None:
    in_process = limited.in_process
    owner = limited.in_process.in_process_writer.owner
    await put_price(in_process, "AAPL", "50")
    await limited.put(max_daily_loss=D(100))
    await owner.execute("UPDATE daily_baselines SET day = day - 1, halted = true")
    in_process.venue.positions = (report("AAPL", "10", "p1", "100"),)
    async with executing(in_process):
        await until_position(in_process, "AAPL", broker_quantity=D(10))
    await limited.move_price("40")
    assert len(await limited.losses()) == 1


async def test_a_limit_that_is_set_meanwhile_counts_the_opening_too(
    limited: LimitedAccount,
) -> None:
    """Its baseline is recorded, and not committed, when the opening is about to be set."""
    in_process = limited.in_process
    owner = limited.in_process.in_process_writer.owner
    organization = OrganizationId(in_process.in_process_writer.organization)
    await put_price(in_process, "AAPL", "50")
    in_process.venue.positions = (report("AAPL", "10", "p1", "100"),)

    async def is_opening_waiting() -> bool:
        waiting = (
            "wait_event_type = 'Lock' AND query LIKE '%FOR NO KEY UPDATE%' AND datname = "
            "current_database()"
        )
        return bool(await owner.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}"))

    async with contextlib.AsyncExitStack() as stack:
        async with limited.database.service.transaction([organization]) as tx:
            await limited.put(tx, max_daily_loss=D(100))
            await stack.enter_async_context(executing(in_process))
            await in_process.until(is_opening_waiting)
        await until_position(in_process, "AAPL", broker_quantity=D(10))
    assert await limited.losses() == []


async def test_an_order_meets_what_was_held_before_us(urls: Urls, database: Database) -> None:
    async with open_limited(urls, database, tells_positions=True) as limited:
        in_process = limited.in_process
        await limited.put(max_position_quantity=D(100))
        in_process.venue.positions = (report("AAPL", "60", "p1", "90"),)
        assert await limited.refusals("1") == ["position_unknown"]
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: up(in_process, execution))
            assert await limited.refusals("41") == ["max_position_quantity"]
            assert await limited.refusals("40") == []


async def test_an_account_that_holds_nothing_is_known_to(urls: Urls, database: Database) -> None:
    async with open_limited(urls, database, tells_positions=True) as limited:
        in_process = limited.in_process
        await limited.put(max_position_quantity=D(100), max_daily_loss=D(1))
        in_process.venue.positions = ()
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: up(in_process, execution))
            assert await limited.refusals("100") == []
