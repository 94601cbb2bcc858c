"""Use cases of balances: read what the broker last told."""

from trading_intents.accounts.model import Account
from trading_intents.balances import store
from trading_intents.brokers.port import BrokerBalance
from trading_intents.storage.database import Pool


class Balances:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, account: Account) -> BrokerBalance | None:
        """None: the broker told none."""
        async with self._pool.transaction([account.organization_id], read_only=True, plans="by_key") as tx:
            return await store.find_balance(tx, account.id)
