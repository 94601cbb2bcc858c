"""Wake-ups between processes, by one connection that listens and notifies. A wake-up may be lost;
it is never the only record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import asyncpg

from trading_intents.loops import pause_after, start_loop, stop_tasks
from trading_intents.secret import Secret
from trading_intents.storage.connections import CONNECTION_ERRORS
from trading_intents.telemetry import Log

CONNECT_LIMIT_SECONDS = 10.0  # nobody waits for it
COMMAND_LIMIT_SECONDS = 2.0
CLOSE_LIMIT_SECONDS = 1.0
CHECK_SECONDS = 10.0  # a dead connection is noticed after this long
NOTIFY_PAUSE_SECONDS = 0.01  # so that a busy process notifies 100 times a second, not once a commit
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
# Organizations or accounts in a notification, which has 8,000 bytes at most; of more everybody is
# woken.
MAX_NAMED = 100

Callback = Callable[..., None]  # with the names that concern it; without any, it may be all
Concerns = Callable[[str], bool]  # whether commits of an organization or account are of interest


class Signals:
    """Call `notify` after a commit: inside a transaction NOTIFY takes a lock on the whole
    database."""

    def __init__(self, url: Secret, log: Log) -> None:
        self._url = url
        self._log = log
        self._callbacks: dict[str, list[tuple[Callback, Concerns]]] = {}
        self._waiting: dict[str, set[str]] = {}  # names by channel; an empty one: all
        self._wakeup = asyncio.Event()

    def subscribe(
        self, channel: str, callback: Callback, concerns: Concerns = lambda _: True
    ) -> None:
        """`callback` runs after a `notify` here or in another process that concerns it, and
        whenever one may have been missed."""
        self._callbacks.setdefault(channel, []).append((callback, concerns))
        self._wakeup.set()

    def unsubscribe(self, channel: str, callback: Callback) -> None:
        """Does nothing if it is not subscribed."""
        self._callbacks[channel] = [
            each for each in self._callbacks.get(channel, ()) if each[0] != callback
        ]

    def notify(self, channel: str, names: Collection[str] = ()) -> None:
        """Calls this process's subscribers at once. Other processes are notified soon, by one
        NOTIFY for many calls. Without names it concerns everybody."""
        self._call(channel, names)
        self._waiting.setdefault(channel, set()).update(names or [""])
        self._wakeup.set()

    async def run(self) -> None:
        """Listens and notifies until cancelled; reconnects after each loss."""
        failures = 0
        while True:
            try:
                connection = await asyncpg.connect(
                    self._url.reveal(),
                    timeout=CONNECT_LIMIT_SECONDS,
                    command_timeout=COMMAND_LIMIT_SECONDS,
                )
                failures = 0
                await self._use(connection)
            except Exception as error:  # any at all: nobody else would listen
                self._log.warning("signals lost", reason=type(error).__name__)
            await asyncio.sleep(pause_after(RETRY_SECONDS, failures))
            failures += 1

    async def _use(self, connection: Any) -> None:
        try:
            connection.add_termination_listener(lambda _: self._wakeup.set())
            own_pid = connection.get_server_pid()

            def on_notification(_: Any, pid: int, channel: str, payload: object) -> None:
                if pid != own_pid:  # `notify` has called this process's own
                    self._call(channel, str(payload).split())

            listening: set[str] = set()
            while not connection.is_closed():
                self._wakeup.clear()
                for channel in self._callbacks.keys() - listening:
                    await connection.add_listener(channel, on_notification)
                    listening.add(channel)
                    self._call(channel)
                if await self._send(connection):
                    await asyncio.sleep(NOTIFY_PAUSE_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._wakeup.wait()
                        continue
                await connection.execute("SELECT 1")
        finally:
            await self._end(connection)

    async def _send(self, connection: Any) -> bool:
        """Sends what is pending; whether there was anything."""
        waiting = self._waiting
        self._waiting = {}
        if not waiting:
            return False
        named = [
            "" if "" in each or len(each) > MAX_NAMED else " ".join(each)
            for each in waiting.values()
        ]
        try:
            statement = "SELECT pg_notify(c, o) FROM unnest($1::text[], $2::text[]) AS named (c, o)"
            await connection.execute(statement, list(waiting), named)
        except BaseException:
            for channel, names in waiting.items():
                self._waiting.setdefault(channel, set()).update(names)
            raise
        return True

    async def _end(self, connection: Any) -> None:
        try:
            async with asyncio.timeout(CLOSE_LIMIT_SECONDS):
                await self._send(connection)
                await connection.close()
        except CONNECTION_ERRORS:
            connection.terminate()

    def _call(self, channel: str, names: Collection[str] = ()) -> None:
        for callback, concerns in self._callbacks.get(channel, ()):
            concerned = [*filter(concerns, names)]
            if concerned or not names:
                callback(*concerned)


@contextlib.asynccontextmanager
async def open_signals(url: Secret, log: Log) -> AsyncIterator[Signals]:
    """Does not wait for a connection: earlier notifications are sent once there is one."""
    signals = Signals(url, log)
    running = start_loop(signals.run())
    try:
        yield signals
    finally:
        await stop_tasks(running)
        # A terminated connection closes its socket in the loop's next iteration.
        await asyncio.sleep(0)
