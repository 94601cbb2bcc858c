"""The stage of the broker cards at the simulator of Alpaca, and what an integration is handed
there."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from tests.brokers.alpaca.book import Account
from tests.brokers.alpaca.groups import is_leg
from tests.brokers.alpaca.order import Order
from tests.brokers.alpaca.simulator import Fault, Simulator
from tests.proxy import Verdict
from trading_intents.brokers.alpaca.broker import INTEGRATION, AlpacaBroker
from trading_intents.brokers.alpaca.wire import CAPABILITIES
from trading_intents.brokers.port import (
    BrokerAccount,
    BrokerAdapter,
    Capabilities,
    IntegrationContext,
)
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.testing.broker_cards import CARDS
from trading_intents.testing.broker_suite import BookedFill, BookedOrder, CardRun, StageFault
from trading_intents.trading import Environment, OrderKind, OrderSide, Symbol, TimeInForce

FAULTS = {
    StageFault.DROP_ANSWER: Fault("close", takes=True),
    StageFault.LOSE_COMMAND: Fault("close", takes=False),
    StageFault.BREAK_LINK: Fault("break", takes=True),
    StageFault.REFUSE_LOOKUP: Fault("page", takes=False, methods=("GET",), status=403),
    StageFault.LOSE_LOOKUP: Fault("close", takes=False, methods=("GET",)),
}

_T = TimeInForce
TIMES = {"day": _T.DAY, "gtc": _T.GOOD_TILL_CANCEL, "opg": _T.AT_OPEN, "cls": _T.AT_CLOSE} | {
    "ioc": _T.IMMEDIATE_OR_CANCEL,
    "fok": _T.FILL_OR_KILL,
}


@dataclass
class AlpacaStage:
    simulator: Simulator
    account: Account
    symbol: Symbol = Symbol("ACME")
    capabilities: Capabilities = CAPABILITIES
    faults: frozenset[StageFault] = frozenset(StageFault)
    url: str | None = None  # the fault proxy's, where there is one
    shared: dict[str, object] = field(default_factory=dict)

    async def connect(self) -> BrokerAdapter:
        return INTEGRATION.connect(self.context())

    def context(self, external_account_id: str | None = None) -> IntegrationContext:
        url = self.url or self.simulator.url
        settings = {"ALPACA_PAPER_URL": url, "ALPACA_LIVE_URL": url}
        secrets = {
            "api_key_id": Secret(self.account.key),
            "api_secret": Secret(self.account.secret),
        }
        owner = BrokerAccount(
            uuid4(), OrganizationId(uuid4()), Environment.PAPER, external_account_id
        )
        nothing: Any = None
        return IntegrationContext(
            account=owner,
            secrets=secrets,
            clock=SystemClock(),
            settings=settings,
            database=nothing,
            signals=nothing,
            open_transactions=nothing,
            shared=self.shared,
        )

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.account.quote(self.symbol, bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        if fault is StageFault.BUST_FILL:
            self.account.bust(self.account.activities[-1]["ref_id"])
        elif fault is StageFault.REFUSE_UPDATES:
            self.simulator.refuses_streams = True
        elif fault is StageFault.GARBLE:
            self.account.is_garbling = True
        else:
            self.simulator.faults.append(FAULTS[fault])

    async def book(self) -> list[BookedOrder]:
        """Alpaca makes a new order of each REPLACE: the last ones stand for their versions."""
        orders = [each for each in self.account.orders.values() if not is_leg(each)]
        ids = {each.json["id"] for each in orders}  # a leg may replace the order beside it
        return [self._booked(each) for each in orders if each.json["replaced_by"] not in ids]

    def _booked(self, last: Order) -> BookedOrder:
        versions = [last]
        while versions[0].json["replaces"]:
            versions.insert(0, self.account.orders[versions[0].json["replaces"]])
        names = {each.json["id"]: each.json["client_order_id"] for each in versions}
        fills = []
        for row in self.account.activities:
            details = row["details"]
            is_fill = details["execution_type"] == "fill" and row["qty"] != "?"
            if is_fill and details["order_id"] in names:
                fills.append(BookedFill(Decimal(row["qty"]), Decimal(row["price"])))
        before = sum((each.filled for each in versions[:-1]), Decimal(0))
        is_buy = last.json["side"] == "buy"
        is_short = last.json["position_intent"] == "sell_to_open"
        sell = OrderSide.SELL_SHORT if is_short and "/" not in self.symbol else OrderSide.SELL
        return BookedOrder(
            client_order_ids=tuple(names.values()),
            side=OrderSide.BUY if is_buy else sell,
            kind=OrderKind[last.json["type"].upper()],
            quantity=before + last.qty,
            limit_price=last.price("limit_price"),
            stop_price=last.price("stop_price"),
            time_in_force=TIMES[last.json["time_in_force"]],
            fills=tuple(fills),
        )

    async def open_session(self, **options: float) -> CardRun:
        """Opens a session and collects its events. `options` are the times of watchdog and
        polls."""
        run = CardRun(stage=self, broker=AlpacaBroker(self.context(), **options))
        try:
            await run.open()
        except BaseException:
            await run.broker.close()
            raise
        return run


@dataclass
class CutRequests:
    """Makes the fault proxy cut the next request that holds a text, such as b"POST /v2/orders"."""

    text: bytes = b""
    verdict: Verdict = Verdict.PASS

    def __call__(self, data: bytes) -> Verdict:
        if not self.text or self.text not in data:
            return Verdict.PASS
        self.text = b""
        return self.verdict


MEANT = [card for card in CARDS if card.needs(CAPABILITIES)]
