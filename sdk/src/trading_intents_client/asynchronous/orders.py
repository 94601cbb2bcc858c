"""Orders with what can be done about them: replace, cancel, wait, read again; and baskets of
them."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import (
    Amount,
    Command,
    cancel_command,
    check_key,
    make_key,
    replace_command,
)
from trading_intents_client.errors import TradingError
from trading_intents_client.types.enums import (
    FINAL_STATUSES,
    OrderStatusName,
    TimeInForceName,
)
from trading_intents_client.types.trading import OrderRecord, Submitted

WAIT_SECONDS = 30.0
MAX_AT_ONCE = 50  # commands of a basket


class OrderAccount(Protocol):
    """The methods of an account that an order needs."""

    async def submit(
        self,
        command: Command,
        *,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> "AsyncPlacedOrder": ...

    async def order(self, order_id: str) -> "AsyncOrder": ...

    def orders(self, *, parent_intent_id: str | None = None) -> "AsyncPages[AsyncOrder]": ...

    async def _wait_for(
        self, intent_id: str, statuses: frozenset[str], seconds: float
    ) -> "AsyncOrder": ...


class AsyncOrderActions:
    """The commands of an order, by its intent's id."""

    __slots__ = ()
    if TYPE_CHECKING:
        intent_id: str
        _account: OrderAccount

    async def cancel(self, *, idempotency_key: str | None = None) -> "AsyncPlacedOrder":
        """Asks for the order to be cancelled. Safe to repeat while the order is open."""
        return await self._account.submit(
            cancel_command(self.intent_id), idempotency_key=idempotency_key
        )

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
        """Changes the order; what is not given stays as the broker last confirmed it. `quantity` is
        the new total."""
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

    async def find_legs(self) -> "list[AsyncOrder]":
        """The orders that the broker links to this one, its exits or the other of a pair, as they
        are now."""
        return [order async for order in self._account.orders(parent_intent_id=self.intent_id)]

    async def wait(
        self,
        until: OrderStatusName | Iterable[OrderStatusName] = FINAL_STATUSES,
        timeout: float | timedelta = WAIT_SECONDS,
    ) -> "AsyncOrder":
        """Waits, by the stream, for a status or for one of several; without `until` for the order's
        end. Without the permission `stream:read` it reads the order again and again.

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
    legs: tuple["AsyncPlacedOrder", ...] = ()


def placed_order(
    made: Submitted, key: str, is_replayed: bool, account: OrderAccount
) -> AsyncPlacedOrder:
    legs = tuple(placed_order(each, key, is_replayed, account) for each in made.legs)
    placed = AsyncPlacedOrder(
        intent_id=made.intent_id,
        seq=made.seq,
        idempotency_key=key,
        is_replayed=is_replayed,
        leg=made.leg,
        legs=legs,
    )
    force_setattr(placed, "_account", account)
    return placed


class AsyncBasket:
    """Commands that are sent side by side. What becomes of one changes nothing for the others: a
    basket is no transaction. Each has its Idempotency-Key from when it is added, so that sending
    all again places none twice."""

    def __init__(self, find_account: Callable[[str], OrderAccount]) -> None:
        self._find_account = find_account
        self._entries: list[tuple[str, Command, str | None, str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        account_id: str,
        command: Command,
        *,
        client_reference_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Adds a command that `create_command`, `replace_command` or `cancel_command` made."""
        key = make_key() if idempotency_key is None else check_key(idempotency_key)
        self._entries.append((account_id, command, client_reference_id, key))

    async def send(self) -> list[AsyncPlacedOrder | TradingError]:
        """Sends all, and answers in their order what each became: the placed order, or the error of
        it alone."""
        slots = asyncio.Semaphore(MAX_AT_ONCE)

        async def send_one(
            account_id: str, command: Command, reference: str | None, key: str
        ) -> AsyncPlacedOrder:
            async with slots:
                account = self._find_account(account_id)
                return await account.submit(
                    command, client_reference_id=reference, idempotency_key=key
                )

        tasks = [asyncio.ensure_future(send_one(*entry)) for entry in self._entries]
        try:
            return [await _answer(task) for task in tasks]
        finally:
            for task in tasks:
                task.cancel()  # of an interrupted send; one that is done stays as it is


async def _answer(task: asyncio.Future[AsyncPlacedOrder]) -> AsyncPlacedOrder | TradingError:
    try:
        return await task
    except TradingError as error:
        return error
