"""An error of the paper broker's own ends one order: its account trades on, and can be halted."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import Urls
from tests.execution.arranged import alerts
from tests.execution.halt_calls import halt, until
from tests.execution.in_process_execution import executing, open_in_process
from tests.execution.openings import D, position, up
from tests.fakes import FakeVenue
from trading_intents.brokers.paper.book import rules
from trading_intents.brokers.paper.broker import INTEGRATION
from trading_intents.brokers.paper.model import Prices
from trading_intents.brokers.paper.quotes import Quotes
from trading_intents.ids import OrganizationId
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import Symbol


@pytest.mark.usefixtures("soon")
async def test_an_order_that_fails_is_rejected_and_the_account_is_halted_and_closed(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    paper = cast(FakeVenue, SimpleNamespace(integration=INTEGRATION))
    async with (
        open_in_process(urls, venue=paper) as it,
        executing(it, metrics=metrics) as execution,
        open_signals(urls.login, make_log("critical")) as signals,
    ):
        await it.until_true(lambda: up(it, execution))
        quotes = Quotes(it.in_process_writer.pool, signals, 1)

        async def post(ask: str) -> None:
            prices = Prices(bid=D(98), ask=D(ask), bid_size=D(100), ask_size=D(100))
            organization = OrganizationId(it.in_process_writer.organization)
            await quotes.post(organization, Symbol("AAPL"), prices)

        await post("120")
        failing = await it.create("3")
        others = [await it.create("4"), await it.create("5")]
        for intent in (failing, *others):
            await it.until_status(intent, "NEW")
        name = await it.coid(failing)
        touches = rules.touches

        def fail(order: Any, quote: Any) -> bool:
            assert order.client_order_id != name, "a fault of the test"
            return touches(order, quote)

        monkeypatch.setattr(rules, "touches", fail)
        await post("99")
        rejected = await it.until_status(failing, "REJECTED")
        assert (rejected["reason"], rejected["flags"]) == ("broker_failed", [])
        for intent in others:
            await it.until_status(intent, "FILLED")
        assert alerts(metrics, "paper_order_failed") == 1
        found = await halt(it, close_positions=True)
        await until(it, found, state="done")
        assert (await position(it))["quantity"] == 0
        assert await it.connection() == "connected"
        assert (
            await it.in_process_writer.owner.fetchval(
                "SELECT count(*) FROM orders WHERE finished_at IS NULL"
            )
            == 0
        )
