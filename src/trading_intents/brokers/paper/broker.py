"""The paper broker's capabilities, and its link: the broker port over the book in the database."""

from decimal import Decimal

from trading_intents.brokers.port import (
    Broker,
    BrokerUnavailable,
    Capabilities,
    Integration,
    IntegrationContext,
    LookupKind,
    PriceTick,
)
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce

_TIMES = (
    TimeInForce.DAY,
    TimeInForce.GOOD_TILL_CANCEL,
    TimeInForce.IMMEDIATE_OR_CANCEL,
    TimeInForce.FILL_OR_KILL,
)
CAPABILITIES = Capabilities(
    name="paper",
    environments=(Environment.PAPER,),
    times_in_force=dict.fromkeys(OrderKind, _TIMES),
    routes=(RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=(),
    quantity_step=Decimal("0.000000001"),
    price_ticks=(PriceTick(Decimal(0), Decimal("0.0001")), PriceTick(Decimal(1), Decimal("0.01"))),
    lookup=LookupKind.DURABLE,
)


def connect(context: IntegrationContext) -> Broker:
    raise BrokerUnavailable("the paper broker is not built yet")


INTEGRATION = Integration(CAPABILITIES.name, CAPABILITIES, connect)
