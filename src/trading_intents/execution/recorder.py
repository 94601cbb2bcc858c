"""Writes down what brokers said and what became of commands: all that waits of an account in one transaction, together
with the rows of the outbox. Never talks to a broker."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from uuid import UUID

from trading_intents.brokers.port import BrokerEvent
from trading_intents.execution import store
from trading_intents.execution.model import LOOKUP_PAUSES_SECONDS
from trading_intents.execution.tracker import Booked, Desk, OwnFact, Recorded, publish, record, warn
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import ClaimedRow, Status
from trading_intents.outbox.queue import Setback
from trading_intents.storage.database import Pool, Tx
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics

MOST_TOGETHER = 100
DESKS_AT_ONCE = 4
CANCEL = "intent.cancel"

Item = TypeVar("Item")
Result = TypeVar("Result")


class Gathering(Generic[Item, Result]):
    """Natural group commit: while a batch of a key is worked on its next one gathers. A batch that fails is tried item
    by item, so that a bad one harms no other. Bounded by its callers, each of whom waits."""

    def __init__(self, work: Callable[[list[Item]], Awaitable[Sequence[Result]]], at_once: int) -> None:
        self._work, self._slots = work, asyncio.Semaphore(at_once)
        self._waiting: dict[Hashable, list[tuple[Item, asyncio.Future[Result]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, key: Hashable, item: Item) -> Result:
        settled: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            self._waiting[key].append((item, settled))
        else:
            self._waiting[key] = [(item, settled)]
            task = asyncio.create_task(self._empty(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await settled

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _empty(self, key: Hashable) -> None:
        while True:
            async with self._slots:
                waiting = self._waiting[key]
                batch, self._waiting[key] = waiting[:MOST_TOGETHER], waiting[MOST_TOGETHER:]
                await self._settle(batch)
            if not self._waiting[key]:
                del self._waiting[key]
                return

    async def _settle(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        batch = [each for each in batch if not each[1].done()]
        if not batch:
            return
        try:
            results = await self._work([item for item, _ in batch])
        except Exception as error:
            if len(batch) > 1:
                for each in batch:
                    await self._settle([each])
            elif not batch[0][1].done():  # who waited may have gone
                batch[0][1].set_exception(error)
            return
        for (_, settled), result in zip(batch, results, strict=True):
            if not settled.done():
                settled.set_result(result)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is to be written together. A claimed `row` is completed, or with `setback` put back or failed."""

    desk: Desk
    events: tuple[BrokerEvent, ...] = ()
    own: tuple[OwnFact, ...] = ()
    row: ClaimedRow | None = None
    setback: Setback | None = None
    client_order_id: str = ""  # of the row's command
    is_unsent: bool = False  # its mark is taken back: it may be sent again
    is_unclear: bool = False  # its answer was lost
    look_up: bool = False  # the order's state at the broker is in doubt


@dataclass(frozen=True, slots=True)
class Written:
    """What became of an entry's row, None when its claim was lost and the entry with it; and the orders as they are now
    that changed in its transaction."""

    status: Status | None
    orders: Mapping[UUID, Booked]


class _ClaimLost(Exception):
    """Of a row in the batch: it is another worker's by now."""


class Recorder:
    """`doubted` is told when an order is to be looked up."""

    def __init__(
        self,
        pool: Pool,
        attempt_limit: int,
        doubted: Callable[[], None],
        signals: Signals,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._pool, self._attempt_limit, self._doubted = pool, attempt_limit, doubted
        self._signals, self._metrics, self._log = signals, metrics, log
        self._gathering = Gathering(self._write, DESKS_AT_ONCE)

    async def write(self, entry: Entry) -> Written:
        # Setbacks lock their orders first, and so go by themselves: nobody locks orders in two goes.
        return await self._gathering.put((entry.desk.account_id, entry.setback is None), entry)

    async def close(self) -> None:
        await self._gathering.close()

    async def book(self, tx: Tx, desk: Desk, events: Sequence[BrokerEvent], own: Sequence[OwnFact] = ()) -> Recorded:
        """The first statements of a transaction that `publish` and `told` must follow."""
        recorded = await record(tx, desk, events, own)
        if recorded.resurrected:
            await store.look_up_after(tx, recorded.resurrected, 0)
        return recorded

    def told(self, recorded: Recorded) -> None:
        """After the commit."""
        if recorded.changed:
            self._signals.notify(STREAM)
        for order_id in recorded.resurrected:
            self._metrics.execution_alerts.labels("resurrected").inc()
            self._log.error("the broker has an order that was given up", order=str(order_id))
            self._doubted()
        warn(recorded, self._log, self._metrics)

    async def _write(self, entries: list[Entry]) -> list[Written]:
        try:
            async with self._pool.transaction(plans="by_key") as tx:
                recorded, statuses = await self._record(tx, entries)
        except _ClaimLost:
            if len(entries) > 1:
                raise
            return [Written(None, {})]
        if recorded:
            self.told(recorded)
        if any(entry.look_up for entry in entries):
            self._doubted()
        orders = recorded.orders if recorded else {}
        return [Written(status, orders) for status in statuses]

    async def _record(self, tx: Tx, entries: list[Entry]) -> tuple[Recorded | None, list[Status | None]]:
        """In the order of the locks: orders and positions, rows of the outbox, stats, the stream's head."""
        desk = entries[0].desk
        entries = await self._hurry(tx, entries)
        events = [event for entry in entries for event in entry.events]
        own = [fact for entry in entries for fact in entry.own]
        recorded = await self.book(tx, desk, events, own) if events or own else None
        await self._follow(tx, desk, entries)
        statuses = await self._end_rows(tx, entries)
        if recorded:
            await publish(tx, recorded)
        return recorded, statuses

    async def _hurry(self, tx: Tx, entries: list[Entry]) -> list[Entry]:
        """A CANCEL that came meanwhile does not wait for the next attempt of what it cancels. It makes waiting rows due
        under the order's lock, as this looks for it."""
        waiting = {entry.setback.row.order_key for entry in entries if entry.setback}
        if not waiting:
            return entries
        cancelled = {row["order_id"] for row in await store.lock_orders(tx, waiting) if row["cancel_requested"]}
        return [
            replace(entry, setback=replace(entry.setback, after_seconds=0.0))
            if entry.setback and entry.setback.row.order_key in cancelled and entry.setback.row.event_type != CANCEL
            else entry
            for entry in entries
        ]

    async def _follow(self, tx: Tx, desk: Desk, entries: list[Entry]) -> None:
        doubted = sorted({entry.row.order_key for entry in entries if entry.look_up and entry.row})
        if doubted:
            await store.look_up_after(tx, doubted, LOOKUP_PAUSES_SECONDS[0])
        unclear = [entry.client_order_id for entry in entries if entry.is_unclear]
        if unclear:
            await store.mark_unclear(tx, desk.account_id, unclear)
        unsent = [entry.client_order_id for entry in entries if entry.is_unsent]
        if unsent:
            await store.unmark_sent(tx, desk.account_id, unsent)

    async def _end_rows(self, tx: Tx, entries: list[Entry]) -> list[Status | None]:
        done = [entry.row for entry in entries if entry.row and not entry.setback]
        setbacks = [entry.setback for entry in entries if entry.setback]
        ended: dict[UUID, Status] = {}
        if done:
            ended |= dict.fromkeys(await outbox.complete(tx, done), Status.COMPLETED)
        if setbacks:
            ended |= await outbox.retry(tx, setbacks, self._attempt_limit)
        if len(ended) < len(done) + len(setbacks):
            raise _ClaimLost
        return [ended[entry.row.token] if entry.row else None for entry in entries]
