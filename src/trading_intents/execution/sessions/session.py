"""Opens one account's session with its broker, reconciles and follows it, and opens it again when
it ends. Sends the commands that it is given; never decides which."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine, Iterable
from decimal import Decimal
from functools import partial
from typing import Any

from msgspec.structs import replace

from trading_intents.accounts.model import ConnectionState
from trading_intents.accounts.vault import SecretRef
from trading_intents.brokers import port
from trading_intents.brokers.sanitizing import sanitize
from trading_intents.errors import PlatformError
from trading_intents.execution.claims import Lease
from trading_intents.execution.model import Breaker, Budget, first_reconcile_seconds
from trading_intents.execution.sessions import store
from trading_intents.execution.sessions.event_reader import (
    CLOSE_SECONDS,
    EventReader,
    SessionDependencies,
    call_adapter,
)
from trading_intents.loops import pause_after, stop_tasks, wait_at_most
from trading_intents.orders.facts import CommandKind
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.outbox.lanes import Lane
from trading_intents.outbox.outcomes import reason_of

OPEN_SECONDS = 10.0
END_SECONDS = 5.0  # for a session that is cancelled, whatever its adapter does
LOOKUP_SECONDS = 3.0
MAX_REMEMBERED = 1_000
# Before the session is opened again, and between snapshots while the breaker is open.
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Before a credential that was taken before is tried again: brokers refuse valid ones now and then.
REFUSED_PAUSES_SECONDS = (1.0, 5.0, 30.0, 60.0)
NO_CREDENTIAL = {
    ConnectionState.CREDENTIAL_MISSING: "the account has no credential for its broker",
    ConnectionState.CREDENTIAL_REJECTED: "the broker refused the account's credential",
}
NOT_CONNECTED = "the broker was not connected"
PAUSED = "the broker did not answer, so nothing was sent for a while"
MIN_SECRET_CHARACTERS = 8  # shorter credential fields, such as names, are no secrets


class BrokerSession:
    def __init__(
        self, account_ref: AccountRef, lease: Lease, dependencies: SessionDependencies
    ) -> None:
        self.account_ref = account_ref
        self.lease = lease
        self._dependencies = dependencies
        self.account_text = str(account_ref.account_id)  # it is named in every claim
        self.integration: port.Integration | None = dependencies.brokers.integration(
            account_ref.broker
        )
        self.state = ConnectionState.DISCONNECTED
        self.is_closed = False  # the account is, for good
        # No more commands are claimed for it; when it is done, its lease is given back.
        self.is_leaving = False
        self.is_claiming = False
        self.generation: int | None = None  # of what it last read
        self.has_events = False  # since they were last written as seen
        # Events of recent answers, which the stream mostly repeats.
        self._answers: dict[str, port.BrokerEvent] = {}
        self.breaker = Breaker()
        self.budget = Budget(
            self.integration.capabilities.requests_per_minute if self.integration else None
        )
        self.in_flight = set[int]()  # commands that were claimed, and are not recorded yet
        self.lane = Lane()
        self._broker: port.BrokerAdapter | None = None
        self._reader: EventReader | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._wakeup = asyncio.Event()  # the account changed, or the breaker opened
        self._refreshed = False
        self._logged: tuple[str, str] | None = None
        self._setup: store.SessionSetup | None = None  # of the last try
        self._accepted: store.SessionSetup | None = None  # the broker took its credential
        self._refusals = 0
        self._up_at_seconds = 0.0  # since then; when the session was last opened
        self._secrets: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._was_closed = False  # and need not have ended: an adapter may resist

    @property
    def has_ended(self) -> bool:
        return self._was_closed or (self._task is not None and self._task.done())

    @property
    def free_slots(self) -> int:
        """A command takes its slot before its send is marked: one that waits for a slot can still
        be given up."""
        slots = self.integration.capabilities.calls_at_once if self.integration else 1
        return slots - len(self.in_flight)

    @property
    def is_done(self) -> bool:
        """Whether it has ended, and all that was claimed for it is recorded."""
        return self.has_ended and not (self.is_claiming or self.in_flight)

    @property
    def is_up(self) -> bool:
        """Whether commands can be sent: also while updates are missing, and the state is
        CONNECTING."""
        return self._broker is not None

    def hindrance(self, age_seconds: float) -> str | None:
        """The reason that keeps commands from being sent, or has kept one of this age."""
        if not self.is_up:
            return NO_CREDENTIAL.get(self.state, NOT_CONNECTED)
        is_older = age_seconds > self._dependencies.clock.monotonic() - self._up_at_seconds
        return PAUSED if self.breaker.is_open else NOT_CONNECTED if is_older else None

    def may_submit(self) -> bool:
        now = self._dependencies.clock.monotonic()
        return self.is_up and not self.breaker.is_open and self.budget.wait_seconds(False, now) == 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def refresh(self) -> None:
        """The account or its credential may have changed."""
        self._refreshed = True
        self._wakeup.set()

    async def close(self, limit_seconds: float) -> None:
        """Waits for the calls under way, up to the limit, and then ends the session: it sends
        nothing any more."""
        await wait_at_most(self._idle, limit_seconds)
        self._broker = self._reader = None
        self._show(ConnectionState.DISCONNECTED)
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=END_SECONDS)
        self._was_closed = True

    async def call(
        self, command: CommandKind, ticket: port.OrderTicket, deadline: float
    ) -> port.CommandResult:
        """Every error after the broker was called becomes UNKNOWN."""
        broker = self._broker
        left_seconds = deadline - self._dependencies.clock.monotonic()
        if broker is None or left_seconds <= 0:
            return port.CommandResult(outcome=port.Outcome.NOT_SENT, message="the session is down")
        method = {CommandKind.SUBMIT: broker.submit, CommandKind.REPLACE: broker.replace}.get(
            command, broker.cancel
        )
        self._enter()
        try:
            async with asyncio.timeout(left_seconds):
                result = await call_adapter(method(ticket, deadline))
        except TimeoutError:
            result = port.CommandResult(outcome=port.Outcome.UNKNOWN, message="no answer in time")
        except Exception as error:
            self._dependencies.log.error(
                "broker call failed", broker=self.account_ref.broker, exc_info=error
            )
            result = port.CommandResult(outcome=port.Outcome.UNKNOWN, message="the call failed")
        finally:
            self._leave()
        self._count_outcome(command, result.outcome)
        texts = {
            "message": self._redact(result.message),
            "updates": tuple(map(self._redact_event, result.updates)),
        }
        return replace(result, **texts)

    def _redact(self, text: str) -> str:
        """A venue may repeat what it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _redact_event(self, event: port.BrokerEvent) -> port.BrokerEvent:
        return replace(event, detail=self._redact(event.detail)) if event.detail else event

    def remember(self, events: Iterable[port.BrokerEvent]) -> None:
        """Keeps events of an answer, which its entry records, so that the stream's copies are
        skipped."""
        for event in events:
            self._answers[event.dedupe_key] = event
        while len(self._answers) > MAX_REMEMBERED:
            del self._answers[next(iter(self._answers))]

    def _is_unseen(self, event: port.BrokerEvent) -> bool:
        return self._answers.get(event.dedupe_key) != event

    async def look_up(self, order: port.SentOrder) -> port.Lookup:
        if self._broker is None:
            return port.LookupUnknown("the session is down")
        self.budget.take()
        self._enter()
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                deadline = self._dependencies.clock.monotonic() + LOOKUP_SECONDS
                found = await call_adapter(self._broker.lookup(order, deadline))
                if not isinstance(found, port.OrderSnapshot):
                    return found
                return dataclasses.replace(
                    found, events=tuple(map(self._redact_event, found.events))
                )
        except TimeoutError:
            return port.LookupUnknown("no answer in time")
        except Exception as error:
            self._dependencies.log.error(
                "broker look-up failed", broker=self.account_ref.broker, exc_info=error
            )
            return port.LookupUnknown("the look-up failed")
        finally:
            self._leave()

    async def read_positions(self) -> dict[str, Decimal] | None:
        """The positions of a snapshot that is requested now and recorded; None: the broker reports
        none."""
        if self._reader is None:
            raise port.BrokerUnavailable("the session is down")
        self._enter()
        try:
            snapshot = await self._reader.reconcile(is_back=False)
        finally:
            self._leave()
        if snapshot.positions is None:
            return None
        reports = sanitize(snapshot.positions)[0]
        return {
            str(each.symbol): each.quantity
            for each in reports
            if each.symbol and each.quantity is not None
        }

    def _enter(self) -> None:
        self._calls += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    def _count_outcome(self, command: CommandKind, outcome: port.Outcome) -> None:
        self._dependencies.metrics.execution_sends.labels(command.lower(), outcome.lower()).inc()
        is_bad = outcome in (port.Outcome.UNKNOWN, port.Outcome.NOT_SENT)
        if is_bad and self.breaker.failed(self._dependencies.clock.monotonic()):
            self._dependencies.log.warning("broker submits stopped", **self._log_fields())
            self._wakeup.set()
            self._dependencies.states_changed.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            began = self._dependencies.clock.monotonic()
            state = ConnectionState.DISCONNECTED
            try:
                state = await self._run_session()
            except port.AuthFailed as error:
                self._log_once("broker credential refused", str(error))
                state = ConnectionState.CREDENTIAL_REJECTED
            except Exception as error:
                self._log_once("broker link ended", _explain(error))
            finally:
                self._show(state)
            if self._dependencies.clock.monotonic() - began > OPEN_SECONDS:
                failures = 0
            pause_seconds: float | None = pause_after(PAUSES_SECONDS, failures)
            failures += 1
            if state is ConnectionState.CREDENTIAL_REJECTED and self._setup == self._accepted:
                pause_seconds = pause_after(REFUSED_PAUSES_SECONDS, self._refusals)
                self._refusals += 1
            elif state in NO_CREDENTIAL or self.is_closed:
                pause_seconds = None
            await self._back_off(pause_seconds)

    def _log_once(self, text: str, reason: str) -> None:
        """Logs the same failure only once while it repeats."""
        if (text, reason) != self._logged:
            self._logged = text, reason
            self._dependencies.log.warning(text, **self._log_fields(), reason=reason)

    def _log_fields(self) -> dict[str, str]:
        return {"broker": self.account_ref.broker, "account": str(self.account_ref.account_id)}

    async def _back_off(self, limit_seconds: float | None) -> None:
        """Waits until the account changes, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                while not self._refreshed:
                    self._wakeup.clear()
                    await self._wakeup.wait()

    async def _run_session(self) -> ConnectionState:
        """Opens the session and runs it to its end; gives the connection state that follows."""
        self._refreshed = False
        setup = self._setup = await self._read()
        self.is_closed = setup.closed
        if setup.closed or self.integration is None:
            return ConnectionState.DISCONNECTED
        if self.integration.capabilities.credential_fields and setup.sealed is None:
            return ConnectionState.CREDENTIAL_MISSING
        if not self._refusals or setup != self._accepted:
            self._show(ConnectionState.CONNECTING)
        broker = self.integration.connect(await self._context(setup))
        try:
            await self._listen(broker, setup)
        finally:
            self._broker = self._reader = None
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await call_adapter(broker.close())
        return ConnectionState.DISCONNECTED

    async def _read(self) -> store.SessionSetup:
        async with self._dependencies.pool.transaction(read_only=True) as tx:
            setup = await store.read_session(tx, self.account_ref.account_id)
        self.generation = setup.link_generation
        return setup

    async def _context(self, setup: store.SessionSetup) -> port.IntegrationContext:
        account_ref = self.account_ref
        dependencies = self._dependencies
        secrets = {}
        if setup.sealed is not None and setup.credential_id is not None:
            ref = SecretRef(
                account_ref.organization_id, account_ref.account_id, setup.credential_id
            )
            secrets = await dependencies.vault.open(ref, setup.sealed)
        assert self.integration
        settings = dependencies.brokers.settings_of(account_ref.broker)
        revealed = [each.reveal() for each in secrets.values()]
        revealed += [settings[each.name] for each in self.integration.settings if each.is_secret]
        self._secrets = tuple(each for each in revealed if len(each) >= MIN_SECRET_CHARACTERS)
        account = port.BrokerAccount(
            account_ref.account_id,
            account_ref.organization_id,
            account_ref.environment,
            setup.external_account_id,
        )
        return port.IntegrationContext(
            account=account,
            secrets=secrets,
            clock=dependencies.clock,
            settings=settings,
            database=dependencies.integrations_pool,
            signals=dependencies.signals,
            open_transactions=dependencies.open_transactions,
            shared=dependencies.shared[account_ref.broker],
            lease_token=self.lease.token,
            metrics=dependencies.metrics,
            log=dependencies.log,
        )

    async def _listen(self, broker: port.BrokerAdapter, setup: store.SessionSetup) -> None:
        """Reconciles while events are buffered, then records events until the stream ends."""
        reader = EventReader(
            account_ref=self.account_ref,
            broker=broker,
            dependencies=self._dependencies,
            is_unseen=self._is_unseen,
            redact=self._redact_event,
            on_event=self._on_event,
            on_healthy=self._on_healthy,
            on_updates=partial(self._show, ConnectionState.CONNECTED),
        )
        try:
            async with self._dependencies.opening[self.account_ref.broker]:
                async with asyncio.timeout(OPEN_SECONDS):
                    missing = await call_adapter(broker.open())
                reader.start()
                await reader.reconcile()
            self._broker = broker
            self._reader = reader
            self._logged = None
            self._accepted = setup
            self._refusals = 0
            self._up_at_seconds = self._dependencies.clock.monotonic()
            if missing:
                self._log_once("broker updates missing", missing.reason)
            self._show(ConnectionState.CONNECTING if missing else ConnectionState.CONNECTED)
            await _first_of(reader.listen(), self._supervise(reader, setup))
        finally:
            await reader.close()

    def _on_event(self) -> None:
        self.has_events = True

    def _on_healthy(self) -> None:
        self.budget.take()
        was_open = self.breaker.is_open
        self.breaker.reset()
        if was_open:
            self._dependencies.states_changed.set()

    async def _supervise(self, reader: EventReader, setup: store.SessionSetup) -> None:
        """Runs until the account or its credential changes. Meanwhile takes snapshots while the
        breaker is open, and reconciles open orders at intervals."""
        failures = 0
        clock = self._dependencies.clock
        interval_seconds = self._dependencies.reconcile_seconds
        due_seconds = clock.monotonic() + first_reconcile_seconds(
            self.account_ref.account_id, interval_seconds
        )
        while True:
            if self._refreshed:
                self._refreshed = False
                if setup != await self._read():
                    self._refreshed = True
                    return
            limit = due_seconds - clock.monotonic()
            if self.breaker.is_open:
                limit = pause_after(PAUSES_SECONDS, failures)
            await wait_at_most(self._wakeup, limit)
            self._wakeup.clear()
            if self.breaker.is_open:
                failures += 1
                with contextlib.suppress(port.BrokerUnavailable, TimeoutError):
                    await reader.reconcile()
                    failures = 0
            elif clock.monotonic() >= due_seconds:
                due_seconds = clock.monotonic() + interval_seconds
                with contextlib.suppress(port.BrokerUnavailable, TimeoutError, PlatformError):
                    await reader.reconcile_open()

    def _show(self, state: ConnectionState) -> None:
        self.state = state
        # Also if it is the same: what can be sent may have changed.
        self._dependencies.states_changed.set()


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await stop_tasks(*tasks)


def _explain(error: Exception) -> str:
    """The text of a broker's error, which adapters scrub; of any other error only what may be
    kept."""
    return str(error) if isinstance(error, port.BrokerUnavailable) else reason_of(error)
