"""Checks of all accounts, again and again, what must always be true of them, and sets right what is
not, with an alert: nothing that we know of breaks it."""

from collections.abc import Sequence
from uuid import UUID

from trading_intents.clock import Clock
from trading_intents.controls.limits import store as limits
from trading_intents.controls.limits.store import ExposureDifference
from trading_intents.execution.checking.store import ForgottenOrder, find_forgotten
from trading_intents.execution.store import lock_unresolved, looking_up
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import FrozenStruct, amount_text

CHECK_SECONDS = 60.0
CHECK_SHARE = 20  # so many times as long as it took is the pause after it
CHECKED_ACCOUNTS = 20
NO_ACCOUNT = UUID(int=0)


class Findings(FrozenStruct):
    forgotten: Sequence[ForgottenOrder]
    differences: Sequence[ExposureDifference]


async def find_broken(tx: Tx, account_ids: Sequence[UUID]) -> Findings:
    """Finds what of these accounts must never be: orders that nobody works on, and kept sums that
    differ from what they sum up."""
    return Findings(
        forgotten=await find_forgotten(tx, account_ids),
        differences=await limits.find_differences(tx, account_ids),
    )


class InvariantCheck:
    def __init__(self, pool: Pool, clock: Clock, metrics: Metrics, log: Log) -> None:
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._after = NO_ACCOUNT

    async def check(self) -> float:
        """Checks the next accounts; gives the seconds until the ones after them are due."""
        started_seconds = self._clock.monotonic()
        async with self._pool.transaction(plans="fresh") as tx:
            accounts = await limits.page_accounts(tx, self._after, CHECKED_ACCOUNTS)
            # What cannot be read keeps no others waiting.
            self._after = accounts[-1] if accounts else NO_ACCOUNT
            found = await find_broken(tx, accounts)
            await limits.prune_holdings(tx, accounts)
        if found.differences:
            await self._correct(found.differences)
        if found.forgotten:
            await self._remember(found.forgotten)
        if not accounts:
            self._metrics.invariants_checked_at.set_to_current_time()
            return CHECK_SECONDS
        return CHECK_SHARE * (self._clock.monotonic() - started_seconds)

    async def _correct(self, differences: Sequence[ExposureDifference]) -> None:
        keys = [(each.account_id, each.symbol) for each in differences]
        async with self._pool.transaction(plans="fresh") as tx:
            await limits.lock_holdings(tx, keys)
            found = await limits.find_differences(tx, [account_id for account_id, _ in keys])
            wrong = [each for each in found if (each.account_id, each.symbol) in keys]
            for each in wrong:
                await limits.set_sums(tx, each)
        for each in wrong:
            self._metrics.alert("exposure_differs")
            self._log.error(
                "exposure differs",
                account_id=str(each.account_id),
                symbol=each.symbol,
                counted=list(map(amount_text, each.counted)),
                actual=list(map(amount_text, each.actual)),
            )

    async def _remember(self, forgotten: Sequence[ForgottenOrder]) -> None:
        """Has the orders looked up that are forgotten still, now that they are locked."""
        ids = {each.order_id for each in forgotten}
        async with self._pool.transaction(plans="fresh") as tx:
            await lock_unresolved(tx, ids)
            found = await find_forgotten(tx, [each.account_id for each in forgotten])
            wrong = [each for each in found if each.order_id in ids]
            if wrong:
                statement = looking_up([each.order_id for each in wrong], 0)
                await PoolTransaction(tx).run([statement])
        for each in wrong:
            self._metrics.alert("order_forgotten")
            self._log.error("order forgotten", order=str(each.order_id), status=each.order_status)
