"""The present reports of the venue: the walk's prices, and the balance of an account."""

from datetime import datetime
from uuid import UUID

from trading_intents.brokers.paper import store
from trading_intents.brokers.paper.prices import CENT, tick_number, tick_time, walk_middle_cents
from trading_intents.brokers.paper.venue.valuation import Valuation
from trading_intents.brokers.port import BrokerBalance, SimulatedPrice
from trading_intents.ids import OrganizationId
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Tx
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
        totals = await store.find_totals(tx, account_id)
        if totals is None:
            return None
        held = await store.list_positions(tx, account_id)
        quotes = await store.find_last_quotes(tx, organization_id, list(held))
        valuation = Valuation(self.seed)
        valuation.load(held, quotes, totals.events)
        return valuation.balance(totals, await read_clock(tx))
