"""Waiting for orders of an account: one stream serves all waits. Without `stream:read` the order is
polled."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from trading_intents_client.errors import ClientClosed, Forbidden, OrderEnded, WaitTimeout
from trading_intents_client.stream.events import GapEvent, OrderEvent, PrimedEvent, StreamedOrder
from trading_intents_client.stream.following import AsyncEventStream
from trading_intents_client.types.enums import FINAL_STATUSES
from trading_intents_client.types.trading import OrderRecord

LINGER_SECONDS = 5.0
MAX_BACKLOG = 1000  # of one order's changes
POLL_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds

Order = TypeVar("Order", bound=OrderRecord)
T = TypeVar("T")
Change = StreamedOrder | None  # None: look again


class OrderWaits(Generic[Order]):
    """Opens the stream with the first waiter, and closes it some seconds after the last one."""

    def __init__(
        self, open_stream: Callable[[], AsyncEventStream], read: Callable[[str], Awaitable[Order]]
    ) -> None:
        self._open_stream = open_stream
        self._read = read
        self._waiters: dict[str, set[asyncio.Queue[Change]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._is_primed = asyncio.Event()
        self._closing: asyncio.TimerHandle | None = None

    async def wait(self, intent_id: str, statuses: frozenset[str], seconds: float) -> Order:
        changes: asyncio.Queue[Change] = asyncio.Queue(MAX_BACKLOG)
        self._waiters.setdefault(intent_id, set()).add(changes)
        seen: list[Order] = []  # as it was read last
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._wait_by_stream(intent_id, statuses, changes, seen)
                except Forbidden:
                    return await self._poll(intent_id, statuses, seen)
        except TimeoutError:
            order = seen[-1] if seen else None
            state = (
                f"{order.order_status} after {seconds:g} s"
                if order
                else f"not read within {seconds:g} s"
            )
            raise WaitTimeout(f"order {intent_id} is {state}", order) from None
        finally:
            self._leave(intent_id, changes)

    async def _wait_by_stream(
        self,
        intent_id: str,
        statuses: frozenset[str],
        changes: asyncio.Queue[Change],
        seen: list[Order],
    ) -> Order:
        reader = await self._follow()
        # Read after the stream has begun, so that no change falls between the two.
        order = await self._look(intent_id, seen)
        while not _is_over(order, statuses):
            change = await _next_change(reader, changes)
            if change is not None and 0 < change.version <= order.version:
                continue  # the stream is late: this is from before the order was read
            if change is None or change.order_status in statuses or change.is_final:
                order = await self._look(intent_id, seen)
                if change is not None and change.order_status in statuses:
                    return order
        return order

    async def _poll(self, intent_id: str, statuses: frozenset[str], seen: list[Order]) -> Order:
        """For callers that may read orders and no stream. A status that lasts shorter than a pause
        is missed."""
        for pause in itertools.chain(POLL_PAUSES, itertools.repeat(POLL_PAUSES[-1])):
            order = await self._look(intent_id, seen)
            if _is_over(order, statuses):
                return order
            await asyncio.sleep(pause)
        raise AssertionError("the pauses never end")

    async def _look(self, intent_id: str, seen: list[Order]) -> Order:
        order = await self._read(intent_id)
        seen[:] = [order]
        return order

    async def aclose(self) -> None:
        reader = self._reader
        self._stop()
        if reader is not None:
            await asyncio.wait({reader})

    def _stop(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        if self._reader is not None:
            self._reader.cancel()
        self._reader = self._closing = None

    async def _follow(self) -> asyncio.Task[None]:
        """Gives the reader of the stream, which has begun."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if self._reader is None or self._reader.done():
            self._is_primed.clear()
            self._reader = asyncio.create_task(self._read_stream())
            # An error that nobody waits for any more is of no use.
            self._reader.add_done_callback(lambda reader: reader.cancelled() or reader.exception())
        reader = self._reader
        await _or_failure(reader, self._is_primed.wait())
        return reader

    async def _read_stream(self) -> None:
        async with self._open_stream() as stream:
            async for event in stream:
                if isinstance(event, PrimedEvent):
                    self._is_primed.set()
                elif isinstance(event, OrderEvent):
                    self._pass_on(event.order.intent_id, event.order)
                elif isinstance(event, GapEvent):
                    for intent_id in self._waiters:
                        self._pass_on(intent_id, None)

    def _pass_on(self, intent_id: str, change: Change) -> None:
        for changes in self._waiters.get(intent_id, ()):
            if changes.full():  # the change itself is not needed to look again
                while not changes.empty():
                    changes.get_nowait()
                change = None
            changes.put_nowait(change)

    def _leave(self, intent_id: str, changes: asyncio.Queue[Change]) -> None:
        waiting = self._waiters[intent_id]
        waiting.discard(changes)
        if not waiting:
            del self._waiters[intent_id]
        if not self._waiters and self._reader is not None:
            self._closing = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._stop)


def _is_over(order: OrderRecord, statuses: frozenset[str]) -> bool:
    # Whoever waits for the end takes an end that only a newer server has a name for.
    if order.order_status in statuses or (order.is_final and statuses >= FINAL_STATUSES):
        return True
    if order.is_final:
        why = f": {order.detail or order.reason}" if order.detail or order.reason else ""
        raise OrderEnded(f"order {order.order_id} ended {order.order_status}{why}", order)
    return False


async def _next_change(reader: asyncio.Task[None], changes: asyncio.Queue[Change]) -> Change:
    found: Change = await _or_failure(reader, changes.get())
    return found


async def _or_failure(reader: asyncio.Task[None], wanted: Awaitable[T]) -> T:
    """Gives the wanted result, or raises the error that ended the stream."""
    task = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait({task, reader}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            if reader.cancelled():
                raise ClientClosed("the client was closed during the wait")
            reader.result()
        return await task
    finally:
        task.cancel()
