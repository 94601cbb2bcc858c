"""Renews, takes, balances and gives back the leases of this process. An account whose lease it holds has a session."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from trading_intents.accounts.model import ConnectionState
from trading_intents.clock import Wakeup, repeat, start_loop
from trading_intents.errors import OutcomeUnknown
from trading_intents.execution.sessions import store
from trading_intents.execution.sessions.event_reader import SessionDependencies
from trading_intents.execution.sessions.session import BrokerSession
from trading_intents.execution.sessions.store import LEASE_SECONDS
from trading_intents.ids import IdMaker, OrganizationId
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.outbox.model import HANDLER_SECONDS
from trading_intents.outbox.settling import reason_of
from trading_intents.storage.database import Row, Tx
from trading_intents.trading import Environment

RENEW_SECONDS = 1.5
RENEW_LIMIT_SECONDS = 1.0
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
CANCELS = "candidate.event_type = 'intent.cancel'"


@dataclass(frozen=True, slots=True)
class Claimable:
    """Accounts with their free slots and their leases' tokens. `where` is our own SQL about the row `candidate`."""

    free_slots: Mapping[str, int]
    lease_tokens: Mapping[str, int]
    where: str


class Leases:
    """`claim_wakeup` wakes the dispatcher when there may be more to claim."""

    def __init__(
        self, dependencies: SessionDependencies, make_id: IdMaker, max_age_millis: int, claim_wakeup: Wakeup
    ) -> None:
        self.links: dict[UUID, BrokerSession] = {}
        self._dependencies, self._make_id, self._claim_wakeup = dependencies, make_id, claim_wakeup
        self._brokerless = store.needs_no_broker(max_age_millis)
        self.worker_id = make_id()
        self._valid_until = 0.0
        self._wakeup = asyncio.Event()
        self._reported: dict[UUID, ConnectionState] = {}
        self._seen_at = self._brokerless_at = dependencies.clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: dict[asyncio.Task[None], UUID] = {}  # with their accounts
        self._is_closed = False
        self._is_unsure = False  # a commit was not answered: the leases may be others than the sessions

    def start(self) -> None:
        balance = repeat(self._balance, RETRY_SECONDS, self._on_unbalanced, self._wakeup)
        self._tasks = [start_loop(work) for work in (self._renew(), balance, self._write_states())]

    def wake(self) -> None:
        """Accounts or leases may have changed."""
        self._wakeup.set()

    def claimable(self) -> list[Claimable]:
        """What may be claimed now, by what each session can send; rows that need no broker once a second."""
        now = self._dependencies.clock.monotonic()
        if now > self._valid_until - GUARD_SECONDS:
            return []
        submits, cancels, brokerless = list[BrokerSession](), list[BrokerSession](), list[BrokerSession]()
        for link in self.links.values():
            if not link.is_up:
                brokerless.append(link)
            elif link.free_slots > 0:
                (submits if link.may_submit() else cancels).append(link)
        found = [_claimable(part) for part in _batched(submits, MAX_ACCOUNTS)]
        found += [_claimable(part, CANCELS) for part in _batched(cancels, MAX_ACCOUNTS)]
        brokerless += cancels
        if brokerless and now - self._brokerless_at >= BROKERLESS_SECONDS:
            self._brokerless_at = now
            found += [
                _claimable(part, self._brokerless, BROKERLESS_ROWS) for part in _batched(brokerless, MAX_ACCOUNTS)
            ]
        return found

    async def close(self, limit_seconds: float) -> None:
        """Closes all sessions and retires the worker, which frees all its leases at once."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        links, self.links = list(self.links.values()), {}
        await asyncio.gather(*(link.close(limit_seconds) for link in links), *self._closing)
        try:
            async with self._dependencies.pool.transaction() as tx:
                await store.retire(tx, self.worker_id)
        except Exception as error:
            self._dependencies.log.warning("leases not given back", reason=reason_of(error))
        self._dependencies.signals.notify(CHANNEL)

    async def _renew(self) -> None:
        while True:
            before_seconds = self._dependencies.clock.monotonic()
            try:
                async with asyncio.timeout(RENEW_LIMIT_SECONDS), self._dependencies.pool.transaction() as tx:
                    is_alive = await store.renew(tx, self.worker_id)
                    if not is_alive:
                        # Expired, or never enlisted. Take a new worker id: others may hold leases under the old one.
                        worker_id = self._make_id()
                        await store.enlist(tx, worker_id)
            except Exception as error:
                self._dependencies.log.warning("leases not renewed", reason=reason_of(error))
                if self._dependencies.clock.monotonic() > self._valid_until:
                    self._drop_all()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not is_alive:
                self._drop_all()
                self.worker_id = worker_id
            self._valid_until = before_seconds + LEASE_SECONDS
            if not is_alive:
                self.wake()
            await asyncio.sleep(RENEW_SECONDS)

    def _drop_all(self) -> None:
        for link in list(self.links.values()):
            self._close(link, give_back=False)

    def _on_unbalanced(self, _: str, error: Exception) -> None:
        self._is_unsure |= isinstance(error, OutcomeUnknown)
        self._dependencies.log.warning("leases not balanced", reason=reason_of(error))

    async def _balance(self) -> float:
        """Takes or gives back leases. Gives the seconds until there may be something to do again."""
        if self._dependencies.clock.monotonic() >= self._valid_until:
            return RETRY_SECONDS
        worker_id = self.worker_id
        async with self._dependencies.pool.transaction(plans="fresh") as tx:
            lost = await self._find_lost(tx) if self._is_unsure else set[UUID]()
            seen = await store.survey(tx)
            missing = math.ceil(seen["accounts"] / max(1, seen["workers"])) - len(self.links) + len(lost)
            taken = await store.take(tx, worker_id, min(missing, MAX_TAKEN)) if missing > 0 else []
            changed = await store.changed_links(tx, worker_id)
            closed = [account_id for account_id, link in self.links.items() if link.is_closed]
            forgotten = await store.forget_closed(tx, worker_id, closed) if closed else []
            await self._mark_seen(tx)
        if worker_id != self.worker_id:
            return 0.0
        for account_id in lost.union(forgotten):
            self._close(self.links[account_id], give_back=False)
        for row in taken or ():  # after that: what is taken has no session, whatever it had
            self._open(row)
        for account_id in self.links if self._is_unsure else changed:
            if link := self.links.get(account_id):
                link.refresh()
        self._is_unsure = False
        for link in list(self.links.values())[: min(MAX_GIVEN, max(0, -missing))]:
            self._close(link, give_back=True)
        self._dependencies.metrics.execution_leases.set(len(self.links))
        if taken is None or len(taken) == MAX_TAKEN:
            return MIN_PAUSE_SECONDS
        return min(BALANCE_SECONDS, max(MIN_PAUSE_SECONDS, seen["expires_seconds"] or 0.0))

    async def _find_lost(self, tx: Tx) -> set[UUID]:
        """Frees leases that have no session, which may be taken then, and gives the sessions that have no lease."""
        known = [*self.links, *self._closing.values()]
        return self.links.keys() - await store.keep_leases(tx, self.worker_id, known)

    async def _mark_seen(self, tx: Tx) -> None:
        now = self._dependencies.clock.monotonic()
        if now - self._seen_at < SEEN_SECONDS:
            return
        self._seen_at = now
        active = [link for link in self.links.values() if link.is_up and link.has_events]
        if active:
            await store.mark_seen(tx, self.worker_id, [link.account_ref.account_id for link in active])
        for link in active:
            link.has_events = False

    def _open(self, row: Row) -> None:
        account_ref = AccountRef(
            row["id"], OrganizationId(row["organization_id"]), Environment(row["environment"]), row["broker"]
        )
        link = self.links[account_ref.account_id] = BrokerSession(account_ref, row["token"], self._dependencies)
        link.start()
        self._dependencies.states_changed.set()

    def _close(self, link: BrokerSession, give_back: bool) -> None:
        """Ends claims for the session at once; closes it and gives its lease back when its calls are over."""
        account_id, worker_id = link.account_ref.account_id, self.worker_id
        del self.links[account_id]
        self._reported.pop(account_id, None)

        async def close() -> None:
            await link.close(HANDLER_SECONDS if give_back else 0)
            if give_back:
                await self._give_back(account_id, worker_id)

        task = asyncio.create_task(close())
        self._closing[task] = account_id
        task.add_done_callback(self._closing.pop)

    async def _give_back(self, account_id: UUID, worker_id: UUID) -> None:
        """Retries until it is done: no worker could work an account whose lease stays held. `close` frees it too."""
        while worker_id == self.worker_id and not self._is_closed:
            try:
                async with self._dependencies.pool.transaction() as tx:
                    await store.give_back(tx, worker_id, account_id)
            except Exception as error:
                self._dependencies.log.warning("lease not given back", reason=reason_of(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        self._dependencies.signals.notify(CHANNEL)

    async def _write_states(self) -> None:
        """Writes the accounts' `connection` whenever a session's state changes."""
        while True:
            await self._dependencies.states_changed.wait()
            self._dependencies.states_changed.clear()
            self._claim_wakeup.wake()
            await asyncio.sleep(WRITE_PAUSE_SECONDS)
            states = {account_id: link.state for account_id, link in self.links.items()}
            self._measure(states)
            changed = {
                account_id: state for account_id, state in states.items() if self._reported.get(account_id) != state
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
        counts = Counter(states.values())
        for state in ConnectionState:
            self._dependencies.metrics.execution_links.labels(state).set(counts[state])
        self._dependencies.metrics.execution_breakers.set(sum(link.breaker.is_open for link in self.links.values()))


def _claimable(links: Sequence[BrokerSession], where: str = "true", slots: int | None = None) -> Claimable:
    """`slots` replaces the sessions' free slots for rows that need no broker."""
    return Claimable(
        {link.account_text: slots or link.free_slots for link in links},
        {link.account_text: link.token for link in links},
        where,
    )


def _batched(links: Sequence[BrokerSession], size: int) -> list[Sequence[BrokerSession]]:
    return [links[start : start + size] for start in range(0, len(links), size)]
