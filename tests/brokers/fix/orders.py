"""Orders, and sessions that a test opens and ends against a counterparty that it plays itself."""

import asyncio
import itertools
import time
from decimal import Decimal

from tests.brokers.fix.counterparty import WAIT_SECONDS, Counterparty
from tests.brokers.fix.venue import Connector
from trading_intents.brokers.fix.broker import FixBroker
from trading_intents.brokers.port import CommandResult, OrderTicket
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce

IDS = itertools.count(1)


def a_ticket(seconds: float | None = 30.0) -> OrderTicket:
    """`seconds`: until it is too old."""
    return OrderTicket(
        client_order_id=f"o{next(IDS)}",
        symbol=Symbol("ACME"),
        side=OrderSide.BUY,
        kind=OrderKind.LIMIT,
        quantity=Decimal(10),
        limit_price=Decimal(100),
        time_in_force=TimeInForce.DAY,
        not_after=None if seconds is None else time.monotonic() + seconds,
    )


def submit(
    broker: FixBroker, ticket: OrderTicket, seconds: float = 5.0
) -> "asyncio.Task[CommandResult]":
    return asyncio.create_task(broker.submit(ticket, time.monotonic() + seconds))


async def opened(connector: Connector, other: Counterparty) -> FixBroker:
    broker = connector.connect()
    await asyncio.gather(broker.open(), other.log_on())
    return broker


async def end(broker: FixBroker, other: Counterparty) -> None:
    """The counterparty leaves, so that nobody waits for its logout."""
    other.writer.transport.abort()
    await broker.close()


async def expect_working(broker: FixBroker, other: Counterparty) -> None:
    """The session takes an order, and its answer."""
    sending = submit(broker, a_ticket(WAIT_SECONDS), WAIT_SECONDS)
    other.report(await other.expect("D"))
    assert (await sending).outcome.value == "ACKED"


async def until_ended(broker: FixBroker) -> str:
    """Waits until the session has ended, and gives the reason."""
    assert broker._running
    assert broker._session
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.wait({broker._running})
    return str(broker._session.ended)
