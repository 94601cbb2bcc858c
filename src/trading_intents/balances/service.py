"""Use cases of balances: read what the broker last told, or at the built-in paper broker what it would tell now."""

from datetime import datetime

from trading_intents.accounts.model import Account
from trading_intents.balances import store
from trading_intents.balances.model import EquityPoint, Resolution
from trading_intents.brokers.paper import store as paper_store
from trading_intents.brokers.paper.model import CAPABILITIES as PAPER
from trading_intents.brokers.paper.venue.valuation import Valuation
from trading_intents.brokers.port import BrokerBalance
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool, Tx


class Balances:
    def __init__(self, pool: Pool, paper_seed: int) -> None:
        self._pool, self._paper_seed = pool, paper_seed

    async def find(self, account: Account) -> BrokerBalance | None:
        """None: the broker told none."""
        own = [account.organization_id]
        async with self._pool.transaction(own, read_only=True, isolation="repeatable read", plans="by_key") as tx:
            is_paper = account.broker == PAPER.name
            return (await self._value(tx, account) if is_paper else None) or await store.find_balance(tx, account.id)

    async def list_points(
        self, account: Account, resolution: Resolution, start: datetime, end: datetime
    ) -> list[EquityPoint]:
        async with self._pool.transaction([account.organization_id], read_only=True, plans="by_key") as tx:
            return await store.list_points(tx, account.id, resolution, start, end)

    async def _value(self, tx: Tx, account: Account) -> BrokerBalance | None:
        """Cash and positions as the venue has them, at the prices of now. None: the account was never opened there."""
        totals = await paper_store.find_totals(tx, account.id)
        if totals is None:
            return None
        held = await paper_store.list_positions(tx, account.id)
        quotes = await paper_store.find_last_quotes(tx, account.organization_id, list(held))
        valuation = Valuation(self._paper_seed)
        valuation.load(held, quotes, totals.events)
        return valuation.balance(totals, await read_clock(tx))
