"""Actions, orders, trades, positions, money and counts of an account."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct, field, structs

from trading_intents_client.types.enums import (
    FINAL_STATES,
    FINAL_STATUSES,
    ActionType,
    Environment,
    OrderFlag,
    OrderSide,
    OrderState,
    OrderStatus,
    OrderType,
    PrincipalType,
    RouteStrategy,
    TimeInForce,
    TimeWindow,
    TradeFlag,
)


class Submitted(Struct, frozen=True, kw_only=True):
    """An accepted command: it is durable. `seq` is its number in the account's log."""

    intent_id: str
    seq: int
    leg: str | None = None
    legs: tuple["Submitted", ...] = ()


class Action(Struct, frozen=True, kw_only=True):
    """A record of the account's log, which only ever grows."""

    intent_id: str
    seq: int
    account_id: str
    organization_id: str
    environment: Environment
    action_type: ActionType
    symbol: str
    order_side: OrderSide
    order_type: OrderType
    quantity: Decimal
    limit_price: Decimal | None
    stop_price: Decimal | None
    trail_amount: Decimal | None = None
    trail_bps: int | None = None
    leg: str | None = None
    parent_intent_id: str | None = None
    time_in_force: TimeInForce | None
    route_strategy: RouteStrategy
    client_reference_id: str | None
    principal_type: PrincipalType
    principal_id: str
    created_at: datetime
    hash_version: int
    hash: str


class OrderRecord(Struct, frozen=True, kw_only=True):
    """The order of an intent, as its broker last reported it. Its id is the intent's."""

    order_id: str
    intent_id: str
    command_seq: int
    external_order_id: str | None
    account_id: str
    organization_id: str
    environment: Environment
    broker: str
    symbol: str
    order_state: OrderState
    order_status: OrderStatus
    order_type: OrderType
    order_side: OrderSide
    limit_price: Decimal | None
    stop_price: Decimal | None
    trail_amount: Decimal | None = None
    trail_bps: int | None = None
    leg: str | None = None
    parent_intent_id: str | None = None
    active: bool = True
    average_price: Decimal | None
    route_strategy: RouteStrategy
    quantity: Decimal
    filled_quantity: Decimal
    time_in_force: TimeInForce
    client_reference_id: str | None
    reason: str | None
    detail: str | None = None
    flags: tuple[OrderFlag, ...]
    broker_sent_at: datetime | None
    received_at: datetime
    created_at: datetime
    updated_at: datetime
    version: int

    @property
    def is_final(self) -> bool:
        """Whether the order has ended: filled, cancelled, rejected, expired, or as its state
        says."""
        return self.order_status in FINAL_STATUSES or self.order_state in FINAL_STATES


class Trade(Struct, frozen=True, kw_only=True):
    """An execution of an order."""

    trade_id: str
    exec_id: str
    order_id: str
    intent_id: str
    account_id: str
    symbol: str
    side: OrderSide
    quantity: Decimal
    price: Decimal
    fee: Decimal | None
    cumulative_quantity: Decimal
    leaves_quantity: Decimal
    client_reference_id: str | None
    flags: tuple[TradeFlag, ...]
    broker_sent_at: datetime | None
    received_at: datetime


class Position(Struct, frozen=True, kw_only=True):
    """The account's position in a symbol; negative for a short one. Prices are None where none is
    known."""

    symbol: str
    quantity: Decimal
    average_cost: Decimal | None
    realized_pnl: Decimal
    daily_pnl: Decimal
    received_at: datetime
    opening_quantity: Decimal
    broker_quantity: Decimal | None
    differs: bool | None
    market_price: Decimal | None = None
    market_price_at: datetime | None = None
    market_value: Decimal | None = None
    unrealized_pnl: Decimal | None = None
    broker_sent_at: datetime | None = None


class EquityPoint(Struct, frozen=True, kw_only=True):
    """The account's worth at the end of the span that began at `at`."""

    at: datetime
    equity: Decimal | None
    cash: Decimal | None
    realized_pnl: Decimal
    unrealized_pnl: Decimal


class EquityHistory(Struct, frozen=True, kw_only=True):
    """The spans in which something changed, the oldest first."""

    data: tuple[EquityPoint, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Each point's fields by name, as a table's rows: for pandas, polars or csv."""
        return [structs.asdict(point) for point in self.data]


class Balances(Struct, frozen=True, kw_only=True):
    """The account's money, as its broker last reported it; None where it reports none."""

    account_id: str
    currency: str | None
    cash: Decimal | None
    buying_power: Decimal | None
    equity: Decimal | None
    as_of: datetime | None


class CancelledAll(Struct, frozen=True, kw_only=True):
    """The CANCELs that were appended. `pending`: orders whose CANCEL was on its way before; `more`:
    there are further open orders, so ask again."""

    intents: tuple[Submitted, ...]
    pending: int
    more: bool


class SymbolActions(Struct, frozen=True, kw_only=True):
    """The number of actions of a symbol."""

    symbol: str
    actions: int


class SymbolFilled(Struct, frozen=True, kw_only=True):
    """The traded quantity of a symbol."""

    symbol: str
    quantity: Decimal
    notional: Decimal


class Refused(Struct, frozen=True, kw_only=True):
    """The number of commands that controls and limits refused."""

    total: int
    by_reason: dict[str, int]


class Latency(Struct, frozen=True, kw_only=True):
    """Milliseconds until the broker answered; None where nothing was sent."""

    p50: int | None
    p99: int | None


class Stats(Struct, frozen=True, kw_only=True):
    """Counts over a window. `actions` and `intents` have `total` and one entry for each type or
    status."""

    time_window: TimeWindow
    since: datetime = field(name="from")
    to: datetime
    actions: dict[str, int]
    intents: dict[str, int]
    symbols: tuple[SymbolActions, ...]
    refused: Refused
    filled: tuple[SymbolFilled, ...]
    broker_ack_latency_ms: Latency
