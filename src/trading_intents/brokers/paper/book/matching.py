"""The matching engine: an account's book of a symbol. The same commands and quotes make the same
orders, cash, position and events. Never fills an order from a size that the account used."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from trading_intents.brokers.paper import model
from trading_intents.brokers.paper.book import accounting, linked, rules
from trading_intents.brokers.paper.model import (
    PaperEvent,
    PaperOrder,
    PaperOrderStatus,
    Quote,
    Source,
)
from trading_intents.brokers.paper.prices import walk_middle_cents
from trading_intents.brokers.port import (
    REPLACED_BY_BROKER,
    BrokerEvent,
    EventKind,
    LegTicket,
    OrderTicket,
)
from trading_intents.trading import (
    ZERO,
    Leg,
    OrderKind,
    OrderSide,
    Symbol,
    TimeInForce,
    exact,
    quotient,
    terms_of,
)

OTHER_ORDER = "another_order"
# What a step of an order changes beside orders and events.
_CHANGING = ("account", "holding", "overfill", "_trade_left", "_just_grown")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class OrderBook:
    seed: int
    account_id: str
    symbol: Symbol
    account: model.PaperAccount
    holding: model.PaperHolding
    orders: dict[int, PaperOrder]  # working orders, and one that a command names
    quote: Quote | None = None
    overfill: bool = False  # a scripted fault: the next fill is twice what it should be
    events: list[PaperEvent] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    # Orders that ended because a step of theirs raised an error.
    failed: list[tuple[PaperOrder, Exception]] = field(default_factory=list)
    # As they were before the present step; None: it made them.
    _before: dict[int, PaperOrder | None] = field(default_factory=dict)
    _trade_left: Decimal = ZERO
    # Exits of which the present event filled the entry.
    _just_grown: frozenset[int] = frozenset()
    _levels: rules.PriceLevels | None = None
    # Up to where the market was looked at without a match; kept in memory only.
    checked_tick: int = 0
    checked_quote: int = 0

    @property
    def levels(self) -> rules.PriceLevels:
        if self._levels is None:
            self._levels = rules.price_levels(self.working())
        return self._levels

    @property
    def follows_walk(self) -> bool:
        return self.holding.source is not Source.POSTED

    def is_reached(self, tick: int) -> bool:
        """Whether the walk has come to an order since it was looked at last."""
        if self.checked_tick >= tick:
            return False
        checked = max(self.checked_tick, self.holding.number)
        if self.next_match_tick(checked, tick) is not None:
            return True
        self.checked_tick = tick
        return False

    def next_match_tick(self, after: int, until: int) -> int | None:
        """The first tick of the walk at which an order could match; the walk is computed only as
        often as it can have come near."""
        tick = after + 1
        while tick <= until:
            away = self.levels.cents_away(walk_middle_cents(self.seed, self.symbol, tick))
            if away == 0:
                return tick
            tick += away
        return None

    def show(self, quote: Quote) -> None:
        """Sets the present quote, for new orders; resting orders have been matched with it
        already."""
        self.quote = quote
        if (quote.source, quote.number) != (self.holding.source, self.holding.number):
            self.holding = replace(
                self.holding,
                source=quote.source,
                number=quote.number,
                bid_taken=ZERO,
                ask_taken=ZERO,
            )

    def feed(self, quote: Quote) -> None:
        with exact():
            self._expire(quote.at)
            self.show(quote)
            self._trade_left = quote.last_size or ZERO
            self._just_grown = frozenset()
            queue = self._queue()
            queue.sort(key=lambda each: linked.matching_rank(self.orders, each))
            for order in queue:
                is_older = quote.source is Source.POSTED and quote.number <= order.seen_quote
                if order.number not in self._just_grown and not is_older:
                    work = partial(self._work, order.number, quote.at, arrived=False)
                    self._try(order, quote.at, work)
            self._trade_left = ZERO

    def keep_time(self, now: datetime) -> None:
        """Does what is due without a market event: orders expire, and moves of stops are
        reported."""
        with exact():
            self._expire(now)
            for order in self._queue():
                if order.report_due_at:
                    self._try(order, now, partial(self._report_stop, order, now))

    def execute(
        self,
        command: str,
        order: PaperOrder | None,
        ticket: OrderTicket,
        at: datetime,
        refusal: str | None = None,
    ) -> tuple[PaperOrder | None, str | None]:
        """Gives the order, and the reason against the command, if there is one."""
        match command:
            case "SUBMIT":
                order = self.submit(ticket, at, refusal)
                is_refused = order.status is PaperOrderStatus.REJECTED
                return order, self.events[-1].event.reason if is_refused else None
            case "REPLACE":
                return order, self.replace(order, ticket, at, refusal)
            case _:
                return order, self.cancel(order, ticket.client_order_id, at, refusal)

    def legs_of(self, number: int | None) -> set[int]:
        orders = self.orders.values()
        return {each.number for each in orders if number and each.parent == number}

    def submit(self, ticket: OrderTicket, at: datetime, refusal: str | None = None) -> PaperOrder:
        """Gives the order as it is then, perhaps REJECTED. `refusal` is a scripted one. Legs are
        accepted with it or not at all; the next market event is the first that they are matched
        with."""
        with exact():
            self._expire(at)
            order = self._accepted(ticket, at)
            self._try(order, at, partial(self._take, order, at, refusal, ticket.legs))
            return self.orders[order.number]

    def _take(
        self,
        order: PaperOrder,
        at: datetime,
        reason: str | None,
        legs: Sequence[LegTicket],
    ) -> None:
        reason = reason or rules.find_flaw(order)
        for leg in legs:
            reason = reason or rules.find_flaw(leg)
        reason = reason or accounting.lacks_position(order, self._queue(), self.holding)
        if reason is None:
            order = self._with_reserve(order, at, legs)
            reason = accounting.lacks_power(order, self.account)
        if reason:
            order = replace(order, status=PaperOrderStatus.REJECTED, reserve_price=ZERO)
            self._put(order)
            self._emit(order, EventKind.REJECTED, at, reason=reason)
            return
        self._put(order)
        self._emit(order, EventKind.ACCEPTED, at)
        for leg in legs:
            self._accept_leg(order, leg, at)
        self._work(order.number, at, arrived=True)

    def _accepted(self, ticket: OrderTicket | LegTicket, at: datetime) -> PaperOrder:
        number = self.account.events + 1
        return PaperOrder(
            number=number,
            broker_order_id=model.made_order_id(self.seed, self.account_id, number),
            client_order_id=ticket.client_order_id,
            rank=number,
            symbol=ticket.symbol,
            side=ticket.side,
            kind=ticket.kind,
            accepted_at=at,
            expires_at=model.expiry(ticket.time_in_force, at),
            seen_quote=self.holding.posted_number,
            **terms_of(ticket),
        )

    def _accept_leg(self, entry: PaperOrder, leg: LegTicket, at: datetime) -> None:
        order = self._accepted(leg, at)
        order = replace(
            order, parent=entry.number, leg=leg.leg, is_held=leg.leg is not Leg.ONE_CANCELS_OTHER
        )
        self._put(order)
        self._emit(order, EventKind.ACCEPTED, at)

    def replace(
        self,
        order: PaperOrder | None,
        ticket: OrderTicket,
        at: datetime,
        refusal: str | None = None,
    ) -> str | None:
        """Gives the reason against it, or None."""
        with exact():
            self._expire(at)
            order = order and self.orders.get(order.number, order)
            reason = refusal or rules.unchangeable(order)
            if order is None or reason:
                client_id = ticket.client_order_id
                self._emit(order, EventKind.REPLACE_REJECTED, at, client_id, reason=reason)
                return reason
            step = partial(self._replace, order, ticket, at)
            return self._try(order, at, step)

    def _replace(self, order: PaperOrder, ticket: OrderTicket, at: datetime) -> str | None:
        changed, reason = self._amended(order, ticket, at)
        if changed is None or reason:
            client_id = ticket.client_order_id
            self._emit(order, EventKind.REPLACE_REJECTED, at, client_id, reason=reason)
            return reason
        self._put(changed)
        self._emit(changed, EventKind.REPLACED, at, replaces=order.client_order_id)
        if changed.is_working:
            self._work(order.number, at, arrived=True)
        else:
            self._change(linked.after_end(self.orders, changed), at)
        return None

    def cancel(
        self,
        order: PaperOrder | None,
        client_order_id: str,
        at: datetime,
        refusal: str | None = None,
    ) -> str | None:
        """Gives the reason against it, or None."""
        with exact():
            self._expire(at)
            order = order and self.orders.get(order.number, order)
            reason = refusal or rules.unchangeable(order)
            if order is None or reason:
                self._emit(order, EventKind.CANCEL_REJECTED, at, client_order_id, reason=reason)
                return reason
            status = PaperOrderStatus.CANCELLED
            end = partial(self._end, order, status, at, client_order_id=client_order_id)
            self._try(order, at, end)
            return None

    def _amended(
        self, order: PaperOrder, ticket: OrderTicket, at: datetime
    ) -> tuple[PaperOrder | None, str | None]:
        """Gives the replaced order, at the end of the queue; or the reason against it."""
        if (ticket.symbol, ticket.side, ticket.kind) != (order.symbol, order.side, order.kind):
            return None, OTHER_ORDER
        same_time = ticket.time_in_force is order.time_in_force
        changed = replace(
            order,
            client_order_id=ticket.client_order_id,
            rank=self.account.events + 1,
            seen_quote=self.holding.posted_number,
            expires_at=order.expires_at if same_time else model.expiry(ticket.time_in_force, at),
            **terms_of(ticket),
        )
        was_trailed = order.kind is OrderKind.TRAILING_STOP and order.best_price is not None
        if was_trailed and self.quote is not None:
            changed = rules.with_stop(changed, self.quote)
        # How much it works is the venue's business.
        if order.leg or linked.pair_of(self.orders, order):
            changed = replace(changed, quantity=order.quantity)
            if ticket.time_in_force in rules.KILLED:  # it may be held, and could not end at once
                return None, rules.NOT_OFFERED
        flaw = rules.find_flaw(ticket)
        if flaw:
            return None, flaw
        if changed.quantity <= order.filled and not linked.may_grow(self.orders, order):
            return replace(changed, status=PaperOrderStatus.FILLED), None
        changed = self._with_reserve(changed, at)
        reason = accounting.lacks_position(changed, self._queue(), self.holding)
        reason = reason or accounting.lacks_power(changed, self.account, released=order.reserved)
        return changed, reason

    def take_changed(self) -> list[PaperOrder]:
        """The orders that changed since; the book forgets those that have ended."""
        changed = [self.orders[number] for number in sorted(self.changed)]
        for order in changed:
            if not order.is_working:
                del self.orders[order.number]
        self.changed.clear()
        return changed

    def working(self) -> list[PaperOrder]:
        orders = self.orders.values()
        return [order for order in orders if order.is_working]

    def _queue(self) -> list[PaperOrder]:
        return sorted(self.working(), key=lambda order: order.rank)

    def _with_reserve(
        self, order: PaperOrder, at: datetime, legs: Sequence[LegTicket] = ()
    ) -> PaperOrder:
        quote = self.quote if self.quote is not None and self.quote.is_fresh(at) else None
        return accounting.with_reserve(order, self._queue(), self.holding, quote, legs)

    def _expire(self, at: datetime) -> None:
        for order in self._queue():
            if order.expires_at > at:
                continue
            if self.orders[order.number].is_working:
                days = order.time_in_force is TimeInForce.GOOD_TILL_CANCEL
                reason = "good_till_cancel_ended" if days else "day_ended"
                ended_at = order.expires_at
                status = PaperOrderStatus.EXPIRED
                self._try(order, ended_at, partial(self._end, order, status, ended_at, reason))

    def _try(self, order: PaperOrder, at: datetime, step: Callable[[], T]) -> T | None:
        """Runs a step of an order. One that fails changes nothing, and ends its order alone."""
        before = [(name, getattr(self, name)) for name in _CHANGING]
        events = len(self.events)
        self._before.clear()
        try:
            return step()
        except Exception as error:
            for name, value in before:
                setattr(self, name, value)
            del self.events[events:]
            for number, was in self._before.items():
                if was:
                    self.orders[number] = was
                else:
                    del self.orders[number]
                    self.changed.discard(number)
            self.failed.append((order, error))
            self._reject(self.orders.get(order.number, order), at)
            return None

    def _reject(self, order: PaperOrder, at: datetime) -> None:
        """An order with fills is cancelled: its fills stay."""
        status = PaperOrderStatus.CANCELLED if order.filled else PaperOrderStatus.REJECTED
        ended = replace(order, status=status)
        self._put(ended)
        # The end is the latest report: a quote may be older than the order.
        at = max(at, order.accepted_at, order.told_at or at)
        self._emit(ended, EventKind(status.value), at, reason=rules.FAILED)
        with suppress(Exception):  # what is linked to it goes on without it
            self._change([*linked.after_end(self.orders, ended)], at)

    def _work(self, number: int, at: datetime, arrived: bool) -> None:
        order = self.orders[number]
        if order.leaves == 0:
            return  # its pair ended it in this event, or it is an exit with nothing to close
        quote = self.quote if self.quote is not None and self.quote.is_fresh(at) else None
        if order.waits_for_trigger:
            if quote is None:
                return
            if order.kind is OrderKind.TRAILING_STOP:
                order = self._trail(order, quote, at)
            if not rules.is_triggered(order, quote):
                return
            order = replace(order, triggered=True)
            self._put(order)
            self._emit(order, EventKind.TRIGGERED, at)
            arrived = True
        if quote is not None:
            self._trade(order, quote, at, arrived)
        rest = self.orders[number]
        if rest.is_working and rest.time_in_force in rules.KILLED:
            self._end(rest, PaperOrderStatus.CANCELLED, at, rules.KILLED[rest.time_in_force])

    def _trail(self, order: PaperOrder, quote: Quote, at: datetime) -> PaperOrder:
        moved = rules.with_stop(order, quote)
        if moved != order:
            self._put(moved)
        return self._report_stop(moved, at, at_once=rules.is_triggered(moved, quote))

    def _report_stop(self, order: PaperOrder, at: datetime, at_once: bool = False) -> PaperOrder:
        due_at = order.report_due_at
        if due_at is None or order.stop_price is None or (due_at > at and not at_once):
            return order
        order = replace(order, told_stop=order.stop_price, told_at=at)
        self._put(order)
        self._report_change(order, at)
        return order

    def _change(self, changes: Iterable[linked.Change], at: datetime) -> None:
        for order, kind, reason in changes:
            if kind is EventKind.REPLACED:
                # A quote may be older than a command that was worked before it: the last report
                # must be the latest.
                order = replace(order, told_at=max(at, order.told_at or at))
            self._put(order)
            if kind is EventKind.REPLACED:
                self._report_change(order, order.told_at or at)
            elif kind:
                self._emit(order, kind, at, reason=reason)

    def _report_change(self, order: PaperOrder, at: datetime) -> None:
        self._emit(
            order,
            EventKind.REPLACED,
            at,
            replaces=order.client_order_id,
            quantity=order.quantity,
            price=model.price_of(order),
            reason=REPLACED_BY_BROKER,
        )

    def _trade(self, order: PaperOrder, quote: Quote, at: datetime, arrived: bool) -> None:
        limit = order.limit_price
        if rules.touches(order, quote):
            # A new order trades at the price of the market; a resting order at its own limit.
            price = rules.market_price(order, quote) if arrived or limit is None else limit
            if order.side is OrderSide.BUY:
                left = quote.ask_size - self.holding.ask_taken
            else:
                left = quote.bid_size - self.holding.bid_taken
            self._fill(order, min(order.leaves, left), price, at)
        order = self.orders[order.number]
        if not arrived and limit is not None and rules.is_traded_through(order, quote):
            size = min(order.leaves, self._trade_left)
            if self._fill(order, size, limit, at, displayed=False):
                self._trade_left -= size

    def _fill(
        self, order: PaperOrder, size: Decimal, price: Decimal, at: datetime, displayed: bool = True
    ) -> bool:
        """Fills the order; whether anything was filled. An order that the account may not fill
        ends."""
        whole = order.time_in_force is TimeInForce.FILL_OR_KILL
        allowed, reason = accounting.find_allowed(order, self.account, self.holding, size, price)
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
        filled = self._book_fill(order, quantity, price, at)
        if filled.status is PaperOrderStatus.FILLED:
            self._change(linked.after_end(self.orders, filled), at)
        elif reason:
            self._end(filled, PaperOrderStatus.CANCELLED, at, reason)
        return True

    def _book_fill(
        self, order: PaperOrder, quantity: Decimal, price: Decimal, at: datetime
    ) -> PaperOrder:
        filled, self.account, self.holding = accounting.booked(
            order, self.account, self.holding, quantity, price
        )
        if filled.quantity <= filled.filled and not linked.may_grow(self.orders, filled):
            filled = replace(filled, status=PaperOrderStatus.FILLED)
        self._set(filled)
        exec_id = model.made_id(self.seed, self.account_id, "fill", self.account.events + 1)
        self._emit(filled, EventKind.FILL, at, exec_id=exec_id, quantity=quantity, price=price)
        exits = linked.exits_of(self.orders, filled)
        self._just_grown = self._just_grown.union(each.number for each in exits)
        self._change(linked.after_fill(self.orders, filled, quantity), at)
        return filled

    def _end(
        self,
        order: PaperOrder,
        status: PaperOrderStatus,
        at: datetime,
        reason: str | None = None,
        client_order_id: str | None = None,
    ) -> None:
        ended = replace(order, status=status)
        self._put(ended)
        self._emit(ended, EventKind(status.value), at, client_order_id, reason=reason)
        self._change(linked.after_end(self.orders, ended, reason), at)

    def _put(self, order: PaperOrder) -> None:
        before = self.orders.get(order.number)
        delta = order.reserved - (before.reserved if before else ZERO)
        self.account = replace(self.account, reserved=self.account.reserved + delta)
        self._set(order)

    def _set(self, order: PaperOrder) -> None:
        self._before.setdefault(order.number, self.orders.get(order.number))
        self.orders[order.number] = order
        self.changed.add(order.number)
        self._levels = None

    def _emit(
        self,
        order: PaperOrder | None,
        kind: EventKind,
        at: datetime,
        client_order_id: str | None = None,
        **fields: Any,
    ) -> None:
        """`fields` are the event's own, beside those that its order has."""
        self.account = replace(self.account, events=self.account.events + 1)
        event = BrokerEvent(
            kind=kind,
            dedupe_key=f"paper:{self.account.events}",
            client_order_id=client_order_id or (order.client_order_id if order else None),
            broker_order_id=order.broker_order_id if order else None,
            symbol=self.symbol,
            side=order.side if order else None,
            fee=ZERO if kind is EventKind.FILL else None,
            cum_quantity=order.filled if order else None,
            leaves_quantity=order.leaves if order else None,
            average_price=quotient(order.paid, order.filled) if order and order.filled else None,
            broker_status=order.status if order else None,
            venue_time=at,
            raw=self.quote.name
            if self.quote and kind in (EventKind.FILL, EventKind.TRIGGERED)
            else "",
            **fields,
        )
        self.events.append(PaperEvent(order.number if order else None, event, self.account.events))
