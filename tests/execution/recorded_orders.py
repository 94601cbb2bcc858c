"""An account whose orders are submitted through the real writer, sent by nobody, and reported by
the test."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tests.conftest import Urls
from tests.intents.in_process_writer import open_in_process_writer
from tests.journal import ALL_ROWS, read_messages
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.errors import Unavailable
from trading_intents.ids import OrganizationId
from trading_intents.intents.model import Cancel, Command, Create, Replace, Spec
from trading_intents.intents.writing.batch import Receipt
from trading_intents.orders.facts import FactKind, client_order_id
from trading_intents.orders.ledger.matching import AccountRecording, AccountRef, PlatformFact
from trading_intents.orders.ledger.recording import (
    RecordedAccount,
    publish_statements,
    record,
    write_statements,
)
from trading_intents.orders.store import find_unprotected
from trading_intents.storage.database import Database, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.stream import trading_pb2
from trading_intents.stream.model import EventType
from trading_intents.trading import Environment, OrderKind, OrderSide, RouteStrategy, Symbol

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
D = Decimal


@dataclass(frozen=True)
class Sent:
    """A command that the broker was sent, and the order that it is about."""

    order_id: UUID
    client_order_id: str
    seq: int


Commit = Callable[[UUID, Command, str | None], Awaitable[tuple[UUID, int]]]


async def record_account(
    tx: Tx,
    trading_client: AccountRef,
    events: Sequence[BrokerEvent],
    own: Sequence[PlatformFact] = (),
) -> RecordedAccount:
    """As a whole transaction of the recorder, in the caller's."""
    runner = PoolTransaction(tx)
    (recorded,), _ = await record(runner, [AccountRecording(trading_client, events, own)])
    await runner.run([*write_statements([recorded]), *publish_statements([recorded])])
    return recorded


@dataclass
class Books:
    owner: asyncpg.Connection
    organization: UUID
    accounts: list[UUID]
    database: Database
    commit: Commit

    def trading_client(self, account: int = 0) -> AccountRef:
        return AccountRef(
            self.accounts[account], OrganizationId(self.organization), Environment.PAPER, "paper"
        )

    async def create(
        self,
        quantity: str = "100",
        *,
        symbol: str = "AAPL",
        side: str = "BUY",
        limit: str | None = None,
        account: int = 0,
        reference: str | None = None,
    ) -> Sent:
        spec = Spec(
            kind=OrderKind.LIMIT if limit else OrderKind.MARKET,
            quantity=quantity,
            limit_price=limit,
            stop_price=None,
            trail_amount=None,
        )
        return await self.submit(
            Create(Symbol(symbol), OrderSide(side), RouteStrategy.SMART, spec), account, reference
        )

    async def replace(self, order: Sent, quantity: str, limit: str | None = None) -> Sent:
        spec = Spec(
            kind=OrderKind.LIMIT if limit else OrderKind.MARKET,
            quantity=quantity,
            limit_price=limit,
            stop_price=None,
            trail_amount=None,
        )
        return await self.submit(Replace(str(order.order_id), spec))

    async def cancel(self, order: Sent) -> Sent:
        return await self.submit(Cancel(str(order.order_id)))

    async def submit(
        self, command: Command, account: int = 0, reference: str | None = None
    ) -> Sent:
        """Committed, and marked as sent."""
        account_id = self.accounts[account]
        order_id, seq = await self.commit(account_id, command, reference)
        query = "SELECT action_id, action_type FROM actions WHERE account_id = $1 AND seq = $2"
        action = await self.owner.fetchrow(query, account_id, seq)
        sent = Sent(order_id, client_order_id(action["action_id"]), seq)
        await self.owner.execute(
            """
                INSERT INTO commands (account_id, client_order_id, organization_id, order_id, seq,
                    action_type, sent_at)
            """
            " VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())",
            account_id,
            sent.client_order_id,
            self.organization,
            sent.order_id,
            sent.seq,
            action["action_type"],
        )
        return sent

    async def record(
        self, *events: BrokerEvent, own: tuple[PlatformFact, ...] = (), account: int = 0
    ) -> RecordedAccount:
        while True:
            try:
                async with self.database.worker.transaction(plans="by_key") as tx:
                    return await record_account(tx, self.trading_client(account), events, own)
            except (Unavailable, asyncpg.UniqueViolationError):
                continue  # another one wrote the same position or fact: read again

    async def order(self, order: Sent) -> dict[str, Any]:
        return dict(
            await self.owner.fetchrow("SELECT * FROM orders WHERE order_id = $1", order.order_id)
        )

    async def unprotected(self) -> frozenset[str]:
        """As every reader sees it; the last event of each such order must say the same."""
        async with self.database.worker.transaction(read_only=True) as tx:
            found = frozenset(await find_unprotected(tx, self.accounts[0]))
        published = {
            event.order_id: "unprotected" in event.flags
            for event in await self.events()
            if isinstance(event, trading_pb2.BrokerOrder)
            and event.account_id == str(self.accounts[0])
        }
        assert {order_id for order_id, is_flagged in published.items() if is_flagged} == found
        rows = await self.owner.fetch(
            "SELECT order_id FROM orders WHERE 'unprotected' = ANY (flags)"
        )
        assert rows == [], "it is never stored"
        return found

    async def wait_until_uncovered(self) -> None:
        """As if five seconds had gone."""
        await self.owner.execute(
            """
                UPDATE orders SET uncovered_since = uncovered_since - interval '5 s',
                    updated_at = updated_at - interval '5 s'
                WHERE uncovered_since IS NOT NULL AND account_id = ANY ($1)
            """,
            self.accounts,
        )

    async def trades(self, order: Sent) -> dict[str, dict[str, Any]]:
        rows = await self.owner.fetch(
            "SELECT * FROM trades WHERE order_id = $1 ORDER BY booking", order.order_id
        )
        return {row["exec_id"]: dict(row) for row in rows}

    async def filled(self, order: Sent) -> list[tuple[str, str, str]]:
        """Execution, quantity and price, as booked."""
        trades = await self.trades(order)
        return [
            (exec_id, f"{row['quantity']:f}", f"{row['price']:f}")
            for exec_id, row in trades.items()
        ]

    async def position(self, symbol: str = "AAPL", account: int = 0) -> dict[str, Any]:
        return dict(
            await self.owner.fetchrow(
                "SELECT * FROM holdings WHERE account_id = $1 AND symbol = $2",
                self.accounts[account],
                symbol,
            )
        )

    async def events(self) -> list[Any]:
        """Those of orders, trades and positions, each as its message."""
        messages = read_messages(await self.owner.fetch(ALL_ROWS))
        events = [each.event for each in messages if each.kind != EventType.INTENT_ACTION]
        return [getattr(event, event.WhichOneof("event")) for event in events]

    async def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every table that a broker's report may change."""
        tables = (
            "orders",
            "trades",
            "holdings",
            "reference_prices",
            "balances",
            "commands",
            "stats_buckets",
            "stats_entries",
            "reports",
            "stream_heads",
        )
        return {
            table: await self.owner.fetch(f"SELECT * FROM {table} ORDER BY {table}::text")
            for table in tables
        }


@contextlib.asynccontextmanager
async def open_books(urls: Urls, database: Database, accounts: int = 1) -> AsyncIterator[Books]:
    async with open_in_process_writer(urls.login, urls.owner, accounts) as in_process_writer:

        async def commit(
            account_id: UUID, command: Command, reference: str | None
        ) -> tuple[UUID, int]:
            receipt = await in_process_writer.submit(
                in_process_writer.command(account_id, command, reference)
            )
            assert isinstance(receipt, Receipt), receipt
            return UUID(receipt.intent_id), receipt.seq

        yield Books(
            in_process_writer.owner,
            in_process_writer.organization,
            in_process_writer.accounts,
            database,
            commit,
        )


async def limit(books: Books, **limits: object) -> None:
    """Gives the first account these limits, or takes all of them away."""
    await books.owner.execute("DELETE FROM trading_limits WHERE owner_id = $1", books.accounts[0])
    if limits:
        await books.owner.execute(
            "INSERT INTO trading_limits (owner_id, organization_id, rules) VALUES ($1, $2, $3)",
            books.accounts[0],
            books.organization,
            msgspec.json.encode(limits).decode(),
        )


def reported(
    kind: EventKind, sent: Sent | None, key: str = "", at: int | None = None, **more: Any
) -> BrokerEvent:
    named = sent.client_order_id if sent else None
    amounts = {
        name: D(value) if isinstance(value, str) and name in AMOUNTS else value
        for name, value in more.items()
    }
    fields: dict[str, Any] = {
        "kind": kind,
        "dedupe_key": key or f"{kind}/{named}/{at}",
        "client_order_id": named,
        "venue_time": None if at is None else NOON + timedelta(seconds=at),
    }
    return BrokerEvent(**(fields | amounts))


AMOUNTS = frozenset({"quantity", "price", "fee", "cum_quantity", "average_price"})


def fill(
    sent: Sent | None, exec_id: str, quantity: str, price: str = "10", **more: Any
) -> BrokerEvent:
    return reported(
        EventKind.FILL,
        sent,
        f"fill/{exec_id}",
        exec_id=exec_id,
        quantity=quantity,
        price=price,
        **more,
    )


def ours(
    sent: Sent, kind: FactKind, reason: str | None = None, broker_order_id: str | None = None
) -> PlatformFact:
    return PlatformFact(
        order_id=sent.order_id,
        kind=kind,
        client_order_id=sent.client_order_id,
        reason=reason,
        broker_order_id=broker_order_id,
    )
