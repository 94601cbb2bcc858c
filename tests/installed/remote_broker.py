"""A broker for tests that want one beside paper: it has live accounts, needs a credential, and
cannot be reached. The folder is on the path of every platform that a test starts, as if the package
were installed."""

from collections.abc import AsyncIterator, Sequence
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
    SentOrder,
    StreamGap,
)
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce

AWAY = "it cannot be reached"

_T = TimeInForce
_AUCTION_TIMES = (
    *(_T.DAY, _T.GOOD_TILL_CANCEL, _T.IMMEDIATE_OR_CANCEL, _T.FILL_OR_KILL),
    *(_T.AT_OPEN, _T.AT_CLOSE),
)
CAPABILITIES = Capabilities(
    name="remote",
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


class RemoteBroker:
    name = CAPABILITIES.name
    capabilities = CAPABILITIES

    async def open(self) -> None:
        raise BrokerUnavailable(AWAY)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.NOT_SENT, message=AWAY)

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.NOT_SENT, message=AWAY)

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.NOT_SENT, message=AWAY)

    async def lookup(self, order: SentOrder, deadline: float) -> Lookup:
        return LookupUnknown(AWAY)

    async def events(self) -> AsyncIterator[BrokerEvent | StreamGap]:
        none: tuple[StreamGap, ...] = ()
        for event in none:
            yield event

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        raise BrokerUnavailable(AWAY)

    async def close(self) -> None:
        pass


def connect(context: IntegrationContext) -> RemoteBroker:
    return RemoteBroker()


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, connect)
