"""Raises an alert when what must not last lasts: a lease without a session, an order that is
neither sent nor ended."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from trading_intents.execution.sessions.leases import Leases
from trading_intents.execution.sessions.store import count_doubtful, list_held, pending_too_old
from trading_intents.outbox.worker import WorkerContext
from trading_intents.telemetry import AlertKind

CHECK_SECONDS = 10.0  # what is found twice in a row has lasted that long
EVENTS: Final[Mapping[AlertKind, str]] = {
    "lease_without_session": "lease without session",
    "pending_too_old": "pending too old",
}


class DriftCheck:
    def __init__(self, context: WorkerContext, leases: Leases, max_age_millis: int) -> None:
        self._pool = context.pool
        self._metrics = context.metrics
        self._log = context.log
        self._leases = leases
        self._max_age_millis = max_age_millis
        self._found: set[tuple[AlertKind, UUID]] = set()

    async def run(self) -> None:
        """Alerts of all that the last run found too."""
        async with self._pool.transaction(read_only=True, plans="fresh") as tx:
            held = await list_held(tx, self._leases.worker_id)
            old = await pending_too_old(tx, self._max_age_millis / 1000)
        async with self._pool.transaction(read_only=True) as tx:
            doubtful = await count_doubtful(tx)
        self._metrics.unknown_orders.set(doubtful.unknown)
        self._metrics.lost_orders.set(doubtful.lost)
        found: set[tuple[AlertKind, UUID]] = set()
        for lease in held:
            session = self._leases.sessions.get(lease.account_id)
            if session is None or session.has_ended:
                found.add(("lease_without_session", lease.account_id))
        for order_id in old:
            found.add(("pending_too_old", order_id))
        for kind, subject in sorted(found & self._found):
            self._metrics.alert(kind)
            self._log.error(EVENTS[kind], subject=str(subject))
        self._found = found
