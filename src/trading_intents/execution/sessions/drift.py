"""Raises an alert when what must not last lasts: a lease without a session, an order that is
neither sent nor ended."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from trading_intents.execution.sessions.leases import Leases
from trading_intents.execution.sessions.store import count_unknown, list_held, pending_too_old
from trading_intents.outbox.outcomes import reason_of
from trading_intents.storage.database import Pool
from trading_intents.telemetry import AlertKind, Log, Metrics

CHECK_SECONDS = 10.0  # what is found twice in a row has lasted that long
EVENTS: Final[Mapping[AlertKind, str]] = {
    "lease_without_session": "lease without session",
    "pending_too_old": "pending too old",
}


class DriftCheck:
    def __init__(
        self, pool: Pool, leases: Leases, max_age_millis: int, metrics: Metrics, log: Log
    ) -> None:
        self._pool = pool
        self._leases = leases
        self._max_age_millis = max_age_millis
        self._metrics = metrics
        self._log = log
        self._found: set[tuple[AlertKind, UUID]] = set()

    async def run(self) -> None:
        """Alerts of all that the last run found too."""
        async with self._pool.transaction(read_only=True, plans="fresh") as tx:
            held = await list_held(tx, self._leases.worker_id)
            old = await pending_too_old(tx, self._max_age_millis / 1000)
        async with self._pool.transaction(read_only=True, plans="by_key") as tx:
            self._metrics.unknown_orders.set(await count_unknown(tx))
        live = {
            account_id
            for account_id, session in self._leases.sessions.items()
            if not session.has_ended
        }
        found: set[tuple[AlertKind, UUID]] = {
            *(
                ("lease_without_session", row["account_id"])
                for row in held
                if row["account_id"] not in live
            ),
            *(("pending_too_old", row["order_key"]) for row in old),
        }
        for kind, subject in sorted(found & self._found):
            self._metrics.alert(kind)
            self._log.error(EVENTS[kind], subject=str(subject))
        self._found = found

    def log_failed(self, _: str, error: Exception) -> None:
        self._log.warning("drift not checked", reason=reason_of(error))
