"""Orders, trades and positions as stream events, and the retained state for new subscribers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from trading_intents.ids import OrganizationId, id_text
from trading_intents.orders import store
from trading_intents.orders.model import OrderFlag, state_of
from trading_intents.orders.positions import PositionRow
from trading_intents.orders.store import OrderRow, TradeRow
from trading_intents.storage.database import Tx
from trading_intents.storage.pipeline import column_types
from trading_intents.stream import trading_pb2
from trading_intents.stream.model import Event, EventType, make_payload
from trading_intents.trading import Environment, amount_text, maybe_text

RETAINED_PAGE = 500  # orders or positions that are in memory at a time
Listed = TypeVar("Listed")
After = TypeVar("After")


def order_event(row: OrderRow, is_unprotected: bool = False) -> Event:
    if is_unprotected:
        row = replace(row, flags=(*row.flags, OrderFlag.UNPROTECTED))
    more = {
        "intent_id": row.order_id,
        "parent_intent_id": row.parent_order_id,
        "order_state": state_of(row.order_status),
        "order_venue": row.route_strategy,
    }
    return _event(EventType.BROKER_ORDER, row, row.environment, more)


def trade_event(order: OrderRow, trade: TradeRow) -> Event:
    more = {"intent_id": order.order_id, "order_quantity": amount_text(order.quantity)}
    return _event(EventType.BROKER_TRADE, trade, order.environment, more)


def position_event(row: PositionRow, environment: Environment, broker: str, today: date) -> Event:
    more = {
        "average_cost": maybe_text(row.average_cost),
        "daily_pnl": amount_text(row.daily_pnl(today)),
        "broker": broker,
    }
    return _event(EventType.BROKER_POSITION, row, environment, more)


def day_of(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _event(
    kind: EventType,
    row: OrderRow | TradeRow | PositionRow,
    environment: Environment,
    more: Mapping[str, str | None],
) -> Event:
    """An event whose message has the columns of its names, and `more`."""
    amounts, others = _SHARED[kind]
    fields: dict[str, object] = {name: getattr(row, name) for name in others}
    fields |= {name: maybe_text(getattr(row, name)) for name in amounts}
    payload = make_payload(kind, **fields, **more)
    return Event(
        organization_id=row.organization_id,
        account_id=row.account_id,
        environment=environment,
        symbol=row.symbol,
        payload=payload,
        order_id=None if isinstance(row, PositionRow) else row.order_id,
    )


def _shared(message: Any, row: type[msgspec.Struct]) -> tuple[list[str], list[str]]:
    """The fields that a message and a row both have: amounts, and others."""
    types = column_types(row)
    names = [each.name for each in message.DESCRIPTOR.fields if each.name in types]
    amounts = [name for name in names if types[name] == "numeric"]
    return amounts, [name for name in names if name not in amounts]


_SHARED = {
    EventType.BROKER_ORDER: _shared(trading_pb2.BrokerOrder, OrderRow),
    EventType.BROKER_TRADE: _shared(trading_pb2.BrokerTrade, TradeRow),
    EventType.BROKER_POSITION: _shared(trading_pb2.BrokerPosition, PositionRow),
}


async def retained_orders(
    tx: Tx,
    organization_id: OrganizationId,
    account_id: UUID | None,
    environment: Environment | None,
) -> AsyncIterator[list[Event]]:
    """Working orders, and those that finished in the last hour, account by account and a page at a
    time; None: of every account, of both environments."""
    for account in await store.list_retaining(
        tx, store.HAS_ORDERS, organization_id, account_id, environment
    ):
        working = partial(store.list_working, tx, account.id)
        finished = partial(store.list_finished, tx, account.id)
        unprotected = await store.find_unprotected(tx, account.id)
        async for page in _pages(working, 0, attrgetter("create_seq")):
            yield [order_event(order) for order in page]
        first = (account.since, _NO_ID)
        async for page in _pages(finished, first, attrgetter("finished_at", "order_id")):
            yield [order_event(order, order.order_id in unprotected) for order in page]


async def retained_positions(
    tx: Tx,
    organization_id: OrganizationId,
    account_id: UUID | None,
    environment: Environment | None,
) -> AsyncIterator[list[Event]]:
    """Open positions, and those that were closed in the last hour, likewise."""
    for account in await store.list_retaining(
        tx, store.HAS_POSITIONS, organization_id, account_id, environment
    ):
        today = day_of(account.now)
        read = partial(store.list_retained_positions, tx, organization_id, account)
        async for page in _pages(read, "", attrgetter("symbol")):
            yield [position_event(row, account.environment, account.broker, today) for row in page]


async def _pages(
    read: Callable[[After, int], Awaitable[list[Listed]]],
    after: After,
    key: Callable[[Listed], After],
) -> AsyncIterator[list[Listed]]:
    """`key` is that of a row, behind which the next page begins."""
    while True:
        page = await read(after, RETAINED_PAGE)
        if page:
            yield page
        if len(page) < RETAINED_PAGE:
            return
        after = key(page[-1])


_NO_ID = id_text(UUID(int=0))
