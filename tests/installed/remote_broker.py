"""Alpaca's capabilities, and a link that cannot be opened yet. Never sends anything."""

from collections.abc import AsyncIterator
from datetime import datetime

from trading_intents.brokers.port import (
    AccountSnapshot,
    BrokerEvent,
    BrokerUnavailable,
    Capabilities,
    CommandResult,
    Integration,
    IntegrationContext,
    Lookup,
    LookupUnknown,
    OrderTicket,
    Outcome,
    StreamGap,
)
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce

NOT_BUILT = "the link to Alpaca is not built yet"

_T = TimeInForce
_AUCTION_TIMES = (
    *(_T.DAY, _T.GOOD_TILL_CANCEL, _T.IMMEDIATE_OR_CANCEL, _T.FILL_OR_KILL),
    *(_T.AT_OPEN, _T.AT_CLOSE),
)
CAPABILITIES = Capabilities(
    name="alpaca",
    environments=(Environment.PAPER, Environment.LIVE),
    times_in_force={
        OrderKind.MARKET: _AUCTION_TIMES,
        OrderKind.LIMIT: (*_AUCTION_TIMES, _T.EXT),
        OrderKind.STOP: (_T.DAY, _T.GOOD_TILL_CANCEL),
        OrderKind.STOP_LIMIT: (_T.DAY, _T.GOOD_TILL_CANCEL),
    },
    routes=(RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=("api_key_id", "api_secret"),
)


class AlpacaBroker:
    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    async def open(self) -> None:
        raise BrokerUnavailable(NOT_BUILT)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.NOT_SENT, message=NOT_BUILT)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.NOT_SENT, message=NOT_BUILT)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.NOT_SENT, message=NOT_BUILT)

    async def lookup(self, client_order_id: str, broker_order_id: str | None, deadline: float) -> Lookup:
        return LookupUnknown(NOT_BUILT)

    async def events(self) -> AsyncIterator[BrokerEvent | StreamGap]:
        none: tuple[StreamGap, ...] = ()
        for event in none:
            yield event

    async def snapshot(self, since: datetime) -> AccountSnapshot:
        raise BrokerUnavailable(NOT_BUILT)

    async def close(self) -> None:
        pass


def connect(context: IntegrationContext) -> AlpacaBroker:
    return AlpacaBroker()


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, connect)
