"""An error of an adapter ends its session, is logged, and is followed by another session."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import pytest

from tests.conftest import Urls
from tests.execution.arranged import until_connection
from tests.execution.in_process_execution import executing, open_in_process
from tests.fakes import Act, FakeVenue, VenueSession
from trading_intents.brokers.paper.broker import INTEGRATION
from trading_intents.brokers.paper.market import Market
from trading_intents.brokers.port import (
    AccountSnapshot,
    BrokerBalance,
    BrokerEvent,
    CommandResult,
    IntegrationContext,
    Lookup,
    OrderTicket,
    StreamGap,
)
from trading_intents.telemetry import Metrics

STOP_LIMIT_SECONDS = 15


class CancelledVenue(FakeVenue):
    """Its first session waits, where it is scripted to, for something that is cancelled: as gRPC's
    calls may be."""

    def __init__(self, where: str) -> None:
        super().__init__("paper")
        self.where = where

    def connect(self, context: IntegrationContext) -> VenueSession:
        self.contexts.append(context)
        session = CancelledSession if len(self.contexts) == 1 else VenueSession
        return session(self, context.account.id)


class CancelledSession(VenueSession):
    def __init__(self, venue: FakeVenue, account_id: UUID) -> None:
        super().__init__(venue, account_id)
        assert isinstance(venue, CancelledVenue)
        self._where = venue.where

    async def _meet(self, where: str) -> None:
        if where == self._where:
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

    async def open(self) -> None:
        await self._meet("open")
        await super().open()

    async def snapshot(self, since: datetime) -> AccountSnapshot:
        await self._meet("snapshot")
        return await super().snapshot(since)

    async def submit(self, ticket: OrderTicket, deadline: float) -> CommandResult:
        result = await super().submit(ticket, deadline)
        await self._meet("submit")
        return result

    async def lookup(
        self, client_order_id: str, broker_order_id: str | None, deadline: float
    ) -> Lookup:
        await self._meet("lookup")
        return await super().lookup(client_order_id, broker_order_id, deadline)

    async def events(self) -> AsyncIterator[BrokerEvent | BrokerBalance | StreamGap]:
        await self._meet("events")
        async for event in super().events():
            yield event


@pytest.mark.parametrize("where", ["open", "snapshot", "events"])
async def test_a_session_whose_adapter_is_cancelled_is_opened_again(
    urls: Urls, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        open_in_process(urls, venue=CancelledVenue(where)) as in_process,
        executing(in_process, level="warning"),
    ):
        await in_process.until_true(lambda: len(in_process.venue.contexts) == 2)
        await until_connection(in_process, "connected")
        intent = await in_process.create()
        await in_process.until_status(intent, "NEW")
        in_process.fill(await in_process.coid(intent))
        await in_process.until_status(intent, "FILLED")
    assert "broker link ended" in capsys.readouterr().err


async def test_a_command_whose_adapter_is_cancelled_is_unknown(urls: Urls) -> None:
    metrics = Metrics()
    venue = CancelledVenue("submit")
    async with (
        open_in_process(urls, venue=venue) as in_process,
        executing(in_process, metrics=metrics),
    ):
        await in_process.until_status(await in_process.create(), "NEW")
    assert metrics.execution_sends.labels("submit", "unknown")._value.get() == 1
    assert len(venue.arrived("submit")) == 1


async def test_a_look_up_whose_adapter_is_cancelled_is_unknown(urls: Urls) -> None:
    metrics = Metrics()
    venue = CancelledVenue("lookup")
    async with (
        open_in_process(urls, venue=venue) as in_process,
        executing(in_process, metrics=metrics),
    ):
        venue.is_mute = True
        venue.acts.append(Act.DROP)
        await in_process.create()
        unknown = metrics.execution_lookups.labels("unknown")._value
        await in_process.until_true(lambda: unknown.get() > 0)


class DeafVenue(FakeVenue):
    """Its sessions go on listening when they are cancelled, until they are released."""

    is_released = False

    def connect(self, context: IntegrationContext) -> VenueSession:
        self.contexts.append(context)
        return DeafSession(self, context.account.id)


class DeafSession(VenueSession):
    async def events(self) -> AsyncIterator[BrokerEvent | BrokerBalance | StreamGap]:
        while True:
            try:
                async for event in super().events():
                    yield event
            except asyncio.CancelledError:
                assert isinstance(self._venue, DeafVenue)
                if self._venue.is_released:
                    raise


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
async def test_an_adapter_that_cannot_be_cancelled_holds_up_neither_the_next_session_nor_the_stop(
    urls: Urls,
) -> None:
    venue = DeafVenue("paper")
    async with open_in_process(urls, venue=venue) as in_process, executing(in_process) as execution:
        try:
            await until_connection(in_process, "connected")
            await in_process.in_process_writer.owner.execute(
                """
                    UPDATE accounts SET external_account_id = 'x',
                        link_generation = link_generation + 1
                """
            )
            await in_process.until_true(lambda: len(venue.contexts) == 2)
            await until_connection(in_process, "connected")
            async with asyncio.timeout(STOP_LIMIT_SECONDS):
                await execution.stop(0)
        finally:
            venue.is_released = True
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                if "EventReader" in repr(task):
                    task.cancel()


async def test_the_reason_for_which_the_paper_market_ended_is_logged(
    urls: Urls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Market.look
    failures = list[Market]()

    async def fail_once(self: Market) -> None:
        if not failures:
            failures.append(self)
            raise ZeroDivisionError
        await look(self)

    monkeypatch.setattr(Market, "look", fail_once)
    async with (
        open_in_process(urls) as in_process,
        executing(in_process, level="warning", integration=INTEGRATION),
    ):
        await until_connection(in_process, "connected")
        intent = await in_process.create()  # it rests, and the market is looked at
        await in_process.until_true(lambda: bool(failures))
        await in_process.until_status(intent, "NEW")
        await until_connection(in_process, "connected")
    reported = capsys.readouterr().err
    assert "broker link ended" in reported
    assert "ZeroDivisionError" in reported
