"""Opening positions: what an account held at its broker before our first trade. The first snapshot that tells positions
sets them, once for all symbols: a later report of a new symbol may be of a fill that is still on its way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from trading_intents.amounts import ZERO, exact, normalized
from trading_intents.brokers.port import AccountSnapshot, BrokerEvent, EventKind
from trading_intents.brokers.sanitizing import sanitize
from trading_intents.execution.sessions import store
from trading_intents.orders import store as orders_store
from trading_intents.orders.events import day_of, position_event
from trading_intents.orders.ledger.matching import AccountRef
from trading_intents.orders.ledger.recording import sum_trades
from trading_intents.orders.ledger.store import PositionKey
from trading_intents.orders.ledger.writes import write_positions
from trading_intents.orders.positions import opening, position_columns
from trading_intents.storage.database import Row, Tx
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.stream import log as stream_log
from trading_intents.trading import Symbol


@dataclass(frozen=True, slots=True)
class Opening:
    symbol: str
    quantity: Decimal


async def complete_reports(tx: Tx, account_ref: AccountRef, snapshot: AccountSnapshot) -> list[BrokerEvent]:
    """What the snapshot says of every position; a symbol that we hold and that it leaves out is 0."""
    reports = list(snapshot.positions or ())
    if snapshot.positions is None:
        return reports
    reported = {event.symbol for event in sanitize(reports)[0]}
    return reports + [
        BrokerEvent(
            kind=EventKind.POSITION,
            dedupe_key=f"left-out:{snapshot.taken_at.isoformat()}:{symbol}",
            symbol=Symbol(symbol),
            quantity=ZERO,
        )
        for symbol in await store.held_symbols(tx, account_ref.account_id)
        if symbol not in reported
    ]


async def open_positions(tx: Tx, account_ref: AccountRef, reports: Sequence[BrokerEvent]) -> list[Opening]:
    """The openings that are not 0, written and published; none once the account had them. Executions come first."""
    if not await store.claim_openings(tx, account_ref.account_id, account_ref.organization_id):
        return []
    by_symbol = {event.symbol: event for event in sanitize(reports)[0]}
    rows: list[Row] = []
    for row in await orders_store.lock_positions(
        tx, account_ref.account_id, account_ref.organization_id, *_symbols(by_symbol.values())
    ):
        report = by_symbol[row["symbol"]]
        assert report.quantity is not None
        with exact():
            quantity = normalized(report.quantity - row["quantity"])
        if quantity:
            place = PositionKey(account_ref.account_id, row["symbol"])
            position = await sum_trades(PoolTransaction(tx), place, opening(quantity, report.average_price))
            account = {"environment": account_ref.environment, "broker": account_ref.broker}
            rows.append({**row, **position_columns(position), **account, "received_at": row["now"]})
    if rows:
        await PoolTransaction(tx).run([write_positions(rows)])
        await stream_log.append(tx, [position_event(row, day_of(row["now"])) for row in rows])
    return [Opening(row["symbol"], row["opening_quantity"]) for row in rows]


def _symbols(reports: Iterable[BrokerEvent]) -> tuple[list[str], list[str]]:
    """Those with a quantity, and those without: of these only what we have a position of is looked at."""
    held = {str(event.symbol) for event in reports if event.quantity}
    return sorted(held), sorted({str(event.symbol) for event in reports} - held)
