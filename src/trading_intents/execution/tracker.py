"""What brokers told and what we did becomes facts, orders, trades, positions and stream events, in the caller's
transaction. Never talks to a broker, never decides what an order is: orders/model.py does."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec

from trading_intents.brokers.port import BrokerEvent, CommandResult, EventKind
from trading_intents.brokers.sanitizing import sanitize, sanitize_id, sanitize_text
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
from trading_intents.orders import ledger_store as ledger
from trading_intents.orders.amounts import ZERO
from trading_intents.orders.events import day_of, order_event, position_event, trade_event
from trading_intents.orders.facts import (
    EXECUTIONS,
    LONG_AGO,
    CommandKind,
    Fact,
    FactKind,
    admit,
    conflict_with,
    event_fact,
    own_fact,
    owner,
    result_facts,
)
from trading_intents.orders.ledger_store import Found, Ledger, Name, Names, Place, parse_ledger, read_ledger
from trading_intents.orders.model import OrderView
from trading_intents.orders.positions import Position, from_trades, opening
from trading_intents.storage.database import Row
from trading_intents.storage.grouped import StatementRunner
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event
from trading_intents.telemetry import Log, Metrics
from trading_intents.trading import Environment, amount_text

REBOOK_PAGE = 1_000
NEW_ARRIVAL = 1 << 60  # later than all that the database has numbered
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
class PositionChange:
    row: Row  # as it is now
    is_new: bool
    visible: bool  # whether a reader sees it changed
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class News:
    """What was not known of an account's orders: facts by key, with their orders (None: not an order of ours)."""

    facts: dict[str, tuple[Fact, UUID | None]]
    places: dict[str, int] = field(default_factory=dict)  # of those that are events
    matched: dict[str, UUID] = field(default_factory=dict)  # facts that had no order until now, by key
    adopted: dict[str, tuple[Fact, UUID | None]] = field(default_factory=dict)  # these facts themselves
    named: dict[str, str] = field(default_factory=dict)  # broker's ids by client order id

    @property
    def inserted(self) -> Iterable[tuple[Fact, UUID | None]]:
        return self.facts.values()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What becomes of a recording. Orders that no new fact touched are not in it."""

    desk: Desk
    news: News
    orders: Mapping[UUID, Booked]
    written: tuple[Row, ...]  # orders that are to be
    resurrected: tuple[UUID, ...]  # the broker has them though they were given up: cancel at once
    trades: tuple[TradeChange, ...]  # as they are booked
    positions: tuple[PositionChange, ...]
    differences: tuple[Difference, ...]
    entries: tuple[Entry, ...]
    cancelled: frozenset[UUID] = frozenset()  # of those that were locked beside: a CANCEL was asked for
    left_out: tuple[str, ...] = ()  # keys of events that mean nothing
    conflicts: tuple[tuple[UUID, str], ...] = ()  # orders, and the keys by which an execution came with other numbers

    @property
    def changed(self) -> bool:
        """Whether there is anything to publish."""
        seen = (*(each.visible for each in self.positions), *(each.changed for each in self.orders.values()))
        return bool(self.trades or any(seen))


def answer(order_id: UUID, command: CommandKind, client_order_id: str, result: CommandResult) -> tuple[OwnFact, ...]:
    """What a command's outcome says by itself. Its updates are events: hand them to `record` beside this."""
    return tuple(
        OwnFact(order_id, fact.kind, client_order_id, fact.reason, fact.broker_order_id)
        for fact in result_facts(command, client_order_id, result, 0)
        if fact.key.startswith("own:")
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """What was told of an account's orders and positions, and what we saw of them on our side."""

    desk: Desk
    events: Sequence[BrokerEvent] = ()
    own: Sequence[OwnFact] = ()
    also_locked: frozenset[UUID] = frozenset()  # orders of which nothing is told


async def record(
    tx: StatementRunner,
    recordings: Sequence[Recording],
    also: Sequence[Statement] = (),
    before: Sequence[Statement] = (),
) -> tuple[list[Recorded], list[Reply]]:
    """One of each account. Locks the orders concerned by id, then positions by account and symbol, and runs what is to
    be read `also` under these locks; then says what changes. What was seen before changes nothing.

    `writes` are to be run next, `publishing` last before the commit.
    """
    prepared = [_prepare(each) for each in recordings]
    reads = read_ledger(_names(prepared), _reported(prepared))
    replies = (await tx.run([*before, *reads, *also]))[len(before) :]
    count = len(reads)
    index = _Index(parse_ledger(replies[:count]))
    return [await _book(tx, each, index) for each in prepared], replies[count:]


async def _book(tx: StatementRunner, prepared: "_Prepared", index: "_Index") -> Recorded:
    desk = prepared.desk
    news = _gather(prepared, index)
    settled = _settle(news, index)
    changes = sorted((change for each in settled for change in each.trades), key=lambda change: change.place)
    reports = [(place, event) for place, event in enumerate(prepared.events) if event.kind is EventKind.POSITION]
    holdings = await _book_positions(tx, desk, index, changes, reports) if changes or reports else []
    return Recorded(
        desk,
        news,
        {each.row["order_id"]: Booked(each.row, each.view, each.visible) for each in settled},
        tuple(each.row for each in settled if each.written),
        tuple(each.row["order_id"] for each in settled if each.resurrected),
        tuple(changes),
        tuple(holdings),
        tuple(each.difference for each in holdings if each.difference),
        sum_up(entry for each in settled for entry in each.entries),
        frozenset(each for each in prepared.also_locked if index.histories[each].row["cancel_requested"]),
        prepared.left_out,
        tuple((each.row["order_id"], key) for each in settled for key in each.conflicts),
    )


def writes(recorded: Sequence[Recorded]) -> list[Statement]:
    """Facts, what they tell of commands, orders and positions, over all accounts."""
    facts = [(r.desk.account_id, r.desk.organization_id, *each) for r in recorded for each in r.news.inserted]
    matched = {Name(r.desk.account_id, key): owner for r in recorded for key, owner in r.news.matched.items()}
    named = {Name(r.desk.account_id, each): number for r in recorded for each, number in r.news.named.items()}
    orders = [row for r in recorded for row in r.written]
    held = [each for r in recorded for each in r.positions]
    new, old = ([each.row for each in held if each.is_new is is_new] for is_new in (True, False))
    return [
        *([ledger.insert_facts(facts)] if facts else ()),
        *([ledger.match_facts(matched)] if matched else ()),
        *([ledger.name_commands(named)] if named else ()),
        *([ledger.write_orders(orders)] if orders else ()),
        *([ledger.insert_positions(new)] if new else ()),
        *([ledger.write_positions(old)] if old else ()),
    ]


def publishing(recorded: Sequence[Recorded]) -> list[Statement]:
    """The last statements before the commit: stats, then the organizations' stream heads, and the trades by their
    seqs."""
    entries = [entry for each in recorded for entry in each.entries]
    events: list[Event] = []
    places: dict[UUID, int] = {}
    for each in recorded:
        _collect_events(each, events, places)
    counts = Counter(event.organization_id for event in events)
    seen: Counter[UUID | str] = Counter()
    below = []
    for event in events:
        seen[event.organization_id] += 1
        below.append(counts[event.organization_id] - seen[event.organization_id])
    trades = [
        _trade_row(change, None if (place := places.get(change.after.trade_id)) is None else below[place])
        for each in recorded
        for change in each.trades
    ]
    return [
        *([buckets.insert_entries(entries)] if entries else ()),
        *([stream_log.appending(events)] if events else ()),
        *([ledger.write_trades(trades)] if trades else ()),
    ]


def _collect_events(recorded: Recorded, events: list[Event], places: dict[UUID, int]) -> None:
    """Appends what is to be told; `places` gets where each trade's event stands."""
    told: dict[UUID, list[TradeChange]] = {}
    for change in recorded.trades:
        if change.told:
            told.setdefault(change.order["order_id"], []).append(change)
    for order_id, booked in recorded.orders.items():
        if booked.changed:
            events.append(order_event(booked.row))
        for change in told.get(order_id, ()):
            places[change.after.trade_id] = len(events)
            events.append(trade_event(change.order, change.after))
    events += [position_event(each.row, day_of(each.row["now"])) for each in recorded.positions if each.visible]


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
class _Prepared:
    """A recording, made legible and into facts."""

    desk: Desk
    events: Sequence[BrokerEvent]
    left_out: tuple[str, ...]
    told: Mapping[int, Fact]  # by the event's place
    own: Sequence[tuple[Fact, UUID]]
    also_locked: frozenset[UUID]


def _prepare(recording: Recording) -> _Prepared:
    events, left_out = sanitize(recording.events)
    own = [
        (
            own_fact(
                each.kind,
                each.client_order_id,
                NEW_ARRIVAL,
                each.reason and sanitize_text(each.reason),
                each.broker_order_id and sanitize_id(each.broker_order_id),
            ),
            each.order_id,
        )
        for each in recording.own
    ]
    told = {
        place: event_fact(event, NEW_ARRIVAL + 1 + place)
        for place, event in enumerate(events)
        if event.kind is not EventKind.POSITION
    }
    return _Prepared(recording.desk, events, left_out, told, own, recording.also_locked)


def _names(prepared: Sequence[_Prepared]) -> Names:
    order_ids, clients, brokers, keys = set[UUID](), set[Name](), set[Name](), set[Name]()
    for each in prepared:
        account_id = each.desk.account_id
        order_ids |= {*(order_id for _, order_id in each.own), *each.also_locked}
        for fact in (*each.told.values(), *(fact for fact, _ in each.own)):
            clients |= {Name(account_id, name) for name in (fact.client_order_id, fact.replaces) if name}
            if fact.broker_order_id:
                brokers.add(Name(account_id, fact.broker_order_id))
        keys |= {Name(account_id, fact.key) for fact in each.told.values()}
    return Names(order_ids, clients, brokers, keys)


def _reported(prepared: Sequence[_Prepared]) -> set[Place]:
    return {
        Place(each.desk.account_id, event.symbol)
        for each in prepared
        for event in each.events
        if event.kind is EventKind.POSITION and event.symbol
    }


class _Index:
    """The ledger by what is asked of it."""

    def __init__(self, read: Ledger) -> None:
        self.histories, self.positions, self.now = read.histories, read.positions, read.now
        self.facts = {Name(e.account_id, e.name): e for e in read.found if e.what == "fact"}
        self.clients = {Name(e.account_id, e.name): e for e in read.found if e.what == "client"}
        self.brokers: dict[Name, list[Found]] = {}
        self.unmatched: dict[Name, list[Found]] = {}
        for each in read.found:
            if each.what in ("broker", "unmatched"):
                found = self.brokers if each.what == "broker" else self.unmatched
                found.setdefault(Name(each.account_id, each.name), []).append(each)
        for sent in self.brokers.values():
            # Of two commands under one broker's id the later one counts: venues use their ids again.
            sent.sort(key=lambda each: each.at or LONG_AGO)

    def has(self, order_id: UUID, key: str) -> bool:
        """Whether the order has a fact of this key."""
        return any(fact.key == key for fact in self.histories[order_id].facts)


class LedgerMoved(Exception):
    """An order came to be concerned after the orders were locked: read again."""


def _gather(prepared: _Prepared, index: _Index) -> News:
    """What is new. Most of what a stream tells was in an answer before, and ends here."""
    account_id = prepared.desk.account_id
    known: dict[str, Fact] = {}
    owners: dict[str, UUID | None] = {}
    for fact in prepared.told.values():
        found = index.facts.get(Name(account_id, fact.key))
        if found and found.fact:
            known[fact.key], owners[fact.key] = found.fact, found.order_id
    own_clients = {fact.client_order_id: order_id for fact, order_id in prepared.own}
    news = News({fact.key: (fact, order_id) for fact, order_id in prepared.own if not index.has(order_id, fact.key)})
    for place, told in prepared.told.items():
        fact, order_id = told, owners.get(told.key) or _owner(prepared.events[place], own_clients, account_id, index)
        sent = index.clients.get(Name(account_id, told.client_order_id or ""))
        if told.kind in EXECUTIONS and order_id and sent and sent.order_id not in (None, order_id):
            # The key was used for another order before: that one has its execution, this one has lost it.
            fact, order_id = conflict_with(told), sent.order_id
            owners[fact.key] = order_id
        if order_id and order_id not in index.histories:
            raise LedgerMoved
        if order_id:
            known.update({each.key: each for each in index.histories[order_id].facts if each.key not in known})
        # The same again is nothing, unless it turns out whose it is.
        is_unowned = fact.key in known and owners.get(fact.key) is None
        admitted = admit(known, fact) or (fact if order_id and is_unowned else None)
        if admitted and (admitted is fact or order_id):
            recorded = known.get(fact.key) if admitted is fact else None
            known[admitted.key], owners[admitted.key] = admitted, order_id
            news.places[admitted.key] = place
            if recorded and order_id:
                news.matched[admitted.key] = order_id
                news.adopted[admitted.key] = recorded, order_id
            else:
                news.facts[admitted.key] = admitted, order_id
    _adopt(prepared, index, news)
    return news


def _owner(event: BrokerEvent, own_clients: Mapping[str | None, UUID], account_id: UUID, index: _Index) -> UUID | None:
    by_client = {
        each: own_clients.get(each)
        or (found.order_id if (found := index.clients.get(Name(account_id, each))) else None)
        for each in (event.client_order_id, event.replaces)
        if each
    }
    by_broker: dict[str, UUID | None] = {}
    if event.broker_order_id:
        sent = index.brokers.get(Name(account_id, event.broker_order_id))
        by_broker = {event.broker_order_id: sent[-1].order_id if sent else None}
    return owner(event, {each: found for each, found in by_client.items() if found}, by_broker)


def _adopt(prepared: _Prepared, index: _Index, news: News) -> None:
    """The broker's ids of commands, where facts tell them; and what was told under such an id before we knew it."""
    account_id = prepared.desk.account_id
    concerned = {order_id for _, order_id in news.facts.values() if order_id}
    senders: dict[str, list[tuple[datetime, UUID]]] = {}
    for fact, order_id in news.facts.values():
        if order_id and fact.broker_order_id and fact.client_order_id:
            news.named[fact.client_order_id] = fact.broker_order_id
            sent = index.clients.get(Name(account_id, fact.client_order_id))
            if sent and sent.at and sent.broker_order_id in (None, fact.broker_order_id):
                senders.setdefault(fact.broker_order_id, []).append((sent.at, order_id))
    for name, found in index.brokers.items():
        if name.account_id == account_id:
            senders.setdefault(name.name, []).extend((e.at, e.order_id) for e in found if e.at and e.order_id)
    for name, unmatched in index.unmatched.items():
        if name.account_id != account_id:
            continue
        for each in unmatched:
            assert each.fact
            assert each.at
            owned = [(at, order_id) for at, order_id in senders.get(name.name, ()) if at <= each.at]
            owner_id = max(owned)[1] if owned else None
            if owner_id is not None and owner_id in concerned and each.fact.key not in news.adopted:
                news.matched[each.fact.key] = owner_id
                news.adopted[each.fact.key] = each.fact, owner_id


def _settle(news: News, index: _Index) -> list[Settled]:
    by_order: dict[UUID, list[Fact]] = {}
    for fact, order_id in (*news.facts.values(), *news.adopted.values()):
        if order_id:
            by_order.setdefault(order_id, []).append(fact)
    settled = []
    for order_id, facts in sorted(by_order.items()):
        history = index.histories[order_id]
        history = replace(history, facts=(*history.facts, *facts), now=index.now)
        index.histories[order_id] = history
        settled.append(settle(history, {fact.key for fact in facts}, news.places))
    return settled


async def _book_positions(
    tx: StatementRunner,
    desk: Desk,
    index: _Index,
    changes: Sequence[TradeChange],
    reports: Sequence[tuple[int, BrokerEvent]],
) -> list[PositionChange]:
    """What changes. A report of nothing makes no position of a symbol that was never held or traded."""
    held = []
    symbols = {change.order["symbol"] for change in changes} | {e.symbol for _, e in reports if e.symbol and e.quantity}
    for symbol in sorted(symbols | {event.symbol for _, event in reports if event.symbol}):
        place = Place(desk.account_id, symbol)
        row = index.positions.get(place)
        is_new = row is None
        if row is None:
            if symbol not in symbols:
                continue
            row = ledger.new_position(place, desk.organization_id, index.now)
        trades = [change for change in changes if change.order["symbol"] == symbol]
        told = [(number, event) for number, event in reports if event.symbol == symbol]
        before = after = read_holding(row)
        steps: list[tuple[int, TradeChange | BrokerEvent]] = [*((each.place, each) for each in trades), *told]
        for _, step in sorted(steps, key=lambda each: each[0]):
            after = book_report(after, step) if isinstance(step, BrokerEvent) else book_trade(after, step)
        if any(change.rebooked for change in trades):
            start = opening(before.position.opening_quantity, before.position.opening_price)
            after = with_position(after, await sum_trades(tx, place, start, trades))
        if after.differs and told and await _is_outdated(tx, place, row["now"], after, trades):
            after = replace(after, differs=False)
        if after != before or is_new:
            held.append(_changed(desk, row, before, after, is_new))
    return held


async def _is_outdated(
    tx: StatementRunner, place: Place, now: datetime, holding: Holding, trades: Sequence[TradeChange]
) -> bool:
    """Whether the report says what we held a moment ago: fills have overtaken it. Only asked where the two differ."""
    (reply,) = await tx.run([ledger.last_bookings(place, MAX_OVERTAKING_FILLS)])
    since = now - REPORT_AGE
    recent = [change.booking for change in reversed(trades) if change.before is None]
    recent += [booking_of(trade) for trade in ledger.parse_bookings(reply) if trade.received_at >= since]
    return was_held(holding.broker_quantity, holding.position.quantity, recent)


def _changed(desk: Desk, row: Row, before: Holding, after: Holding, is_new: bool) -> PositionChange:
    counts = {name: getattr(after, name) for name in ("broker_quantity", "broker_key", "broker_sent_at", "differs")}
    account = {"environment": desk.environment, "broker": desk.broker}
    visible = before.position != after.position
    reported = (before.broker_quantity, before.differs) != (after.broker_quantity, after.differs)
    received_at = row["now"] if visible or reported else row["received_at"]
    differing = Difference(row["symbol"], after.position.quantity, after.broker_quantity or ZERO)
    return PositionChange(
        {**row, **asdict(after.position), **counts, **account, "received_at": received_at},
        is_new,
        visible,
        differing if after.differs and reported else None,
    )


async def sum_trades(
    tx: StatementRunner, place: Place, position: Position, changes: Sequence[TradeChange] = ()
) -> Position:
    """The whole position again, from its opening and the trades as they were booked with their numbers of now."""
    numbers = {change.after.trade_id: change.booking for change in changes if change.before}
    after, more = 0, True
    while more:
        (reply,) = await tx.run([ledger.read_bookings(place, after, REBOOK_PAGE)])
        trades = ledger.parse_bookings(reply)
        position = from_trades((numbers.get(trade.trade_id) or booking_of(trade) for trade in trades), position)
        more, after = len(trades) == REBOOK_PAGE, trades[-1].booking if trades else 0
    return from_trades((change.booking for change in changes if not change.before), position)


def _trade_row(change: TradeChange, below: int | None) -> Row:
    order = change.order
    return {
        **msgspec.structs.asdict(change.after),
        "below": below,
        "account_id": order["account_id"],
        "organization_id": order["organization_id"],
        "order_id": order["order_id"],
        "symbol": order["symbol"],
        "side": order["order_side"],
        "client_reference_id": order["client_reference_id"],
    }
