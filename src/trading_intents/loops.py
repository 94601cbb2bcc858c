"""Loops and tasks of the event loop: start, stop, back off, wait, and share."""

import asyncio
import contextlib
import gc
import time
import types
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Sequence,
)
from functools import partial
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)
R = TypeVar("R")

MAX_HOLD_SECONDS = 0.004
GC_THRESHOLD_OBJECTS = 50_000
SLOT_SECONDS = 0.0003  # of each round of the loop, for the steps of all groups


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
                if not own:
                    del self._groups[group]
                elif len(self._groups) > 1:
                    self._groups.move_to_end(group)
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
    """Shares the time of the event loop: in each of its rounds steps run for a slot, from the
    groups in turn, and the others wait. A step that finds nobody waiting and time left runs at
    once."""

    def __init__(self, slot_seconds: float = SLOT_SECONDS) -> None:
        """Without any time, one step runs in each round."""
        self._slot_seconds = slot_seconds
        self._waiting = FairQueue[K, Callable[[], object]]()
        # By time.monotonic(): the loop's own time stands still during a round. None: no step has
        # run in this one.
        self._ends_at: float | None = None

    def has_time(self) -> bool:
        """Whether a step may run at once."""
        if self._waiting.count:
            return False
        ends_at = self._ends_at or self._begin_slot()
        return time.monotonic() < ends_at

    def wait(self, group: K, step: Callable[[], object]) -> None:
        """Runs the step in its group's turn."""
        self._waiting.append(group, step)
        if self._ends_at is None:
            self._begin_slot()

    async def take(self, group: K) -> None:
        """Returns in the group's turn."""
        if self.has_time():
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        step = partial(_wake, slot)
        self.wait(group, step)
        try:
            await slot
        finally:
            self._waiting.remove(group, step)  # of a caller that was cancelled

    def _begin_slot(self) -> float:
        self._ends_at = time.monotonic() + self._slot_seconds
        asyncio.get_running_loop().call_soon(self._end_slot)
        return self._ends_at

    def _end_slot(self) -> None:
        self._ends_at = None
        if self._waiting.count:
            ends_at = self._begin_slot()
            while step := self._waiting.pop():
                # A task that was woken does its work in the next round.
                if step() is _LATER or time.monotonic() >= ends_at:
                    break


_LATER = object()


def _wake(slot: "asyncio.Future[None]") -> object:
    if not slot.done():
        slot.set_result(None)
    return _LATER


class EagerTasks:
    """Runs coroutines at once, as far as they come without waiting; only one that waits becomes a
    task."""

    def __init__(self) -> None:
        self._spare: _SpareTask | None = None

    def run(
        self, work: Coroutine[Any, Any, R], on_end: Callable[[R], None]
    ) -> "asyncio.Task[None] | None":
        """Has `on_end` called with what the work returns, which raises nothing. None: it was."""
        spare = self._spare = self._spare or _SpareTask()
        loop = asyncio.get_running_loop()
        outer = asyncio.current_task()
        # What waits with a limit asks for its task before it waits.
        if outer:
            asyncio.tasks._leave_task(loop, outer)  # as tasks of another kind do
        asyncio.tasks._enter_task(loop, spare.task)
        try:
            awaited = work.send(None)
        except StopIteration as end:
            result: R = end.value
        else:
            self._spare = None
            return spare.adopt(work, awaited, on_end)
        finally:
            asyncio.tasks._leave_task(loop, spare.task)
            if outer:
                asyncio.tasks._enter_task(loop, outer)
        on_end(result)
        return None


class _SpareTask:
    """A task for a coroutine that has begun already."""

    def __init__(self) -> None:
        self._work: Coroutine[Any, Any, Any] | None = None
        self._awaited: object = None
        self._on_end: Callable[[Any], None] | None = None
        self._adopted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())
        self.task._log_destroy_pending = False  # type: ignore[attr-defined]  # nothing has begun

    def adopt(
        self, work: Coroutine[Any, Any, R], awaited: object, on_end: Callable[[R], None]
    ) -> "asyncio.Task[None]":
        self._work = work
        self._awaited = awaited
        self._on_end = on_end
        self._adopted.set_result(None)
        return self.task

    async def _run(self) -> None:
        cancelled = None
        try:
            await self._adopted
        except asyncio.CancelledError as error:
            if self._work is None:
                raise
            cancelled = error
        assert self._work
        assert self._on_end
        self._on_end(await _go_on(self._work, self._awaited, cancelled))


@types.coroutine
def _go_on(
    work: Coroutine[Any, Any, R], awaited: object, error: BaseException | None
) -> Generator[object, None, R]:
    """Goes on with a coroutine that waits; with the error, instead of what it waits for."""
    while True:
        try:
            if error is None:
                yield awaited
        except BaseException as raised:  # the coroutine may take it
            error = raised
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            result: R = end.value
            return result
        error = None
