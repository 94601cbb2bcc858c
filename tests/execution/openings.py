"""Positions as a broker reports them, and orders that are filled."""

from decimal import Decimal
from typing import Any
from uuid import UUID

from tests.execution.in_process_execution import InProcessExecution
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.execution.service import Execution
from trading_intents.trading import Symbol

D = Decimal


def report(symbol: str, quantity: str, key: str, price: str | None = None) -> BrokerEvent:
    return BrokerEvent(
        kind=EventKind.POSITION,
        dedupe_key=key,
        symbol=Symbol(symbol),
        quantity=D(quantity),
        average_price=None if price is None else D(price),
    )


def up(in_process: InProcessExecution, execution: Execution) -> bool:
    session = execution.leases.sessions.get(in_process.account)
    return session is not None and session.is_up


async def reconcile(in_process: InProcessExecution) -> None:
    """The broker's snapshot is read once more, and written."""
    before = in_process.venue.snapshots
    in_process.venue.leave_gap()
    await in_process.until_true(lambda: in_process.venue.snapshots > before)


async def position(in_process: InProcessExecution, symbol: str = "AAPL") -> Any:
    query = "SELECT * FROM holdings WHERE account_id = $1 AND symbol = $2"
    return await in_process.in_process_writer.owner.fetchrow(query, in_process.account, symbol)


async def until_position(in_process: InProcessExecution, symbol: str, **expected: object) -> None:
    async def reached() -> bool:
        row = await position(in_process, symbol)
        return row is not None and {name: row[name] for name in expected} == expected

    await in_process.until(reached)


async def fill_order(
    in_process: InProcessExecution, quantity: str = "10", symbol: str = "AAPL", price: str = "100"
) -> UUID:
    intent = await in_process.create(quantity, symbol)
    await in_process.until_status(intent, "NEW")
    in_process.fill(await in_process.coid(intent), quantity, price)
    await in_process.until_status(intent, "FILLED")
    return intent


async def put_price(in_process: InProcessExecution, symbol: str, price: str) -> None:
    await in_process.in_process_writer.owner.execute(
        """
        INSERT INTO reference_prices (organization_id, environment, symbol, price, source, as_of)
        SELECT organization_id, environment, $2, $3, 'posted', clock_timestamp() FROM accounts
        WHERE id = $1
        """,
        in_process.account,
        symbol,
        D(price),
    )
