"""Opening positions, by the broker's first snapshot; and fills that are on their way meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.openings import (
    D,
    fill_order,
    position,
    put_price,
    reconcile,
    report,
    until_position,
    up,
)
from tests.fakes import FakeVenue, VenueOrder
from tests.journal import ALL_ROWS, read_messages
from trading_intents.brokers.paper.broker import INTEGRATION
from trading_intents.brokers.paper.model import Prices
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.brokers.port import BrokerEvent, EventKind
from trading_intents.ids import OrganizationId
from trading_intents.intents.model import Create, Spec
from trading_intents.storage.database import Database
from trading_intents.storage.signals import open_signals
from trading_intents.stream.model import EventType
from trading_intents.telemetry import make_log
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol


async def position_symbols(in_process: InProcessExecution) -> list[str]:
    """Of the position's messages in the stream."""
    messages = read_messages(await in_process.in_process_writer.owner.fetch(ALL_ROWS))
    return [each.symbol for each in messages if each.kind == EventType.BROKER_POSITION]


async def test_the_first_snapshot_says_what_was_held_before_us(
    urls: Urls, database: Database
) -> None:
    # Where no price walks.
    async with open_in_process(urls, venue=FakeVenue("other")) as in_process:
        in_process.venue.positions = (
            report("AAPL", "5", "p1", "90"),
            report("MSFT", "-3", "p2"),
            report("IBM", "0", "p3"),
        )
        async with executing(in_process):
            await until_position(in_process, "MSFT", broker_quantity=D(-3), differs=False)
            await fill_order(in_process)
            await until_position(
                in_process,
                "AAPL",
                quantity=D(15),
                opening_quantity=D(5),
                open_cost=D(1450),
                differs=False,
            )
            await until_position(
                in_process, "MSFT", quantity=D(-3), uncosted_quantity=D(-3), realized_pnl=D(0)
            )
            assert await position(in_process, "IBM") is None
        assert await assert_true_books(database) == 1


async def test_an_account_from_before_openings_gets_them_at_its_next_snapshot(
    urls: Urls, database: Database
) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            intent = await fill_order(in_process)
            await fill_order(in_process, symbol="MSFT")
            in_process.venue.positions = (report("AAPL", "12", "p1", "90"),)
            await reconcile(in_process)
            await until_position(
                in_process, "AAPL", quantity=D(12), opening_quantity=D(2), open_cost=D(1180)
            )
            await until_position(
                in_process, "MSFT", quantity=D(0), opening_quantity=D(-10), broker_quantity=D(0)
            )
        assert (await position_symbols(in_process))[-2:] == ["AAPL", "MSFT"]
        # A bust sums up again from the opening.
        in_process.venue.positions = (report("AAPL", "2", "p2", "90"),)
        order = in_process.venue.orders[await in_process.coid(intent)]
        (filled,) = [event for event in order.events if event.kind is EventKind.FILL]
        bust = BrokerEvent(
            kind=EventKind.FILL_BUST,
            dedupe_key="bust",
            client_order_id=filled.client_order_id,
            replaces=filled.exec_id,
        )
        order.over = False
        order.events.append(bust)
        async with executing(in_process):
            await until_position(
                in_process,
                "AAPL",
                quantity=D(2),
                opening_quantity=D(2),
                open_cost=D(180),
                differs=False,
            )
        await assert_true_books(database)


async def test_an_opening_is_logged(urls: Urls, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.positions = (report("AAPL", "5", "p1"),)
        async with executing(in_process, level="warning"):
            await until_position(in_process, "AAPL", broker_quantity=D(5))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "position opening" in line]
    assert str(in_process.account) in line
    assert '"opening_quantity": "5"' in line or '"opening_quantity":"5"' in line


async def test_a_report_before_its_fill_is_no_opening_and_no_lasting_alarm(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.positions = ()
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: up(in_process, execution))
            intent = await in_process.create()
            await in_process.until_status(intent, "NEW")
            for session in in_process.venue.sessions:
                session.received.put_nowait(report("AAPL", "10", "early"))
            await until_position(
                in_process, "AAPL", quantity=D(0), opening_quantity=D(0), differs=True
            )
            in_process.fill(await in_process.coid(intent))
            await until_position(
                in_process, "AAPL", quantity=D(10), opening_quantity=D(0), differs=False
            )


async def test_a_position_that_a_snapshot_leaves_out_is_none_at_the_broker(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.positions = ()
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: up(in_process, execution))
            await fill_order(in_process)
            await in_process.in_process_writer.owner.execute(
                "UPDATE trades SET received_at = received_at - interval '1 minute'"
            )
            await reconcile(in_process)
            await until_position(
                in_process, "AAPL", quantity=D(10), broker_quantity=D(0), differs=True
            )


async def test_a_broker_that_reports_no_positions_leaves_ours_as_they_are(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process):
        await fill_order(in_process)
        await reconcile(in_process)
        await until_position(
            in_process,
            "AAPL",
            quantity=D(10),
            opening_quantity=D(0),
            broker_quantity=None,
            differs=None,
        )


async def test_ids_of_open_orders_that_no_database_takes_keep_no_session_down(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        async with executing(in_process):
            await in_process.until_status(await in_process.create(), "NEW")
        for order in in_process.venue.orders.values():
            order.number = "odd\0number\ud800"
        somebody_elses = replace(order.ticket, client_order_id="odd\0id\ud800")
        in_process.venue.orders["other"] = VenueOrder(
            account_id=in_process.account, ticket=somebody_elses, number="v2"
        )
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: up(in_process, execution))


async def test_symbols_of_a_snapshot_are_read_as_ours_are(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.positions = (report("A\0\x1f\ud800", "5", "p1"), report("msft", "3", "p2"))
        async with executing(in_process):
            await until_position(
                in_process, "MSFT", opening_quantity=D(3), broker_quantity=D(3), differs=False
            )
            in_process.venue.positions = (report("msft", "4", "p3"),)
            await reconcile(in_process)
            await until_position(
                in_process, "MSFT", quantity=D(3), broker_quantity=D(4), differs=True
            )
        assert (
            await in_process.in_process_writer.count("holdings WHERE received_at IS NOT NULL") == 1
        )


async def buy(in_process: InProcessExecution, quantity: str, limit: str | None = None) -> UUID:
    spec = Spec(
        kind=OrderKind.LIMIT if limit else OrderKind.MARKET,
        quantity=quantity,
        limit_price=limit,
        stop_price=None,
        trail_amount=None,
    )
    command = Create(Symbol("ACME"), OrderSide.BUY, RouteStrategy.SMART, spec)
    return UUID(
        (
            await in_process.submit(
                in_process.in_process_writer.command(in_process.account, command)
            )
        ).intent_id
    )


async def test_a_snapshot_between_a_quote_and_its_fill_loses_nothing(urls: Urls) -> None:
    paper = cast(FakeVenue, SimpleNamespace(integration=INTEGRATION))
    async with (
        open_in_process(urls, venue=paper) as in_process,
        executing(in_process) as execution,
        open_signals(urls.login, make_log("critical")) as signals,
    ):
        await in_process.until_true(lambda: up(in_process, execution))
        quotes = Quotes(in_process.in_process_writer.pool, signals, 1)

        async def post(ask: str) -> None:
            prices = Prices(bid=D(19), ask=D(ask), bid_size=D(100), ask_size=D(100))
            await quotes.post(
                OrganizationId(in_process.in_process_writer.organization), Symbol("ACME"), prices
            )

        await post("21")
        await in_process.until_status(await buy(in_process, "1"), "FILLED")
        resting = await buy(in_process, "10", "20")
        await in_process.until_status(resting, "NEW")
        session = execution.leases.sessions[in_process.account]
        async with in_process.in_process_writer.owner.transaction():
            # The venue is held up, and matches nothing meanwhile.
            await in_process.in_process_writer.owner.execute(
                "SELECT FROM paper_accounts FOR UPDATE"
            )
            await post("20")  # touches the limit
            for _ in range(5):
                # Its recovery takes a snapshot.
                session.breaker.failed(asyncio.get_running_loop().time())
            session._wakeup.set()
            await until_position(in_process, "ACME", quantity=D(1), broker_quantity=D(1))
        await in_process.until_status(resting, "FILLED")
        await until_position(
            in_process,
            "ACME",
            quantity=D(11),
            opening_quantity=D(0),
            broker_quantity=D(1),
            differs=False,
        )


async def test_a_resting_order_without_a_trade_is_no_position_after_a_restart(urls: Urls) -> None:
    paper = cast(FakeVenue, SimpleNamespace(integration=INTEGRATION))
    async with open_in_process(urls, venue=paper) as in_process:
        async with executing(in_process):
            intent = await buy(in_process, "10", "0.01")
            await in_process.until_status(intent, "NEW")
        async with executing(in_process) as execution:
            await in_process.until_true(lambda: up(in_process, execution))
            assert (
                await in_process.in_process_writer.count("holdings WHERE received_at IS NOT NULL")
                == 0
            )


async def test_an_opening_without_the_brokers_price_costs_the_reference_price(
    urls: Urls, database: Database
) -> None:
    # Where no price walks.
    async with open_in_process(urls, venue=FakeVenue("other")) as in_process:
        await put_price(in_process, "AAPL", "80")
        await put_price(in_process, "IBM", "70")
        in_process.venue.positions = (report("AAPL", "5", "p1"), report("IBM", "2", "p2", "60"))
        async with executing(in_process):
            await until_position(
                in_process, "AAPL", opening_quantity=D(5), open_cost=D(400), uncosted_quantity=D(0)
            )
            await until_position(in_process, "IBM", open_cost=D(120), broker_quantity=D(2))
        await assert_true_books(database)


async def test_an_opening_gets_its_cost_once_a_reference_price_is_known(
    urls: Urls, database: Database
) -> None:
    # Where no price walks.
    async with open_in_process(urls, venue=FakeVenue("other")) as in_process:
        in_process.venue.positions = (
            report("AAPL", "5", "p1"),
            report("MSFT", "-3", "p2"),
            report("IBM", "4", "p3"),
        )
        async with executing(in_process):
            await until_position(in_process, "AAPL", uncosted_quantity=D(5))
            await until_position(in_process, "MSFT", uncosted_quantity=D(-3))
            await fill_order(in_process)  # 10 at 100: the first price that is known of AAPL
        await put_price(in_process, "MSFT", "20")
        async with executing(in_process, reconcile_seconds=0.5):
            await until_position(
                in_process, "MSFT", open_cost=D(-60), uncosted_quantity=D(0), realized_pnl=D(0)
            )
            await until_position(
                in_process, "AAPL", quantity=D(15), open_cost=D(1500), opening_price=D(100)
            )
        assert (await position(in_process, "IBM"))["uncosted_quantity"] == 4, (
            "no price of it is known"
        )
        assert set((await position_symbols(in_process))[-2:]) == {"AAPL", "MSFT"}
        await assert_true_books(database)
