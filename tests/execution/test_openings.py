"""What an account held before us, by its broker's first snapshot; and fills that are on their way meanwhile."""

import asyncio
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.conftest import Urls
from tests.execution.in_process_execution import Floor, executing, open_floor
from tests.execution.ledger_invariants import assert_true_books
from trading_intents.brokers.paper.broker import INTEGRATION
from trading_intents.brokers.paper.quotes import Prices, Quotes
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.execution.service import Execution
from trading_intents.ids import OrganizationId
from trading_intents.intents.model import Create, Spec
from trading_intents.storage.database import Database
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log
from trading_intents.testing.fakes import FakeVenue, VenueOrder
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

pytestmark = pytest.mark.quiet
D = Decimal


def report(symbol: str, quantity: str, key: str, price: str | None = None) -> BrokerEvent:
    return BrokerEvent(
        kind=EventKind.POSITION,
        dedupe_key=key,
        symbol=Symbol(symbol),
        quantity=D(quantity),
        average_price=None if price is None else D(price),
    )


def up(floor: Floor, execution: Execution) -> bool:
    link = execution.leases.links.get(floor.account)
    return link is not None and link.is_up


async def reconcile(floor: Floor) -> None:
    """The broker's snapshot is read once more, and written."""
    before = floor.venue.snapshots
    floor.venue.leave_gap()
    await floor.until_true(lambda: floor.venue.snapshots > before)


async def position(floor: Floor, symbol: str = "AAPL") -> Any:
    query = "SELECT * FROM positions WHERE account_id = $1 AND symbol = $2"
    return await floor.office.owner.fetchrow(query, floor.account, symbol)


async def until_position(floor: Floor, symbol: str, **expected: object) -> None:
    async def reached() -> bool:
        row = await position(floor, symbol)
        return row is not None and {name: row[name] for name in expected} == expected

    await floor.until(reached)


async def fill_order(floor: Floor, quantity: str = "10", symbol: str = "AAPL", price: str = "100") -> UUID:
    intent = await floor.create(quantity, symbol)
    await floor.until_status(intent, "NEW")
    floor.fill(await floor.coid(intent), quantity, price)
    await floor.until_status(intent, "FILLED")
    return intent


async def test_the_first_snapshot_says_what_was_held_before_us(urls: Urls, database: Database) -> None:
    async with open_floor(urls) as floor:
        floor.venue.positions = (report("AAPL", "5", "p1", "90"), report("MSFT", "-3", "p2"), report("IBM", "0", "p3"))
        async with executing(floor):
            await until_position(floor, "MSFT", broker_quantity=D(-3), differs=False)
            await fill_order(floor)
            await until_position(floor, "AAPL", quantity=D(15), opening_quantity=D(5), open_cost=D(1450), differs=False)
            await until_position(floor, "MSFT", quantity=D(-3), uncosted_quantity=D(-3), realized_pnl=D(0))
            assert await position(floor, "IBM") is None
        assert await assert_true_books(database) == 1


async def test_an_account_from_before_openings_gets_them_at_its_next_snapshot(urls: Urls, database: Database) -> None:
    async with open_floor(urls) as floor:
        async with executing(floor):
            intent = await fill_order(floor)
            await fill_order(floor, symbol="MSFT")
            floor.venue.positions = (report("AAPL", "12", "p1", "90"),)
            await reconcile(floor)
            await until_position(floor, "AAPL", quantity=D(12), opening_quantity=D(2), open_cost=D(1180))
            await until_position(floor, "MSFT", quantity=D(0), opening_quantity=D(-10), broker_quantity=D(0))
        events = await floor.office.owner.fetch("SELECT symbol FROM stream_events WHERE kind = 2 ORDER BY seq")
        assert [row["symbol"] for row in events[-2:]] == ["AAPL", "MSFT"]
        # A bust sums up again from the opening.
        floor.venue.positions = (report("AAPL", "2", "p2", "90"),)
        order = floor.venue.orders[await floor.coid(intent)]
        (filled,) = [event for event in order.events if event.kind is EventKind.FILL]
        bust = BrokerEvent(
            kind=EventKind.FILL_BUST,
            dedupe_key="bust",
            client_order_id=filled.client_order_id,
            replaces=filled.exec_id,
        )
        order.over = False
        order.events.append(bust)
        async with executing(floor):
            await until_position(floor, "AAPL", quantity=D(2), opening_quantity=D(2), open_cost=D(180), differs=False)
        await assert_true_books(database)


async def test_an_opening_is_logged(urls: Urls, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_floor(urls) as floor:
        floor.venue.positions = (report("AAPL", "5", "p1"),)
        async with executing(floor, level="warning"):
            await until_position(floor, "AAPL", broker_quantity=D(5))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "position opening" in line]
    assert str(floor.account) in line
    assert '"opening_quantity": "5"' in line or '"opening_quantity":"5"' in line


async def test_a_report_before_its_fill_is_no_opening_and_no_lasting_alarm(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        floor.venue.positions = ()
        async with executing(floor) as execution:
            await floor.until_true(lambda: up(floor, execution))
            intent = await floor.create()
            await floor.until_status(intent, "NEW")
            for link in floor.venue.links:
                link.heard.put_nowait(report("AAPL", "10", "early"))
            await until_position(floor, "AAPL", quantity=D(0), opening_quantity=D(0), differs=True)
            floor.fill(await floor.coid(intent))
            await until_position(floor, "AAPL", quantity=D(10), opening_quantity=D(0), differs=False)


async def test_a_position_that_a_snapshot_leaves_out_is_none_at_the_broker(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        floor.venue.positions = ()
        async with executing(floor) as execution:
            await floor.until_true(lambda: up(floor, execution))
            await fill_order(floor)
            await floor.office.owner.execute("UPDATE trades SET received_at = received_at - interval '1 minute'")
            await reconcile(floor)
            await until_position(floor, "AAPL", quantity=D(10), broker_quantity=D(0), differs=True)


async def test_a_broker_that_tells_no_positions_leaves_ours_alone(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor):
        await fill_order(floor)
        await reconcile(floor)
        await until_position(floor, "AAPL", quantity=D(10), opening_quantity=D(0), broker_quantity=None, differs=False)


async def test_ids_of_open_orders_that_no_database_takes_keep_no_link_down(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        async with executing(floor):
            await floor.until_status(await floor.create(), "NEW")
        for order in floor.venue.orders.values():
            order.number = "odd\0number\ud800"
        somebody_elses = replace(order.ticket, client_order_id="odd\0id\ud800")
        floor.venue.orders["other"] = VenueOrder(floor.account, somebody_elses, "v2")
        async with executing(floor) as execution:
            await floor.until_true(lambda: up(floor, execution))


async def test_symbols_of_a_snapshot_are_read_as_ours_are(urls: Urls) -> None:
    async with open_floor(urls) as floor:
        floor.venue.positions = (report("A\0\x1f\ud800", "5", "p1"), report("msft", "3", "p2"))
        async with executing(floor):
            await until_position(floor, "MSFT", opening_quantity=D(3), broker_quantity=D(3), differs=False)
            floor.venue.positions = (report("msft", "4", "p3"),)
            await reconcile(floor)
            await until_position(floor, "MSFT", quantity=D(3), broker_quantity=D(4), differs=True)
        assert await floor.office.count("positions") == 1


async def buy(floor: Floor, quantity: str, limit: str | None = None) -> UUID:
    spec = Spec(OrderKind.LIMIT if limit else OrderKind.MARKET, quantity, limit, None, None)
    command = Create(Symbol("ACME"), OrderSide.BUY, RouteStrategy.SMART, spec)
    return UUID((await floor.submit(floor.office.command(floor.account, command))).intent_id)


async def test_a_snapshot_between_a_quote_and_its_fill_loses_nothing(urls: Urls) -> None:
    paper = cast(FakeVenue, SimpleNamespace(integration=INTEGRATION))
    async with (
        open_floor(urls, venue=paper) as floor,
        executing(floor) as execution,
        open_signals(urls.login, make_log("critical")) as signals,
    ):
        await floor.until_true(lambda: up(floor, execution))
        quotes = Quotes(floor.office.pool, signals)

        async def post(ask: str) -> None:
            prices = Prices(bid=D(19), ask=D(ask), bid_size=D(100), ask_size=D(100))
            await quotes.post(OrganizationId(floor.office.organization), Symbol("ACME"), prices)

        await post("21")
        await floor.until_status(await buy(floor, "1"), "FILLED")
        resting = await buy(floor, "10", "20")
        await floor.until_status(resting, "NEW")
        link = execution.leases.links[floor.account]
        async with floor.office.owner.transaction():
            # The venue is held up, and matches nothing meanwhile.
            await floor.office.owner.execute("SELECT FROM paper_accounts FOR UPDATE")
            await post("20")  # touches the limit
            for _ in range(5):
                link.breaker.failed(asyncio.get_running_loop().time())  # its recovery takes a snapshot
            link._wakeup.set()
            await until_position(floor, "ACME", quantity=D(1), broker_quantity=D(1))
        await floor.until_status(resting, "FILLED")
        await until_position(floor, "ACME", quantity=D(11), opening_quantity=D(0), broker_quantity=D(1), differs=False)


async def test_a_resting_order_without_a_trade_is_no_position_after_a_restart(urls: Urls) -> None:
    paper = cast(FakeVenue, SimpleNamespace(integration=INTEGRATION))
    async with open_floor(urls, venue=paper) as floor:
        async with executing(floor):
            intent = await buy(floor, "10", "0.01")
            await floor.until_status(intent, "NEW")
        async with executing(floor) as execution:
            await floor.until_true(lambda: up(floor, execution))
            assert await floor.office.count("positions") == 0
