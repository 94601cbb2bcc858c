"""Books of an account that nobody else works on, and a platform that shows them. When a test is over they are true."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import Databases, Urls
from tests.execution.api_only_platform import House, open_house
from tests.execution.ledger_invariants import assert_true_books
from tests.execution.recorded_orders import Books, open_books
from trading_intents.storage.database import Database


@pytest.fixture
async def books(urls: Urls, database: Database) -> AsyncIterator[Books]:
    async with open_books(urls, database) as opened:
        yield opened
        await assert_true_books(database)


@pytest.fixture(scope="session")
def house(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with databases() as urls, open_house(urls, tmp_path_factory.mktemp("house")) as opened:
        yield opened


@pytest.fixture
async def shown(house: House) -> AsyncIterator[Books]:
    """Books of an account that the platform shows."""
    async with house.open_books() as opened:
        yield opened
        await assert_true_books(opened.database)
