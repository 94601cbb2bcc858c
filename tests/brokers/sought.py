"""An order to look up, as the platform names it."""

from decimal import Decimal

from trading_intents.brokers.port import SentOrder
from trading_intents.trading import OrderKind, OrderSide, Symbol


def sought(client_order_id: str, broker_order_id: str | None = None) -> SentOrder:
    return SentOrder(
        client_order_id=client_order_id,
        broker_order_id=broker_order_id,
        symbol=Symbol("ACME"),
        side=OrderSide.BUY,
        kind=OrderKind.LIMIT,
        quantity=Decimal(10),
    )
