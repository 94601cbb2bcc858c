"""Orders, trades and positions as stream events, and the state that is retained for who attaches."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

from trading_intents.ids import OrganizationId
from trading_intents.orders.model import OrderStatus, state_of
from trading_intents.orders.positions import position_from_row
from trading_intents.orders.store import TradeRow
from trading_intents.storage.database import Row, Tx
from trading_intents.stream.model import (
    Event,
    EventType,
    broker_order_payload,
    broker_position_payload,
    broker_trade_payload,
)
from trading_intents.trading import Environment, amount_text

RETAIN_SECONDS = 3_600
RETAINED_PAGE = 500  # orders or positions that are in memory at a time


def order_event(row: Row) -> Event:
    """Of the whole row of an order."""
    order_id = str(row["order_id"])
    payload = broker_order_payload(
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
    payload = broker_trade_payload(
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
    payload = broker_position_payload(
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


def maybe_text(amount: Decimal | None) -> str | None:
    return None if amount is None else amount_text(amount)


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
    for row in await tx.fetch(_WITH_ORDERS, organization_id, account_id, environment, RETAIN_SECONDS):
        async for page in _pages(tx, _WORKING_ORDERS, row["id"], {"create_seq": 0}):
            yield [order_event(order) for order in page]
        async for page in _pages(tx, _FINISHED_ORDERS, row["id"], {"finished_at": row["since"], "order_id": _NO_ID}):
            yield [order_event(order) for order in page]


async def retained_positions(
    tx: Tx, organization_id: OrganizationId, account_id: UUID | None, environment: Environment | None
) -> AsyncIterator[list[Event]]:
    """Open positions, and those that were closed in the last hour, likewise."""
    for row in await tx.fetch(_WITH_POSITIONS, organization_id, account_id, environment, RETAIN_SECONDS):
        async for page in _pages(tx, _POSITIONS, row["id"], {"symbol": ""}, row["since"]):
            yield [position_event({**position, **row}, day_of(row["now"])) for position in page]


async def _pages(
    tx: Tx, query: str, account_id: UUID, last: Mapping[str, object], *more: object
) -> AsyncIterator[list[Row]]:
    """`last` holds the columns by which a page goes on where the one before ended."""
    while True:
        page = await tx.fetch(query, account_id, *last.values(), *more, RETAINED_PAGE)
        if page:
            yield page
        if len(page) < RETAINED_PAGE:
            return
        last = {name: page[-1][name] for name in last}


_NO_ID = UUID(int=0)
# Accounts that retain something, so that the others cost no question. Not EXISTS, of which a plan may make a list of
# all tenants' rows.
_ACCOUNTS = """
    WITH clock AS MATERIALIZED (
        SELECT clock_timestamp() AS now, clock_timestamp() - make_interval(secs => $4) AS since
    )
    SELECT a.id, a.environment, a.broker, now, since FROM clock, accounts a
    WHERE a.organization_id = $1 AND ($2::uuid IS NULL OR a.id = $2) AND ($3::text IS NULL OR a.environment = $3)
      AND ({retains})
    ORDER BY a.id
"""
_WITH_ORDERS = _ACCOUNTS.format(
    retains="""(SELECT true FROM orders WHERE account_id = a.id AND finished_at IS NULL LIMIT 1)
               OR (SELECT true FROM orders WHERE account_id = a.id AND finished_at > since LIMIT 1)"""
)
_WITH_POSITIONS = _ACCOUNTS.format(
    retains="""(SELECT true FROM positions WHERE account_id = a.id AND (quantity <> 0 OR received_at > since)
                LIMIT 1)"""
)
# By the index of open orders, which are few: by their seqs a plan might go through all that the account ever had.
_WORKING_ORDERS = """
    WITH working AS MATERIALIZED (SELECT * FROM orders WHERE account_id = $1 AND finished_at IS NULL)
    SELECT * FROM working WHERE create_seq > $2 ORDER BY create_seq LIMIT $3
"""
_FINISHED_ORDERS = """
    SELECT * FROM orders
    WHERE account_id = $1 AND finished_at >= $2 AND (finished_at, order_id) > ($2, $3)
    ORDER BY finished_at, order_id LIMIT $4
"""
_POSITIONS = """
    SELECT * FROM positions
    WHERE account_id = $1 AND symbol > $2 AND (quantity <> 0 OR received_at > $3) ORDER BY symbol LIMIT $4
"""
