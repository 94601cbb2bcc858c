"""Logs and counts what was recorded, after the commit. Writes nothing."""

from trading_intents.orders.ledger.recording import RecordedAccount
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import amount_text, maybe_text


def log_recorded(recorded: RecordedAccount, log: Log, metrics: Metrics) -> None:
    """Logs trades and what an operator must know; runs after the commit."""
    published = [change for change in recorded.trades if change.is_published]
    if published:  # one line, which shows the last of them: a line for each would cost a tenth of an order's CPU
        last = published[-1].after
        log.info(
            "trade recorded",
            account=str(recorded.account_ref.account_id),
            trades=len(published),
            order=str(last.order_id),
            side=last.side,
            symbol=last.symbol,
            quantity=amount_text(last.quantity),
            price=amount_text(last.price),
        )
    for key in recorded.left_out:
        metrics.alert("event_left_out")
        log.error("broker event left out", account=str(recorded.account_ref.account_id), key=key)
    for fact, order_id in recorded.conflicts:
        metrics.alert("conflicting_execution")
        log.error(
            "conflicting execution reported",
            account=str(recorded.account_ref.account_id),
            order=None if order_id is None else str(order_id),
            key=fact.key,
            told=fact.kind.value,
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
