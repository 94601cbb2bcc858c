"""Use cases of balances: read what the broker last reported, or what a simulation would report
now."""

from collections.abc import Mapping
from datetime import datetime

from trading_intents.accounts.model import Account
from trading_intents.balances import store
from trading_intents.balances.model import EquityPoint, Resolution
from trading_intents.brokers.port import BrokerBalance, Simulation
from trading_intents.storage.database import Pool


class Balances:
    def __init__(self, pool: Pool, simulations: Mapping[str, Simulation]) -> None:
        self._pool = pool
        self._simulations = simulations

    async def find(self, account: Account) -> BrokerBalance | None:
        """None: the broker reported none."""
        own = account.organization_id
        simulation = self._simulations.get(account.broker)
        async with self._pool.transaction([own], read_only=True, isolation="repeatable read") as tx:
            simulated = await simulation.value(tx, own, account.id) if simulation else None
            return simulated or await store.find_balance(tx, account.id)

    async def list_points(
        self, account: Account, resolution: Resolution, start: datetime, end: datetime
    ) -> list[EquityPoint]:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            return await store.list_points(tx, account.id, resolution, start, end)
