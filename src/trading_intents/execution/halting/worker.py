"""Works the halts of the accounts whose leases this process holds, and counts what they have done.
An account that cannot go on delays neither the others of its halt nor another organization's."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from uuid import UUID

from trading_intents.controls.halts.model import Halt, halt_event
from trading_intents.controls.halts.store import count_work
from trading_intents.execution.halting import store
from trading_intents.execution.halting.closing import (
    MAX_APPENDED,
    PositionCloser,
    append_commands,
)
from trading_intents.execution.halting.store import HaltedAccount
from trading_intents.execution.sessions.leases import Leases
from trading_intents.intents.model import Cancel
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.loops import FairQueue, repeat, start_loop, stop_tasks
from trading_intents.outbox.outcomes import log_failures, reason_of
from trading_intents.outbox.worker import WorkerContext
from trading_intents.storage.database import Tx
from trading_intents.storage.signals import Signals
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import CHANNEL as STREAM

POLL_SECONDS = 1.0
MIN_ROUND_SECONDS = 0.1  # between two looks at what is due
ROUND_SHARE = 4  # of the time is for other work than the looks
MAX_SUMS = 8  # halts that are counted at a time
MAX_STEPS = 24  # at a time
MAX_STEPS_EACH = 8  # of an organization
FAILED_SECONDS = 1.0  # after a step that failed
COUNT_SECONDS = 0.3  # between two counts of a halt
# Between looks at all halts that stand, also those that are done and those of other processes.
SWEEP_SECONDS = 2.0
MAX_SWEPT = 100
FIRST = UUID(int=0)


StepKey = tuple[UUID, UUID]  # halt, account


class HaltWorker:
    """A halt is a condition: each round finds what is open or held under it."""

    def __init__(
        self,
        context: WorkerContext,
        leases: Leases,
        actions: PlatformActions,
        signals: Signals,
    ) -> None:
        self._pool = context.pool
        self._clock = context.clock
        self._log = context.log
        self._leases = leases
        self._actions = actions
        self._signals = signals
        self._wakeup = asyncio.Event()
        self._queue = FairQueue[UUID, HaltedAccount]()  # by organization
        self._closers: dict[StepKey, PositionCloser] = {}
        self._due: dict[StepKey, float] = {}
        self._running: dict[UUID, asyncio.Task[None]] = {}  # by account
        self._steps: Counter[UUID] = Counter()  # of each organization: those that run
        self._halted: set[UUID] = set()  # halts with something to end, when last looked at
        self._uncounted: set[UUID] = set()
        self._sums: dict[UUID, asyncio.Task[None]] = {}
        self._counted: dict[UUID, float] = {}  # when each halt was last counted
        self._swept = FIRST
        self._swept_at = -SWEEP_SECONDS
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        log_failed = log_failures(self._log, "halts not worked")
        self._task = start_loop(repeat(self._round, POLL_SECONDS, log_failed, self._wakeup))

    def wake(self) -> None:
        """A halt began, or has more to do."""
        self._due.clear()
        self._swept_at = -SWEEP_SECONDS
        self._wakeup.set()

    async def close(self) -> None:
        self._queue = FairQueue()
        await stop_tasks(*self._running.values(), *self._sums.values(), self._task)

    async def _round(self) -> float:
        """Starts the steps that are due, and counts. Gives the seconds until there may be something
        to do again."""
        accounts = list(self._leases.sessions)
        now = self._clock.monotonic()
        is_sweep = now - self._swept_at >= SWEEP_SECONDS
        async with self._pool.transaction(read_only=True) as tx:
            halted = await store.halted_accounts(tx, accounts, is_sweep, MAX_APPENDED)
            swept = await self._sweep(tx) if is_sweep else set[UUID]()
        rest_seconds = ROUND_SHARE * (self._clock.monotonic() - now)
        self._take_up(halted, now)
        found = {each.halt_id for each in halted}
        # Those of the last round too: what they had to end may have ended.
        self._uncounted |= found | self._halted | swept
        self._halted = found
        self._begin_sums(now)
        if not found and not self._uncounted:
            return SWEEP_SECONDS  # a new halt wakes the process
        waits = {self._due.get(each.key, now) - now for each in halted}
        pause_seconds = min({wait for wait in waits if wait > 0} | {COUNT_SECONDS})
        return max(MIN_ROUND_SECONDS, rest_seconds, pause_seconds)

    def _begin_sums(self, now: float) -> None:
        self._counted = {key: at for key, at in self._counted.items() if now - at < COUNT_SECONDS}
        for halt_id in self._uncounted - self._sums.keys() - self._counted.keys():
            if len(self._sums) < MAX_SUMS:
                self._uncounted.discard(halt_id)
                self._counted[halt_id] = now
                self._begin_sum(halt_id)

    def _take_up(self, halted: Iterable[HaltedAccount], looked_seconds: float) -> None:
        """Queues a step for each account in which one was due at the look: CANCELs first. Of what
        is not found any more nothing is remembered."""
        steps: dict[UUID, HaltedAccount] = {}
        keys = set[StepKey]()
        for each in sorted(halted, key=lambda each: not each.due):
            keys.add(each.key)
            is_due = self._due.get(each.key, 0.0) <= looked_seconds
            has_work = bool(each.due) or each.may_close
            is_idle = each.account_id not in self._running
            if is_due and has_work and is_idle:
                steps.setdefault(each.account_id, each)
        for kept in (self._closers, self._due):
            for key in kept.keys() - keys:
                del kept[key]
        self._queue = FairQueue()
        for each in steps.values():
            self._queue.append(each.organization_id, each)
        self._begin_steps()

    def _begin_steps(self) -> None:
        while len(self._running) < MAX_STEPS and (halted := self._queue.pop(self._may_begin)):
            self._steps[halted.organization_id] += 1
            task = asyncio.create_task(self._step(halted))
            self._running[halted.account_id] = task
            task.add_done_callback(partial(self._on_stepped, halted))

    def _may_begin(self, organization_id: UUID) -> bool:
        return self._steps[organization_id] < MAX_STEPS_EACH

    def _on_stepped(self, halted: HaltedAccount, _: asyncio.Task[None]) -> None:
        del self._running[halted.account_id]
        self._steps[halted.organization_id] -= 1
        self._begin_steps()

    async def _step(self, halted: HaltedAccount) -> None:
        key = halted.key
        pause_seconds = 0.0
        try:
            if halted.due:
                await self._cancel(halted)
            elif session := self._leases.sessions.get(halted.account_id):
                if key not in self._closers:
                    closer = PositionCloser(halted, self._pool, self._actions, self._clock)
                    self._closers[key] = closer
                pause_seconds = await self._closers[key].step(session)
        except Exception as error:
            pause_seconds = FAILED_SECONDS
            self._log.warning(
                "halt not worked",
                halt=str(halted.halt_id),
                account=str(halted.account_id),
                reason=reason_of(error),
            )
        self._due[key] = self._clock.monotonic() + pause_seconds

    async def _cancel(self, halted: HaltedAccount) -> None:
        """Appends the CANCELs that are due, and looks for more without waiting for a round."""
        account_id = halted.account_id
        found = [halted]
        while found and found[0].due:
            cancels = [Cancel(str(order_id), once=True) for order_id in found[0].due]
            outcomes = await append_commands(self._actions, found[0], cancels)
            if sum(isinstance(outcome, Receipt) for outcome in outcomes) < MAX_APPENDED:
                return
            async with self._pool.transaction(read_only=True) as tx:
                found = await store.halted_accounts(tx, [account_id], True, MAX_APPENDED)

    async def _sweep(self, tx: Tx) -> set[UUID]:
        """Halts in turn, so that each is counted wherever it is worked, also one without any
        account."""
        found = await store.unfinished_halts(tx, self._swept, MAX_SWEPT)
        self._swept = found[-1] if len(found) == MAX_SWEPT else FIRST
        self._swept_at = self._clock.monotonic()
        return set(found)

    def _begin_sum(self, halt_id: UUID) -> None:
        task = self._sums[halt_id] = asyncio.create_task(self._count(halt_id))

        def on_end(task: asyncio.Task[None]) -> None:
            del self._sums[halt_id]
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                self._log.warning("halt not counted", halt=str(halt_id), reason=reason_of(error))

        task.add_done_callback(on_end)

    async def _count(self, halt_id: UUID) -> None:
        async with self._pool.transaction() as tx:
            halt = await store.lock_halt(tx, halt_id)
            if halt is None:
                return
            counted = await count_work(tx, halt)
            waiting = await store.list_waiting(tx, halt)
            changed = await store.update_halt(tx, counted, waiting)
            if changed is None:
                return
            await stream_log.append(tx, [halt_event(changed)])
        self._signals.notify(STREAM)
        if changed.state is not halt.state:
            self._log_state(changed)

    def _log_state(self, halt: Halt) -> None:
        account_id = halt.scope.account_id
        self._log.info(
            "halt moved on",
            halt=str(halt.id),
            organization=str(halt.scope.organization_id),
            account=str(account_id) if account_id else None,
            state=halt.state,
            orders=halt.orders,
            positions=halt.positions,
        )
