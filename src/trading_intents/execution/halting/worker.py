"""Works the halts of the accounts whose leases this process holds, and adds up their parts. An
account that cannot go on delays neither the others of its halt nor another organization's."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from uuid import UUID

from trading_intents.controls.halts.model import Halt, HaltState, halt_event
from trading_intents.execution.halting import store
from trading_intents.execution.halting.parts import HaltPart, PartKey
from trading_intents.execution.sessions.leases import Leases
from trading_intents.intents.writing.system import PlatformActions
from trading_intents.loops import pause_after, repeat, start_loop, stop_tasks
from trading_intents.outbox.outcomes import log_failures, reason_of
from trading_intents.outbox.worker import WorkerContext
from trading_intents.storage.database import Tx
from trading_intents.storage.signals import Signals
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import CHANNEL as STREAM

POLL_SECONDS = 1.0
MIN_ROUND_SECONDS = 0.1  # between two looks at what is due
PART_SECONDS = 0.0002  # longer for each part, which a look reads
MAX_SUMS = 8  # halts that are added up at a time
MAX_STEPS = 24  # at a time
MAX_STEPS_EACH = 8  # of an organization
FAILED_PAUSES_SECONDS = (1.0, 2.0, 5.0)
ADD_UP_SECONDS = 0.3  # between two sums of a halt
# Between looks at all halts that stand, also those that are done and those of other processes.
SWEEP_SECONDS = 2.0
MAX_SWEPT = 100
FIRST = UUID(int=0)


class HaltWorker:
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
        self._parts: dict[PartKey, HaltPart] = {}
        self._due: dict[PartKey, float] = {}
        self._failures: Counter[PartKey] = Counter()
        self._running: dict[PartKey, asyncio.Task[None]] = {}
        self._sums: dict[UUID, asyncio.Task[None]] = {}
        self._added: dict[UUID, float] = {}  # when each halt was last added up
        self._swept = FIRST
        self._swept_at = -SWEEP_SECONDS
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        log_failed = log_failures(self._log, "halts not worked")
        self._task = start_loop(repeat(self._round, POLL_SECONDS, log_failed, self._wakeup))

    def wake(self) -> None:
        """A halt began, or has more to do."""
        self._due.clear()
        self._wakeup.set()

    async def close(self) -> None:
        await stop_tasks(*self._running.values(), *self._sums.values(), self._task)

    async def _round(self) -> float:
        """Starts the steps that are due, and adds up. Gives the seconds until there may be
        something to do again."""
        accounts = list(self._leases.sessions)
        now = self._clock.monotonic()
        is_sweep = now - self._swept_at >= SWEEP_SECONDS
        async with self._pool.transaction(read_only=True) as tx:
            halted = await store.unfinished_parts(tx, accounts, is_sweep) if accounts else []
            swept = await self._sweep(tx) if is_sweep else set[UUID]()
        self._keep(halted)
        for part in self._due_parts():
            self._begin(part)
        self._begin_sums({key.halt_id for key in self._parts} | swept, now)
        if not self._parts:
            return SWEEP_SECONDS  # a new halt wakes the process
        waiting = self._parts.keys() - self._running.keys()
        soonest = min((self._due.get(key, now) for key in waiting), default=now + 1)
        pause_seconds = min(soonest - self._clock.monotonic(), ADD_UP_SECONDS)
        return max(MIN_ROUND_SECONDS, len(self._parts) * PART_SECONDS, pause_seconds)

    def _begin_sums(self, halt_ids: set[UUID], now: float) -> None:
        for halt_id in halt_ids - self._sums.keys():
            is_due = now - self._added.get(halt_id, -ADD_UP_SECONDS) >= ADD_UP_SECONDS
            if is_due and len(self._sums) < MAX_SUMS:
                self._added[halt_id] = now
                self._begin_sum(halt_id)
        self._added = {key: at for key, at in self._added.items() if now - at < POLL_SECONDS}

    def _keep(self, halted: Iterable[store.HaltedAccount]) -> None:
        """The parts that are to be worked, with what those from before remember."""
        found: dict[PartKey, HaltPart] = {}
        for each in halted:
            key = PartKey(each.halt_id, each.account_id)
            part = self._parts.get(key)
            if part is None or part.closes != each.close_positions:
                part = HaltPart(
                    key=key,
                    organization_id=each.organization_id,
                    closes=each.close_positions,
                    halt_at=each.created_at,
                    pool=self._pool,
                    actions=self._actions,
                    clock=self._clock,
                )
            found[key] = part
        self._parts = found
        self._due = {key: due for key, due in self._due.items() if key in found}
        for key in self._failures.keys() - found.keys():
            del self._failures[key]

    def _due_parts(self) -> list[HaltPart]:
        """The parts that are due: the longest due first, of each organization and of all only so
        many at a time."""
        now = self._clock.monotonic()
        each = Counter(
            self._parts[key].organization_id for key in self._running if key in self._parts
        )
        queues: defaultdict[UUID, list[HaltPart]] = defaultdict(list)
        ready = []
        for part in self._parts.values():
            due = self._due.get(part.key, 0.0)
            if part.key not in self._running and due <= now:
                ready.append((due, part))
        ready.sort(key=lambda each: each[0])
        for _, part in ready:
            queues[part.organization_id].append(part)
        taken: list[HaltPart] = []
        while queues and len(self._running) + len(taken) < MAX_STEPS:
            for organization_id, queue in list(queues.items()):
                if not queue or each[organization_id] >= MAX_STEPS_EACH:
                    del queues[organization_id]
                elif len(self._running) + len(taken) < MAX_STEPS:
                    taken.append(queue.pop(0))
                    each[organization_id] += 1
        return taken

    def _begin(self, part: HaltPart) -> None:
        task = self._running[part.key] = asyncio.create_task(self._step(part))
        task.add_done_callback(lambda _: self._running.pop(part.key, None))

    async def _step(self, part: HaltPart) -> None:
        session = self._leases.sessions.get(part.key.account_id)
        if session is None:
            return
        try:
            pause_seconds = await part.step(session)
            self._failures.pop(part.key, None)
        except Exception as error:
            failures = self._failures[part.key]
            self._failures[part.key] += 1
            pause_seconds = pause_after(FAILED_PAUSES_SECONDS, failures)
            self._log.warning(
                "halt not worked",
                halt=str(part.key.halt_id),
                account=str(part.key.account_id),
                reason=reason_of(error),
            )
        self._due[part.key] = self._clock.monotonic() + pause_seconds

    async def _sweep(self, tx: Tx) -> set[UUID]:
        """Halts in turn, so that each is added up wherever its parts are worked, also one without
        any account."""
        found = await store.unfinished_halts(tx, self._swept, MAX_SWEPT)
        self._swept = found[-1] if len(found) == MAX_SWEPT else FIRST
        self._swept_at = self._clock.monotonic()
        return set(found)

    def _begin_sum(self, halt_id: UUID) -> None:
        task = self._sums[halt_id] = asyncio.create_task(self._add_up(halt_id))

        def on_end(task: asyncio.Task[None]) -> None:
            del self._sums[halt_id]
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                self._log.warning("halt not added up", halt=str(halt_id), reason=reason_of(error))

        task.add_done_callback(on_end)

    async def _add_up(self, halt_id: UUID) -> None:
        async with self._pool.transaction() as tx:
            halt = await store.lock_halt(tx, halt_id)
            if halt is None:
                return
            totals = await store.add_up(tx, halt)
            changed = await store.update_halt(tx, halt_id, _state(totals), totals)
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


def _state(totals: store.HaltTotals) -> HaltState:
    if totals.cancelling:
        return HaltState.CANCELLING
    return HaltState.CLOSING if totals.closing else HaltState.DONE
