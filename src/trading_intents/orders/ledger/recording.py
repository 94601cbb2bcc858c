"""Records broker events and the platform's own facts as orders, trades, positions and events of
the stream, in the caller's transaction. Never talks to a broker, nor decides what an order is."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from trading_intents.balances import store as balances_store
from trading_intents.balances.model import AccountBalance, balance_event
from trading_intents.brokers.port import BrokerEvent, CommandResult, EventKind
from trading_intents.ids import IdText, id_text
from trading_intents.loops import Pacer
from trading_intents.orders.events import day_of, order_event, position_event, trade_event
from trading_intents.orders.facts import LONG_AGO, CommandKind, Fact, FactKind, outcome_kind
from trading_intents.orders.ledger import store as ledger
from trading_intents.orders.ledger import writes as written
from trading_intents.orders.ledger.booking import (
    Arrivals,
    DerivedOrder,
    PositionChange,
    TradeChange,
    book_event,
    book_trades,
    derive_orders,
    position_change,
    was_held,
    with_difference,
)
from trading_intents.orders.ledger.matching import (
    AccountRecording,
    AccountRef,
    Advanced,
    LedgerIndex,
    NewFacts,
    PlatformFact,
    PreparedRecording,
    account_balance,
    advance_common,
    concerned_names,
    find_new_facts,
    prepare,
)
from trading_intents.orders.ledger.prices import newest_prices, reported_prices
from trading_intents.orders.ledger.protection import with_protection
from trading_intents.orders.ledger.store import (
    READ_COVERS,
    AccountName,
    parse_covers,
    parse_histories,
    parse_ledger,
    read_actions,
    read_ledger,
)
from trading_intents.orders.model import OrderView
from trading_intents.orders.positions import (
    NOTHING_OPEN,
    OpenSums,
    PositionRow,
    from_trades,
    reopen,
    take_fee,
)
from trading_intents.prices import store as prices_store
from trading_intents.prices.model import ReferencePrice
from trading_intents.stats.model import Counted
from trading_intents.storage.grouped import StatementRunner
from trading_intents.storage.pipeline import Reply, Statement, json_text
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import SILENT, Event
from trading_intents.trading import ZERO, FrozenStruct

REBOOK_PAGE = 1_000
# A snapshot takes up to 10 s, and commands and the stream go on meanwhile.
REPORT_AGE = timedelta(seconds=15)
MAX_OVERTAKING_FILLS = 20_000  # in REPORT_AGE
Rows = TypeVar("Rows", bound=Sized)
# What changes a position, with the number of its event.
Step = tuple[int, TradeChange | BrokerEvent]


class RecordedAccount(FrozenStruct, kw_only=True):
    """The result of a recording: orders with a new fact, or that were locked beside."""

    account_ref: AccountRef
    new_facts: NewFacts
    orders: Mapping[IdText, DerivedOrder]
    # Open again, though they had ended, and entries of such legs: they are looked up.
    resurrected: tuple[UUID, ...]
    trades: Sequence[TradeChange]  # as they are booked
    positions: Sequence[PositionChange]
    # To be published, with the trade that each reports.
    events: Sequence[tuple[Event, IdText | None]]
    cancelled: frozenset[IdText]  # of those that were locked beside: a CANCEL was asked for
    left_out: tuple[str, ...]  # keys of events that mean nothing
    prices: tuple[ReferencePrice, ...]  # that were reported
    balance: AccountBalance | None
    # Reported under a key or execution id of something else: lost.
    conflicts: tuple[tuple[Fact, IdText | None], ...]

    def view_of(self, order_id: UUID) -> OrderView:
        """Of an order that was read whole, as those are that are locked beside."""
        view = self.orders[id_text(order_id)].view
        assert view
        return view


def answer_facts(
    order_id: UUID, command: CommandKind, client_order_id: str, result: CommandResult
) -> tuple[PlatformFact, ...]:
    """The fact of a command's outcome itself, if it has one. Its updates are events, which `record`
    takes beside it."""
    kind = outcome_kind(command, result)
    if kind is None:
        return ()
    has_reason = kind not in (FactKind.ACCEPTED, FactKind.CANCEL_REJECTED)
    reason = result.code or result.message if has_reason else None
    return (
        PlatformFact(
            order_id=order_id,
            kind=kind,
            client_order_id=client_order_id,
            reason=reason,
            broker_order_id=result.broker_order_id,
            detail=result.message or None,
        ),
    )


async def record(
    tx: StatementRunner,
    recordings: Sequence[AccountRecording],
    also: Sequence[Statement] = (),
    before: Sequence[Statement] = (),
) -> tuple[list[RecordedAccount], list[Reply]]:
    """One of each account. Locks the orders concerned by id, reads their symbols' positions, and
    runs what is to be read `also` under these locks; then says what changes. What was seen before
    changes nothing. Positions are not locked, since accepts write the same rows: a position that
    another one writes meanwhile is refused when it is written.

    `write_statements` are to be run next, `publish_statements` last before the commit.
    """
    prepared = [prepare(each) for each in recordings]
    reads = read_ledger(concerned_names(prepared))
    replies = await tx.run([*before, *reads, *also])
    replies = replies[len(before) :]
    count = len(reads)
    index = LedgerIndex(parse_ledger(replies[:count]))
    news = []
    whole = set[IdText]()
    for each in prepared:
        new_facts = find_new_facts(each, index)
        advanced = advance_common(each, new_facts, index)
        news.append((each, new_facts, advanced))
        whole |= advanced.whole
    if whole:
        (actions,) = await tx.run([read_actions(whole)])
        index.histories = parse_histories(actions, index.heads)
    if index.uncovered:
        (covers,) = await tx.run([READ_COVERS])
        index.covers = parse_covers(covers)
    pacer = Pacer()
    recorded = [await _book(tx, *each, index, pacer) for each in news]
    return recorded, replies[count:]


async def _book(
    tx: StatementRunner,
    prepared: PreparedRecording,
    new_facts: NewFacts,
    advanced: Advanced,
    index: LedgerIndex,
    pacer: Pacer,
) -> RecordedAccount:
    account_ref = prepared.account_ref
    derived = await _derive_groups(prepared, new_facts, advanced, index, pacer)
    changes: list[TradeChange] = []
    conflicts = [*new_facts.conflicts]
    resurrected = set()
    for order in derived:
        if order.resurrected:
            order_id = order.row.order_id
            resurrected |= {order_id, index.entry_of(order_id)}
        changes += order.trades
        for fact in order.conflicts:
            conflicts.append((fact, order.row.order_id))
    changes.sort(key=lambda change: change.event_number)
    steps = _steps_by_symbol(prepared, new_facts, changes)
    positions = await _book_positions(tx, account_ref, index, steps)
    balance = account_balance(account_ref, prepared.balance, index.now)
    derived = with_protection(derived, positions, index)
    events = await _collect_events(account_ref, new_facts, derived, pacer)
    for position in positions:
        if position.visible:
            day = day_of(index.now)
            event = position_event(position.row, account_ref.environment, account_ref.broker, day)
            events.append((event, None))
    for fact in new_facts.facts.get(None, ()):
        symbol = prepared.events[new_facts.numbers[None, fact.key]].symbol or ""
        events.append((_silent_event(account_ref, symbol, None, [fact]), None))
    if balance:
        events.append((balance_event(balance), None))
    reports = [event for event in prepared.events if event.kind is EventKind.POSITION]
    return RecordedAccount(
        account_ref=account_ref,
        new_facts=new_facts,
        orders={order.row.order_id: order for order in derived},
        resurrected=tuple(map(UUID, sorted(resurrected))),
        trades=changes,
        positions=positions,
        events=events,
        cancelled=frozenset(
            each for each in prepared.also_locked if index.heads[each].row.cancel_requested
        ),
        left_out=prepared.left_out,
        prices=reported_prices(account_ref, changes, reports, index.now),
        balance=balance,
        conflicts=tuple(conflicts),
    )


def write_statements(recorded: Sequence[RecordedAccount]) -> list[Statement]:
    """Writes the commands' broker ids, orders and balances of all accounts."""
    named: dict[AccountName, str] = {}
    orders = []
    balances = []
    for each in recorded:
        account_id, _ = each.account_ref.id_texts
        for client_id, broker_id in each.new_facts.named.items():
            named[AccountName(account_id, client_id)] = broker_id
        for order in each.orders.values():
            if order.written:
                orders.append(order.row)
        if each.balance:
            balances.append(each.balance)
    statements: list[Statement] = []
    _write(statements, written.name_commands, named)
    _write(statements, written.write_orders, orders)
    _write(statements, balances_store.write_balances, balances)
    return statements


def _write(statements: list[Statement], write: Callable[[Rows], Statement], rows: Rows) -> None:
    """Appends the statement that writes these rows, if there are any."""
    if rows:
        statements.append(write(rows))


def publish_statements(recorded: Sequence[RecordedAccount]) -> list[Statement]:
    """The last statements before the commit: reference prices and holdings, then the
    organizations' stream heads, and the trades by their seqs."""
    prices = []
    published: list[tuple[Event, IdText | None]] = []
    for each in recorded:
        published += each.events
        for price in each.prices:
            prices.append((each.account_ref, price))
    # How far the events of trades are below their organizations' new heads.
    below: dict[IdText, int] = {}
    later = Counter[str]()
    for event, trade_id in reversed(published):
        if trade_id:
            below.setdefault(trade_id, later[event.organization_id])
        later[event.organization_id] += 1
    trades = []
    for each in recorded:
        for change in each.trades:
            trades.append((change.after, below.get(change.after.trade_id)))
    statements: list[Statement] = []
    _write(statements, prices_store.write_prices, newest_prices(prices))
    _write(statements, written.write_holdings, _changed_holdings(recorded))
    _write(statements, stream_log.appending, [event for event, _ in published])
    _write(statements, written.write_trades, trades)
    return statements


def _changed_holdings(
    recorded: Sequence[RecordedAccount],
) -> list[tuple[PositionRow, OpenSums]]:
    positions: dict[AccountName, PositionRow] = {}
    opened: dict[AccountName, OpenSums] = {}
    for each in recorded:
        for order in each.orders.values():
            if order.opened != NOTHING_OPEN:
                name = AccountName(order.row.account_id, order.row.symbol)
                positions.setdefault(name, unbooked(each.account_ref, name.name))
                opened[name] = opened.get(name, NOTHING_OPEN).plus(order.opened)
        for change in each.positions:
            positions[AccountName(change.row.account_id, change.row.symbol)] = change.row
    return [(row, opened.get(name, NOTHING_OPEN)) for name, row in positions.items()]


async def _collect_events(
    account_ref: AccountRef,
    new_facts: NewFacts,
    derived: Sequence[DerivedOrder],
    pacer: Pacer,
) -> list[tuple[Event, IdText | None]]:
    """The stream events of orders and trades, with the trade that each reports. An order's first
    one has its new facts, and what is counted of it."""
    events: list[tuple[Event, IdText | None]] = []
    for order in derived:
        await pacer.pause_if_due()
        first = len(events)
        if order.visible:
            events.append((order_event(order.row, order.is_unprotected), None))
        for change in sorted(order.trades, key=lambda change: change.event_number):
            if change.is_published:
                events.append((trade_event(order.row, change.after), change.after.trade_id))
        order_id = order.row.order_id
        facts = new_facts.facts.get(order_id, ())
        if (facts or order.counts) and len(events) == first:
            events.append((_silent_event(account_ref, order.row.symbol, order_id), None))
        if len(events) > first:
            event, trade_id = events[first]
            event = replace(event, facts=_maybe_json(facts), counts=_maybe_json(order.counts))
            events[first] = event, trade_id
    return events


def _silent_event(
    account_ref: AccountRef,
    symbol: str,
    order_id: IdText | None,
    facts: Sequence[Fact] = (),
) -> Event:
    """For what changes nothing that is shown."""
    account_id, organization_id = account_ref.id_texts
    return Event(
        organization_id=organization_id,
        account_id=account_id,
        environment=account_ref.environment,
        symbol=symbol,
        payload=SILENT,
        order_id=order_id,
        facts=_maybe_json(facts),
    )


def _maybe_json(rows: Sequence[Fact | Counted]) -> str | None:
    return json_text(rows) if rows else None


async def _derive_groups(
    prepared: PreparedRecording,
    new_facts: NewFacts,
    advanced: Advanced,
    index: LedgerIndex,
    pacer: Pacer,
) -> list[DerivedOrder]:
    """Those that were read whole, each with its group: what happens to an entry may change its
    legs; with those that were advanced, by id."""
    for order_id in advanced.whole:
        news = tuple(new_facts.facts.get(order_id, ()))
        index.histories[order_id] = replace(index.histories[order_id], news=news)
    arrivals = Arrivals(new_facts.numbers, index.now)
    derived = []
    entries = {index.entry_of(order_id) for order_id in advanced.whole}
    for entry_id in sorted(entries | advanced.orders.keys()):
        if entry_id in advanced.orders:
            derived.append(advanced.orders[entry_id])
            continue
        group = [index.histories[order_id] for order_id in index.group_of(entry_id)]
        derived += derive_orders(group, arrivals, prepared.account_ref.bust_reopens)
        await pacer.pause_if_due()
    return derived


def _steps_by_symbol(
    prepared: PreparedRecording,
    new_facts: NewFacts,
    changes: Sequence[TradeChange],
) -> dict[str, list[Step]]:
    steps: dict[str, list[Step]] = defaultdict(list)
    for change in changes:
        steps[change.after.symbol].append((change.event_number, change))
    for number, event in enumerate(prepared.events):
        if event.kind is EventKind.POSITION:
            steps[event.symbol or ""].append((number, event))
    for fact in new_facts.facts.get(None, ()):
        if fact.kind is FactKind.FEE:
            number = new_facts.numbers[None, fact.key]
            event = prepared.events[number]
            steps[event.symbol or ""].append((number, event))
    return steps


async def _book_positions(
    tx: StatementRunner,
    account_ref: AccountRef,
    index: LedgerIndex,
    steps: Mapping[str, Sequence[Step]],
) -> list[PositionChange]:
    """The changed positions. A report of quantity 0 makes no position of a symbol that was never
    held or traded."""
    booked = []
    for symbol, of_symbol in sorted(steps.items()):
        row = unbooked(account_ref, symbol)
        row = index.positions.get(AccountName(row.account_id, symbol), row)
        is_new = row.received_at is None
        if is_new and not any(
            isinstance(step, TradeChange) or step.quantity for _, step in of_symbol
        ):
            continue
        after = await _book_symbol(tx, index.now, row, of_symbol)
        if is_new or after != row:
            booked.append(position_change(row, after, index.now))
    return booked


def unbooked(account_ref: AccountRef, symbol: str) -> PositionRow:
    account_id, organization_id = account_ref.id_texts
    return PositionRow(account_id=account_id, organization_id=organization_id, symbol=symbol)


async def _book_symbol(
    tx: StatementRunner, now: datetime, row: PositionRow, steps: Sequence[Step]
) -> PositionRow:
    trades = []
    for _, step in sorted(steps, key=lambda each: each[0]):
        if isinstance(step, BrokerEvent):
            row = book_event(row, step, now)
            continue
        trades.append(step)
        if step.before is None:
            row = book_trades(row, (step.after.as_booking(),))
    if any(change.is_rebooked for change in trades):
        row = with_difference(await sum_trades(tx, reopen(row), trades))
    is_reported = len(trades) < len(steps)
    if row.differs and is_reported and await _is_outdated(tx, now, row, trades):
        row = replace(row, differs=False)
    return row


async def _is_outdated(
    tx: StatementRunner, now: datetime, row: PositionRow, trades: Sequence[TradeChange]
) -> bool:
    """Whether the report has a quantity that we held before recent fills. Only asked where the two
    differ."""
    (reply,) = await tx.run([ledger.read_bookings(row, MAX_OVERTAKING_FILLS, direction="DESC")])
    since = now - REPORT_AGE
    recent = [change.after.as_booking() for change in reversed(trades) if change.before is None]
    for trade in ledger.parse_bookings(reply):
        if trade.received_at >= since:
            recent.append(trade.as_booking())
    return was_held(row.broker_quantity, row.quantity, recent)


async def sum_trades(
    tx: StatementRunner, row: PositionRow, changes: Sequence[TradeChange] = ()
) -> PositionRow:
    """Sums the position up from its opening and its trades, in the order of booking, with their
    current numbers; then all fees that were taken in the symbol itself, which count in no day's
    result again."""
    numbers = {change.after.trade_id: change.after for change in changes if change.before}
    fee_quantity = row.fee_quantity
    row = replace(row, fee_quantity=ZERO)
    after = 0
    more = True
    while more:
        (reply,) = await tx.run([ledger.read_bookings(row, REBOOK_PAGE, after)])
        trades = ledger.parse_bookings(reply)
        row = from_trades(
            (numbers.get(trade.trade_id, trade).as_booking() for trade in trades), row
        )
        more = len(trades) == REBOOK_PAGE
        after = trades[-1].booking if trades else 0
    row = from_trades((change.after.as_booking() for change in changes if not change.before), row)
    return take_fee(row, fee_quantity, LONG_AGO) if fee_quantity else row
