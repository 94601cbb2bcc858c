"""The paper broker's tables: one function a statement, rows to values and back. Never asks another's table.

What the venue reads and writes for a batch is made of Statements, whose rows travel as JSON in both directions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from trading_intents.brokers.paper.matching import PaperEvent
from trading_intents.brokers.paper.model import Account, Holding, Order, OrderStatus, Quote, Source, Terms
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.pipeline import Reply, Statement, array_text
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce

EVENTS_A_READ = 1_000
Parsed = TypeVar("Parsed")


class Place(NamedTuple):
    """A symbol in an account."""

    account_id: UUID
    symbol: Symbol


class Fault(msgspec.Struct):
    """Something that is scripted to go wrong."""

    account_id: UUID
    kind: str
    command: str | None
    chance: Decimal
    remaining: int | None
    millis: int


class Arrival(msgspec.Struct):
    """A command that reached the venue, with its number among the account's."""

    account_id: UUID
    seq: int
    command: str
    client_order_id: str
    number: int | None  # of the order that it made or meant
    duplicate: bool
    ticket: str
    at: datetime


class Target(msgspec.Struct, frozen=True):
    """An order that a REPLACE or CANCEL names by any id that it ever had."""

    account_id: UUID
    client_order_id: str | None
    broker_order_id: str | None


def insert_account(account_id: UUID, organization_id: UUID, cash: Decimal) -> Statement:
    return Statement(
        """
        INSERT INTO paper_accounts (account_id, organization_id, cash) VALUES ($1::uuid, $2::uuid, $3::numeric)
        ON CONFLICT DO NOTHING
        """,
        (str(account_id), str(organization_id), str(cash)),
    )


def lock_accounts(account_ids: Iterable[UUID]) -> Statement:
    """By id. An account that another transaction holds is left out."""
    return Statement(
        """
        SELECT to_json(a) FROM (
            SELECT * FROM paper_accounts
            WHERE account_id = ANY ($1::uuid[]) ORDER BY account_id FOR UPDATE SKIP LOCKED
        ) AS a
        """,
        (array_text(sorted(map(str, account_ids))),),
    )


class _AccountRow(msgspec.Struct):
    account_id: UUID
    cash: Decimal
    reserved: Decimal
    short_value: Decimal
    orders: int
    events: int
    places: int
    commands: int


def parse_accounts(reply: Reply) -> dict[UUID, Account]:
    return {
        row.account_id: Account(**{name: getattr(row, name) for name in Account.__slots__})
        for row in _decoded(reply, _AccountRow)
    }


def read_clock() -> Statement:
    """In a statement of its own, so that it is read once the accounts are held."""
    return Statement("SELECT clock_timestamp()")


def parse_clock(reply: Reply) -> datetime:
    ((text,),) = reply.rows
    assert text is not None
    return datetime.fromisoformat(text.decode())


def read_faults(account_ids: Iterable[UUID]) -> Statement:
    return Statement(
        "SELECT to_json(f) FROM paper_faults f WHERE account_id = ANY ($1::uuid[])",
        (array_text(map(str, account_ids)),),
    )


def parse_faults(reply: Reply) -> list[Fault]:
    return _decoded(reply, Fault)


def save_faults(faults: Sequence[Fault]) -> Statement:
    return Statement(
        """
        UPDATE paper_faults f SET remaining = n.remaining
        FROM json_populate_recordset(NULL::paper_faults, $1::text::json) AS n
        WHERE f.account_id = n.account_id AND f.kind = n.kind
        """,
        (_json(faults),),
    )


def find_commands(ids: Sequence[tuple[UUID, str]]) -> Statement:
    """Those of the ids that were used, each with the order that the command made or meant."""
    return Statement(
        """
        SELECT j.account_id, j.client_order_id, j.number
        FROM json_populate_recordset(NULL::paper_journal, $1::text::json) AS asked
        CROSS JOIN LATERAL (
            SELECT account_id, client_order_id, number FROM paper_journal
            WHERE account_id = asked.account_id AND client_order_id = asked.client_order_id AND NOT duplicate
            LIMIT 1
        ) AS j
        """,
        (_json([{"account_id": account_id, "client_order_id": each} for account_id, each in ids]),),
    )


def parse_commands(reply: Reply) -> dict[tuple[UUID, str], int | None]:
    return {
        (UUID(account_id.decode()), client_order_id.decode()): None if number is None else int(number)
        for account_id, client_order_id, number in reply.rows
        if account_id and client_order_id
    }


def find_targets(targets: Sequence[Target]) -> Statement:
    """The orders that are meant, each with all of its events so far. By the client order id, where there is one."""
    return Statement(
        """
        SELECT json_build_object('asked', asked, 'order', o, 'events', (
            SELECT coalesce(json_agg(e ORDER BY e.seq), '[]') FROM paper_events e
            WHERE e.account_id = o.account_id AND e.number = o.number
        ))
        FROM json_to_recordset($1::text::json) AS asked (account_id uuid, client_order_id text, broker_order_id text)
        LEFT JOIN LATERAL (
            SELECT number FROM paper_journal
            WHERE account_id = asked.account_id AND client_order_id = asked.client_order_id AND NOT duplicate
            LIMIT 1
        ) AS j ON true
        CROSS JOIN LATERAL (
            SELECT * FROM paper_orders
            WHERE account_id = asked.account_id AND number = j.number
            UNION ALL
            SELECT * FROM paper_orders
            WHERE account_id = asked.account_id AND broker_order_id = asked.broker_order_id AND j.number IS NULL
            LIMIT 1
        ) AS o
        """,
        (_json(targets),),
    )


class _OrderRow(msgspec.Struct):
    account_id: UUID
    number: int
    broker_order_id: str
    client_order_id: str
    symbol: str
    side: OrderSide
    kind: OrderKind
    quantity: Decimal
    limit_price: Decimal | None
    stop_price: Decimal | None
    time_in_force: TimeInForce
    place: int
    status: OrderStatus
    triggered: bool
    filled: Decimal
    paid: Decimal
    covers: Decimal
    reserve_price: Decimal
    accepted_at: datetime
    expires_at: datetime

    def order(self) -> Order:
        return Order(
            number=self.number,
            broker_order_id=self.broker_order_id,
            client_order_id=self.client_order_id,
            terms=Terms(
                symbol=Symbol(self.symbol),
                side=self.side,
                kind=self.kind,
                quantity=self.quantity,
                limit_price=self.limit_price,
                stop_price=self.stop_price,
                time_in_force=self.time_in_force,
            ),
            place=self.place,
            status=self.status,
            triggered=self.triggered,
            filled=self.filled,
            paid=self.paid,
            covers=self.covers,
            reserve_price=self.reserve_price,
            accepted_at=self.accepted_at,
            expires_at=self.expires_at,
        )


_ORDER_FIELDS = tuple(name for name in Order.__slots__ if name != "terms")


class _EventRow(msgspec.Struct):
    seq: int
    kind: EventKind
    client_order_id: str | None
    broker_order_id: str | None
    replaces: str | None
    exec_id: str | None
    symbol: str | None
    side: OrderSide | None
    quantity: Decimal | None
    price: Decimal | None
    fee: Decimal | None
    cum_quantity: Decimal | None
    leaves_quantity: Decimal | None
    average_price: Decimal | None
    broker_status: str | None
    venue_time: datetime
    reason: str | None
    raw: str

    def event(self) -> BrokerEvent:
        fields: dict[str, Any] = {name: getattr(self, name) for name in _EVENT_FIELDS}
        return BrokerEvent(dedupe_key=f"paper:{self.seq}", **fields)


_EVENT_FIELDS = _EventRow.__struct_fields__[1:]


class _TargetRow(msgspec.Struct):
    order: _OrderRow
    events: list[_EventRow]
    asked: Target | None = None


def parse_targets(reply: Reply) -> dict[Target, tuple[Order, list[BrokerEvent]]]:
    return {
        row.asked: (row.order.order(), [each.event() for each in row.events])
        for row in _decoded(reply, _TargetRow)
        if row.asked
    }


def list_working(account_ids: Iterable[UUID]) -> Statement:
    return Statement(
        """
        SELECT to_json(o) FROM paper_orders o
        WHERE account_id = ANY ($1::uuid[]) AND status = 'WORKING' ORDER BY account_id, number
        """,
        (array_text(map(str, account_ids)),),
    )


def parse_orders(reply: Reply) -> list[tuple[UUID, Order]]:
    return [(row.account_id, row.order()) for row in _decoded(reply, _OrderRow)]


class _HoldingRow(msgspec.Struct):
    account_id: UUID
    symbol: str
    position: Decimal
    short_value: Decimal
    source: Source | None
    number: int
    bid_taken: Decimal
    ask_taken: Decimal


def read_holdings(places: Iterable[Place]) -> Statement:
    return Statement(
        """
        SELECT to_json(h)
        FROM json_populate_recordset(NULL::paper_holdings, $1::text::json) AS asked
        CROSS JOIN LATERAL (
            SELECT * FROM paper_holdings WHERE account_id = asked.account_id AND symbol = asked.symbol LIMIT 1
        ) AS h
        """,
        (_json([place._asdict() for place in places]),),
    )


def parse_holdings(reply: Reply) -> dict[Place, Holding]:
    return {
        Place(row.account_id, Symbol(row.symbol)): Holding(**{name: getattr(row, name) for name in Holding.__slots__})
        for row in _decoded(reply, _HoldingRow)
    }


def list_quotes(organization_ids: Mapping[Place, UUID], seen: Mapping[Place, int | None]) -> Statement:
    """Of each place's symbol, where its organization posts quotes: the present one, and all after the `seen` ones."""
    return Statement(
        """
        SELECT json_build_object('account_id', asked.account_id, 'quote', q)
        FROM json_to_recordset($1::text::json)
             AS asked (account_id uuid, organization_id uuid, symbol text, after bigint)
        CROSS JOIN LATERAL (
            SELECT number FROM paper_symbols
            WHERE organization_id = asked.organization_id AND symbol = asked.symbol LIMIT 1
        ) AS s
        CROSS JOIN LATERAL (
            SELECT * FROM paper_quotes
            WHERE organization_id = asked.organization_id AND symbol = asked.symbol
              AND number >= least(asked.after + 1, s.number)
        ) AS q
        ORDER BY asked.account_id, q.symbol, q.number
        """,
        (
            _json(
                [
                    {
                        "account_id": place.account_id,
                        "organization_id": organization_id,
                        "symbol": place.symbol,
                        "after": seen.get(place),
                    }
                    for place, organization_id in organization_ids.items()
                ]
            ),
        ),
    )


class _QuoteFields(msgspec.Struct):
    symbol: str
    number: int
    posted_at: datetime
    bid: Decimal
    ask: Decimal
    bid_size: Decimal
    ask_size: Decimal
    last: Decimal | None
    last_size: Decimal | None


class _QuoteRow(msgspec.Struct):
    account_id: UUID
    quote: _QuoteFields


def parse_quotes(reply: Reply) -> dict[Place, list[Quote]]:
    """By number; of a symbol that the organization never posted a quote for, none."""
    found: dict[Place, list[Quote]] = {}
    for row in _decoded(reply, _QuoteRow):
        place = Place(row.account_id, Symbol(row.quote.symbol))
        found.setdefault(place, []).append(quote_of(msgspec.structs.asdict(row.quote)))
    return found


def quote_of(row: Row) -> Quote:
    return Quote(
        source=Source.POSTED,
        number=row["number"],
        at=row["posted_at"],
        bid=row["bid"],
        ask=row["ask"],
        bid_size=row["bid_size"],
        ask_size=row["ask_size"],
        last=row["last"],
        last_size=row["last_size"],
    )


def add_commands(arrivals: Sequence[Arrival]) -> Statement:
    return Statement(
        f"""
        INSERT INTO paper_journal ({_columns(Arrival)})
        SELECT {_columns(Arrival)} FROM json_populate_recordset(NULL::paper_journal, $1::text::json)
        """,  # noqa: S608 - our own constants
        (_json(arrivals),),
    )


def save_accounts(accounts: Mapping[UUID, Account]) -> Statement:
    rows = [
        {"account_id": account_id} | {name: getattr(account, name) for name in Account.__slots__}
        for account_id, account in accounts.items()
    ]
    return Statement(
        """
        UPDATE paper_accounts a
        SET cash = n.cash, reserved = n.reserved, short_value = n.short_value, orders = n.orders, events = n.events,
            places = n.places, commands = n.commands
        FROM json_populate_recordset(NULL::paper_accounts, $1::text::json) AS n
        WHERE a.account_id = n.account_id AND a.account_id = ANY ($2::uuid[])
        """,
        (_json(rows), array_text(map(str, accounts))),
    )


def save_holdings(holdings: Mapping[Place, Holding]) -> Statement:
    rows = [
        place._asdict() | {name: getattr(holding, name) for name in Holding.__slots__}
        for place, holding in holdings.items()
    ]
    return Statement(
        f"""
        INSERT INTO paper_holdings ({_columns(_HoldingRow)})
        SELECT {_columns(_HoldingRow)} FROM json_populate_recordset(NULL::paper_holdings, $1::text::json)
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET position = excluded.position, short_value = excluded.short_value, source = excluded.source,
            number = excluded.number, bid_taken = excluded.bid_taken, ask_taken = excluded.ask_taken
        """,  # noqa: S608 - our own constants
        (_json(rows),),
    )


def save_orders(orders: Sequence[tuple[UUID, Order]]) -> Statement:
    rows = [
        {"account_id": account_id}
        | {name: getattr(order, name) for name in _ORDER_FIELDS}
        | {name: getattr(order.terms, name) for name in Terms.__slots__}
        for account_id, order in orders
    ]
    return Statement(
        f"""
        INSERT INTO paper_orders ({_columns(_OrderRow)})
        SELECT {_columns(_OrderRow)} FROM json_populate_recordset(NULL::paper_orders, $1::text::json)
        ON CONFLICT (account_id, number) DO UPDATE
        SET client_order_id = excluded.client_order_id, quantity = excluded.quantity,
            limit_price = excluded.limit_price, stop_price = excluded.stop_price,
            time_in_force = excluded.time_in_force, place = excluded.place, status = excluded.status,
            triggered = excluded.triggered, filled = excluded.filled, paid = excluded.paid, covers = excluded.covers,
            reserve_price = excluded.reserve_price, expires_at = excluded.expires_at
        """,  # noqa: S608 - our own constants
        (_json(rows),),
    )


def add_events(events: Sequence[tuple[UUID, PaperEvent]]) -> Statement:
    rows = [
        {"account_id": account_id, "seq": each.place, "number": each.order}
        | {name: getattr(each.event, name) for name in _EVENT_FIELDS}
        for account_id, each in events
    ]
    return Statement(
        """
        INSERT INTO paper_events (
            account_id, seq, number, kind, client_order_id, broker_order_id, replaces, exec_id, symbol, side, quantity,
            price, fee, cum_quantity, leaves_quantity, average_price, broker_status, venue_time, reason, raw
        )
        SELECT account_id, seq, number, kind, client_order_id, broker_order_id, replaces, exec_id, symbol, side,
               quantity, price, fee, cum_quantity, leaves_quantity, average_price, broker_status, venue_time, reason,
               raw
        FROM json_populate_recordset(NULL::paper_events, $1::text::json)
        """,
        (_json(rows),),
    )


# What a session reads by itself.


async def find_order(tx: Tx, account_id: UUID, client_order_id: str) -> tuple[Order, list[BrokerEvent]] | None:
    """The order that a command with this id made or meant, and all that happened to it."""
    statement = find_targets([Target(account_id, client_order_id, None)])
    texts = [text for (text,) in map(tuple, await tx.fetch(statement.sql, *statement.arguments))]
    found = [msgspec.json.decode(text, type=_TargetRow) for text in texts]
    return (found[0].order.order(), [each.event() for each in found[0].events]) if found else None


async def count_events(tx: Tx, account_id: UUID) -> int:
    count: int = await tx.fetchval("SELECT events FROM paper_accounts WHERE account_id = $1", account_id)
    return count


async def read_now(tx: Tx) -> datetime:
    now: datetime = await tx.fetchval("SELECT clock_timestamp()")
    return now


async def list_open(tx: Tx, account_id: UUID) -> list[tuple[Order, list[BrokerEvent]]]:
    """Every order that works, with its events."""
    rows = await tx.fetch(
        """
        SELECT json_build_object('order', o, 'events', (
            SELECT coalesce(json_agg(e ORDER BY e.seq), '[]') FROM paper_events e
            WHERE e.account_id = o.account_id AND e.number = o.number
        )) AS found
        FROM paper_orders o WHERE account_id = $1 AND status = 'WORKING' ORDER BY number
        """,
        account_id,
    )
    found = [msgspec.json.decode(row["found"], type=_TargetRow) for row in rows]
    return [(each.order.order(), [event.event() for event in each.events]) for each in found]


async def list_positions(tx: Tx, account_id: UUID) -> dict[Symbol, Decimal]:
    rows = await tx.fetch("SELECT symbol, position FROM paper_holdings WHERE account_id = $1", account_id)
    return {Symbol(row["symbol"]): row["position"] for row in rows}


async def list_events(tx: Tx, account_id: UUID, after: int) -> list[tuple[int, BrokerEvent]]:
    rows = await tx.fetch(
        "SELECT * FROM paper_events WHERE account_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        account_id,
        after,
        EVENTS_A_READ,
    )
    return [(row["seq"], _event(row)) for row in rows]


async def find_first_event(tx: Tx, account_id: UUID, since: datetime) -> int | None:
    first: int | None = await tx.fetchval(
        "SELECT min(seq) FROM paper_events WHERE account_id = $1 AND recorded_at >= $2", account_id, since
    )
    return first


async def list_new_quotes(tx: Tx, organization_id: UUID, seen: Mapping[Symbol, int]) -> dict[Symbol, list[Quote]]:
    """Of these symbols, those that were posted after the `seen` ones."""
    rows = await tx.fetch(
        """
        SELECT q.*
        FROM unnest($2::text[], $3::bigint[]) AS asked (symbol, after)
        CROSS JOIN LATERAL (
            SELECT * FROM paper_quotes
            WHERE organization_id = $1 AND symbol = asked.symbol AND number > asked.after
        ) AS q
        ORDER BY q.symbol, q.number
        """,
        organization_id,
        list(seen),
        list(seen.values()),
    )
    found: dict[Symbol, list[Quote]] = {}
    for row in rows:
        found.setdefault(Symbol(row["symbol"]), []).append(quote_of(row))
    return found


def _event(row: Row) -> BrokerEvent:
    fields = {name: row[name] for name in _EVENT_FIELDS}
    fields["kind"] = EventKind(row["kind"])
    fields["side"] = OrderSide(row["side"]) if row["side"] else None
    return BrokerEvent(dedupe_key=f"paper:{row['seq']}", **fields)


@lru_cache
def _columns(kind: type[msgspec.Struct]) -> str:
    """Named one by one: a newer version may have added some."""
    return ", ".join(kind.__struct_fields__)


def _decoded(reply: Reply, kind: type[Parsed]) -> list[Parsed]:
    return [msgspec.json.decode(text, type=kind) for (text,) in reply.rows if text]


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()
