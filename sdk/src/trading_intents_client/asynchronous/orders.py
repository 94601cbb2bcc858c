"""Orders with what can be done about them: replace, cancel, wait, read again."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from trading_intents_client.asynchronous.requests import Amount, Command, cancel_command, replace_command
from trading_intents_client.types.enums import (
    FINAL_STATUSES,
    OrderStatusName,
    TimeInForceName,
)
from trading_intents_client.types.trading import OrderRecord

WAIT_SECONDS = 30.0


class OrderAccount(Protocol):
    """What an order needs of its account."""

    async def submit(self, command: Command, *, idempotency_key: str | None = None) -> "AsyncPlacedOrder": ...

    async def order(self, order_id: str) -> "AsyncOrder": ...

    async def _wait_for(self, intent_id: str, statuses: frozenset[str], seconds: float) -> "AsyncOrder": ...


class AsyncOrderActions:
    """The commands of an order, by its intent's id."""

    __slots__ = ()
    if TYPE_CHECKING:
        intent_id: str
        _account: OrderAccount

    async def cancel(self, *, idempotency_key: str | None = None) -> "AsyncPlacedOrder":
        """Asks for the order to be cancelled. Safe to repeat while the order is open."""
        return await self._account.submit(cancel_command(self.intent_id), idempotency_key=idempotency_key)

    async def replace(
        self,
        *,
        quantity: Amount | None = None,
        limit: Amount | None = None,
        stop: Amount | None = None,
        trail: Amount | None = None,
        trail_bps: int | None = None,
        time_in_force: TimeInForceName | None = None,
        idempotency_key: str | None = None,
    ) -> "AsyncPlacedOrder":
        """Changes the order; what is not given stays as the broker last confirmed it. `quantity` is the new total."""
        order = await self.refresh()
        is_trailing = order.order_type == "TRAILING_STOP"  # its stop is the broker's business
        command = replace_command(
            self.intent_id,
            order.quantity if quantity is None else quantity,
            limit=order.limit_price if limit is None else limit,
            stop=None if is_trailing else order.stop_price if stop is None else stop,
            trail=order.trail_amount if trail is None else trail,
            trail_bps=order.trail_bps if trail_bps is None else trail_bps,
            time_in_force=time_in_force,
        )
        return await self._account.submit(command, idempotency_key=idempotency_key)

    async def refresh(self) -> "AsyncOrder":
        """The order as it is now."""
        return await self._account.order(self.intent_id)

    async def wait(
        self,
        until: OrderStatusName | Iterable[OrderStatusName] = FINAL_STATUSES,
        timeout: float | timedelta = WAIT_SECONDS,
    ) -> "AsyncOrder":
        """Waits, by the stream, for a status or for one of several; without `until` for the order's end. Without the
        permission `stream:read` it reads the order again and again.

        Raises WaitTimeout, or OrderEnded when the order ends in another status.
        """
        statuses = frozenset({until} if isinstance(until, str) else until)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return await self._account._wait_for(self.intent_id, statuses, seconds)


class AsyncOrder(AsyncOrderActions, OrderRecord, frozen=True, kw_only=True, dict=True):
    """An order, and what can be done about it."""

    def _bound(self, account: OrderAccount) -> "AsyncOrder":
        force_setattr(self, "_account", account)
        return self


class AsyncPlacedOrder(AsyncOrderActions, Struct, frozen=True, kw_only=True, dict=True):
    """An accepted command, durable at the platform. `wait()` tells what became of the order."""

    intent_id: str
    seq: int
    idempotency_key: str | None = None
    # The command was accepted earlier under the same Idempotency-Key.
    is_replayed: bool = False

    def _bound(self, account: OrderAccount) -> "AsyncPlacedOrder":
        force_setattr(self, "_account", account)
        return self
