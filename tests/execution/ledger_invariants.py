"""Whether the books are true: what orders, trades and positions say is what the facts make of them,
for everyone."""

from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

from msgspec.structs import replace

from trading_intents.execution.checking.invariants import Findings, find_broken
from trading_intents.ids import id_text
from trading_intents.orders import store
from trading_intents.orders.facts import LONG_AGO
from trading_intents.orders.ledger.booking import history_of
from trading_intents.orders.ledger.matching import LedgerIndex
from trading_intents.orders.ledger.store import (
    ConcernedNames,
    parse_histories,
    parse_ledger,
    read_actions,
    read_ledger,
)
from trading_intents.orders.linked import derive_group, uncovered
from trading_intents.orders.model import OrderFlag, OrderView
from trading_intents.orders.positions import (
    NetPosition,
    SummedOrder,
    from_trades,
    open_sums,
    opening,
    take_fee,
)
from trading_intents.orders.store import BookedTrade, OrderHistory
from trading_intents.storage.database import Database
from trading_intents.storage.grouped import PoolTransaction
from trading_intents.trading import ZERO, OrderSide, exact, quotient, total

PAGE_ORDERS = 500
LIMIT_SECONDS = 30.0


async def assert_true_books(database: Database, bust_reopens: bool = True) -> int:
    """Fails unless all orders, their trades and the positions are consistent. Gives the number of
    orders."""
    orders = 0
    after = UUID(int=0)
    while groups := await _page(database, after):
        for group in groups:
            assert_true_group(group, bust_reopens)
        orders += sum(map(len, groups))
        after = UUID(groups[-1][0].row.order_id)
    await _assert_true_positions(database)
    await assert_nothing_broken(database)
    return orders


async def assert_nothing_broken(database: Database) -> None:
    """Fails unless all that the platform itself checks is true of all accounts."""
    async with database.worker.transaction(read_only=True, plans="fresh") as tx:
        accounts = await tx.fetchval("SELECT ARRAY (SELECT account_id FROM account_heads)")
        assert await find_broken(tx, accounts) == Findings([], [])


async def _page(database: Database, after: UUID) -> list[list[OrderHistory]]:
    """Each order, with its legs behind it."""
    async with database.worker.transaction(isolation="repeatable read") as tx:
        rows = await tx.fetch(
            """
                SELECT order_id FROM orders WHERE order_id > $1 AND leg IS NULL ORDER BY order_id
                LIMIT $2
            """,
            after,
            PAGE_ORDERS,
        )
        order_ids = [id_text(row["order_id"]) for row in rows]
        names = ConcernedNames(set(order_ids), set(), set(), set(), set())
        runner = PoolTransaction(tx)
        index = LedgerIndex(parse_ledger(await runner.run(read_ledger(names))))
        [actions] = await runner.run([read_actions(index.heads)])
        histories = parse_histories(actions, index.heads)
        return [[histories[name] for name in index.group_of(each)] for each in order_ids]


def assert_true_group(group: Sequence[OrderHistory], bust_reopens: bool = True) -> None:
    views = derive_group([history_of(book, bust_reopens) for book in group])
    assert all(book.row.linked == (len(group) > 1) for book in group)
    for book, seen in zip(group, views, strict=True):
        _assert_true_order(book, seen)
    entry = group[0].row
    assert entry.uncovered_since is None or uncovered(views), entry
    assert OrderFlag.UNPROTECTED not in entry.flags, entry


def _assert_true_order(book: OrderHistory, seen: OrderView) -> None:
    row = book.row
    name = f"order {book.row.order_id}"
    is_replaced = len(history_of(book)[0].versions) > 1
    # A REPLACE that is confirmed once the order is over no longer changes what it shows, nor does
    # the end of an entry what a leg shows that had ended.
    if seen.state == "OPEN" or row.flags or not (is_replaced or row.leg):
        assert {field: getattr(row, field) for field in SHOWN} == _shown(seen), name
        assert row.active == seen.active, name
    assert row.filled_quantity == seen.filled_quantity, name
    assert set(row.flags) >= set(seen.flags), name
    assert (row.finished_at is None) == (seen.state == "OPEN"), name
    assert row.cancel_requested == bool(seen.pending.cancels), name
    assert (row.pending_replace_seq is None) == (seen.pending.replace is None), name
    live = [trade for trade in book.trades if trade.quantity]
    assert total(trade.quantity for trade in live) == row.filled_quantity, name
    assert row.average_price == _average(live), name
    derived = {trade.exec_id: (trade.quantity, trade.price, trade.fee) for trade in seen.trades}
    assert {trade.exec_id: (trade.quantity, trade.price, trade.fee) for trade in live} == derived, (
        name
    )
    assert all(trade.seq > 0 for trade in book.trades), name


SHOWN = (
    "order_status",
    "command_seq",
    "quantity",
    "limit_price",
    "stop_price",
    "time_in_force",
    "filled_quantity",
    "average_price",
    "external_order_id",
    "reason",
)


def _shown(seen: OrderView) -> dict[str, object]:
    values = (
        seen.status,
        seen.confirmed.seq,
        seen.quantity,
        seen.confirmed.limit_price,
        seen.confirmed.stop_price,
        seen.confirmed.time_in_force,
        seen.filled_quantity,
        seen.average_price,
        seen.broker_order_id,
        seen.reason,
    )
    return dict(zip(SHOWN, values, strict=True))


def _average(trades: Sequence[store.TradeRow]) -> Decimal | None:
    filled = total(trade.quantity for trade in trades)
    with exact():
        return (
            quotient(total(trade.quantity * trade.price for trade in trades), filled)
            if filled
            else None
        )


async def _assert_true_positions(database: Database) -> None:
    async with database.worker.transaction(read_only=True, isolation="repeatable read") as tx:
        positions = await tx.fetch(
            "SELECT * FROM holdings WHERE received_at IS NOT NULL", timeout=LIMIT_SECONDS
        )
        trades = await tx.fetch("SELECT * FROM trades ORDER BY booking", timeout=LIMIT_SECONDS)
    booked: dict[tuple[UUID, str], list[BookedTrade]] = {}
    for trade in trades:
        booked.setdefault((trade["account_id"], trade["symbol"]), []).append(
            store.parse_row(trade, BookedTrade)
        )
    found = {
        (row["account_id"], row["symbol"]): store.parse_row(row, NetPosition) for row in positions
    }
    assert booked.keys() <= found.keys()
    for key, position in found.items():
        start = opening(position.opening_quantity, position.opening_price)
        summed = from_trades((trade.as_booking() for trade in booked.get(key, ())), start)
        if position.fee_quantity:  # which a sum books last, and in no day's result
            summed = take_fee(summed, position.fee_quantity, LONG_AGO)
            position, summed = (
                replace(each, day=None, day_pnl=ZERO) for each in (position, summed)
            )
        assert position == summed, key
        _assert_money_adds_up(position)


async def assert_true_exposures(database: Database) -> None:
    """Fails unless the counts of open orders equal the orders, whether an account has limits or
    not."""
    async with database.worker.transaction(read_only=True, isolation="repeatable read") as tx:
        kept = await tx.fetch(
            "SELECT account_id, symbol, open_orders, open_buy, open_sell FROM holdings"
            " WHERE (open_orders, open_buy, open_sell) IS DISTINCT FROM (0, 0, 0)"
        )
        orders = await tx.fetch(
            """
            SELECT o.account_id, o.symbol, o.order_side, o.active,
                coalesce(o.parent_order_id, o.order_id)::text AS linked,
                greatest(o.quantity, (a.record::json ->> 'quantity')::numeric) - o.filled_quantity
                    AS unfilled
            FROM orders o LEFT JOIN actions a ON a.account_id = o.account_id
                AND a.seq = o.pending_replace_seq
            WHERE o.finished_at IS NULL
            """
        )
    open_orders: dict[tuple[UUID, str], list[SummedOrder]] = {}
    for row in orders:
        seen = SummedOrder(
            row["linked"], OrderSide(row["order_side"]), max(row["unfilled"], ZERO), row["active"]
        )
        open_orders.setdefault((row["account_id"], row["symbol"]), []).append(seen)
    expected = {key: tuple(open_sums(own)) for key, own in open_orders.items()}
    assert {(row["account_id"], row["symbol"]): tuple(row.values())[2:] for row in kept} == expected


def _assert_money_adds_up(position: NetPosition) -> None:
    with exact():
        sums = (
            position.value_sold
            - position.value_bought
            + position.open_cost
            - position.opening_cost
            - position.fees
        )
        assert position.realized_pnl == sums
        assert position.quantity or position.open_cost == ZERO
