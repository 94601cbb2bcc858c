"""Records accounts' equity over time, with the results by which daily losses are judged."""

from datetime import datetime
from uuid import UUID

from msgspec.structs import astuple

from trading_intents.balances import store
from trading_intents.balances.model import EquityValues, LastEquity
from trading_intents.controls.limits.state.losses import AccountResults
from trading_intents.controls.limits.state.statements import read_results
from trading_intents.prices.model import PriceRules
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import exact, normalized

PAGE_ACCOUNTS = 200
NO_ACCOUNT = UUID(int=0)
LATE_SECONDS = 0.1  # after a minute's end, so that the timer is not early


class EquityRecorder:
    def __init__(self, pool: Pool, prices: PriceRules) -> None:
        self._pool = pool
        self._prices = prices

    async def record(self) -> float:
        """Records what changed as the last minute's values, in one process; gives the seconds until
        the next minute's end. A process that dies midway leaves the rest to the next minute."""
        async with self._pool.transaction() as tx:
            span = await store.find_due_span(tx)
            after = await self._record_page(tx, span.at, NO_ACCOUNT) if span.at else None
        while span.at and after:
            async with self._pool.transaction() as tx:
                after = await self._record_page(tx, span.at, after)
        return span.left_seconds + LATE_SECONDS

    async def _record_page(self, tx: Tx, span: datetime, after: UUID) -> UUID | None:
        """Gives the last account; None: there are no more."""
        accounts = await store.page_equity(tx, after, PAGE_ACCOUNTS)
        if not accounts:
            return None
        ids = [str(account.id) for account in accounts]
        (reply,) = await PoolTransaction(tx).run([read_results(ids)])
        results = AccountResults(reply.texts(), self._prices)
        changed = {}
        for account in accounts:
            values = _values(account, results)
            if astuple(values) != account.last:
                changed[account.id, account.organization_id] = values
        if changed:
            await store.write_points(tx, span, changed)
        return accounts[-1].id


def _values(account: LastEquity, results: AccountResults) -> EquityValues:
    account_id = str(account.id)
    realized = results.realized[account_id]
    with exact():
        unrealized = results.results[account_id] - realized
    return EquityValues(account.equity, account.cash, normalized(realized), normalized(unrealized))
