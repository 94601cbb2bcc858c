"""The paper broker's tables: one function a statement, rows to values and back. Never asks another's table."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

from trading_intents.brokers.paper.matching import Happening
from trading_intents.brokers.paper.model import Account, Holding, Order, OrderStatus, Quote, Source, Terms
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.storage.database import Row, Tx
from trading_intents.trading import OrderKind, OrderSide, Symbol, TimeInForce

EVENTS_A_READ = 1_000


class Opened(NamedTuple):
    account: Account
    now: datetime
    faulty: bool  # something is scripted to go wrong


class Wanted(NamedTuple):
    """Which posted quotes to read of a symbol: the present one, and where orders rest all after `after`."""

    symbol: Symbol
    after: int
    resting: bool


class Arrival(NamedTuple):
    command: str
    client_order_id: str
    number: int | None
    duplicate: bool
    ticket: str


async def insert_account(tx: Tx, account_id: UUID, organization_id: UUID, cash: Decimal) -> None:
    await tx.execute(
        "INSERT INTO paper_accounts (account_id, organization_id, cash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        account_id,
        organization_id,
        cash,
    )


async def read_account(tx: Tx, account_id: UUID) -> Opened:
    return _opened(
        await tx.fetchrow(
            """
            SELECT a.*, clock_timestamp() AS now,
                   EXISTS (SELECT FROM paper_faults AS f WHERE f.account_id = a.account_id) AS faulty
            FROM paper_accounts AS a WHERE account_id = $1
            """,
            account_id,
        )
    )


async def lock_account(tx: Tx, account_id: UUID, commands: int = 0) -> Opened:
    """Counts so many more commands. The time is read once the row is held, so that what follows is in order."""
    return _opened(
        await tx.fetchrow(
            """
            UPDATE paper_accounts AS a SET commands = commands + $2 WHERE account_id = $1
            RETURNING a.*, clock_timestamp() AS now,
                      EXISTS (SELECT FROM paper_faults AS f WHERE f.account_id = a.account_id) AS faulty
            """,
            account_id,
            commands,
        )
    )


def _opened(row: Row | None) -> Opened:
    assert row is not None, "the link was opened before"
    names = ("cash", "reserved", "short_value", "orders", "events", "places", "commands")
    return Opened(Account(**{name: row[name] for name in names}), row["now"], row["faulty"])


async def save_account(tx: Tx, account_id: UUID, account: Account) -> None:
    await tx.execute(
        """
        UPDATE paper_accounts
        SET cash = $2, reserved = $3, short_value = $4, orders = $5, events = $6, places = $7, commands = $8
        WHERE account_id = $1
        """,
        account_id,
        account.cash,
        account.reserved,
        account.short_value,
        account.orders,
        account.events,
        account.places,
        account.commands,
    )


async def list_holdings(tx: Tx, account_id: UUID, symbols: Sequence[Symbol] | None) -> dict[Symbol, Holding]:
    rows = await tx.fetch(
        "SELECT * FROM paper_holdings WHERE account_id = $1 AND ($2::text[] IS NULL OR symbol = ANY ($2))",
        account_id,
        symbols,
    )
    return {
        Symbol(row["symbol"]): Holding(
            position=row["position"],
            short_value=row["short_value"],
            source=Source(row["source"]) if row["source"] else None,
            number=row["number"],
            bid_taken=row["bid_taken"],
            ask_taken=row["ask_taken"],
        )
        for row in rows
    }


async def save_holding(tx: Tx, account_id: UUID, symbol: Symbol, holding: Holding) -> None:
    await tx.execute(
        """
        INSERT INTO paper_holdings (account_id, symbol, position, short_value, source, number, bid_taken, ask_taken)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT (account_id, symbol) DO UPDATE
        SET position = $3, short_value = $4, source = $5, number = $6, bid_taken = $7, ask_taken = $8
        """,
        account_id,
        symbol,
        holding.position,
        holding.short_value,
        holding.source,
        holding.number,
        holding.bid_taken,
        holding.ask_taken,
    )


async def list_working(tx: Tx, account_id: UUID, symbols: Sequence[Symbol] | None = None) -> list[Order]:
    rows = await tx.fetch(
        """
        SELECT * FROM paper_orders
        WHERE account_id = $1 AND status = 'WORKING' AND ($2::text[] IS NULL OR symbol = ANY ($2))
        ORDER BY number
        """,
        account_id,
        symbols,
    )
    return [_order(row) for row in rows]


async def find_order(tx: Tx, account_id: UUID, number: int) -> Order:
    row = await tx.fetchrow("SELECT * FROM paper_orders WHERE account_id = $1 AND number = $2", account_id, number)
    assert row is not None, "the journal names only orders that there are"
    return _order(row)


async def find_order_by_broker_id(tx: Tx, account_id: UUID, broker_order_id: str) -> Order | None:
    row = await tx.fetchrow(
        "SELECT * FROM paper_orders WHERE account_id = $1 AND broker_order_id = $2", account_id, broker_order_id
    )
    return _order(row) if row else None


async def save_orders(tx: Tx, account_id: UUID, orders: Iterable[Order]) -> None:
    rows = [
        (
            *(account_id, o.number, o.broker_order_id, o.client_order_id, o.terms.symbol, o.terms.side, o.terms.kind),
            *(o.terms.quantity, o.terms.limit_price, o.terms.stop_price, o.terms.time_in_force, o.place, o.status),
            *(o.triggered, o.filled, o.paid, o.covers, o.reserve_price, o.accepted_at, o.expires_at),
        )
        for o in orders
    ]
    await tx.executemany(
        """
        INSERT INTO paper_orders (
            account_id, number, broker_order_id, client_order_id, symbol, side, kind, quantity, limit_price, stop_price,
            time_in_force, place, status, triggered, filled, paid, covers, reserve_price, accepted_at, expires_at
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
        ON CONFLICT (account_id, number) DO UPDATE
        SET client_order_id = $4, quantity = $8, limit_price = $9, stop_price = $10, time_in_force = $11, place = $12,
            status = $13, triggered = $14, filled = $15, paid = $16, covers = $17, reserve_price = $18, expires_at = $20
        """,
        rows,
    )


def _order(row: Row) -> Order:
    return Order(
        number=row["number"],
        broker_order_id=row["broker_order_id"],
        client_order_id=row["client_order_id"],
        terms=Terms(
            symbol=Symbol(row["symbol"]),
            side=OrderSide(row["side"]),
            kind=OrderKind(row["kind"]),
            quantity=row["quantity"],
            limit_price=row["limit_price"],
            stop_price=row["stop_price"],
            time_in_force=TimeInForce(row["time_in_force"]),
        ),
        place=row["place"],
        status=OrderStatus(row["status"]),
        triggered=row["triggered"],
        filled=row["filled"],
        paid=row["paid"],
        covers=row["covers"],
        reserve_price=row["reserve_price"],
        accepted_at=row["accepted_at"],
        expires_at=row["expires_at"],
    )


async def find_commands(tx: Tx, account_id: UUID, client_order_ids: Sequence[str]) -> dict[str, int | None]:
    """Those of the ids that were used, each with the order that the command made or meant."""
    rows = await tx.fetch(
        """
        SELECT client_order_id, number FROM paper_journal
        WHERE account_id = $1 AND client_order_id = ANY ($2) AND NOT duplicate
        """,
        account_id,
        client_order_ids,
    )
    return {row["client_order_id"]: row["number"] for row in rows}


async def add_commands(tx: Tx, account_id: UUID, arrivals: Sequence[tuple[int, Arrival]], at: datetime) -> None:
    """Each with its number among the account's commands."""
    await tx.executemany(
        """
        INSERT INTO paper_journal (account_id, seq, command, client_order_id, number, duplicate, ticket, at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        """,
        [(account_id, seq, *arrival, at) for seq, arrival in arrivals],
    )


_EVENT_FIELDS = (
    *(
        "kind",
        "client_order_id",
        "broker_order_id",
        "replaces",
        "exec_id",
        "symbol",
        "side",
        "quantity",
        "price",
        "fee",
    ),
    *("cum_quantity", "leaves_quantity", "average_price", "broker_status", "venue_time", "reason", "raw"),
)


async def add_events(tx: Tx, account_id: UUID, last: int, happenings: Sequence[Happening]) -> None:
    """`last` is the number of the last one."""
    first = last - len(happenings) + 1
    rows = [
        (account_id, first + place, happening.order, *(getattr(happening.event, name) for name in _EVENT_FIELDS))
        for place, happening in enumerate(happenings)
    ]
    await tx.executemany(
        """
        INSERT INTO paper_events (
            account_id, seq, number, kind, client_order_id, broker_order_id, replaces, exec_id, symbol, side, quantity,
            price, fee, cum_quantity, leaves_quantity, average_price, broker_status, venue_time, reason, raw
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
        """,
        rows,
    )


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


async def list_events_of(tx: Tx, account_id: UUID, orders: Sequence[int]) -> dict[int, list[BrokerEvent]]:
    rows = await tx.fetch(
        "SELECT * FROM paper_events WHERE account_id = $1 AND number = ANY ($2) ORDER BY seq", account_id, orders
    )
    found: dict[int, list[BrokerEvent]] = {number: [] for number in orders}
    for row in rows:
        found[row["number"]].append(_event(row))
    return found


def _event(row: Row) -> BrokerEvent:
    fields = {name: row[name] for name in _EVENT_FIELDS}
    fields["kind"] = EventKind(row["kind"])
    fields["side"] = OrderSide(row["side"]) if row["side"] else None
    return BrokerEvent(dedupe_key=f"paper:{row['seq']}", **fields)


async def list_quotes(tx: Tx, organization_id: UUID, wanted: Sequence[Wanted]) -> dict[Symbol, list[Quote]]:
    """By number; of a symbol that the organization never posted a quote for, none."""
    rows = await tx.fetch(
        """
        SELECT q.*
        FROM unnest($2::text[], $3::bigint[], $4::boolean[]) AS w (symbol, after, resting)
        JOIN paper_symbols AS s ON s.organization_id = $1 AND s.symbol = w.symbol
        JOIN paper_quotes AS q ON q.organization_id = $1 AND q.symbol = w.symbol
            AND q.number >= CASE WHEN w.resting THEN least(w.after + 1, s.number) ELSE s.number END
        ORDER BY q.symbol, q.number
        """,
        organization_id,
        [each.symbol for each in wanted],
        [each.after for each in wanted],
        [each.resting for each in wanted],
    )
    found: dict[Symbol, list[Quote]] = {}
    for row in rows:
        found.setdefault(Symbol(row["symbol"]), []).append(quote_of(row))
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
