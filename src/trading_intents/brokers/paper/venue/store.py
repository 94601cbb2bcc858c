"""Statements of the venue's batches, one a function. Rows are passed as JSON in both directions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from trading_intents.brokers.paper.faults import Fault
from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperEvent,
    PaperHolding,
    PaperOrder,
    Quote,
)
from trading_intents.brokers.paper.store import CommandTarget, TargetRow
from trading_intents.storage.pipeline import Reply, Statement, array_text, json_text
from trading_intents.trading import AccountSymbol


class Arrival(msgspec.Struct, kw_only=True):
    """A command that reached the venue, with its number among the account's."""

    account_id: UUID
    seq: int
    command: str
    client_order_id: str
    number: int | None  # of the order that it made or named
    duplicate: bool
    ticket: str
    at: datetime


def insert_account(account_id: UUID, organization_id: UUID, cash: Decimal) -> Statement:
    sql = """
        INSERT INTO paper_accounts (account_id, organization_id, cash)
        VALUES ($1::uuid, $2::uuid, $3::numeric)
        ON CONFLICT DO NOTHING
    """
    return Statement(sql, (str(account_id), str(organization_id), str(cash)))


def lock_accounts(account_ids: Iterable[UUID]) -> Statement:
    """Locks accounts by id. An account that another transaction holds is left out."""
    sql = """
        SELECT account_id, to_json(a) FROM (
            SELECT * FROM paper_accounts
            WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE SKIP LOCKED
        ) AS a
    """
    return Statement(sql, (array_text(sorted(map(str, account_ids))),))


def parse_accounts(reply: Reply) -> dict[UUID, PaperAccount]:
    return {
        UUID(account_id): msgspec.json.decode(text, type=PaperAccount)
        for account_id, text in reply.texts()
    }


def read_clock() -> Statement:
    """Reads the clock in a statement of its own, so that it is read after the accounts are
    locked."""
    return Statement("SELECT clock_timestamp()")


def parse_clock(reply: Reply) -> datetime:
    ((text,),) = reply.texts()
    return datetime.fromisoformat(text)


def read_faults(account_ids: Iterable[UUID]) -> Statement:
    sql = "SELECT to_json(f) FROM paper_faults f WHERE account_id = ANY ($1::uuid[])"
    return Statement(sql, (array_text(map(str, account_ids)),))


def parse_faults(reply: Reply) -> dict[UUID, list[Fault]]:
    by_account: dict[UUID, list[Fault]] = {}
    for fault in reply.parse(Fault):
        by_account.setdefault(fault.account_id, []).append(fault)
    return by_account


def save_faults(faults: Sequence[Fault]) -> Statement:
    sql = """
        UPDATE paper_faults f SET remaining = n.remaining
        FROM json_populate_recordset(NULL::paper_faults, $1::text::json) AS n
        WHERE f.account_id = n.account_id AND f.kind = n.kind
    """
    return Statement(sql, (json_text(faults),))


def find_commands(ids: Sequence[tuple[UUID, str]]) -> Statement:
    sql = """
        SELECT j.account_id, j.client_order_id
        FROM json_populate_recordset(NULL::paper_journal, $1::text::json) AS asked
        CROSS JOIN LATERAL (
            SELECT account_id, client_order_id FROM paper_journal
            WHERE account_id = asked.account_id AND NOT duplicate
              AND client_order_id BETWEEN asked.client_order_id AND asked.client_order_id
            ORDER BY client_order_id LIMIT 1
        ) AS j
    """
    asked = [{"account_id": account_id, "client_order_id": each} for account_id, each in ids]
    return Statement(sql, (json_text(asked),))


def parse_commands(reply: Reply) -> set[tuple[UUID, str]]:
    return {(UUID(account_id), client_order_id) for account_id, client_order_id in reply.texts()}


def parse_targets(reply: Reply) -> dict[CommandTarget, TargetRow]:
    return {row.asked: row for row in reply.parse(TargetRow) if row.asked}


def list_working(account_ids: Iterable[UUID]) -> Statement:
    sql = """
        SELECT o.account_id, to_json(o) FROM unnest($1::uuid[]) AS asked (account_id)
        CROSS JOIN LATERAL (
            SELECT * FROM paper_orders WHERE account_id = asked.account_id AND status = 'WORKING'
            ORDER BY symbol
        ) AS o
        ORDER BY o.account_id, o.number
    """
    return Statement(sql, (array_text(map(str, account_ids)),))


def parse_orders(reply: Reply) -> list[tuple[UUID, PaperOrder]]:
    rows = reply.texts()
    return [(UUID(key), msgspec.json.decode(text, type=PaperOrder)) for key, text in rows]


def read_holdings(keys: Iterable[AccountSymbol[UUID]]) -> Statement:
    sql = """
        SELECT h.account_id, h.symbol, to_json(h)
        FROM json_populate_recordset(NULL::paper_holdings, $1::text::json) AS asked
        CROSS JOIN LATERAL (
            SELECT * FROM paper_holdings
            WHERE account_id = asked.account_id AND symbol = asked.symbol LIMIT 1
        ) AS h
    """
    asked = [{"account_id": account_id, "symbol": symbol} for account_id, symbol in keys]
    return Statement(sql, (json_text(asked),))


def parse_holdings(reply: Reply) -> dict[AccountSymbol[UUID], PaperHolding]:
    return {
        (UUID(account_id), symbol): msgspec.json.decode(text, type=PaperHolding)
        for account_id, symbol, text in reply.texts()
    }


class AskedQuotes(msgspec.Struct):
    account_id: UUID
    symbol: str
    organization_id: UUID
    after: int | None  # None: the present one is enough


def list_quotes(asked: Sequence[AskedQuotes]) -> Statement:
    """Lists, of each symbol for which the organization posts quotes, the present one and all after
    the asked number."""
    sql = """
        SELECT asked.account_id, q.symbol, to_json(q)
        FROM json_to_recordset($1::text::json)
             AS asked (account_id uuid, organization_id uuid, symbol text, after bigint)
        CROSS JOIN LATERAL (
            SELECT number FROM paper_symbols
            WHERE organization_id = asked.organization_id AND symbol = asked.symbol LIMIT 1
        ) AS s
        CROSS JOIN LATERAL (
            SELECT *, posted_at AS at, 'posted' AS source FROM paper_quotes
            WHERE organization_id = asked.organization_id AND symbol = asked.symbol
              AND number >= least(asked.after + 1, s.number)
            ORDER BY number
        ) AS q
        ORDER BY asked.account_id, q.symbol, q.number
    """
    return Statement(sql, (json_text(asked),))


def parse_quotes(
    reply: Reply, asked: Iterable[AccountSymbol[UUID]]
) -> dict[AccountSymbol[UUID], list[Quote]]:
    """Gives quotes by number; none for a symbol without posted quotes."""
    found: dict[AccountSymbol[UUID], list[Quote]] = {key: [] for key in asked}
    for account_id, symbol, text in reply.texts():
        quote = msgspec.json.decode(text, type=Quote)
        found[UUID(account_id), symbol].append(quote)
    return found


def add_commands(arrivals: Sequence[Arrival]) -> Statement:
    sql = f"""
        INSERT INTO paper_journal ({_columns(Arrival)})
        SELECT {_columns(Arrival)} FROM json_populate_recordset(NULL::paper_journal, $1::text::json)
    """  # noqa: S608 - our own constants
    return Statement(sql, (json_text(arrivals),))


def save_accounts(accounts: Mapping[UUID, PaperAccount]) -> Statement:
    rows = [{"account_id": key, **asdict(account)} for key, account in accounts.items()]
    sql = """
        UPDATE paper_accounts a
        SET cash = n.cash, reserved = n.reserved, short_value = n.short_value, orders = n.orders,
            events = n.events,
            places = n.places, commands = n.commands
        FROM json_populate_recordset(NULL::paper_accounts, $1::text::json) AS n
        WHERE a.account_id = n.account_id AND a.account_id = ANY ($2::uuid[])
    """
    return Statement(sql, (json_text(rows), array_text(map(str, accounts))))


def save_holdings(holdings: Mapping[AccountSymbol[UUID], PaperHolding]) -> Statement:
    columns = f"account_id, symbol, {_columns(PaperHolding)}"
    rows = list[object]()
    for (account_id, symbol), held in holdings.items():
        rows.append({"account_id": account_id, "symbol": symbol, **asdict(held)})
    sql = f"""
        INSERT INTO paper_holdings ({columns})
        SELECT {columns} FROM json_populate_recordset(NULL::paper_holdings, $1::text::json)
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET position = excluded.position, short_value = excluded.short_value,
            source = excluded.source,
            number = excluded.number, bid_taken = excluded.bid_taken, ask_taken = excluded.ask_taken
    """  # noqa: S608 - our own constants
    return Statement(sql, (json_text(rows),))


# Of an order.
_FIXED = frozenset({"number", "broker_order_id", "symbol", "side", "kind", "accepted_at"})
_CHANGING = [name for name in PaperOrder.__struct_fields__ if name not in _FIXED]
_CHANGES = ", ".join([f"{name} = excluded.{name}" for name in _CHANGING])


def save_orders(orders: Sequence[tuple[UUID, PaperOrder]]) -> Statement:
    columns = f"account_id, {_columns(PaperOrder)}"
    rows = [{"account_id": account_id, **asdict(order)} for account_id, order in orders]
    sql = f"""
        INSERT INTO paper_orders ({columns})
        SELECT {columns} FROM json_populate_recordset(NULL::paper_orders, $1::text::json)
        ON CONFLICT (account_id, number) DO UPDATE SET {_CHANGES}
    """  # noqa: S608 - our own constants
    return Statement(sql, (json_text(rows),))


_EVENT_COLUMNS = """
    account_id, seq, number, kind, client_order_id, broker_order_id, replaces, exec_id, symbol,
    side, quantity, price, fee, cum_quantity, leaves_quantity, average_price, broker_status,
    venue_time, reason, raw
"""


def add_events(events: Mapping[UUID, Sequence[PaperEvent]]) -> Statement:
    rows = list[object]()
    for account_id, made in events.items():
        for each in made:
            ids = {"account_id": account_id, "seq": each.seq, "number": each.order}
            rows.append({**ids, **asdict(each.event)})
    sql = f"""
        INSERT INTO paper_events ({_EVENT_COLUMNS})
        SELECT {_EVENT_COLUMNS} FROM json_populate_recordset(NULL::paper_events, $1::text::json)
    """  # noqa: S608 - our own constants
    return Statement(sql, (json_text(rows),))


@lru_cache
def _columns(kind: type[msgspec.Struct]) -> str:
    """Columns are named one by one, because a newer version may have added some."""
    return ", ".join(kind.__struct_fields__)
