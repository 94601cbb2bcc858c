"""A long history of one account, put into the tables at once: what a list must show of it is
computed beside it."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import asyncpg

from trading_intents.clock import TimeRange
from trading_intents.orders.model import OrderState, OrderStatus, state_of

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
STATUSES = list(OrderStatus)
ACTION_COLUMNS = (
    *(
        "account_id",
        "seq",
        "intent_id",
        "action_id",
        "organization_id",
        "action_type",
        "created_at",
        "record",
        "hash",
        "stream_seq",
    ),
)
ORDER_COLUMNS = (
    *(
        "order_id",
        "account_id",
        "organization_id",
        "environment",
        "broker",
        "create_seq",
        "command_seq",
        "client_order_id",
        "symbol",
    ),
    *("order_status", "order_type", "order_side", "time_in_force", "route_strategy", "quantity"),
    *("client_reference_id", "received_at", "created_at", "updated_at", "finished_at"),
)
TRADE_COLUMNS = (
    *(
        "trade_id",
        "account_id",
        "organization_id",
        "seq",
        "order_id",
        "exec_id",
        "symbol",
        "side",
        "quantity",
        "price",
    ),
    *("cumulative_quantity", "leaves_quantity", "command_seq", "received_at", "is_retold"),
)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A row of a list: its seq, its time, and what it is filtered by."""

    seq: int
    at: datetime
    id: UUID
    symbol: str = ""
    status: OrderStatus | None = None
    reference: str | None = None

    def is_in(self, times: TimeRange) -> bool:
        return (times.start is None or self.at >= times.start) and (
            times.end is None or self.at < times.end
        )


@dataclass(kw_only=True)
class History:
    """`actions`, `orders` and `trades` in the order of their seqs."""

    owner: asyncpg.Connection
    account: UUID
    organization: UUID
    actions: list[Listed] = field(default_factory=list)
    orders: list[Listed] = field(default_factory=list)
    trades: list[Listed] = field(default_factory=list)

    async def add_orders(self, made: list[Listed]) -> None:
        """An action and its order each."""
        owned = (self.account, self.organization)
        actions = []
        orders = []
        for row in made:
            record = f'{{"seq":{row.seq}}}'
            ids = (self.account, row.seq, row.id, row.id, self.organization)
            actions.append((*ids, "CREATE", row.at, record, "0" * 64, row.seq))
            is_open = row.status is None or state_of(row.status) is OrderState.OPEN
            terms = ("MARKET", "BUY", "DAY", "SMART", Decimal(1), row.reference)
            times = (row.at, row.at, row.at, None if is_open else row.at)
            orders.append(
                (
                    row.id,
                    *owned,
                    "paper",
                    "paper",
                    row.seq,
                    row.seq,
                    str(row.id),
                    row.symbol,
                    row.status,
                    *terms,
                    *times,
                )
            )
        await self.owner.copy_records_to_table("actions", records=actions, columns=ACTION_COLUMNS)
        await self.owner.copy_records_to_table("orders", records=orders, columns=ORDER_COLUMNS)
        await self.owner.execute(
            "UPDATE account_heads SET seq = $2 WHERE account_id = $1", self.account, made[-1].seq
        )
        self.actions += made
        self.orders += made

    async def add_trades(self, made: list[Listed], republished: Callable[[Listed], bool]) -> None:
        one = Decimal(1)
        none = Decimal(0)
        rows = [
            (
                *(
                    row.id,
                    self.account,
                    self.organization,
                    row.seq,
                    row.id,
                    "e",
                    "AAPL",
                    "BUY",
                    one,
                    one,
                    one,
                    none,
                    1,
                ),
                *(row.at, republished(row)),
            )
            for row in made
        ]
        await self.owner.copy_records_to_table("trades", records=rows, columns=TRADE_COLUMNS)
        self.trades += made

    async def republish(self, trade: Listed, seq: int) -> None:
        """As a correction does."""
        await self.owner.execute(
            "UPDATE trades SET seq = $2, is_retold = true WHERE trade_id = $1", trade.id, seq
        )
        self.trades.remove(trade)
        self.trades.append(Listed(seq=seq, at=trade.at, id=trade.id))


def random_times(chance: Random, count: int, step_seconds: float) -> Iterator[datetime]:
    """Forwards; several at one moment; now and then the clock is set back by a second or four."""
    at = START
    for _ in range(count):
        yield at
        moves = (0.0, step_seconds / 2, step_seconds, step_seconds * 2)
        back = -chance.uniform(1, 4) if chance.random() < 0.01 else 0
        at += timedelta(microseconds=round(1_000_000 * (back or chance.choice(moves))))


def random_orders(
    chance: Random, count: int, step_seconds: float, statuses: list[OrderStatus]
) -> list[Listed]:
    return [
        Listed(
            seq=seq,
            at=at,
            id=uuid.uuid4(),
            symbol=chance.choice(("AAPL", "MSFT", "Z")),
            status=chance.choice(statuses),
            reference=chance.choice((None, "a", "b")),
        )
        for seq, at in enumerate(random_times(chance, count, step_seconds), 1)
    ]


def random_trades(chance: Random, count: int, step_seconds: float) -> list[Listed]:
    """Their seqs are the organization's: others' events are between them."""
    seq = 0
    made = []
    for at in random_times(chance, count, step_seconds):
        seq += chance.randint(1, 5)
        made.append(Listed(seq=seq, at=at, id=uuid.uuid4()))
    return made


async def open_history(owner: asyncpg.Connection, account: UUID) -> History:
    organization: Any = await owner.fetchval(
        "SELECT organization_id FROM accounts WHERE id = $1", account
    )
    return History(owner=owner, account=account, organization=organization)
