"""Writes what a booking changes, over many accounts: rows go as one array for each column. Never
decides."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec.structs import astuple

from trading_intents.orders.ledger.store import AccountName
from trading_intents.orders.positions import OpenSums, PositionRow
from trading_intents.orders.store import OrderRow, TradeRow
from trading_intents.storage.pipeline import RowParameters, Statement, column_types


def _assign(names: Iterable[str]) -> str:
    """For an UPDATE from the rows `n`."""
    return ", ".join(f"{name} = n.{name}" for name in names)


_NAMED = RowParameters({"account_id": "uuid", "client_order_id": "text", "broker_order_id": "text"})
_NAME_COMMANDS = f"""
    UPDATE commands c SET broker_order_id = n.broker_order_id FROM {_NAMED.rows} AS n
    WHERE c.account_id = n.account_id AND c.client_order_id = n.client_order_id
      AND c.broker_order_id IS NULL AND {_NAMED.any_of("c", "account_id", "client_order_id")}
"""  # noqa: S608 - our own constants


def name_commands(broker_order_ids: Mapping[AccountName, str]) -> Statement:
    """Sets the broker's ids of commands, by their client order ids; a first id is never
    replaced."""
    rows = [(*name, each) for name, each in broker_order_ids.items()]
    return Statement(_NAME_COMMANDS, _NAMED.pack(rows))


_UNCHANGED = (
    "account_id",
    "organization_id",
    "environment",
    "broker",
    "create_seq",
    "symbol",
    "order_type",
    "order_side",
    "route_strategy",
    "client_reference_id",
    "created_at",
    "leg",
    "parent_order_id",
    "linked",
    "counted_notional",
)
_ORDER_TYPES = column_types(OrderRow, *_UNCHANGED)
_ORDERS = RowParameters(_ORDER_TYPES)
_order_values = attrgetter(*_ORDER_TYPES)
_UPDATE_ORDERS = f"""
    UPDATE orders o SET {_assign([name for name in _ORDER_TYPES if name != "order_id"])}
    FROM {_ORDERS.rows} AS n WHERE o.order_id = n.order_id AND {_ORDERS.any_of("o", "order_id")}
"""  # noqa: S608 - our own constants


def write_orders(orders: Sequence[OrderRow]) -> Statement:
    return Statement(_UPDATE_ORDERS, _ORDERS.pack(map(_order_values, orders)))


_OPEN_TYPES = {"open_orders": "bigint", "open_buy": "numeric", "open_sell": "numeric"}
_HOLDINGS = RowParameters(column_types(PositionRow) | _OPEN_TYPES)
_KEPT = "{0} = CASE excluded.revision WHEN 0 THEN h.{0} ELSE excluded.{0} END"
_BOOKED = column_types(PositionRow, "account_id", "symbol", "organization_id", "revision")
_WRITE_HOLDINGS = f"""
    INSERT INTO holdings AS h ({_HOLDINGS.columns})
    SELECT {_HOLDINGS.columns} FROM {_HOLDINGS.rows} AS n
    ORDER BY account_id, symbol COLLATE "C"  -- in this order they are locked
    ON CONFLICT (organization_id, account_id, symbol) DO UPDATE
    SET {", ".join(f"{name} = h.{name} + excluded.{name}" for name in _OPEN_TYPES)},
        revision = CASE excluded.revision WHEN 0 THEN h.revision
            ELSE next_revision(h.revision, excluded.revision) END,
        {", ".join(map(_KEPT.format, _BOOKED))}
"""  # noqa: S608 - our own constants


def write_holdings(holdings: Iterable[tuple[PositionRow, OpenSums]]) -> Statement:
    """Writes positions, but those whose `revision` is 0, and adds differences to what is open. A
    position that was written since it was read is refused."""
    rows = [(*astuple(row), *opened) for row, opened in holdings]
    return Statement(_WRITE_HOLDINGS, _HOLDINGS.pack(rows))


_TRADE_TYPES = column_types(TradeRow, "booking", "seq")
_TRADES = RowParameters(_TRADE_TYPES | {"seq": "bigint", "below": "bigint"})
_trade_values = attrgetter(*_TRADE_TYPES, "seq")
_WRITE_TRADES = f"""
    INSERT INTO trades ({", ".join(_TRADE_TYPES)}, seq)
    SELECT {", ".join(_TRADE_TYPES)}, CASE WHEN below IS NULL THEN n.seq ELSE (
        SELECT h.seq - below FROM stream_heads h WHERE h.organization_id = n.organization_id
    ) END
    FROM {_TRADES.rows} AS n
    ORDER BY ordinality  -- which is the order of their bookings
    ON CONFLICT (trade_id) DO UPDATE
    SET seq = excluded.seq, is_retold = trades.is_retold OR trades.seq <> excluded.seq,
        quantity = excluded.quantity, price = excluded.price, fee = excluded.fee,
        cumulative_quantity = excluded.cumulative_quantity,
        leaves_quantity = excluded.leaves_quantity, client_order_id = excluded.client_order_id,
        command_seq = excluded.command_seq, flags = excluded.flags,
        broker_sent_at = excluded.broker_sent_at, cum_quantity = excluded.cum_quantity
"""  # noqa: S608 - our own constants


def write_trades(trades: Sequence[tuple[TradeRow, int | None]]) -> Statement:
    """Each with how far the event that reports it is below the organization's new stream head,
    which is held; a trade that none reports again keeps its `seq`."""
    rows = [(*_trade_values(trade), below) for trade, below in trades]
    return Statement(_WRITE_TRADES, _TRADES.pack(rows))
