"""Background work for limits: judges daily losses."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.clock import Clock
from trading_intents.controls.halts.model import (
    HaltPrincipal,
    HaltPrincipalType,
    HaltScope,
    HaltTerms,
)
from trading_intents.controls.halts.service import CHANNEL as HALTS
from trading_intents.controls.halts.service import start_halt
from trading_intents.controls.limits import store
from trading_intents.controls.limits.model import LossLimit
from trading_intents.controls.limits.state.losses import (
    AccountResults,
    DailyBaseline,
    baseline_rows,
)
from trading_intents.controls.limits.state.statements import read_results, record_baselines
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.loops import Wakeup, repeat
from trading_intents.outbox.outcomes import reason_of
from trading_intents.prices.model import PriceRules
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log
from trading_intents.trading import amount_text

NO_ACCOUNT = UUID(int=0)
JUDGE_SECONDS = 1.0
PAGE_ACCOUNTS = 200
MAX_ORGANIZATIONS = 4  # whose accounts are halted at a time
PLATFORM = "platform"  # the principal of what the SYSTEM does


class LossJudge:
    """Judges daily losses: of an account when trades of it are booked, of all once a second, in one
    process."""

    def __init__(
        self,
        pool: Pool,
        prices: PriceRules,
        make_id: IdMaker,
        signals: Signals,
        clock: Clock,
        log: Log,
    ) -> None:
        self._pool = pool
        self._prices = prices
        self._make_id = make_id
        self._signals = signals
        self._clock = clock
        self._log = log
        self._wakeup = Wakeup()
        self._limited: set[UUID] = set()  # accounts that had such a limit a second ago
        self._due: set[UUID] = set()
        self._all_due_seconds = 0.0

    def on_trades(self, account_id: UUID) -> None:
        """Runs after trades of the account are committed."""
        if account_id in self._limited:
            self._due.add(account_id)
            self._wakeup.wake()

    async def run(self) -> None:
        await repeat(self.judge, JUDGE_SECONDS, self._log_failed, self._wakeup)

    def _log_failed(self, _: str, error: Exception) -> None:
        self._log.warning("daily losses not judged", reason=reason_of(error))

    async def judge(self) -> float:
        """Seconds until all accounts are due again."""
        due = self._due
        self._due = set()
        if due:
            async with self._pool.transaction(read_only=True) as tx:
                limits = await store.find_loss_limits(tx, sorted(due))
            await self._judge_accounts(limits, is_alone=False)
        if self._clock.monotonic() >= self._all_due_seconds:
            self._all_due_seconds = self._clock.monotonic() + JUDGE_SECONDS
            await self._judge_all()
        return max(0.0, self._all_due_seconds - self._clock.monotonic())

    async def _judge_all(self) -> None:
        limited = set[UUID]()
        after = NO_ACCOUNT
        while True:
            async with self._pool.transaction(read_only=True) as tx:
                page = await store.page_loss_limits(tx, after, PAGE_ACCOUNTS)
            limited |= {each.account_id for each in page}
            await self._judge_accounts(page, is_alone=True)
            if len(page) < PAGE_ACCOUNTS:
                break
            after = page[-1].account_id
        self._limited = limited

    async def _judge_accounts(self, limits: Sequence[LossLimit], is_alone: bool) -> None:
        """`is_alone`: not while another process does."""
        if not limits:
            return
        async with self._pool.transaction(read_only=True) as tx:
            if is_alone and not await store.try_judging(tx):
                return
            request = read_results([str(each.account_id) for each in limits])
            (reply,) = await PoolTransaction(tx).run([request])
            results = AccountResults(reply.texts(), self._prices)
            now = await read_clock(tx)
        slots = asyncio.Semaphore(MAX_ORGANIZATIONS)
        own: dict[OrganizationId, list[LossLimit]] = {}
        for limit in limits:
            own.setdefault(limit.organization_id, []).append(limit)
        work = [self._judge_organization(each, results, now, slots) for each in own.values()]
        await asyncio.gather(*work)

    async def _judge_organization(
        self,
        limits: Sequence[LossLimit],
        results: AccountResults,
        now: datetime,
        slots: asyncio.Semaphore,
    ) -> None:
        """One organization's. Its locks may be held: that delays no other, and all of it is tried
        again in a second."""
        begun: dict[tuple[str, str], DailyBaseline] = {}
        reached: list[tuple[LossLimit, DailyBaseline, Decimal]] = []
        for limit in limits:
            account_id = str(limit.account_id)
            result, baseline = results.today(account_id, limit.timezone, now)
            if baseline:
                begun[account_id, str(limit.organization_id)] = baseline
            elif -result >= limit.max_daily_loss:
                judged = results.baselines[account_id]
                if not judged.halted:
                    reached.append((limit, judged, -result))
        if not begun and not reached:
            return
        async with slots:
            try:
                if begun:
                    async with self._pool.transaction() as tx:
                        await PoolTransaction(tx).run([record_baselines(baseline_rows(begun))])
                for each in reached:
                    await self._halt(*each)
            except Exception as error:
                self._log_failed("", error)

    async def _halt(self, limit: LossLimit, judged: DailyBaseline, loss: Decimal) -> None:
        """Once for a day and limit, whoever finds that it is reached."""
        most = amount_text(limit.max_daily_loss)
        lost = amount_text(loss)
        terms = HaltTerms(
            f"max_daily_loss: today's result is a loss of {lost}, and the limit is {most}"
        )
        scope = HaltScope(limit.organization_id, limit.account_id)
        async with self._pool.transaction([limit.organization_id]) as tx:
            if not await store.record_halted(tx, limit, judged.day, judged.timezone):
                return
            await start_halt(
                tx, self._make_id(), scope, terms, HaltPrincipal(HaltPrincipalType.SYSTEM, PLATFORM)
            )
        self._signals.notify(HALTS)
        self._signals.notify(STREAM)
        self._log.warning(
            "daily loss reached", account=str(limit.account_id), loss=lost, limit=most
        )
