"""The matching engine: one account's book of one symbol. Commands and quotes go in; orders, cash, position and events
come out. Pure: the same inputs, the same outcome. Never fills an order from a size that the account used already."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from msgspec.structs import asdict, replace

from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperHolding,
    PaperOrder,
    PaperOrderStatus,
    PaperTerms,
    Quote,
    expiry,
    made_id,
)
from trading_intents.brokers.paper.rules import (
    PriceLevels,
    find_flaw,
    is_traded_through,
    is_triggered,
    market_price,
    price_levels,
    touches,
)
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.trading import ZERO, FrozenStruct, OrderSide, Symbol, TimeInForce, exact, quotient

NO_BUYING_POWER, NO_POSITION, LONG_POSITION = "insufficient_buying_power", "no_position_to_sell", "position_is_long"
UNKNOWN_ORDER, TOO_LATE, OTHER_ORDER = "unknown_order", "too_late", "another_order"
_KILLED = {
    TimeInForce.IMMEDIATE_OR_CANCEL: "immediate_or_cancel",
    TimeInForce.FILL_OR_KILL: "fill_or_kill",
}


class PaperEvent(FrozenStruct, frozen=True):
    order: int | None
    event: BrokerEvent
    place: int  # its number in the account


@dataclass(slots=True)
class OrderBook:
    seed: int
    account_id: str
    symbol: Symbol
    account: PaperAccount
    holding: PaperHolding
    orders: dict[int, PaperOrder]  # working orders, and one that a command names
    quote: Quote | None = None
    overfill: bool = False  # a scripted fault: the next fill is twice what it should be
    events: list[PaperEvent] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    _trade_left: Decimal = ZERO
    _levels: PriceLevels | None = None
    # Up to where the market was looked at without a match; kept in memory only.
    checked_tick: int = 0
    checked_quote: int = 0

    @property
    def levels(self) -> PriceLevels:
        if self._levels is None:
            self._levels = price_levels(o for o in self.orders.values() if o.status is PaperOrderStatus.WORKING)
        return self._levels

    def show(self, quote: Quote) -> None:
        """Sets the present quote, for new orders; resting orders have been matched with it already."""
        self._see(quote, trades=False)

    def feed(self, quote: Quote) -> None:
        """Matches every resting order with a market event, in order of acceptance."""
        with exact():
            self._expire(quote.at)
            self._see(quote, trades=True)
            for order in self._queue():
                self._work(order.number, quote.at, arrived=False)
            self._trade_left = ZERO

    def expire(self, now: datetime) -> None:
        with exact():
            self._expire(now)

    def submit(self, client_order_id: str, terms: PaperTerms, at: datetime, refusal: str | None = None) -> PaperOrder:
        """Gives the order as accepted or REJECTED; `orders` has its final state. `refusal` is a scripted one."""
        with exact():
            self._expire(at)
            number = self.account.orders + 1
            self.account = replace(self.account, orders=number, places=self.account.places + 1)
            order = PaperOrder(
                number=number,
                broker_order_id=made_id(self.seed, self.account_id, "order", number),
                client_order_id=client_order_id,
                place=self.account.places,
                accepted_at=at,
                expires_at=expiry(terms.time_in_force, at),
                **asdict(terms),
            )
            reason = refusal or find_flaw(terms) or self._lacks_position(order)
            order = order if reason else self._with_reserve(order, at)
            reason = reason or self._lacks_power(order, ZERO)
            if reason:
                order = replace(order, status=PaperOrderStatus.REJECTED, reserve_price=ZERO)
            self._put(order)
            self._emit(order, EventKind.REJECTED if reason else EventKind.ACCEPTED, at, reason=reason)
            if not reason:
                self._work(number, at, arrived=True)
            return order

    def replace(
        self,
        order: PaperOrder | None,
        client_order_id: str,
        terms: PaperTerms,
        at: datetime,
        refusal: str | None = None,
    ) -> str | None:
        """Why not, or None."""
        with exact():
            self._expire(at)
            order = order and self.orders[order.number]
            changed, reason = self._amended(order, client_order_id, terms, at)
            reason = refusal or reason
            if order is None or changed is None or reason:
                self._emit(order, EventKind.REPLACE_REJECTED, at, client_order_id=client_order_id, reason=reason)
                return reason
            self._put(changed)
            self._emit(changed, EventKind.REPLACED, at, replaces=order.client_order_id)
            if changed.status is PaperOrderStatus.WORKING:
                self._work(order.number, at, arrived=True)
            return None

    def cancel(
        self, order: PaperOrder | None, client_order_id: str, at: datetime, refusal: str | None = None
    ) -> str | None:
        """Why not, or None."""
        with exact():
            self._expire(at)
            order = order and self.orders[order.number]
            reason = refusal or _unchangeable(order)
            if order is None or reason:
                self._emit(order, EventKind.CANCEL_REJECTED, at, client_order_id=client_order_id, reason=reason)
                return reason
            self._end(order, PaperOrderStatus.CANCELLED, at, None, client_order_id)
            return None

    def _amended(
        self, order: PaperOrder | None, client_order_id: str, terms: PaperTerms, at: datetime
    ) -> tuple[PaperOrder | None, str | None]:
        """Gives the replaced order, at the end of the queue; or the reason against it."""
        reason = _unchangeable(order)
        if order is None or reason:
            return None, reason
        if (terms.symbol, terms.side, terms.kind) != (order.symbol, order.side, order.kind):
            return None, OTHER_ORDER
        self.account = replace(self.account, places=self.account.places + 1)
        same_time = terms.time_in_force is order.time_in_force
        changed = replace(
            order,
            client_order_id=client_order_id,
            place=self.account.places,
            expires_at=order.expires_at if same_time else expiry(terms.time_in_force, at),
            **asdict(terms),
        )
        flaw = find_flaw(terms)
        if flaw:
            return None, flaw
        if terms.quantity <= order.filled:
            return replace(changed, status=PaperOrderStatus.FILLED), None
        changed = self._with_reserve(changed, at)
        return changed, self._lacks_position(changed) or self._lacks_power(changed, order.reserved)

    def _queue(self) -> list[PaperOrder]:
        working = (order for order in self.orders.values() if order.status is PaperOrderStatus.WORKING)
        return sorted(working, key=lambda order: order.place)

    def _others(self, order: PaperOrder, side: OrderSide) -> list[PaperOrder]:
        return [other for other in self._queue() if other.side is side and other.number != order.number]

    def _see(self, quote: Quote, trades: bool) -> None:
        self.quote = quote
        self._trade_left = quote.last_size or ZERO if trades else ZERO
        if (quote.source, quote.number) != (self.holding.source, self.holding.number):
            self.holding = replace(
                self.holding, source=quote.source, number=quote.number, bid_taken=ZERO, ask_taken=ZERO
            )

    def _expire(self, at: datetime) -> None:
        for order in self._queue():
            if order.expires_at <= at:
                days = order.time_in_force is TimeInForce.GOOD_TILL_CANCEL
                self._end(
                    order, PaperOrderStatus.EXPIRED, order.expires_at, "good_till_cancel_ended" if days else "day_ended"
                )

    def _work(self, number: int, at: datetime, arrived: bool) -> None:
        order, quote = self.orders[number], self.quote
        fresh = quote is not None and quote.is_fresh(at)
        if order.waits_for_trigger:
            if quote is None or not fresh or not is_triggered(order, quote):
                return
            order = replace(order, triggered=True)
            self._put(order)
            self._emit(order, EventKind.TRIGGERED, at)
            arrived = True
        if quote is not None and fresh:
            self._trade(order, quote, at, arrived)
        rest = self.orders[number]
        if rest.status is PaperOrderStatus.WORKING and rest.time_in_force in _KILLED:
            self._end(rest, PaperOrderStatus.CANCELLED, at, _KILLED[rest.time_in_force])

    def _trade(self, order: PaperOrder, quote: Quote, at: datetime, arrived: bool) -> None:
        limit = order.limit_price
        if touches(order, quote):
            # A new order trades at the price of the market; a resting order at its own limit.
            price = market_price(order, quote) if arrived or limit is None else limit
            if order.side is OrderSide.BUY:
                left = quote.ask_size - self.holding.ask_taken
            else:
                left = quote.bid_size - self.holding.bid_taken
            self._fill(order, min(order.leaves, left), price, at)
        order = self.orders[order.number]
        if not arrived and limit is not None and is_traded_through(order, quote):
            size = min(order.leaves, self._trade_left)
            if self._fill(order, size, limit, at, displayed=False):
                self._trade_left -= size

    def _fill(self, order: PaperOrder, size: Decimal, price: Decimal, at: datetime, displayed: bool = True) -> bool:
        """Fills the order; whether anything was filled. An order that the account may not fill ends."""
        whole = order.time_in_force is TimeInForce.FILL_OR_KILL
        allowed, reason = self._allowed(order, size, price)
        if allowed <= 0 or (whole and allowed < order.leaves):
            if reason and size > 0 and not whole:
                self._end(order, PaperOrderStatus.CANCELLED, at, reason)
            return False
        if displayed and order.side is OrderSide.BUY:
            self.holding = replace(self.holding, ask_taken=self.holding.ask_taken + allowed)
        elif displayed:
            self.holding = replace(self.holding, bid_taken=self.holding.bid_taken + allowed)
        quantity = allowed * 2 if self.overfill else allowed
        self.overfill = False
        filled, self.account, self.holding = self._booked(order, quantity, price)
        self.orders[order.number] = filled
        self.changed.add(order.number)
        self._levels = None
        exec_id = made_id(self.seed, self.account_id, "fill", self.account.events + 1)
        self._emit(filled, EventKind.FILL, at, exec_id=exec_id, quantity=quantity, price=price)
        if reason and filled.status is PaperOrderStatus.WORKING:
            self._end(filled, PaperOrderStatus.CANCELLED, at, reason)
        return True

    def _allowed(self, order: PaperOrder, size: Decimal, price: Decimal) -> tuple[Decimal, str | None]:
        """Gives how much of it the account may trade, and why not more."""
        if size <= 0:
            return ZERO, None
        if order.side is OrderSide.SELL:
            held = max(self.holding.position, ZERO)
            return min(size, held), NO_POSITION if order.leaves > held else None
        _, account, holding = self._booked(order, size, price)
        # Buying a short back lowers risk, so it needs no buying power.
        grows = abs(holding.position) > abs(self.holding.position)
        return (ZERO, NO_BUYING_POWER) if grows and account.buying_power < 0 else (size, None)

    def _booked(
        self, order: PaperOrder, quantity: Decimal, price: Decimal
    ) -> tuple[PaperOrder, PaperAccount, PaperHolding]:
        held = self.holding
        signed = quantity if order.side is OrderSide.BUY else -quantity
        after, short_value = held.position + signed, held.short_value
        if after >= 0:
            short_value = ZERO
        elif signed > 0:
            short_value -= quotient(held.short_value * quantity, -held.position)
        else:
            short_value += min(quantity, -after) * price
        filled = order.filled + quantity
        booked = replace(
            order,
            filled=filled,
            paid=order.paid + quantity * price,
            covers=max(order.covers - quantity, ZERO),
            status=PaperOrderStatus.FILLED if filled >= order.quantity else order.status,
        )
        account = replace(
            self.account,
            cash=self.account.cash - signed * price,
            reserved=self.account.reserved - order.reserved + booked.reserved,
            short_value=self.account.short_value - held.short_value + short_value,
        )
        return booked, account, replace(held, position=after, short_value=short_value)

    def _with_reserve(self, order: PaperOrder, at: datetime) -> PaperOrder:
        """Reserves what the account must be able to pay: at the order's limit, else at the present price."""
        stop, limit = order.stop_price or ZERO, order.limit_price or ZERO
        seen = market_price(order, self.quote) if self.quote is not None and self.quote.is_fresh(at) else ZERO
        match order.side:
            case OrderSide.SELL:
                return order
            case OrderSide.BUY:
                short = max(-self.holding.position, ZERO) - sum(o.covers for o in self._others(order, OrderSide.BUY))
                covers = min(order.leaves, max(short, ZERO))
                return replace(order, covers=covers, reserve_price=limit or max(stop, seen))
            case OrderSide.SELL_SHORT:
                return replace(order, reserve_price=max(limit, stop if order.waits_for_trigger else seen))

    def _lacks_power(self, order: PaperOrder, released: Decimal) -> str | None:
        return NO_BUYING_POWER if order.reserved > max(self.account.buying_power + released, ZERO) else None

    def _lacks_position(self, order: PaperOrder) -> str | None:
        held = self.holding.position
        if order.side is OrderSide.SELL:
            promised = sum((other.leaves for other in self._others(order, OrderSide.SELL)), ZERO)
            return NO_POSITION if order.leaves > held - promised else None
        # Held shares are sold by a SELL; a SELL_SHORT that sold them would be marked wrongly.
        return LONG_POSITION if order.side is OrderSide.SELL_SHORT and held > 0 else None

    def _end(
        self,
        order: PaperOrder,
        status: PaperOrderStatus,
        at: datetime,
        reason: str | None,
        client_order_id: str | None = None,
    ) -> None:
        ended = replace(order, status=status)
        self._put(ended)
        self._emit(ended, EventKind(status.value), at, client_order_id=client_order_id, reason=reason)

    def _put(self, order: PaperOrder) -> None:
        before = self.orders.get(order.number)
        delta = order.reserved - (before.reserved if before else ZERO)
        self.account = replace(self.account, reserved=self.account.reserved + delta)
        self.orders[order.number] = order
        self.changed.add(order.number)
        self._levels = None

    def _emit(
        self,
        order: PaperOrder | None,
        kind: EventKind,
        at: datetime,
        *,
        client_order_id: str | None = None,
        replaces: str | None = None,
        exec_id: str | None = None,
        quantity: Decimal | None = None,
        price: Decimal | None = None,
        reason: str | None = None,
    ) -> None:
        self.account = replace(self.account, events=self.account.events + 1)
        event = BrokerEvent(
            kind=kind,
            dedupe_key=f"paper:{self.account.events}",
            client_order_id=client_order_id or (order.client_order_id if order else None),
            broker_order_id=order.broker_order_id if order else None,
            replaces=replaces,
            exec_id=exec_id,
            symbol=self.symbol,
            side=order.side if order else None,
            quantity=quantity,
            price=price,
            fee=ZERO if kind is EventKind.FILL else None,
            cum_quantity=order.filled if order else None,
            leaves_quantity=order.leaves if order else None,
            average_price=quotient(order.paid, order.filled) if order and order.filled else None,
            broker_status=order.status if order else None,
            venue_time=at,
            reason=reason,
            raw=self.quote.name if self.quote and kind in (EventKind.FILL, EventKind.TRIGGERED) else "",
        )
        self.events.append(PaperEvent(order.number if order else None, event, self.account.events))


def _unchangeable(order: PaperOrder | None) -> str | None:
    if order is None:
        return UNKNOWN_ORDER
    return None if order.status is PaperOrderStatus.WORKING else TOO_LATE
