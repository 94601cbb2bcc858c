"""What brokers told and what we did becomes facts, orders, trades, positions and stream events, in the caller's
transaction. Never talks to a broker, never decides what an order is: orders/model.py does."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec

from trading_intents.brokers.port import BrokerEvent, CommandResult, EventKind
from trading_intents.brokers.sanitizing import sanitize, sanitize_id, sanitize_text
from trading_intents.execution import store as execution_store
from trading_intents.execution.booking import (
    Holding,
    Settled,
    TradeChange,
    book_report,
    book_trade,
    booking_of,
    read_holding,
    settle,
    was_held,
    with_position,
)
from trading_intents.ids import OrganizationId
from trading_intents.intents.stats import buckets
from trading_intents.intents.stats.model import Entry, sum_up
from trading_intents.orders import store
from trading_intents.orders.amounts import ZERO
from trading_intents.orders.events import day_of, order_event, position_event, trade_event
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
from trading_intents.orders.positions import Position, from_trades, opening
from trading_intents.storage.database import Row, Tx
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import Environment, amount_text

REBOOK_PAGE = 1_000
# A snapshot takes up to 10 s, and commands and the stream go on meanwhile.
REPORT_AGE = timedelta(seconds=15)
MAX_OVERTAKING_FILLS = 100


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
    """A position of which the broker newly reports another quantity than ours."""

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
    left_out: tuple[str, ...] = ()  # keys of events that mean nothing
    conflicts: tuple[tuple[UUID, str], ...] = ()  # orders, and the keys by which an execution came with other numbers

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
    events, left_out = sanitize(events)
    news = await _gather(tx, desk, events, own)
    settled, now = await _settle(tx, desk, news) if news.facts else ([], None)
    if rows := [each.row for each in settled if each.written]:
        await store.write_orders(tx, rows)
    changes = sorted((change for each in settled for change in each.trades), key=lambda change: change.place)
    reports = [(place, event) for place, event in enumerate(events) if event.kind is EventKind.POSITION]
    holdings = await _book_positions(tx, desk, changes, reports) if changes or reports else []
    return Recorded(
        desk,
        now or next((each.row["now"] for each in holdings), None),
        {each.row["order_id"]: Booked(each.row, each.view, each.visible) for each in settled},
        tuple(each.row["order_id"] for each in settled if each.resurrected),
        tuple(changes),
        tuple(each.row for each in holdings if each.visible),
        tuple(each.difference for each in holdings if each.difference),
        sum_up(entry for each in settled for entry in each.entries),
        left_out,
        tuple((each.row["order_id"], key) for each in settled for key in each.conflicts),
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
    for key in recorded.left_out:
        metrics.execution_alerts.labels("event_left_out").inc()
        log.error("broker event left out: its symbol is none", account=str(recorded.desk.account_id), key=key)
    for order_id, key in recorded.conflicts:
        metrics.execution_alerts.labels("conflicting_execution").inc()
        log.error("an execution came again with other numbers", order=str(order_id), key=key)
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
    ours = [
        own_fact(
            each.kind,
            each.client_order_id,
            0,
            each.reason and sanitize_text(each.reason),
            each.broker_order_id and sanitize_id(each.broker_order_id),
        )
        for each in own
    ]
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
    tx: Tx, desk: Desk, changes: Sequence[TradeChange], reports: Sequence[tuple[int, BrokerEvent]]
) -> list[_Held]:
    """What changed, written. A report of nothing makes no position of a symbol that was never held or traded."""
    held = []
    symbols = {change.order["symbol"] for change in changes} | {e.symbol for _, e in reports if e.symbol and e.quantity}
    flat = {event.symbol for _, event in reports if event.symbol} - symbols
    for row in await store.lock_positions(tx, desk.account_id, desk.organization_id, sorted(symbols), sorted(flat)):
        trades = [change for change in changes if change.order["symbol"] == row["symbol"]]
        told = [(place, event) for place, event in reports if event.symbol == row["symbol"]]
        before = after = read_holding(row)
        steps: list[tuple[int, TradeChange | BrokerEvent]] = [*((each.place, each) for each in trades), *told]
        for _, step in sorted(steps, key=lambda each: each[0]):
            after = book_report(after, step) if isinstance(step, BrokerEvent) else book_trade(after, step)
        if any(change.rebooked for change in trades):
            start = opening(before.position.opening_quantity, before.position.opening_price)
            after = with_position(after, await sum_trades(tx, desk, row["symbol"], start, trades))
        if after.differs and told and await _is_outdated(tx, row, after, trades):
            after = replace(after, differs=False)
        if after != before:
            held.append(_held(desk, row, before, after))
    if held:
        await store.write_positions(tx, [each.row for each in held])
    return held


async def _is_outdated(tx: Tx, row: Row, holding: Holding, trades: Sequence[TradeChange]) -> bool:
    """Whether the report says what we held a moment ago: fills have overtaken it. Only asked where the two differ."""
    last = await execution_store.last_trades(tx, row["account_id"], row["symbol"], MAX_OVERTAKING_FILLS)
    since = row["now"] - REPORT_AGE
    recent = [change.booking for change in reversed(trades) if change.before is None]
    recent += [booking_of(trade) for trade in last if trade["received_at"] >= since]
    return was_held(holding.broker_quantity, holding.position.quantity, recent)


def _held(desk: Desk, row: Row, before: Holding, after: Holding) -> _Held:
    counts = {name: getattr(after, name) for name in ("broker_quantity", "broker_key", "broker_sent_at", "differs")}
    account = {"environment": desk.environment, "broker": desk.broker}
    visible = before.position != after.position
    reported = (before.broker_quantity, before.differs) != (after.broker_quantity, after.differs)
    received_at = row["now"] if visible or reported else row["received_at"]
    differing = Difference(row["symbol"], after.position.quantity, after.broker_quantity or ZERO)
    return _Held(
        {**row, **asdict(after.position), **counts, **account, "received_at": received_at},
        visible,
        differing if after.differs and reported else None,
    )


async def sum_trades(
    tx: Tx, desk: Desk, symbol: str, position: Position, changes: Sequence[TradeChange] = ()
) -> Position:
    """The whole position again, from its opening and the trades as they were booked with their numbers of now."""
    numbers = {change.after.trade_id: change.booking for change in changes if change.before}
    after, more = 0, True
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
