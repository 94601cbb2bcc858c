"""Use cases of intents: read the log, count what is in it, find what can be cancelled, and ask what
a command would meet."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.accounts.service import AccountTarget, find_target
from trading_intents.brokers.registry import Registry
from trading_intents.clock import TimeRange
from trading_intents.controls.case import Case, Purpose, judge
from trading_intents.controls.limits.model import AskedOrder, LimitState
from trading_intents.controls.limits.state.recent import NOWHERE
from trading_intents.controls.limits.state.tracking import LimitedSubject, LimitTracking
from trading_intents.controls.model import Subject, Triggered
from trading_intents.controls.rules import find_rules
from trading_intents.errors import NotFound, ValidationFailed
from trading_intents.intents import store
from trading_intents.intents.deciding.compose import asked_order, compose, purpose_of
from trading_intents.intents.model import ClientCommand, Create
from trading_intents.prices.model import PriceRules
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import Stats, Window
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pages import PageRequest
from trading_intents.trading import ActionType, Symbol


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
            order = None
            accepted = None
            if command:
                if not isinstance(command, Create):
                    order = await store.find_order(tx, account.id, UUID(command.ref_intent_id))
                accepted = compose(str(account.id), command, order)
                if symbol not in (None, accepted.symbol):
                    raise ValidationFailed.at(
                        "/symbol", f"must be {accepted.symbol}, as the command's is"
                    )
                symbol = accepted.symbol
            subject = Subject(
                organization_id=str(account.organization_id),
                account_id=str(account.id),
                key_id=str(key_id) if key_id else None,
                symbol=symbol or "",
            )
            rules = (await find_rules(PoolTransaction(tx), [subject]))[subject]
            now = await read_clock(tx)
            asked = None
            met = None
            if accepted and accepted.action_type is not ActionType.CANCEL:
                asked = asked_order(accepted, order)
                met = await self._meet(tx, rules.limited, asked, now) if rules.limited else None
        case = Case(
            purpose=purpose_of(accepted) if accepted else Purpose.TRADE,
            controls=rules.controls,
            now=now,
            symbol=symbol,
            asked=asked,
            levels=rules.limited.levels if rules.limited else (),
            met=met,
        )
        return judge(case)

    async def _meet(
        self, tx: Tx, limited: LimitedSubject, asked: AskedOrder, now: datetime
    ) -> LimitState:
        tracking = LimitTracking(self._prices, self._brokers, {}, may_take_long=True)
        tracking.begin({limited.account_id: NOWHERE}, now)
        tracking.read(await PoolTransaction(tx).run(tracking.needs([limited])))
        return tracking.meet(limited, asked)
