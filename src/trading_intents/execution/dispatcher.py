"""Takes due commands of all leased accounts: one transaction claims, checks and marks them; then
each is sent once, and the recorder writes its answer."""

import asyncio
import contextlib
from collections import Counter, deque
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
from trading_intents.execution.claimed import claimed_row, marked_commands, send_context
from trading_intents.execution.claims import ClaimedCommand
from trading_intents.execution.recorder import CANCEL, Recorder, RecorderEntry
from trading_intents.execution.sessions.leases import Claimable, Leases
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.ids import IdMaker, id_text
from trading_intents.loops import Pacer, Wakeup, finish_tasks, repeat, start_loop
from trading_intents.orders.facts import CommandKind, FactKind, client_order_id
from trading_intents.orders.ledger.recording import answer_facts
from trading_intents.orders.model import OrderState
from trading_intents.outbox import intents_queue as queue
from trading_intents.outbox import model as outbox
from trading_intents.outbox.model import HANDLER_SECONDS, ClaimedRow
from trading_intents.outbox.outcomes import ENDED, log_failures, reason_of
from trading_intents.outbox.queue import FailedAttempt, releasing
from trading_intents.outbox.worker import WorkerContext
from trading_intents.storage.grouped import (
    TRANSACTION_ID,
    GroupTransactions,
    PipelinedTransaction,
    has_committed,
)
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import FrozenStruct

POLL_SECONDS = 1.0
MAX_BATCH = 256
NO_ROOM = -1  # instead of a wake-up count: the claim was limited
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
    session: BrokerSession | None
    decision: model.SendDecision


@dataclass(slots=True, kw_only=True)
class ClaimedBatch:
    """The commands of one claim: those that go on, and those that are claimed again after so many
    seconds, by their rows. `wakes` is the wake-up count at the claim."""

    token: UUID
    since_seconds: float
    wakes: int
    going: list[Decided] = field(default_factory=list)
    held: dict[int, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)  # of each lane's commands

    def add(self, decided: Decided) -> None:
        self.counts[decided.command.account_id] += 1
        if isinstance(decided.decision, model.Hold):
            self.held[decided.command.row_id] = decided.decision.after_seconds
        else:
            self.going.append(decided)

    def last_statements(self) -> list[Statement]:
        """Marks what is to be sent, and gives back what is held."""
        marked = []
        for each in self.going:
            if isinstance(each.decision, model.Send):
                marked += marked_commands(each.command, each.client_order_id)
        statements = []
        if marked:
            statements.append(claims.mark_sent(marked))
        if self.held:
            statements.append(releasing(self.held, [self.token] * len(self.held)))
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
        make_id: IdMaker,
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
        self._make_id = make_id
        self._max_age_seconds = max_age_millis / 1000
        self._rules = RulesCache()
        self._in_flight = 0
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
        while self._in_flight <= self._max_unrecorded() // 2 and await self._claim_some():
            pass

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
            if self._stopping or limit <= 0:
                break
            more |= await self._claim(claimable, limit)
        return more

    async def _claim(self, claimable: Claimable, limit: int) -> bool:
        batch = ClaimedBatch(
            token=self._make_id(),
            since_seconds=self._clock.monotonic(),
            wakes=self._wakeup.count,
        )
        claim = queue.claim_by_lane(
            free_slots=claimable.free_slots,
            where=claimable.where,
            limit=limit,
            attempt_limit=self._attempt_limit,
            token=batch.token,
            after_lane=self._last_lane,
            held=self._leases.held,
        )
        statements = [
            claim,
            TRANSACTION_ID,
            claims.LOCK_CLAIMED_ORDERS,
            claims.SHARE_HALT_LOCKS,
            claims.read_claimed(self._leases.worker_id, claimable.lease_tokens),
        ]
        async with self._transactions.transaction() as tx:
            claimed, transaction_id, locked, shared, contexts = await tx.run(statements)
            shares = queue.parse_shares(claimed)
            if not shares:
                return False
            locked_ids = _ids_in(locked)
            steady = _ids_in(shared)
            commands = claims.parse_claimed(contexts)
            rules = await self._find_rules(tx, commands)
            pacer = Pacer()
            for command in commands:
                batch.add(self._decide(command, rules[command.subject], locked_ids, steady))
                await pacer.pause_if_due()
            try:
                await tx.commit(batch.last_statements())
            except OutcomeUnknown:
                self._start_unresolved(batch, transaction_id)
                raise
        for after_seconds in set(batch.held.values()):
            self._wakeup.wake_after(after_seconds)
        cut = {lane for lane, share in shares.items() if batch.counts[lane] >= share}
        for each in batch.going:
            may_be_more = each.command.account_id in cut
            self._start(each, batch, NO_ROOM if may_be_more else batch.wakes)
        is_full = len(shares) >= limit
        if is_full:
            self._last_lane = max(shares, key=lambda lane: (lane <= self._last_lane, lane))
        is_short = is_full or any(shares[lane] < claimable.free_slots[lane] for lane in cut)
        return is_short and bool(batch.going)

    async def _find_rules(
        self, tx: PipelinedTransaction, commands: Sequence[ClaimedCommand]
    ) -> dict[Subject, Rules]:
        """The rules that hold at this claim; those that have not changed are not read again."""
        versions: dict[str, str] = {}
        for each in commands:
            versions[each.organization_id] = each.rule_version or NEVER_CHANGED
        cache = self._rules.of(tx.connection)
        return await cache.find(tx, [each.subject for each in commands], versions)

    def _start_unresolved(self, batch: ClaimedBatch, transaction_id: Reply) -> None:
        """Starts the commands of a claim whose COMMIT was not answered: each waits until it is
        known how the claim ended."""
        if not batch.going:
            return
        proof = queue.find_claimed(str(batch.going[0].command.row_id), batch.token)
        outcome = self._ask_outcome(transaction_id, proof, batch.since_seconds)
        for each in batch.going:
            self._start(each, batch, NO_ROOM, outcome)

    def _ask_outcome(
        self, transaction_id: Reply, proof: Statement, since_seconds: float
    ) -> asyncio.Task[bool | None]:
        """Asks whether a claim has committed, beside other claims, for as long as its commands
        might still be sent."""
        ((id_text,),) = transaction_id.texts()
        left_seconds = since_seconds + HANDLER_SECONDS - self._clock.monotonic()
        task = asyncio.create_task(
            has_committed(
                pool=self._pool,
                organizations=(),
                transaction_id=id_text,
                proof=proof,
                limit_seconds=left_seconds,
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
        locked_ids: Collection[str],
        steady: Collection[str],
    ) -> Decided:
        """`steady` are the organizations in which no halt begins or ends meanwhile; a CANCEL does
        not mind."""
        is_cancel = command.event_type == CANCEL
        attempt = command.sends - command.is_open if is_cancel else 0
        client_id = client_order_id(command.action_id, attempt)
        session = self._leases.sessions.get(UUID(command.account_id))
        is_steady = is_cancel or command.organization_id in steady
        decision: model.SendDecision
        if command.order_id not in locked_ids or not is_steady:
            decision = model.Hold(LOCKED_PAUSE_SECONDS)
        elif not command.is_ours or session is None:
            decision = model.Hold(NOT_OURS_SECONDS)
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
        wakes: int,
        outcome: asyncio.Task[bool | None] | None = None,
    ) -> None:
        """Takes a slot and starts the task. If `wakes` is not the wake-up count when the task ends,
        as after a claim that was limited (NO_ROOM), there may be more to claim. `outcome` says
        whether the claim has committed, if its COMMIT was not answered."""
        assert decided.session is not None
        session = decided.session
        session.in_flight += 1
        self._leases.held.add(decided.command.row_id)
        self._in_flight += 1

        def on_end(task: asyncio.Task[None]) -> None:
            session.in_flight -= 1
            self._leases.held.discard(decided.command.row_id)
            self._in_flight -= 1
            self._sending.discard(task)
            if wakes != self._wakeup.count:
                self._wakeup.set()
            if not task.cancelled() and (error := task.exception()):
                self._log.error("command not carried out", exc_info=error)

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
    ) -> None:
        if outcome is not None:
            with self._discounting_slow():
                if not await outcome:
                    # Claimed again: at once after a rollback; if the outcome is unknown, when the
                    # claim expires.
                    return
        command = decided.command
        since_seconds = batch.since_seconds
        row = claimed_row(command, batch.token)
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
                    session, model.COMMANDS[command.event_type], send, since_seconds
                )
                entry = self._answered(entry, row, result)
        # If writing them fails, the next claim finds the command marked as sent, and it is looked
        # up.
        session.remember(entry.events)
        await self._record(entry, row, session, since_seconds)

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
        self, entry: RecorderEntry, row: ClaimedRow, result: CommandResult
    ) -> RecorderEntry:
        command = model.COMMANDS[row.event_type]
        client_id = entry.client_order_id
        own = answer_facts(row.order_key, command, client_id, result)
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
                        own=(model.used_up(command, row.order_key, client_id, result.message),),
                    )
                return self._fail_attempt(
                    replace(entry, is_unsent=True), row, f"not sent: {result.message}"
                )
            case Outcome.ACKED | Outcome.REJECTED if result.code != DUPLICATE_ID:
                return entry  # a refused change is followed by a look-up, as it is recorded
            case _:
                return self._repeat_cancel(replace(entry, is_unclear=True, look_up=True), row)

    def _repeat_cancel(self, entry: RecorderEntry, row: ClaimedRow) -> RecorderEntry:
        """Only a CANCEL whose answer was lost is sent again, unless a look-up ends its order
        before."""
        if row.event_type != CANCEL:
            return entry
        return self._fail_attempt(entry, row, "no answer came")

    def _fail_attempt(
        self, entry: RecorderEntry, row: ClaimedRow, reason: str, after_seconds: float | None = None
    ) -> RecorderEntry:
        delay = outbox.backoff_seconds(row.attempts) if after_seconds is None else after_seconds
        self._wakeup.wake_after(delay)
        return replace(entry, failed_attempt=FailedAttempt(row, reason, after_seconds))

    async def _record(
        self, entry: RecorderEntry, row: ClaimedRow, session: BrokerSession, since_seconds: float
    ) -> None:
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
                    return
                await asyncio.sleep(RETRY_SECONDS[0])
        self._recorded.append(self._clock.monotonic())
        spent_seconds = self._recorded[-1] - since_seconds
        self._metrics.outbox_handler_seconds.labels(row.queue, row.event_type).observe(
            spent_seconds
        )
        if written.status is None:
            self._log.warning("outbox claim lost", **row.log_fields)
            return
        ended = ENDED[written.status]
        self._metrics.outbox_rows.labels(row.queue, row.event_type, ended).inc()
        booked = written.orders.get(id_text(row.order_key))
        if (
            any(fact.kind in CANCEL_LOST for fact in entry.own)
            and booked
            and booked.view.state is OrderState.OPEN
        ):
            alert_lost_cancel(row.order_key, self._metrics, self._log)


def alert_lost_cancel(order_id: UUID, metrics: Metrics, log: Log) -> None:
    metrics.alert("cancel_not_delivered")
    log.error("CANCEL not delivered", order=str(order_id))
