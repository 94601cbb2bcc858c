"""The session's platform, with the database behind it, and accounts to trade on."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Urls
from tests.intents.http_client import Tables, TradingClient, open_trading_client
from tests.stream.client import Client
from tests.tenants import Tenants

OpenClient = Callable[..., TradingClient]


@pytest.fixture(scope="session")
def tables(tenants_database: Urls) -> Iterator[Tables]:
    opened = Tables(tenants_database.owner)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def open_client(tenants: Tenants, tables: Tables) -> OpenClient:
    def opened(**changes: str) -> TradingClient:
        return open_trading_client(tenants, tables, **changes)

    return opened


@pytest.fixture
def client(tenants: Tenants) -> Iterator[Client]:
    client = Client(tenants.platform.grpc)
    yield client
    client.close()
