"""Use cases of intents: read the log, and count what is in it."""

from collections.abc import Sequence
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.clock import TimeRange
from trading_intents.errors import NotFound
from trading_intents.intents import store
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import Stats, Window
from trading_intents.storage.database import Pool, Row
from trading_intents.storage.pages import PageRequest


class Intents:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, account: Account, times: TimeRange, page: PageRequest) -> Sequence[Row]:
        async with self._pool.transaction([account.organization_id], read_only=True, plans="in_order") as tx:
            return await store.list_actions(tx, account.id, times, page)

    async def stats(self, account: Account, window: Window) -> Stats:
        async with self._pool.transaction(
            [account.organization_id], read_only=True, isolation="repeatable read", plans="by_key"
        ) as tx:
            return await stats_store.read(tx, account.id, window)

    async def latest(self, account: Account, intent_id: UUID | None) -> Row:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            row = await store.latest_action(tx, account.id, intent_id) if intent_id else None
        if row is None:
            raise NotFound("no such intent")
        return row

    async def history(
        self, account: Account, intent_id: UUID | None, times: TimeRange, page: PageRequest
    ) -> Sequence[Row]:
        async with self._pool.transaction([account.organization_id], read_only=True, plans="in_order") as tx:
            rows = await store.list_actions(tx, account.id, times, page, intent_id) if intent_id else []
            known = bool(rows) or (intent_id and await store.latest_action(tx, account.id, intent_id))
        if not known:
            raise NotFound("no such intent")
        return rows
