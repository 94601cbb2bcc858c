"""The event loop of a blocking client: a thread of its own, made anew after a fork. An interrupt
cancels what runs."""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from trading_intents_client.errors import ClientClosed, Interrupted

STOP_SECONDS = 5.0
# How long a cancelled call may take to say under which key it was sent.
CANCEL_SECONDS = 2.0

T = TypeVar("T")


@dataclass(frozen=True)
class _Running:
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


class LoopThread:
    """Runs coroutines for threads that have no event loop, or one that must not be blocked by this
    client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_closed = False
        # A parent process's: closing it would disturb the parent.
        self._inherited: list[_Running] = []
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_parent(this()))

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """`call` runs in the loop's thread: an interrupt before that leaves no coroutine that
        nobody awaits."""
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        async def called() -> T:
            return await call()

        def start() -> None:
            task = asyncio.get_running_loop().create_task(called())
            tasks.append(task)
            task.add_done_callback(lambda ended: _copy_result(done, ended))

        loop = self._schedule(start)
        try:
            return done.result()
        except asyncio.CancelledError as error:  # another thread has closed the client
            closed = ClientClosed("the client was closed before the answer came")
            closed.idempotency_key = getattr(error.__cause__, "idempotency_key", None)
            closed.may_be_recorded = closed.idempotency_key is not None
            raise closed from None
        except KeyboardInterrupt as interrupt:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise Interrupted(_key_of(done)) from interrupt

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with contextlib.suppress(ClientClosed):  # another thread was first
            self.run(last)
        with self._lock:
            running = self._running
            self._running = None
            self._is_closed = True
            if running is not None:
                _end_loop(running.loop)
        if running is not None:
            running.thread.join(STOP_SECONDS)

    def _schedule(self, start: Callable[[], None]) -> asyncio.AbstractEventLoop:
        """Under the lock, so that what was scheduled is cancelled by a `close` and never forgotten
        by it."""
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the client is closed")
            if self._running is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run_loop, args=(loop,), name="trading-intents-client", daemon=True
                )
                self._running = _Running(loop, thread)
                thread.start()
                weakref.finalize(self, _end_loop, loop).atexit = False
            elif self._running.thread is threading.current_thread():
                raise RuntimeError(
                    "called from the client's own thread, where it would wait for itself"
                )
            self._running.loop.call_soon_threadsafe(start)
            return self._running.loop

    def forget_parent(self) -> None:
        """In a child process: threads do not survive a fork, and a lock may have been held."""
        self._lock = threading.Lock()
        if self._running is not None:
            self._inherited.append(self._running)
        self._running = None


def _forget_parent(thread: LoopThread | None) -> None:
    if thread is not None:
        thread.forget_parent()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def _copy_result(done: "Future[T]", ended: "asyncio.Task[T]") -> None:
    """Not by `asyncio.wrap_future`, which makes another CancelledError of one whose cause has an
    Idempotency-Key."""
    try:
        done.set_result(ended.result())
    except BaseException as error:
        done.set_exception(error)


def _key_of(done: "Future[Any]") -> str | None:
    """The Idempotency-Key of what was cancelled, or of what was done just before."""
    try:
        holder: Any = done.exception(CANCEL_SECONDS) or done.result()
    except TimeoutError:
        return None
    if isinstance(holder, asyncio.CancelledError):
        holder = holder.__cause__
    key: str | None = getattr(holder, "idempotency_key", None)
    return key
