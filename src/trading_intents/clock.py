"""Time of this process. Where processes must agree, they use the database's clock instead."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

MAX_HOLD_SECONDS = 0.004
RFC3339_RULE = "must be an RFC 3339 time with its offset, such as 2026-01-05T15:00:00Z"
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for ages and limits."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def rfc3339(moment: datetime) -> str:
    """The form of every timestamp that the platform sends: UTC, microseconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> datetime | None:
    """In UTC; None if it is no RFC 3339 time with an offset. What is finer than a microsecond is rounded up, so that
    comparing with our own times, which are not finer, gives the same."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    day, hours, fraction, offset = match.groups()
    nanos = int((fraction or "0").ljust(9, "0"))
    try:
        moment = datetime.fromisoformat(f"{day}T{hours}{offset.upper()}") + timedelta(microseconds=-(-nanos // 1000))
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class TimeRange(NamedTuple):
    """From `start` on, and before `end`; None: without that bound."""

    start: datetime | None = None
    end: datetime | None = None


class Wakeup(asyncio.Event):
    """Wakes a part that waits. It is made before the parts that share it, so that none of them has to know another."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0  # of `wake`; a part that ends its own wait calls `set`

    def wake(self) -> None:
        self.count += 1
        self.set()

    def wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)


async def repeat(
    work: Callable[[], Awaitable[float | None]],
    pause_seconds: float,
    on_error: Callable[[str, Exception], None],
    wakeup: asyncio.Event | None = None,
) -> None:
    """Runs `work` until cancelled, with a pause of `pause_seconds`, or of as many as it gave, which `wakeup` ends.
    `on_error` gets the name of the work and what it raised."""
    wakeup = wakeup or asyncio.Event()
    while True:
        wakeup.clear()
        given_seconds = None
        try:
            given_seconds = await work()
        except Exception as error:
            on_error(work.__name__, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_seconds if given_seconds is None else given_seconds):
                await wakeup.wait()


def start_loop(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs what goes on until it is cancelled or told to stop; `watch_loops` has it noticed if it fails."""
    task = asyncio.create_task(work)
    task.add_done_callback(tell_failure)
    return task


def watch_loops(on_failure: Callable[[str, BaseException], None]) -> None:
    """From now on `on_failure` gets the name and the error of a loop that has ended by an error, or by a cancellation
    that nobody asked for. Without that loop the process would only seem to work."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context["message"] == _FAILED:
            on_failure(context["task"].get_coro().__qualname__, context["exception"])
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)


_FAILED = "a loop has failed"


def tell_failure(task: asyncio.Task[None]) -> None:
    """A callback of the loops that have ended."""
    if task.cancelled() and task.cancelling():
        return
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error:
        task.get_loop().call_exception_handler({"message": _FAILED, "exception": error, "task": task})


class Pacer:
    """Keeps a long computation from holding the event loop. One for each, made when it begins."""

    def __init__(self) -> None:
        self._since_seconds = time.monotonic()

    async def pause_if_due(self) -> None:
        """Lets the other tasks run once, if the computation has held the loop for MAX_HOLD_SECONDS."""
        if time.monotonic() - self._since_seconds >= MAX_HOLD_SECONDS:
            await asyncio.sleep(0)
            self._since_seconds = time.monotonic()
