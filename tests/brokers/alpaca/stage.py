"""The stage of the broker cards at the simulator of Alpaca, and what an integration is handed there."""

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from tests.brokers.alpaca.book import Account
from tests.brokers.alpaca.simulator import Fault, Simulator
from trading_intents.brokers.alpaca.broker import INTEGRATION
from trading_intents.brokers.alpaca.wire import CAPABILITIES
from trading_intents.brokers.port import BrokerAccount, BrokerAdapter, Capabilities, IntegrationContext
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.testing.broker_suite import StageFault
from trading_intents.trading import Environment, Symbol

FAULTS = {
    StageFault.DROP_ANSWER: Fault("close", takes=True),
    StageFault.LOSE_COMMAND: Fault("close", takes=False),
    StageFault.BREAK_LINK: Fault("break", takes=True),
}


@dataclass
class AlpacaStage:
    simulator: Simulator
    account: Account
    symbol: Symbol = Symbol("ACME")
    capabilities: Capabilities = CAPABILITIES
    faults: frozenset[StageFault] = frozenset(FAULTS)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def client_order_id(self) -> str:
        return f"c{next(self._numbers)}"

    async def connect(self) -> BrokerAdapter:
        return INTEGRATION.connect(context(self.simulator, self.account))

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.account.quote(self.symbol, bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        self.simulator.faults.append(FAULTS[fault])


def context(simulator: Simulator, account: Account, **more: Any) -> IntegrationContext:
    settings = {"ALPACA_PAPER_URL": simulator.url, "ALPACA_LIVE_URL": simulator.url}
    secrets = {"api_key_id": Secret(account.key), "api_secret": Secret(account.secret)}
    owner = BrokerAccount(uuid4(), OrganizationId(uuid4()), Environment.PAPER, more.pop("external_account_id", None))
    nothing: Any = None
    shared: dict[str, object] = more.pop("shared", {})
    return IntegrationContext(owner, secrets, SystemClock(), settings, nothing, nothing, nothing, shared)
