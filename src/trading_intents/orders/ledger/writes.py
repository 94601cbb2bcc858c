"""Writes what a booking changes, over many accounts. Rows are passed as JSON in one parameter. Never decides."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from trading_intents.orders.facts import Fact
from trading_intents.orders.ledger.exposures import ExposureChange
from trading_intents.orders.ledger.store import AccountName, PositionColumns, json_text
from trading_intents.storage.database import Row
from trading_intents.storage.pipeline import Statement, array_text


def insert_facts(facts: Sequence[tuple[UUID, UUID, Fact, UUID | None]]) -> Statement:
    """Each: account, organization, the fact, its order if it has one. A key that was inserted meanwhile is refused."""
    rows = [
        {"account_id": account_id, "organization_id": organization_id, "order_id": order_id}
        | {name: getattr(fact, name) for name in _FACT_COLUMNS}
        for account_id, organization_id, fact, order_id in facts
    ]
    columns = ", ".join(("account_id", "organization_id", "order_id", *_FACT_COLUMNS))
    return Statement(
        f"""
        INSERT INTO facts ({columns}, recorded_at)
        SELECT {columns}, clock_timestamp()
        FROM json_populate_recordset(NULL::facts, $1::text::json) WITH ORDINALITY
        ORDER BY order_id IS NOT NULL, CASE WHEN order_id IS NULL THEN key END, ordinality
        """,  # noqa: S608 - our own constants
        (json_text(rows),),
    )


_FACT_COLUMNS = (
    *("key", "kind", "client_order_id", "broker_order_id", "replaces", "exec_id", "quantity", "price", "fee"),
    *("cum_quantity", "average_price", "venue_time", "reason"),
)


def match_facts(owners: Mapping[AccountName, UUID]) -> Statement:
    """Assigns facts without an order, by their keys, to the orders that they belong to."""
    rows = [{"account_id": name.account_id, "key": name.name, "order_id": owner} for name, owner in owners.items()]
    return Statement(
        """
        UPDATE facts f SET order_id = n.order_id
        FROM json_to_recordset($1::text::json) AS n (account_id uuid, key text, order_id uuid)
        WHERE f.account_id = n.account_id AND f.key = n.key AND f.order_id IS NULL
          AND f.account_id = ANY ($2::text::uuid[])
          AND f.key = ANY (ARRAY (SELECT json_array_elements_text($3::text::json)))
        """,
        (
            json_text(rows),
            array_text({str(name.account_id) for name in owners}),
            json_text([name.name for name in owners]),
        ),
    )


def name_commands(broker_order_ids: Mapping[AccountName, str]) -> Statement:
    """Sets the broker's ids of commands, by their client order ids; a first id is never replaced."""
    rows = [name._asdict() | {"broker_order_id": each} for name, each in broker_order_ids.items()]
    return Statement(
        """
        UPDATE commands c SET broker_order_id = n.broker_order_id
        FROM json_to_recordset($1::text::json) AS n (account_id uuid, name text, broker_order_id text)
        WHERE c.account_id = n.account_id AND c.client_order_id = n.name AND c.broker_order_id IS NULL
          AND c.account_id = ANY ($2::text::uuid[])
          AND c.client_order_id = ANY (ARRAY (SELECT json_array_elements_text($3::text::json)))
        """,
        (
            json_text(rows),
            array_text({str(name.account_id) for name in broker_order_ids}),
            json_text([name.name for name in broker_order_ids]),
        ),
    )


def write_orders(orders: Sequence[Row]) -> Statement:
    return Statement(
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
        WHERE o.order_id = n.order_id
        """,
        (json_text(orders),),
    )


_POSITION_COLUMNS = ", ".join(PositionColumns.__struct_fields__)
_WRITTEN_COLUMNS = set(PositionColumns.__struct_fields__) - {"account_id", "symbol", "organization_id"}
_SET_POSITION = ", ".join(f"{name} = n.{name}" for name in sorted(_WRITTEN_COLUMNS))


def insert_positions(positions: Sequence[Row]) -> Statement:
    """A position that was inserted meanwhile is refused."""
    return Statement(
        f"""
        INSERT INTO positions ({_POSITION_COLUMNS})
        SELECT {_POSITION_COLUMNS} FROM json_populate_recordset(NULL::positions, $1::text::json)
        ORDER BY account_id, symbol
        """,  # noqa: S608 - our own constants
        (json_text(positions),),
    )


def write_positions(positions: Sequence[Row]) -> Statement:
    return Statement(
        f"""
        UPDATE positions p SET {_SET_POSITION}
        FROM json_populate_recordset(NULL::positions, $1::text::json) AS n
        WHERE p.account_id = n.account_id AND p.symbol = n.symbol
        """,  # noqa: S608 - our own constants
        (json_text(positions),),
    )


def change_exposures(changes: Sequence[ExposureChange]) -> Statement:
    """Adds differences, which `sum_changes` has put in the order of their rows' locks."""
    return Statement(
        """
        INSERT INTO exposures AS e (account_id, symbol, organization_id, open_orders, open_buy, open_sell)
        SELECT account_id, symbol, organization_id, open_orders, open_buy, open_sell
        FROM json_populate_recordset(NULL::exposures, $1::text::json) WITH ORDINALITY
        ORDER BY ordinality
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET open_orders = e.open_orders + excluded.open_orders, open_buy = e.open_buy + excluded.open_buy,
            open_sell = e.open_sell + excluded.open_sell
        """,
        (json_text(changes),),
    )


def write_trades(trades: Sequence[Row]) -> Statement:
    """`below` is how far an event that told of the trade is below the organization's new stream head, which is held; a
    trade that none tells of again keeps its `seq`."""
    return Statement(
        """
        INSERT INTO trades (trade_id, account_id, organization_id, seq, order_id, exec_id, symbol, side, quantity,
                            price, fee, cumulative_quantity, leaves_quantity, client_order_id, command_seq,
                            client_reference_id, flags, broker_sent_at, received_at)
        SELECT trade_id, account_id, organization_id,
               CASE WHEN below IS NULL THEN n.seq ELSE (
                   SELECT h.seq - below FROM stream_heads h WHERE h.organization_id = n.organization_id
               ) END,
               order_id, exec_id, symbol, side, quantity, price,
               fee, cumulative_quantity, leaves_quantity, client_order_id, command_seq,
               client_reference_id, flags, broker_sent_at, received_at
        FROM ROWS FROM (
            json_populate_recordset(NULL::trades, $1::text::json),
            json_to_recordset($1::text::json) AS (below bigint)
        ) WITH ORDINALITY AS n
        ORDER BY ordinality  -- which is the order of their bookings
        ON CONFLICT (trade_id) DO UPDATE
        SET seq = excluded.seq, is_retold = trades.is_retold OR trades.seq <> excluded.seq,
            quantity = excluded.quantity, price = excluded.price, fee = excluded.fee,
            cumulative_quantity = excluded.cumulative_quantity, leaves_quantity = excluded.leaves_quantity,
            client_order_id = excluded.client_order_id, command_seq = excluded.command_seq, flags = excluded.flags,
            broker_sent_at = excluded.broker_sent_at
        """,
        (json_text(trades),),
    )
