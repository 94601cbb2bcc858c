"""Turns broker events and the platform's own facts into orders, trades, positions and stream
events, in the caller's transaction. Never talks to a broker; orders/model.py decides what an order
is."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from trading_intents.balances import store as balances_store
from trading_intents.balances.model import AccountBalance, balance_event
from trading_intents.brokers.port import BrokerEvent, CommandResult, EventKind
from trading_intents.ids import IdText
from trading_intents.loops import Pacer
from trading_intents.orders.events import day_of, order_event, position_event, trade_event
from trading_intents.orders.facts import LONG_AGO, CommandKind, Fact, FactKind, outcome_kind
from trading_intents.orders.ledger import booking, matching
from trading_intents.orders.ledger import store as ledger
from trading_intents.orders.ledger import writes as written
from trading_intents.orders.ledger.prices import newest_prices, reported_prices
from trading_intents.orders.ledger.store import AccountName, parse_ledger, read_ledger
from trading_intents.orders.positions import PositionRow, from_trades, reopen, take_fee
from trading_intents.prices import store as prices_store
from trading_intents.prices.model import ReferencePrice
from trading_intents.stats import store as stats_store
from trading_intents.storage.grouped import StatementRunner
from trading_intents.storage.pipeline import Reply, Statement
from trading_intents.stream import log as stream_log
from trading_intents.stream.model import Event
from trading_intents.trading import ZERO, FrozenStruct

REBOOK_PAGE = 1_000
# A snapshot takes up to 10 s, and commands and the stream go on meanwhile.
REPORT_AGE = timedelta(seconds=15)
MAX_OVERTAKING_FILLS = 20_000  # in REPORT_AGE


class RecordedAccount(FrozenStruct, frozen=True, kw_only=True):
    """The result of a recording: orders with a new fact, or that were locked beside."""

    account_ref: matching.AccountRef
    new_facts: matching.NewFacts
    orders: Mapping[IdText, booking.SettledOrder]
    # Open again, though they had ended, and entries of such legs: they are looked up.
    resurrected: tuple[UUID, ...]
    trades: Sequence[booking.TradeChange]  # as they are booked
    positions: Sequence[booking.PositionChange]
    # To be published, with the trade that each reports.
    events: Sequence[tuple[Event, IdText | None]]
    cancelled: frozenset[IdText]  # of those that were locked beside: a CANCEL was asked for
    left_out: tuple[str, ...]  # keys of events that mean nothing
    prices: tuple[ReferencePrice, ...]  # that were reported
    balance: AccountBalance | None
    # Reported under a key or execution id of something else: lost.
    conflicts: tuple[tuple[Fact, IdText | None], ...]


def answer_facts(
    order_id: UUID, command: CommandKind, client_order_id: str, result: CommandResult
) -> tuple[matching.PlatformFact, ...]:
    """The fact of a command's outcome itself, if it has one. Its updates are events, which `record`
    takes beside it."""
    kind = outcome_kind(command, result)
    if kind is None:
        return ()
    has_reason = kind not in (FactKind.ACCEPTED, FactKind.CANCEL_REJECTED)
    reason = result.code or result.message if has_reason else None
    return (
        matching.PlatformFact(
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
    recordings: Sequence[matching.AccountRecording],
    also: Sequence[Statement] = (),
    before: Sequence[Statement] = (),
) -> tuple[list[RecordedAccount], list[Reply]]:
    """One of each account. Locks the orders concerned by id, then positions by account and symbol,
    and runs what is to be read `also` under these locks; then says what changes. What was seen
    before changes nothing.

    `write_statements` are to be run next, `publish_statements` last before the commit.
    """
    prepared = [matching.prepare(each) for each in recordings]
    reads = read_ledger(matching.concerned_names(prepared))
    replies = (await tx.run([*before, *reads, *also]))[len(before) :]
    count = len(reads)
    index = matching.LedgerIndex(parse_ledger(replies[:count]))
    pacer = Pacer()
    return [await _book(tx, each, index, pacer) for each in prepared], replies[count:]


async def _book(
    tx: StatementRunner,
    prepared: matching.PreparedRecording,
    index: matching.LedgerIndex,
    pacer: Pacer,
) -> RecordedAccount:
    account_ref = prepared.account_ref
    new_facts = matching.find_new_facts(prepared, index)
    settled = await _settle(prepared, new_facts, index, pacer)
    changes = sorted(
        (change for each in settled for change in each.trades),
        key=lambda change: change.event_number,
    )
    reports = [
        (number, event)
        for number, event in enumerate(prepared.events)
        if event.kind is EventKind.POSITION
    ]
    fees = [
        (number, prepared.events[number])
        for number, fact in prepared.event_facts.items()
        if fact.kind is FactKind.FEE
        and fact.key in new_facts.facts
        and new_facts.numbers[fact.key] == number
    ]
    positions = await _book_positions(tx, account_ref, index, changes, [*reports, *fees])
    balance = matching.account_balance(account_ref, prepared.balance, index.now)
    return RecordedAccount(
        account_ref=account_ref,
        new_facts=new_facts,
        orders={each.row.order_id: each for each in settled},
        resurrected=tuple(dict.fromkeys(map(UUID, _resurrected(settled)))),
        trades=changes,
        positions=positions,
        events=await _collect_events(
            account_ref=account_ref,
            settled=settled,
            positions=positions,
            balance=balance,
            now=index.now,
            pacer=pacer,
        ),
        cancelled=frozenset(
            each for each in prepared.also_locked if index.histories[each].row.cancel_requested
        ),
        left_out=prepared.left_out,
        prices=reported_prices(account_ref, changes, (event for _, event in reports), index.now),
        balance=balance,
        conflicts=(
            *new_facts.conflicts,
            *((fact, each.row.order_id) for each in settled for fact in each.conflicts),
        ),
    )


def _resurrected(settled: Sequence[booking.SettledOrder]) -> Iterator[IdText]:
    for each in settled:
        if each.resurrected:
            yield each.row.order_id
            if each.row.parent_order_id:
                yield each.row.parent_order_id


def write_statements(recorded: Sequence[RecordedAccount]) -> list[Statement]:
    """Writes facts, the commands' broker ids, orders, positions and balances of all accounts."""
    facts: list[tuple[IdText, IdText, IdText | None, Fact]] = []
    matched: dict[AccountName, IdText] = {}
    named: dict[AccountName, str] = {}
    for each in recorded:
        account_id, organization_id = each.account_ref.id_texts
        new = each.new_facts
        facts += [
            (account_id, organization_id, order_id, fact) for fact, order_id in new.facts.values()
        ]
        matched |= {AccountName(account_id, key): owner for key, (_, owner) in new.adopted.items()}
        named |= {
            AccountName(account_id, client_id): broker_id
            for client_id, broker_id in new.named.items()
        }
    orders = [order.row for each in recorded for order in each.orders.values() if order.written]
    positions = [change for each in recorded for change in each.positions]
    balances = [each.balance for each in recorded if each.balance]
    return [
        *([written.insert_facts(facts)] if facts else ()),
        *([written.match_facts(matched)] if matched else ()),
        *([written.name_commands(named)] if named else ()),
        *([written.write_orders(orders)] if orders else ()),
        *(
            [written.insert_positions(made)]
            if (made := [each.row for each in positions if each.is_new])
            else ()
        ),
        *(
            [written.write_positions(kept)]
            if (kept := [each.row for each in positions if not each.is_new])
            else ()
        ),
        *([balances_store.write_balances(balances)] if balances else ()),
    ]


def publish_statements(recorded: Sequence[RecordedAccount]) -> list[Statement]:
    """The last statements before the commit: stats, reference prices and exposures, then the
    organizations' stream heads, and the trades by their seqs."""
    orders = [order for each in recorded for order in each.orders.values()]
    entries = [entry for order in orders for entry in order.entries]
    prices = newest_prices((each.account_ref, price) for each in recorded for price in each.prices)
    exposures = [order.exposure for order in orders if order.exposure]
    events = [event for each in recorded for event, _ in each.events]
    left = Counter(event.organization_id for event in events)
    # How far the events of trades are below their organizations' new heads.
    below: dict[IdText, int] = {}
    for event, trade_id in (pair for each in recorded for pair in each.events):
        left[event.organization_id] -= 1
        if trade_id:
            below[trade_id] = left[event.organization_id]
    trades = [
        (change.after, below.get(change.after.trade_id))
        for each in recorded
        for change in each.trades
    ]
    return [
        *([stats_store.insert_entries(entries)] if entries else ()),
        *([prices_store.write_prices(prices)] if prices else ()),
        *([written.change_exposures(exposures)] if exposures else ()),
        *([stream_log.appending(events)] if events else ()),
        *([written.write_trades(trades)] if trades else ()),
    ]


async def _collect_events(
    account_ref: matching.AccountRef,
    settled: Sequence[booking.SettledOrder],
    positions: Sequence[booking.PositionChange],
    balance: AccountBalance | None,
    now: datetime,
    pacer: Pacer,
) -> list[tuple[Event, IdText | None]]:
    """The stream events of orders, trades, positions and the balance, with the trade that each
    reports."""
    events: list[tuple[Event, IdText | None]] = []
    for each in settled:
        await pacer.pause_if_due()
        if each.visible:
            events.append((order_event(each.row), None))
        for change in sorted(each.trades, key=lambda change: change.event_number):
            if change.is_published:
                events.append((trade_event(each.row, change.after), change.after.trade_id))
    account = account_ref.environment, account_ref.broker
    events += [
        (position_event(each.row, *account, day_of(now)), None)
        for each in positions
        if each.visible
    ]
    return [*events, (balance_event(balance), None)] if balance else events


async def _settle(
    prepared: matching.PreparedRecording,
    new_facts: matching.NewFacts,
    index: matching.LedgerIndex,
    pacer: Pacer,
) -> list[booking.SettledOrder]:
    """Settles each order with its group: what happens to an entry may change its legs."""
    by_order: dict[IdText, list[Fact]] = {order_id: [] for order_id in prepared.also_locked}
    for fact, order_id in (*new_facts.facts.values(), *new_facts.adopted.values()):
        if order_id:
            by_order.setdefault(order_id, []).append(fact)
    for order_id, facts in by_order.items():
        history = index.histories[order_id]
        index.histories[order_id] = replace(history, facts=(*history.facts, *facts))
    new = {fact.key for facts in by_order.values() for fact in facts}
    settled = []
    for entry_id in sorted({index.entry_of(order_id) for order_id in by_order}):
        group = [
            index.histories[order_id] for order_id in (entry_id, *index.legs.get(entry_id, ()))
        ]
        settled += booking.settle(
            group, new, new_facts.numbers, index.now, prepared.account_ref.bust_reopens
        )
        await pacer.pause_if_due()
    return settled


async def _book_positions(
    tx: StatementRunner,
    account_ref: matching.AccountRef,
    index: matching.LedgerIndex,
    changes: Sequence[booking.TradeChange],
    reported: Sequence[tuple[int, BrokerEvent]],
) -> list[booking.PositionChange]:
    """The changed positions. A report of quantity 0 makes no position of a symbol that was never
    held or traded."""
    steps: dict[str, list[tuple[int, booking.TradeChange | BrokerEvent]]] = {}
    for change in changes:
        steps.setdefault(change.after.symbol, []).append((change.event_number, change))
    for number, event in reported:
        steps.setdefault(event.symbol or "", []).append((number, event))
    booked = []
    account_id, organization_id = account_ref.id_texts
    for symbol, of_symbol in sorted(steps.items()):
        row = index.positions.get(AccountName(account_id, symbol))
        is_new = row is None
        if row is None:
            if not any(
                isinstance(step, booking.TradeChange) or step.quantity for _, step in of_symbol
            ):
                continue
            row = PositionRow(
                account_id=account_id,
                organization_id=organization_id,
                symbol=symbol,
                received_at=index.now,
            )
        after = row
        for _, step in sorted(of_symbol, key=lambda each: each[0]):
            if isinstance(step, BrokerEvent):
                after = booking.book_event(after, step, index.now)
            elif step.before is None:
                after = booking.book_trades(after, (step.after.as_booking(),))
        trades = [step for _, step in of_symbol if isinstance(step, booking.TradeChange)]
        if any(change.is_rebooked for change in trades):
            after = booking.with_difference(await sum_trades(tx, reopen(after), trades))
        if (
            after.differs
            and len(trades) < len(of_symbol)
            and await _is_outdated(tx, index.now, after, trades)
        ):
            after = replace(after, differs=False)
        if after != row or is_new:
            booked.append(booking.position_change(row, after, is_new, index.now))
    return booked


async def _is_outdated(
    tx: StatementRunner, now: datetime, row: PositionRow, trades: Sequence[booking.TradeChange]
) -> bool:
    """Whether the report has a quantity that we held before recent fills. Only asked where the two
    differ."""
    (reply,) = await tx.run([ledger.read_bookings(row, MAX_OVERTAKING_FILLS, direction="DESC")])
    since = now - REPORT_AGE
    recent = [change.after.as_booking() for change in reversed(trades) if change.before is None]
    recent += [
        trade.as_booking() for trade in ledger.parse_bookings(reply) if trade.received_at >= since
    ]
    return booking.was_held(row.broker_quantity, row.quantity, recent)


async def sum_trades(
    tx: StatementRunner, row: PositionRow, changes: Sequence[booking.TradeChange] = ()
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
