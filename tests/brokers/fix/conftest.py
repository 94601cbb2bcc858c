"""A venue, or a counterparty that the test plays itself, and adapters that connect to it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.brokers.fix.counterparty import Counterparty, counterparty
from tests.brokers.fix.venue import Connector, FixStage, fix_venue
from tests.conftest import Urls
from trading_intents.storage.database import WORKER_ROLE, open_pool
from trading_intents.storage.grouped import GroupTransactions
from trading_intents.storage.pipeline import Pipeline
from trading_intents.telemetry import Metrics

VERSIONS = {"generic44": "FIX.4.4", "generic42": "FIX.4.2", "no_resend44": "FIX.4.4"}


@contextlib.asynccontextmanager
async def connecting(
    urls: Urls, folder: Path, client: str, port: int, profile: str = "generic44"
) -> AsyncIterator[Connector]:
    async with open_pool(urls.login, WORKER_ROLE, 3, Metrics()) as pool:
        with contextlib.closing(
            GroupTransactions(Pipeline(urls.login, WORKER_ROLE))
        ) as transactions:
            yield Connector(
                client=client,
                port=port,
                pool=pool,
                transactions=transactions,
                folder=folder,
                extends=profile,
            )


@contextlib.asynccontextmanager
async def staging(urls: Urls, folder: Path, profile: str = "generic44") -> AsyncIterator[FixStage]:
    async with (
        fix_venue(VERSIONS[profile]) as venue,
        connecting(urls, folder, venue.client, venue.port, profile) as connector,
    ):
        yield FixStage(venue, connector)


@pytest.fixture
async def stage(tenants_database: Urls, tmp_path: Path) -> AsyncIterator[FixStage]:
    async with staging(tenants_database, tmp_path) as stage:
        yield stage


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Counterparty]:
    """The other side of the session."""
    async with counterparty(f"US-{tmp_path.name}") as made:
        yield made


@pytest.fixture
async def connector(
    tenants_database: Urls, tmp_path: Path, other: Counterparty
) -> AsyncIterator[Connector]:
    async with connecting(tenants_database, tmp_path, other.client, other.port) as made:
        yield made
