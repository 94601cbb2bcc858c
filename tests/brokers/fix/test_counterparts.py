"""Programs that nobody here wrote take the platform's session for FIX: QuickFIX's acceptance
scripts, its examples executor and ordermatch, a venue on its Python binding, and one on jspurefix.
They check every message against their dictionaries."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.brokers.fix import in_namespace
from tests.brokers.fix.acceptor import echo_acceptor
from tests.brokers.fix.counterparts import (
    MISSING,
    QUICKFIX,
    VERSIONS,
    WAIT_SECONDS,
    counterpart,
    soon,
    until,
)
from tests.brokers.fix.orders import a_ticket, submit
from tests.brokers.fix.script_player import play
from tests.brokers.sought import sought
from tests.conftest import Urls
from trading_intents.brokers.port import BrokerEvent, EventKind, OrderSnapshot, OrderTicket, Outcome
from trading_intents.trading import OrderKind, OrderSide

FOLDER = QUICKFIX / "test/definitions/server"
SCRIPTS = {
    f"{folder}/{path.stem}": path
    for folder in VERSIONS
    for path in sorted((FOLDER / folder).glob("*.def"))
}
# They want a message refused whose fields are not those that a dictionary has for its type. The
# session has none: a report that has a field too much is an execution all the same. docs/brokers.md
# names them.
NEED_A_DICTIONARY = frozenset(
    {
        "14a_BadField", "14b_RequiredFieldMissing", "14c_TagNotDefinedForMsgType", "14e_IncorrectEnumValue",
        "14f_IncorrectDataFormat", "14g_HeaderBodyTrailerFieldsOutOfOrder", "14h_RepeatedTag",
        "14i_RepeatingGroupCountNotEqual", "RejectResentMessage", "ReverseRoute", "ReverseRouteWithEmptyRoutingTags",
    }
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.mark.skipif(not SCRIPTS, reason=MISSING)
async def test_the_session_plays_quickfixs_acceptance_scripts() -> None:
    """As the acceptor that they were written for."""
    at_once = asyncio.Semaphore(20)

    async def one(name: str, script: Path) -> tuple[str, str]:
        async with at_once, echo_acceptor(VERSIONS[name.partition("/")[0]]) as acceptor:
            try:
                await play(script, acceptor.port)
            except AssertionError as error:
                return name, str(error)
            return name, ""

    wanted = {name: path for name, path in SCRIPTS.items() if path.stem not in NEED_A_DICTIONARY}
    played = await asyncio.gather(*(one(name, path) for name, path in wanted.items()))
    assert {name: error for name, error in played if error} == {}
    assert len(played) == 95


def fills(reported: list[BrokerEvent]) -> list[tuple[str | None, Decimal | None, Decimal | None]]:
    return [
        (each.client_order_id, each.quantity, each.price)
        for each in reported
        if each.kind is EventKind.FILL
    ]


def selling(ticket: OrderTicket) -> OrderTicket:
    return replace(ticket, side=OrderSide.SELL)


@pytest.mark.parametrize("version", VERSIONS)
async def test_executor_fills_orders_and_reports_again_what_was_missed(
    tenants_database: Urls, tmp_path: Path, version: str
) -> None:
    async with counterpart("executor", version, tenants_database, tmp_path) as executor:
        broker, reported = await executor.open()
        ticket = a_ticket()
        result = await submit(broker, ticket)
        assert result.outcome is Outcome.ACKED, result
        await until(lambda: bool(fills(reported)))
        assert fills(reported) == [(ticket.client_order_id, Decimal(10), Decimal(100))]
        cancelled = await broker.cancel(
            replace(a_ticket(None), orig_client_order_id=ticket.client_order_id), soon()
        )
        assert cancelled.outcome is Outcome.REJECTED, "it takes orders only, and says so"
        await executor.kill()
        await broker.close()
        # The order leaves and its report is lost: the connection breaks before it can be read.
        await executor.start()
        broker, reported = await executor.open()
        lost = a_ticket()
        sending = submit(broker, lost)
        async with asyncio.timeout(WAIT_SECONDS):
            while not await broker._store.was_sent(lost.client_order_id):
                await asyncio.sleep(0)
        assert broker._session
        broker._session._writer.transport.abort()
        await sending
        await broker.close()
        broker, reported = await executor.open()
        since = datetime.now(UTC) - timedelta(hours=1)

        async def executions() -> list[BrokerEvent]:
            return list((await broker.snapshot(since, ())).executions)

        async with asyncio.timeout(WAIT_SECONDS):
            while len(fills(await executions())) < 2:
                await asyncio.sleep(in_namespace.PAUSE_SECONDS)
        assert [each[0] for each in fills(await executions())] == [
            ticket.client_order_id,
            lost.client_order_id,
        ]
        await broker.close()


async def test_ordermatch_matches_and_cancels_orders(
    tenants_database: Urls, tmp_path: Path
) -> None:
    async with counterpart("ordermatch", "fix42", tenants_database, tmp_path) as ordermatch:
        broker, reported = await ordermatch.open()
        resting = a_ticket()
        assert (await submit(broker, resting)).outcome is Outcome.ACKED
        crossing = replace(selling(a_ticket()), quantity=Decimal(4))
        assert (await submit(broker, crossing)).outcome is Outcome.ACKED
        await until(lambda: len(fills(reported)) == 2)
        assert set(fills(reported)) == {
            (resting.client_order_id, Decimal(4), Decimal(100)),
            (crossing.client_order_id, Decimal(4), Decimal(100)),
        }
        cancel = replace(a_ticket(None), orig_client_order_id=resting.client_order_id)
        assert (await broker.cancel(cancel, soon())).outcome is Outcome.ACKED
        await until(lambda: any(each.kind is EventKind.CANCELLED for each in reported))
        ended = [each.client_order_id for each in reported if each.kind is EventKind.CANCELLED]
        assert ended == [resting.client_order_id]
        snapshot = await broker.snapshot(datetime.now(UTC) - timedelta(hours=1), ())
        assert snapshot.open_orders == ()
        assert len(fills(list(snapshot.executions))) == 2
        await broker.close()


async def test_quickfixs_dictionary_takes_every_command(
    tenants_database: Urls, tmp_path: Path
) -> None:
    """A message that lacks a field, or has one too much, gets a session-level reject from
    QuickFIX."""
    async with counterpart("quickfix-py", "fix44", tenants_database, tmp_path) as venue:
        broker, reported = await venue.open()
        ticket = a_ticket()
        assert (await submit(broker, ticket)).outcome is Outcome.ACKED
        await until(lambda: bool(fills(reported)))
        first = replace(
            a_ticket(), orig_client_order_id=ticket.client_order_id, quantity=Decimal(12)
        )
        assert (await broker.replace(first, soon())).outcome is Outcome.ACKED
        for each in (ticket, first):
            found = await broker.lookup(sought(each.client_order_id, "Q1"), soon())
            assert isinstance(found, OrderSnapshot), found
            assert [
                event.cum_quantity for event in found.events if event.kind is EventKind.STATUS
            ] == [Decimal(4)]
        stranger = replace(a_ticket(None), orig_client_order_id="nobody")
        refused = await broker.cancel(stranger, soon())
        assert (refused.outcome, refused.code) == (Outcome.REJECTED, "unknown_order")
        last = replace(
            a_ticket(None), orig_client_order_id=first.client_order_id, broker_order_id="Q1"
        )
        assert (await broker.cancel(last, soon())).outcome is Outcome.ACKED
        stop = replace(
            a_ticket(), kind=OrderKind.STOP_LIMIT, stop_price=Decimal(99), broker_order_id=None
        )
        assert (await submit(broker, stop)).outcome is Outcome.ACKED
        await broker.close()


async def test_jspurefix_takes_an_order_and_its_fills_are_read(
    tenants_database: Urls, tmp_path: Path
) -> None:
    """A second engine, which shares nothing with QuickFIX."""
    async with counterpart("jspurefix", "fix44", tenants_database, tmp_path) as venue:
        broker, reported = await venue.open()
        ticket = a_ticket()
        result = await submit(broker, ticket)
        assert (result.outcome, result.broker_order_id) == (
            Outcome.ACKED,
            f"J{ticket.client_order_id}",
        )
        await until(lambda: len(fills(reported)) == 2)
        assert fills(reported) == [(ticket.client_order_id, Decimal(5), Decimal(100))] * 2
        assert (await broker.snapshot(datetime.now(UTC) - timedelta(hours=1), ())).open_orders == ()
        await broker.close()
