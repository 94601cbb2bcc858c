"""Use cases of orders: read what is true at the brokers."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.errors import NotFound
from trading_intents.orders import store
from trading_intents.orders.model import OrderState
from trading_intents.storage.database import Pool, Row

# What a filter finds seldom is looked for among this many of the account's actions at a time: a page may then hold
# fewer rows than asked for, or none, and still have a next one.
SCAN_ACTIONS = 50_000
NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OrderFilter:
    state: OrderState | None = None
    symbol: str | None = None
    intent_id: UUID | None = None
    client_reference_id: str | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether an index leads to what it lets through, or it lets everything through."""
        return bool(self == OrderFilter() or self.intent_id or self.client_reference_id or self.state == "OPEN")


@dataclass(frozen=True, slots=True)
class FoundOrders:
    rows: Sequence[Row]
    more_after: int | None  # where the next page begins; None: there is none


class Orders:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, account: Account, wanted: OrderFilter, after: int, limit: int) -> FoundOrders:
        upto = NO_END if wanted.is_indexed else after + SCAN_ACTIONS
        # Planned for the filters that are given: each has its own index.
        async with self._pool.transaction([account.organization_id], read_only=True, plans="fresh") as tx:
            rows = await store.list_orders(
                tx,
                account.id,
                after,
                upto,
                limit + 1,
                wanted.state,
                wanted.symbol,
                wanted.intent_id,
                wanted.client_reference_id,
            )
            if len(rows) > limit:
                return FoundOrders(rows[:limit], rows[limit - 1]["create_seq"])
            scanned = upto < NO_END and upto < await store.last_seq(tx, account.id)
        return FoundOrders(rows, upto if scanned else None)

    async def find(self, account: Account, order_id: UUID | None) -> Row:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            row = await store.find_order(tx, account.id, order_id) if order_id else None
        if row is None:
            raise NotFound("no such order")
        return row

    async def trades(self, account: Account, after: int, limit: int) -> Sequence[Row]:
        async with self._pool.transaction([account.organization_id], read_only=True, plans="by_key") as tx:
            return await store.list_trades(tx, account.id, after, limit)

    async def positions(self, account: Account, after: str, limit: int) -> Sequence[Row]:
        async with self._pool.transaction([account.organization_id], read_only=True, plans="by_key") as tx:
            return await store.list_positions(tx, account.id, after, limit)
