"""The stage of the broker cards at a simulator of a venue."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from simulator import Simulator
from spot_book import BASE, QUOTE, SpotOrder

from trading_intents.brokers.port import (
    BrokerAccount,
    BrokerAdapter,
    Capabilities,
    IntegrationContext,
)
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.testing.broker_suite import BookedFill, BookedOrder, StageFault
from trading_intents.trading import Environment, OrderKind, OrderSide, Symbol
from trading_intents_ccxt.session import CcxtBroker
from trading_intents_ccxt.venues import TIMES, Venue

SYMBOL = Symbol(f"{BASE}/{QUOTE}")
QUICK = {"poll_seconds": 0.05, "quick_seconds": 0.01, "watch_seconds": 0.5}
OUR_TIMES = {theirs: ours for ours, theirs in TIMES.items()}
# There is no stream that could be refused, and a venue of coins takes no execution back.
NOT_PLAYED = frozenset({StageFault.BUST_FILL, StageFault.REFUSE_UPDATES})


@dataclass
class CcxtStage:
    venue: Venue
    simulator: Simulator
    url: str
    symbol: Symbol = SYMBOL
    faults: frozenset[StageFault] = frozenset(StageFault) - NOT_PLAYED
    shared: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.capabilities: Capabilities = self.venue.capabilities

    async def connect(self) -> BrokerAdapter:
        return CcxtBroker(self.venue, self.context(), **QUICK)

    def context(self) -> IntegrationContext:
        nothing: Any = None
        secrets = self.simulator.credentials
        return IntegrationContext(
            account=BrokerAccount(uuid4(), OrganizationId(uuid4()), Environment.PAPER, None),
            secrets={name: Secret(value) for name, value in secrets.items()},
            clock=SystemClock(),
            settings={self.venue.setting(Environment.PAPER): self.url},
            database=nothing,
            signals=nothing,
            open_transactions=nothing,
            shared=self.shared,
        )

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.simulator.book.quote(bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        if fault is StageFault.GARBLE:
            self.simulator.book.is_garbling = True
        else:
            self.simulator.faults.append(fault)

    async def book(self) -> list[BookedOrder]:
        return [_booked(order) for order in self.simulator.book.orders]


def _booked(order: SpotOrder) -> BookedOrder:
    fills = [
        BookedFill(trade.quantity, trade.price, trade.fee if trade.fee_coin == QUOTE else None)
        for trade in order.trades
    ]
    is_market = order.limit is None
    return BookedOrder(
        client_order_ids=(order.name,),
        side=OrderSide.BUY if order.is_buy else OrderSide.SELL,
        kind=OrderKind.MARKET if is_market else OrderKind.LIMIT,
        quantity=order.quantity,
        limit_price=order.limit,
        time_in_force=OUR_TIMES["IOC" if is_market else order.time],
        fills=tuple(fills),
    )
