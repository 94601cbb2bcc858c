"""Statements of the venue's tables and of the quotes. Never reads another feature's table."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import chain
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from trading_intents.brokers.paper.model import (
    JournalRow,
    PaperHolding,
    PaperOrder,
    PostedQuote,
    Prices,
    Quote,
)
from trading_intents.brokers.port import BrokerEvent
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.storage.pages import PageRequest, fetch_page
from trading_intents.storage.pipeline import Reply, Statement, json_text
from trading_intents.trading import Symbol

ROWS_A_READ = 1_000

READ_CLOCK = Statement("SELECT to_json(clock_timestamp())")


class CommandTarget(msgspec.Struct, frozen=True):
    """An order by any client order id that it ever had; one that nobody knows, by its number."""

    account_id: UUID
    client_order_id: str | None
    number: int | None = None


class FoundOrder(msgspec.Struct):
    asked: CommandTarget
    order: PaperOrder
    runs: list[list[BrokerEvent]]

    @property
    def events(self) -> tuple[BrokerEvent, ...]:
        return tuple(chain.from_iterable(self.runs))


def find_orders(asked: Sequence[CommandTarget]) -> Statement:
    """Finds orders as they are, or as they ended, each with all of its events so far."""
    sql = """
        SELECT json_build_object('asked', asked, 'order', coalesce(w.state, past.ended),
            'runs', past.runs)
        FROM json_to_recordset($1::text::json)
            AS asked (account_id uuid, client_order_id text, number bigint)
        LEFT JOIN LATERAL (
            SELECT number FROM paper_journal
            WHERE account_id = asked.account_id AND NOT duplicate
              AND client_order_id BETWEEN asked.client_order_id AND asked.client_order_id
            ORDER BY client_order_id LIMIT 1
        ) AS named ON true
        CROSS JOIN LATERAL (SELECT coalesce(named.number, asked.number) AS number) AS meant
        CROSS JOIN LATERAL (
            SELECT json_agg(events ORDER BY seq) AS runs,
                json_agg(ended) FILTER (WHERE ended IS NOT NULL) -> 0 AS ended
            FROM (
                (SELECT seq, events, ended FROM paper_journal
                 WHERE account_id = asked.account_id AND seq = meant.number LIMIT 1)
                UNION ALL
                (SELECT seq, events, ended FROM paper_journal
                 WHERE account_id = asked.account_id AND seq > number
                   AND number BETWEEN meant.number AND meant.number
                 ORDER BY number, seq)
            ) AS own
        ) AS past
        LEFT JOIN LATERAL (
            SELECT state FROM paper_working
            WHERE account_id = asked.account_id AND number = meant.number LIMIT 1
        ) AS w ON true
        WHERE past.runs IS NOT NULL
    """
    return Statement(sql, (json_text(asked),))


def list_working(account_ids: Iterable[UUID]) -> Statement:
    """Lists orders with their accounts."""
    sql = """
        SELECT json_build_array(w.account_id, w.state)
        FROM json_array_elements_text($1::text::json) AS asked (account_id)
        CROSS JOIN LATERAL (
            SELECT * FROM paper_working WHERE account_id = asked.account_id::uuid ORDER BY number
        ) AS w
    """
    return Statement(sql, (json_text(list(account_ids)),))


def list_holdings(account_ids: Iterable[UUID]) -> Statement:
    """Lists all holdings with their accounts and symbols."""
    sql = """
        SELECT json_build_array(h.account_id, h.symbol, h)
        FROM json_array_elements_text($1::text::json) AS asked (account_id)
        CROSS JOIN LATERAL (
            SELECT * FROM paper_holdings WHERE account_id = asked.account_id::uuid ORDER BY symbol
        ) AS h
    """
    return Statement(sql, (json_text(list(account_ids)),))


def parse_positions(held: Reply) -> dict[Symbol, Decimal]:
    rows = held.parse(tuple[UUID, Symbol, PaperHolding])
    return {symbol: holding.position for _, symbol, holding in rows if holding.position}


def read_account(account_id: UUID) -> Statement:
    sql = "SELECT to_json(a) FROM paper_accounts a WHERE account_id = $1::text::uuid"
    return Statement(sql, (str(account_id),))


def list_rows(account_id: UUID, after: int) -> Statement:
    """Lists rows of the journal, so many at a time."""
    sql = """
        SELECT to_json(j) FROM paper_journal j
        WHERE account_id = $1::text::uuid AND seq > $2::text::bigint
        ORDER BY seq LIMIT $3::text::bigint
    """
    return Statement(sql, (str(account_id), str(after), str(ROWS_A_READ)))


def last_before(account_id: UUID, since: datetime) -> Statement:
    """The last row before a time: it reads the later ones only."""
    sql = """
        SELECT seq FROM paper_journal
        WHERE account_id = $1::text::uuid AND at < $2::text::timestamptz
        ORDER BY seq DESC LIMIT 1
    """
    return Statement(sql, (str(account_id), since.isoformat()))


async def list_events_since(
    run: PoolTransaction, account_id: UUID, since: datetime
) -> list[BrokerEvent]:
    found: list[BrokerEvent] = []
    (before,) = await run.run([last_before(account_id, since)])
    after = sum(before.parse(int))
    while True:
        (page,) = await run.run([list_rows(account_id, after)])
        rows = page.parse(JournalRow)
        for row in rows:
            found += row.events
        if len(rows) < ROWS_A_READ:
            return found
        after = rows[-1].seq


class AskedQuotes(msgspec.Struct):
    organization_id: UUID
    account_id: UUID
    symbol: str
    after: int | None = None  # None: the present one is enough
    only_new: bool = False  # without the present one, unless it is new


def list_quotes(asked: Iterable[AskedQuotes]) -> Statement:
    """Lists with the account and the symbol, of each symbol for which the organization posts
    quotes, the present one and all after the asked number."""
    sql = """
        SELECT json_build_array(asked.account_id, q.symbol, q)
        FROM json_to_recordset($1::text::json)
            AS asked (account_id uuid, organization_id uuid, symbol text, after bigint,
                only_new boolean)
        CROSS JOIN LATERAL (
            SELECT number FROM paper_symbols
            WHERE organization_id = asked.organization_id AND symbol = asked.symbol LIMIT 1
        ) AS s
        CROSS JOIN LATERAL (
            SELECT *, posted_at AS at, 'posted' AS source FROM paper_quotes
            WHERE organization_id = asked.organization_id AND symbol = asked.symbol
              AND number >= CASE WHEN asked.only_new THEN asked.after + 1
                                 ELSE least(asked.after + 1, s.number) END
            ORDER BY number
        ) AS q
        ORDER BY asked.account_id, q.symbol, q.number
    """
    return Statement(sql, (json_text(list(asked)),))


def parse_last(posted: Reply) -> dict[Symbol, Quote]:
    """The last quote of each symbol."""
    return {symbol: quote for _, symbol, quote in posted.parse(tuple[UUID, Symbol, Quote])}


async def list_last_quotes(tx: Tx, organization_id: UUID, page: PageRequest) -> list[PostedQuote]:
    query = """
        SELECT q.symbol, q.number, q.posted_at AS at, q.bid, q.ask, q.bid_size, q.ask_size,
            q.last, q.last_size
        FROM paper_symbols s
        CROSS JOIN LATERAL (
            SELECT * FROM paper_quotes
            WHERE organization_id = s.organization_id AND symbol = s.symbol AND number = s.number
            LIMIT 1
        ) AS q
        WHERE s.organization_id = $1
    """
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
