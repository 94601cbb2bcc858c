"""Records broker events and outcomes of commands: one transaction writes all waiting entries of all
accounts together with their outbox rows. Never talks to a broker."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.port import BrokerBalance, BrokerEvent
from trading_intents.errors import Unavailable
from trading_intents.execution import store
from trading_intents.execution.model import LOOKUP_PAUSES_SECONDS
from trading_intents.ids import IdText, id_text
from trading_intents.loops import Wakeup
from trading_intents.orders.ledger.booking import DerivedOrder
from trading_intents.orders.ledger.matching import AccountRecording, AccountRef, PlatformFact
from trading_intents.orders.ledger.recording import (
    RecordedAccount,
    publish_statements,
    record,
    write_statements,
)
from trading_intents.orders.ledger.reporting import log_recorded
from trading_intents.outbox.intents_queue import lock_claimed, parse_locked
from trading_intents.outbox.model import ClaimedRow, Status
from trading_intents.outbox.queue import FailedAttempt, completing, retrying
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import GroupCommit, GroupTransactions, PoolTransaction
from trading_intents.storage.pipeline import Reply, Statement, StatementRefused
from trading_intents.storage.signals import Signals
from trading_intents.stream.model import CHANNEL as STREAM
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import FrozenStruct

CANCEL = "intent.cancel"
# Errors that a retry can resolve: another transaction holds an order or a stream head, or has just
# inserted the same fact or written the same position.
LOCK_NOT_AVAILABLE = "55P03"
UNIQUE_VIOLATION = "23505"
SERIALIZATION_FAILURE = "40001"
# A batch that finds a stream head locked is split by organization, one that finds an order locked
# by account.
LIMIT_LOCK_WAIT = Statement("SET LOCAL lock_timeout = '50ms'")


class RecorderEntry(FrozenStruct, kw_only=True):
    """Written as a whole. A claimed `row` is completed, or with `failed_attempt` put back or
    failed."""

    account_ref: AccountRef
    events: tuple[BrokerEvent, ...] = ()
    own: tuple[PlatformFact, ...] = ()
    balance: BrokerBalance | None = None
    row: ClaimedRow | None = None
    failed_attempt: FailedAttempt | None = None
    client_order_id: str = ""  # of the row's command
    is_unsent: bool = False  # its mark is taken back: it may be sent again
    is_unclear: bool = False  # its answer was lost
    look_up: bool = False  # the order's state at the broker is unknown


class RecorderResult(FrozenStruct):
    """The new status of an entry's row, None when its claim was lost and nothing of the entry was
    written; and the current state of the orders that changed in its transaction."""

    status: Status | None
    orders: Mapping[IdText, DerivedOrder]


class Recorder:
    """`lookup_wakeup` wakes the reconciler when an order is to be looked up; `on_trades` is called
    with an account when trades of it are committed."""

    def __init__(
        self,
        transactions: GroupTransactions,
        attempt_limit: int,
        lookup_wakeup: Wakeup,
        signals: Signals,
        metrics: Metrics,
        log: Log,
        on_trades: Callable[[UUID], None],
    ) -> None:
        self._transactions = transactions
        self._attempt_limit = attempt_limit
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
        rows = [entry.row for entry in entries if entry.row]
        async with self._transactions.transaction() as tx:
            lock_rows = [lock_claimed(rows)] if rows else []
            recorded, replies = await record(
                tx, _recordings(entries), lock_rows, before=[LIMIT_LOCK_WAIT]
            )
            if rows and not _hold_all(rows, replies[0]):
                if len(entries) > 1:
                    raise _RowClaimLost  # the batch is split
                return [RecorderResult(None, {})]
            statements = write_statements(recorded)
            statements += _schedule_look_ups(entries, recorded)
            statements += self._end_rows(entries, recorded)
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
        return [RecorderResult(self._status(entry), orders) for entry in entries]

    def _end_rows(
        self, entries: Sequence[RecorderEntry], recorded: Sequence[RecordedAccount]
    ) -> list[Statement]:
        """Changes the marks of sends, and completes rows or puts them back."""
        cancelled = set[IdText]()
        for each in recorded:
            cancelled |= each.cancelled
        unclear: list[tuple[UUID, str]] = []
        unsent: list[tuple[UUID, str]] = []
        done: list[ClaimedRow] = []
        failed: list[FailedAttempt] = []
        for entry in entries:
            command = (entry.account_ref.account_id, entry.client_order_id)
            if entry.is_unclear:
                unclear.append(command)
            if entry.is_unsent:
                unsent.append(command)
            if entry.failed_attempt:
                failed.append(_due_now(entry.failed_attempt, cancelled))
            elif entry.row:
                done.append(entry.row)
        statements = []
        if unclear:
            statements.append(store.setting_unclear(unclear))
        if unsent:
            statements.append(store.unmarking_sent(unsent))
        if done:
            statements.append(completing(done))
        if failed:
            statements.append(retrying(failed, self._attempt_limit))
        return statements

    def _status(self, entry: RecorderEntry) -> Status | None:
        if entry.row is None:
            return None
        if entry.failed_attempt is None:
            return Status.COMPLETED
        has_attempts = entry.failed_attempt.row.attempts < self._attempt_limit
        return Status.PENDING if has_attempts else Status.FAILED


class _StreamHeadHeld(StatementRefused):
    """Another transaction holds the stream head of an organization in the batch."""


class _RowClaimLost(Exception):
    """Another worker has claimed a row of the batch."""


def _hold_all(rows: Sequence[ClaimedRow], locked: Reply) -> bool:
    held = parse_locked(locked)
    return all((row.id, row.token) in held for row in rows)


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
        if entry.failed_attempt:
            also_locked.add(entry.failed_attempt.row.order_key)
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
    doubted = {entry.row.order_key for entry in entries if entry.look_up and entry.row}
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


def _due_now(failed: FailedAttempt, cancelled: set[IdText]) -> FailedAttempt:
    """Makes the next attempt due at once if its order was cancelled meanwhile, so that the CANCEL
    behind it does not wait. A CANCEL makes waiting rows due under the order's lock, which is held
    here as well."""
    if failed.row.event_type == CANCEL or id_text(failed.row.order_key) not in cancelled:
        return failed
    return replace(failed, after_seconds=0.0, is_urgent=True)


def _split(
    entries: Sequence[RecorderEntry], key: Callable[[RecorderEntry], Hashable]
) -> list[list[RecorderEntry]]:
    parts: dict[Hashable, list[RecorderEntry]] = {}
    for entry in entries:
        parts.setdefault(key(entry), []).append(entry)
    return list(parts.values())
