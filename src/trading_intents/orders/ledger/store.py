"""Locks and reads what a booking needs, over many accounts. Rows come as JSON, each as one text.
Never decides."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from trading_intents.ids import IdText
from trading_intents.orders.facts import Fact
from trading_intents.orders.positions import PositionRow
from trading_intents.orders.store import (
    COVERS,
    Action,
    BookedTrade,
    CommandRow,
    Cover,
    OrderHead,
    OrderHistory,
)
from trading_intents.storage.pipeline import Reply, RowParameters, Statement, array_text
from trading_intents.trading import FrozenStruct


class AccountName(NamedTuple):
    """A client order id, a broker's order id, a fact's key or a symbol, in its account."""

    account_id: IdText
    name: str


class ConcernedNames(NamedTuple):
    """The names in events and facts by which their orders are found, the keys of facts that may
    belong to none, and the symbols whose positions are reported."""

    order_ids: set[IdText]
    client_order_ids: set[AccountName]
    broker_order_ids: set[AccountName]
    keys: set[AccountName]
    symbols: set[AccountName]


_NAMES = {"account_id": "uuid", "name": "text"}
_FIRST = RowParameters(_NAMES)
_SECOND = RowParameters(_NAMES, 3)
_THIRD = RowParameters(_NAMES, 6)
# The orders of `named`, the entries of their symbols that may be unprotected, and those that their
# brokers link to them: they are locked and derived together.
WITH_LINKED = """
    SELECT linked.order_id FROM ({named}) AS named (order_id)
    CROSS JOIN LATERAL (
        SELECT account_id, symbol, linked, coalesce(parent_order_id, order_id) AS entry_id
        FROM orders WHERE order_id = named.order_id OFFSET 0
    ) AS own
    CROSS JOIN LATERAL (
        SELECT own.entry_id, own.linked
        UNION ALL
        (SELECT order_id, true FROM orders
         WHERE account_id = own.account_id AND symbol BETWEEN own.symbol AND own.symbol
             AND uncovered_since IS NOT NULL
         ORDER BY symbol)
    ) AS entry (order_id, linked)
    CROSS JOIN LATERAL (
        SELECT entry.order_id
        UNION ALL
        (SELECT order_id FROM orders
         WHERE entry.linked AND account_id = own.account_id AND parent_order_id
             BETWEEN entry.order_id AND entry.order_id
         ORDER BY parent_order_id)
    ) AS linked (order_id)
"""
# LATERAL with OFFSET or ORDER BY allows only look-ups by key, and so does ANY beside a join
# (decision 0039). What was locked is kept for the statements that follow in the same transaction,
# which each see what was committed before them.
_NAMED = f"""
            SELECT unnest($5::text::uuid[])
            UNION
            SELECT found.order_id FROM {_FIRST.rows} AS asked
            CROSS JOIN LATERAL (
                SELECT order_id FROM commands
                WHERE account_id = asked.account_id AND client_order_id = asked.name OFFSET 0
            ) AS found
            UNION
            SELECT found.order_id FROM {_SECOND.rows} AS asked
            CROSS JOIN LATERAL (
                SELECT order_id FROM commands
                WHERE account_id = asked.account_id AND broker_order_id BETWEEN asked.name
                    AND asked.name
                ORDER BY broker_order_id
            ) AS found
            UNION
            SELECT found.order_id FROM {_THIRD.rows} AS asked
            CROSS JOIN LATERAL (
                SELECT order_id FROM orders
                WHERE account_id = asked.account_id AND symbol BETWEEN asked.name AND asked.name
                    AND uncovered_since IS NOT NULL
                ORDER BY symbol
            ) AS found
"""  # noqa: S608 - our own constants
_LOCK_ORDERS = f"""
    SELECT set_config('trading_intents.locked_orders', coalesce(array_agg(order_id), '{{}}')::text,
        true)
    FROM (
        SELECT order_id FROM orders
        WHERE order_id = ANY (ARRAY ({WITH_LINKED.format(named=_NAMED)}))
        ORDER BY order_id FOR UPDATE
    ) AS held
"""  # noqa: S608 - our own constants
_LOCKED = "current_setting('trading_intents.locked_orders')::uuid[]"
_ASTRAY = """
    SELECT json_build_object('fact', json_build_object('account_id', r.account_id,
        'recorded_at', r.at, 'fact', r.facts -> 0))::text FROM {asked} AS asked
    CROSS JOIN LATERAL (
        SELECT account_id, at, facts FROM reports
        WHERE account_id = asked.account_id AND facts -> 0 ->> '{name}' = asked.name
            AND order_id IS NULL AND facts IS NOT NULL
        OFFSET 0
    ) AS r
"""
# Commands by the broker's order id, facts that had no order under it, and such facts by their keys.
_FIND = f"""
    SELECT json_build_object('command', c)::text FROM {_FIRST.rows} AS asked
    CROSS JOIN LATERAL (
        SELECT * FROM commands
        WHERE account_id = asked.account_id AND broker_order_id BETWEEN asked.name AND asked.name
        ORDER BY broker_order_id
    ) AS c
    UNION ALL {_ASTRAY.format(asked=_FIRST.rows, name="broker_order_id")}
    UNION ALL {_ASTRAY.format(asked=_SECOND.rows, name="key")}
"""  # noqa: S608 - our own constants
_READ_HEADS = f"""
    SELECT json_build_object('row', o,
        'commands', (SELECT coalesce(json_agg(c), '[]') FROM commands c
            WHERE c.order_id = o.order_id),
        'trades', (SELECT coalesce(json_agg(t ORDER BY t.booking), '[]') FROM trades t
            WHERE t.order_id = o.order_id),
        'facts', (SELECT coalesce(json_agg(fact ORDER BY r.seq, number), '[]')
            FROM reports r CROSS JOIN json_array_elements(r.facts)
                WITH ORDINALITY AS seen (fact, number)
            WHERE r.order_id = o.order_id AND r.facts IS NOT NULL)
    )::text
    FROM orders o WHERE o.order_id = ANY ({_LOCKED}) ORDER BY o.order_id
"""  # noqa: S608 - our own constants
# What is read of orders of which heads and news do not say enough.
_READ_ACTIONS = """
    SELECT json_build_object('order_id', asked.order_id,
        'actions', (SELECT json_agg(a ORDER BY a.seq) FROM (
            SELECT seq, action_id, action_type, record::json FROM actions
            WHERE intent_id = asked.order_id
        ) AS a)
    )::text
    FROM unnest($1::text::uuid[]) AS asked (order_id)
"""
_READ_POSITIONS = f"""
    SELECT row_to_json(h)::text
    FROM (
        SELECT organization_id, account_id, symbol FROM orders WHERE order_id = ANY ({_LOCKED})
        UNION
        SELECT a.organization_id, a.id, asked.name FROM {_FIRST.rows} AS asked
        CROSS JOIN LATERAL (
            SELECT id, organization_id FROM accounts WHERE id = asked.account_id OFFSET 0
        ) AS a
    ) AS asked
    CROSS JOIN LATERAL (
        SELECT * FROM holdings
        WHERE organization_id = asked.organization_id AND account_id = asked.account_id
            AND symbol = asked.symbol OFFSET 0
    ) AS h
"""  # noqa: S608 - our own constants
# Of the symbols of locked entries.
READ_COVERS = Statement(COVERS.format(named=f"order_id = ANY ({_LOCKED})"))


def read_ledger(names: ConcernedNames) -> list[Statement]:
    """Locks the orders by id; reads all that the booking of common orders needs, their positions
    and those that are reported too. Positions come before what was recorded of others under the
    same keys: if that comes in between, the position is another one when it is written."""
    clients = _FIRST.pack(names.client_order_ids)
    brokers = _FIRST.pack(names.broker_order_ids)
    keys = _FIRST.pack(names.keys)
    symbols = _FIRST.pack(names.symbols)
    order_ids = array_text(names.order_ids)
    return [
        Statement(_LOCK_ORDERS, clients + brokers + (order_ids,) + symbols),
        Statement(_READ_POSITIONS, symbols),
        Statement(_FIND, brokers + keys),
        Statement(_READ_HEADS),
        Statement("SELECT to_json(clock_timestamp())::text"),
    ]


class AstrayFact(FrozenStruct):
    """A fact of no order of ours, as far as was known."""

    account_id: IdText
    recorded_at: datetime
    fact: Fact


class _Found(msgspec.Struct):
    command: CommandRow | None = None
    fact: AstrayFact | None = None


class Ledger(NamedTuple):
    """The rows that were locked and read; commands beside those of the orders that are locked."""

    commands: list[CommandRow]
    facts: list[AstrayFact]
    heads: dict[IdText, OrderHead]
    positions: dict[AccountName, PositionRow]
    now: datetime


def parse_ledger(replies: Sequence[Reply]) -> Ledger:
    _, positions, found, heads, clock = replies
    [now] = clock.parse(datetime)
    ledger = Ledger([], [], {}, {}, now)
    for match in found.parse(_Found):
        if match.command:
            ledger.commands.append(match.command)
        if match.fact:
            ledger.facts.append(match.fact)
    for head in heads.parse(OrderHead):
        ledger.heads[head.row.order_id] = head
    for row in positions.parse(PositionRow):
        ledger.positions[AccountName(row.account_id, row.symbol)] = row
    return ledger


class _OrderActions(FrozenStruct):
    order_id: IdText
    actions: tuple[Action, ...]


def read_actions(order_ids: Iterable[IdText]) -> Statement:
    return Statement(_READ_ACTIONS, (array_text(order_ids),))


def parse_histories(reply: Reply, heads: Mapping[IdText, OrderHead]) -> dict[IdText, OrderHistory]:
    histories = {}
    for each in reply.parse(_OrderActions):
        head = heads[each.order_id]
        histories[each.order_id] = OrderHistory(**asdict(head), actions=each.actions)
    return histories


def parse_covers(reply: Reply) -> dict[AccountName, Cover]:
    return {AccountName(each.account_id, each.symbol): each for each in reply.parse(Cover)}


_BOOKED = "json_build_object({})".format(
    ", ".join(f"'{name}', {name}" for name in BookedTrade.__struct_fields__)
)


def read_bookings(
    position: PositionRow, limit: int, after: int = 0, direction: str = "ASC"
) -> Statement:
    """The symbol's trades in the order of their booking, or with DESC newest first."""
    sql = f"""
        SELECT {_BOOKED}::text FROM trades
        WHERE account_id = $1::text::uuid AND symbol = $2::text AND booking > $3::text::bigint
        ORDER BY booking {direction} LIMIT $4::text::bigint
    """  # noqa: S608 - our own constants
    return Statement(sql, (position.account_id, position.symbol, str(after), str(limit)))


def parse_bookings(reply: Reply) -> list[BookedTrade]:
    return reply.parse(BookedTrade)
