"""Takes due commands of all leased accounts: one transaction claims, checks and marks them; then
each is sent once, and the recorder writes its answer."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers.port import DUPLICATE_ID, CommandResult, Outcome
from trading_intents.controls.model import Subject
from trading_intents.controls.rules import NEVER_CHANGED, Rules, RulesCache
from trading_intents.errors import OutcomeUnknown, PlatformError
from trading_intents.execution import claims, model
from trading_intents.execution.claimed import send_context, sent_command
from trading_intents.execution.claims import ClaimedCommand, Lease
from trading_intents.execution.recorder import Recorder, RecorderEntry, UnrecordedCommand
from trading_intents.execution.sessions.claimable import Claimable
from trading_intents.execution.sessions.leases import Leases
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.ids import id_text
from trading_intents.loops import Pacer, Wakeup, finish_tasks, repeat, start_loop
from trading_intents.orders.facts import CommandKind, FactKind, client_order_id
from trading_intents.orders.ledger.recording import answer_facts
from trading_intents.outbox import intents_queue as queue
from trading_intents.outbox import model as outbox
from trading_intents.outbox.lanes import SeenRow
from trading_intents.outbox.model import Queue, Status
from trading_intents.outbox.outcomes import ENDED, log_failures, reason_of
from trading_intents.outbox.worker import WorkerContext
from trading_intents.storage.grouped import (
    TRANSACTION_ID,
    GroupTransactions,
    PipelinedTransaction,
    has_committed,
)
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import ActionType, FrozenStruct

POLL_SECONDS = 1.0
MAX_BATCH = 256
# Commands that are claimed and not recorded yet are no more than were recorded in the last
# RECORDED_SECONDS, so that none waits much longer than that. With a smaller minimum, brokers that
# take longer than SLOW_SECONDS would leave no room to others meanwhile.
MIN_UNRECORDED = 128
MAX_IN_FLIGHT = 512
RECORDED_SECONDS = 2.0
SLOW_SECONDS = 0.25
CALL_SECONDS = 3.5  # of a broker's call
# Before a command is claimed again whose order another transaction holds.
LOCKED_PAUSE_SECONDS = 0.02
NOT_OURS_SECONDS = 0.5
MIN_RATE_LIMIT_SECONDS = 1
MAX_RATE_LIMIT_SECONDS = 60  # whatever an adapter answers
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
NOT_TAKEN = "no worker took it in time"
CANCEL_LOST = frozenset({FactKind.CANCEL_REJECTED, FactKind.CANCEL_DROPPED})


class Decided(FrozenStruct):
    command: ClaimedCommand
    client_order_id: str
    session: BrokerSession | None  # None: the account's lease is not ours
    decision: model.SendDecision

    def unrecorded(self, session: BrokerSession) -> UnrecordedCommand:
        command = self.command
        return UnrecordedCommand(
            id=command.row_id,
            action_type=command.action_type,
            order_id=UUID(command.order_id),
            attempts=command.attempts + isinstance(self.decision, model.Send),
            lease=session.lease,
        )


@dataclass(slots=True, kw_only=True)
class ClaimedBatch:
    """The commands of one claim: those that go on, and those that are claimed again after so many
    seconds."""

    since_seconds: float
    going: list[Decided] = field(default_factory=list)
    held: list[tuple[Decided, float]] = field(default_factory=list)

    def add(self, decided: Decided) -> None:
        if isinstance(decided.decision, model.Hold):
            self.held.append((decided, decided.decision.after_seconds))
        else:
            self.going.append(decided)

    @property
    def sends(self) -> list[Decided]:
        return [each for each in self.going if isinstance(each.decision, model.Send)]

    def last_statements(self) -> list[Statement]:
        """Marks what is to be sent, and puts off what is held."""
        changes = []
        for each in self.sends:
            if each.command.action_type is not ActionType.CREATE:
                changes.append(sent_command(each.command, each.client_order_id))
        statements = []
        if changes:
            statements.append(claims.add_sent(changes))
        if self.sends:
            statements.append(queue.marking([each.command.row_id for each in self.sends]))
        pauses = {each.command.row_id: seconds for each, seconds in self.held if each.session}
        if pauses:
            statements.append(queue.holding(pauses))
        return statements


def _ids_in(reply: Reply) -> set[str]:
    return {text for (text,) in reply.texts()}


class Dispatcher:
    def __init__(
        self,
        context: WorkerContext,
        transactions: GroupTransactions,
        leases: Leases,
        recorder: Recorder,
        wakeup: Wakeup,
        max_age_millis: int,
    ) -> None:
        self._pool = context.pool
        self._attempt_limit = context.attempt_limit
        self._clock = context.clock
        self._metrics = context.metrics
        self._log = context.log
        self._transactions = transactions
        self._leases = leases
        self._recorder = recorder
        self._wakeup = wakeup
        self._max_age_seconds = max_age_millis / 1000
        self._rules = RulesCache()
        self._in_flight = 0
        self._is_limited = False  # by what is in flight: there may be more to claim
        self._recorded: deque[float] = deque(maxlen=MAX_IN_FLIGHT)  # when the last commands were
        self._last_lane = queue.FIRST_LANE  # of the last claim that had no room for every lane
        self._sending: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._task = start_loop(self._run())

    async def stop(self, limit_seconds: float) -> None:
        """Claims no more, waits for the sends under way, and cancels those that outlast the
        limit."""
        self._stopping = True
        self._wakeup.wake()
        await finish_tasks(lambda: [self._task, *self._sending], limit_seconds)
        self._transactions.close()

    async def _run(self) -> None:
        await repeat(
            self._claim_all,
            POLL_SECONDS,
            log_failures(self._log, "commands not claimed"),
            self._wakeup,
            retry_seconds=RETRY_SECONDS,
            is_over=lambda: self._stopping,
        )

    async def _claim_all(self) -> None:
        self._is_limited = False
        while self._in_flight <= self._max_unrecorded() // 2:
            if not await self._claim_some():
                return
        self._is_limited = True

    def _max_unrecorded(self) -> int:
        since_seconds = self._clock.monotonic() - RECORDED_SECONDS
        while self._recorded and self._recorded[0] < since_seconds:
            self._recorded.popleft()
        return max(MIN_UNRECORDED, len(self._recorded))

    async def _claim_some(self) -> bool:
        """True: there may be more to claim at once."""
        more = False
        for claimable in self._leases.claimable():
            limit = min(MAX_BATCH, self._max_unrecorded() - self._in_flight)
            if self._stopping:
                break
            if limit <= 0:
                self._is_limited = True
                break
            more |= await self._claim(claimable, limit)
        return more

    async def _claim(self, claimable: Claimable, limit: int) -> bool:
        batch = ClaimedBatch(since_seconds=self._clock.monotonic())
        requests = claimable.begin(batch.since_seconds)
        claim = queue.claim_by_lane(
            requests,
            limit,
            where=claimable.where,
            after_lane=self._last_lane,
            held=claimable.held,
        )
        with claimable.claiming():
            seen = await self._commit_claim(claim, claimable, batch)
            has_more = claimable.note(requests, seen, batch.since_seconds)
            for decided, seconds in batch.held:
                self._put_back(decided, seconds)
            self._start_all(batch)
        lanes = {each.command.account_id for each in batch.going}
        if len(lanes) >= limit:
            self._last_lane = max(lanes, key=lambda lane: (lane <= self._last_lane, lane))
        # Rows that wait for others, as many as there are slots, hide no later ones.
        return has_more and (bool(batch.going) or not any(row.is_left for row in seen))

    async def _commit_claim(
        self, claim: Statement, claimable: Claimable, batch: ClaimedBatch
    ) -> list[SeenRow]:
        """Claims, decides and marks in one transaction. Gives the rows that it has seen."""
        statements = [
            claims.lock_leases([each.lease for each in claimable.sessions]),
            claim,
            TRANSACTION_ID,
            claims.LOCK_CLAIMED_ORDERS,
            claims.SHARE_HALT_LOCKS,
            claims.READ_CLAIMED,
        ]
        async with self._transactions.transaction() as tx:
            fenced, claimed, transaction_id, locked, shared, contexts = await tx.run(statements)
            commands = claims.parse_claimed(contexts)
            if commands:
                leases = claims.parse_leases(fenced)
                locked_ids = _ids_in(locked)
                steady = _ids_in(shared)
                rules = await self._find_rules(tx, commands)
                pacer = Pacer()
                for command in commands:
                    session = self._session_of(command, leases)
                    is_free = command.order_id in locked_ids and (
                        command.action_type is ActionType.CANCEL
                        or command.organization_id in steady
                    )
                    batch.add(self._decide(command, rules[command.subject], session, is_free))
                    await pacer.pause_if_due()
                try:
                    await tx.commit(batch.last_statements())
                except OutcomeUnknown:
                    self._start_all(batch, self._ask_outcome(batch, transaction_id))
                    raise
        return queue.parse_seen(claimed)

    def _session_of(
        self, command: ClaimedCommand, leases: Collection[Lease]
    ) -> BrokerSession | None:
        session = self._leases.sessions.get(UUID(command.account_id))
        return session if session and session.lease in leases else None

    def _put_back(self, decided: Decided, after_seconds: float) -> None:
        """A claimed row waits for its next claim."""
        command = decided.command
        session = self._leases.sessions.get(UUID(command.account_id))
        if session is None:
            return
        due_seconds = self._clock.monotonic() + after_seconds
        session.lane.put_back(command.row_id, command.order_id, due_seconds)
        self._wakeup.wake_after(after_seconds)

    async def _find_rules(
        self, tx: PipelinedTransaction, commands: Sequence[ClaimedCommand]
    ) -> dict[Subject, Rules]:
        """The rules that hold at this claim; those that have not changed are not read again."""
        versions: dict[str, str] = {}
        for each in commands:
            versions[each.organization_id] = each.rule_version or NEVER_CHANGED
        cache = self._rules.of(tx.connection)
        return await cache.find(tx, [each.subject for each in commands], versions)

    def _start_all(
        self, batch: ClaimedBatch, outcome: asyncio.Task[bool | None] | None = None
    ) -> None:
        for each in batch.going:
            self._start(each, batch, outcome)

    def _ask_outcome(
        self, batch: ClaimedBatch, transaction_id: Reply
    ) -> asyncio.Task[bool | None] | None:
        """Asks whether a claim has committed, beside other claims, for as long as its commands
        might still be sent."""
        if not batch.sends:
            return None
        ((id_text,),) = transaction_id.texts()
        task = asyncio.create_task(
            has_committed(
                pool=self._pool,
                organizations=(),
                transaction_id=id_text,
                proof=queue.find_marked(batch.sends[0].command.row_id),
                limit_seconds=self._leases.valid_until - self._clock.monotonic(),
                log=self._log,
            )
        )
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    def _decide(
        self,
        command: ClaimedCommand,
        rules: Rules,
        session: BrokerSession | None,
        is_free: bool,
    ) -> Decided:
        """`is_free`: its order is locked, and no halt begins or ends meanwhile; a CANCEL does not
        mind."""
        is_cancel = command.action_type is ActionType.CANCEL
        attempt = command.sends - command.is_marked if is_cancel else 0
        client_id = client_order_id(command.action_id, attempt)
        decision: model.SendDecision
        if session is None:
            decision = model.Hold(NOT_OURS_SECONDS)
        elif not is_free:
            decision = model.Hold(LOCKED_PAUSE_SECONDS)
        else:
            kept_by = session.hindrance(command.age_seconds) or command.last_error or NOT_TAKEN
            context = send_context(command, rules, client_id, self._max_age_seconds, kept_by)
            decision = model.decide_send(context)
            if isinstance(decision, model.Send):
                decision = self._take_request(decision, session, is_cancel)
        return Decided(command, client_id, session, decision)

    def _take_request(
        self, send: model.Send, session: BrokerSession, is_cancel: bool
    ) -> model.Send | model.Hold:
        """Takes a request of the session's budget, or holds the command until it may."""
        if not session.is_up or (session.breaker.is_open and not is_cancel):
            return model.Hold(NOT_OURS_SECONDS)
        wait_seconds = session.budget.wait_seconds(is_cancel, self._clock.monotonic())
        if wait_seconds > 0:
            return model.Hold(wait_seconds)
        session.budget.take()
        return send

    def _start(
        self,
        decided: Decided,
        batch: ClaimedBatch,
        outcome: asyncio.Task[bool | None] | None = None,
    ) -> None:
        """Takes a slot and starts the task. `outcome` says whether the claim has committed, if its
        COMMIT was not answered."""
        assert decided.session is not None
        session = decided.session
        command = decided.command
        session.in_flight.add(command.row_id)
        self._in_flight += 1

        def on_end(task: asyncio.Task[bool]) -> None:
            session.in_flight.discard(command.row_id)
            self._in_flight -= 1
            self._sending.discard(task)
            if not task.cancelled() and (error := task.exception()):
                self._log.error("command not carried out", exc_info=error)
            now = self._clock.monotonic()
            if task.cancelled() or task.exception() or not task.result():
                session.lane.put_back(command.row_id, command.order_id, now)
            session.lane.release(command.order_id, now)
            if self._is_limited or session.lane.is_due(now):
                self._wakeup.set()
            if session.is_leaving:
                self._leases.wake()

        task = asyncio.create_task(self._carry_out(decided, session, batch, outcome))
        self._sending.add(task)
        task.add_done_callback(on_end)

    @contextlib.contextmanager
    def _discounting_slow(self) -> Iterator[None]:
        """Stops counting a command as in flight while its broker takes longer than SLOW_SECONDS, so
        that a slow broker delays only its own account, whose slots it keeps."""
        is_slow = False

        def on_slow() -> None:
            nonlocal is_slow
            is_slow = True
            self._in_flight -= 1
            self._wakeup.set()

        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, on_slow)
        try:
            yield
        finally:
            timer.cancel()
            self._in_flight += is_slow

    async def _carry_out(
        self,
        decided: Decided,
        session: BrokerSession,
        batch: ClaimedBatch,
        outcome: asyncio.Task[bool | None] | None,
    ) -> bool:
        """Whether the row is over; else it is claimed again when it is due."""
        if outcome is not None:
            with self._discounting_slow():
                if not await outcome:
                    return False  # claimed again, and looked up if it is marked
        since_seconds = batch.since_seconds
        row = decided.unrecorded(session)
        entry = RecorderEntry(
            account_ref=session.account_ref, row=row, client_order_id=decided.client_order_id
        )
        match decided.decision:
            case model.EndCommand(own, unclear):
                entry = replace(entry, own=own, is_unclear=unclear, look_up=unclear)
                if unclear:
                    entry = self._repeat_cancel(entry, row)
            case model.Send() as send:
                result = await self._send(
                    session, model.COMMANDS[row.action_type], send, since_seconds
                )
                entry = self._answered(entry, row, result)
        # If writing them fails, the next claim finds the command marked as sent, and it is looked
        # up.
        session.remember(entry.events)
        return await self._record(entry, row, session, since_seconds)

    async def _send(
        self, session: BrokerSession, command: CommandKind, send: model.Send, since_seconds: float
    ) -> CommandResult:
        ticket = send.ticket
        if send.left_seconds is not None:
            ticket = replace(ticket, not_after=since_seconds + send.left_seconds)
        # By then another worker may have the lease.
        deadline = min(self._clock.monotonic() + CALL_SECONDS, self._leases.valid_until)
        with (
            self._metrics.execution_call_seconds.labels(command.lower()).time(),
            self._discounting_slow(),
        ):
            return await session.call(command, ticket, deadline)

    def _answered(
        self, entry: RecorderEntry, row: UnrecordedCommand, result: CommandResult
    ) -> RecorderEntry:
        command = model.COMMANDS[row.action_type]
        client_id = entry.client_order_id
        own = answer_facts(row.order_id, command, client_id, result)
        entry = replace(entry, events=result.updates, own=own)
        match result.outcome:
            case Outcome.NOT_SENT if result.retry_after_seconds is not None:
                # No attempt: a CREATE or REPLACE ends by its age, a CANCEL is repeated until its
                # order is over.
                row = replace(row, attempts=row.attempts - 1)
                wait_seconds = min(
                    max(result.retry_after_seconds, MIN_RATE_LIMIT_SECONDS), MAX_RATE_LIMIT_SECONDS
                )
                return self._fail_attempt(
                    replace(entry, is_unsent=True), row, result.message, wait_seconds
                )
            case Outcome.NOT_SENT:
                if row.attempts >= self._attempt_limit:
                    entry = replace(
                        entry,
                        own=(model.used_up(command, row.order_id, client_id, result.message),),
                    )
                return self._fail_attempt(
                    replace(entry, is_unsent=True), row, f"not sent: {result.message}"
                )
            case Outcome.ACKED | Outcome.REJECTED if result.code != DUPLICATE_ID:
                return entry  # a refused change is followed by a look-up, as it is recorded
            case _:
                return self._repeat_cancel(replace(entry, is_unclear=True, look_up=True), row)

    def _repeat_cancel(self, entry: RecorderEntry, row: UnrecordedCommand) -> RecorderEntry:
        """Only a CANCEL whose answer was lost is sent again, unless a look-up ends its order
        before."""
        if row.action_type is not ActionType.CANCEL:
            return entry
        return self._fail_attempt(entry, row, "no answer came")

    def _fail_attempt(
        self,
        entry: RecorderEntry,
        row: UnrecordedCommand,
        reason: str,
        after_seconds: float | None = None,
    ) -> RecorderEntry:
        delay = outbox.backoff_seconds(row.attempts) if after_seconds is None else after_seconds
        self._wakeup.wake_after(delay)
        failed_attempt = queue.AttemptFailure(
            id=row.id,
            attempts=row.attempts,
            delay=delay,
            reason=reason,
            has_failed=row.attempts >= self._attempt_limit,
        )
        return replace(entry, failed_attempt=failed_attempt)

    async def _record(
        self,
        entry: RecorderEntry,
        row: UnrecordedCommand,
        session: BrokerSession,
        since_seconds: float,
    ) -> bool:
        """Retries while the lease holds; after that its next worker finds the command marked as
        sent and looks it up."""
        while True:
            try:
                written = await self._recorder.write(entry)
                break
            except PlatformError as error:
                self._log.warning(
                    "answer not written",
                    event_type=row.event_type,
                    row=row.id,
                    reason=reason_of(error),
                )
                if self._leases.sessions.get(session.account_ref.account_id) is not session:
                    return False
                await asyncio.sleep(RETRY_SECONDS[0])
        self._recorded.append(self._clock.monotonic())
        spent_seconds = self._recorded[-1] - since_seconds
        self._metrics.outbox_handler_seconds.labels(Queue.INTENTS, row.event_type).observe(
            spent_seconds
        )
        if written.status is None:
            self._log.warning(
                "outbox claim lost", queue=Queue.INTENTS, event_type=row.event_type, row=row.id
            )
            return False
        ended = ENDED[written.status]
        self._metrics.outbox_rows.labels(Queue.INTENTS, row.event_type, ended).inc()
        booked = written.orders.get(id_text(row.order_id))
        if (
            any(fact.kind in CANCEL_LOST for fact in entry.own)
            and booked
            and booked.row.finished_at is None
        ):
            alert_lost_cancel(row.order_id, self._metrics, self._log)
        return written.status is not Status.PENDING


def alert_lost_cancel(order_id: UUID, metrics: Metrics, log: Log) -> None:
    metrics.alert("cancel_not_delivered")
    log.error("CANCEL not delivered", order=str(order_id))
