"""The ledger's tables: facts, orders, trades, positions. Whole rows travel as JSON, one parameter a statement, whatever
their number. Never decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from trading_intents.orders.facts import Fact
from trading_intents.storage.database import Row, Tx
from trading_intents.trading import TimeInForce


class Asked(msgspec.Struct, frozen=True):
    """The terms in an action's record."""

    quantity: Decimal
    limit_price: Decimal | None
    stop_price: Decimal | None
    time_in_force: TimeInForce


class Action(msgspec.Struct, frozen=True):
    seq: int
    action_id: UUID
    action_type: str
    record: Asked


class TradeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A trade as it is kept. `seq` is that of the event that told of it last; 0 until there is one."""

    trade_id: UUID
    seq: int = 0
    exec_id: str
    quantity: Decimal
    price: Decimal
    fee: Decimal | None
    cumulative_quantity: Decimal
    leaves_quantity: Decimal
    client_order_id: str | None
    command_seq: int
    flags: tuple[str, ...]
    broker_sent_at: datetime | None
    received_at: datetime


@dataclass(frozen=True, slots=True)
class Book:
    """All that is kept of one order."""

    row: Row
    facts: tuple[Fact, ...]
    actions: tuple[Action, ...]
    trades: tuple[TradeRow, ...]
    sent_at: datetime | None  # its CREATE
    now: datetime  # the database's


async def find(
    tx: Tx, account_id: UUID, keys: Sequence[str], client_order_ids: Sequence[str], broker_order_ids: Sequence[str]
) -> list[Row]:
    """The facts of these keys; the orders of these ids, by `what`; broker's ids that facts without an order have."""
    return await tx.fetch(
        """
        SELECT 'fact' AS what, key AS name, order_id, kind, exec_id, replaces, quantity, price,
               NULL::timestamptz AS sent_at
        FROM facts WHERE account_id = $1 AND key = ANY ($2::text[])
        UNION ALL
        SELECT 'client', client_order_id, order_id, NULL, NULL, NULL, NULL, NULL, sent_at
        FROM commands WHERE account_id = $1 AND client_order_id = ANY ($3::text[])
        UNION ALL
        SELECT 'broker', broker_order_id, order_id, NULL, NULL, NULL, NULL, NULL, sent_at
        FROM commands WHERE account_id = $1 AND broker_order_id = ANY ($4::text[])
        UNION ALL
        SELECT 'astray', broker_order_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL
        FROM facts
        WHERE account_id = $1 AND order_id IS NULL AND client_order_id IS NULL AND broker_order_id = ANY ($4::text[])
        """,
        account_id,
        keys,
        client_order_ids,
        broker_order_ids,
    )


async def record_facts(
    tx: Tx,
    account_id: UUID,
    organization_id: UUID,
    order_ids: Sequence[UUID],
    facts: Sequence[tuple[Fact, UUID | None]],
) -> set[str]:
    """Locks the orders by id. Then the keys of the facts that are new, or whose order was not known until now."""
    named = {f.client_order_id: f.broker_order_id for f, order_id in facts if order_id and f.broker_order_id}
    named.pop(None, None)
    rows = await tx.fetch(
        """
        WITH held AS MATERIALIZED (
            SELECT order_id FROM orders WHERE order_id = ANY ($3::uuid[]) ORDER BY order_id FOR UPDATE
        ), new AS MATERIALIZED (
            SELECT *, unnest AS owner_id
            FROM ROWS FROM (json_populate_recordset(NULL::facts, $4::text::json), unnest($5::uuid[])) WITH ORDINALITY
            WHERE (SELECT count(*) FROM held) >= 0  -- so that they are held before anything is written
        ), named AS (
            UPDATE commands SET broker_order_id = ($7::text[])[array_position($6::text[], client_order_id)]
            WHERE account_id = $1 AND client_order_id = ANY ($6::text[]) AND broker_order_id IS NULL
              AND (SELECT count(*) FROM held) >= 0
        )
        INSERT INTO facts (account_id, organization_id, order_id, key, kind, client_order_id, broker_order_id, replaces,
                           exec_id, quantity, price, fee, cum_quantity, average_price, venue_time, reason, recorded_at)
        SELECT $1, $2, owner_id, key, kind, client_order_id, broker_order_id, replaces,
               exec_id, quantity, price, fee, cum_quantity, average_price, venue_time, reason, clock_timestamp()
        -- Those without an order are locked by their keys alone, so everyone takes them in the same order.
        FROM new ORDER BY owner_id IS NOT NULL, CASE WHEN owner_id IS NULL THEN key END, ordinality
        ON CONFLICT (account_id, key) DO UPDATE SET order_id = excluded.order_id
        WHERE facts.order_id IS NULL AND excluded.order_id IS NOT NULL
        RETURNING key
        """,
        account_id,
        organization_id,
        order_ids,
        _json([fact for fact, _ in facts]),
        [order_id for _, order_id in facts],
        list(named),
        list(named.values()),
    )
    return {row["key"] for row in rows}


async def adopt(tx: Tx, account_id: UUID, order_ids: Sequence[UUID], broker_order_ids: Sequence[str]) -> set[str]:
    """Gives these orders, which are locked, what was told under their broker's id before we knew it."""
    rows = await tx.fetch(
        """
        UPDATE facts SET order_id = c.order_id
        FROM commands c
        WHERE facts.account_id = $1 AND facts.order_id IS NULL AND facts.client_order_id IS NULL
          AND facts.broker_order_id = ANY ($3::text[])
          AND c.account_id = $1 AND c.broker_order_id = ANY ($3::text[])
          AND c.broker_order_id = facts.broker_order_id AND c.order_id = ANY ($2::uuid[])
          AND facts.recorded_at >= c.sent_at  -- venues use their ids again
        RETURNING facts.key
        """,
        account_id,
        order_ids,
        broker_order_ids,
    )
    return {row["key"] for row in rows}


async def read_books(tx: Tx, order_ids: Sequence[UUID]) -> list[Book]:
    rows = await tx.fetch(
        """
        SELECT o.*, (SELECT clock_timestamp()) AS now,
            (SELECT json_agg(f) FROM (
                SELECT key, arrival, kind, client_order_id, broker_order_id, replaces, exec_id, quantity, price, fee,
                       cum_quantity, average_price, venue_time, reason
                FROM facts WHERE order_id = o.order_id
            ) AS f) AS facts,
            (SELECT json_agg(a) FROM (
                SELECT seq, action_id, action_type, record::json FROM actions WHERE intent_id = o.order_id ORDER BY seq
            ) AS a) AS actions,
            (SELECT json_agg(t) FROM (
                SELECT trade_id, seq, exec_id, quantity, price, fee, cumulative_quantity, leaves_quantity,
                       client_order_id, command_seq, flags, broker_sent_at, received_at
                FROM trades WHERE order_id = o.order_id ORDER BY booking
            ) AS t) AS trades,
            (SELECT sent_at FROM commands c WHERE c.order_id = o.order_id AND c.action_type = 'CREATE' LIMIT 1)
                AS create_sent_at
        FROM orders o WHERE o.order_id = ANY ($1::uuid[]) ORDER BY o.order_id
        """,
        order_ids,
    )
    return [_book(dict(row)) for row in rows]


def _book(row: dict[str, Any]) -> Book:
    facts, actions, trades = (row.pop(name) or "[]" for name in ("facts", "actions", "trades"))
    return Book(
        facts=msgspec.json.decode(facts, type=tuple[Fact, ...]),
        actions=msgspec.json.decode(actions, type=tuple[Action, ...]),
        trades=msgspec.json.decode(trades, type=tuple[TradeRow, ...]),
        sent_at=row.pop("create_sent_at"),
        now=row.pop("now"),
        row=row,
    )


async def lock_positions(
    tx: Tx, account_id: UUID, organization_id: UUID, symbols: Sequence[str], flat: Sequence[str] = ()
) -> list[Row]:
    """By symbol. Those of `symbols` that are not there yet are made, those of `flat` are not.

    An update, as only that locks and reads at once."""
    return await tx.fetch(
        """
        INSERT INTO positions AS p (account_id, organization_id, symbol, received_at)
        SELECT $1, $2, symbol, clock_timestamp() FROM (
            SELECT unnest($3::text[])
            UNION ALL
            SELECT symbol FROM positions WHERE account_id = $1 AND symbol = ANY ($4::text[])
        ) AS wanted (symbol) ORDER BY symbol
        ON CONFLICT (account_id, symbol) DO UPDATE SET received_at = p.received_at
        RETURNING *, clock_timestamp() AS now
        """,
        account_id,
        organization_id,
        symbols,
        flat,
    )


async def read_bookings(tx: Tx, account_id: UUID, symbol: str, after: int, limit: int) -> list[Row]:
    """The symbol's trades as they were booked, a page at a time."""
    return await tx.fetch(
        """
        SELECT booking, trade_id, side, quantity, price, fee, broker_sent_at, received_at FROM trades
        WHERE account_id = $1 AND symbol = $2 AND booking > $3 ORDER BY booking LIMIT $4
        """,
        account_id,
        symbol,
        after,
        limit,
    )


async def write_orders(tx: Tx, orders: Sequence[Row]) -> None:
    await tx.execute(
        """
        UPDATE orders o
        SET order_status = n.order_status, command_seq = n.command_seq, quantity = n.quantity,
            limit_price = n.limit_price, stop_price = n.stop_price, time_in_force = n.time_in_force,
            filled_quantity = n.filled_quantity, average_price = n.average_price,
            external_order_id = n.external_order_id, reason = n.reason, flags = n.flags,
            pending_replace_seq = n.pending_replace_seq, cancel_requested = n.cancel_requested,
            broker_sent_at = n.broker_sent_at, received_at = n.received_at, updated_at = n.updated_at,
            finished_at = n.finished_at, version = n.version
        FROM json_populate_recordset(NULL::orders, $1::text::json) AS n
        WHERE o.order_id = n.order_id AND o.order_id = ANY ($2::uuid[])  -- else a plan might go through the whole table
        """,
        _json(orders),
        [order["order_id"] for order in orders],
    )


async def write_positions(tx: Tx, positions: Sequence[Row]) -> None:
    """Of one account."""
    await tx.execute(
        """
        UPDATE positions p
        SET quantity = n.quantity, open_cost = n.open_cost, realized_pnl = n.realized_pnl,
            value_bought = n.value_bought, value_sold = n.value_sold, fees = n.fees, day = n.day, day_pnl = n.day_pnl,
            opening_quantity = n.opening_quantity, opening_price = n.opening_price, opening_cost = n.opening_cost,
            uncosted_quantity = n.uncosted_quantity, broker_quantity = n.broker_quantity, broker_key = n.broker_key,
            broker_sent_at = n.broker_sent_at, differs = n.differs, received_at = n.received_at
        FROM json_populate_recordset(NULL::positions, $1::text::json) AS n
        WHERE p.account_id = n.account_id AND p.symbol = n.symbol
          AND p.account_id = $2 AND p.symbol = ANY ($3::text[])
        """,
        _json(positions),
        positions[0]["account_id"],
        [position["symbol"] for position in positions],
    )


async def write_trades(tx: Tx, trades: Sequence[Row]) -> None:
    await tx.execute(
        """
        INSERT INTO trades (trade_id, account_id, organization_id, seq, order_id, exec_id, symbol, side, quantity,
                            price, fee, cumulative_quantity, leaves_quantity, client_order_id, command_seq,
                            client_reference_id, flags, broker_sent_at, received_at)
        SELECT trade_id, account_id, organization_id, seq, order_id, exec_id, symbol, side, quantity, price,
               fee, cumulative_quantity, leaves_quantity, client_order_id, command_seq,
               client_reference_id, flags, broker_sent_at, received_at
        FROM json_populate_recordset(NULL::trades, $1::text::json) WITH ORDINALITY
        ORDER BY ordinality  -- which is the order of their bookings
        ON CONFLICT (trade_id) DO UPDATE
        SET seq = excluded.seq, quantity = excluded.quantity, price = excluded.price, fee = excluded.fee,
            cumulative_quantity = excluded.cumulative_quantity, leaves_quantity = excluded.leaves_quantity,
            client_order_id = excluded.client_order_id, command_seq = excluded.command_seq, flags = excluded.flags,
            broker_sent_at = excluded.broker_sent_at
        """,
        _json(trades),
    )


# Open orders are few and mostly young, and are read by their own index first: a plan that goes through the account's
# orders from the oldest would find them last.
LIST_ORDERS = """
    WITH working AS MATERIALIZED (
        SELECT * FROM orders
        WHERE account_id = $1 AND finished_at IS NULL
    )
    SELECT * FROM {source}
    WHERE account_id = $1 AND create_seq > $2 AND create_seq <= $3
      AND ($5::text IS NULL OR $5 = 'OPEN'
           OR $5 = 'CLOSED' AND order_status IN ('FILLED', 'CANCELLED', 'EXPIRED')
           OR $5 = 'REJECTED' AND order_status = 'REJECTED')
      AND ($6::text IS NULL OR symbol = $6)
      AND ($7::uuid IS NULL OR order_id = $7)
      AND ($8::text IS NULL OR client_reference_id = $8)
    ORDER BY create_seq LIMIT $4
"""


async def list_orders(
    tx: Tx,
    account_id: UUID,
    after: int,
    upto: int,
    limit: int,
    state: str | None,
    symbol: str | None,
    order_id: UUID | None,
    client_reference_id: str | None,
) -> list[Row]:
    """By the seq of their CREATEs, which commit in that order."""
    query = LIST_ORDERS.format(source="working" if state == "OPEN" else "orders")
    return await tx.fetch(query, account_id, after, upto, limit, state, symbol, order_id, client_reference_id)


async def last_seq(tx: Tx, account_id: UUID) -> int:
    seq: int | None = await tx.fetchval("SELECT seq FROM account_heads WHERE account_id = $1", account_id)
    return seq or 0


async def find_order(tx: Tx, account_id: UUID, order_id: UUID) -> Row | None:
    return await tx.fetchrow("SELECT * FROM orders WHERE order_id = $2 AND account_id = $1", account_id, order_id)


async def list_trades(tx: Tx, account_id: UUID, after: int, limit: int) -> list[Row]:
    return await tx.fetch(
        "SELECT * FROM trades WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3", account_id, after, limit
    )


async def list_positions(tx: Tx, account_id: UUID, after: str, limit: int) -> list[Row]:
    return await tx.fetch(
        """
        SELECT *, (SELECT clock_timestamp()) AS now FROM positions
        WHERE account_id = $1 AND symbol > $2 ORDER BY symbol LIMIT $3
        """,
        account_id,
        after,
        limit,
    )


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()
