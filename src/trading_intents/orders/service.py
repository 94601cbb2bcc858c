"""Use cases of orders: list and read orders, trades and positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.clock import TimeRange
from trading_intents.errors import NotFound
from trading_intents.orders import store
from trading_intents.orders.model import OrderFlag
from trading_intents.orders.store import OrderFilter
from trading_intents.prices import store as prices_store
from trading_intents.prices.model import PriceKey, PriceRules, ReferencePrice, market_of
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.pages import PageRequest, SeqRange, find_range
from trading_intents.trading import Symbol

# Orders of a symbol are looked for among this many of the account's actions at a time: a page may
# then hold fewer rows than asked for, or none, and still have a next one.
SCAN_ACTIONS = 50_000


@dataclass(frozen=True, slots=True)
class FoundOrders:
    rows: Sequence[store.ListedOrder]
    more_after: int | None  # where the next page begins; None: there is none


@dataclass(frozen=True, slots=True)
class PricedPosition:
    row: store.ListedPosition
    price: ReferencePrice | None


class Orders:
    def __init__(self, pool: Pool, price_rules: PriceRules) -> None:
        self._pool = pool
        self._price_rules = price_rules

    async def list(self, account: Account, wanted: OrderFilter, page: PageRequest) -> FoundOrders:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            seqs = scanned = await find_range(tx, store.ORDERS, account.id, wanted.created, page)
            if not wanted.is_indexed:
                last = await store.last_seq(tx, account.id)
                seqs = SeqRange(seqs.first, min(seqs.end, last + 1))
                scanned = _first_part(seqs, page.is_descending)
            unprotected = None
            if wanted.flag is OrderFlag.UNPROTECTED:
                unprotected = await store.find_unprotected(tx, account.id)
            rows = await store.list_orders(
                tx, account.id, scanned, wanted, page, unprotected=unprotected
            )
            await _add_unprotected(tx, account.id, rows)
        if len(rows) > page.limit:
            return FoundOrders(rows[: page.limit], rows[page.limit - 1].create_seq)
        if scanned == seqs:
            return FoundOrders(rows, None)
        return FoundOrders(rows, scanned.first if page.is_descending else scanned.end - 1)

    async def find(self, account: Account, order_id: UUID | None) -> store.ListedOrder:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            row = await store.find_order(tx, account.id, order_id) if order_id else None
            if row is None:
                raise NotFound("no such order")
            await _add_unprotected(tx, account.id, [row])
        return row

    async def trades(
        self, account: Account, times: TimeRange, page: PageRequest
    ) -> Sequence[store.ListedTrade]:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            return await store.list_trades(tx, account.id, times, page)

    async def positions(self, account: Account, page: PageRequest) -> Sequence[PricedPosition]:
        """Each with the last known price of its symbol, however old."""
        market = market_of(account.broker, account.environment)
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            rows = await store.list_positions(tx, account.organization_id, account.id, page)
            keys = [PriceKey(account.organization_id, market, Symbol(row.symbol)) for row in rows]
            known = await prices_store.find_prices(tx, keys)
        priced = []
        for row, key in zip(rows, keys, strict=True):
            priced.append(PricedPosition(row, self._price_rules.pick_last(known[key])))
        return priced


async def _add_unprotected(tx: Tx, account_id: UUID, rows: Sequence[store.ListedOrder]) -> None:
    """Adds the flag that no row has, as it is derived."""
    if any(row.uncovered_since for row in rows):
        unprotected = await store.find_unprotected(tx, account_id)
        for row in rows:
            if row.order_id in unprotected:
                row.flags.append(OrderFlag.UNPROTECTED)


def _first_part(seqs: SeqRange, is_descending: bool) -> SeqRange:
    """As much of it as a page may scan, from where the page begins."""
    if is_descending:
        return SeqRange(max(seqs.first, seqs.end - SCAN_ACTIONS), seqs.end)
    return SeqRange(seqs.first, min(seqs.end, seqs.first + SCAN_ACTIONS))
