"""What brokers told and what we did becomes facts, orders, trades, positions and stream events, in the caller's
transaction. Never talks to a broker, never decides what an order is: orders/model.py does."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from trading_intents.brokers.port import BrokerEvent, CommandResult, EventKind
from trading_intents.execution.booking import (
    Holding,
    Settled,
    TradeChange,
    book_report,
    book_trade,
    booking_of,
    difference,
    settle,
)
from trading_intents.ids import OrganizationId
from trading_intents.intents.stats import buckets
from trading_intents.intents.stats.model import Entry, sum_up
from trading_intents.orders import store
from trading_intents.orders.events import day_of, order_event, position_event, shown_quantity, trade_event
from trading_intents.orders.facts import (
    LONG_AGO,
    CommandKind,
    Fact,
    FactKind,
    admit,
    event_fact,
    own_fact,
    owner,
    result_facts,
)
from trading_intents.orders.model import OrderView
from trading_intents.orders.positions import Position, from_trades, kept
from trading_intents.storage.database import Row, Tx
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import Environment, amount_text

REBOOK_PAGE = 1_000
MOST_TEXT_CHARACTERS = 500
_TEXTS = ("dedupe_key", "client_order_id", "broker_order_id", "replaces", "exec_id", "reason")


@dataclass(frozen=True, slots=True)
class Desk:
    """The account that is worked."""

    account_id: UUID
    organization_id: OrganizationId
    environment: Environment
    broker: str


@dataclass(frozen=True, slots=True)
class OwnFact:
    """What we saw of an order on our side."""

    order_id: UUID
    kind: FactKind
    client_order_id: str  # of the command that it is about
    reason: str | None = None
    broker_order_id: str | None = None


@dataclass(frozen=True, slots=True)
class Booked:
    """An order after its new facts: the row as it is now, and the view that it was made of."""

    row: Row
    view: OrderView
    changed: bool  # whether anything that a reader sees did


@dataclass(frozen=True, slots=True)
class Difference:
    """A position of which the broker newly counts another quantity than we do."""

    symbol: str
    ours: Decimal
    brokers: Decimal


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `record` wrote, and what is left for `publish`. Orders that no new fact touched are not in it."""

    desk: Desk
    now: datetime | None  # the database's; None: nothing was new
    orders: Mapping[UUID, Booked]
    resurrected: tuple[UUID, ...]  # the broker has them though they were given up: cancel at once
    trades: tuple[TradeChange, ...]  # as they are booked
    positions: tuple[Row, ...]  # those that a reader sees changed
    differences: tuple[Difference, ...]
    entries: tuple[Entry, ...]

    @property
    def changed(self) -> bool:
        """Whether there is anything to publish."""
        return bool(self.trades or self.positions or any(booked.changed for booked in self.orders.values()))


def answer(order_id: UUID, command: CommandKind, client_order_id: str, result: CommandResult) -> tuple[OwnFact, ...]:
    """What a command's outcome says by itself. Its updates are events: hand them to `record` beside this."""
    return tuple(
        OwnFact(order_id, fact.kind, client_order_id, fact.reason, fact.broker_order_id)
        for fact in result_facts(command, client_order_id, result, 0)
        if fact.key.startswith("own:")
    )


async def record(tx: Tx, desk: Desk, events: Sequence[BrokerEvent], own: Sequence[OwnFact] = ()) -> Recorded:
    """Locks the orders concerned (by id), then their positions (by symbol). What was seen before changes nothing.

    The statements go by keys alone: open the transaction with plans="by_key".
    """
    events = [_legible(event) for event in events]
    news = await _gather(tx, desk, events, own)
    settled, now = await _settle(tx, desk, news) if news.facts else ([], None)
    if rows := [each.row for each in settled if each.written]:
        await store.write_orders(tx, rows)
    changes = sorted((change for each in settled for change in each.trades), key=lambda change: change.place)
    reports = [(place, event) for place, event in enumerate(events) if event.kind is EventKind.POSITION]
    symbols = {change.order["symbol"] for change in changes} | {event.symbol for _, event in reports}
    holdings = await _book_positions(tx, desk, sorted(filter(None, symbols)), changes, reports) if symbols else []
    return Recorded(
        desk,
        now or next((each.row["now"] for each in holdings), None),
        {each.row["order_id"]: Booked(each.row, each.view, each.visible) for each in settled},
        tuple(each.row["order_id"] for each in settled if each.resurrected),
        tuple(changes),
        tuple(each.row for each in holdings if each.visible),
        tuple(each.difference for each in holdings if each.difference),
        sum_up(entry for each in settled for entry in each.entries),
    )


async def publish(tx: Tx, recorded: Recorded) -> None:
    """The last statements before the commit: stats, then the organization's stream head, and the trades by its seq."""
    if recorded.entries:
        await buckets.add(tx, recorded.entries)
    told: dict[UUID, list[TradeChange]] = {}
    for change in recorded.trades:
        if change.told:
            told.setdefault(change.order["order_id"], []).append(change)
    events: list[Event] = []
    places: dict[UUID, int] = {}
    for order_id, booked in recorded.orders.items():
        if booked.changed:
            events.append(order_event(booked.row))
        for change in told.get(order_id, ()):
            places[change.after.trade_id] = len(events)
            events.append(trade_event(change.order, change.after))
    events += [position_event(row, day_of(row["now"])) for row in recorded.positions]
    heads = await stream_log.append(tx, events) if events else {}
    first = heads.get(recorded.desk.organization_id, 0) - len(events) + 1
    if recorded.trades:
        rows = [_trade_row(change, first, places.get(change.after.trade_id)) for change in recorded.trades]
        await store.write_trades(tx, rows)


def warn(recorded: Recorded, log: Log, metrics: Metrics) -> None:
    """Once it is committed."""
    for each in recorded.differences:
        metrics.position_differences.inc()
        log.warning(
            "position_differs",
            account_id=str(recorded.desk.account_id),
            symbol=each.symbol,
            ours=amount_text(each.ours),
            brokers=amount_text(each.brokers),
        )


@dataclass(frozen=True, slots=True)
class _News:
    facts: Mapping[str, tuple[Fact, UUID | None]]  # by key, with their orders; None: not an order of ours
    places: Mapping[str, int]  # of those that are events
    astray: tuple[str, ...]  # broker's ids under which something was told that was nobody's

    @property
    def order_ids(self) -> list[UUID]:
        return sorted({order_id for _, order_id in self.facts.values() if order_id})


async def _gather(tx: Tx, desk: Desk, events: Sequence[BrokerEvent], own: Sequence[OwnFact]) -> _News:
    """What may be new. Most of what a stream tells was in an answer before, and ends here."""
    told = {place: event_fact(event, 0) for place, event in enumerate(events) if event.kind is not EventKind.POSITION}
    ours = [own_fact(each.kind, each.client_order_id, 0, _clip(each.reason), each.broker_order_id) for each in own]
    facts: dict[str, tuple[Fact, UUID | None]] = {
        fact.key: (fact, each.order_id) for fact, each in zip(ours, own, strict=True)
    }
    broker_ids = {fact.broker_order_id for fact in (*told.values(), *ours) if fact.broker_order_id}
    if not told and not broker_ids:
        return _News(facts, {}, ())
    client_ids = {each for fact in told.values() for each in (fact.client_order_id, fact.replaces) if each}
    rows = await store.find(
        tx, desk.account_id, [fact.key for fact in told.values()], list(client_ids), list(broker_ids)
    )
    known = {row["name"]: _known(row) for row in rows if row["what"] == "fact"}
    owners = {row["name"]: row["order_id"] for row in rows if row["what"] == "fact"}
    by_client = {row["name"]: row["order_id"] for row in rows if row["what"] == "client"}
    by_client |= {each.client_order_id: each.order_id for each in own}
    by_broker = {row["name"]: row["order_id"] for row in sorted(rows, key=_sent_at) if row["what"] == "broker"}
    places = {}
    for place, fact in told.items():
        order_id = owners.get(fact.key) or owner(events[place], by_client, by_broker)
        # The same again is nothing, unless it turns out whose it is.
        kept = admit(known, fact) or (fact if order_id and owners.get(fact.key) is None else None)
        if kept and (kept is fact or order_id):
            known[kept.key], owners[kept.key], places[kept.key] = kept, order_id, place
            facts[kept.key] = kept, order_id
    return _News(facts, places, tuple(row["name"] for row in rows if row["what"] == "astray"))


def _known(row: Row) -> Fact:
    return Fact(
        key=row["name"],
        arrival=0,
        kind=FactKind(row["kind"]),
        exec_id=row["exec_id"],
        replaces=row["replaces"],
        quantity=row["quantity"],
        price=row["price"],
    )


def _sent_at(row: Row) -> datetime:
    """Of two commands under one broker's id the later one counts: venues use their ids again."""
    return row["sent_at"] or LONG_AGO


async def _settle(tx: Tx, desk: Desk, news: _News) -> tuple[list[Settled], datetime | None]:
    order_ids = news.order_ids
    new = await store.record_facts(tx, desk.account_id, desk.organization_id, order_ids, list(news.facts.values()))
    if news.astray and order_ids:
        new |= await store.adopt(tx, desk.account_id, order_ids, news.astray)
    if not (new and order_ids):
        return [], None
    books = [
        book for book in await store.read_books(tx, order_ids) if not new.isdisjoint(fact.key for fact in book.facts)
    ]
    return [settle(book, new, news.places) for book in books], books[0].now if books else None


@dataclass(frozen=True, slots=True)
class _Held:
    row: Row  # as it is now
    visible: bool
    difference: Difference | None


async def _book_positions(
    tx: Tx,
    desk: Desk,
    symbols: Sequence[str],
    changes: Sequence[TradeChange],
    reports: Sequence[tuple[int, BrokerEvent]],
) -> list[_Held]:
    """What changed, written."""
    held = []
    for row in await store.lock_positions(tx, desk.account_id, desk.organization_id, symbols):
        trades = [change for change in changes if change.order["symbol"] == row["symbol"]]
        told = [(place, event) for place, event in reports if event.symbol == row["symbol"]]
        before = Holding(kept(row), row["broker_quantity"], row["broker_key"], row["broker_sent_at"])
        after = before
        steps: list[tuple[int, TradeChange | BrokerEvent]] = [*((each.place, each) for each in trades), *told]
        for _, step in sorted(steps, key=lambda each: each[0]):
            after = book_report(after, step) if isinstance(step, BrokerEvent) else book_trade(after, step)
        if any(change.rebooked for change in trades):
            after = replace(after, position=await _book_again(tx, desk, row["symbol"], trades))
        if after != before:
            held.append(_held(desk, row, before, after))
    if held:
        await store.write_positions(tx, [each.row for each in held])
    return held


def _held(desk: Desk, row: Row, before: Holding, after: Holding) -> _Held:
    counts = {
        "broker_quantity": after.broker_quantity,
        "broker_key": after.broker_key,
        "broker_sent_at": after.broker_sent_at,
    }
    account = {"environment": desk.environment, "broker": desk.broker}
    new = {**row, **asdict(after.position), **counts, **account, "received_at": row["now"]}
    differs = difference(after)
    newly = after.broker_quantity is not None and differs and differs != difference(before)
    return _Held(
        new,
        before.position != after.position or shown_quantity(row) != shown_quantity(new),
        Difference(row["symbol"], after.position.quantity, new["broker_quantity"]) if newly else None,
    )


async def _book_again(tx: Tx, desk: Desk, symbol: str, changes: Sequence[TradeChange]) -> Position:
    """The whole position again, from the trades as they were booked with their numbers of now."""
    numbers = {change.after.trade_id: change.booking for change in changes if change.before}
    position, after, more = Position(), 0, True
    while more:
        rows = await store.read_bookings(tx, desk.account_id, symbol, after, REBOOK_PAGE)
        bookings = (numbers.get(row["trade_id"]) or booking_of(row) for row in rows)
        position = from_trades(bookings, position)
        more, after = len(rows) == REBOOK_PAGE, rows[-1]["booking"] if rows else 0
    return from_trades((change.booking for change in changes if not change.before), position)


def _trade_row(change: TradeChange, first: int, place: int | None) -> Row:
    order = change.order
    return {
        **msgspec.structs.asdict(change.after),
        "seq": change.after.seq if place is None else first + place,
        "account_id": order["account_id"],
        "organization_id": order["organization_id"],
        "order_id": order["order_id"],
        "symbol": order["symbol"],
        "side": order["order_side"],
        "client_reference_id": order["client_reference_id"],
    }


def _legible(event: BrokerEvent) -> BrokerEvent:
    """Text that no database or stream takes must not stop everything that comes after it."""
    texts = {name: getattr(event, name) for name in _TEXTS}
    changed: dict[str, Any] = {name: _clip(text) for name, text in texts.items() if _clip(text) != text}
    return replace(event, **changed) if changed else event


def _clip(text: str | None) -> str | None:
    if text is None or (text.isascii() and "\0" not in text and len(text) <= MOST_TEXT_CHARACTERS):
        return text
    return text.encode(errors="replace").decode().replace("\0", "?")[:MOST_TEXT_CHARACTERS]
