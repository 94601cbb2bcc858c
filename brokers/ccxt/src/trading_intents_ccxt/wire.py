"""Reads ccxt's rows of orders and executions as broker events. Pure: no I/O, no clock."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from trading_intents.brokers.port import BrokerEvent, EventKind, OrderSnapshot
from trading_intents.brokers.rest_client import BrokerRow
from trading_intents.trading import ZERO, OrderSide, Symbol
from trading_intents_ccxt.venues import Venue

SIDES = {"buy": OrderSide.BUY, "sell": OrderSide.SELL}
SIDE_NAMES = {side: name for name, side in SIDES.items()}


class VenueOrder(BrokerRow, kw_only=True):
    venue: Venue
    id: str
    client_order_id: str | None
    symbol: Symbol
    side: OrderSide
    quantity: Decimal
    filled: Decimal
    average_price: Decimal | None
    state: str  # the venue's own word
    ends_at_once: bool  # what is not filled at once is cancelled

    @property
    def end(self) -> EventKind | None:
        kind = self.venue.ends.get(self.state)
        if kind is EventKind.EXPIRED and self.ends_at_once:
            return EventKind.CANCELLED
        return kind

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.filled >= self.quantity


class VenueTrade(BrokerRow, kw_only=True):
    venue: Venue
    id: str
    order_id: str
    client_order_id: str | None
    symbol: Symbol
    side: OrderSide
    quantity: Decimal
    price: Decimal
    fee: Decimal
    fee_coin: str
    at: datetime


def order_of(venue: Venue, row: dict[str, Any], client_order_id: str | None = None) -> VenueOrder:
    """ValueError, KeyError or TypeError: it cannot be read."""
    average = row["average"]
    is_market = row["type"] == "market"
    return VenueOrder(
        venue=venue,
        id=_text(row["id"]),
        client_order_id=client_order_id or row["clientOrderId"],
        symbol=Symbol(row["symbol"]),
        side=SIDES[row["side"]],
        quantity=_number(row["amount"]),
        filled=_number(row["filled"]),
        average_price=_number(average) if average else None,
        state=_text(row["info"][venue.state]),
        ends_at_once=is_market or row["timeInForce"] in ("IOC", "FOK"),
    )


def trade_of(venue: Venue, row: dict[str, Any], client_order_id: str | None = None) -> VenueTrade:
    """ValueError, KeyError or TypeError: it cannot be read."""
    info = row["info"]
    fee = row["fee"] or {"cost": "0", "currency": ""}
    return VenueTrade(
        venue=venue,
        id=_text(row["id"]),
        order_id=_text(row["order"]),
        client_order_id=client_order_id or info.get("clOrdId") or None,
        symbol=Symbol(row["symbol"]),
        side=SIDES[row["side"]],
        quantity=_number(row["amount"]),
        price=_number(row["price"]),
        fee=_number(fee["cost"]),
        # ccxt takes the coin of Bybit's fee for that of the order.
        fee_coin=info.get("feeCurrency") or fee["currency"],
        at=datetime.fromtimestamp(row["timestamp"] / 1_000, UTC),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"no text: {value!r}")
    return value


def _number(value: object) -> Decimal:
    return Decimal(_text(value)).normalize() + ZERO


def trade_events(trade: VenueTrade) -> Iterator[BrokerEvent]:
    """Its execution, and what the venue took in a coin."""
    key = f"{trade.venue.name}:{trade.symbol}:{trade.id}"
    quote = trade.symbol.partition("/")[2]
    is_money = trade.fee_coin in ("", quote)
    yield BrokerEvent(
        kind=EventKind.FILL,
        dedupe_key=key,
        exec_id=f"{trade.symbol}:{trade.id}",
        client_order_id=trade.client_order_id,
        broker_order_id=trade.order_id,
        symbol=trade.symbol,
        side=trade.side,
        quantity=trade.quantity,
        price=trade.price,
        fee=trade.fee if is_money else None,
        venue_time=trade.at,
    )
    if trade.fee and not is_money:
        yield BrokerEvent(
            kind=EventKind.FEE,
            dedupe_key=f"{key}:fee",
            symbol=Symbol(f"{trade.fee_coin}/{quote}"),
            quantity=trade.fee,
            venue_time=trade.at,
        )


def order_event(
    kind: EventKind, order: VenueOrder, name: str, counted: Decimal | None = None
) -> BrokerEvent:
    return BrokerEvent(
        kind=kind,
        dedupe_key=f"{order.venue.name}:{order.id}:{name}",
        client_order_id=order.client_order_id,
        broker_order_id=order.id,
        symbol=order.symbol,
        side=order.side,
        cum_quantity=counted,
        broker_status=order.state,
    )


def accepted(order: VenueOrder) -> BrokerEvent:
    return order_event(EventKind.ACCEPTED, order, "accepted")


def order_events(order: VenueOrder, trades: Iterable[VenueTrade]) -> list[BrokerEvent]:
    """The events that lead to the order's state, in their order. An execution that is missing is
    counted all the same when the order is over."""
    events = [accepted(order)]
    filled = ZERO
    for trade in sorted(trades, key=lambda each: each.at):
        events += trade_events(trade)
        filled += trade.quantity
    if end := order.end:
        events.append(order_event(end, order, "ended", order.filled))
    elif order.is_over and filled < order.filled:
        events.append(order_event(EventKind.STATUS, order, "filled", order.filled))
    return events


def order_snapshot(order: VenueOrder, events: Sequence[BrokerEvent]) -> OrderSnapshot:
    return OrderSnapshot(
        client_order_id=order.client_order_id,
        broker_order_id=order.id,
        symbol=order.symbol,
        side=order.side,
        quantity=order.quantity,
        events=tuple(events),
    )
