"""Looks up unresolved orders at their brokers, cancels stale ones, flags entries without enough
exits, and fails outbox rows without an attempt left together with their orders."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import msgspec

from trading_intents.brokers import port
from trading_intents.clock import Clock
from trading_intents.execution import store
from trading_intents.execution.dispatcher import SendLimits, alert_lost_cancel
from trading_intents.execution.model import (
    ALERT_LOOKUPS,
    ANSWER_SECONDS,
    COMMANDS,
    CREATE,
    LOOKUP_PAUSES_SECONDS,
    PROOF_SECONDS,
    UnresolvedOrder,
    Verdict,
    classify_lookup,
    lookup_delay_seconds,
    not_delivered_fact,
    used_up,
)
from trading_intents.execution.recorder import Recorder
from trading_intents.execution.sessions.leases import Leases
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.ids import OrganizationId, id_text
from trading_intents.loops import Wakeup, repeat, start_loop, stop_tasks
from trading_intents.orders.facts import FactKind, client_order_id
from trading_intents.orders.ledger.booking import UNCOVERED_TIME
from trading_intents.orders.ledger.matching import AccountRecording, PlatformFact
from trading_intents.orders.ledger.recording import RecordedAccount
from trading_intents.orders.model import OrderView
from trading_intents.outbox import queue as outbox
from trading_intents.outbox.model import CLAIM_SECONDS, NewRow, Queue
from trading_intents.outbox.outcomes import reason_of, report_failed
from trading_intents.storage.database import Pool, Row, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.telemetry import AlertKind, Log, Metrics

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

    row: Row
    session: BrokerSession
    capabilities: port.Capabilities
    order: port.Lookup
    replaced: port.Lookup | None
    entry: port.Lookup | None  # of a leg that the broker has not named yet

    @property
    def create_id(self) -> str:
        return client_order_id(self.row["create_action_id"])

    @property
    def events(self) -> list[port.BrokerEvent]:
        answers = self.order, self.replaced, self.entry
        found = [each for each in answers if isinstance(each, port.OrderSnapshot)]
        return [event for each in found for event in each.events]


class Reconciler:
    def __init__(
        self,
        pool: Pool,
        leases: Leases,
        recorder: Recorder,
        wakeup: Wakeup,
        limits: SendLimits,
        append_cancel: AppendCancel,
        clock: Clock,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._pool = pool
        self._leases = leases
        self._recorder = recorder
        self._wakeup = wakeup
        self._limits = limits
        self._append_cancel = append_cancel
        self._clock = clock
        self._metrics = metrics
        self._log = log
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

    def _log_failed(self, work: str, error: Exception) -> None:
        self._log.warning("execution watch failed", work=work, reason=reason_of(error))

    async def _poll(self) -> None:
        """Reads in one transaction which look-ups are due, and once a second stale orders and used
        up rows. Look-ups are limited by account, so that a slow broker delays no other account."""
        sessions = self._leases.sessions
        now = self._clock.monotonic()
        free = [
            key
            for key, session in sessions.items()
            if session.is_up and self._lookups[key] < MAX_LOOKUPS
        ]
        is_second = now - self._polled_seconds >= POLL_SECONDS - POLL_SLACK_SECONDS
        if not sessions or not (free or is_second):
            return
        stale = list[Row]()
        used_up_rows = list[Row]()
        uncovered = list[Row]()
        # A look-up that ends while this is read may be read as still due.
        busy = frozenset(self._looking)
        async with self._pool.transaction(read_only=True, plans="by_key") as tx:
            due = await store.due_lookups(tx, free, MAX_LOOKUPS) if free else []
            if is_second:
                self._polled_seconds = now
                used_up_rows = await store.used_up(
                    tx, list(sessions), self._limits.attempt_limit, CLAIM_SECONDS
                )
                uncovered = await store.uncovered_entries(
                    tx, list(sessions), UNCOVERED_TIME.total_seconds()
                )
                if self._cancelling is None or self._cancelling.done():
                    stale = await store.stale_orders(
                        tx, self._cancellable(), CANCEL_AGAIN_SECONDS, MAX_STALE
                    )
        self._look_up([row for row in due if row["order_id"] not in busy])
        if stale:
            self._cancelling = asyncio.create_task(self._cancel_stale(stale))
        for account_id in sorted(
            {row["lane"] for row in used_up_rows} | {row["account_id"] for row in uncovered}
        ):
            session = sessions.get(account_id)
            failing = [row for row in used_up_rows if row["lane"] == account_id]
            flagged = frozenset(
                row["order_id"] for row in uncovered if row["account_id"] == account_id
            )
            try:
                if session and failing:
                    await self._fail(session, failing)
                if session and flagged:
                    await self._derive_again(session, flagged)
            except (
                Exception
            ) as error:  # such as a lock that is held: the other accounts' rows are failed
                self._log_failed("fail", error)

    def _look_up(self, rows: Sequence[Row]) -> None:
        for row in rows:
            order_id = row["order_id"]
            account_id = row["account_id"]
            session = self._leases.sessions.get(account_id)
            if (
                order_id in self._looking
                or session is None
                or self._lookups[account_id] >= MAX_LOOKUPS
            ):
                continue
            self._lookups[account_id] += 1
            task = self._looking[order_id] = asyncio.create_task(self._investigate(row, session))
            task.add_done_callback(partial(self._on_looked_up, order_id, account_id))

    def _on_looked_up(self, order_id: UUID, account_id: UUID, _: asyncio.Task[None]) -> None:
        del self._looking[order_id]
        self._lookups[account_id] -= 1
        if not self._lookups[account_id]:
            del self._lookups[account_id]
        self._wakeup.set()

    async def _investigate(self, row: Row, session: BrokerSession) -> None:
        assert session.integration, "its session was up"
        try:
            order = await session.look_up(
                client_order_id(row["confirmed_action_id"]), row["external_order_id"]
            )
            replaced = await session.look_up(row["replace_id"], None) if row["replace_id"] else None
            entry = None
            if (
                row["is_entry_acknowledged"]
                and row["external_order_id"] is None
                and isinstance(order, port.Absent)
            ):
                entry = await session.look_up(
                    client_order_id(row["entry_action_id"]), row["entry_external_id"]
                )
            self._metrics.execution_lookups.labels(
                FOUND.get(type(order), FOUND[port.LookupUnknown])
            ).inc()
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
                "look-up not written", order=str(row["order_id"]), reason=reason_of(error)
            )
            await asyncio.sleep(POLL_SECONDS)

    async def _conclude(self, looked_up: LookupResult) -> None:
        """Records what was found; what is still unresolved then decides whether and when to look
        again."""
        order_id = looked_up.row["order_id"]
        session = looked_up.session
        capabilities = looked_up.capabilities
        async with self._pool.transaction(plans="by_key") as tx:
            order = (await store.lock_unresolved(tx, [order_id]))[order_id]
            found = AccountRecording(
                session.account_ref, looked_up.events, also_locked=frozenset({order_id})
            )
            recorded = [await self._recorder.record_in_tx(tx, found)]
            view = recorded[0].orders[id_text(order_id)].view
            unresolved = _read_unresolved(await store.read_unresolved(tx, order_id), view)
            verdict = classify_lookup(
                unresolved, looked_up.order, looked_up.replaced, capabilities.lookup
            )
            # If another look-up ended or was scheduled meanwhile, this answer is outdated: only its
            # events count.
            is_current = order["lookup_due_at"] == looked_up.row["lookup_due_at"]
            is_proved = (
                is_current
                and verdict is Verdict.MISSING
                and (unresolved.absent_seconds or 0) >= PROOF_SECONDS
            )
            delay = lookup_delay_seconds(verdict, unresolved) if is_current else None
            if is_proved:
                fact = not_delivered_fact(
                    order_id, looked_up.create_id, unresolved, capabilities.unique_order_ids
                )
                if fact:
                    recorded.append(await self._give_up(tx, looked_up, fact))
                else:
                    await self._queue_again(tx, looked_up)
                # Another command may still be unresolved.
                delay = LOOKUP_PAUSES_SECONDS[0] if fact else None
            if is_current:
                is_absent = verdict in (Verdict.MISSING, Verdict.LOST) and not is_proved
                await store.schedule_lookup(tx, order_id, delay, is_absent)
            for each in recorded:
                await self._recorder.publish(tx, each)
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
        order_id = looked_up.row["order_id"]
        await PoolTransaction(tx).run(
            [store.unmarking_sent([(account_ref.account_id, looked_up.create_id)])]
        )
        payload = {"seq": looked_up.row["create_seq"], "resend": True}
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
        self._log.warning(
            "command never arrived", order=str(order_id), then=fact.kind if fact else "queued again"
        )
        if fact and fact.kind is FactKind.CANCEL_DROPPED:
            alert_lost_cancel(order_id, self._metrics, self._log)

    async def _act(
        self, looked_up: LookupResult, unresolved: UnresolvedOrder, verdict: Verdict
    ) -> None:
        order_id = looked_up.row["order_id"]
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
        failed = [each for each in self._failed_accounts if each in self._leases.sessions]
        self._failed_accounts = failed[1:]
        return [*(each for each in self._leases.sessions if each not in failed), *failed[:1]]

    async def _cancel_stale(self, rows: Sequence[Row]) -> None:
        for row in rows:
            account_id = row["account_id"]
            order_id = row["order_id"]
            if account_id in self._failed_accounts:
                continue
            try:
                await self._append_cancel(
                    OrganizationId(row["organization_id"]), account_id, order_id, True
                )
            except Exception as error:
                self._failed_accounts.append(account_id)
                self._log.warning(
                    "stale order not cancelled", order=str(order_id), reason=reason_of(error)
                )

    async def _look_up_unanswered(self) -> None:
        up = [account_id for account_id, session in self._leases.sessions.items() if session.is_up]
        if not up:
            return
        async with self._pool.transaction(plans="by_key") as tx:
            found = await store.look_up_unanswered(tx, up, ANSWER_SECONDS)
        if found:
            self._wakeup.set()

    async def _derive_again(self, session: BrokerSession, order_ids: frozenset[UUID]) -> None:
        """Derives orders again that change by time alone."""
        async with self._pool.transaction(plans="by_key") as tx:
            waited = AccountRecording(session.account_ref, also_locked=order_ids)
            recorded = await self._recorder.record_in_tx(tx, waited)
            await self._recorder.publish(tx, recorded)
        self._recorder.notify_committed(recorded)

    async def _fail(self, session: BrokerSession, found: Sequence[Row]) -> None:
        """Fails rows that have no attempt left, and records the facts that end their commands."""
        account_ref = session.account_ref
        limit = self._limits.attempt_limit
        ids = {row["id"] for row in found}
        async with self._pool.transaction(plans="fresh") as tx:
            await store.lock_unresolved(tx, {row["order_key"] for row in found})
            # Read again, now under the orders' locks.
            rows = [
                r
                for r in await store.used_up(tx, [account_ref.account_id], limit, CLAIM_SECONDS)
                if r["id"] in ids
            ]
            failed = await outbox.fail(tx, [row["id"] for row in rows], limit)
            rows = [row for row in rows if row["id"] in failed]
            sent = [row for row in rows if row["is_sent"]]
            ends = AccountRecording(account_ref, (), [_ending(row) for row in rows])
            recorded = await self._recorder.record_in_tx(tx, ends)
            if sent:
                unclear = store.setting_unclear(
                    [(account_ref.account_id, client_order_id(row["action_id"])) for row in sent]
                )
                look_ups = store.looking_up(
                    [row["order_key"] for row in sent], LOOKUP_PAUSES_SECONDS[0]
                )
                await PoolTransaction(tx).run([unclear, look_ups])
            await self._recorder.publish(tx, recorded)
        self._recorder.notify_committed(recorded)
        if sent:
            self._wakeup.wake_after(LOOKUP_PAUSES_SECONDS[0])
        for row in rows:
            report_failed(Queue.INTENTS, row["event_type"], self._metrics, self._log)
            if row["event_type"] == "intent.cancel" and not row["is_sent"]:
                alert_lost_cancel(row["order_key"], self._metrics, self._log)


def _read_unresolved(row: Row, view: OrderView) -> UnresolvedOrder:
    in_doubt = row["pending_replace_seq" if view.acknowledged else "create_seq"]
    derived = {
        "order_status": view.status,
        "is_unwanted": view.is_unwanted,
        "acknowledged": view.acknowledged,
    }
    return msgspec.convert(
        {**row, **derived, "is_restored": in_doubt in row["restored_seqs"]}, UnresolvedOrder
    )


def _ending(row: Row) -> PlatformFact:
    command = COMMANDS[row["event_type"]]
    client_id = client_order_id(row["action_id"])
    if row["is_sent"]:
        return PlatformFact(
            order_id=row["order_key"], kind=FactKind.UNCERTAIN, client_order_id=client_id
        )
    return used_up(command, row["order_key"], client_id, row["last_error"])
