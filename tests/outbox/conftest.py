"""A fresh database's outbox, seen by the worker's pool and by a superuser."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Urls
from tests.kept_connections import open_owner
from tests.outbox.rows import Table
from trading_intents.storage.database import Database, Pool


@pytest.fixture
async def table(urls: Urls) -> AsyncIterator[Table]:
    async with open_owner(urls.owner) as connection:
        yield Table(connection)


@pytest.fixture
def pool(database: Database) -> Pool:
    return database.worker
