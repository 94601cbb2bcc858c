"""Logs and counts what was recorded, after the commit. Writes nothing."""

from trading_intents.orders.ledger.recording import RecordedAccount
from trading_intents.orders.model import OrderStatus
from trading_intents.stats.model import Measure
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import amount_text, maybe_text


def log_recorded(recorded: RecordedAccount, log: Log, metrics: Metrics) -> None:
    """Counts orders and fills, and logs what an operator must know; runs after the commit."""
    labels = (recorded.account_ref.broker, recorded.account_ref.environment)
    if fills := sum(change.before is None for change in recorded.trades):
        metrics.fills.labels(*labels).inc(fills)
    for entry in (entry for order in recorded.orders.values() for entry in order.entries):
        if entry.measure is Measure.ACK_MILLIS:
            metrics.orders.labels(*labels).inc()
        elif (
            entry.measure is Measure.FINISHED
            and entry.key == OrderStatus.REJECTED
            and entry.amount > 0
        ):
            metrics.order_rejects.labels(*labels).inc()
    for entry_row in (
        order.row for order in recorded.orders.values() if order.is_newly_unprotected
    ):
        metrics.alert("unprotected")
        log.error("entry unprotected", account=entry_row.account_id, order=entry_row.order_id)
    for key in recorded.left_out:
        metrics.alert("event_left_out")
        log.error("broker event left out", account=str(recorded.account_ref.account_id), key=key)
    for fact, order_id in recorded.conflicts:
        metrics.alert("conflicting_execution")
        log.error(
            "conflicting execution reported",
            account=str(recorded.account_ref.account_id),
            order=order_id,
            key=fact.key,
            reported=fact.kind.value,
        )
    for row in (change.row for change in recorded.positions if change.is_new_difference):
        metrics.position_differences.inc()
        log.warning(
            "position differs",
            account_id=str(recorded.account_ref.account_id),
            symbol=row.symbol,
            ours=amount_text(row.quantity),
            brokers=maybe_text(row.broker_quantity),
        )
