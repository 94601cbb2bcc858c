"""Use cases of intents: read the log, count what is in it, find what can be cancelled, and ask what a command would
meet."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from trading_intents.accounts.model import Account
from trading_intents.accounts.service import AccountTarget, find_target
from trading_intents.brokers.registry import Registry
from trading_intents.clock import TimeRange
from trading_intents.controls.limits.model import LimitOwner, judge
from trading_intents.controls.limits.service import find_limit_state
from trading_intents.controls.limits.store import read_applied
from trading_intents.controls.model import Triggered, evaluate
from trading_intents.controls.store import read_one
from trading_intents.errors import NotFound, ValidationFailed
from trading_intents.intents import store
from trading_intents.intents.model import (
    SPEC_AMOUNTS,
    Cancel,
    ClientCommand,
    Create,
    KnownOrder,
    Spec,
    Submission,
    asked_order,
    compose,
)
from trading_intents.prices.model import PriceRules
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import Stats, Window
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool, Row, Tx
from trading_intents.storage.pages import PageRequest
from trading_intents.trading import ORDER_KINDS, OrderSide, RouteStrategy, Symbol, TimeInForce, maybe_text


class Intents:
    def __init__(self, pool: Pool, prices: PriceRules, brokers: Registry) -> None:
        self._pool, self._prices, self._brokers = pool, prices, brokers

    async def list(self, account: Account, times: TimeRange, page: PageRequest) -> Sequence[Row]:
        async with self._pool.transaction([account.organization_id], read_only=True, plans="by_key") as tx:
            return await store.list_actions(tx, account.id, times, page)

    async def cancellable(self, account: Account, symbol: Symbol | None, limit: int) -> Sequence[str]:
        """Open orders without a pending CANCEL."""
        async with self._pool.transaction([account.organization_id], read_only=True) as tx:
            return await store.cancellable_orders(tx, account.id, symbol, limit)

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
        async with self._pool.transaction([account.organization_id], read_only=True, plans="by_key") as tx:
            rows = await store.list_actions(tx, account.id, times, page, intent_id) if intent_id else []
            known = bool(rows) or (intent_id and await store.latest_action(tx, account.id, intent_id))
        if not known:
            raise NotFound("no such intent")
        return rows

    async def evaluate(
        self, target: AccountTarget, symbol: Symbol | None, command: ClientCommand | None
    ) -> tuple[Triggered, ...]:
        """What controls and limits say to the command, or without one controls alone. Nothing is sent."""
        async with self._pool.transaction(
            [target.organization_id], read_only=True, isolation="repeatable read", plans="by_key"
        ) as tx:
            account = await find_target(tx, target)
            if command is None:
                controls, now = await read_one(tx, account.id, symbol), await read_clock(tx)
                return evaluate(controls, symbol, now)
            owner = LimitOwner(str(account.organization_id), str(account.id))
            submission = Submission(owner.account_id, owner.organization_id, None, command, None, None, None)
            order = None if isinstance(command, Create) else await _find_order(tx, account, command.ref_intent_id)
            accepted = compose(submission, command, order)
            if symbol not in (None, accepted.symbol):
                raise ValidationFailed.at("/symbol", f"must be {accepted.symbol}, as the command's is")
            if isinstance(command, Cancel):
                return ()  # it is never refused
            asked = asked_order(accepted.symbol, accepted.side, accepted.spec, order)
            now = await read_clock(tx)
            limits = await read_applied(tx, account.id, accepted.symbol)
            broker = self._brokers.find(account.broker)
            met = await find_limit_state(tx, account, limits, asked, self._prices, broker, now)
            triggered = evaluate(await read_one(tx, account.id, accepted.symbol), accepted.symbol, now)
            return triggered + judge(limits.levels(owner, accepted.symbol), asked, met, now)


async def _find_order(tx: Tx, account: Account, order_id: str) -> KnownOrder | None:
    row = await store.find_order(tx, account.id, UUID(order_id))
    if row is None:
        return None
    amounts: dict[str, Any] = {name: maybe_text(row[name]) for name in SPEC_AMOUNTS}
    return KnownOrder(
        account_id=str(account.id),
        symbol=Symbol(row["symbol"]),
        side=OrderSide(row["order_side"]),
        route=RouteStrategy(row["route_strategy"]),
        spec=Spec(ORDER_KINDS[row["order_type"]], time_in_force=TimeInForce(row["time_in_force"]), **amounts),
        client_reference_id=row["client_reference_id"],
        status=row["order_status"],
        cancel_requested=row["cancel_requested"],
        replace_pending=row["pending_replace_seq"] is not None,
        version=row["version"],
        command_seq=row["command_seq"],
        filled_quantity=row["filled_quantity"],
    )
