"""A writer in the test's own process, on a database of its own, with accounts to write for."""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from tests.kept_connections import make_pipeline, open_owner, open_pools
from trading_intents.brokers.paper.venue.simulation import PaperSimulation
from trading_intents.brokers.port import Integration
from trading_intents.brokers.registry import Registry, installed_brokers
from trading_intents.clock import SystemClock
from trading_intents.errors import PlatformError
from trading_intents.ids import id_text_maker
from trading_intents.intents.model import Cancel, Command, Create, Spec, Submission
from trading_intents.intents.writing.batch import Receipt
from trading_intents.intents.writing.state import BatchDependencies
from trading_intents.intents.writing.statements import LOCK_LIMIT_SECONDS
from trading_intents.intents.writing.writer import Writer
from trading_intents.prices.model import PriceRules
from trading_intents.secret import Secret
from trading_intents.storage.database import SERVICE_ROLE, Pool
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import Metrics, make_log
from trading_intents.trading import OrderKind, OrderSide, RouteStrategy, Symbol

POOL_SIZE = 5
PRICES = PriceRules(900, PaperSimulation(1))


@functools.cache
def brokers() -> Registry:
    """Looked for once: that takes longer than a command."""
    return installed_brokers(make_log("critical"))


@dataclass(kw_only=True)
class InProcessWriter:
    writer: Writer
    pool: Pool
    metrics: Metrics
    owner: asyncpg.Connection
    organization: UUID
    key: UUID
    accounts: list[UUID]

    def create(
        self, account: UUID, symbol: str = "AAPL", reference: str | None = None
    ) -> Submission:
        spec = Spec(
            kind=OrderKind.MARKET,
            quantity="1",
            limit_price=None,
            stop_price=None,
            trail_amount=None,
        )
        return self.command(
            account, Create(Symbol(symbol), OrderSide.BUY, RouteStrategy.SMART, spec), reference
        )

    def cancel(self, account: UUID, intent_id: str) -> Submission:
        return self.command(account, Cancel(intent_id))

    def command(self, account: UUID, command: Command, reference: str | None = None) -> Submission:
        return Submission(
            account_id=str(account),
            organization_id=str(self.organization),
            key_id=str(self.key),
            command=command,
            client_reference_id=reference,
            idempotency_key=None,
            body_digest=None,
        )

    async def submit(self, submission: Submission) -> Receipt | PlatformError:
        try:
            return await self.writer.submit(submission)
        except PlatformError as error:
            return error

    async def submit_all(self, submissions: list[Submission]) -> list[Receipt | PlatformError]:
        """In one batch, if the writer is free: none of them waits before all are in line."""
        return await asyncio.gather(*map(self.submit, submissions))

    async def count(self, table: str) -> int:
        found: int = await self.owner.fetchval(f"SELECT count(*) FROM {table}")
        return found

    def in_use(self) -> float:
        return float(self.metrics.pool_in_use.labels("ti_service")._value.get())


@contextlib.asynccontextmanager
async def open_in_process_writer(
    login: Secret,
    owner_url: Secret,
    accounts: int = 3,
    run: bool = True,
    integration: Integration | None = None,
) -> AsyncIterator[InProcessWriter]:
    """`login` may lead through a proxy; the owner's way is always clear. The accounts are of the
    integration, else of the paper broker."""
    log = make_log("critical")
    metrics = Metrics()
    clock = SystemClock()
    async with (
        open_owner(owner_url) as owner,
        open_pools(login, POOL_SIZE, metrics) as database,
        open_signals(login, log) as signals,
    ):
        organization, key = await furnish(owner)
        broker = integration.name if integration else "paper"
        made = sorted([await add_account(owner, organization, broker) for _ in range(accounts)])
        pipeline = make_pipeline(login, SERVICE_ROLE, LOCK_LIMIT_SECONDS)
        known = Registry([integration]) if integration else brokers()
        tools = BatchDependencies(
            pipeline=pipeline, brokers=known, make_id=id_text_maker(), clock=clock, prices=PRICES
        )
        writer = Writer(tools, database.service, signals, metrics, log)
        task = asyncio.create_task(writer.run() if run else asyncio.sleep(0))
        try:
            yield InProcessWriter(
                writer=writer,
                pool=database.service,
                metrics=metrics,
                owner=owner,
                organization=organization,
                key=key,
                accounts=made,
            )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            pipeline.close()


async def furnish(owner: asyncpg.Connection) -> tuple[UUID, UUID]:
    organization = uuid4()
    key = uuid4()
    await owner.execute(
        "INSERT INTO organizations (id, provider, external_id, name) VALUES ($1, 'local', $2, 'x')",
        organization,
        str(organization),
    )
    await owner.execute(
        "INSERT INTO api_keys (id, organization_id, name, environment, permissions, digest, hint)"
        " VALUES ($1, $2, 'k', 'paper', '{intent:edit}', $3, 'hint')",
        key,
        organization,
        os.urandom(32),
    )
    return organization, key


async def add_account(owner: asyncpg.Connection, organization: UUID, broker: str = "paper") -> UUID:
    account = uuid4()
    await owner.execute(
        """
            INSERT INTO accounts (id, organization_id, name, broker, environment)
            VALUES ($1, $2, 'a', $3, 'paper')
        """,
        account,
        organization,
        broker,
    )
    await owner.execute(
        "INSERT INTO account_heads (account_id, organization_id) VALUES ($1, $2)",
        account,
        organization,
    )
    return account


def codes(outcomes: list[Any]) -> list[str]:
    return [
        outcome.code if isinstance(outcome, PlatformError) else "recorded" for outcome in outcomes
    ]
