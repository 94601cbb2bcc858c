"""A FIX venue on a loopback port: the platform's own session as the acceptor, and a book; and the
cards' stage."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from msgspec.structs import replace

from tests.brokers.fix.acceptor import MemoryStore
from tests.brokers.fix.book import FEE, Book, Order
from trading_intents.brokers.fix import wire
from trading_intents.brokers.fix.broker import FixBroker, venues
from trading_intents.brokers.fix.messages import ReceivedMessage, SentMessage, SessionRules
from trading_intents.brokers.fix.session import FixSession
from trading_intents.brokers.port import (
    BrokerAccount,
    BrokerAdapter,
    Capabilities,
    Integration,
    IntegrationContext,
)
from trading_intents.clock import SystemClock
from trading_intents.ids import OrganizationId
from trading_intents.secret import Secret
from trading_intents.storage.database import Pool
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.telemetry import Metrics
from trading_intents.testing.broker_suite import BookedFill, BookedOrder, StageFault
from trading_intents.trading import Environment, OrderKind, OrderSide, Symbol

COMMANDS = "DFG"
STATUS_REQUEST = "H"
LOOKUP_FAULTS = frozenset({StageFault.REFUSE_LOOKUP, StageFault.LOSE_LOOKUP})
SIDES = {"1": OrderSide.BUY, "2": OrderSide.SELL, "5": OrderSide.SELL_SHORT}
KINDS = {"1": OrderKind.MARKET, "2": OrderKind.LIMIT, "3": OrderKind.STOP}
KINDS |= {"4": OrderKind.STOP_LIMIT}
TIMES = {code: time for time, code in wire.TIMES.items()}


@dataclass
class FixVenue:
    """One session's acceptor. Its numbers and its book outlive a connection."""

    begin_string: str = "FIX.4.4"
    port: int = 0
    store: MemoryStore = field(default_factory=MemoryStore)
    session: FixSession | None = None
    faults: list[StageFault] = field(default_factory=list)
    connections: int = 0
    heartbeat_seconds: int = 30
    client: str = field(default_factory=lambda: f"US-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.book = Book(send=self._send, is_old=self.begin_string == "FIX.4.2")

    @property
    def rules(self) -> SessionRules:
        return SessionRules(
            begin_string=self.begin_string,
            sender="VENUE",
            target=self.client,
            is_initiator=False,
            heartbeat_seconds=self.heartbeat_seconds,
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Gives why the session ended."""
        if self.session is not None:
            writer.close()
            return "a second connection"
        self.connections += 1
        streams = (reader, writer)
        session = FixSession(
            self.rules, self.store.numbers, self.store, streams, SystemClock(), self._on_messages
        )
        self.session = session
        try:
            await session.run()
        finally:
            # What it had numbered and could not send is kept, as a venue does that stores first.
            self.store.sent += session._pending.sent
            self.store.numbers = replace(session.numbers, next_in=self.store.numbers.next_in)
            self.session = None
        return str(session.ended)

    def _on_messages(self, batch: Sequence[ReceivedMessage]) -> None:
        for each in batch:
            self._on_message(each)

    def _on_message(self, received: ReceivedMessage) -> None:
        message = received.message
        fault = self.faults[0] if self.faults else None
        meets = STATUS_REQUEST if fault in LOOKUP_FAULTS else COMMANDS
        fault = self.faults.pop(0) if self.faults and message.type in meets else None
        if fault in (StageFault.LOSE_COMMAND, StageFault.LOSE_LOOKUP):
            return
        if fault is StageFault.REFUSE_LOOKUP:
            about = [(45, str(received.number)), (372, message.type)]
            self._send("j", [*about, (380, "4"), (58, "not now")])
            return
        if fault is StageFault.GARBLE:
            self.book.is_garbling = True
        if fault in (StageFault.DROP_ANSWER, StageFault.BREAK_LINK):
            # What it says from now on is only numbered and stored: it is sent again when it is
            # asked for.
            self.cut()
        self.book.receive(message.type, dict(reversed(message.fields)))

    def cut(self) -> None:
        if self.session:
            self.session._writer.transport.abort()

    def _send(self, msg_type: str, fields: list[tuple[int, str]]) -> None:
        if self.session is not None:
            self.session._put(msg_type, fields)
            return
        numbers = self.store.numbers
        raw = self.rules.encode(msg_type, numbers.next_out, fields, datetime.now(UTC))
        self.store.sent.append(
            SentMessage(epoch=numbers.epoch, number=numbers.next_out, type=msg_type, raw=raw)
        )
        self.store.numbers = replace(numbers, next_out=numbers.next_out + 1)


@asynccontextmanager
async def fix_venue(begin_string: str = "FIX.4.4") -> AsyncIterator[FixVenue]:
    venue = FixVenue(begin_string)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await venue.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    venue.port = server.sockets[0].getsockname()[1]
    try:
        yield venue
    finally:
        server.close()
        venue.cut()


def write_profile(folder: Path, port: int, extends: str = "generic44", **more: object) -> Path:
    lines = [f'extends = "{extends}"', 'host = "127.0.0.1"', f"port = {port}"]
    for name, value in ({"tls": False} | more).items():
        lines.append(f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}")
    path = folder / "acme.toml"
    path.write_text("\n".join(lines).replace("'", '"'))
    return path


@dataclass
class Connector:
    """Makes the adapters of one account, each as another worker would that has taken the account
    over."""

    client: str
    port: int
    pool: Pool
    transactions: GroupTransactions
    folder: Path
    extends: str = "generic44"
    account_id: UUID = field(default_factory=uuid4)
    token: int = 0
    more: dict[str, object] = field(default_factory=dict)
    shared: dict[str, object] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    def integration(self) -> Integration:
        write_profile(self.folder, self.port, self.extends, **self.more)
        (integration,) = venues.make({"FIX_VENUES": str(self.folder)})
        return integration

    def connect(self) -> FixBroker:
        self.token += 1
        broker = self.integration().connect(self.context())
        assert isinstance(broker, FixBroker)
        return broker

    def context(self) -> IntegrationContext:
        names = {
            "sender_comp_id": self.client,
            "target_comp_id": "VENUE",
            "username": "ada",
            "password": "hidden",
        }
        owner = BrokerAccount(self.account_id, OrganizationId(uuid4()), Environment.PAPER, None)
        nothing: Any = None
        return IntegrationContext(
            account=owner,
            secrets={name: Secret(value) for name, value in names.items()},
            clock=SystemClock(),
            settings={},
            database=self.pool,
            signals=nothing,
            open_transactions=lambda: self.transactions,
            shared=self.shared,
            lease_token=self.token,
            metrics=self.metrics,
        )


@dataclass
class FixStage:
    venue: FixVenue
    connector: Connector
    symbol: Symbol = Symbol("ACME")
    faults: frozenset[StageFault] = frozenset(StageFault) - {
        StageFault.BUST_FILL,
        StageFault.REFUSE_UPDATES,
    }

    def __post_init__(self) -> None:
        self.capabilities: Capabilities = self.connector.integration().capabilities

    async def connect(self) -> BrokerAdapter:
        return self.connector.connect()

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def quote(self, bid: Decimal, ask: Decimal, size: Decimal) -> None:
        self.venue.book.quote(self.symbol, bid, ask, size)

    async def fault(self, fault: StageFault) -> None:
        self.venue.faults.append(fault)

    async def book(self) -> list[BookedOrder]:
        return [_booked(order) for order in self.venue.book.orders.values()]


def _booked(order: Order) -> BookedOrder:
    fields = order.fields
    return BookedOrder(
        client_order_ids=tuple(order.names),
        side=SIDES[fields[54]],
        kind=KINDS[fields[40]],
        quantity=order.quantity,
        limit_price=Decimal(fields[44]) if 44 in fields else None,
        stop_price=Decimal(fields[99]) if 99 in fields else None,
        time_in_force=TIMES[fields[59]],
        fills=tuple(BookedFill(quantity, price, FEE) for quantity, price in order.fills),
    )
