"""The present reports of the venue: the walk's prices, and the balance of an account."""

from datetime import datetime
from uuid import UUID

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.model import PaperAccount
from trading_intents.brokers.paper.prices import CENT, tick_number, tick_time, walk_middle_cents
from trading_intents.brokers.paper.venue.valuation import Valuation
from trading_intents.brokers.port import BrokerBalance, SimulatedPrice
from trading_intents.ids import OrganizationId
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import FrozenStruct, Symbol, normalized


class PaperSimulation(FrozenStruct):
    seed: int

    def price(self, symbol: Symbol, now: datetime) -> SimulatedPrice:
        tick = tick_number(now)
        return SimulatedPrice(
            normalized(walk_middle_cents(self.seed, symbol, tick) * CENT), tick_time(tick)
        )

    async def value(
        self, tx: Tx, organization_id: OrganizationId, account_id: UUID
    ) -> BrokerBalance | None:
        """Cash and positions as the venue has them, at the prices of now."""
        run = PoolTransaction(tx).run
        found, held, clock = await run(
            [store.read_account(account_id), store.list_holdings([account_id]), store.READ_CLOCK]
        )
        for account in found.parse(PaperAccount):
            positions = store.parse_positions(held)
            asked = [store.AskedQuotes(organization_id, account_id, each) for each in positions]
            (posted,) = await run([store.list_quotes(asked)])
            valuation = Valuation(self.seed)
            valuation.load(store.parse_last(posted))
            return valuation.balance(account, positions, clock.parse(datetime)[0])
        return None
