"""Renews, takes, balances and gives back the leases of this process. An account whose lease it
holds has a session."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from trading_intents.accounts.model import ConnectionState
from trading_intents.execution.claims import Lease
from trading_intents.execution.sessions import store
from trading_intents.execution.sessions.claimable import Claimable
from trading_intents.execution.sessions.event_reader import SessionDependencies
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.execution.sessions.store import LEASE_SECONDS, HeldLease
from trading_intents.execution.store import LeftCommand
from trading_intents.ids import IdMaker, id_text
from trading_intents.loops import Wakeup, repeat, start_loop, stop_tasks
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.outbox.model import HANDLER_SECONDS
from trading_intents.outbox.outcomes import log_failures, reason_of
from trading_intents.storage.database import Tx
from trading_intents.trading import Environment

RENEW_SECONDS = 1.5
BALANCE_SECONDS = 3.0  # at most; every notified change wakes it
RETRY_SECONDS = 0.2
GUARD_SECONDS = 0.5  # a lease that expires sooner is not used for claims
MIN_PAUSE_SECONDS = 0.05
SEEN_SECONDS = 10.0
WRITE_PAUSE_SECONDS = 0.02  # so that changes of many sessions become one statement
MAX_TAKEN = 500  # at a time
MAX_GIVEN = 100  # at a time, to workers that have fewer
BROKERLESS_ROWS = 100  # of an account
BROKERLESS_SECONDS = 1.0  # between looks for rows that need no broker
MAX_ACCOUNTS = 500  # in one claim
CHANNEL = "leases"
CANCELS = "candidate.action_type = 'CANCEL'"


class Leases:
    """Each balance reads this worker's leases from the table and makes the sessions equal to them;
    nothing else opens or closes one, but for the clock: when the leases may have expired, all
    sessions end, and the worker starts over under a new id, as after a crash. `claim_wakeup` wakes
    the dispatcher when there may be more to claim."""

    def __init__(
        self,
        dependencies: SessionDependencies,
        make_id: IdMaker,
        max_age_millis: int,
        claim_wakeup: Wakeup,
    ) -> None:
        self.sessions: dict[UUID, BrokerSession] = {}
        self._dependencies = dependencies
        self._make_id = make_id
        self._claim_wakeup = claim_wakeup
        self._brokerless = store.needs_no_broker(max_age_millis)
        self.worker_id = make_id()
        self._next_id = make_id()
        # By the process's clock; in the database, by which others go, the leases end later.
        self.valid_until = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._rotation = 0  # of the claims
        self._wakeup = asyncio.Event()
        self._reported: dict[UUID, str] = {}
        self._seen_at = self._brokerless_at = dependencies.clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        log_failed = log_failures(self._dependencies.log, "leases not kept")
        renewals = repeat(self._renew, RETRY_SECONDS, log_failed)
        balances = repeat(self._balance, RETRY_SECONDS, log_failed, self._wakeup)
        self._tasks = [start_loop(work) for work in (renewals, balances, self._write_states())]

    def wake(self) -> None:
        """Accounts or leases may have changed."""
        self._wakeup.set()

    def has_account(self, account_id: str) -> bool:
        return UUID(account_id) in self.sessions

    def wake_lanes(self, *account_ids: str) -> None:
        """There may be new rows: of these accounts, or of any."""
        for account_id in map(UUID, account_ids) if account_ids else [*self.sessions]:
            self.sessions[account_id].lane.is_woken = True
        self._claim_wakeup.wake()

    def in_flight(self) -> set[int]:
        """The commands that were claimed and are not recorded yet."""
        return Claimable([*self.sessions.values()]).held

    def claim_again(self, left: Sequence[LeftCommand]) -> None:
        """Marked commands that nobody awaits are claimed, and thus looked up."""
        now = self._dependencies.clock.monotonic()
        for each in left:
            session = self.sessions.get(each.account_id)
            if session and each.id not in session.in_flight:
                session.lane.put_back(each.id, id_text(each.order_id), now)
                self._claim_wakeup.wake()

    def claimable(self) -> list[Claimable]:
        """Gives what may be claimed, by what each session can send; rows that need no broker once a
        second, and first. The others rotate, since a claim may leave no room for the next."""
        now = self._dependencies.clock.monotonic()
        if now > self.valid_until - GUARD_SECONDS:
            return []
        submits = list[BrokerSession]()
        cancels = list[BrokerSession]()
        brokerless = list[BrokerSession]()
        for session in self.sessions.values():
            if session.is_leaving:
                continue
            if not session.is_up:
                brokerless.append(session)
            elif session.free_slots > 0 and not session.may_submit():
                cancels.append(session)
            elif session.free_slots > 0 and session.lane.is_due(now):
                submits.append(session)
        found = [Claimable(part) for part in _batched(submits, MAX_ACCOUNTS)]
        found += [Claimable(part, CANCELS) for part in _batched(cancels, MAX_ACCOUNTS)]
        self._rotation = (self._rotation + 1) % max(1, len(found))
        found = found[self._rotation :] + found[: self._rotation]
        brokerless += cancels
        if brokerless and now - self._brokerless_at >= BROKERLESS_SECONDS:
            self._brokerless_at = now
            parts = _batched(brokerless, MAX_ACCOUNTS)
            found = [Claimable(part, self._brokerless, BROKERLESS_ROWS) for part in parts] + found
        return found

    async def close(self, limit_seconds: float) -> None:
        """Closes all sessions and retires the worker, which frees all its leases at once."""
        await stop_tasks(*self._tasks)
        if self._expiry:
            self._expiry.cancel()
        sessions = list(self.sessions.values())
        self.sessions = {}
        await asyncio.gather(
            *(session.close(limit_seconds) for session in sessions), *self._closing
        )
        try:
            async with self._dependencies.pool.transaction() as tx:
                await store.retire(tx, self.worker_id)
        except Exception as error:
            self._dependencies.log.warning("leases not given back", reason=reason_of(error))
        self._dependencies.signals.notify(CHANNEL)

    async def _renew(self) -> float:
        """Renews the worker, or enlists it under its next id if its leases may have expired. Gives
        the seconds until the next renewal. A commit that is slow is no failure: it counts from
        before it began."""
        clock = self._dependencies.clock
        before_seconds = clock.monotonic()
        async with self._dependencies.pool.transaction() as tx:
            is_alive = before_seconds < self.valid_until and await store.renew(tx, self.worker_id)
            if not is_alive:
                self._drop_all()
                await store.enlist(tx, self._next_id, self.worker_id)
        if not is_alive:
            self.worker_id = self._next_id
            self._next_id = self._make_id()
            self.wake()
        elif clock.monotonic() >= self.valid_until:
            return 0.0  # too late: all sessions have ended
        self.valid_until = before_seconds + LEASE_SECONDS
        if self._expiry:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(
            self.valid_until - clock.monotonic(), self._drop_all
        )
        return max(0.0, before_seconds + RENEW_SECONDS - clock.monotonic())

    def _drop_all(self) -> None:
        for session in list(self.sessions.values()):
            self._close(session)
        self._dependencies.states_changed.set()

    async def _balance(self) -> float:
        """Takes or gives back leases, and makes the sessions equal to those that it holds then.
        Gives the seconds until there may be something to do again."""
        worker_id = self.worker_id
        if not self._is_valid(worker_id):
            return RETRY_SECONDS
        async with self._dependencies.pool.transaction(plans="fresh") as tx:
            await store.remove_expired(tx)
            has_freed = await self._give_back(tx, worker_id)
            survey = await store.survey(tx, worker_id)
            missing = math.ceil(survey.accounts / max(1, survey.workers)) - survey.held
            taken = await store.take(tx, worker_id, min(missing, MAX_TAKEN)) if missing > 0 else []
            held = await store.list_held(tx, worker_id)
            await self._write_seen(tx)
        if has_freed:
            self._dependencies.signals.notify(CHANNEL)
        if not self._is_valid(worker_id):
            return 0.0
        self._match(held, taken or ())
        self._let_go(min(MAX_GIVEN, -missing))
        if taken is None or len(taken) == MAX_TAKEN:
            return MIN_PAUSE_SECONDS
        return min(BALANCE_SECONDS, max(RETRY_SECONDS, survey.expires_seconds or 0.0))

    async def _give_back(self, tx: Tx, worker_id: UUID) -> bool:
        """Gives back the leases of sessions that are done, and says whether there were any."""
        ended = []
        closed = []
        for account_id, session in self.sessions.items():
            if session.is_done:
                ended.append(account_id)
            if session.is_closed:
                closed.append(account_id)
        if ended:
            await store.give_back(tx, worker_id, ended)
        if closed:
            await store.forget_closed(tx, worker_id, closed)
        return bool(ended)

    def _let_go(self, count: int) -> None:
        """Ends sessions, so that this many end in all, those of before among them."""
        staying = [session for session in self.sessions.values() if not session.is_leaving]
        leaving = len(self.sessions) - len(staying)
        for session in staying[: max(0, count - leaving)]:
            session.is_leaving = True
            self._end(session, HANDLER_SECONDS)

    def _is_valid(self, worker_id: UUID) -> bool:
        """Whether what was read of this worker's leases still says what may be sent."""
        return (
            worker_id == self.worker_id and self._dependencies.clock.monotonic() < self.valid_until
        )

    def _match(self, held: Sequence[HeldLease], first: Sequence[UUID]) -> None:
        """Makes the sessions equal to the leases; opens those of the accounts in `first` first."""
        leases = {lease.account_id: lease for lease in held}
        for account_id, session in list(self.sessions.items()):
            if account_id not in leases or leases[account_id].token != session.lease.token:
                self._close(session)
        for account_id in dict.fromkeys([*first, *leases]):
            lease = leases[account_id]
            opened = self.sessions.get(account_id)
            if opened is None:
                self._open(lease)
            elif opened.generation not in (None, lease.link_generation):
                opened.refresh()
        self._reported = {lease.account_id: lease.connection for lease in held}
        self._dependencies.states_changed.set()

    async def _write_seen(self, tx: Tx) -> None:
        now = self._dependencies.clock.monotonic()
        if now - self._seen_at < SEEN_SECONDS:
            return
        self._seen_at = now
        active = [
            session for session in self.sessions.values() if session.is_up and session.has_events
        ]
        if active:
            await store.write_seen(
                tx, self.worker_id, [session.account_ref.account_id for session in active]
            )
        for session in active:
            session.has_events = False

    def _open(self, lease: HeldLease) -> None:
        integration = self._dependencies.brokers.integration(lease.broker)
        account_ref = AccountRef(
            account_id=lease.account_id,
            organization_id=lease.organization_id,
            environment=Environment(lease.environment),
            broker=lease.broker,
            bust_reopens=integration is None or integration.capabilities.bust_reopens,
        )
        held = Lease(self.worker_id, lease.account_id, lease.token)
        session = BrokerSession(account_ref, held, self._dependencies)
        self.sessions[lease.account_id] = session
        session.start()

    def _close(self, session: BrokerSession) -> None:
        """Ends a session whose lease is not ours, or may not be."""
        del self.sessions[session.account_ref.account_id]
        self._end(session, 0)

    def _end(self, session: BrokerSession, limit_seconds: float) -> None:
        task = asyncio.create_task(session.close(limit_seconds))
        self._closing.add(task)
        task.add_done_callback(self._on_closed)

    def _on_closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        self.wake()

    async def _write_states(self) -> None:
        """Writes the accounts' `connection` whenever a session's state changes."""
        while True:
            await self._dependencies.states_changed.wait()
            self._dependencies.states_changed.clear()
            self._claim_wakeup.wake()
            await asyncio.sleep(WRITE_PAUSE_SECONDS)
            states = {account_id: session.state for account_id, session in self.sessions.items()}
            self._measure(states)
            changed = {
                key: state for key, state in states.items() if self._reported.get(key) != state
            }
            if not changed:
                continue
            try:
                async with self._dependencies.pool.transaction() as tx:
                    await store.show_connections(tx, self.worker_id, changed)
            except Exception as error:
                self._dependencies.log.warning("connections not shown", reason=reason_of(error))
                self._dependencies.states_changed.set()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._reported |= changed

    def _measure(self, states: Mapping[UUID, ConnectionState]) -> None:
        self._dependencies.metrics.execution_leases.set(len(states))
        counts = Counter(states.values())
        for state in ConnectionState:
            self._dependencies.metrics.execution_links.labels(state).set(counts[state])
        self._dependencies.metrics.execution_breakers.set(
            sum(each.breaker.is_open for each in self.sessions.values())
        )


def _batched(sessions: Sequence[BrokerSession], size: int) -> list[Sequence[BrokerSession]]:
    return [sessions[start : start + size] for start in range(0, len(sessions), size)]
