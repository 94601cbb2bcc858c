"""Workers in the test's own process that trade at the simulator of Alpaca, each account with its
own credential."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.brokers.alpaca.book import Account
from tests.brokers.alpaca.order import Order
from tests.brokers.alpaca.simulator import Simulator
from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from trading_intents.brokers.alpaca.broker import AlpacaBroker
from trading_intents.brokers.alpaca.wire import CAPABILITIES
from trading_intents.brokers.port import BrokerAdapter, Integration, IntegrationContext
from trading_intents.secret import Secret

SECRET = "SECRET"


def integration(
    simulator: Simulator, url: str | None = None, per_minute: int | None = 200, **seconds: float
) -> Integration:
    """Alpaca under the paper broker's name, which is that of the accounts in these tests."""
    capabilities = replace(
        CAPABILITIES, name="paper", credential_fields=(), requests_per_minute=per_minute
    )

    def connect(context: IntegrationContext) -> BrokerAdapter:
        key = str(context.account.id)
        if key not in simulator.accounts:
            simulator.add(key, SECRET)
        settings = {"ALPACA_PAPER_URL": url or simulator.url}
        secrets = {"api_key_id": Secret(key), "api_secret": Secret(SECRET)}
        return AlpacaBroker(replace(context, settings=settings, secrets=secrets), **seconds)

    return Integration("paper", capabilities, connect)


class AlpacaExecution:
    """An execution in this process, with what Alpaca has of its accounts."""

    def __init__(self, simulator: Simulator, in_process: InProcessExecution) -> None:
        self.simulator = simulator
        self.in_process = in_process

    @property
    def account(self) -> Account:
        return self.simulator.accounts[str(self.in_process.account)]

    async def work_order(self) -> UUID:
        """The intent of an order that Alpaca works now."""
        intent_id = await self.in_process.create()
        await self.in_process.until_status(intent_id, "NEW")
        return intent_id

    async def order(self, intent_id: UUID) -> Order:
        """As Alpaca has it."""
        return self.account.by_client[await self.in_process.coid(intent_id)]

    async def trades(self, intent_id: UUID) -> list[tuple[str, str, list[str]]]:
        """Quantity, price and flags of the order's trades, those that are no more left out."""
        rows: list[Any] = await self.in_process.in_process_writer.owner.fetch(
            "SELECT * FROM trades WHERE order_id = $1 AND quantity > 0 ORDER BY booking", intent_id
        )
        return [(f"{row['quantity']:f}", f"{row['price']:f}", list(row["flags"])) for row in rows]

    async def until_connected(self) -> None:
        async def is_connected() -> bool:
            return await self.in_process.connection() == "connected"

        await self.in_process.until(is_connected)


@contextlib.asynccontextmanager
async def open_alpaca(
    urls: Urls, simulator: Simulator, accounts: int = 1
) -> AsyncIterator[AlpacaExecution]:
    async with open_in_process(urls, accounts) as in_process:
        yield AlpacaExecution(simulator, in_process)


@contextlib.asynccontextmanager
async def trading(
    urls: Urls, simulator: Simulator, made: Integration | None = None
) -> AsyncIterator[AlpacaExecution]:
    """A worker whose account is connected."""
    async with (
        open_alpaca(urls, simulator) as alpaca,
        executing(alpaca.in_process, integration=made or integration(simulator)),
    ):
        await alpaca.until_connected()
        yield alpaca
