"""Opening positions: what an account held at its broker before our first trade. Only the first
snapshot with positions sets them: a later report of a symbol may be of a fill on its way."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace

from trading_intents.accounts.store import lock_account
from trading_intents.brokers.port import AccountSnapshot, BrokerEvent, EventKind
from trading_intents.brokers.sanitizing import sanitize
from trading_intents.controls.limits.service import count_opening
from trading_intents.controls.limits.state.losses import result_of
from trading_intents.execution.sessions import store
from trading_intents.orders.events import day_of, position_event
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.orders.ledger.prices import newest_prices, reported_prices
from trading_intents.orders.ledger.recording import sum_trades, unbooked
from trading_intents.orders.ledger.writes import write_holdings
from trading_intents.orders.positions import (
    NOTHING_OPEN,
    NetPosition,
    PositionRow,
    opening,
    reopen,
)
from trading_intents.orders.store import HELD, UNCOSTED, find_positions
from trading_intents.prices import store as prices_store
from trading_intents.prices.model import PriceKey, PriceRules, StoredPrices, market_of
from trading_intents.storage.administration import read_clock
from trading_intents.storage.database import Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.stream import log as stream_log
from trading_intents.trading import ZERO, Symbol, exact, normalized


async def complete_reports(
    tx: Tx, account_ref: AccountRef, snapshot: AccountSnapshot
) -> list[BrokerEvent]:
    """The snapshot's report of every position; a symbol that we hold and that it leaves out is
    0."""
    reports = list(snapshot.positions or ())
    if snapshot.positions is None:
        return reports
    reported = {event.symbol for event in sanitize(reports)[0]}
    for symbol in await _positions(tx, account_ref, HELD):
        if symbol not in reported:
            left_out = BrokerEvent(
                kind=EventKind.POSITION,
                dedupe_key=f"left-out:{snapshot.taken_at.isoformat()}:{symbol}",
                symbol=Symbol(symbol),
                quantity=ZERO,
            )
            reports.append(left_out)
    return reports


async def open_positions(
    tx: Tx, account_ref: AccountRef, reports: Sequence[BrokerEvent], rules: PriceRules
) -> list[PositionRow]:
    """Positions with an opening that is not 0, written and published; none once the account had
    them. Executions come first.

    An opening costs the broker's average price, else the symbol's reference price. What it made by
    then is no result of today. The reported prices are written first, as today's result is judged
    by them from now on."""
    account_id = account_ref.account_id
    organization_id = account_ref.organization_id
    if not await store.claim_openings(tx, account_id, organization_id):
        return []
    # As a change of its limits does, which comes before or after.
    await lock_account(tx, organization_id, account_id)
    by_symbol = {str(event.symbol): event for event in sanitize(reports)[0]}
    now = await read_clock(tx)
    if reported := reported_prices(account_ref, (), by_symbol.values(), now):
        newest = newest_prices((account_ref, price) for price in reported)
        await PoolTransaction(tx).run([prices_store.write_prices(newest)])
    known = await _known_prices(tx, account_ref, by_symbol)
    present = await _positions(tx, account_ref)
    rows: list[PositionRow] = []
    made_before = ZERO
    for symbol, report in sorted(by_symbol.items()):
        prices = known[symbol]
        row = present.get(symbol) or unbooked(account_ref, symbol)
        assert report.quantity is not None
        with exact():
            quantity = normalized(report.quantity - row.quantity)
        if not quantity:
            continue
        cost = rules.pick(prices)
        last = rules.pick_last(prices)
        price = cost.price if cost and report.average_price is None else report.average_price
        opened = await _reopened(tx, row, opening(quantity, price), now)
        last_price = last.price if last else None
        with exact():
            made_before += result_of(opened, last_price) - result_of(row, last_price)
        rows.append(opened)
    await PoolTransaction(tx).run([write_holdings((row, NOTHING_OPEN) for row in rows)])
    await count_opening(tx, account_id, organization_id, made_before, rules)
    await _publish(tx, account_ref, rows, now)
    return rows


async def cost_openings(tx: Tx, account_ref: AccountRef, rules: PriceRules) -> bool:
    """Gives openings that were set without a cost the symbol's reference price, once one is known.
    One of which a part was closed meanwhile stays as it is: closing it realized nothing. Says
    whether a position changed."""
    uncosted = await _positions(tx, account_ref, UNCOSTED)
    now = await read_clock(tx)
    known = await _known_prices(tx, account_ref, uncosted)
    rows: list[PositionRow] = []
    for symbol, row in uncosted.items():
        if price := rules.pick(known[symbol]):
            start = opening(row.opening_quantity, price.price)
            rows.append(await _reopened(tx, row, start, now))
    await PoolTransaction(tx).run([write_holdings((row, NOTHING_OPEN) for row in rows)])
    await _publish(tx, account_ref, rows, now)
    return bool(rows)


async def _positions(
    tx: Tx, account_ref: AccountRef, condition: str = "true"
) -> dict[str, PositionRow]:
    return await find_positions(tx, account_ref.organization_id, account_ref.account_id, condition)


async def _known_prices(
    tx: Tx, account_ref: AccountRef, symbols: Iterable[str]
) -> dict[str, StoredPrices]:
    market = market_of(account_ref.broker, account_ref.environment)
    keys = [PriceKey(account_ref.organization_id, market, Symbol(symbol)) for symbol in symbols]
    found = await prices_store.find_prices(tx, keys)
    return {key.symbol: prices for key, prices in found.items()}


async def _reopened(tx: Tx, row: PositionRow, start: NetPosition, now: datetime) -> PositionRow:
    """The position's row, summed up again from that opening."""
    summed = await sum_trades(PoolTransaction(tx), reopen(row, start))
    return replace(summed, received_at=now, revision=row.revision + 1)


async def _publish(
    tx: Tx, account_ref: AccountRef, rows: Sequence[PositionRow], now: datetime
) -> None:
    day = day_of(now)
    events = [position_event(row, account_ref.environment, account_ref.broker, day) for row in rows]
    if events:
        await stream_log.append(tx, events)
