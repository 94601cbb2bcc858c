"""The Python client of the Trading Intents Platform: `TradingClient`, and `AsyncTradingClient` for asyncio."""

from trading_intents_client import errors
from trading_intents_client.asynchronous.account import AsyncAccount
from trading_intents_client.asynchronous.client import AsyncTradingClient
from trading_intents_client.asynchronous.orders import AsyncOrder, AsyncPlacedOrder
from trading_intents_client.asynchronous.pages import AsyncPages, Page
from trading_intents_client.asynchronous.requests import cancel_command, create_command, replace_command
from trading_intents_client.blocking.account import Account
from trading_intents_client.blocking.client import TradingClient
from trading_intents_client.blocking.iterators import EventStream, Pages
from trading_intents_client.blocking.orders import Order, PlacedOrder
from trading_intents_client.errors import Interrupted, TradingError
from trading_intents_client.stream.events import (
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
from trading_intents_client.stream.following import AsyncEventStream
from trading_intents_client.transport.credentials import (
    ApiKeyCredentials,
    BearerCredentials,
    ClientCredentials,
    Credentials,
)
from trading_intents_client.types.accounts import (
    ApiKey,
    Broker,
    Caller,
    CreatedApiKey,
    Credential,
    KeyValidation,
    OrganizationRecord,
    TradingAccount,
)
from trading_intents_client.types.controls import (
    Control,
    Evaluation,
    Halt,
    Limits,
    LimitsRecord,
    SymbolControls,
    TimeControl,
    Triggered,
)
from trading_intents_client.types.enums import (
    FINAL_STATUSES,
    ActionType,
    ConnectionState,
    Environment,
    HaltState,
    OrderFlag,
    OrderKind,
    OrderSide,
    OrderState,
    OrderStatus,
    OrderType,
    Permission,
    PriceSource,
    PrincipalType,
    QuoteSource,
    RouteStrategy,
    SortOrder,
    TimeInForce,
    TimeWindow,
    TradeFlag,
)
from trading_intents_client.types.market import PostedQuote, Quote, ReferencePrice
from trading_intents_client.types.operations import Health, IssuedToken, OutboxHealth
from trading_intents_client.types.trading import (
    Action,
    Balances,
    CancelledAll,
    OrderRecord,
    Position,
    Stats,
    Submitted,
    Trade,
)

FILLED = OrderStatus.FILLED

__version__ = "0.1.0"

__all__ = [
    "FILLED",
    "FINAL_STATUSES",
    "Account",
    "Action",
    "ActionEvent",
    "ActionType",
    "ApiKey",
    "ApiKeyCredentials",
    "AsyncAccount",
    "AsyncEventStream",
    "AsyncOrder",
    "AsyncPages",
    "AsyncPlacedOrder",
    "AsyncTradingClient",
    "BalanceEvent",
    "Balances",
    "BearerCredentials",
    "Broker",
    "Caller",
    "CancelledAll",
    "ClientCredentials",
    "ConnectionState",
    "Control",
    "CreatedApiKey",
    "Credential",
    "Credentials",
    "Environment",
    "Evaluation",
    "Event",
    "EventStream",
    "GapEvent",
    "Halt",
    "HaltEvent",
    "HaltState",
    "Health",
    "Interrupted",
    "IssuedToken",
    "KeyValidation",
    "Limits",
    "LimitsRecord",
    "Order",
    "OrderEvent",
    "OrderFlag",
    "OrderKind",
    "OrderRecord",
    "OrderSide",
    "OrderState",
    "OrderStatus",
    "OrderType",
    "OrganizationRecord",
    "OutboxHealth",
    "Page",
    "Pages",
    "Permission",
    "PlacedOrder",
    "Position",
    "PositionEvent",
    "PostedQuote",
    "PriceSource",
    "PrimedEvent",
    "PrincipalType",
    "Quote",
    "QuoteSource",
    "ReferencePrice",
    "RouteStrategy",
    "SortOrder",
    "Stats",
    "Submitted",
    "SymbolControls",
    "TimeControl",
    "TimeInForce",
    "TimeWindow",
    "Trade",
    "TradeEvent",
    "TradeFlag",
    "TradingAccount",
    "TradingClient",
    "TradingError",
    "Triggered",
    "UnknownEvent",
    "__version__",
    "cancel_command",
    "create_command",
    "errors",
    "replace_command",
]
