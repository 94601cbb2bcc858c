"""The rows of orders, trades and commands, and what is read of them. Never decides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from trading_intents.clock import TimeRange
from trading_intents.ids import IdText
from trading_intents.orders.executions import TradeFlag
from trading_intents.orders.facts import Fact
from trading_intents.orders.linked import UNCOVERED_TIME, is_left_open
from trading_intents.orders.model import (
    FINAL_STATUSES,
    OrderFlag,
    OrderState,
    OrderStatus,
    state_of,
)
from trading_intents.orders.positions import (
    Booking,
    PositionRow,
    SummedOrder,
    open_quantity,
    open_sums,
)
from trading_intents.storage import pages
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pipeline import column_types
from trading_intents.trading import (
    ZERO,
    ActionType,
    Environment,
    FrozenStruct,
    Leg,
    OrderSide,
    OrderType,
    RouteStrategy,
    TimeInForce,
    VersionTerms,
)

RETAIN_SECONDS = 3_600
Parsed = TypeVar("Parsed")


class Action(FrozenStruct):
    seq: int
    action_id: UUID
    action_type: ActionType
    record: VersionTerms  # the terms in it


class OrderRow(VersionTerms, kw_only=True):
    order_id: IdText
    account_id: IdText
    organization_id: IdText
    environment: Environment
    broker: str
    create_seq: int
    command_seq: int
    symbol: str
    order_status: OrderStatus
    order_type: str
    order_side: OrderSide
    route_strategy: str
    filled_quantity: Decimal
    average_price: Decimal | None
    external_order_id: str | None
    client_reference_id: str | None
    reason: str | None
    detail: str | None
    flags: tuple[OrderFlag, ...]
    pending_replace_seq: int | None
    cancel_requested: bool
    broker_sent_at: datetime | None
    received_at: datetime
    created_at: datetime
    updated_at: datetime
    version: int
    finished_at: datetime | None
    leg: Leg | None = None
    parent_order_id: IdText | None = None
    active: bool = True  # False: an exit whose entry has no fill yet
    linked: bool = False  # it is a leg, or has some
    counted_notional: Decimal = ZERO  # what its versions added to days' sums of keys
    # Since when the exits of this final entry do not cover its fills; None once its position is
    # closed.
    uncovered_since: datetime | None = None

    @property
    def is_working(self) -> bool:
        """Whether the broker works it; it has shown that it has the order."""
        if self.order_status in (OrderStatus.NEW, OrderStatus.PARTIALLY_FILLED):
            return True
        is_pending = self.order_status in (OrderStatus.PENDING_REPLACE, OrderStatus.PENDING_CANCEL)
        return is_pending and self.external_order_id is not None


class Cover(FrozenStruct, kw_only=True):
    """A symbol's position with its open orders, and the entries whose exits do not cover them."""

    account_id: IdText
    symbol: str
    quantity: Decimal
    orders: tuple[OrderRow, ...]
    now: datetime

    def unprotected(self, now: datetime | None = None) -> frozenset[IdText]:
        """The unprotected entries as their rows show them, or as they would if written `now`."""
        summed = []
        for order in self.orders:
            if order.is_working:
                unfilled = open_quantity(order.quantity, None, order.filled_quantity)
                group = order.parent_order_id or order.order_id
                summed.append(SummedOrder(group, order.order_side, unfilled, order.active))
        working = open_sums(summed)
        found = set()
        for entry in self.orders:
            since = entry.uncovered_since
            is_due = since is not None and (now or entry.updated_at) - since >= UNCOVERED_TIME
            if is_due and is_left_open(entry.order_side, self.quantity, working):
                found.add(entry.order_id)
        return frozenset(found)


class BookedTrade(FrozenStruct, kw_only=True):
    """The columns of a trade that a position is summed up from."""

    trade_id: IdText
    booking: int = 0  # its number among the symbol's trades; 0 before it is written
    side: OrderSide
    quantity: Decimal
    price: Decimal
    fee: Decimal | None
    broker_sent_at: datetime | None
    received_at: datetime

    @property
    def at(self) -> datetime:
        """Its time, but never in our future: a venue's fast clock must not move a result to the
        next day."""
        return (
            self.received_at
            if self.broker_sent_at is None
            else min(self.broker_sent_at, self.received_at)
        )

    def as_booking(self) -> Booking:
        return Booking(self.side, self.quantity, self.price, self.fee, self.at)


class TradeRow(BookedTrade, kw_only=True):
    """A trade's row. `seq` is that of its last event in the stream; 0 before the first."""

    account_id: IdText
    organization_id: IdText
    order_id: IdText
    symbol: str
    client_reference_id: str | None
    seq: int = 0
    exec_id: str
    cumulative_quantity: Decimal
    leaves_quantity: Decimal
    client_order_id: str | None
    command_seq: int
    flags: tuple[str, ...]
    cum_quantity: Decimal | None = None  # as the broker counted


class CommandRow(FrozenStruct, kw_only=True):
    """A command that the broker was sent, or is about to be."""

    account_id: IdText
    client_order_id: str
    order_id: IdText
    seq: int
    action_type: ActionType
    sent_at: datetime | None = None
    broker_order_id: str | None = None


class OrderHead(FrozenStruct, kw_only=True):
    """An order as it is, its trades, the commands that its broker was sent, and its facts in the
    order in which they came."""

    row: OrderRow
    commands: tuple[CommandRow, ...]
    trades: tuple[TradeRow, ...]
    facts: tuple[Fact, ...]


class OrderHistory(OrderHead, kw_only=True):
    """All rows of one order, and the facts that are new."""

    actions: tuple[Action, ...]
    news: tuple[Fact, ...] = ()

    @property
    def seen(self) -> tuple[Fact, ...]:
        return (*self.facts, *self.news)


# As the API shows it: PostgreSQL makes the texts of ids, amounts and times.
class Order(msgspec.Struct, kw_only=True):
    order_id: str
    intent_id: str
    command_seq: int
    external_order_id: str | None
    account_id: str
    organization_id: str
    environment: Environment
    broker: str
    symbol: str
    order_state: OrderState
    order_status: OrderStatus
    order_type: OrderType
    order_side: OrderSide
    limit_price: str | None
    stop_price: str | None
    average_price: str | None
    route_strategy: RouteStrategy
    quantity: str
    filled_quantity: str
    time_in_force: TimeInForce
    client_reference_id: str | None
    reason: str | None
    detail: str | None
    flags: list[OrderFlag]
    broker_sent_at: str | None
    received_at: str
    created_at: str
    updated_at: str
    version: int
    trail_amount: str | None
    trail_bps: int | None
    leg: Leg | None
    parent_intent_id: str | None
    active: bool


class ListedOrder(Order, kw_only=True):
    create_seq: int
    uncovered_since: str | None


# As the API shows it, too.
class Trade(msgspec.Struct, kw_only=True):
    trade_id: str
    exec_id: str
    order_id: str
    intent_id: str
    account_id: str
    symbol: str
    side: OrderSide
    quantity: str
    price: str
    fee: str | None
    cumulative_quantity: str
    leaves_quantity: str
    client_reference_id: str | None
    flags: list[TradeFlag]
    broker_sent_at: str | None
    received_at: str


class ListedTrade(Trade, kw_only=True):
    seq: int


class ListedPosition(PositionRow, kw_only=True):
    now: datetime


class RetainingAccount(FrozenStruct, kw_only=True):
    """An account with orders or positions that a new subscriber is sent."""

    id: UUID
    environment: Environment
    broker: str
    now: datetime
    since: datetime


def parse_row(row: Row, kind: type[Parsed]) -> Parsed:
    """A row as the pool's driver gives it; a row of a pipeline comes as JSON."""
    return msgspec.convert(
        {name: str(each) if isinstance(each, UUID) else each for name, each in row.items()}, kind
    )


def _shown(shown: type[msgspec.Struct], row: type[msgspec.Struct]) -> str:
    """The columns that are shown under their own names."""
    types = column_types(row)
    names = [name for name in shown.__struct_fields__ if name in types]
    return pages.shown_columns({name: types[name] for name in names})


_ORDER = ", ".join(OrderRow.__struct_fields__)
_POSITION = ", ".join(PositionRow.__struct_fields__)


# We hold something, or the broker last said that it does.
HELD = "(quantity <> 0 OR coalesce(broker_quantity, 0) <> 0)"
# The opening has no cost, and nothing of it was closed.
UNCOSTED = "uncosted_quantity <> 0 AND uncosted_quantity = opening_quantity"


def parse_rows(rows: Iterable[Row], kind: type[Parsed]) -> list[Parsed]:
    return [parse_row(row, kind) for row in rows]


async def find_positions(
    tx: Tx, organization_id: UUID, account_id: UUID, condition: str
) -> dict[str, PositionRow]:
    """By symbol."""
    query = f"""
        SELECT {_POSITION} FROM holdings
        WHERE organization_id = $1 AND account_id = $2 AND {condition} ORDER BY symbol
    """  # noqa: S608 - our own constants
    rows = parse_rows(await tx.fetch(query, organization_id, account_id), PositionRow)
    return {row.symbol: row for row in rows}


# Few orders have `uncovered_since`: only while their positions are open.
COVERS = """
    SELECT json_build_object('account_id', own.account_id, 'symbol', own.symbol,
        'quantity', p.quantity, 'orders', listed.orders, 'now', clock_timestamp())::text
    FROM (
        SELECT DISTINCT organization_id, account_id, symbol FROM orders
        WHERE uncovered_since IS NOT NULL AND {named}
    ) AS own
    CROSS JOIN LATERAL (
        SELECT quantity FROM holdings
        WHERE organization_id = own.organization_id AND account_id = own.account_id
            AND symbol = own.symbol OFFSET 0
    ) AS p
    CROSS JOIN LATERAL (
        SELECT json_agg(o) AS orders FROM (
            (SELECT * FROM orders WHERE account_id = own.account_id AND symbol = own.symbol
                AND finished_at IS NULL)
            UNION ALL
            (SELECT * FROM orders WHERE account_id = own.account_id AND symbol = own.symbol
                AND uncovered_since IS NOT NULL)
        ) AS o
    ) AS listed
"""
_COVERS_OF_ACCOUNTS = COVERS.format(named="account_id = ANY ($1::uuid[])")


async def read_covers(tx: Tx, account_ids: Sequence[UUID]) -> list[Cover]:
    """Of the symbols with entries that may be unprotected."""
    rows = await tx.fetch(_COVERS_OF_ACCOUNTS, account_ids)
    return [msgspec.json.decode(text, type=Cover) for (text,) in rows]


async def find_unprotected(tx: Tx, account_id: UUID) -> list[IdText]:
    found: list[IdText] = []
    for cover in await read_covers(tx, [account_id]):
        found += sorted(cover.unprotected())
    return found


ORDERS = pages.SeqLog("orders", "create_seq", "created_at")
_NARROWED = "account_id = $1 AND create_seq >= $2 AND create_seq < $3"
_STATES = " ".join(f"WHEN '{status}' THEN '{state_of(status)}'" for status in OrderStatus)
_SHOWN_ORDER = f"""
    {_shown(ListedOrder, OrderRow)}, order_id::text AS intent_id,
    parent_order_id::text AS parent_intent_id, CASE order_status {_STATES} END AS order_state
"""
_SHOWN_TRADE = f"{_shown(ListedTrade, TradeRow)}, order_id::text AS intent_id"
_FIND_ORDER = "SELECT {shown} FROM orders WHERE order_id = $1"
_LIST_ORDERS = (
    "SELECT {shown} FROM orders WHERE {narrowed} ORDER BY create_seq {direction} LIMIT $4"
)
# Open orders are few and mostly young, and are read by their own index first: a plan that goes
# through the account's orders from the oldest would find them last. Of each final status a page is
# read, and they are merged. They are asked for in the order of the index by status: else a plan
# might go through all of the account's orders.
_LIST_ORDERS_BY_STATUS = """
    WITH working AS MATERIALIZED (
        SELECT * FROM orders WHERE account_id = $1 AND finished_at IS NULL
            AND order_status = ANY ({open}::text[])
    )
    SELECT {shown} FROM (
        (SELECT * FROM working WHERE {narrowed} ORDER BY create_seq {direction} LIMIT $4)
        UNION ALL
        SELECT final.* FROM unnest({final}::text[]) AS wanted (status) CROSS JOIN LATERAL (
            SELECT * FROM orders
            WHERE {narrowed} AND finished_at IS NOT NULL AND order_status BETWEEN wanted.status
                AND wanted.status
            ORDER BY order_status {direction}, create_seq {direction} LIMIT $4
        ) AS final
    ) AS found
    ORDER BY create_seq {direction} LIMIT $4
"""


class ListedStatuses(NamedTuple):
    open: list[str]
    final: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFilter:
    state: OrderState | None = None
    symbol: str | None = None
    intent_id: UUID | None = None
    client_reference_id: str | None = None
    # Not in the text that names the list of a cursor: what has no such filter keeps its name.
    statuses: frozenset[OrderStatus] = field(default=frozenset(), repr=False)
    created: TimeRange = field(default=TimeRange(), repr=False)
    parent_intent_id: UUID | None = field(default=None, repr=False)
    flag: OrderFlag | None = field(default=None, repr=False)

    @property
    def listed(self) -> ListedStatuses | None:
        """The statuses that it lets through; None: all."""
        if not self.state and not self.statuses:
            return None
        statuses = ListedStatuses([], [])
        for status in OrderStatus:
            is_named = not self.statuses or status in self.statuses
            if is_named and (not self.state or state_of(status) is self.state):
                is_final = status in FINAL_STATUSES
                (statuses.final if is_final else statuses.open).append(status)
        return statuses

    @property
    def is_indexed(self) -> bool:
        """Whether an index leads to what it lets through, or it lets everything through."""
        if (
            self.symbol is None
            or self.intent_id
            or self.client_reference_id
            or self.parent_intent_id
            or self.flag
        ):
            return True
        return self.listed is not None and not self.listed.final


async def list_orders(
    tx: Tx,
    account_id: UUID,
    seqs: pages.SeqRange,
    wanted: OrderFilter,
    page: pages.PageRequest,
    unprotected: Sequence[IdText] | None = None,
) -> list[ListedOrder]:
    """By the seq of their CREATEs, which commit in that order; of `unprotected` alone where they
    are given. Only what is asked for is in the statement, so that one plan for all values can go by
    its index."""
    derived = (None, OrderFlag.UNPROTECTED)
    conditions = (
        ("created_at >=", wanted.created.start),
        ("created_at <", wanted.created.end),
        ("symbol =", wanted.symbol),
        ("order_id =", wanted.intent_id),
        ("client_reference_id =", wanted.client_reference_id),
        ("parent_order_id =", wanted.parent_intent_id),
        ("flags <> '{}' AND flags @>", None if wanted.flag in derived else [wanted.flag]),
        ("uncovered_since IS NOT NULL AND order_id = ANY", unprotected),
    )
    arguments: list[object] = [account_id, *seqs, page.limit + 1]
    narrowed = [_NARROWED]
    for condition, value in conditions:
        if value is not None:
            arguments.append(value)
            narrowed.append(f"{condition} (${len(arguments)})")
    number = len(arguments)
    statuses = wanted.listed
    arguments += statuses or ()
    query = _LIST_ORDERS_BY_STATUS if statuses else _LIST_ORDERS
    query = query.format(
        shown=_SHOWN_ORDER,
        narrowed=" AND ".join(narrowed),
        direction=pages.direction_of(page),
        open=f"${number + 1}",
        final=f"${number + 2}",
    )
    return [ListedOrder(**row) for row in await tx.fetch(query, *arguments)]


async def last_seq(tx: Tx, account_id: UUID) -> int:
    seq: int | None = await tx.fetchval(
        "SELECT seq FROM account_heads WHERE account_id = $1", account_id
    )
    return seq or 0


async def find_order(tx: Tx, account_id: UUID, order_id: UUID) -> ListedOrder | None:
    row = await tx.fetchrow(_FIND_ORDER.format(shown=_SHOWN_ORDER), order_id)
    order = ListedOrder(**row) if row else None
    return order if order and order.account_id == str(account_id) else None


# Trades that were published once: the times of the others do not follow their seqs.
TRADES_PUBLISHED_ONCE = pages.SeqLog("trades", "seq", "received_at", "NOT is_retold")
_LIST_TRADES = """
    SELECT {shown} FROM trades WHERE account_id = $1 AND seq >= $2 AND seq < $3
    ORDER BY seq {direction} LIMIT $4
"""
_LIST_TRADES_BY_TIME = """
    SELECT {shown} FROM (
        (SELECT * FROM trades
         WHERE account_id = $1 AND seq >= $2 AND seq < $3 AND NOT is_retold
           AND ($5::timestamptz IS NULL OR received_at >= $5)
               AND ($6::timestamptz IS NULL OR received_at < $6)
         ORDER BY seq {direction} LIMIT $4)
        UNION ALL
        (SELECT * FROM trades
         WHERE account_id = $1 AND seq >= $2 AND seq < $7 AND is_retold
           AND ($5::timestamptz IS NULL OR received_at >= $5)
               AND ($6::timestamptz IS NULL OR received_at < $6)
         ORDER BY seq {direction} LIMIT $4)
    ) AS listed
    ORDER BY seq {direction} LIMIT $4
"""


async def list_trades(
    tx: Tx, account_id: UUID, times: TimeRange, page: pages.PageRequest
) -> list[ListedTrade]:
    """By the seq of the last event about them."""
    seqs = await pages.find_range(tx, TRADES_PUBLISHED_ONCE, account_id, times, page)
    arguments: list[object] = [account_id, *seqs, page.limit + 1]
    query = _LIST_TRADES
    if times != TimeRange():
        query = _LIST_TRADES_BY_TIME
        arguments += times
        # One that was published again has a seq that is higher than its time says, never a lower
        # one.
        is_bounded = page.is_descending and page.after is not None
        arguments.append(page.after if is_bounded else pages.NO_END)
    query = query.format(shown=_SHOWN_TRADE, direction=pages.direction_of(page))
    return [ListedTrade(**row) for row in await tx.fetch(query, *arguments)]


async def list_positions(
    tx: Tx, organization_id: UUID, account_id: UUID, page: pages.PageRequest
) -> list[ListedPosition]:
    query = f"""
        SELECT {_POSITION}, (SELECT clock_timestamp()) AS now FROM holdings
        WHERE organization_id = $1 AND account_id = $2 AND received_at IS NOT NULL
    """  # noqa: S608 - our own constants
    rows = await pages.fetch_page(tx, query, page, organization_id, account_id, key="symbol")
    return parse_rows(rows, ListedPosition)


# Accounts that retain something, so that the others cost no question. Not EXISTS, of which a plan
# may make a list of all tenants' rows.
_ACCOUNTS = """
    WITH clock AS MATERIALIZED (
        SELECT clock_timestamp() AS now, clock_timestamp() - make_interval(secs => $4) AS since
    )
    SELECT a.id, a.environment, a.broker, now, since FROM clock, accounts a
    WHERE a.organization_id = $1 AND {scope} AND ($3::text IS NULL OR a.environment = $3)
        AND ({retains})
    ORDER BY a.id
"""
# Accounts with an order that works, or that finished `since`.
HAS_ORDERS = """
    (SELECT true FROM orders WHERE account_id = a.id AND finished_at IS NULL LIMIT 1)
    OR (SELECT true FROM orders WHERE account_id = a.id AND finished_at > since ORDER BY finished_at
        LIMIT 1)
"""
# Accounts with a position that is open, or that changed `since`.
HAS_POSITIONS = """
    (SELECT true FROM holdings WHERE organization_id = a.organization_id AND account_id = a.id
        AND (quantity <> 0 OR received_at > since) LIMIT 1)
"""


async def list_retaining(
    tx: Tx, retains: str, organization_id: UUID, account_id: UUID | None, environment: str | None
) -> list[RetainingAccount]:
    """`retains` is HAS_ORDERS or HAS_POSITIONS; `since` is RETAIN_SECONDS ago."""
    scope = "$2::uuid IS NULL" if account_id is None else "a.id = $2"
    query = _ACCOUNTS.format(scope=scope, retains=retains)
    rows = await tx.fetch(query, organization_id, account_id, environment, RETAIN_SECONDS)
    return parse_rows(rows, RetainingAccount)


async def list_working(tx: Tx, account_id: UUID, after: int, limit: int) -> list[OrderRow]:
    # By the index of open orders, which are few: by their seqs a plan might go through all that the
    # account ever had.
    query = f"""
        WITH working AS MATERIALIZED (
            SELECT {_ORDER} FROM orders WHERE account_id = $1 AND finished_at IS NULL
        )
        SELECT {_ORDER} FROM working WHERE create_seq > $2 ORDER BY create_seq LIMIT $3
    """  # noqa: S608 - our own constants
    return parse_rows(await tx.fetch(query, account_id, after, limit), OrderRow)


async def list_finished(
    tx: Tx, account_id: UUID, after: tuple[datetime, IdText], limit: int
) -> list[OrderRow]:
    """Those that finished later, and of those that finished then the ones with a higher id."""
    query = f"""
        SELECT {_ORDER} FROM orders
        WHERE account_id = $1 AND finished_at >= $2 AND (finished_at, order_id) > ($2, $3)
        ORDER BY finished_at, order_id LIMIT $4
    """  # noqa: S608 - our own constants
    return parse_rows(await tx.fetch(query, account_id, *after, limit), OrderRow)


async def list_retained_positions(
    tx: Tx, organization_id: UUID, account: RetainingAccount, after: str, limit: int
) -> list[PositionRow]:
    query = f"""
        SELECT {_POSITION} FROM holdings
        WHERE organization_id = $1 AND account_id = $2 AND symbol > $4
            AND (quantity <> 0 OR received_at > $3)
        ORDER BY symbol LIMIT $5
    """  # noqa: S608 - our own constants
    rows = await tx.fetch(query, organization_id, account.id, account.since, after, limit)
    return parse_rows(rows, PositionRow)
