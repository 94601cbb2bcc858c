"""Books of an account that nobody else works on, and a platform that shows them. When a test is over they are true."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import Databases, Urls
from tests.execution.api_only_platform import ApiOnlyPlatform, open_api_platform
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.recorded_orders import Books, open_books, track
from trading_intents.storage.database import Database


@pytest.fixture
async def books(urls: Urls, database: Database) -> AsyncIterator[Books]:
    async with open_books(urls, database) as opened:
        await track(opened, 0)
        yield opened
        await assert_true_books(database)


@pytest.fixture(scope="session")
def api_platform(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiOnlyPlatform]:
    with databases() as urls, open_api_platform(urls, tmp_path_factory.mktemp("house")) as opened:
        yield opened


@pytest.fixture
async def shown(api_platform: ApiOnlyPlatform) -> AsyncIterator[Books]:
    """Books of an account that the platform shows."""
    async with api_platform.open_books() as opened:
        yield opened
        await assert_true_books(opened.database)
