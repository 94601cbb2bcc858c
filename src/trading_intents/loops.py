"""Loops and tasks of the event loop: start, stop, back off, wait, and share."""

import asyncio
import contextlib
import gc
import time
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Sequence,
)
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)

MAX_HOLD_SECONDS = 0.004
GC_THRESHOLD_OBJECTS = 50_000


class Wakeup(asyncio.Event):
    """Wakes a part that waits. It is made before the parts that share it, so that none of them has
    to know another."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0  # of `wake`; a part that ends its own wait calls `set`

    def wake(self) -> None:
        self.count += 1
        self.set()

    def wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)


async def wait_at_most(event: asyncio.Event, limit_seconds: float | None) -> None:
    """Waits for the event; returns without an error when the limit comes first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_seconds):
            await event.wait()


def pause_after(pauses_seconds: Sequence[float], failures: int) -> float:
    """The pause after so many failures before this one; the last pause repeats."""
    return pauses_seconds[min(failures, len(pauses_seconds) - 1)]


async def repeat(
    work: Callable[[], Awaitable[float | None]],
    pause_seconds: float,
    on_error: Callable[[str, Exception], None],
    wakeup: asyncio.Event | None = None,
    *,
    retry_seconds: Sequence[float] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Runs `work` until cancelled or over, with a pause of `pause_seconds`, or of as many as it
    gave, which `wakeup` ends. `on_error` gets the name of the work and what it raised; pauses of
    `retry_seconds` follow, which nothing ends."""
    wakeup = wakeup or asyncio.Event()
    failures = 0
    while not is_over():
        wakeup.clear()
        given_seconds = None
        try:
            given_seconds = await work()
            failures = 0
        except Exception as error:
            on_error(work.__name__, error)
            if retry_seconds:
                await asyncio.sleep(pause_after(retry_seconds, failures))
                failures += 1
                continue
        await wait_at_most(wakeup, pause_seconds if given_seconds is None else given_seconds)


async def stop_tasks(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancels the tasks that there are, and waits for their ends, whatever these are."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


async def finish_tasks(
    tasks: Callable[[], Iterable["asyncio.Task[Any] | None"]], limit_seconds: float
) -> None:
    """Waits until none of the tasks runs, and stops those that outlast the limit. They may start
    others meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_seconds):
            while running := [task for task in tasks() if task and not task.done()]:
                await asyncio.wait(running)
    await stop_tasks(*tasks())


def start_loop(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Starts a loop that runs until it is cancelled or stopped; `watch_loops` stops the process if
    it fails."""
    task = asyncio.create_task(work)
    task.add_done_callback(report_failure)
    return task


def watch_loops(on_failure: Callable[[str, BaseException], None]) -> None:
    """From now on `on_failure` gets the name and the error of a loop that has ended by an error, or
    by a cancellation that nobody asked for. Without that loop the process would only seem to
    work."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context["message"] == _FAILED:
            on_failure(context["task"].get_coro().__qualname__, context["exception"])
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)


_FAILED = "a loop has failed"


def report_failure(task: asyncio.Task[None]) -> None:
    if task.cancelled() and task.cancelling():
        return
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error:
        task.get_loop().call_exception_handler(
            {"message": _FAILED, "exception": error, "task": task}
        )


@contextlib.asynccontextmanager
async def interrupted_by(stop: asyncio.Event) -> AsyncIterator[asyncio.Task[None]]:
    """Ends the block when `stop` is set, as a start may wait long for others, until the task that
    it gives is cancelled."""
    block = asyncio.current_task()
    assert block is not None

    async def interrupt() -> None:
        await stop.wait()
        block.cancel()

    task = asyncio.create_task(interrupt())
    try:
        yield task
    except asyncio.CancelledError:
        if not task.done() or task.cancelled():
            raise
        block.uncancel()
    finally:
        task.cancel()


def collect_rarely() -> None:
    """Excludes present objects from garbage collection, which holds the loop, and collects rarely:
    requests leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS)


class Pacer:
    """Keeps a long computation from holding the event loop. One for each, made when it begins."""

    def __init__(self) -> None:
        self._since_seconds = time.monotonic()

    async def pause_if_due(self) -> None:
        """Lets the other tasks run once, if the computation has held the loop for
        MAX_HOLD_SECONDS."""
        if time.monotonic() - self._since_seconds >= MAX_HOLD_SECONDS:
            await asyncio.sleep(0)
            self._since_seconds = time.monotonic()


class FairQueue(Generic[K, T]):
    """Takes from its groups in turn: an organization that queues much keeps no other one waiting.
    Items of a group keep their order. A group without items is forgotten."""

    def __init__(self) -> None:
        self.count = 0
        self._groups: OrderedDict[K, OrderedDict[T, None]] = OrderedDict()

    def count_of(self, group: K) -> int:
        return len(self._groups.get(group, ()))

    def append(self, group: K, item: T, is_first: bool = False) -> None:
        own = self._groups.setdefault(group, OrderedDict())
        own[item] = None
        if is_first:
            own.move_to_end(item, last=False)
        self.count += 1

    def pop(self, may_take: Callable[[K], bool] | None = None) -> T | None:
        """Takes the first item of the first group that may take, which then queues behind the
        others; those that may not keep their rank. None: no group may, or there is none."""
        for group, own in self._groups.items():
            if may_take is None or may_take(group):
                item, _ = own.popitem(last=False)
                self.count -= 1
                if own:
                    self._groups.move_to_end(group)
                else:
                    del self._groups[group]
                return item
        return None

    def remove(self, group: K, item: T) -> None:
        """Does nothing if the item was taken before."""
        own = self._groups.get(group, OrderedDict())
        if item in own:
            del own[item]
            self.count -= 1
            if not own:
                del self._groups[group]


class LoopSlots(Generic[K]):
    """Each iteration of the event loop is a slot, in which one caller goes on, from the groups in
    turn: others are served between two pieces of work."""

    def __init__(self) -> None:
        self._waiting = FairQueue[K, asyncio.Future[None]]()
        self._is_taken = False

    async def take(self, group: K) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on, loop)
            return
        slot: asyncio.Future[None] = loop.create_future()
        self._waiting.append(group, slot)
        try:
            await slot
        finally:
            self._waiting.remove(group, slot)  # of a caller that was cancelled

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        slot = self._waiting.pop()
        if slot is None:
            self._is_taken = False
            return
        if not slot.done():
            slot.set_result(None)
        loop.call_soon(self._pass_on, loop)
