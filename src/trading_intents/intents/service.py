"""Use cases of intents: read the log, count what is in it, find what can be cancelled, and ask what
a command would meet."""

from collections.abc import Sequence
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.accounts.service import AccountTarget, find_target
from trading_intents.brokers.registry import Registry
from trading_intents.clock import TimeRange
from trading_intents.controls.limits.service import judge_now
from trading_intents.controls.model import Triggered, evaluate
from trading_intents.controls.store import read_one
from trading_intents.errors import NotFound, ValidationFailed
from trading_intents.intents import store
from trading_intents.intents.deciding.compose import asked_order, compose
from trading_intents.intents.model import Cancel, ClientCommand, Create, Submission
from trading_intents.prices.model import PriceRules
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import Stats, Window
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool
from trading_intents.storage.pages import PageRequest
from trading_intents.trading import Symbol


class Intents:
    def __init__(self, pool: Pool, prices: PriceRules, brokers: Registry) -> None:
        self._pool = pool
        self._prices = prices
        self._brokers = brokers

    async def list(
        self, account: Account, times: TimeRange, page: PageRequest
    ) -> Sequence[store.ActionRow]:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            return await store.list_actions(tx, account.id, times, page)

    async def cancellable(
        self, account: Account, symbol: Symbol | None, left_out: Sequence[str], limit: int
    ) -> store.CancellableOrders:
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            return await store.cancellable_orders(tx, account.id, symbol, left_out, limit)

    async def stats(self, account: Account, window: Window) -> Stats:
        async with self._pool.transaction(
            [account.organization_id], read_only=True, isolation="repeatable read"
        ) as tx:
            return await stats_store.read(tx, account.id, window)

    async def latest(self, account: Account, intent_id: UUID | None) -> store.ActionRow:
        row = None
        if intent_id:
            async with self._pool.transaction([account.organization_id], read_only=True) as tx:
                row = await store.latest_action(tx, account.id, intent_id)
        if row is None:
            raise NotFound("no such intent")
        return row

    async def history(
        self, account: Account, intent_id: UUID | None, times: TimeRange, page: PageRequest
    ) -> Sequence[store.ActionRow]:
        if intent_id is None:
            raise NotFound("no such intent")
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            rows = await store.list_actions(tx, account.id, times, page, intent_id)
            if not rows and not await store.latest_action(tx, account.id, intent_id):
                raise NotFound("no such intent")
        return rows

    async def evaluate(
        self,
        target: AccountTarget,
        symbol: Symbol | None,
        command: ClientCommand | None,
        key_id: UUID | None,
    ) -> tuple[Triggered, ...]:
        """Judges the command by controls and limits, of the caller's key too, or without one by
        controls alone. Nothing is sent."""
        async with self._pool.transaction(
            [target.organization_id], read_only=True, isolation="repeatable read"
        ) as tx:
            account = await find_target(tx, target)
            if command is None:
                controls = await read_one(tx, account.id, symbol)
                now = await read_clock(tx)
                return evaluate(controls, symbol, now)
            submission = Submission(
                account_id=str(account.id),
                organization_id=str(account.organization_id),
                key_id=None,
                command=command,
                client_reference_id=None,
                idempotency_key=None,
                body_digest=None,
            )
            order = None
            if not isinstance(command, Create):
                order = await store.find_order(tx, account.id, UUID(command.ref_intent_id))
            accepted = compose(submission, command, order)
            if symbol not in (None, accepted.symbol):
                raise ValidationFailed.at(
                    "/symbol", f"must be {accepted.symbol}, as the command's is"
                )
            if isinstance(command, Cancel):
                return ()  # it is never refused
            now = await read_clock(tx)
            asked = asked_order(accepted, order)
            triggered = evaluate(
                await read_one(tx, account.id, accepted.symbol), accepted.symbol, now
            )
            return triggered + await judge_now(
                tx,
                account=account,
                key_id=key_id,
                asked=asked,
                prices=self._prices,
                brokers=self._brokers,
                now=now,
            )
