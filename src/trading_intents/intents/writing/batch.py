"""One transaction of the write path: lock, read, decide each command in order, append, commit. Two round trips."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from trading_intents.brokers.registry import Registry
from trading_intents.clock import Clock, rfc3339
from trading_intents.controls.limits.state.recent import RecentByAccount
from trading_intents.errors import ControlRejected, PlatformError
from trading_intents.ids import IdTextMaker
from trading_intents.intents.model import (
    Accepted,
    AccountState,
    Cancel,
    EarlierAction,
    KnownOrder,
    NewOrder,
    Replayed,
    Submission,
    asked_order,
    decide,
)
from trading_intents.intents.store import ActionPlace
from trading_intents.intents.writing import statements
from trading_intents.intents.writing.record import (
    HASH_VERSION,
    Record,
    action_payload,
    canonical,
    chain,
    marked_order_payload,
    new_order_payload,
)
from trading_intents.intents.writing.state.batch_state import BatchState, read_state
from trading_intents.intents.writing.state.rules import RulesCache
from trading_intents.orders.positions import note_order
from trading_intents.prices.model import PriceRules
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import EVERY_REASON, Measure, StatsEntry
from trading_intents.storage.pipeline import (
    ConnectionDropped,
    ConnectionLost,
    Pipeline,
    Statement,
    StatementRefused,
)
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event, EventType
from trading_intents.trading import ORDER_TYPES, ActionType, FrozenStruct

PRINCIPAL_TYPE, SYSTEM = "API_KEY", "SYSTEM"
PLATFORM = "platform"  # the principal of the platform's own commands


class Receipt(FrozenStruct, frozen=True):
    intent_id: str
    seq: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    outcomes: list[Receipt | PlatformError | None]  # None: another transaction holds the lock of its account
    appended: ActionPlace | None  # one of the actions, whose row proves that the commit happened; None: there is none
    transaction_id: str
    decided_seconds: float  # by the clock, when only writing and committing were left


class CommitLost(Exception):
    """The connection was lost during the COMMIT, so only the server knows whether it happened."""

    def __init__(self, result: BatchResult) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True)
class BatchDependencies:
    """The objects that a batch needs to run."""

    link: Pipeline
    brokers: Registry
    make_id: IdTextMaker
    clock: Clock
    prices: PriceRules
    rules: RulesCache = field(default_factory=RulesCache)
    recent: RecentByAccount = field(default_factory=dict)  # what limits need of the accounts' logs


async def run_batch(
    dependencies: BatchDependencies,
    submissions: Sequence[Submission],
    locking: statements.Locking,
    on_sent: Callable[[], None] = lambda: None,
) -> BatchResult:
    """Commits the batch before it returns. CommitLost: it may have been committed. Unavailable, StatementRefused:
    nothing was recorded. `on_sent` runs when only its commit is left to wait for."""
    link = await dependencies.link.connect()  # one for the whole batch, which holds the locks
    try:
        state = await read_state(
            link,
            submissions,
            dependencies.brokers,
            dependencies.prices,
            dependencies.recent,
            dependencies.rules,
            locking,
        )
        work, outcomes = decide_all(dependencies, submissions, state)
        result = BatchResult(outcomes, work.batch.last(), state.transaction_id, dependencies.clock.monotonic())
        request = link.send(work.writes(), more=True)
        request.append_statements(work.events(), more=True)  # built while the server works on the rest
        request.append_statements([statements.COMMIT])
        on_sent()
        try:
            *_, committed = await request.all_replies()
        except ConnectionLost:
            raise CommitLost(result) from None
        assert committed.tag == "COMMIT", "an error was swallowed inside a transaction, which then rolled back"
    except StatementRefused:
        with contextlib.suppress(StatementRefused, ConnectionLost):
            await link.run([statements.ROLLBACK])
        raise
    except CommitLost:
        raise
    except BaseException:
        link.close(ConnectionDropped())  # which ends the transaction
        raise
    return result


def decide_all(
    dependencies: BatchDependencies, submissions: Sequence[Submission], state: BatchState
) -> "tuple[BatchBuilder, list[Receipt | PlatformError | None]]":
    work = BatchBuilder(state, dependencies.make_id)
    outcomes: list[Receipt | PlatformError | None] = []
    for submission in submissions:
        # An account that exists but is not locked here is locked by another transaction; one that does not exist is
        # refused.
        skipped = (
            submission.account_id not in state.heads
            and submission.account_id in state.rules[submission.organization_id].accounts
        )
        waits = submission.account_id in state.unread and not isinstance(submission.command, Cancel)
        outcomes.append(None if skipped or waits else work.settle(submission))
    return work, outcomes


class BatchBuilder:
    """Decides one command after the other and gathers what is to be written."""

    def __init__(self, state: BatchState, make_id: IdTextMaker) -> None:
        self._state, self._make_id = state, make_id
        self._created_at = rfc3339(state.now)
        self.batch = statements.BatchWrites()
        self._refusals: list[tuple[str, ...]] = []
        self._counts: list[StatsEntry] = []
        self._pending_events: list[
            tuple[Record, AccountState, bytes | None]
        ] = []  # each with the message of the order that it changed

    def settle(self, submission: Submission) -> Receipt | PlatformError:
        met = self._state.state(submission)
        decision = decide(submission, met, self._state.now)
        if isinstance(decision, Accepted):
            return self._append(submission, decision)
        if isinstance(decision, Replayed):
            return Receipt(decision.intent_id, decision.seq, replayed=True)
        if isinstance(decision, ControlRejected) and submission.key_id:
            self._refuse(submission, decision)
        return decision

    def writes(self) -> list[Statement]:
        """The statements that write the batch, in the order of the locks."""
        now, batch = self._state.now_text, self.batch
        return [
            *([statements.insert_refusals(self._refusals, now)] if self._refusals else ()),
            *([statements.mark_orders(batch, now)] if batch.changed_orders else ()),
            *([statements.make_due_now(batch.cancelled_intents)] if batch.cancelled_intents else ()),
            *([statements.append(batch, now)] if batch.actions else ()),
            *([stats_store.insert_entries(self._counts)] if self._counts else ()),
            *self._state.tracking.begun_days(),
        ]

    def events(self) -> list[Statement]:
        """The statement that appends the stream's events. It comes last, because it locks the organizations' stream
        heads."""
        events = [event for pending in self._pending_events for event in self._make_events(*pending)]
        return [stream_log.appending(events)] if events else []

    def _append(self, submission: Submission, accepted: Accepted) -> Receipt:
        state, batch, command = self._state, self.batch, submission.command
        account_id = submission.account_id
        account = state.rules[submission.organization_id].accounts[account_id]
        is_new = isinstance(command, NewOrder)
        intent_id = self._make_id(state.now) if isinstance(command, NewOrder) else command.ref_intent_id
        seq, previous = state.heads[account_id]
        seq += 1
        record = self._record(submission, accepted, account, intent_id, seq)
        text = canonical(record)
        digest = chain(previous, text)
        state.heads[account_id] = seq, digest
        opens = self._count(account_id, accepted, None if is_new else state.orders[intent_id])
        batch.actions.append(
            statements.NewAction(
                record=record,
                seq=str(seq),
                text=text.decode(),
                hash=digest,
                broker=account.broker,
                idempotency_key=submission.idempotency_key,
                body_digest=submission.body_digest,
                closes=str(accepted.closes),
                opens=opens,
            )
        )
        if submission.idempotency_key and submission.body_digest is not None:
            key = (account_id, submission.idempotency_key)
            state.earlier[key] = EarlierAction(submission.body_digest, intent_id, seq)
        if recent := state.tracking.recent.get(account_id):
            recent.head = state.heads[account_id]
        self._pending_events.append(
            (record, account, None if is_new else self._mark(accepted.action_type, intent_id, seq))
        )
        return Receipt(intent_id, seq)

    def _count(self, account_id: str, accepted: Accepted, replaced: KnownOrder | None) -> str:
        """Counts it for the commands that follow in the batch. Gives the quantity by which it changes what is open."""
        state = self._state
        if accepted.action_type is ActionType.CANCEL:
            return "0"
        if replaced is None and not (state.limited or state.holdings or state.tracking.recent):
            return accepted.spec.quantity
        asked = asked_order(accepted.symbol, accepted.side, accepted.spec, replaced)
        if recent := state.tracking.recent.get(account_id):
            recent.accept(asked.terms, state.now)
        state.tracking.accept(account_id, asked)
        note_order(state.holdings, account_id, asked.symbol, asked.side, asked.opens, asked.is_create)
        return str(asked.opens)

    def _record(
        self, submission: Submission, accepted: Accepted, account: AccountState, intent_id: str, seq: int
    ) -> Record:
        spec = accepted.spec
        assert spec.time_in_force is not None
        return Record(
            account_id=submission.account_id,
            action_type=accepted.action_type,
            client_reference_id=accepted.client_reference_id,
            created_at=self._created_at,
            environment=account.environment,
            hash_version=HASH_VERSION,
            intent_id=intent_id,
            limit_price=spec.limit_price,
            order_side=accepted.side,
            order_type=ORDER_TYPES[spec.kind],
            organization_id=account.organization_id,
            principal_id=submission.key_id or submission.halt_id or PLATFORM,
            principal_type=PRINCIPAL_TYPE if submission.key_id else SYSTEM,
            quantity=spec.quantity,
            route_strategy=accepted.route,
            seq=seq,
            stop_price=spec.stop_price,
            symbol=accepted.symbol,
            time_in_force=spec.time_in_force,
        )

    def _make_events(self, record: Record, account: AccountState, order: bytes | None) -> tuple[Event, Event]:
        now, place = self._state.now, (account.organization_id, record.account_id, record.environment)
        order = order or new_order_payload(record, account.broker, now)
        return (
            Event(*place, EventType.INTENT_ACTION, record.symbol, action_payload(record, now)),
            Event(*place, EventType.BROKER_ORDER, record.symbol, order),
        )

    def _mark(self, action_type: ActionType, intent_id: str, seq: int) -> bytes:
        """Shows the order as pending until its broker has answered; its other fields stay as last confirmed."""
        old, row = self._state.orders[intent_id], self._state.order_rows[intent_id]
        is_cancel = action_type is ActionType.CANCEL
        replace_seq = row.pending_replace_seq if is_cancel else str(seq)
        earlier = self.batch.changed_orders.get(intent_id)
        if earlier and is_cancel:
            replace_seq = earlier.pending_replace_seq
        status = "PENDING_CANCEL" if is_cancel else "PENDING_REPLACE"
        new = structs.replace(
            old,
            status=status,
            cancel_requested=is_cancel or old.cancel_requested,
            replace_pending=replace_seq is not None,
            version=old.version + 1,
        )
        self._state.orders[intent_id] = new
        self.batch.changed_orders[intent_id] = statements.OrderChange(
            status, replace_seq, new.cancel_requested, new.version
        )
        if is_cancel:
            self.batch.cancelled_intents.append(intent_id)
        return marked_order_payload(row, status, new.version)

    def _refuse(self, submission: Submission, rejected: ControlRejected) -> None:
        symbol = self._state.symbol_of(submission)
        action_type = ActionType.CREATE if isinstance(submission.command, NewOrder) else ActionType.REPLACE
        account_id, organization_id = submission.account_id, submission.organization_id
        reasons, principal_id = ",".join(rejected.reasons), submission.key_id or PLATFORM
        self._refusals.append(
            (self._make_id(self._state.now), organization_id, account_id, action_type, symbol, reasons, principal_id)
        )
        self._counts += [
            StatsEntry(account_id, organization_id, self._state.now, Measure.REFUSED, reason)
            for reason in (EVERY_REASON, *rejected.reasons)
        ]
