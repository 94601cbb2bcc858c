"""One account's part of a halt: bounded steps of cancelling or closing, each written down. A step
goes by the database and the broker alone: cut off anywhere, another process takes it again."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerUnavailable
from trading_intents.clock import Clock
from trading_intents.controls import store as controls_store
from trading_intents.controls.halts.model import HaltState
from trading_intents.errors import PlatformError
from trading_intents.execution.halting import model, store
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.intents.model import Cancel, Close, Command, Submission
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.loops import pause_after
from trading_intents.orders import store as orders_store
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Pool, Tx
from trading_intents.trading import Symbol

MAX_APPENDED = 100  # commands in a step
SOON_SECONDS = 0.1  # until the next step, while this one had more to do
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)  # while nothing changes


class PartKey(NamedTuple):
    halt_id: UUID
    account_id: UUID


class HaltPart:
    """Remembers between its steps only what saves time: when the broker's positions were first
    found to differ from ours, and how long nothing has changed."""

    def __init__(
        self,
        key: PartKey,
        organization_id: UUID,
        closes: bool,
        halt_at: datetime,
        pool: Pool,
        actions: PlatformActions,
        clock: Clock,
    ) -> None:
        self.key = key
        self.organization_id = organization_id
        self.closes = closes
        self._halt_at = halt_at
        self._pool = pool
        self._actions = actions
        self._clock = clock
        self._differing: dict[str, model.ReportedQuantity] = {}
        self._last: model.PartProgress | None = None
        self._idle_steps = 0

    async def step(self, session: BrokerSession) -> float:
        """Does what can be done now. Gives the seconds until it is worth another look."""
        progress, counts, orders = await self._look()
        is_busy = False
        try:
            if counts.open or (counts.left and not self.closes):
                progress, is_busy = await self._cancel(progress, orders, session.is_up)
            elif self.closes:
                progress = await self._close(replace(progress, state=HaltState.CLOSING), session)
            else:
                progress = replace(progress, state=HaltState.DONE)
        except PlatformError as error:
            await self._write(replace(progress, waiting=(model.Waiting(error.code),)))
            raise
        await self._write(progress)
        self._idle_steps = self._idle_steps + 1 if progress == self._last else 0
        self._last = progress
        return SOON_SECONDS if is_busy else pause_after(PAUSES_SECONDS, self._idle_steps)

    async def _write(self, progress: model.PartProgress) -> None:
        async with self._pool.transaction() as tx:
            await store.write_progress(tx, *self.key, self.organization_id, self.closes, progress)

    async def _look(self) -> tuple[model.PartProgress, store.OrderCounts, list[model.OpenOrder]]:
        account_id = self.key.account_id
        async with self._pool.transaction(read_only=True) as tx:
            before = await store.read_progress(tx, *self.key)
            counts = await store.count_orders(tx, account_id, self._halt_at)
            orders = await store.open_orders(tx, account_id, self._halt_at, 2 * MAX_APPENDED)
        if before is None:
            before = model.PartProgress(
                state=HaltState.CANCELLING,
                base_seq=counts.seq,
                seen_seq=0,
                orders=0,
                orders_done=0,
                symbols=(),
                positions_done=0,
                waiting=(),
            )
        progress = replace(
            before,
            state=HaltState.CANCELLING,
            seen_seq=counts.seq,
            orders=counts.orders,
            orders_done=counts.orders - counts.open,
        )
        return progress, counts, orders

    async def _cancel(
        self, progress: model.PartProgress, orders: Sequence[model.OpenOrder], is_connected: bool
    ) -> tuple[model.PartProgress, bool]:
        """Appends the CANCELs that are due, and says whether there may be more."""
        waits: dict[UUID, str | None] = {
            order.order_id: model.cancel_wait(order, is_connected) for order in orders
        }
        due = [order_id for order_id, reason in waits.items() if reason is None][:MAX_APPENDED]
        await self._append(progress, [Cancel(str(order_id), once=True) for order_id in due])
        pending = (
            model.WaitReason.CANCEL_PENDING
            if is_connected
            else model.WaitReason.BROKER_DISCONNECTED
        )
        return model.with_orders(progress, waits | dict.fromkeys(due, pending)), bool(due)

    async def _close(
        self, progress: model.PartProgress, session: BrokerSession
    ) -> model.PartProgress:
        """Asks the broker what it holds when something may be closed now, or when nothing seems to
        be held."""
        account_id = self.key.account_id
        async with self._pool.transaction(read_only=True) as tx:
            working = await store.open_symbols(tx, account_id)
            held = {*await orders_store.held_quantities(tx, account_id), *working}
            waits = await self._waits(tx, held, working, progress.base_seq)
        now_seconds = self._clock.monotonic()
        for symbol, report in self._differing.items():
            if not report.is_confirmed(now_seconds) and waits.get(symbol, "") is None:
                waits[symbol] = model.WaitReason.POSITION_UNCONFIRMED
        if held and None not in waits.values():
            return model.with_symbols(progress, held, waits)
        try:
            reported = await session.read_positions()
        except (BrokerUnavailable, TimeoutError):
            reason = model.WaitReason.BROKER_DISCONNECTED
            waiting = model.with_symbols(progress, held, dict.fromkeys(held, reason))
            return waiting if held else replace(waiting, waiting=(model.Waiting(reason),))
        return await self._close_reported(progress, working, reported, now_seconds)

    async def _close_reported(
        self,
        progress: model.PartProgress,
        working: set[str],
        reported: Mapping[str, Decimal] | None,
        asked_seconds: float,
    ) -> model.PartProgress:
        """`reported` was asked for when only `working` symbols had open orders; None: the broker
        reports none."""
        async with self._pool.transaction(read_only=True) as tx:
            ours = await orders_store.held_quantities(tx, self.key.account_id)
            quantities = ours if reported is None else reported
            symbols = {*quantities, *ours, *working}
            waits = await self._waits(tx, symbols, working, progress.base_seq)
        self._differing = model.differing(quantities, ours, self._differing, asked_seconds)
        left = working | {symbol for symbol, quantity in quantities.items() if quantity}
        for symbol, report in self._differing.items():
            if not report.is_confirmed(asked_seconds):
                waits[symbol] = waits[symbol] or model.WaitReason.POSITION_UNCONFIRMED
                left.add(symbol)
        due = [symbol for symbol in sorted(left) if waits[symbol] is None][:MAX_APPENDED]
        progress = model.with_symbols(
            replace(progress, state=HaltState.CLOSING if left else HaltState.DONE), left, waits
        )
        closing = [Close(Symbol(each), quantities[each], progress.seen_seq) for each in due]
        outcomes = await self._append(progress, closing)
        for symbol, outcome in zip(due, outcomes, strict=True):
            # The next order is for a quantity that is confirmed anew.
            self._differing.pop(symbol, None)
            waits[symbol] = (
                model.WaitReason.CLOSING if isinstance(outcome, Receipt) else outcome.code
            )
        return model.with_symbols(progress, left, waits)

    async def _waits(
        self, tx: Tx, symbols: set[str], working: set[str], base_seq: int
    ) -> dict[str, str | None]:
        """The reason why each symbol gets no closing order now; None where it may get one."""
        account_id = self.key.account_id
        names = sorted(symbols)
        attempts = await store.closing_attempts(tx, account_id, base_seq)
        controls = await controls_store.read_many(tx, [account_id] * len(names), names)
        now = await read_clock(tx)
        waits: dict[str, str | None] = {}
        for name, each in zip(names, controls, strict=True):
            made = attempts.get(name, model.NO_ATTEMPTS)
            waits[name] = model.close_wait(name, working, made, each.time, now)
        return waits

    async def _append(
        self, progress: model.PartProgress, commands: Sequence[Command]
    ) -> list[Receipt | PlatformError]:
        """The symbols that are to be closed are written first: one that is flat before the next
        look was closed too."""
        if not commands:
            return []
        await self._write(progress)
        submissions = []
        for each in commands:
            submission = Submission(
                account_id=str(self.key.account_id),
                organization_id=str(self.organization_id),
                key_id=None,
                command=each,
                client_reference_id=None,
                idempotency_key=None,
                body_digest=None,
                halt_id=str(self.key.halt_id),
            )
            submissions.append(submission)
        return await self._actions.append(submissions)
