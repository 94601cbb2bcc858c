"""The names that the API uses. A name that only a newer server knows becomes a member that equals
its text."""

from enum import StrEnum
from typing import Literal, Self


class OpenEnum(StrEnum):
    """An enum that accepts unknown names, so that a newer server does not break an older client."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member

    @property
    def is_known(self) -> bool:
        """False for a name that this version of the client does not have."""
        return self._name_ in type(self).__members__


class Environment(OpenEnum):
    """Paper is the rehearsal; live is money."""

    PAPER = "paper"
    LIVE = "live"


class ConnectionState(OpenEnum):
    """The state of an account's connection to its broker."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    DISCONNECTED = "disconnected"
    CREDENTIAL_MISSING = "credential_missing"
    CREDENTIAL_REJECTED = "credential_rejected"


class Permission(OpenEnum):
    """A right of an API key."""

    INTENT_READ = "intent:read"
    INTENT_EDIT = "intent:edit"
    CONTROL_READ = "control:read"
    CONTROL_EDIT = "control:edit"
    ACCOUNT_READ = "account:read"
    ACCOUNT_EDIT = "account:edit"
    CREDENTIAL_EDIT = "credential:edit"
    STREAM_READ = "stream:read"


class PermissionSet(OpenEnum):
    """Permissions that go together."""

    READER = "reader"
    TRADER = "trader"
    OPERATOR = "operator"


class OrderSide(OpenEnum):
    """The side of an order."""

    BUY = "BUY"
    SELL = "SELL"
    SELL_SHORT = "SELL_SHORT"


class OrderKind(OpenEnum):
    """The key of an order's `spec`, as brokers list it."""

    MARKET = "Market"
    LIMIT = "Limit"
    STOP = "Stop"
    STOP_LIMIT = "StopLimit"
    TRAILING_STOP = "TrailingStop"


class OrderType(OpenEnum):
    """The kind of an order, as records have it."""

    MARKET = "MARKET"
    LIMIT = "LIMIT"
    STOP = "STOP"
    STOP_LIMIT = "STOP_LIMIT"
    TRAILING_STOP = "TRAILING_STOP"


class TimeInForce(OpenEnum):
    """The time that an order stays open."""

    DAY = "DAY"
    GOOD_TILL_CANCEL = "GOOD_TILL_CANCEL"
    IMMEDIATE_OR_CANCEL = "IMMEDIATE_OR_CANCEL"
    FILL_OR_KILL = "FILL_OR_KILL"
    AT_OPEN = "AT_OPEN"
    AT_CLOSE = "AT_CLOSE"
    EXT = "EXT"


class RouteStrategy(OpenEnum):
    """The venue that a broker sends an order to: `SMART` leaves it to the broker."""

    SMART = "SMART"
    AMEX = "AMEX"
    ARCA = "ARCA"
    BATS = "BATS"
    BATY = "BATY"
    EDGA = "EDGA"
    EDGX = "EDGX"
    NSDQ = "NSDQ"
    NYSE = "NYSE"
    IEX = "IEX"
    MEMX = "MEMX"


class OrderState(OpenEnum):
    """Whether an order works, has ended, or was rejected."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"
    REJECTED = "REJECTED"


FINAL_STATES = frozenset({OrderState.CLOSED, OrderState.REJECTED})


class OrderStatus(OpenEnum):
    """The status of an order. `UNKNOWN`: the broker's answer was lost, and is being looked up."""

    PENDING_NEW = "PENDING_NEW"
    NEW = "NEW"
    PARTIALLY_FILLED = "PARTIALLY_FILLED"
    FILLED = "FILLED"
    PENDING_CANCEL = "PENDING_CANCEL"
    CANCELLED = "CANCELLED"
    PENDING_REPLACE = "PENDING_REPLACE"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    UNKNOWN = "UNKNOWN"


FINAL_STATUSES = frozenset(
    {OrderStatus.FILLED, OrderStatus.CANCELLED, OrderStatus.REJECTED, OrderStatus.EXPIRED}
)


class OrderFlag(OpenEnum):
    """Marks something unusual about an order."""

    LATE_FILL = "late_fill"
    OVERFILL = "overfill"
    CONFLICTING_EXECUTION = "conflicting_execution"
    RESURRECTED = "resurrected"
    UNPROTECTED = "unprotected"


class TradeFlag(OpenEnum):
    """Marks something unusual about an execution."""

    CORRECTED = "corrected"
    BUSTED = "busted"
    GAP = "gap"
    UNPRICED = "unpriced"
    REPLACED = "replaced"


class ActionType(OpenEnum):
    """The type of a command."""

    CREATE = "CREATE"
    REPLACE = "REPLACE"
    CANCEL = "CANCEL"


class PrincipalType(OpenEnum):
    """The type of caller that sent a command; `SYSTEM` is the platform itself."""

    API_KEY = "API_KEY"
    USER = "USER"
    SERVICE = "SERVICE"
    SYSTEM = "SYSTEM"


class TimeWindow(OpenEnum):
    """The time that stats count."""

    LAST_HOUR = "last_hour"
    LAST_DAY = "last_day"
    LAST_WEEK = "last_week"
    LAST_MONTH = "last_month"


class HaltState(OpenEnum):
    """The progress of a halt."""

    CANCELLING = "cancelling"
    CLOSING = "closing"
    DONE = "done"
    RESUMED = "resumed"


class QuoteSource(OpenEnum):
    """The source of a paper quote."""

    WALK = "walk"
    POSTED = "posted"


class PriceSource(OpenEnum):
    """The source of a reference price."""

    POSTED = "posted"
    TRADE = "trade"
    QUOTE = "quote"


class SortOrder(OpenEnum):
    """Oldest first, or newest first."""

    ASC = "asc"
    DESC = "desc"


# What a caller may write for a member, so that a type checker finds a misspelt name. A name that
# only a newer server has is given as a member: `TimeInForce("GOOD_TILL_DATE")`.
EnvironmentName = Environment | Literal["paper", "live"]
PermissionName = (
    Permission
    | Literal[
        "intent:read",
        "intent:edit",
        "control:read",
        "control:edit",
        "account:read",
        "account:edit",
        "credential:edit",
        "stream:read",
    ]
)
PermissionSetName = PermissionSet | Literal["reader", "trader", "operator"]
OrderSideName = OrderSide | Literal["BUY", "SELL", "SELL_SHORT"]
TimeInForceName = (
    TimeInForce
    | Literal[
        "DAY",
        "GOOD_TILL_CANCEL",
        "IMMEDIATE_OR_CANCEL",
        "FILL_OR_KILL",
        "AT_OPEN",
        "AT_CLOSE",
        "EXT",
    ]
)
RouteStrategyName = (
    RouteStrategy
    | Literal[
        "SMART", "AMEX", "ARCA", "BATS", "BATY", "EDGA", "EDGX", "NSDQ", "NYSE", "IEX", "MEMX"
    ]
)
OrderStateName = OrderState | Literal["OPEN", "CLOSED", "REJECTED"]
OrderStatusName = (
    OrderStatus
    | Literal[
        "PENDING_NEW",
        "NEW",
        "PARTIALLY_FILLED",
        "FILLED",
        "PENDING_CANCEL",
        "CANCELLED",
        "PENDING_REPLACE",
        "REJECTED",
        "EXPIRED",
        "UNKNOWN",
    ]
)
TimeWindowName = TimeWindow | Literal["last_hour", "last_day", "last_week", "last_month"]
SortOrderName = SortOrder | Literal["asc", "desc"]
OrderFlagName = (
    OrderFlag
    | Literal["late_fill", "overfill", "conflicting_execution", "resurrected", "unprotected"]
)
EventTransport = Literal["http", "grpc"]
