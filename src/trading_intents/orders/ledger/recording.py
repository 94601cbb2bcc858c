"""Turns broker events and the platform's own facts into orders, trades, positions and stream events, in the caller's
transaction. Never talks to a broker; orders/model.py decides what an order is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from trading_intents.balances import store as balances_store
from trading_intents.balances.model import AccountBalance, balance_event
from trading_intents.brokers.port import BrokerEvent, CommandResult, EventKind
from trading_intents.clock import Pacer
from trading_intents.orders.events import day_of, order_event, position_event, trade_event
from trading_intents.orders.facts import LONG_AGO, CommandKind, Fact, FactKind, outcome_kind
from trading_intents.orders.ledger import store as ledger
from trading_intents.orders.ledger import writes as written
from trading_intents.orders.ledger.booking import (
    HeldPosition,
    SettledOrder,
    TradeChange,
    book_event,
    book_trade,
    booking_of,
    read_holding,
    settle,
    was_held,
    with_position,
)
from trading_intents.orders.ledger.exposures import ExposureChange, sum_changes
from trading_intents.orders.ledger.matching import (
    AccountRecording,
    AccountRef,
    LedgerIndex,
    NewFacts,
    PlatformFact,
    PreparedRecording,
    account_balance,
    concerned_names,
    find_new_facts,
    prepare,
    reported_places,
)
from trading_intents.orders.ledger.prices import newest_prices, reported_prices
from trading_intents.orders.ledger.store import AccountName, PositionKey, parse_ledger, read_ledger
from trading_intents.orders.positions import NetPosition, from_trades, opening, take_fee
from trading_intents.prices import store as prices_store
from trading_intents.prices.model import ReferencePrice
from trading_intents.stats import store as stats_store
from trading_intents.stats.model import sum_up
from trading_intents.storage.database import Row
from trading_intents.storage.grouped import StatementRunner
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event
from trading_intents.trading import FrozenStruct

REBOOK_PAGE = 1_000
# A snapshot takes up to 10 s, and commands and the stream go on meanwhile.
REPORT_AGE = timedelta(seconds=15)
MAX_OVERTAKING_FILLS = 20_000  # in REPORT_AGE


class PositionChange(FrozenStruct, frozen=True):
    row: Row  # as it is now
    is_new: bool
    visible: bool  # whether a reader sees it changed
    is_new_difference: bool  # the broker newly reports a quantity that is not ours


class RecordedAccount(FrozenStruct, frozen=True):
    """The result of a recording: orders with a new fact, or that were locked beside."""

    account_ref: AccountRef
    new_facts: NewFacts
    orders: Mapping[UUID, SettledOrder]
    resurrected: tuple[UUID, ...]  # open again, though they had ended: they are looked up
    trades: tuple[TradeChange, ...]  # as they are booked
    positions: tuple[PositionChange, ...]
    events: Sequence[Event]  # to be published
    trade_places: Mapping[UUID, int]  # of the trades' events among them
    cancelled: frozenset[UUID] = frozenset()  # of those that were locked beside: a CANCEL was asked for
    left_out: tuple[str, ...] = ()  # keys of events that mean nothing
    prices: tuple[ReferencePrice, ...] = ()  # that were told
    balance: AccountBalance | None = None
    conflicts: tuple[tuple[Fact, UUID | None], ...] = ()  # told under a key or execution id of something else: lost
    exposures: tuple[ExposureChange, ...] = ()


def answer_facts(
    order_id: UUID, command: CommandKind, client_order_id: str, result: CommandResult
) -> tuple[PlatformFact, ...]:
    """The fact of a command's outcome itself, if it has one. Its updates are events, which `record` takes beside it."""
    kind = outcome_kind(command, result)
    if kind is None:
        return ()
    has_reason = kind not in (FactKind.ACCEPTED, FactKind.CANCEL_REJECTED)
    reason = result.message or result.code if has_reason else None
    return (PlatformFact(order_id, kind, client_order_id, reason, result.broker_order_id),)


async def record(
    tx: StatementRunner,
    recordings: Sequence[AccountRecording],
    also: Sequence[Statement] = (),
    before: Sequence[Statement] = (),
) -> tuple[list[RecordedAccount], list[Reply]]:
    """One of each account. Locks the orders concerned by id, then positions by account and symbol, and runs what is to
    be read `also` under these locks; then says what changes. What was seen before changes nothing.

    `write_statements` are to be run next, `publish_statements` last before the commit.
    """
    prepared = [prepare(each) for each in recordings]
    reads = read_ledger(concerned_names(prepared), reported_places(prepared))
    replies = (await tx.run([*before, *reads, *also]))[len(before) :]
    count = len(reads)
    index = LedgerIndex(parse_ledger(replies[:count]))
    pacer = Pacer()
    return [await _book(tx, each, index, pacer) for each in prepared], replies[count:]


async def _book(tx: StatementRunner, prepared: PreparedRecording, index: LedgerIndex, pacer: Pacer) -> RecordedAccount:
    account_ref = prepared.account_ref
    new_facts = find_new_facts(prepared, index)
    settled = await _settle(prepared, new_facts, index, pacer)
    changes = sorted((change for each in settled for change in each.trades), key=lambda change: change.place)
    reports = [(place, event) for place, event in enumerate(prepared.events) if event.kind is EventKind.POSITION]
    fees = [
        (place, prepared.events[place])
        for place, fact in prepared.event_facts.items()
        if fact.kind is FactKind.FEE and fact.key in new_facts.facts and new_facts.places[fact.key] == place
    ]
    told = [*reports, *fees]
    holdings = await _book_positions(tx, account_ref, index, changes, told) if changes or told else []
    events, trade_places = await _collect_events(settled, holdings, pacer)
    balance = account_balance(account_ref, prepared.balance, index.now)
    if balance is not None:
        events.append(balance_event(balance))
    return RecordedAccount(
        account_ref,
        new_facts,
        {each.row["order_id"]: each for each in settled},
        tuple(each.row["order_id"] for each in settled if each.resurrected),
        tuple(changes),
        tuple(holdings),
        events,
        trade_places,
        frozenset(each for each in prepared.also_locked if index.histories[each].row["cancel_requested"]),
        prepared.left_out,
        reported_prices(account_ref, changes, (event for _, event in reports), index.now),
        balance,
        (*new_facts.conflicts, *((fact, each.row["order_id"]) for each in settled for fact in each.conflicts)),
        tuple(each.exposure for each in settled),
    )


def write_statements(recorded: Sequence[RecordedAccount]) -> list[Statement]:
    """Writes facts, the commands' broker ids, orders, positions and balances of all accounts."""
    facts = [
        (r.account_ref.account_id, r.account_ref.organization_id, *each)
        for r in recorded
        for each in r.new_facts.facts.values()
    ]
    matched = {
        AccountName(r.account_ref.account_id, key): owner
        for r in recorded
        for key, (_, owner) in r.new_facts.adopted.items()
    }
    named = {
        AccountName(r.account_ref.account_id, each): number
        for r in recorded
        for each, number in r.new_facts.named.items()
    }
    orders = [each.row for r in recorded for each in r.orders.values() if each.written]
    held = [each for r in recorded for each in r.positions]
    balances = [r.balance for r in recorded if r.balance]
    new, old = ([each.row for each in held if each.is_new is is_new] for is_new in (True, False))
    return [
        *([written.insert_facts(facts)] if facts else ()),
        *([written.match_facts(matched)] if matched else ()),
        *([written.name_commands(named)] if named else ()),
        *([written.write_orders(orders)] if orders else ()),
        *([written.insert_positions(new)] if new else ()),
        *([written.write_positions(old)] if old else ()),
        *([balances_store.write_balances(balances)] if balances else ()),
    ]


def publish_statements(recorded: Sequence[RecordedAccount]) -> list[Statement]:
    """The last statements before the commit: stats, reference prices and exposures, then the organizations' stream
    heads, and the trades by their seqs."""
    entries = sum_up(entry for r in recorded for order in r.orders.values() for entry in order.entries)
    prices = newest_prices((each.account_ref, price) for each in recorded for price in each.prices)
    events: list[Event] = []
    places: dict[UUID, int] = {}
    for each in recorded:
        places |= {trade_id: len(events) + place for trade_id, place in each.trade_places.items()}
        events += each.events
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
    exposures = sum_changes(change for each in recorded for change in each.exposures)
    return [
        *([stats_store.insert_entries(entries)] if entries else ()),
        *([prices_store.write_prices(prices)] if prices else ()),
        *([written.change_exposures(exposures)] if exposures else ()),
        *([stream_log.appending(events)] if events else ()),
        *([written.write_trades(trades)] if trades else ()),
    ]


async def _collect_events(
    settled: Sequence[SettledOrder], positions: Sequence[PositionChange], pacer: Pacer
) -> tuple[list[Event], dict[UUID, int]]:
    """The stream events of orders, trades and positions, and the place of each trade's event among them."""
    events: list[Event] = []
    places: dict[UUID, int] = {}
    for each in settled:
        await pacer.pause_if_due()
        if each.visible:
            events.append(order_event(each.row))
        for change in sorted(each.trades, key=lambda change: change.place):
            if change.is_published:
                places[change.after.trade_id] = len(events)
                events.append(trade_event(change.order, change.after))
    events += [position_event(each.row, day_of(each.row["now"])) for each in positions if each.visible]
    return events, places


async def _settle(
    prepared: PreparedRecording, new_facts: NewFacts, index: LedgerIndex, pacer: Pacer
) -> list[SettledOrder]:
    by_order: dict[UUID, list[Fact]] = {order_id: [] for order_id in prepared.also_locked}
    for fact, order_id in (*new_facts.facts.values(), *new_facts.adopted.values()):
        if order_id:
            by_order.setdefault(order_id, []).append(fact)
    settled = []
    for order_id, facts in sorted(by_order.items()):
        history = index.histories[order_id]
        history = replace(history, facts=(*history.facts, *facts), now=index.now)
        index.histories[order_id] = history
        settled.append(
            settle(history, {fact.key for fact in facts}, new_facts.places, prepared.account_ref.bust_reopens)
        )
        await pacer.pause_if_due()
    return settled


async def _book_positions(
    tx: StatementRunner,
    account_ref: AccountRef,
    index: LedgerIndex,
    changes: Sequence[TradeChange],
    told: Sequence[tuple[int, BrokerEvent]],
) -> list[PositionChange]:
    """The changed positions. A report of quantity 0 makes no position of a symbol that was never held or traded."""
    held = []
    symbols = {change.order["symbol"] for change in changes} | {e.symbol for _, e in told if e.symbol and e.quantity}
    for symbol in sorted(symbols | {event.symbol for _, event in told if event.symbol}):
        place = PositionKey(account_ref.account_id, symbol)
        row = index.positions.get(place)
        is_new = row is None
        if row is None:
            if symbol not in symbols:
                continue
            row = ledger.new_position(place, account_ref.organization_id, index.now)
        trades = [change for change in changes if change.order["symbol"] == symbol]
        symbol_events = [(number, event) for number, event in told if event.symbol == symbol]
        before = after = read_holding(row)
        steps: list[tuple[int, TradeChange | BrokerEvent]] = [*((each.place, each) for each in trades), *symbol_events]
        for _, step in sorted(steps, key=lambda each: each[0]):
            after = book_event(after, step, index.now) if isinstance(step, BrokerEvent) else book_trade(after, step)
        if any(change.is_rebooked for change in trades):
            start = opening(before.position.opening_quantity, before.position.opening_price)
            fee_quantity = after.position.fee_quantity
            after = with_position(after, await sum_trades(tx, place, start, fee_quantity, trades))
        if after.differs and symbol_events and await _is_outdated(tx, place, row["now"], after, trades):
            after = replace(after, differs=False)
        if after != before or is_new:
            held.append(_changed(account_ref, row, before, after, is_new))
    return held


async def _is_outdated(
    tx: StatementRunner, place: PositionKey, now: datetime, holding: HeldPosition, trades: Sequence[TradeChange]
) -> bool:
    """Whether the report has a quantity that we held before recent fills. Only asked where the two differ."""
    (reply,) = await tx.run([ledger.last_bookings(place, MAX_OVERTAKING_FILLS)])
    since = now - REPORT_AGE
    recent = [change.booking for change in reversed(trades) if change.before is None]
    recent += [booking_of(trade) for trade in ledger.parse_bookings(reply) if trade.received_at >= since]
    return was_held(holding.broker_quantity, holding.position.quantity, recent)


def _changed(
    account_ref: AccountRef, row: Row, before: HeldPosition, after: HeldPosition, is_new: bool
) -> PositionChange:
    counts = {name: getattr(after, name) for name in ("broker_quantity", "broker_key", "broker_sent_at", "differs")}
    account = {"environment": account_ref.environment, "broker": account_ref.broker}
    visible = before.position != after.position
    reported = (before.broker_quantity, before.differs) != (after.broker_quantity, after.differs)
    received_at = row["now"] if visible or reported else row["received_at"]
    return PositionChange(
        {**row, **msgspec.structs.asdict(after.position), **counts, **account, "received_at": received_at},
        is_new,
        visible,
        after.differs and reported,
    )


async def sum_trades(
    tx: StatementRunner,
    place: PositionKey,
    position: NetPosition,
    fee_quantity: Decimal,
    changes: Sequence[TradeChange] = (),
) -> NetPosition:
    """Sums the position up from its opening and its trades, in the order of booking, with their current numbers; then
    all fees that were taken in the symbol itself, which count in no day's result again."""
    numbers = {change.after.trade_id: change.booking for change in changes if change.before}
    after, more = 0, True
    while more:
        (reply,) = await tx.run([ledger.read_bookings(place, after, REBOOK_PAGE)])
        trades = ledger.parse_bookings(reply)
        position = from_trades((numbers.get(trade.trade_id) or booking_of(trade) for trade in trades), position)
        more, after = len(trades) == REBOOK_PAGE, trades[-1].booking if trades else 0
    position = from_trades((change.booking for change in changes if not change.before), position)
    return take_fee(position, fee_quantity, LONG_AGO) if fee_quantity else position


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
