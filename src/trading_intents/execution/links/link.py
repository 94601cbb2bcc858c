"""One account's link to its broker: opened, reconciled, listened to, and opened again when it ends. Commands go through
it; it never decides which."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from trading_intents.accounts.model import Connection
from trading_intents.accounts.vault import SecretRef, Vault
from trading_intents.brokers.port import (
    AuthFailed,
    Broker,
    BrokerAccount,
    BrokerEvent,
    BrokerUnavailable,
    CommandResult,
    Integration,
    IntegrationContext,
    Lookup,
    LookupUnknown,
    OrderTicket,
    Outcome,
    StreamGap,
)
from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock
from trading_intents.errors import PlatformError
from trading_intents.execution import store as execution_store
from trading_intents.execution.links import store
from trading_intents.execution.model import Breaker, Budget
from trading_intents.execution.recorder import Entry, Recorder
from trading_intents.execution.tracker import Desk
from trading_intents.orders.facts import CommandKind
from trading_intents.outbox.settling import reason_of
from trading_intents.storage.database import Pool
from trading_intents.storage.signals import Signals
from trading_intents.telemetry import Log, Metrics

OPEN_SECONDS = 10.0
OPENING_AT_ONCE = 8  # links; with thousands of accounts everything else must go on
SNAPSHOT_SECONDS = 10.0
CLOSE_SECONDS = 2.0
LOOKUP_SECONDS = 3.0
CALLS_AT_ONCE = 10
MOST_BUFFERED = 1_000  # events; then the broker's own iterator waits, and tells of a gap if it cannot
MOST_EVENTS = 100  # in a transaction
SEEN_MARGIN = timedelta(seconds=30)  # clocks differ, and an execution can be told late
PAUSES_SECONDS = (
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
)  # before the link is opened again; also between snapshots while it is doubted
WRITE_PAUSE_SECONDS = 0.2
NO_CREDENTIAL = frozenset({Connection.CREDENTIAL_MISSING, Connection.CREDENTIAL_REJECTED})


@dataclass(frozen=True, slots=True)
class Exchange:
    """What every link of a process is built from. `changed` is told whenever a link's state is another."""

    pool: Pool
    integrations_pool: Pool  # for their own tables
    brokers: Registry
    vault: Vault
    settings: Callable[[str], Mapping[str, str]]  # of a broker
    signals: Signals
    recorder: Recorder
    clock: Clock
    metrics: Metrics
    log: Log
    changed: Callable[[], None]
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENING_AT_ONCE))


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a link is opened with; when it is another, the link is opened anew."""

    external_account_id: str | None
    closed: bool
    sealed_id: UUID | None
    credential_id: UUID | None
    sealed: bytes | None
    seen_at: datetime

    def is_as(self, other: "_Setup") -> bool:
        mine, others = (
            (each.external_account_id, each.closed, each.sealed_id, each.credential_id) for each in (self, other)
        )
        return mine == others


class Link:
    def __init__(self, desk: Desk, token: int, exchange: Exchange) -> None:
        self.desk, self.token, self._exchange = desk, token, exchange
        self.integration: Integration | None = exchange.brokers.integration(desk.broker)
        self.state = Connection.DISCONNECTED
        self.is_closed = False  # the account is, for good
        self.has_heard = False  # anything since it was last asked
        self.breaker = Breaker()
        self.budget = Budget(self.integration.capabilities.requests_per_minute if self.integration else None)
        # Whoever sends holds one from before the send is marked: what waits for the broker may still be given up.
        self.slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._broker: Broker | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stirred = asyncio.Event()  # the account changed, or the broker is in doubt
        self._refreshed = False
        self._complaint: tuple[str, str] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self.state is Connection.CONNECTED

    def may_submit(self) -> bool:
        now = self._exchange.clock.monotonic()
        return self.is_up and not self.breaker.is_open and self.budget.wait_seconds(False, now) == 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def refresh(self) -> None:
        """The account or its credential may have changed."""
        self._refreshed = True
        self._stirred.set()

    async def close(self, limit_seconds: float) -> None:
        """Once the calls under way are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                await self._idle.wait()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def call(self, command: CommandKind, ticket: OrderTicket, deadline: float) -> CommandResult:
        """Whatever goes wrong once the broker was called is UNKNOWN."""
        broker, clock = self._broker, self._exchange.clock
        left_seconds = deadline - clock.monotonic()
        if broker is None or left_seconds <= 0:
            return CommandResult(outcome=Outcome.NOT_SENT, message="the link is down")
        method = {CommandKind.SUBMIT: broker.submit, CommandKind.REPLACE: broker.replace}.get(command, broker.cancel)
        self._enter()
        try:
            async with asyncio.timeout(left_seconds):
                result = await method(ticket, deadline)
        except TimeoutError:
            result = CommandResult(outcome=Outcome.UNKNOWN, message="no answer in time")
        except Exception as error:
            self._exchange.log.error("a broker call failed", broker=self.desk.broker, exc_info=error)
            result = CommandResult(outcome=Outcome.UNKNOWN, message="the call failed")
        finally:
            self._leave()
        self._judge(command, result.outcome)
        return result

    async def look_up(self, client_order_id: str, broker_order_id: str | None) -> Lookup:
        if self._broker is None:
            return LookupUnknown("the link is down")
        self.budget.take()
        self._enter()
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                deadline = self._exchange.clock.monotonic() + LOOKUP_SECONDS
                return await self._broker.lookup(client_order_id, broker_order_id, deadline)
        except TimeoutError:
            return LookupUnknown("no answer in time")
        except Exception as error:
            self._exchange.log.error("a broker look-up failed", broker=self.desk.broker, exc_info=error)
            return LookupUnknown("the look-up failed")
        finally:
            self._leave()

    def _enter(self) -> None:
        self._calls += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    def _judge(self, command: CommandKind, outcome: Outcome) -> None:
        self._exchange.metrics.execution_sends.labels(command.lower(), outcome.lower()).inc()
        is_bad = outcome in (Outcome.UNKNOWN, Outcome.NOT_SENT)
        if is_bad and self.breaker.failed(self._exchange.clock.monotonic()):
            self._exchange.log.warning(
                "submits stopped: the broker fails", broker=self.desk.broker, account=str(self.desk.account_id)
            )
            self._stirred.set()
            self._exchange.changed()

    async def _run(self) -> None:
        failures = 0
        while True:
            began = self._exchange.clock.monotonic()
            state = Connection.DISCONNECTED
            try:
                state = await self._live()
            except AuthFailed as error:
                self._complain("broker refuses the credential", str(error))
                state = Connection.CREDENTIAL_REJECTED
            except Exception as error:
                self._complain("broker link ended", _why(error))
            finally:
                self._show(state)
            if self._exchange.clock.monotonic() - began > OPEN_SECONDS:
                failures = 0
            pause_seconds = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)]
            failures += 1
            await self._rest(None if state in NO_CREDENTIAL or self.is_closed else pause_seconds)

    def _complain(self, text: str, reason: str) -> None:
        """Once, for a broker that stays away."""
        if (text, reason) != self._complaint:
            self._complaint = text, reason
            self._exchange.log.warning(text, **self._named(), reason=reason)

    def _named(self) -> dict[str, str]:
        return {"broker": self.desk.broker, "account": str(self.desk.account_id)}

    async def _rest(self, limit_seconds: float | None) -> None:
        """Until the account changes, if not until then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                while not self._refreshed:
                    self._stirred.clear()
                    await self._stirred.wait()

    async def _live(self) -> Connection:
        """From opening the link to its end; gives the state that it leaves behind."""
        self._refreshed = False
        setup = await self._read()
        self.is_closed = setup.closed
        if setup.closed or self.integration is None:
            return Connection.DISCONNECTED
        if self.integration.capabilities.credential_fields and setup.sealed is None:
            return Connection.CREDENTIAL_MISSING
        self._show(Connection.CONNECTING)
        broker = self.integration.connect(await self._context(setup))
        try:
            await self._listen(broker, setup)
        finally:
            self._broker = None
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await broker.close()
        return Connection.DISCONNECTED

    async def _read(self) -> _Setup:
        async with self._exchange.pool.transaction(read_only=True) as tx:
            row = await store.read_link(tx, self.desk.account_id)
        return _Setup(**dict(row))

    async def _context(self, setup: _Setup) -> IntegrationContext:
        desk, exchange = self.desk, self._exchange
        secrets = {}
        if setup.sealed is not None and setup.credential_id is not None:
            ref = SecretRef(desk.organization_id, desk.account_id, setup.credential_id)
            secrets = await exchange.vault.open(ref, setup.sealed)
        account = BrokerAccount(desk.account_id, desk.organization_id, desk.environment, setup.external_account_id)
        settings = exchange.settings(desk.broker)
        return IntegrationContext(
            account, secrets, exchange.clock, settings, exchange.integrations_pool, exchange.signals
        )

    async def _listen(self, broker: Broker, setup: _Setup) -> None:
        """Reconcile while what comes in is buffered, then write down what comes, until the stream ends."""
        buffer: asyncio.Queue[_Heard] = asyncio.Queue(MOST_BUFFERED)
        reading: asyncio.Task[None] | None = None
        try:
            async with self._exchange.opening:
                async with asyncio.timeout(OPEN_SECONDS):
                    await broker.open()
                reading = asyncio.create_task(_read_events(broker, buffer))
                await self._reconcile(broker)
            self._broker, self._complaint = broker, None
            self._show(Connection.CONNECTED)
            await _first_of(self._write_events(broker, buffer), self._mind(broker, setup))
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _write_events(self, broker: Broker, buffer: "asyncio.Queue[_Heard]") -> None:
        while True:
            heard = [await buffer.get()]
            self.has_heard = True
            while len(heard) < MOST_EVENTS and not buffer.empty():
                heard.append(buffer.get_nowait())
            events = tuple(each for each in heard if isinstance(each, BrokerEvent))
            if events:
                await self._write(events)
            for each in heard:
                match each:
                    case Exception():
                        raise each
                    case None:
                        return
                    case StreamGap():
                        self._exchange.log.warning("broker events may be missing", **self._named(), reason=each.reason)
                        await self._reconcile(broker)

    async def _mind(self, broker: Broker, setup: _Setup) -> None:
        """Until the account is another; meanwhile a broken broker is asked whether it is well again."""
        failures = 0
        while True:
            if self._refreshed:
                self._refreshed = False
                if not setup.is_as(await self._read()):
                    self._refreshed = True
                    return
            limit = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)] if self.breaker.is_open else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._stirred.wait()
            self._stirred.clear()
            if self.breaker.is_open:
                failures += 1
                with contextlib.suppress(BrokerUnavailable, TimeoutError):
                    await self._reconcile(broker)
                    failures = 0

    async def _reconcile(self, broker: Broker) -> None:
        """Everything that the broker has, by the same way as what it streams; what it should have and has not is looked
        up. A broker that can tell all that is well."""
        self.budget.take()
        setup = await self._read()
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            snapshot = await broker.snapshot(setup.seen_at - SEEN_MARGIN)
        told = [event for order in snapshot.open_orders for event in order.events]
        told += [*snapshot.executions, *(snapshot.positions or ())]
        for start in range(0, len(told), MOST_EVENTS):
            await self._write(tuple(told[start : start + MOST_EVENTS]))
        clients = [order.client_order_id for order in snapshot.open_orders if order.client_order_id]
        numbers = [order.broker_order_id for order in snapshot.open_orders]
        async with self._exchange.pool.transaction() as tx:
            await execution_store.doubt_missing(tx, self.desk.account_id, clients, numbers)
        was_open = self.breaker.is_open
        self.breaker.reset()
        if was_open:
            self._exchange.changed()

    async def _write(self, events: tuple[BrokerEvent, ...]) -> None:
        """Goes on while the database is away; an event that cannot be written for itself is left out, loudly."""
        while True:
            try:
                await self._exchange.recorder.write(Entry(self.desk, events))
                return
            except PlatformError as error:
                self._exchange.log.warning("broker events not written", **self._named(), reason=reason_of(error))
                await asyncio.sleep(WRITE_PAUSE_SECONDS)
            except Exception as error:
                if len(events) > 1:
                    for event in events:
                        await self._write((event,))
                    return
                self._exchange.metrics.execution_alerts.labels("event_left_out").inc()
                self._exchange.log.error("broker event left out", **self._named(), kind=events[0].kind, exc_info=error)
                return

    def _show(self, state: Connection) -> None:
        if state is not self.state:
            self.state = state
            self._exchange.changed()


_Heard = BrokerEvent | StreamGap | Exception | None  # None: the stream has ended


async def _read_events(broker: Broker, buffer: "asyncio.Queue[_Heard]") -> None:
    ended: Exception | None = None
    try:
        async for event in broker.events():
            await buffer.put(event)
    except Exception as error:
        ended = error
    await buffer.put(ended)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Runs them until the first one ends or fails."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _why(error: Exception) -> str:
    """A broker's own errors are scrubbed; what another says may hold anything."""
    return str(error) if isinstance(error, BrokerUnavailable) else reason_of(error)
