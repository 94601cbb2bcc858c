"""Statements of the paper broker's tables that a session runs. Never reads another feature's
table."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from trading_intents.brokers.paper.model import (
    PaperAccount,
    PaperEvent,
    PaperOrder,
    PostedQuote,
    Prices,
)
from trading_intents.brokers.port import BrokerEvent
from trading_intents.storage.database import Tx
from trading_intents.storage.pages import PageRequest, fetch_page
from trading_intents.storage.pipeline import Statement, json_text
from trading_intents.trading import Symbol

EVENTS_A_READ = 1_000


class CommandTarget(msgspec.Struct, frozen=True):
    """An order that a REPLACE or CANCEL names by any id that it ever had."""

    account_id: UUID
    client_order_id: str | None
    broker_order_id: str | None


class TargetRow(msgspec.Struct):
    order: PaperOrder
    events: list[BrokerEvent]
    asked: CommandTarget | None = None


# Rows with the fields of a BrokerEvent.
_EVENTS = "(SELECT *, 'paper:' || seq AS dedupe_key FROM paper_events) AS e"
_EVENTS_OF_ORDER = f"""
    SELECT coalesce(json_agg(e ORDER BY e.seq), '[]') FROM (
        SELECT e.* FROM {_EVENTS}
        WHERE e.account_id = o.account_id AND e.number BETWEEN o.number AND o.number
        ORDER BY e.number
    ) AS e
"""  # noqa: S608 - our own constants


QUOTE_COLUMNS = f"q.symbol, q.number, q.posted_at AS at, {', '.join(Prices.__struct_fields__)}"
_TOTALS = ", ".join(PaperAccount.__struct_fields__)


def find_targets(targets: Sequence[CommandTarget]) -> Statement:
    """Finds the orders that commands name, each with all of its events so far; by the client order
    id, where there is one."""
    sql = f"""
        SELECT json_build_object('asked', asked, 'order', o, 'events', ({_EVENTS_OF_ORDER}))
        FROM json_to_recordset($1::text::json) AS asked (account_id uuid, client_order_id text,
            broker_order_id text)
        LEFT JOIN LATERAL (
            SELECT number FROM paper_journal
            WHERE account_id = asked.account_id AND NOT duplicate
              AND client_order_id BETWEEN asked.client_order_id AND asked.client_order_id
            ORDER BY client_order_id LIMIT 1
        ) AS j ON true
        CROSS JOIN LATERAL (
            (SELECT * FROM paper_orders
             WHERE account_id = asked.account_id AND number BETWEEN j.number AND j.number
             ORDER BY number)
            UNION ALL
            (SELECT * FROM paper_orders
             WHERE account_id = asked.account_id AND j.number IS NULL
               AND broker_order_id BETWEEN asked.broker_order_id AND asked.broker_order_id
             ORDER BY broker_order_id)
            LIMIT 1
        ) AS o
    """  # noqa: S608 - our own constants
    return Statement(sql, (json_text(targets),))


async def find_order(tx: Tx, account_id: UUID, client_order_id: str) -> TargetRow | None:
    statement = find_targets([CommandTarget(account_id, client_order_id, None)])
    text = await tx.fetchval(statement.sql, *statement.arguments)
    return None if text is None else msgspec.json.decode(text, type=TargetRow)


async def find_totals(tx: Tx, account_id: UUID) -> PaperAccount | None:
    query = f"SELECT {_TOTALS} FROM paper_accounts WHERE account_id = $1"  # noqa: S608 - our own
    row = await tx.fetchrow(query, account_id)
    return None if row is None else PaperAccount(**row)


async def read_totals(tx: Tx, account_id: UUID) -> PaperAccount:
    totals = await find_totals(tx, account_id)
    assert totals is not None, "the account is opened first"
    return totals


async def list_open(tx: Tx, account_id: UUID) -> list[TargetRow]:
    query = f"""
        SELECT coalesce(json_agg(
            json_build_object('order', o, 'events', ({_EVENTS_OF_ORDER})) ORDER BY number
        ), '[]')
        FROM (SELECT * FROM paper_orders WHERE account_id = $1 AND status = 'WORKING'
            ORDER BY symbol) AS o
    """  # noqa: S608 - our own constants
    return msgspec.json.decode(await tx.fetchval(query, account_id), type=list[TargetRow])


async def list_positions(tx: Tx, account_id: UUID) -> dict[Symbol, Decimal]:
    query = """
        SELECT coalesce(json_object_agg(symbol, position), '{}')
        FROM paper_holdings WHERE account_id = $1
    """
    return msgspec.json.decode(await tx.fetchval(query, account_id), type=dict[Symbol, Decimal])


async def list_events(tx: Tx, account_id: UUID, after: int) -> list[PaperEvent]:
    query = f"""
        SELECT coalesce(json_agg(
            json_build_object('order', number, 'event', e, 'seq', seq) ORDER BY seq
        ), '[]')
        FROM (
            SELECT * FROM {_EVENTS} WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
        ) AS e
    """  # noqa: S608 - our own constants
    text = await tx.fetchval(query, account_id, after, EVENTS_A_READ)
    return msgspec.json.decode(text, type=list[PaperEvent])


async def list_events_since(tx: Tx, account_id: UUID, since: datetime) -> list[BrokerEvent]:
    found: list[BrokerEvent] = []
    query = """
        SELECT min(seq) FROM (
            SELECT seq FROM paper_events WHERE account_id = $1 AND recorded_at >= $2
            ORDER BY recorded_at OFFSET 0
        ) AS later
    """
    first: int | None = await tx.fetchval(query, account_id, since)
    while first is not None:
        events = await list_events(tx, account_id, first - 1)
        found += [each.event for each in events]
        first = events[-1].seq + 1 if events else None
    return found


async def list_new_quotes(
    tx: Tx, organization_id: UUID, seen: Mapping[Symbol, int]
) -> dict[Symbol, list[PostedQuote]]:
    query = f"""
        SELECT {QUOTE_COLUMNS}
        FROM unnest($2::text[], $3::bigint[]) AS asked (symbol, after)
        CROSS JOIN LATERAL (
            SELECT * FROM paper_quotes
            WHERE organization_id = $1 AND symbol = asked.symbol AND number > asked.after
            ORDER BY number
        ) AS q
        ORDER BY q.symbol, q.number
    """  # noqa: S608 - our own constants
    found: dict[Symbol, list[PostedQuote]] = {}
    for row in await tx.fetch(query, organization_id, list(seen), list(seen.values())):
        quote = PostedQuote(**row)
        found.setdefault(quote.symbol, []).append(quote)
    return found


async def find_last_quotes(
    tx: Tx, organization_id: UUID, symbols: Collection[Symbol]
) -> dict[Symbol, PostedQuote]:
    query = f"""
        SELECT {QUOTE_COLUMNS} FROM unnest($2::text[]) AS asked (symbol)
        CROSS JOIN LATERAL (
            SELECT * FROM paper_quotes
            WHERE organization_id = $1 AND symbol = asked.symbol ORDER BY number DESC LIMIT 1
        ) AS q
    """  # noqa: S608 - our own constants
    rows = await tx.fetch(query, organization_id, list(symbols))
    quotes = [PostedQuote(**row) for row in rows]
    return {quote.symbol: quote for quote in quotes}


async def list_last_quotes(tx: Tx, organization_id: UUID, page: PageRequest) -> list[PostedQuote]:
    query = f"""
        SELECT {QUOTE_COLUMNS} FROM paper_symbols s
        CROSS JOIN LATERAL (
            SELECT * FROM paper_quotes
            WHERE organization_id = s.organization_id AND symbol = s.symbol AND number = s.number
            LIMIT 1
        ) AS q
        WHERE s.organization_id = $1
    """  # noqa: S608 - our own constants
    rows = await fetch_page(tx, query, page, organization_id, key="s.symbol")
    return [PostedQuote(**row) for row in rows]


async def next_quote_number(tx: Tx, organization_id: UUID, symbol: Symbol) -> int:
    """Gives the symbol's next quote number; its row stays locked."""
    query = """
        INSERT INTO paper_symbols AS s (organization_id, symbol, number) VALUES ($1, $2, 1)
        ON CONFLICT (organization_id, symbol) DO UPDATE SET number = s.number + 1
        RETURNING number
    """
    return int(await tx.fetchval(query, organization_id, symbol))


async def count_symbols(tx: Tx, organization_id: UUID) -> int:
    query = "SELECT count(*) FROM paper_symbols WHERE organization_id = $1"
    return int(await tx.fetchval(query, organization_id))


async def insert_quote(
    tx: Tx, organization_id: UUID, symbol: Symbol, number: int, prices: Prices
) -> datetime:
    query = """
        INSERT INTO paper_quotes (organization_id, symbol, number, bid, ask, bid_size, ask_size,
            last, last_size)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        RETURNING posted_at
    """
    posted_at: datetime = await tx.fetchval(
        query, organization_id, symbol, number, *astuple(prices)
    )
    return posted_at


async def delete_quotes(tx: Tx, organization_id: UUID, symbol: Symbol, upto: int) -> None:
    query = "DELETE FROM paper_quotes WHERE organization_id = $1 AND symbol = $2 AND number <= $3"
    await tx.execute(query, organization_id, symbol, upto)
