"""Orders of the blocking client, with what can be done about them."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, force_setattr

from trading_intents_client.asynchronous.orders import (
    WAIT_SECONDS,
    AsyncBasket,
    AsyncOrder,
    AsyncOrderActions,
    AsyncPlacedOrder,
)
from trading_intents_client.asynchronous.requests import Amount, Command
from trading_intents_client.blocking.loop import LoopThread
from trading_intents_client.errors import TradingError
from trading_intents_client.types.enums import (
    FINAL_STATUSES,
    OrderStatusName,
    TimeInForceName,
)
from trading_intents_client.types.trading import OrderRecord


class OrderActions:
    """The commands of an order, by its intent's id."""

    __slots__ = ()
    if TYPE_CHECKING:
        intent_id: str
        _loop: LoopThread
        _wrapped: AsyncOrderActions

    def cancel(self, *, idempotency_key: str | None = None) -> "PlacedOrder":
        """Asks for the order to be cancelled. Safe to repeat while the order is open."""
        return wrap_placed(
            self._loop,
            self._loop.run(lambda: self._wrapped.cancel(idempotency_key=idempotency_key)),
        )

    def replace(
        self,
        *,
        quantity: Amount | None = None,
        limit: Amount | None = None,
        stop: Amount | None = None,
        trail: Amount | None = None,
        trail_bps: int | None = None,
        time_in_force: TimeInForceName | None = None,
        idempotency_key: str | None = None,
    ) -> "PlacedOrder":
        """Changes the order; what is not given stays as the broker last confirmed it. `quantity` is
        the new total."""
        replacing = partial(
            self._wrapped.replace,
            quantity=quantity,
            limit=limit,
            stop=stop,
            trail=trail,
            trail_bps=trail_bps,
            time_in_force=time_in_force,
            idempotency_key=idempotency_key,
        )
        return wrap_placed(self._loop, self._loop.run(replacing))

    def refresh(self) -> "Order":
        """The order as it is now."""
        return wrap_order(self._loop, self._loop.run(self._wrapped.refresh))

    def find_legs(self) -> "list[Order]":
        """The orders that the broker links to this one, its exits or the other of a pair, as they
        are now."""
        return [wrap_order(self._loop, order) for order in self._loop.run(self._wrapped.find_legs)]

    def wait(
        self,
        until: OrderStatusName | Iterable[OrderStatusName] = FINAL_STATUSES,
        timeout: float | timedelta = WAIT_SECONDS,
    ) -> "Order":
        """Waits, by the stream, for a status or for one of several; without `until` for the order's
        end. Without the permission `stream:read` it reads the order again and again.

        Raises WaitTimeout, or OrderEnded when the order ends in another status.
        """
        return wrap_order(self._loop, self._loop.run(lambda: self._wrapped.wait(until, timeout)))


class Order(OrderActions, OrderRecord, frozen=True, kw_only=True, dict=True):
    """An order, and what can be done about it."""


class PlacedOrder(OrderActions, Struct, frozen=True, kw_only=True, dict=True):
    """An accepted command, durable at the platform. `wait()` returns the order when it is final."""

    intent_id: str
    seq: int
    idempotency_key: str | None = None
    # The command was accepted earlier under the same Idempotency-Key.
    is_replayed: bool = False
    # What it is to the order that it was placed with: `take_profit`, `stop_loss` or
    # `one_cancels_other`.
    leg: str | None = None
    # The orders that were placed with it, which the broker links to it.
    legs: tuple["PlacedOrder", ...] = ()


def wrap_order(loop: LoopThread, wrapped: AsyncOrder) -> Order:
    order = Order(**asdict(wrapped))
    force_setattr(order, "_loop", loop)
    force_setattr(order, "_wrapped", wrapped)
    return order


def wrap_placed(loop: LoopThread, wrapped: AsyncPlacedOrder) -> PlacedOrder:
    legs = tuple(wrap_placed(loop, leg) for leg in wrapped.legs)
    placed = PlacedOrder(**asdict(wrapped) | {"legs": legs})
    force_setattr(placed, "_loop", loop)
    force_setattr(placed, "_wrapped", wrapped)
    return placed


class Basket:
    """Commands that are sent side by side. What becomes of one changes nothing for the others: a
    basket is no transaction. Each has its Idempotency-Key from when it is added, so that sending
    all again places none twice."""

    def __init__(self, loop: LoopThread, wrapped: AsyncBasket) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def __len__(self) -> int:
        return len(self._wrapped)

    def add(
        self,
        account_id: str,
        command: Command,
        *,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Adds a command that `create_command`, `replace_command` or `cancel_command` made."""
        self._wrapped.add(
            account_id,
            command,
            client_reference_id=client_reference_id,
            idempotency_key=idempotency_key,
        )

    def send(self) -> list[PlacedOrder | TradingError]:
        """Sends all, and answers in their order what each became: the placed order, or the error of
        it alone."""
        answers = self._loop.run(self._wrapped.send)
        return [
            each if isinstance(each, TradingError) else wrap_placed(self._loop, each)
            for each in answers
        ]
