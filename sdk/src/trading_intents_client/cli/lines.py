"""An event as one line of text, and its time."""

from datetime import UTC, datetime

from trading_intents_client import (
    ActionEvent,
    BalanceEvent,
    Event,
    GapEvent,
    HaltEvent,
    OrderEvent,
    PositionEvent,
    PrimedEvent,
    TradeEvent,
    UnknownEvent,
)
from trading_intents_client.cli.reasons import order_reason
from trading_intents_client.cli.tables import amount, rounded


def event_line(event: Event) -> str:
    match event:
        case ActionEvent(action=action):
            prices = (
                f" limit {amount(action.limit_price)}" if action.limit_price is not None else ""
            )
            prices += f" stop {amount(action.stop_price)}" if action.stop_price is not None else ""
            prices += (
                f" trail {amount(action.trail_amount)}" if action.trail_amount is not None else ""
            )
            prices += f" trail {action.trail_bps} bps" if action.trail_bps is not None else ""
            return (
                f"{action.action_type} {action.order_side} {amount(action.quantity)} "
                f"{action.symbol}{prices}"
            )
        case OrderEvent(order=order):
            filled = f" {amount(order.filled_quantity)} of {amount(order.quantity)}"
            return f"order {order.symbol}{filled} {order.order_status}" + (
                f": {reason}" if (reason := order_reason(order)) else ""
            )
        case TradeEvent(trade=trade):
            return (
                f"trade {trade.side} {amount(trade.quantity)} {trade.symbol} at "
                f"{amount(trade.price)}"
            )
        case PositionEvent(position=position):
            return (
                f"position {position.symbol} {amount(position.quantity)} at "
                f"{amount(rounded(position.average_cost))}"
            )
        case BalanceEvent(balance=balance):
            return (
                f"balance {balance.currency or ''} cash {amount(balance.cash)} equity "
                f"{amount(balance.equity)}"
            )
        case HaltEvent(halt=halt):
            return f"halt {halt.state}, {halt.orders_done} of {halt.orders} orders: {halt.reason}"
        case GapEvent(orders=orders):
            return f"gap: events were missed; {len(orders)} orders are open"
        case PrimedEvent(kind=kind):
            return f"primed {kind}"
        case UnknownEvent(kind=kind):
            return f"{kind} (unknown to this version)"
        case _:
            return type(event).__name__


def event_time(event: Event) -> datetime:
    """The time at which the event happened; now, if it has none."""
    found: datetime | None = None
    match event:
        case ActionEvent(action=action):
            found = action.created_at or action.received_at
        case OrderEvent(order=order):
            found = order.received_at
        case TradeEvent(trade=trade):
            found = trade.received_at
        case PositionEvent(position=position):
            found = position.received_at
        case BalanceEvent(balance=balance):
            found = balance.as_of
        case HaltEvent(halt=halt):
            found = halt.updated_at or halt.created_at
    return found or datetime.now(UTC)
