"""The events of the stream, and how they are read from its JSON. A kind that is not known becomes
UnknownEvent."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from trading_intents_client.types.enums import (
    FINAL_STATES,
    FINAL_STATUSES,
    ActionType,
    HaltState,
    OrderFlag,
    OrderSide,
    OrderState,
    OrderStatus,
    OrderType,
    PrincipalType,
    RouteStrategy,
    TimeInForce,
)
from trading_intents_client.types.trading import OrderRecord, Position


class StreamedOrder(Struct, frozen=True, kw_only=True):
    """An order as the stream has it; of two with the same id the higher `version` is the newer."""

    order_id: str
    intent_id: str
    account_id: str
    organization_id: str
    symbol: str
    order_state: OrderState
    order_status: OrderStatus
    quantity: Decimal
    filled_quantity: Decimal = Decimal(0)
    command_seq: int = 0
    external_order_id: str | None = None
    broker: str = ""
    order_type: OrderType | None = None
    order_side: OrderSide | None = None
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    trail_amount: Decimal | None = None
    trail_bps: int | None = None
    leg: str | None = None
    parent_intent_id: str | None = None
    active: bool = True
    average_price: Decimal | None = None
    order_venue: RouteStrategy | None = None
    time_in_force: TimeInForce | None = None
    received_at: datetime | None = None
    client_reference_id: str | None = None
    broker_sent_at: datetime | None = None
    reason: str | None = None
    detail: str | None = None
    flags: tuple[OrderFlag, ...] = ()
    version: int = 0

    @property
    def is_final(self) -> bool:
        """Whether the order has ended: filled, cancelled, rejected, expired, or as its state
        says."""
        return self.order_status in FINAL_STATUSES or self.order_state in FINAL_STATES


class StreamedPosition(Struct, frozen=True, kw_only=True):
    """A position as the stream has it."""

    account_id: str
    organization_id: str
    symbol: str
    quantity: Decimal
    average_cost: Decimal | None = None
    received_at: datetime | None = None
    broker: str = ""
    broker_sent_at: datetime | None = None
    realized_pnl: Decimal | None = None
    daily_pnl: Decimal | None = None
    value_bought: Decimal | None = None
    value_sold: Decimal | None = None


class StreamedTrade(Struct, frozen=True, kw_only=True):
    """An execution. `client_order_id` is the id that was sent to the broker."""

    trade_id: str
    order_id: str
    intent_id: str
    account_id: str
    organization_id: str
    symbol: str
    quantity: Decimal
    price: Decimal
    side: OrderSide | None = None
    client_order_id: str = ""
    received_at: datetime | None = None
    exec_id: str | None = None
    cumulative_quantity: Decimal | None = None
    order_quantity: Decimal | None = None
    leaves_quantity: Decimal | None = None
    broker_sent_at: datetime | None = None
    command_seq: int | None = None
    client_reference_id: str | None = None
    fee: Decimal | None = None


class StreamedAction(Struct, frozen=True, kw_only=True):
    """An action as the stream has it."""

    intent_id: str
    organization_id: str
    account_id: str
    seq: int
    action_type: ActionType
    symbol: str
    quantity: Decimal
    order_side: OrderSide | None = None
    order_type: OrderType | None = None
    limit_price: Decimal | None = None
    stop_price: Decimal | None = None
    trail_amount: Decimal | None = None
    trail_bps: int | None = None
    leg: str | None = None
    parent_intent_id: str | None = None
    order_venue: RouteStrategy | None = None
    time_in_force: TimeInForce | None = None
    client_reference_id: str | None = None
    principal_type: PrincipalType | None = None
    received_at: datetime | None = None
    created_at: datetime | None = None


class StreamedBalance(Struct, frozen=True, kw_only=True):
    """The account's money as the stream has it."""

    account_id: str
    organization_id: str
    broker: str = ""
    currency: str | None = None
    cash: Decimal | None = None
    buying_power: Decimal | None = None
    equity: Decimal | None = None
    as_of: datetime | None = None


class StreamedHalt(Struct, frozen=True, kw_only=True):
    """A halt's progress; without `account_id` it is the organization's."""

    id: str
    organization_id: str
    account_id: str | None = None
    state: HaltState
    reason: str = ""
    orders: int = 0
    orders_done: int = 0
    positions: int = 0
    positions_done: int = 0
    principal_type: PrincipalType | None = None
    principal_id: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Event(Struct, frozen=True, kw_only=True):
    """The root of all events. Keep the last `cursor`: with `events(after=cursor)` nothing is missed
    or repeated."""

    cursor: str | None = None


class ActionEvent(Event, frozen=True, kw_only=True):
    """A command was accepted."""

    action: StreamedAction


class OrderEvent(Event, frozen=True, kw_only=True):
    """An order has changed."""

    order: StreamedOrder


class TradeEvent(Event, frozen=True, kw_only=True):
    """An order was executed, in part or in whole."""

    trade: StreamedTrade


class PositionEvent(Event, frozen=True, kw_only=True):
    """A change of a position; without a cursor it is what there was when the stream began."""

    position: StreamedPosition


class BalanceEvent(Event, frozen=True, kw_only=True):
    """The account's money has changed."""

    balance: StreamedBalance


class HaltEvent(Event, frozen=True, kw_only=True):
    """A halt began, went on or ended."""

    halt: StreamedHalt


class PrimedEvent(Event, frozen=True, kw_only=True):
    """The present state of a kind has been sent; what follows happens now."""

    kind: str


class GapEvent(Event, frozen=True, kw_only=True):
    """Events were missed: what followed the cursor is no longer kept. This is the state from which
    the stream goes on.

    `orders` are the open ones. Events that come next may be in it already: an order's `version`
    shows it.
    """

    orders: tuple[OrderRecord, ...]
    positions: tuple[Position, ...]


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event of a kind that this version does not know."""

    kind: str
    data: dict[str, Any]


class SkippedEvent(Event, frozen=True, kw_only=True):
    """One that was not asked for. Consumers never get it."""


class StatusMessage(Struct, frozen=True):
    """Of the connection and not of the account: `subscribed`, or why the server ends the stream."""

    message: str
    is_error: bool


# A newer server may send more beside them.
KINDS = frozenset(
    {
        "broker_order",
        "broker_trade",
        "broker_position",
        "intent_action",
        "balance",
        "halt",
        "primed",
        "status",
        "error",
    }
)
PREFIXES = {
    "order_state": "ORDER_STATE_",
    "order_status": "ORDER_STATUS_",
    "order_type": "ORDER_TYPE_",
    "order_side": "ORDER_SIDE_",
    "side": "ORDER_SIDE_",
    "order_venue": "ORDER_VENUE_",
    "time_in_force": "TIME_IN_FORCE_",
    "action_type": "INTENT_ACTION_TYPE_",
    "principal_type": "INTENT_PRINCIPAL_TYPE_",
    "event_type": "EVENT_TYPE_",
}


def read_event(data: Mapping[str, Any]) -> Event | StatusMessage | None:
    """From a TradingEvent in protobuf's JSON. None: a heartbeat."""
    cursor = data.get("cursor")
    names = [name for name in data if name != "cursor"]
    if not names and cursor is not None:  # gRPC shows nothing of a kind that it does not know
        return UnknownEvent(kind="unknown", data={}, cursor=cursor)
    kind = next((name for name in names if name in KINDS), names[0] if names else "heartbeat")
    fields = data.get(kind)
    if kind == "heartbeat":
        return None
    if kind in ("status", "error"):
        return StatusMessage((fields or {}).get("message", ""), kind == "error")
    shown = (
        {name: _plain(name, value) for name, value in fields.items()}
        if isinstance(fields, dict)
        else {}
    )
    try:
        return _known_event(kind, shown, cursor)
    except msgspec.ValidationError:
        # Of a server so new that a field means something else: the consumer may know what to do
        # with it.
        return UnknownEvent(kind=kind, data=dict(data), cursor=cursor)


def _known_event(kind: str, shown: dict[str, Any], cursor: str | None) -> Event:
    match kind:
        case "broker_order":
            return OrderEvent(
                order=msgspec.convert(shown, StreamedOrder, strict=False), cursor=cursor
            )
        case "broker_trade":
            return TradeEvent(
                trade=msgspec.convert(shown, StreamedTrade, strict=False), cursor=cursor
            )
        case "broker_position":
            return PositionEvent(
                position=msgspec.convert(shown, StreamedPosition, strict=False), cursor=cursor
            )
        case "intent_action":
            return ActionEvent(
                action=msgspec.convert(shown, StreamedAction, strict=False), cursor=cursor
            )
        case "balance":
            return BalanceEvent(
                balance=msgspec.convert(shown, StreamedBalance, strict=False), cursor=cursor
            )
        case "halt":
            return HaltEvent(halt=msgspec.convert(shown, StreamedHalt, strict=False), cursor=cursor)
        case "primed":
            return PrimedEvent(kind=str(shown.get("event_type", "")).lower(), cursor=cursor)
        case _:
            return UnknownEvent(kind=kind, data={kind: shown}, cursor=cursor)


def _plain(name: str, value: Any) -> Any:
    """An enum's value without its type's prefix; a number is one that only the server has a name
    for."""
    prefix = PREFIXES.get(name)
    if prefix is None:
        return value
    return value.removeprefix(prefix) if isinstance(value, str) else str(value)
