"""A fresh database's outbox, seen by the worker's pool and by a superuser."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.conftest import Urls
from tests.outbox.rows import Table
from trading_intents.storage.database import Database, Pool


@pytest.fixture
async def table(urls: Urls) -> AsyncIterator[Table]:
    connection = await asyncpg.connect(urls.owner.reveal())
    yield Table(connection)
    await connection.close()


@pytest.fixture
def pool(database: Database) -> Pool:
    return database.worker
