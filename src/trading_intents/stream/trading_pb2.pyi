import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_TYPE_UNSPECIFIED: _ClassVar[EventType]
    EVENT_TYPE_BROKER_ORDER: _ClassVar[EventType]
    EVENT_TYPE_BROKER_POSITION: _ClassVar[EventType]
    EVENT_TYPE_BROKER_TRADE: _ClassVar[EventType]
    EVENT_TYPE_INTENT_ACTION: _ClassVar[EventType]
    EVENT_TYPE_BALANCE: _ClassVar[EventType]
    EVENT_TYPE_HALT: _ClassVar[EventType]

class OrderDelivery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_DELIVERY_UNSPECIFIED: _ClassVar[OrderDelivery]
    ORDER_DELIVERY_LIVE: _ClassVar[OrderDelivery]
    ORDER_DELIVERY_PRIMED: _ClassVar[OrderDelivery]

class OrderType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_TYPE_UNSPECIFIED: _ClassVar[OrderType]
    ORDER_TYPE_LIMIT: _ClassVar[OrderType]
    ORDER_TYPE_MARKET: _ClassVar[OrderType]
    ORDER_TYPE_FILL_OR_KILL: _ClassVar[OrderType]
    ORDER_TYPE_LIMIT_ON_OPEN: _ClassVar[OrderType]
    ORDER_TYPE_LIMIT_ON_CLOSE: _ClassVar[OrderType]
    ORDER_TYPE_MARKET_ON_OPEN: _ClassVar[OrderType]
    ORDER_TYPE_MARKET_ON_CLOSE: _ClassVar[OrderType]
    ORDER_TYPE_STOP: _ClassVar[OrderType]
    ORDER_TYPE_STOP_LIMIT: _ClassVar[OrderType]
    ORDER_TYPE_TRAILING_STOP: _ClassVar[OrderType]

class TimeInForce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIME_IN_FORCE_UNSPECIFIED: _ClassVar[TimeInForce]
    TIME_IN_FORCE_DAY: _ClassVar[TimeInForce]
    TIME_IN_FORCE_GOOD_TILL_CANCEL: _ClassVar[TimeInForce]
    TIME_IN_FORCE_AT_OPEN: _ClassVar[TimeInForce]
    TIME_IN_FORCE_IMMEDIATE_OR_CANCEL: _ClassVar[TimeInForce]
    TIME_IN_FORCE_FILL_OR_KILL: _ClassVar[TimeInForce]
    TIME_IN_FORCE_EXT: _ClassVar[TimeInForce]
    TIME_IN_FORCE_AT_CLOSE: _ClassVar[TimeInForce]

class OrderSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_SIDE_UNSPECIFIED: _ClassVar[OrderSide]
    ORDER_SIDE_BUY: _ClassVar[OrderSide]
    ORDER_SIDE_SELL: _ClassVar[OrderSide]
    ORDER_SIDE_SELL_SHORT: _ClassVar[OrderSide]

class OrderVenue(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_VENUE_UNSPECIFIED: _ClassVar[OrderVenue]
    ORDER_VENUE_SMART: _ClassVar[OrderVenue]
    ORDER_VENUE_AMEX: _ClassVar[OrderVenue]
    ORDER_VENUE_ARCA: _ClassVar[OrderVenue]
    ORDER_VENUE_BATS: _ClassVar[OrderVenue]
    ORDER_VENUE_BATY: _ClassVar[OrderVenue]
    ORDER_VENUE_EDGA: _ClassVar[OrderVenue]
    ORDER_VENUE_EDGX: _ClassVar[OrderVenue]
    ORDER_VENUE_NSDQ: _ClassVar[OrderVenue]
    ORDER_VENUE_NYSE: _ClassVar[OrderVenue]
    ORDER_VENUE_IEX: _ClassVar[OrderVenue]
    ORDER_VENUE_MEMX: _ClassVar[OrderVenue]

class OrderStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_STATUS_UNSPECIFIED: _ClassVar[OrderStatus]
    ORDER_STATUS_PENDING_NEW: _ClassVar[OrderStatus]
    ORDER_STATUS_NEW: _ClassVar[OrderStatus]
    ORDER_STATUS_PARTIALLY_FILLED: _ClassVar[OrderStatus]
    ORDER_STATUS_FILLED: _ClassVar[OrderStatus]
    ORDER_STATUS_PENDING_CANCEL: _ClassVar[OrderStatus]
    ORDER_STATUS_CANCELLED: _ClassVar[OrderStatus]
    ORDER_STATUS_PENDING_REPLACE: _ClassVar[OrderStatus]
    ORDER_STATUS_REPLACED: _ClassVar[OrderStatus]
    ORDER_STATUS_STOPPED: _ClassVar[OrderStatus]
    ORDER_STATUS_REJECTED: _ClassVar[OrderStatus]
    ORDER_STATUS_EXPIRED: _ClassVar[OrderStatus]
    ORDER_STATUS_UNKNOWN: _ClassVar[OrderStatus]

class OrderState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_STATE_UNSPECIFIED: _ClassVar[OrderState]
    ORDER_STATE_OPEN: _ClassVar[OrderState]
    ORDER_STATE_CLOSED: _ClassVar[OrderState]
    ORDER_STATE_REJECTED: _ClassVar[OrderState]

class IntentActionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTENT_ACTION_TYPE_UNSPECIFIED: _ClassVar[IntentActionType]
    INTENT_ACTION_TYPE_CREATE: _ClassVar[IntentActionType]
    INTENT_ACTION_TYPE_REPLACE: _ClassVar[IntentActionType]
    INTENT_ACTION_TYPE_CANCEL: _ClassVar[IntentActionType]

class IntentPrincipalType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTENT_PRINCIPAL_TYPE_UNSPECIFIED: _ClassVar[IntentPrincipalType]
    INTENT_PRINCIPAL_TYPE_API_KEY: _ClassVar[IntentPrincipalType]
    INTENT_PRINCIPAL_TYPE_USER: _ClassVar[IntentPrincipalType]
    INTENT_PRINCIPAL_TYPE_SERVICE: _ClassVar[IntentPrincipalType]
    INTENT_PRINCIPAL_TYPE_SYSTEM: _ClassVar[IntentPrincipalType]
EVENT_TYPE_UNSPECIFIED: EventType
EVENT_TYPE_BROKER_ORDER: EventType
EVENT_TYPE_BROKER_POSITION: EventType
EVENT_TYPE_BROKER_TRADE: EventType
EVENT_TYPE_INTENT_ACTION: EventType
EVENT_TYPE_BALANCE: EventType
EVENT_TYPE_HALT: EventType
ORDER_DELIVERY_UNSPECIFIED: OrderDelivery
ORDER_DELIVERY_LIVE: OrderDelivery
ORDER_DELIVERY_PRIMED: OrderDelivery
ORDER_TYPE_UNSPECIFIED: OrderType
ORDER_TYPE_LIMIT: OrderType
ORDER_TYPE_MARKET: OrderType
ORDER_TYPE_FILL_OR_KILL: OrderType
ORDER_TYPE_LIMIT_ON_OPEN: OrderType
ORDER_TYPE_LIMIT_ON_CLOSE: OrderType
ORDER_TYPE_MARKET_ON_OPEN: OrderType
ORDER_TYPE_MARKET_ON_CLOSE: OrderType
ORDER_TYPE_STOP: OrderType
ORDER_TYPE_STOP_LIMIT: OrderType
ORDER_TYPE_TRAILING_STOP: OrderType
TIME_IN_FORCE_UNSPECIFIED: TimeInForce
TIME_IN_FORCE_DAY: TimeInForce
TIME_IN_FORCE_GOOD_TILL_CANCEL: TimeInForce
TIME_IN_FORCE_AT_OPEN: TimeInForce
TIME_IN_FORCE_IMMEDIATE_OR_CANCEL: TimeInForce
TIME_IN_FORCE_FILL_OR_KILL: TimeInForce
TIME_IN_FORCE_EXT: TimeInForce
TIME_IN_FORCE_AT_CLOSE: TimeInForce
ORDER_SIDE_UNSPECIFIED: OrderSide
ORDER_SIDE_BUY: OrderSide
ORDER_SIDE_SELL: OrderSide
ORDER_SIDE_SELL_SHORT: OrderSide
ORDER_VENUE_UNSPECIFIED: OrderVenue
ORDER_VENUE_SMART: OrderVenue
ORDER_VENUE_AMEX: OrderVenue
ORDER_VENUE_ARCA: OrderVenue
ORDER_VENUE_BATS: OrderVenue
ORDER_VENUE_BATY: OrderVenue
ORDER_VENUE_EDGA: OrderVenue
ORDER_VENUE_EDGX: OrderVenue
ORDER_VENUE_NSDQ: OrderVenue
ORDER_VENUE_NYSE: OrderVenue
ORDER_VENUE_IEX: OrderVenue
ORDER_VENUE_MEMX: OrderVenue
ORDER_STATUS_UNSPECIFIED: OrderStatus
ORDER_STATUS_PENDING_NEW: OrderStatus
ORDER_STATUS_NEW: OrderStatus
ORDER_STATUS_PARTIALLY_FILLED: OrderStatus
ORDER_STATUS_FILLED: OrderStatus
ORDER_STATUS_PENDING_CANCEL: OrderStatus
ORDER_STATUS_CANCELLED: OrderStatus
ORDER_STATUS_PENDING_REPLACE: OrderStatus
ORDER_STATUS_REPLACED: OrderStatus
ORDER_STATUS_STOPPED: OrderStatus
ORDER_STATUS_REJECTED: OrderStatus
ORDER_STATUS_EXPIRED: OrderStatus
ORDER_STATUS_UNKNOWN: OrderStatus
ORDER_STATE_UNSPECIFIED: OrderState
ORDER_STATE_OPEN: OrderState
ORDER_STATE_CLOSED: OrderState
ORDER_STATE_REJECTED: OrderState
INTENT_ACTION_TYPE_UNSPECIFIED: IntentActionType
INTENT_ACTION_TYPE_CREATE: IntentActionType
INTENT_ACTION_TYPE_REPLACE: IntentActionType
INTENT_ACTION_TYPE_CANCEL: IntentActionType
INTENT_PRINCIPAL_TYPE_UNSPECIFIED: IntentPrincipalType
INTENT_PRINCIPAL_TYPE_API_KEY: IntentPrincipalType
INTENT_PRINCIPAL_TYPE_USER: IntentPrincipalType
INTENT_PRINCIPAL_TYPE_SERVICE: IntentPrincipalType
INTENT_PRINCIPAL_TYPE_SYSTEM: IntentPrincipalType

class Subscribe(_message.Message):
    __slots__ = ("trading_account_id", "subscriptions", "instrument_key", "instrument_class", "order_delivery", "resume_after")
    TRADING_ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENT_CLASS_FIELD_NUMBER: _ClassVar[int]
    ORDER_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    trading_account_id: str
    subscriptions: _containers.RepeatedScalarFieldContainer[EventType]
    instrument_key: str
    instrument_class: str
    order_delivery: OrderDelivery
    resume_after: str
    def __init__(self, trading_account_id: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[EventType, str]]] = ..., instrument_key: _Optional[str] = ..., instrument_class: _Optional[str] = ..., order_delivery: _Optional[_Union[OrderDelivery, str]] = ..., resume_after: _Optional[str] = ...) -> None: ...

class Unsubscribe(_message.Message):
    __slots__ = ("trading_account_id",)
    TRADING_ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    trading_account_id: str
    def __init__(self, trading_account_id: _Optional[str] = ...) -> None: ...

class StreamEventsRequest(_message.Message):
    __slots__ = ("subscribe", "unsubscribe")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    unsubscribe: Unsubscribe
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[Unsubscribe, _Mapping]] = ...) -> None: ...

class TradingEvent(_message.Message):
    __slots__ = ("heartbeat", "error", "status", "broker_order", "broker_position", "broker_trade", "intent_action", "primed", "balance", "halt", "cursor")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ORDER_FIELD_NUMBER: _ClassVar[int]
    BROKER_POSITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_TRADE_FIELD_NUMBER: _ClassVar[int]
    INTENT_ACTION_FIELD_NUMBER: _ClassVar[int]
    PRIMED_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    error: Error
    status: Status
    broker_order: BrokerOrder
    broker_position: BrokerPosition
    broker_trade: BrokerTrade
    intent_action: IntentAction
    primed: Primed
    balance: Balance
    halt: Halt
    cursor: str
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., broker_order: _Optional[_Union[BrokerOrder, _Mapping]] = ..., broker_position: _Optional[_Union[BrokerPosition, _Mapping]] = ..., broker_trade: _Optional[_Union[BrokerTrade, _Mapping]] = ..., intent_action: _Optional[_Union[IntentAction, _Mapping]] = ..., primed: _Optional[_Union[Primed, _Mapping]] = ..., balance: _Optional[_Union[Balance, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ..., cursor: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent_at",)
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    sent_at: _timestamp_pb2.Timestamp
    def __init__(self, sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class Primed(_message.Message):
    __slots__ = ("event_type",)
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    event_type: EventType
    def __init__(self, event_type: _Optional[_Union[EventType, str]] = ...) -> None: ...

class BrokerOrder(_message.Message):
    __slots__ = ("order_id", "intent_id", "command_seq", "external_order_id", "account_id", "broker", "symbol", "order_state", "order_status", "order_type", "order_side", "limit_price", "stop_price", "average_price", "order_venue", "quantity", "filled_quantity", "time_in_force", "received_at", "organization_id", "client_reference_id", "broker_sent_at", "reason", "flags", "version", "detail", "trail_amount", "trail_bps", "leg", "parent_intent_id", "active")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_SEQ_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    ORDER_STATE_FIELD_NUMBER: _ClassVar[int]
    ORDER_STATUS_FIELD_NUMBER: _ClassVar[int]
    ORDER_TYPE_FIELD_NUMBER: _ClassVar[int]
    ORDER_SIDE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_PRICE_FIELD_NUMBER: _ClassVar[int]
    STOP_PRICE_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_PRICE_FIELD_NUMBER: _ClassVar[int]
    ORDER_VENUE_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    FILLED_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    TIME_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_REFERENCE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_SENT_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    TRAIL_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    TRAIL_BPS_FIELD_NUMBER: _ClassVar[int]
    LEG_FIELD_NUMBER: _ClassVar[int]
    PARENT_INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    intent_id: str
    command_seq: int
    external_order_id: str
    account_id: str
    broker: str
    symbol: str
    order_state: OrderState
    order_status: OrderStatus
    order_type: OrderType
    order_side: OrderSide
    limit_price: str
    stop_price: str
    average_price: str
    order_venue: OrderVenue
    quantity: str
    filled_quantity: str
    time_in_force: TimeInForce
    received_at: _timestamp_pb2.Timestamp
    organization_id: str
    client_reference_id: str
    broker_sent_at: _timestamp_pb2.Timestamp
    reason: str
    flags: _containers.RepeatedScalarFieldContainer[str]
    version: int
    detail: str
    trail_amount: str
    trail_bps: int
    leg: str
    parent_intent_id: str
    active: bool
    def __init__(self, order_id: _Optional[str] = ..., intent_id: _Optional[str] = ..., command_seq: _Optional[int] = ..., external_order_id: _Optional[str] = ..., account_id: _Optional[str] = ..., broker: _Optional[str] = ..., symbol: _Optional[str] = ..., order_state: _Optional[_Union[OrderState, str]] = ..., order_status: _Optional[_Union[OrderStatus, str]] = ..., order_type: _Optional[_Union[OrderType, str]] = ..., order_side: _Optional[_Union[OrderSide, str]] = ..., limit_price: _Optional[str] = ..., stop_price: _Optional[str] = ..., average_price: _Optional[str] = ..., order_venue: _Optional[_Union[OrderVenue, str]] = ..., quantity: _Optional[str] = ..., filled_quantity: _Optional[str] = ..., time_in_force: _Optional[_Union[TimeInForce, str]] = ..., received_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., organization_id: _Optional[str] = ..., client_reference_id: _Optional[str] = ..., broker_sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., flags: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., detail: _Optional[str] = ..., trail_amount: _Optional[str] = ..., trail_bps: _Optional[int] = ..., leg: _Optional[str] = ..., parent_intent_id: _Optional[str] = ..., active: _Optional[bool] = ...) -> None: ...

class BrokerPosition(_message.Message):
    __slots__ = ("account_id", "symbol", "quantity", "average_cost", "received_at", "organization_id", "broker", "broker_sent_at", "realized_pnl", "daily_pnl", "value_bought", "value_sold")
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_COST_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    BROKER_SENT_AT_FIELD_NUMBER: _ClassVar[int]
    REALIZED_PNL_FIELD_NUMBER: _ClassVar[int]
    DAILY_PNL_FIELD_NUMBER: _ClassVar[int]
    VALUE_BOUGHT_FIELD_NUMBER: _ClassVar[int]
    VALUE_SOLD_FIELD_NUMBER: _ClassVar[int]
    account_id: str
    symbol: str
    quantity: str
    average_cost: str
    received_at: _timestamp_pb2.Timestamp
    organization_id: str
    broker: str
    broker_sent_at: _timestamp_pb2.Timestamp
    realized_pnl: str
    daily_pnl: str
    value_bought: str
    value_sold: str
    def __init__(self, account_id: _Optional[str] = ..., symbol: _Optional[str] = ..., quantity: _Optional[str] = ..., average_cost: _Optional[str] = ..., received_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., organization_id: _Optional[str] = ..., broker: _Optional[str] = ..., broker_sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., realized_pnl: _Optional[str] = ..., daily_pnl: _Optional[str] = ..., value_bought: _Optional[str] = ..., value_sold: _Optional[str] = ...) -> None: ...

class BrokerTrade(_message.Message):
    __slots__ = ("account_id", "order_id", "client_order_id", "symbol", "side", "quantity", "price", "received_at", "organization_id", "exec_id", "cumulative_quantity", "order_quantity", "leaves_quantity", "broker_sent_at", "command_seq", "client_reference_id", "intent_id", "trade_id", "fee")
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    ORDER_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    LEAVES_QUANTITY_FIELD_NUMBER: _ClassVar[int]
    BROKER_SENT_AT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_SEQ_FIELD_NUMBER: _ClassVar[int]
    CLIENT_REFERENCE_ID_FIELD_NUMBER: _ClassVar[int]
    INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRADE_ID_FIELD_NUMBER: _ClassVar[int]
    FEE_FIELD_NUMBER: _ClassVar[int]
    account_id: str
    order_id: str
    client_order_id: str
    symbol: str
    side: OrderSide
    quantity: str
    price: str
    received_at: _timestamp_pb2.Timestamp
    organization_id: str
    exec_id: str
    cumulative_quantity: str
    order_quantity: str
    leaves_quantity: str
    broker_sent_at: _timestamp_pb2.Timestamp
    command_seq: int
    client_reference_id: str
    intent_id: str
    trade_id: str
    fee: str
    def __init__(self, account_id: _Optional[str] = ..., order_id: _Optional[str] = ..., client_order_id: _Optional[str] = ..., symbol: _Optional[str] = ..., side: _Optional[_Union[OrderSide, str]] = ..., quantity: _Optional[str] = ..., price: _Optional[str] = ..., received_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., organization_id: _Optional[str] = ..., exec_id: _Optional[str] = ..., cumulative_quantity: _Optional[str] = ..., order_quantity: _Optional[str] = ..., leaves_quantity: _Optional[str] = ..., broker_sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., command_seq: _Optional[int] = ..., client_reference_id: _Optional[str] = ..., intent_id: _Optional[str] = ..., trade_id: _Optional[str] = ..., fee: _Optional[str] = ...) -> None: ...

class IntentAction(_message.Message):
    __slots__ = ("intent_id", "organization_id", "account_id", "seq", "action_type", "symbol", "order_side", "order_type", "limit_price", "stop_price", "order_venue", "time_in_force", "quantity", "client_reference_id", "principal_type", "received_at", "created_at", "trail_amount", "trail_bps", "leg", "parent_intent_id")
    INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    ORDER_SIDE_FIELD_NUMBER: _ClassVar[int]
    ORDER_TYPE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_PRICE_FIELD_NUMBER: _ClassVar[int]
    STOP_PRICE_FIELD_NUMBER: _ClassVar[int]
    ORDER_VENUE_FIELD_NUMBER: _ClassVar[int]
    TIME_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_REFERENCE_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    TRAIL_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    TRAIL_BPS_FIELD_NUMBER: _ClassVar[int]
    LEG_FIELD_NUMBER: _ClassVar[int]
    PARENT_INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    intent_id: str
    organization_id: str
    account_id: str
    seq: int
    action_type: IntentActionType
    symbol: str
    order_side: OrderSide
    order_type: OrderType
    limit_price: str
    stop_price: str
    order_venue: OrderVenue
    time_in_force: TimeInForce
    quantity: str
    client_reference_id: str
    principal_type: IntentPrincipalType
    received_at: _timestamp_pb2.Timestamp
    created_at: _timestamp_pb2.Timestamp
    trail_amount: str
    trail_bps: int
    leg: str
    parent_intent_id: str
    def __init__(self, intent_id: _Optional[str] = ..., organization_id: _Optional[str] = ..., account_id: _Optional[str] = ..., seq: _Optional[int] = ..., action_type: _Optional[_Union[IntentActionType, str]] = ..., symbol: _Optional[str] = ..., order_side: _Optional[_Union[OrderSide, str]] = ..., order_type: _Optional[_Union[OrderType, str]] = ..., limit_price: _Optional[str] = ..., stop_price: _Optional[str] = ..., order_venue: _Optional[_Union[OrderVenue, str]] = ..., time_in_force: _Optional[_Union[TimeInForce, str]] = ..., quantity: _Optional[str] = ..., client_reference_id: _Optional[str] = ..., principal_type: _Optional[_Union[IntentPrincipalType, str]] = ..., received_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., trail_amount: _Optional[str] = ..., trail_bps: _Optional[int] = ..., leg: _Optional[str] = ..., parent_intent_id: _Optional[str] = ...) -> None: ...

class Balance(_message.Message):
    __slots__ = ("account_id", "organization_id", "broker", "currency", "cash", "buying_power", "equity", "as_of")
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    CASH_FIELD_NUMBER: _ClassVar[int]
    BUYING_POWER_FIELD_NUMBER: _ClassVar[int]
    EQUITY_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    account_id: str
    organization_id: str
    broker: str
    currency: str
    cash: str
    buying_power: str
    equity: str
    as_of: _timestamp_pb2.Timestamp
    def __init__(self, account_id: _Optional[str] = ..., organization_id: _Optional[str] = ..., broker: _Optional[str] = ..., currency: _Optional[str] = ..., cash: _Optional[str] = ..., buying_power: _Optional[str] = ..., equity: _Optional[str] = ..., as_of: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ("id", "organization_id", "account_id", "state", "reason", "orders", "orders_done", "positions", "positions_done", "principal_type", "principal_id", "created_at", "updated_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_DONE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_DONE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    organization_id: str
    account_id: str
    state: str
    reason: str
    orders: int
    orders_done: int
    positions: int
    positions_done: int
    principal_type: IntentPrincipalType
    principal_id: str
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., organization_id: _Optional[str] = ..., account_id: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., orders: _Optional[int] = ..., orders_done: _Optional[int] = ..., positions: _Optional[int] = ..., positions_done: _Optional[int] = ..., principal_type: _Optional[_Union[IntentPrincipalType, str]] = ..., principal_id: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
