"""Alpaca's capabilities, its JSON beside that of orders, and its reports as broker events. Pure: no
I/O, no clock."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from trading_intents.brokers import port
from trading_intents.brokers.alpaca.order import WAITING, AlpacaOrder, parts_of, total_filled
from trading_intents.brokers.port import BrokerBalance, BrokerEvent, EventKind, OrderSnapshot
from trading_intents.brokers.rest_client import BrokerRow, Moment, execution_event, pair_of
from trading_intents.brokers.ulid import not_before
from trading_intents.trading import (
    Environment,
    FrozenStruct,
    OrderKind,
    OrderSide,
    RouteStrategy,
    Symbol,
    TimeInForce,
)
from trading_intents.trading import amount_text as text

_T = TimeInForce
_K = OrderKind
_E = EventKind
_STOP_TIMES = (_T.DAY, _T.GOOD_TILL_CANCEL)
_MARKET_TIMES = (*_STOP_TIMES, _T.IMMEDIATE_OR_CANCEL, _T.FILL_OR_KILL, _T.AT_OPEN, _T.AT_CLOSE)
CAPABILITIES = port.Capabilities(
    name="alpaca",
    environments=(Environment.PAPER, Environment.LIVE),
    times_in_force=dict.fromkeys((_K.STOP, _K.STOP_LIMIT, _K.TRAILING_STOP), _STOP_TIMES)
    | {_K.MARKET: _MARKET_TIMES, _K.LIMIT: (*_MARKET_TIMES, _T.EXT)},
    routes=(RouteStrategy.SMART,),
    native_replace=True,
    credential_fields=("api_key_id", "api_secret"),
    quantity_step=Decimal("0.000000001"),
    lookup=port.LookupKind.DURABLE,
    unique_order_ids=True,
    requests_per_minute=200,
    tells_balances=True,
    tells_positions=True,
    exits=port.LinkedOrders(
        (OrderSide.BUY, OrderSide.SELL_SHORT), (_K.MARKET, _K.LIMIT), _STOP_TIMES, True
    ),
    one_cancels_other=port.LinkedOrders(
        (OrderSide.BUY, OrderSide.SELL), (_K.LIMIT,), _STOP_TIMES, True
    ),
    bust_reopens=False,
)

NOT_FOUND = 40410000
VALIDATION = 40010001
DUPLICATE = "client_order_id must be unique"
_PENDING = {"pending_cancel": _E.PENDING_CANCEL, "pending_replace": _E.PENDING_REPLACE}
_ENDS = {"canceled": _E.CANCELLED, "expired": _E.EXPIRED}
_EXECUTIONS = {
    "fill": _E.FILL,
    "partial_fill": _E.FILL,
    "trade_bust": _E.FILL_BUST,
    "trade_correct": _E.FILL_CORRECT,
}
COMMAND_REFUSALS = {
    "order_cancel_rejected": _E.CANCEL_REJECTED,
    "order_replace_rejected": _E.REPLACE_REJECTED,
}
_REFUSALS = frozenset({_E.REJECTED, *COMMAND_REFUSALS.values()})


class TradeUpdate(BrokerRow, kw_only=True):
    event: str
    order: AlpacaOrder
    event_id: str = ""
    execution_id: str | None = None
    previous_execution_id: str | None = None
    price: Decimal | None = None
    qty: Decimal | None = None
    timestamp: Moment | None = None


class StreamState(FrozenStruct, kw_only=True):
    status: str = ""
    streams: tuple[str, ...] = ()


class StreamFrame(FrozenStruct, kw_only=True):
    stream: str = ""
    action: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")


class TradeDetails(BrokerRow, kw_only=True):
    order_id: str | None = None
    client_order_id: str | None = None
    symbol: str | None = None
    execution_type: str | None = None  # None: no trade, such as a dividend
    commission: Decimal | None = None


class Activity(BrokerRow, kw_only=True):
    event_id: str
    ref_id: str
    executed_at: Moment
    details: TradeDetails = TradeDetails()
    previous_id: str | None = None
    qty: Decimal | None = None
    price: Decimal | None = None


class FillActivity(BrokerRow, kw_only=True):
    """A row of the older list of activities. Its id is not known to be the execution's."""

    id: str
    order_id: str
    symbol: str
    transaction_time: Moment
    qty: Decimal
    price: Decimal
    cum_qty: Decimal


class FeeActivity(BrokerRow, kw_only=True):
    """A fee of the older list; `qty` is below 0 where it is taken from a coin, and 0 or none where
    it is money."""

    id: str
    status: str
    symbol: str | None = None
    qty: Decimal | None = None
    created_at: Moment | None = None


class AlpacaPosition(BrokerRow, kw_only=True):
    symbol: str
    qty: Decimal
    side: str
    avg_entry_price: Decimal
    asset_class: str = ""


class AlpacaAccount(BrokerRow, kw_only=True):
    id: str
    status: str
    account_number: str | None = None
    account_blocked: bool = False
    trading_blocked: bool = False
    trade_suspended_by_user: bool = False
    currency: str | None = None
    cash: Decimal | None = None
    buying_power: Decimal | None = None
    equity: Decimal | None = None

    def balance(self, as_of: datetime) -> BrokerBalance:
        money = {"cash": self.cash, "buying_power": self.buying_power, "equity": self.equity}
        return BrokerBalance(currency=self.currency, **money, as_of=as_of)

    def notices(self, skew: timedelta) -> tuple[str, ...]:
        """Lists the reasons why it cannot trade. `skew` is between its clock and ours."""
        notices = list[str]()
        if self.status != "ACTIVE":
            notices.append(f"the account is {self.status}")
        if self.account_blocked:
            notices.append("the account is blocked")
        if self.trading_blocked:
            notices.append("trading is blocked")
        if self.trade_suspended_by_user:
            notices.append("its user has suspended trading")
        if skew:
            seconds = abs(skew) // timedelta(seconds=1)
            notices.append(f"our clock and Alpaca's differ by {seconds} s: set up NTP")
        return tuple(notices)


def frame_of(text: str | bytes) -> StreamFrame:
    """Gives an unreadable frame as one of updates, so that it is not passed over."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=StreamFrame)
    return StreamFrame(stream="trade_updates", data=msgspec.Raw(b""))


def answer_of(stream: str) -> Callable[[str | bytes], StreamState | None]:
    """Finds the answer to a message among frames."""

    def find(text: str | bytes) -> StreamState | None:
        frame = frame_of(text)
        if frame.action == "error":
            raise port.BrokerUnavailable("the update stream has an error")
        return msgspec.json.decode(frame.data, type=StreamState) if frame.stream == stream else None

    return find


def order_events(order: AlpacaOrder) -> Iterator[BrokerEvent]:
    """The events that an order's state implies, under the same keys whatever the source."""
    if order.status == "rejected":
        yield _event(order, _E.REPLACE_REJECTED if order.replaces else _E.REJECTED, "rejected")
        return
    if not order.replaces:
        yield replace(_event(order, _E.ACCEPTED, "accepted"), cum_quantity=None, average_price=None)
    elif order.status not in WAITING:
        event = _event(order, _E.REPLACED, "replaced")
        made = {"quantity": order.total, "price": order.price, "reason": port.REPLACED_BY_BROKER}
        yield event if order.total is None else replace(event, **made)
    if order.filled_qty and not order.replaces:
        # Stands in for executions not yet listed.
        yield _event(order, _E.STATUS, f"filled:{text(order.filled_qty)}")
    if kind := _PENDING.get(order.status):
        yield _event(order, kind, order.status)
    yield from _end_events(order)


def _end_events(order: AlpacaOrder) -> Iterator[BrokerEvent]:
    is_done = order.status == "done_for_day" and order.time_in_force == "day"
    if kind := _E.EXPIRED if is_done else _ENDS.get(order.status):
        yield _event(order, kind, kind.lower())


def list_events(orders: Iterable[AlpacaOrder]) -> list[BrokerEvent]:
    events = list[BrokerEvent]()
    for order in orders:
        events += order_events(order)
    return events


def refusal_event(update: TradeUpdate, client_order_id: str) -> BrokerEvent:
    kind = COMMAND_REFUSALS[update.event]
    return replace(
        _event(update.order, kind, f"{kind.lower()}:{client_order_id}"),
        client_order_id=client_order_id,
    )


def _event(order: AlpacaOrder, kind: EventKind, name: str) -> BrokerEvent:
    """A version counts its own fills alone: only the first one's count is the whole order's."""
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"alpaca:{order.id}:{name}",
        **order.names,
        side=order.order_side,
        cum_quantity=None if order.replaces else order.filled_qty,
        average_price=None if order.replaces else order.filled_avg_price,
        broker_status=order.status,
        venue_time=order.updated_at,
        reason=kind.lower() if kind in _REFUSALS else None,
    )


def update_events(update: TradeUpdate, before: Decimal | None = None) -> tuple[BrokerEvent, ...]:
    """`before` is the quantity that earlier versions filled, if known. Raises ValueError if the
    update lacks what identifies its execution."""
    kind = _EXECUTIONS.get(update.event)
    order = update.order
    if kind is None:
        return tuple(order_events(order))
    event = execution_event(
        broker="alpaca",
        kind=kind,
        exec_id=update.execution_id,
        previous_id=update.previous_execution_id,
        quantity=update.qty,
        price=update.price,
    )
    at = update.timestamp
    counted = None
    if kind is not _E.FILL:
        at = not_before(update.event_id, at)
    elif not order.replaces:
        counted = order.filled_qty
    elif before is not None:
        counted = before + order.filled_qty
    named = {**order.names, "side": order.order_side, "cum_quantity": counted, "venue_time": at}
    return (replace(event, **named), *_end_events(order))


def activity_events(activity: Activity) -> tuple[BrokerEvent, ...]:
    """Gives none for a dividend and the like. Raises ValueError if it lacks what identifies its
    execution."""
    details = activity.details
    kind = _EXECUTIONS.get(details.execution_type or "")
    if kind is None:
        return ()
    event = execution_event(
        broker="alpaca",
        kind=kind,
        exec_id=activity.ref_id,
        previous_id=activity.previous_id,
        quantity=activity.qty,
        price=activity.price,
    )
    at: datetime | None = activity.executed_at
    if kind is not _E.FILL:
        at = not_before(activity.event_id, at)
    event = replace(
        event,
        client_order_id=details.client_order_id,
        broker_order_id=details.order_id,
        symbol=Symbol(details.symbol or ""),
        fee=details.commission,
        venue_time=at,
    )
    return (event,)


def fill_event(fill: FillActivity, order: AlpacaOrder, before: Decimal) -> BrokerEvent:
    """An execution without its id, known by its order's count: it stands in for the execution's own
    report, which the stream may have given already. `before` is the quantity that earlier versions
    filled."""
    return BrokerEvent(
        kind=_E.STATUS,
        dedupe_key=fill_key(order.id, fill.cum_qty),
        **order.names,
        side=order.order_side,
        quantity=abs(fill.qty),
        price=fill.price,
        cum_quantity=before + fill.cum_qty,
        venue_time=fill.transaction_time,
    )


def fee_events(fee: FeeActivity) -> tuple[BrokerEvent, ...]:
    """Raises ValueError for a fee that was cancelled or corrected, or that is of no pair of
    coins."""
    if not fee.qty:
        return ()
    symbol = pair_of(fee.symbol or "")
    if fee.status != "executed" or "/" not in symbol:
        raise ValueError(f"a fee that is {fee.status}, of {symbol}")
    event = BrokerEvent(
        kind=_E.FEE,
        dedupe_key=f"alpaca:fee:{fee.id.rpartition('::')[2]}",
        symbol=Symbol(symbol),
        quantity=fee.qty.copy_negate(),
        venue_time=fee.created_at,
    )
    return (event,)


def fill_key(order_id: str, counted: Decimal) -> str:
    return f"alpaca:{order_id}:fill:{text(counted)}"


def chain_snapshot(chain: Sequence[AlpacaOrder], fills: Sequence[BrokerEvent]) -> OrderSnapshot:
    """The last version, with the events of all versions and legs. Its quantity is its own, of which
    a filled one works no more than it filled, and what earlier versions filled."""
    last = chain[-1]
    own = last.filled_qty if last.status == "filled" else last.qty or last.filled_qty
    return OrderSnapshot(
        client_order_id=last.client_order_id or None,
        broker_order_id=last.id,
        symbol=Symbol(last.symbol or ""),
        side=last.order_side,
        quantity=total_filled(chain[:-1]) + own,
        events=(*list_events(parts_of(chain)), *fills),
    )


def lacks_fills(chain: Sequence[AlpacaOrder], fills: Sequence[BrokerEvent]) -> bool:
    """Whether versions filled more than is listed of them. An order of one version has its count
    for what is missing."""
    if len(chain) == 1 and chain[0].replaces is None:
        return False
    ids = {order.id for order in chain}
    listed = dict[str, Decimal]()
    for each in fills:
        if each.broker_order_id in ids:
            name = each.replaces or each.exec_id or each.dedupe_key
            listed[name] = each.quantity or Decimal(0)
    return sum(listed.values()) < total_filled(chain)


def position_event(position: AlpacaPosition, taken_at: datetime) -> BrokerEvent:
    symbol = pair_of(position.symbol) if position.asset_class == "crypto" else position.symbol
    return BrokerEvent(
        kind=_E.POSITION,
        dedupe_key=f"alpaca:position:{symbol}:{taken_at.isoformat()}",
        symbol=Symbol(symbol),
        quantity=-abs(position.qty) if position.side == "short" else abs(position.qty),
        average_price=position.avg_entry_price,
        venue_time=taken_at,
    )
