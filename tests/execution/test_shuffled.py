"""Reports in any order, in any batches and however often repeated make the same rows."""

import random
from typing import Any

from tests.conftest import Urls
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.recorded_orders import Books, Sent, fill, open_books, reported
from trading_intents.brokers.port import BrokerEvent
from trading_intents.brokers.port import EventKind as E
from trading_intents.intents.model import Replace, Spec
from trading_intents.storage.database import Database
from trading_intents.trading import OrderKind

SHUFFLES = 16
# Columns about when rather than what. `flags` may say more: that something came late. What is counted
# of an order is by the symbol's price when it was accepted.
MOMENTS = {"version", "received_at", "created_at", "updated_at", "finished_at", "flags"}
MOMENTS |= {"counted_notional", "revision"}  # by a price as it was then; by the batches
IDS = {"order_id", "account_id", "trade_id", "client_order_id"}


async def history(books: Books, account: int) -> tuple[list[Sent], list[BrokerEvent]]:
    """Two orders, one of them replaced, busted and corrected, the other cancelled after a missed
    fill."""
    first = await books.create("100", limit="10", account=account)
    second = await books.create("50", account=account, symbol="MSFT")
    await books.record(reported(E.ACCEPTED, first, "a1"), account=account)
    replaced = await books.submit(
        Replace(
            str(first.order_id),
            Spec(
                kind=OrderKind.LIMIT,
                quantity="90",
                limit_price="11",
                stop_price=None,
                trail_amount=None,
            ),
        ),
        account,
    )
    events = [
        reported(E.ACCEPTED, first, "a1"),
        fill(first, "e1", "10", "9.5", cum_quantity="10", at=1, fee="0.1"),
        fill(first, "e2", "20", "9.7", cum_quantity="30", at=2),
        reported(
            E.REPLACED, replaced, "r1", 3, replaces=first.client_order_id, broker_order_id="b2"
        ),
        fill(replaced, "e3", "30", "9.9", cum_quantity="60", at=4),
        reported(E.FILL_BUST, first, "k1", 5, replaces="e1"),
        reported(
            E.FILL_CORRECT, first, "k2", 6, exec_id="e2c", replaces="e2", quantity="20", price="9.6"
        ),
        fill(replaced, "e4", "40", "10", at=7),
        reported(E.ACCEPTED, second, "a2", broker_order_id="b3"),
        fill(second, "m1", "5", "300", cum_quantity="5", at=1),
        fill(second, "m3", "5", "302", cum_quantity="15", at=3),
        fill(second, "m2", "5", "301", cum_quantity="10", at=2),
        reported(E.CANCELLED, second, "x2", 4, cum_quantity="15", reason="user"),
        fill(None, "other", "1", client_order_id="NOTOURS", broker_order_id="b7"),
    ]
    return [first, second], events


async def rows(books: Books, orders: list[Sent], account: int) -> dict[str, Any]:
    def plain(row: dict[str, Any], without: set[str]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in without}

    found: dict[str, Any] = {}
    for index, sent in enumerate(orders):
        found[f"order {index}"] = plain(await books.order(sent), MOMENTS | IDS)
        live = {name: row for name, row in (await books.trades(sent)).items() if row["quantity"]}
        found[f"trades {index}"] = {
            name: plain(row, MOMENTS | IDS | {"seq", "booking", "is_retold"})
            | {"flags": row["flags"]}
            for name, row in live.items()
        }
    for symbol in ("AAPL", "MSFT"):
        found[symbol] = plain(await books.position(symbol, account), MOMENTS | IDS)
    return found


async def test_no_shuffle_changes_the_rows(urls: Urls, database: Database) -> None:
    async with open_books(urls, database, SHUFFLES + 1) as books:
        orders, events = await history(books, 0)
        await books.record(*events, account=0)
        expected = await rows(books, orders, 0)
        assert (expected["order 0"]["order_status"], expected["order 0"]["filled_quantity"]) == (
            "FILLED",
            90,
        )
        assert (expected["order 1"]["order_status"], expected["order 1"]["filled_quantity"]) == (
            "CANCELLED",
            15,
        )
        for account in range(1, SHUFFLES + 1):
            chance = random.Random(account)
            orders, events = await history(books, account)
            mixed = [*events, *chance.choices(events, k=6)]
            chance.shuffle(mixed)
            while mixed:
                size = chance.randrange(1, 7)
                await books.record(*mixed[:size], account=account)
                mixed = mixed[size:]
            assert await rows(books, orders, account) == expected, f"shuffle {account}"
        assert await assert_true_books(database) == 2 * (SHUFFLES + 1)
