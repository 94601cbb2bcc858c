"""Blotters of the live screen, and events for them, that a test makes up."""

from datetime import UTC, datetime
from decimal import Decimal

from trading_intents_client import (
    ConnectionState,
    Environment,
    OrderEvent,
    OrderState,
    OrderStatus,
    TradingAccount,
)
from trading_intents_client.cli.watch.blotter import Blotter
from trading_intents_client.stream.events import StreamedOrder

AT = datetime(2026, 1, 5, 15, tzinfo=UTC)


def blotter(environment: Environment = Environment.PAPER) -> Blotter:
    account = TradingAccount(
        id="a",
        organization_id="o",
        name="sim",
        broker="paper",
        environment=environment,
        external_account_id=None,
        disabled=False,
        connection=ConnectionState.CONNECTED,
        created_at=AT,
        updated_at=AT,
        closed_at=None,
        version=1,
    )
    return Blotter(account, "http://127.0.0.1:8080")


def order_event(number: int, version: int, status: OrderStatus = OrderStatus.NEW) -> OrderEvent:
    order = StreamedOrder(
        order_id=f"o{number:06}",
        intent_id=f"o{number:06}",
        account_id="a",
        organization_id="o",
        symbol=f"S{number}",
        order_state=OrderState.OPEN,
        order_status=status,
        quantity=Decimal(10),
        version=version,
    )
    return OrderEvent(order=order, cursor=f"c{number}-{version}")
