"""Buffers and records the events of one broker session, and reconciles the account with the
broker's snapshots. Never sends a command."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from trading_intents.accounts.vault import Vault
from trading_intents.balances import store as balances_store
from trading_intents.balances.model import BalancePacer
from trading_intents.brokers import port
from trading_intents.brokers.port import (
    BrokerAdapter,
    BrokerBalance,
    BrokerEvent,
    BrokerUnavailable,
    StreamGap,
)
from trading_intents.brokers.registry import Registry
from trading_intents.brokers.sanitizing import sanitize_id, sanitize_text
from trading_intents.clock import Clock
from trading_intents.errors import PlatformError
from trading_intents.execution.recorder import Recorder, RecorderEntry
from trading_intents.execution.sessions import store
from trading_intents.execution.sessions.opening import (
    complete_reports,
    cost_openings,
    open_positions,
)
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.orders.store import UNCOSTED, find_positions
from trading_intents.outbox.outcomes import reason_of
from trading_intents.prices.model import PriceRules
from trading_intents.storage.database import Pool
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import amount_text

# Sessions of a broker; thousands that open at once would starve the rest of the process.
MAX_OPENING = 8
SNAPSHOT_SECONDS = 10.0
CLOSE_SECONDS = 2.0  # for a part of an adapter to end
MAX_BUFFERED = 1_000  # events; then the broker's iterator waits, and reports a gap if it cannot
MAX_EVENTS = 100  # in a transaction
SEEN_MARGIN = timedelta(seconds=30)  # clocks differ, and a broker may report an execution late
WRITE_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDependencies:
    """The parts of every session of a process. A session sets `states_changed` when its state
    changes. Every
    `reconcile_seconds` the open orders of an account are compared with its broker's."""

    pool: Pool
    integrations_pool: Pool  # for their own tables
    brokers: Registry
    vault: Vault
    signals: Signals
    recorder: Recorder
    clock: Clock
    metrics: Metrics
    log: Log
    open_transactions: Callable[[], GroupTransactions]
    reconcile_seconds: float
    prices: PriceRules
    # By broker.
    shared: defaultdict[str, dict[str, object]] = field(default_factory=lambda: defaultdict(dict))
    states_changed: asyncio.Event = field(default_factory=asyncio.Event)
    # By broker: one that hangs keeps its own sessions waiting.
    opening: defaultdict[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(MAX_OPENING))
    )


T = TypeVar("T")
_Received = BrokerEvent | BrokerBalance | StreamGap | Exception | None  # None: the stream has ended


async def call_adapter(call: Awaitable[T]) -> T:
    """Awaits an adapter. BrokerUnavailable: its call was cancelled, as gRPC may do, and not the one
    who waits."""
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailable("the adapter was cancelled") from None


class EventReader:
    """`is_unseen` leaves out what is recorded already; `redact` hides secrets; `on_event` runs for
    each event,
    `on_healthy` after each complete snapshot, `on_updates` after the one that follows missing
    updates."""

    def __init__(
        self,
        account_ref: AccountRef,
        broker: BrokerAdapter,
        dependencies: SessionDependencies,
        is_unseen: Callable[[BrokerEvent], bool],
        redact: Callable[[BrokerEvent], BrokerEvent],
        on_event: Callable[[], None],
        on_healthy: Callable[[], None],
        on_updates: Callable[[], None],
    ) -> None:
        self._account_ref = account_ref
        self._broker = broker
        self._dependencies = dependencies
        self._is_unseen = is_unseen
        self._on_event = on_event
        self._on_healthy = on_healthy
        self._redact = redact
        self._on_updates = on_updates
        self._buffer: asyncio.Queue[_Received] = asyncio.Queue(MAX_BUFFERED)
        self._reading: asyncio.Task[None] | None = None
        self._balances: BalancePacer | None = None  # None: what is recorded was not read yet
        self._remarks: tuple[str, ...] = ()  # logged when they change

    def start(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            _, late = await asyncio.wait({self._reading}, timeout=CLOSE_SECONDS)
            if late:
                self._dependencies.log.error(
                    "broker adapter cannot be cancelled", broker=self._account_ref.broker
                )

    async def listen(self) -> None:
        """Records buffered events until the stream ends."""
        while True:
            received = await self._receive()
            events: list[BrokerEvent] = []
            reported: list[BrokerBalance] = []
            for each in received:
                if isinstance(each, BrokerBalance):
                    reported.append(each)
                elif isinstance(each, BrokerEvent) and self._is_unseen(each):
                    events.append(each)
            balance = self._due_balance(reported)
            if events or balance:
                await self._write(tuple(events), balance)
            for each in received:
                match each:
                    case Exception():
                        raise each
                    case None:
                        return
                    case StreamGap():
                        if isinstance(each, port.UnreadableEvent):
                            self._leave_out(each.reason)
                        self._dependencies.log.warning(
                            "broker events possibly missing",
                            account=self._account,
                            reason=each.reason,
                        )
                        await self.reconcile()
                        if isinstance(each, port.StreamBack):
                            self._on_updates()

    async def _receive(self) -> list[_Received]:
        """Waits for an event, or until a balance that is held back is due; then there may be
        none."""
        now_seconds = self._dependencies.clock.monotonic()
        received = list[_Received]()
        with contextlib.suppress(TimeoutError):
            wait_seconds = self._balances.wait_seconds(now_seconds) if self._balances else None
            async with asyncio.timeout(wait_seconds):
                received.append(await self._buffer.get())
                self._on_event()
        while received and len(received) < MAX_EVENTS and not self._buffer.empty():
            received.append(self._buffer.get_nowait())
        return received

    def _due_balance(self, reported: Iterable[BrokerBalance]) -> BrokerBalance | None:
        assert self._balances is not None, "the account is reconciled first"
        for balance in reported:
            self._balances.offer(balance)
        return self._balances.take(self._dependencies.clock.monotonic())

    async def reconcile_open(self) -> None:
        """Reconciles an account with open orders: it finds events that the broker dropped
        silently."""
        async with self._dependencies.pool.transaction(read_only=True) as tx:
            has_open_orders = await store.has_open_orders(tx, self._account_ref.account_id)
            uncosted = await find_positions(
                tx, self._account_ref.organization_id, self._account_ref.account_id, UNCOSTED
            )
        if uncosted:
            async with self._dependencies.pool.transaction() as tx:
                changed = await cost_openings(tx, self._account_ref, self._dependencies.prices)
            if changed:
                self._dependencies.signals.notify(STREAM)
        if has_open_orders:
            await self.reconcile(is_back=False)

    async def reconcile(self, is_back: bool = True) -> port.AccountSnapshot:
        """Records a snapshot like streamed events, and looks up open orders that the snapshot
        should have and lacks, or has as over. A broker that gives a complete snapshot is healthy.
        `is_back`: it may have been unreachable until now."""
        async with self._dependencies.pool.transaction(read_only=True) as tx:
            seen_at = await store.read_seen(tx, self._account_ref.account_id)
            sent = await store.list_open_orders(tx, self._account_ref.account_id)
            if self._balances is None:
                self._balances = BalancePacer(
                    await balances_store.find_balance(tx, self._account_ref.account_id)
                )
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            snapshot = await call_adapter(self._broker.snapshot(seen_at - SEEN_MARGIN, sent))
        for reason in snapshot.unreadable:
            self._leave_out(reason)
        if snapshot.remarks != self._remarks:
            self._remarks = snapshot.remarks
            self._dependencies.log.info(
                "broker account read", account=self._account, remarks=snapshot.remarks
            )
        events: list[BrokerEvent] = []
        for order in snapshot.open_orders:
            events += order.events
        await self._write_all([*events, *snapshot.executions])
        # After the executions, which the positions include.
        await self._write_all(await self._open_positions(snapshot))
        balance = self._due_balance([snapshot.balance] if snapshot.balance else ())
        if balance:
            await self._write((), balance)
        working = [order for order in snapshot.open_orders if order.is_working]
        named = [order.client_order_id for order in working if order.client_order_id]
        clients = list(map(sanitize_id, named))
        numbers = [sanitize_id(order.broker_order_id) for order in working]
        async with self._dependencies.pool.transaction() as tx:
            await store.look_up_missing(tx, self._account_ref.account_id, clients, numbers, is_back)
        self._on_healthy()
        return snapshot

    def _leave_out(self, reason: str) -> None:
        self._dependencies.metrics.alert("event_left_out")
        self._dependencies.log.error(
            "broker event left out", account=self._account, reason=sanitize_text(reason)
        )

    async def _open_positions(self, snapshot: port.AccountSnapshot) -> list[BrokerEvent]:
        """The snapshot's positions. Those of the account's first snapshot set its opening
        positions."""
        if snapshot.positions is None:
            return []
        async with self._dependencies.pool.transaction() as tx:
            reports = await complete_reports(tx, self._account_ref, snapshot)
            openings = await open_positions(
                tx, self._account_ref, reports, self._dependencies.prices
            )
        if openings:
            self._dependencies.signals.notify(STREAM)
        for row in openings:
            self._dependencies.log.warning(
                "position opening",
                account_id=self._account,
                symbol=row.symbol,
                opening_quantity=amount_text(row.opening_quantity),
            )
        return reports

    async def _write_all(self, events: Sequence[BrokerEvent]) -> None:
        for start in range(0, len(events), MAX_EVENTS):
            await self._write(tuple(events[start : start + MAX_EVENTS]))

    async def _write(
        self, events: tuple[BrokerEvent, ...], balance: BrokerBalance | None = None
    ) -> None:
        """Retries while the database is unavailable; an event that cannot be written is left out,
        with an alert."""
        events = tuple(map(self._redact, events))
        while True:
            try:
                await self._dependencies.recorder.write(
                    RecorderEntry(account_ref=self._account_ref, events=events, balance=balance)
                )
                return
            except PlatformError as error:
                self._dependencies.log.warning(
                    "broker events not written", account=self._account, reason=reason_of(error)
                )
                await asyncio.sleep(WRITE_PAUSE_SECONDS)
            except Exception as error:
                if len(events) + bool(balance) > 1:
                    for event in events:
                        await self._write((event,))
                    if balance:
                        await self._write((), balance)
                    return
                self._dependencies.metrics.alert("event_left_out")
                self._dependencies.log.error(
                    "broker event left out",
                    account=self._account,
                    kind=events[0].kind if events else "BALANCE",
                    exc_info=error,
                )
                return

    async def _buffer_events(self) -> None:
        async for event in self._broker.events():
            await self._buffer.put(event)

    async def _read(self) -> None:
        ended: Exception | None = None
        try:
            await call_adapter(self._buffer_events())
        except Exception as error:
            ended = error
        await self._buffer.put(ended)

    @property
    def _account(self) -> str:
        return str(self._account_ref.account_id)
