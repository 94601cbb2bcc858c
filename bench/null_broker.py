"""A broker that costs nothing, so that what remains is the platform: it acknowledges every order,
fills market orders at once, lets the others rest, and keeps all of it in memory. Its events carry
the moment at which it had the command.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from trading_intents.brokers.port import (
    AccountSnapshot,
    BrokerEvent,
    Capabilities,
    CommandResult,
    EventKind,
    Integration,
    IntegrationContext,
    Lookup,
    LookupUnknown,
    OrderTicket,
    Outcome,
    SentOrder,
)
from trading_intents.trading import Environment, OrderKind, RouteStrategy, TimeInForce

NAME = "null"
PRICE = Decimal(100)
CAPABILITIES = Capabilities(
    name=NAME,
    environments=(Environment.PAPER,),
    times_in_force=dict.fromkeys((OrderKind.MARKET, OrderKind.LIMIT), (TimeInForce.DAY,)),
    routes=(RouteStrategy.SMART,),
    native_replace=False,
    credential_fields=(),
    calls_at_once=50,
)


class NullBroker:
    name = NAME
    capabilities = CAPABILITIES

    def __init__(self, context: IntegrationContext) -> None:
        self._events: asyncio.Queue[BrokerEvent | None] = asyncio.Queue()

    async def open(self) -> None:
        pass

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        name = ticket.client_order_id
        now = datetime.now(UTC)
        accepted = _event(EventKind.ACCEPTED, name, ticket, now)
        if ticket.kind is OrderKind.MARKET:
            self._events.put_nowait(_event(EventKind.FILL, name, ticket, now))
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=name, updates=(accepted,))

    async def replace(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        return CommandResult(outcome=Outcome.REJECTED, code="no native replace")

    async def cancel(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        name = ticket.orig_client_order_id or ""
        self._events.put_nowait(_event(EventKind.CANCELLED, name, ticket, datetime.now(UTC)))
        return CommandResult(outcome=Outcome.ACKED, broker_order_id=name)

    async def lookup(self, order: SentOrder, deadline: float) -> Lookup:
        return LookupUnknown("this broker looks nothing up")

    async def events(self) -> AsyncIterator[BrokerEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def snapshot(self, since: datetime, open_orders: Sequence[SentOrder]) -> AccountSnapshot:
        return AccountSnapshot(
            taken_at=datetime.now(UTC), open_orders=(), executions=(), positions=None
        )

    async def close(self) -> None:
        self._events.put_nowait(None)


def _event(kind: EventKind, name: str, ticket: OrderTicket, now: datetime) -> BrokerEvent:
    is_fill = kind is EventKind.FILL
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"{name}:{kind}",
        client_order_id=name,
        broker_order_id=name,
        exec_id=name if is_fill else None,
        symbol=ticket.symbol,
        side=ticket.side,
        quantity=ticket.quantity if is_fill else None,
        price=PRICE if is_fill else None,
        cum_quantity=ticket.quantity if is_fill else None,
        venue_time=now,
    )


INTEGRATION = Integration(NAME, CAPABILITIES, NullBroker)


def install(folder: Path) -> str:
    """Makes an entry point for it; gives the PYTHONPATH of a platform that has it."""
    package = folder / "installed" / "null_broker-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: null-broker\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[trading_intents.brokers]\n{NAME} = null_broker:INTEGRATION\n"
    )
    return f"{package.parent}:{Path(__file__).parent}"
