"""Logs and counts what was recorded, after the commit. Writes nothing."""

from trading_intents.orders.ledger.recording import RecordedAccount
from trading_intents.orders.model import OrderStatus
from trading_intents.stats.model import Measure
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import amount_text, maybe_text


def log_recorded(recorded: RecordedAccount, log: Log, metrics: Metrics) -> None:
    """Counts orders and fills, and logs what an operator must know; runs after the commit."""
    _count(recorded, metrics)
    account_id = str(recorded.account_ref.account_id)
    for order in recorded.orders.values():
        if order.is_newly_unprotected:
            metrics.alert("unprotected")
            log.error("entry unprotected", account=account_id, order=order.row.order_id)
    for key in recorded.left_out:
        metrics.alert("event_left_out")
        log.error("broker event left out", account=account_id, key=key)
    for fact, order_id in recorded.conflicts:
        metrics.alert("conflicting_execution")
        log.error(
            "conflicting execution reported",
            account=account_id,
            order=order_id,
            key=fact.key,
            reported=fact.kind.value,
        )
    for change in recorded.positions:
        if change.is_new_difference:
            metrics.position_differences.inc()
            log.warning(
                "position differs",
                account_id=account_id,
                symbol=change.row.symbol,
                ours=amount_text(change.row.quantity),
                brokers=maybe_text(change.row.broker_quantity),
            )


def _count(recorded: RecordedAccount, metrics: Metrics) -> None:
    broker = recorded.account_ref.broker
    environment = recorded.account_ref.environment
    fills = [change for change in recorded.trades if change.before is None]
    if fills:
        metrics.fills.labels(broker, environment).inc(len(fills))
    for order in recorded.orders.values():
        for count in order.counts:
            if count.measure is Measure.ACK_MILLIS:
                metrics.orders.labels(broker, environment).inc()
            is_end = count.measure is Measure.FINISHED and count.amount > 0
            if is_end and count.key == OrderStatus.REJECTED:
                metrics.order_rejects.labels(broker, environment).inc()
