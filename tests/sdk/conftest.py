"""A client of the shared platform, and an account of its own for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.tenants import Tenants
from trading_intents_client import Account, AsyncAccount, AsyncTradingClient, TradingClient


@pytest.fixture
def api_key(tenants: Tenants) -> str:
    key: str = tenants.api_key("org_acme", "all")["api_key"]
    return key


@pytest.fixture
def client(tenants: Tenants, api_key: str) -> Iterator[TradingClient]:
    with TradingClient(
        tenants.platform.url, api_key=api_key, grpc_target=tenants.platform.grpc
    ) as client:
        yield client


@pytest.fixture
def account(client: TradingClient, request: pytest.FixtureRequest) -> Account:
    return client.account(client.create_account(request.node.name[:100], "paper", "paper").id)


@pytest.fixture
async def async_client(tenants: Tenants, api_key: str) -> AsyncIterator[AsyncTradingClient]:
    async with AsyncTradingClient(
        tenants.platform.url, api_key=api_key, grpc_target=tenants.platform.grpc
    ) as client:
        yield client


@pytest.fixture
async def async_account(
    async_client: AsyncTradingClient, request: pytest.FixtureRequest
) -> AsyncAccount:
    return async_client.account(
        (await async_client.create_account(request.node.name[:100], "paper", "paper")).id
    )
