"""Looks up unresolved orders at their brokers, cancels stale ones, shows entries that became
unprotected, and fails outbox rows without an attempt left together with their orders."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.execution import store
from trading_intents.execution.dispatcher import alert_lost_cancel
from trading_intents.execution.model import (
    ALERT_LOOKUPS,
    ANSWER_SECONDS,
    COMMANDS,
    CREATE,
    LOOKUP_PAUSES_SECONDS,
    PROOF_SECONDS,
    UnresolvedCommands,
    UnresolvedOrder,
    Verdict,
    classify_lookup,
    ending_event,
    lookup_delay_seconds,
    not_delivered_fact,
    used_up,
)
from trading_intents.execution.recorder import CANCEL, Recorder
from trading_intents.execution.sessions.leases import Leases
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.ids import IdText, OrganizationId, id_text
from trading_intents.loops import Wakeup, repeat, start_loop, stop_tasks
from trading_intents.orders import store as orders_store
from trading_intents.orders.facts import FactKind, client_order_id
from trading_intents.orders.ledger.matching import AccountRecording, PlatformFact
from trading_intents.orders.ledger.recording import RecordedAccount
from trading_intents.orders.model import OrderView
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import CLAIM_SECONDS, NewRow, Queue
from trading_intents.outbox.outcomes import log_failures, reason_of, report_failed
from trading_intents.outbox.worker import WorkerContext
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.telemetry import AlertKind
from trading_intents.trading import FrozenStruct

POLL_SECONDS = 1.0
POLL_SLACK_SECONDS = 0.05  # a timer may end a moment early
RARE_POLL_SECONDS = 5.0
MAX_LOOKUPS = 4  # of an account
MAX_STALE = 100
CANCEL_AGAIN_SECONDS = 60.0  # before a stale order gets another CANCEL

# By a look-up.
FOUND = {port.OrderSnapshot: "order", port.Absent: "absent", port.LookupUnknown: "unknown"}
# Organization, account, order, once.
AppendCancel = Callable[[OrganizationId, UUID, UUID, bool], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResult:
    """An order that was looked up, and what its broker answered."""

    row: store.UnresolvedRow
    session: BrokerSession
    capabilities: port.Capabilities
    order: port.Lookup
    replaced: port.Lookup | None
    entry: port.Lookup | None  # of a leg that the broker has not named yet

    @property
    def create_id(self) -> str:
        return client_order_id(self.row.create_action_id)

    @property
    def confirmed_id(self) -> str:
        return self.row.confirmed.client_order_id

    @property
    def events(self) -> list[port.BrokerEvent]:
        events: list[port.BrokerEvent] = []
        for each in (self.order, self.replaced, self.entry):
            if isinstance(each, port.OrderSnapshot):
                events += each.events
        return events


class OverdueWork(FrozenStruct):
    """The rows and orders that something is done about as time passes."""

    used_up: Sequence[store.UsedUpRow] = ()
    unprotected: Mapping[IdText, Set[IdText]] = {}  # of each account, which nobody was shown yet
    stale: Sequence[store.OverdueOrder] = ()


class Reconciler:
    def __init__(
        self,
        context: WorkerContext,
        leases: Leases,
        recorder: Recorder,
        wakeup: Wakeup,
        append_cancel: AppendCancel,
    ) -> None:
        self._pool = context.pool
        self._attempt_limit = context.attempt_limit
        self._clock = context.clock
        self._metrics = context.metrics
        self._log = context.log
        self._log_failed = log_failures(context.log, "execution watch failed")
        self._leases = leases
        self._recorder = recorder
        self._wakeup = wakeup
        self._append_cancel = append_cancel
        self._looking: dict[UUID, asyncio.Task[None]] = {}
        self._lookups: Counter[UUID] = Counter()  # of each account: those under way
        self._failed_accounts: list[UUID] = []  # whose stale orders could not be cancelled lately
        self._tasks: list[asyncio.Task[None]] = []
        self._cancelling: asyncio.Task[None] | None = None
        self._polled_seconds = -POLL_SECONDS

    def start(self) -> None:
        self._tasks = [
            start_loop(repeat(self._poll, POLL_SECONDS, self._log_failed, self._wakeup)),
            start_loop(repeat(self._look_up_unanswered, RARE_POLL_SECONDS, self._log_failed)),
        ]

    async def close(self) -> None:
        await stop_tasks(*self._tasks, *self._looking.values(), self._cancelling)

    async def _poll(self) -> None:
        """Reads in one transaction which look-ups are due, and once a second what is overdue.
        Look-ups are limited by account, so that a slow broker delays no other account."""
        sessions = self._leases.sessions
        free = []
        for account_id, session in sessions.items():
            if session.is_up and self._lookups[account_id] < MAX_LOOKUPS:
                free.append(account_id)
        now = self._clock.monotonic()
        is_second = now - self._polled_seconds >= POLL_SECONDS - POLL_SLACK_SECONDS
        if not (free or is_second):
            return
        overdue = OverdueWork()
        # A look-up that ends while this is read may be read as still due.
        busy = frozenset(self._looking)
        async with self._pool.transaction(read_only=True) as tx:
            due = await store.due_lookups(tx, free, MAX_LOOKUPS) if free else []
            if is_second:
                self._polled_seconds = now
                overdue = await self._read_overdue(tx)
        self._look_up([row for row in due if row.order_id not in busy])
        if overdue.stale:
            self._cancelling = asyncio.create_task(self._cancel_stale(overdue.stale))
        account_ids = {row.lane for row in overdue.used_up}
        account_ids |= {UUID(account_id) for account_id in overdue.unprotected}
        for account_id in sorted(account_ids):
            await self._work_overdue(account_id, overdue)

    async def _read_overdue(self, tx: Tx) -> OverdueWork:
        """Stale orders are read once the last ones are cancelled."""
        account_ids = list(self._leases.sessions)
        limit = self._attempt_limit
        used_up_rows = await store.used_up(tx, account_ids, limit, CLAIM_SECONDS)
        unprotected = await self._read_unprotected(tx, account_ids)
        stale: list[store.OverdueOrder] = []
        if self._cancelling is None or self._cancelling.done():
            stale = await store.stale_orders(
                tx, self._cancellable(), CANCEL_AGAIN_SECONDS, MAX_STALE
            )
        return OverdueWork(used_up_rows, unprotected, stale)

    async def _read_unprotected(
        self, tx: Tx, account_ids: Sequence[UUID]
    ) -> dict[IdText, set[IdText]]:
        """Counts the unprotected entries, and gives those that are not shown yet as such."""
        count = 0
        found: dict[IdText, set[IdText]] = {}
        for cover in await orders_store.read_covers(tx, account_ids):
            shown = cover.unprotected()
            count += len(shown)
            if new := cover.unprotected(cover.now) - shown:
                found.setdefault(cover.account_id, set()).update(new)
        self._metrics.unprotected_entries.set(count)
        return found

    async def _work_overdue(self, account_id: UUID, overdue: OverdueWork) -> None:
        session = self._leases.sessions.get(account_id)
        if session is None:
            return
        failing = [
            row
            for row in overdue.used_up
            if row.lane == account_id and row.id not in self._leases.held
        ]
        unprotected = overdue.unprotected.get(id_text(account_id), ())
        try:
            if failing:
                await self._fail(session, failing)
            if unprotected:
                await self._derive_again(session, frozenset(map(UUID, unprotected)))
        except Exception as error:  # such as a held lock: the other accounts' rows are failed
            self._log_failed("fail", error)

    def _look_up(self, rows: Sequence[store.UnresolvedRow]) -> None:
        for row in rows:
            session = self._leases.sessions.get(row.account_id)
            if session is None or row.order_id in self._looking:
                continue
            if self._lookups[row.account_id] >= MAX_LOOKUPS:
                continue
            self._lookups[row.account_id] += 1
            task = self._looking[row.order_id] = asyncio.create_task(
                self._investigate(row, session)
            )
            task.add_done_callback(partial(self._on_looked_up, row.order_id, row.account_id))

    def _on_looked_up(self, order_id: UUID, account_id: UUID, _: asyncio.Task[None]) -> None:
        del self._looking[order_id]
        self._lookups[account_id] -= 1
        if not self._lookups[account_id]:
            del self._lookups[account_id]
        self._wakeup.set()

    async def _investigate(self, row: store.UnresolvedRow, session: BrokerSession) -> None:
        assert session.integration, "its session was up"
        try:
            confirmed = row.confirmed
            order = await session.look_up(confirmed)
            replaced = None
            if row.replace_id:
                replacing = {"client_order_id": row.replace_id, "broker_order_id": None}
                replaced = await session.look_up(replace(confirmed, **replacing))
            entry = None
            is_unnamed = row.external_order_id is None and isinstance(order, port.Absent)
            if row.is_entry_acknowledged and is_unnamed:
                entry = await session.look_up(row.entry)
            found = FOUND.get(type(order), FOUND[port.LookupUnknown])
            self._metrics.execution_lookups.labels(found).inc()
            await self._conclude(
                LookupResult(
                    row=row,
                    session=session,
                    capabilities=session.integration.capabilities,
                    order=order,
                    replaced=replaced,
                    entry=entry,
                )
            )
        except Exception as error:
            self._log.warning(
                "look-up not written", order=str(row.order_id), reason=reason_of(error)
            )
            await asyncio.sleep(POLL_SECONDS)

    async def _conclude(self, looked_up: LookupResult) -> None:
        """Records what was found; what is still unresolved then decides whether and when to look
        again."""
        order_id = looked_up.row.order_id
        session = looked_up.session
        capabilities = looked_up.capabilities
        async with self._pool.transaction() as tx:
            locked = await store.lock_unresolved(tx, [order_id])
            due_at = {each.order_id: each.lookup_due_at for each in locked}
            found = AccountRecording(
                session.account_ref, looked_up.events, also_locked=frozenset({order_id})
            )
            first = await self._recorder.derive_in_tx(tx, found)
            ended = ending_event(
                first.view_of(order_id),
                looked_up.order,
                looked_up.confirmed_id,
                self._clock.now(),
            )
            if ended:
                found = replace(found, events=(*found.events, ended))
                first = await self._recorder.derive_in_tx(tx, found)
            await self._recorder.write_in_tx(tx, first)
            recorded = [first]
            row = await store.read_unresolved(tx, order_id)
            unresolved = _describe(row, first.view_of(order_id))
            verdict = classify_lookup(
                unresolved, looked_up.order, looked_up.replaced, capabilities.lookup
            )
            # If another look-up ended or was scheduled meanwhile, this answer is outdated: only its
            # events count.
            is_current = due_at[order_id] == looked_up.row.lookup_due_at
            # What it found is written first; the next look-up gives the command up.
            has_news = bool(first.new_facts.facts)
            is_proved = is_current and not has_news and _is_proved_missing(verdict, unresolved)
            delay = lookup_delay_seconds(verdict, unresolved) if is_current else None
            fact = None
            if is_proved:
                fact = not_delivered_fact(
                    order_id, looked_up.create_id, unresolved, capabilities.unique_order_ids
                )
            if fact:
                recorded.append(await self._give_up(tx, looked_up, fact))
                delay = LOOKUP_PAUSES_SECONDS[0]  # another command may still be unresolved
            elif is_proved:
                await self._queue_again(tx, looked_up)
                delay = None
            if is_current:
                is_absent = verdict in (Verdict.MISSING, Verdict.LOST) and not is_proved
                await store.schedule_lookup(tx, order_id, delay, is_absent)
            await self._recorder.publish(tx, recorded)
        for each in recorded:
            self._recorder.notify_committed(each)
        if delay is not None:
            self._wakeup.wake_after(delay)
        if is_proved:
            self._record_not_delivered(order_id, fact)
        elif is_current:
            await self._act(looked_up, unresolved, verdict)

    async def _give_up(
        self, tx: Tx, looked_up: LookupResult, fact: PlatformFact
    ) -> RecordedAccount:
        recorded = await self._recorder.record_in_tx(
            tx, AccountRecording(looked_up.session.account_ref, (), (fact,))
        )
        await store.clear_unclear(
            tx, looked_up.session.account_ref.account_id, fact.client_order_id
        )
        return recorded

    async def _queue_again(self, tx: Tx, looked_up: LookupResult) -> None:
        """Queues a CREATE that never arrived: it is claimed, checked and marked like a new one."""
        account_ref = looked_up.session.account_ref
        order_id = looked_up.row.order_id
        await PoolTransaction(tx).run(
            [store.unmarking_sent([(account_ref.account_id, looked_up.create_id)])]
        )
        payload = {"seq": looked_up.row.create_seq, "resend": True}
        await outbox.put(
            tx,
            [
                NewRow(
                    queue=Queue.INTENTS,
                    event_type=CREATE,
                    organization_id=account_ref.organization_id,
                    order_key=order_id,
                    payload=payload,
                    lane=account_ref.account_id,
                )
            ],
        )
        await store.queue_behind(tx, order_id)

    def _record_not_delivered(self, order_id: UUID, fact: PlatformFact | None) -> None:
        then = fact.kind if fact else "queued again"
        self._log.warning("command never arrived", order=str(order_id), then=then)
        if fact and fact.kind is FactKind.CANCEL_DROPPED:
            alert_lost_cancel(order_id, self._metrics, self._log)

    async def _act(
        self, looked_up: LookupResult, unresolved: UnresolvedOrder, verdict: Verdict
    ) -> None:
        order_id = looked_up.row.order_id
        account_ref = looked_up.session.account_ref
        if unresolved.is_unwanted and not unresolved.is_cancelling and verdict is not Verdict.LOST:
            self._log.warning("resurrected order cancelled", order=str(order_id))
            await self._append_cancel(
                account_ref.organization_id, account_ref.account_id, order_id, False
            )
        if verdict is Verdict.LOST and unresolved.absent_seconds is None:
            self._alert("order_lost", order_id, "open order unknown to the broker")
        elif verdict is Verdict.UNKNOWN and unresolved.lookups + 1 == ALERT_LOOKUPS:
            self._alert("order_unknown", order_id, "command outcome not found")

    def _alert(self, kind: AlertKind, order_id: UUID, text: str) -> None:
        self._metrics.alert(kind)
        self._log.error(text, order=str(order_id))

    def _cancellable(self) -> list[UUID]:
        """Accounts whose stale orders are cancelled next. One that failed lately may wait for a
        lock until its timeout: each round has one of them, at its end, so that the others wait for
        one at most."""
        sessions = self._leases.sessions
        failed = [each for each in self._failed_accounts if each in sessions]
        self._failed_accounts = failed[1:]
        return [each for each in sessions if each not in failed] + failed[:1]

    async def _cancel_stale(self, stale: Sequence[store.OverdueOrder]) -> None:
        for order in stale:
            if order.account_id in self._failed_accounts:
                continue
            try:
                await self._append_cancel(
                    order.organization_id, order.account_id, order.order_id, True
                )
            except Exception as error:
                self._failed_accounts.append(order.account_id)
                self._log.warning(
                    "stale order not cancelled", order=str(order.order_id), reason=reason_of(error)
                )

    async def _look_up_unanswered(self) -> None:
        up = [account_id for account_id, session in self._leases.sessions.items() if session.is_up]
        if not up:
            return
        async with self._pool.transaction() as tx:
            found = await store.look_up_unanswered(tx, up, ANSWER_SECONDS)
        if found:
            self._wakeup.set()

    async def _derive_again(self, session: BrokerSession, order_ids: frozenset[UUID]) -> None:
        """Derives orders again that change by time alone."""
        async with self._pool.transaction() as tx:
            waited = AccountRecording(session.account_ref, also_locked=order_ids)
            recorded = await self._recorder.record_in_tx(tx, waited)
            await self._recorder.publish(tx, [recorded])
        self._recorder.notify_committed(recorded)

    async def _fail(self, session: BrokerSession, found: Sequence[store.UsedUpRow]) -> None:
        """Fails rows that have no attempt left, and records the facts that end their commands."""
        account_ref = session.account_ref
        async with self._pool.transaction(plans="fresh") as tx:
            await store.lock_unresolved(tx, {row.order_key for row in found})
            rows = await self._fail_locked(tx, account_ref.account_id, {row.id for row in found})
            ends = AccountRecording(account_ref, own=[_ending(row) for row in rows])
            recorded = await self._recorder.record_in_tx(tx, ends)
            sent = [row for row in rows if row.is_sent]
            if sent:
                names = [(row.lane, client_order_id(row.action_id)) for row in sent]
                look_ups = store.looking_up(
                    {row.order_key for row in sent}, LOOKUP_PAUSES_SECONDS[0]
                )
                await PoolTransaction(tx).run([store.setting_unclear(names), look_ups])
            await self._recorder.publish(tx, [recorded])
        self._recorder.notify_committed(recorded)
        if sent:
            self._wakeup.wake_after(LOOKUP_PAUSES_SECONDS[0])
        for row in rows:
            report_failed(Queue.INTENTS, row.event_type, self._metrics, self._log)
            if row.event_type == CANCEL and not row.is_sent:
                alert_lost_cancel(row.order_key, self._metrics, self._log)

    async def _fail_locked(
        self, tx: Tx, account_id: UUID, ids: Collection[int]
    ) -> list[store.UsedUpRow]:
        """Reads the rows again, now under the locks of their orders."""
        limit = self._attempt_limit
        found = await store.used_up(tx, [account_id], limit, CLAIM_SECONDS)
        wanted = [row.id for row in found if row.id in ids]
        failed = await outbox.fail(tx, wanted, limit)
        return [row for row in found if row.id in failed]


def _is_proved_missing(verdict: Verdict, unresolved: UnresolvedOrder) -> bool:
    return verdict is Verdict.MISSING and (unresolved.absent_seconds or 0) >= PROOF_SECONDS


def _describe(row: store.UnresolvedRow, view: OrderView) -> UnresolvedOrder:
    in_doubt = row.pending_replace_seq if view.acknowledged else row.create_seq
    names = UnresolvedCommands.__struct_fields__
    return UnresolvedOrder(
        order_status=view.status,
        is_unwanted=view.is_unwanted,
        acknowledged=view.acknowledged,
        may_grow=view.may_grow,
        is_restored=in_doubt in row.restored_seqs,
        **{name: getattr(row, name) for name in names},
    )


def _ending(row: store.UsedUpRow) -> PlatformFact:
    client_id = client_order_id(row.action_id)
    if row.is_sent:
        return PlatformFact(
            order_id=row.order_key, kind=FactKind.UNCERTAIN, client_order_id=client_id
        )
    return used_up(COMMANDS[row.event_type], row.order_key, client_id, row.last_error)
