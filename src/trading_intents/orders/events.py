"""Orders, trades and positions as stream events, and the retained state for new subscribers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from functools import partial
from uuid import UUID

from trading_intents.ids import OrganizationId
from trading_intents.orders import store
from trading_intents.orders.model import OrderStatus, state_of
from trading_intents.orders.positions import position_from_row
from trading_intents.orders.store import TradeRow
from trading_intents.storage.database import Row, Tx
from trading_intents.stream.model import (
    Event,
    EventType,
    make_payload,
)
from trading_intents.trading import Environment, amount_text, maybe_text

RETAIN_SECONDS = 3_600
RETAINED_PAGE = 500  # orders or positions that are in memory at a time


def order_event(row: Row) -> Event:
    """Makes the event of an order from its whole row."""
    order_id = str(row["order_id"])
    payload = make_payload(
        EventType.BROKER_ORDER,
        order_id=order_id,
        intent_id=order_id,
        command_seq=row["command_seq"],
        external_order_id=row["external_order_id"],
        account_id=str(row["account_id"]),
        broker=row["broker"],
        symbol=row["symbol"],
        order_state=state_of(OrderStatus(row["order_status"])),
        order_status=row["order_status"],
        order_type=row["order_type"],
        order_side=row["order_side"],
        limit_price=maybe_text(row["limit_price"]),
        stop_price=maybe_text(row["stop_price"]),
        average_price=maybe_text(row["average_price"]),
        order_venue=row["route_strategy"],
        quantity=amount_text(row["quantity"]),
        filled_quantity=amount_text(row["filled_quantity"]),
        time_in_force=row["time_in_force"],
        received_at=row["received_at"],
        organization_id=str(row["organization_id"]),
        client_reference_id=row["client_reference_id"],
        broker_sent_at=row["broker_sent_at"],
        reason=row["reason"],
        flags=row["flags"],
        version=row["version"],
    )
    return _event(row, EventType.BROKER_ORDER, payload)


def trade_event(order: Row, trade: TradeRow) -> Event:
    order_id = str(order["order_id"])
    payload = make_payload(
        EventType.BROKER_TRADE,
        account_id=str(order["account_id"]),
        order_id=order_id,
        client_order_id=trade.client_order_id,
        symbol=order["symbol"],
        side=order["order_side"],
        quantity=amount_text(trade.quantity),
        price=amount_text(trade.price),
        received_at=trade.received_at,
        organization_id=str(order["organization_id"]),
        exec_id=trade.exec_id,
        cumulative_quantity=amount_text(trade.cumulative_quantity),
        order_quantity=amount_text(order["quantity"]),
        leaves_quantity=amount_text(trade.leaves_quantity),
        broker_sent_at=trade.broker_sent_at,
        command_seq=trade.command_seq,
        client_reference_id=order["client_reference_id"],
        intent_id=order_id,
        trade_id=str(trade.trade_id),
        fee=maybe_text(trade.fee),
    )
    return _event(order, EventType.BROKER_TRADE, payload)


def position_event(row: Row, today: date) -> Event:
    """Of the whole row of a position, with its account's environment and broker."""
    position = position_from_row(row)
    payload = make_payload(
        EventType.BROKER_POSITION,
        account_id=str(row["account_id"]),
        symbol=row["symbol"],
        quantity=amount_text(position.quantity),
        average_cost=maybe_text(position.average_cost),
        received_at=row["received_at"],
        organization_id=str(row["organization_id"]),
        broker=row["broker"],
        broker_sent_at=row["broker_sent_at"],
        realized_pnl=amount_text(position.realized_pnl),
        daily_pnl=amount_text(position.daily_pnl(today)),
        value_bought=amount_text(position.value_bought),
        value_sold=amount_text(position.value_sold),
    )
    return _event(row, EventType.BROKER_POSITION, payload)


def day_of(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _event(row: Row, kind: EventType, payload: bytes) -> Event:
    organization_id, environment = OrganizationId(row["organization_id"]), Environment(row["environment"])
    return Event(organization_id, row["account_id"], environment, kind, row["symbol"], payload)


async def retained_orders(
    tx: Tx, organization_id: OrganizationId, account_id: UUID | None, environment: Environment | None
) -> AsyncIterator[list[Event]]:
    """Working orders, and those that finished in the last hour, account by account and a page at a time; None: of every
    account, of both environments."""
    for row in await store.list_with_orders(tx, organization_id, account_id, environment, RETAIN_SECONDS):
        working = partial(store.list_working, tx, row["id"])
        finished = partial(store.list_finished, tx, row["id"])
        async for page in _pages(working, {"create_seq": 0}):
            yield [order_event(order) for order in page]
        async for page in _pages(finished, {"finished_at": row["since"], "order_id": _NO_ID}):
            yield [order_event(order) for order in page]


async def retained_positions(
    tx: Tx, organization_id: OrganizationId, account_id: UUID | None, environment: Environment | None
) -> AsyncIterator[list[Event]]:
    """Open positions, and those that were closed in the last hour, likewise."""
    for row in await store.list_with_positions(tx, organization_id, account_id, environment, RETAIN_SECONDS):
        positions = partial(store.list_retained_positions, tx, row["id"], row["since"])
        async for page in _pages(positions, {"symbol": ""}):
            yield [position_event({**position, **row}, day_of(row["now"])) for position in page]


async def _pages(read: Callable[..., Awaitable[list[Row]]], last: Mapping[str, object]) -> AsyncIterator[list[Row]]:
    """`last` holds the columns by which a page goes on where the one before ended."""
    while True:
        page = await read(*last.values(), RETAINED_PAGE)
        if page:
            yield page
        if len(page) < RETAINED_PAGE:
            return
        last = {name: page[-1][name] for name in last}


_NO_ID = UUID(int=0)
