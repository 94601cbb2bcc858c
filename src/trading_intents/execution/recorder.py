"""Records broker events and outcomes of commands: one transaction writes all waiting entries of all
accounts together with the ends of their commands. Never talks to a broker."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerBalance, BrokerEvent
from trading_intents.errors import Unavailable
from trading_intents.execution import store
from trading_intents.execution.claims import Lease, lock_leases, parse_leases
from trading_intents.execution.model import LOOKUP_PAUSES_SECONDS
from trading_intents.ids import IdText, id_text
from trading_intents.loops import Wakeup
from trading_intents.orders.ledger.booking import DerivedOrder
from trading_intents.orders.ledger.matching import AccountRecording, AccountRef, PlatformFact
from trading_intents.orders.ledger.recording import (
    RecordedAccount,
    add_statement,
    publish_statements,
    record,
    write_statements,
)
from trading_intents.orders.ledger.reporting import log_recorded
from trading_intents.outbox.intents_queue import AttemptFailure, ending, putting_back
from trading_intents.outbox.model import Status
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import GroupCommit, GroupTransactions, PoolTransaction
from trading_intents.storage.pipeline import Statement, StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import ActionType, FrozenStruct

# Errors that a retry can resolve: another transaction holds an order or a stream head, or has just
# inserted the same fact or written the same position.
LOCK_NOT_AVAILABLE = "55P03"
UNIQUE_VIOLATION = "23505"
SERIALIZATION_FAILURE = "40001"
# A batch that finds a stream head locked is split by organization, one that finds an order locked
# by account.
LIMIT_LOCK_WAIT = Statement("SET LOCAL lock_timeout = '50ms'")


class UnrecordedCommand(FrozenStruct, kw_only=True):
    """A command that was claimed and is not recorded yet, and the lease under which it was."""

    id: int
    action_type: ActionType
    order_id: UUID
    attempts: int  # this one included
    lease: Lease

    @property
    def event_type(self) -> str:
        return f"intent.{self.action_type.lower()}"


class RecorderEntry(FrozenStruct, kw_only=True):
    """Written as a whole. A command is over, but for a `failed_attempt`."""

    account_ref: AccountRef
    events: tuple[BrokerEvent, ...] = ()
    own: tuple[PlatformFact, ...] = ()
    balance: BrokerBalance | None = None
    row: UnrecordedCommand | None = None
    failed_attempt: AttemptFailure | None = None
    client_order_id: str = ""  # of the row's command
    is_unsent: bool = False  # its mark is taken back: it may be sent again
    is_unclear: bool = False  # its answer was lost
    look_up: bool = False  # the order's state at the broker is unknown

    @property
    def name(self) -> tuple[UUID, str]:
        """Of the row's command."""
        return self.account_ref.account_id, self.client_order_id

    @property
    def status(self) -> Status | None:
        """That its command has then."""
        if self.row is None:
            return None
        if self.failed_attempt is None:
            return Status.COMPLETED
        return Status.FAILED if self.failed_attempt.has_failed else Status.PENDING


class RecorderResult(FrozenStruct):
    """The status of an entry's command, None when the lease was lost and nothing of the entry was
    written; and the current state of the orders that changed in its transaction."""

    status: Status | None
    orders: Mapping[IdText, DerivedOrder]


class Recorder:
    """`lookup_wakeup` wakes the reconciler when an order is to be looked up; `on_trades` is called
    with an account when trades of it are committed."""

    def __init__(
        self,
        transactions: GroupTransactions,
        lookup_wakeup: Wakeup,
        signals: Signals,
        metrics: Metrics,
        log: Log,
        on_trades: Callable[[UUID], None],
    ) -> None:
        self._transactions = transactions
        self._lookup_wakeup = lookup_wakeup
        self._signals = signals
        self._metrics = metrics
        self._log = log
        self._on_trades = on_trades
        self._group: GroupCommit[RecorderEntry, RecorderResult] = GroupCommit(
            self._write, lambda entry: 1 + len(entry.events) // 4
        )

    async def write(self, entry: RecorderEntry) -> RecorderResult:
        """Raises Unavailable when nothing was written, OutcomeUnknown when it may have been;
        writing the entry again changes nothing twice."""
        return await self._group.put(entry)

    async def close(self) -> None:
        await self._group.close()
        self._transactions.close()

    async def derive_in_tx(self, tx: Tx, recording: AccountRecording) -> RecordedAccount:
        """Locks and reads in a transaction. It writes nothing yet."""
        (recorded,), _ = await record(PoolTransaction(tx), [recording])
        return recorded

    async def write_in_tx(self, tx: Tx, recorded: RecordedAccount) -> None:
        """`publish` and `notify_committed` must follow."""
        runner = PoolTransaction(tx)
        await runner.run(write_statements([recorded]))
        if recorded.resurrected:
            await runner.run([store.looking_up(recorded.resurrected, 0)])

    async def record_in_tx(self, tx: Tx, recording: AccountRecording) -> RecordedAccount:
        recorded = await self.derive_in_tx(tx, recording)
        await self.write_in_tx(tx, recorded)
        return recorded

    async def publish(self, tx: Tx, recorded: Sequence[RecordedAccount]) -> None:
        """Runs the last statements before the commit."""
        await PoolTransaction(tx).run(publish_statements(recorded))

    def notify_committed(self, recorded: RecordedAccount) -> None:
        """Runs after the commit: wakes the stream and the reconciler, counts and logs."""
        if recorded.events:
            self._signals.notify(STREAM, [recorded.account_ref.id_texts[1]])
        if recorded.trades:
            self._on_trades(recorded.account_ref.account_id)
        for order_id in recorded.resurrected:
            self._metrics.alert("resurrected")
            self._log.error("resurrected order found", order=str(order_id))
            self._lookup_wakeup.wake_after(LOOKUP_PAUSES_SECONDS[0])
        log_recorded(recorded, self._log, self._metrics)

    async def _write(self, entries: list[RecorderEntry]) -> list[RecorderResult | Exception]:
        try:
            return [*await self._commit(entries)]
        except _StreamHeadHeld:
            parts = _split(entries, lambda entry: entry.account_ref.organization_id)
            if len(parts) == 1:
                return [
                    Unavailable(
                        "the database is busy: another transaction holds the organization's stream"
                    )
                ] * len(entries)
        except StatementRefused as error:
            if error.code not in (LOCK_NOT_AVAILABLE, UNIQUE_VIOLATION, SERIALIZATION_FAILURE):
                raise
            if len(entries) == 1:
                return [Unavailable("the database is busy: another transaction records the same")]
            parts = _split(entries, lambda entry: entry.account_ref.account_id)
            if len(parts) == 1:
                parts = [[entry] for entry in entries]
        results: dict[int, RecorderResult | Exception] = {}
        for part in parts:
            for entry, result in zip(part, await self._write(part), strict=True):
                results[id(entry)] = result
        return [results[id(entry)] for entry in entries]

    async def _commit(self, entries: list[RecorderEntry]) -> list[RecorderResult]:
        leases = {entry.row.lease for entry in entries if entry.row}
        before = [LIMIT_LOCK_WAIT]
        if leases:
            before.append(lock_leases(leases))
        async with self._transactions.transaction() as tx:
            recorded, fenced = await record(tx, _recordings(entries), before)
            if leases and not leases <= parse_leases(fenced[-1]):
                if len(entries) > 1:
                    raise _LeaseLost  # the batch is split
                return [RecorderResult(None, {})]
            statements = write_statements(recorded)
            statements += _schedule_look_ups(entries, recorded)
            statements += _end_commands(entries, recorded)
            statements += publish_statements(recorded)
            try:
                await tx.commit(statements)
            except StatementRefused as error:
                # The locks of orders and accounts are held by now.
                if error.code == LOCK_NOT_AVAILABLE:
                    raise _StreamHeadHeld(error.code, "a stream head is held") from None
                raise
        orders: dict[IdText, DerivedOrder] = {}
        for each in recorded:
            orders |= each.orders
            self.notify_committed(each)
        refused = any(order.refused for order in orders.values())
        if refused or any(entry.look_up for entry in entries):
            self._lookup_wakeup.wake_after(LOOKUP_PAUSES_SECONDS[0])
        return [RecorderResult(entry.status, orders) for entry in entries]


class _StreamHeadHeld(StatementRefused):
    """Another transaction holds the stream head of an organization in the batch."""


class _LeaseLost(Exception):
    """Another worker has the lease of an account in the batch, or may have it."""


def _end_commands(
    entries: Sequence[RecorderEntry], recorded: Sequence[RecordedAccount]
) -> list[Statement]:
    """Changes the marks of sends, and ends commands or puts them back."""
    cancelled = set[IdText]()
    for each in recorded:
        cancelled |= each.cancelled
    unclear = [entry.name for entry in entries if entry.is_unclear]
    unsent = [entry.name for entry in entries if entry.is_unsent]
    ended = [entry.row.id for entry in entries if entry.row and not entry.failed_attempt]
    failed_attempts = []
    for entry in entries:
        if entry.row and entry.failed_attempt:
            failed_attempts.append(_due_now(entry.row, entry.failed_attempt, cancelled))
    statements: list[Statement] = []
    add_statement(statements, store.setting_unclear, unclear)
    if unsent:
        statements += store.unmarking_sent(unsent)
    add_statement(statements, ending, ended)
    add_statement(statements, putting_back, failed_attempts)
    return statements


def _recordings(entries: Sequence[RecorderEntry]) -> list[AccountRecording]:
    parts = _split(entries, lambda entry: entry.account_ref.account_id)
    return [_recording(part) for part in parts]


def _recording(entries: Sequence[RecorderEntry]) -> AccountRecording:
    """Of one account's entries; an order whose row is put back is locked with the others."""
    events: list[BrokerEvent] = []
    own: list[PlatformFact] = []
    also_locked = set[UUID]()
    balance = None
    for entry in entries:
        events += entry.events
        own += entry.own
        balance = entry.balance or balance
        if entry.row and entry.failed_attempt:
            also_locked.add(entry.row.order_id)
    return AccountRecording(
        account_ref=entries[0].account_ref,
        events=events,
        own=own,
        also_locked=frozenset(also_locked),
        balance=balance,
    )


def _schedule_look_ups(
    entries: Sequence[RecorderEntry], recorded: Sequence[RecordedAccount]
) -> list[Statement]:
    doubted = {entry.row.order_id for entry in entries if entry.look_up and entry.row}
    resurrected = set[UUID]()
    refused = set[UUID]()
    for each in recorded:
        resurrected.update(each.resurrected)
        refused.update(UUID(name) for name, order in each.orders.items() if order.refused)
    statements = []
    if refused:
        statements.append(
            store.looking_up(
                refused,
                LOOKUP_PAUSES_SECONDS[0],
                is_sent=False,
            )
        )
    if doubted:
        statements.append(store.looking_up(doubted, LOOKUP_PAUSES_SECONDS[0]))
    if resurrected:
        statements.append(store.looking_up(resurrected, 0))
    return statements


def _due_now(
    row: UnrecordedCommand, failed_attempt: AttemptFailure, cancelled: set[IdText]
) -> AttemptFailure:
    """Makes the next attempt due at once if its order was cancelled meanwhile, so that the CANCEL
    behind it does not wait. A CANCEL makes waiting rows due under the order's lock, which is held
    here as well."""
    if row.action_type is ActionType.CANCEL or id_text(row.order_id) not in cancelled:
        return failed_attempt
    return replace(failed_attempt, delay=0.0, is_urgent=True)


def _split(
    entries: Sequence[RecorderEntry], key: Callable[[RecorderEntry], Hashable]
) -> list[list[RecorderEntry]]:
    parts: dict[Hashable, list[RecorderEntry]] = {}
    for entry in entries:
        parts.setdefault(key(entry), []).append(entry)
    return list(parts.values())
