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
from trading_intents_client.stream.events import StreamedAction


def event_line(event: Event) -> str:
    match event:
        case ActionEvent(action=action):
            return _action_line(action)
        case OrderEvent(order=order):
            filled = f"{amount(order.filled_quantity)} of {amount(order.quantity)}"
            reason = order_reason(order)
            return f"order {order.symbol} {filled} {order.order_status}" + (
                f": {reason}" if reason else ""
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


def _action_line(action: StreamedAction) -> str:
    line = f"{action.action_type} {action.order_side} {amount(action.quantity)} {action.symbol}"
    prices = {"limit": action.limit_price, "stop": action.stop_price, "trail": action.trail_amount}
    for name, price in prices.items():
        if price is not None:
            line += f" {name} {amount(price)}"
    if action.trail_bps is not None:
        line += f" trail {action.trail_bps} bps"
    return line


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
